//! Environments: create, list, inspect, remove.

mod create;
mod inspect;
mod list;
mod remove;

use crate::outcome::Outcome;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Name a composition of a base, workspaces and toolkits
    Create(create::Args),
    /// List environments
    Ls(list::Args),
    /// All that is known of an environment, as JSON
    Inspect(inspect::Args),
    /// Remove environments; their images stay
    Rm(remove::Args),
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Create(args) => create::run(args, json).await,
        Verb::Ls(args) => list::run(args, json).await,
        Verb::Inspect(args) => inspect::run(args).await,
        Verb::Rm(args) => remove::run(args, json).await,
    }
}
