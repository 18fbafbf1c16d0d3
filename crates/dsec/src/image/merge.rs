//! image merge: the same content in fewer layers.

use libdsec::{Client, MERGE_THRESHOLD_BYTES, MergeRequest};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The image stays as it is; its sandboxes notice nothing.

Examples:
  dsec image merge python --as merged
  dsec image merge python:3.12 --as 3.12-merged --threshold 500M")]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    image: String,
    /// The version to make, of the same name
    #[arg(long = "as", value_name = "VERSION")]
    version: String,
    /// Neighbours are merged as long as they are not larger together [default: 3G]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    threshold: Option<u64>,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let threshold_bytes = args.threshold.unwrap_or(MERGE_THRESHOLD_BYTES);
    let request = MergeRequest { version: args.version, threshold_bytes };
    let spinner = print::spinner("merging", json);
    let merged = Client::from_env()?.images().merge(&args.image, request).await;
    spinner.finish_and_clear();
    let image = merged?;
    if json {
        print::json(&image)?;
    } else {
        let (layers, size) = (image.layers.len(), units::size(image.size_bytes));
        let plural = if layers == 1 { "" } else { "s" };
        print::line(format_args!(
            "{}:{}  {layers} layer{plural}, {size}  {}",
            image.name, image.version, image.digest
        ))?;
    }
    Ok(0)
}
