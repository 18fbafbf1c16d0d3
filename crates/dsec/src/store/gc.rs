//! store gc.

use std::time::Duration;

use libdsec::{Client, GcRequest};

use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Layers that no image of the store has, and data that no layer has, go once they are older than --older-than, an
hour at least. Publishes may go on meanwhile. A node that still has such an image keeps what it has fetched of it;
reads of the rest fail with EIO.

Examples:
  dsec store gc --dry-run
  dsec store rm old:1.2 && dsec store gc --older-than 24h")]
pub(crate) struct Args {
    /// Leave what is younger, e.g. 90m, 24h, 7d
    #[arg(long, value_name = "AGE", default_value = "24h", value_parser = units::parse_duration)]
    older_than: Duration,
    /// Remove nothing; tell what would be
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let request = GcRequest { older_than_ms: args.older_than.as_millis() as u64, dry_run: args.dry_run };
    let bar = print::spinner("collecting", json);
    let done = Client::from_env()?.images().gc_store(request).await;
    bar.finish_and_clear();
    let report = done?;
    if json {
        print::json(&report)?;
    } else {
        print::line(format_args!(
            "{} {} layers, {} objects, {} traces, {}; {} layers stay",
            if report.dry_run { "would remove" } else { "removed" },
            report.layers_removed,
            report.objects_removed,
            report.traces_removed,
            units::size(report.bytes_removed),
            report.layers_kept
        ))?;
        if report.failed > 0 {
            print::line(format_args!("{} could not be removed: try again", report.failed))?;
        }
    }
    Ok(if report.failed > 0 { outcome::PLATFORM } else { 0 })
}
