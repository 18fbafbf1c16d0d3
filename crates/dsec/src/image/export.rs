//! image export: an image becomes a file, or goes down a pipe.

use std::{io::IsTerminal, path::PathBuf};

use anyhow::anyhow;
use clap::ValueEnum;
use futures_util::StreamExt;
use libdsec::{ByteStream, Client, ExportFormat};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::{
    outcome::{Failure, Outcome},
    print,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  dsec image export debian -o debian.tar
  dsec image export python:3.12 --format docker | docker load
  dsec image export debian --format tar | tar -x --xattrs --numeric-owner -C rootfs")]
pub(crate) struct Args {
    /// NAME, NAME:VERSION or a digest
    image: String,
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Oci)]
    format: Format,
    /// Where to; without it, or with -, standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Format {
    /// An OCI layout in a tar
    Oci,
    /// What docker load takes
    Docker,
    /// The root file system, all layers in one
    Tar,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let format = match args.format {
        Format::Oci => ExportFormat::Oci,
        Format::Docker => ExportFormat::Docker,
        Format::Tar => ExportFormat::Tar,
    };
    let file = args.output.filter(|path| path.as_os_str() != "-");
    if file.is_none() && std::io::stdout().is_terminal() {
        return Err(anyhow!("an archive is not for a terminal: name a file with -o, or use a pipe").into());
    }
    let images = Client::from_env()?.images();
    let bar = print::bytes_bar(None, "exporting", json);
    let Some(file) = file else {
        write(images.export(&args.image, format).await?, tokio::io::stdout(), &bar).await?;
        bar.finish_and_clear();
        return Ok(0);
    };
    let exported = images.export_path(&args.image, format, &file, |bytes| bar.set_position(bytes)).await;
    bar.finish_and_clear();
    let bytes = exported?;
    if json {
        print::json(&serde_json::json!({"exported": args.image, "bytes": bytes}))?;
    }
    Ok(0)
}

async fn write(
    mut archive: ByteStream,
    mut out: impl AsyncWrite + Unpin,
    bar: &indicatif::ProgressBar,
) -> Result<(), Failure> {
    let mut bytes = 0;
    while let Some(part) = archive.next().await {
        let part = part?;
        out.write_all(&part).await?;
        bytes += part.len() as u64;
        bar.set_position(bytes);
    }
    Ok(out.flush().await?)
}
