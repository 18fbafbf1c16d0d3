//! Images: import, list, inspect, remove, publish.

mod import;
mod inspect;
mod list;
mod publish;
mod remove;

use crate::outcome::Outcome;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Make an image of a directory, a tar or an OCI archive
    Import(import::Args),
    /// List images
    Ls(list::Args),
    /// All that is known of an image, as JSON
    Inspect(inspect::Args),
    /// Remove images
    Rm(remove::Args),
    /// Send images to the store that nodes share
    Publish(publish::Args),
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Import(args) => import::run(args, json).await,
        Verb::Ls(args) => list::run(args, json).await,
        Verb::Inspect(args) => inspect::run(args).await,
        Verb::Rm(args) => remove::run(args, json).await,
        Verb::Publish(args) => publish::run(args, json).await,
    }
}
