//! image rm.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    #[arg(required = true)]
    images: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    for image in &args.images {
        images.remove(image).await?;
        if json {
            print::json(&serde_json::json!({"removed": image}))?;
        } else {
            print::line(print::plain(image))?;
        }
    }
    Ok(0)
}
