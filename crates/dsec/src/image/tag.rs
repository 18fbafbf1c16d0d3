//! image tag: another name.

use libdsec::{Client, TagRequest};

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Both names lead to the same layers, which go when neither has them any more.

Examples:
  dsec image tag debian:12 base
  dsec image tag debian base:stable")]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    image: String,
    /// NAME or NAME:VERSION; what has that name loses it
    #[arg(value_name = "NEW")]
    new: String,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let (name, version) = args.new.split_once(':').unwrap_or((&args.new, "latest"));
    let request = TagRequest { version: version.to_owned(), ..TagRequest::new(name) };
    let image = Client::from_env()?.images().tag(&args.image, request).await?;
    if json {
        print::json(&image)?;
    } else {
        print::line(format_args!("{}:{}  {}", image.name, image.version, image.digest))?;
    }
    Ok(0)
}
