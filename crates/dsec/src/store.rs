//! The store that nodes share: list, remove, collect garbage.

mod gc;
mod remove;

use libdsec::Client;

use crate::{image, outcome::Outcome};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// List the images of the store
    Ls(List),
    /// Remove names from the store; `gc` frees the space
    Rm(remove::Args),
    /// Remove what is old and no image of the store needs
    Gc(gc::Args),
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    /// NAME:VERSION alone
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Ls(args) => {
            let images = Client::from_env()?.images().list_store().await?;
            image::list::show(images, args.quiet, json)
        }
        Verb::Rm(args) => remove::run(args, json).await,
        Verb::Gc(args) => gc::run(args, json).await,
    }
}
