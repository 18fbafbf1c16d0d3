//! image publish: sends images to the store that nodes share.

use libdsec::Client;

use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
What the store has already is not sent again, so a publish that was cut short goes on where it was.

Examples:
  dsec image publish debian
  dsec image publish --all")]
pub(crate) struct Args {
    /// NAME or NAME:VERSION
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    images: Vec<String>,
    /// Every image of the node
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    let names = match args.all {
        true => images.list().await?.into_iter().map(|i| format!("{}:{}", i.name, i.version)).collect(),
        false => args.images,
    };
    let mut failed = false;
    for name in names {
        let bar = print::spinner("publishing", json);
        let sent = images.publish(&name).await;
        bar.finish_and_clear();
        match sent {
            Ok(report) if json => print::json(&report)?,
            Ok(report) => print::line(format_args!(
                "{}:{}  {} layers, {} sent  {}",
                report.image.name,
                report.image.version,
                report.layers_sent,
                units::size(report.bytes_sent),
                report.image.digest
            ))?,
            Err(e) => {
                failed = true;
                outcome::report(&e.into(), json);
            }
        }
    }
    Ok(if failed { outcome::PLATFORM } else { 0 })
}
