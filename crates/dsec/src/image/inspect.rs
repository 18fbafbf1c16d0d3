//! image inspect.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    image: String,
    /// Where the bytes of its layers are instead
    #[arg(long)]
    layers: bool,
}

pub(crate) async fn run(args: Args) -> Outcome {
    let images = Client::from_env()?.images();
    if args.layers {
        print::json_pretty(&images.layers(&args.image).await?)?;
    } else {
        print::json_pretty(&images.inspect(&args.image).await?)?;
    }
    Ok(0)
}
