//! image export: an image becomes a file, or goes down a pipe.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
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
    let archive = Client::from_env()?.images().export(&args.image, format).await?;
    let Some(file) = file else {
        write(archive, tokio::io::stdout(), json).await?;
        return Ok(0);
    };
    let bytes = to_file(archive, &file, json).await?;
    if json {
        print::json(&serde_json::json!({"exported": args.image, "bytes": bytes}))?;
    }
    Ok(0)
}

/// A file appears under its name when it is whole. What is there and no file (a pipe, a device) is written to as it is.
async fn to_file(archive: ByteStream, path: &Path, json: bool) -> Result<u64, Failure> {
    let open = async |path: &Path| {
        let file = tokio::fs::File::create(path).await;
        file.with_context(|| format!("writing {}", path.display()))
    };
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return write(archive, open(path).await?, json).await;
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = write(archive, open(&partial).await?, json).await;
    let placed = written.and_then(|bytes| {
        let renamed = std::fs::rename(&partial, path);
        renamed.with_context(|| format!("writing {}", path.display()))?;
        Ok(bytes)
    });
    if placed.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&partial);
    }
    placed
}

async fn write(
    mut archive: ByteStream,
    mut out: impl AsyncWrite + Unpin,
    json: bool,
) -> Result<u64, Failure> {
    let bar = print::bytes_bar(None, "exporting", json);
    let mut bytes = 0;
    while let Some(part) = archive.next().await {
        let part = part?;
        out.write_all(&part).await?;
        bytes += part.len() as u64;
        bar.set_position(bytes);
    }
    out.flush().await?;
    bar.finish_and_clear();
    Ok(bytes)
}
