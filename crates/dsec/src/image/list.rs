//! image ls.

use libdsec::{BUILD_CACHE, Client, ImageInfo, LayerKind};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME:VERSION alone
    #[arg(long, short)]
    quiet: bool,
    /// What builds have cached, too
    #[arg(long)]
    all: bool,
    /// What the store that nodes share has
    #[arg(long)]
    store: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let images = Client::from_env()?.images();
    let mut images = if args.store { images.list_store().await? } else { images.list().await? };
    images.retain(|image| args.all || image.name != BUILD_CACHE);
    show(images, args.quiet, json)
}

/// By name and version.
pub(crate) fn show(mut images: Vec<ImageInfo>, quiet: bool, json: bool) -> Outcome {
    images.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    if json {
        print::json(&images)?;
        return Ok(0);
    }
    if quiet {
        images.iter().try_for_each(|i| {
            print::line(format_args!("{}:{}", print::plain(&i.name), print::plain(&i.version)))
        })?;
        return Ok(0);
    }
    let now = units::now_ms();
    let rows = images.into_iter().map(|i| {
        let kind = match i.kind {
            LayerKind::Base => "base",
            LayerKind::Workspace => "workspace",
            LayerKind::Toolkit => "toolkit",
        };
        [
            format!("{}:{}", i.name, i.version),
            kind.to_owned(),
            i.layers.len().to_string(),
            i.files.to_string(),
            units::size(i.size_bytes),
            format!("{} ago", units::duration_ms(now.saturating_sub(i.created_ms))),
            i.in_use.to_string(),
            i.usage.sandboxes.to_string(),
            i.digest.strip_prefix("blake3:").unwrap_or(&i.digest).chars().take(12).collect(),
        ]
    });
    print::table(["IMAGE", "KIND", "LAYERS", "FILES", "SIZE", "MADE", "IN USE", "USES", "DIGEST"], rows)?;
    Ok(0)
}
