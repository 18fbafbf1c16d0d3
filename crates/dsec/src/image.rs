//! Images: build, import, pull, export, list, inspect, merge, tag, remove, publish.

pub(crate) mod build;
mod export;
mod import;
mod inspect;
pub(crate) mod list;
mod merge;
mod prune;
mod publish;
mod pull;
mod remove;
mod tag;

use crate::outcome::Outcome;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Make an image of a directory, a tar or an OCI archive
    Import(import::Args),
    /// Write an image to a file: OCI archive, docker archive or tar
    Export(export::Args),
    /// Fetch an image from an OCI registry
    Pull(pull::Args),
    /// List images
    Ls(list::Args),
    /// All that is known of an image, as JSON
    Inspect(inspect::Args),
    /// Merge adjacent layers of an image into a new version with fewer
    Merge(merge::Args),
    /// Give an image another name
    Tag(tag::Args),
    /// Remove images
    Rm(remove::Args),
    /// Remove what builds have cached
    Prune(prune::Args),
    /// Send images to the store that nodes share
    Publish(publish::Args),
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Import(args) => import::run(args, json).await,
        Verb::Export(args) => export::run(args, json).await,
        Verb::Pull(args) => pull::run(args, json).await,
        Verb::Ls(args) => list::run(args, json).await,
        Verb::Inspect(args) => inspect::run(args).await,
        Verb::Merge(args) => merge::run(args, json).await,
        Verb::Tag(args) => tag::run(args, json).await,
        Verb::Rm(args) => remove::run(args, json).await,
        Verb::Prune(args) => prune::run(args, json).await,
        Verb::Publish(args) => publish::run(args, json).await,
    }
}
