//! image rm.

use libdsec::Client;

use crate::outcome::{self, Outcome};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    #[arg(required = true)]
    images: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    outcome::each(&args.images, "removed", json, async |image| images.remove(image).await).await
}
