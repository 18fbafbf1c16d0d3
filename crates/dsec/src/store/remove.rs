//! store rm.

use libdsec::Client;

use crate::{
    outcome::{self, Outcome},
    print,
};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME or NAME:VERSION; a digest, of what has no name any more
    #[arg(required = true)]
    images: Vec<String>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    let mut failed = false;
    for image in &args.images {
        match images.remove_store(image).await {
            Ok(()) if json => print::json(&serde_json::json!({"removed": image}))?,
            Ok(()) => print::line(print::plain(image))?,
            Err(e) => {
                failed = true;
                outcome::report(&e.into(), json);
            }
        }
    }
    Ok(if failed { outcome::PLATFORM } else { 0 })
}
