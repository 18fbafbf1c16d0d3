//! store rm.

use libdsec::Client;

use crate::outcome::{self, Outcome};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME or NAME:VERSION; a digest, of what has no name any more
    #[arg(required = true)]
    images: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    outcome::each(&args.images, "removed", json, async |image| images.remove_store(image).await).await
}
