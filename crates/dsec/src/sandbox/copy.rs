//! cp: files and directories, in and out. As with cp(1), onto a directory that is there means into it.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use futures_util::StreamExt;
use indicatif::ProgressBar;
use libdsec::{Client, Code, FileKind, Files};
use tokio::io::AsyncWriteExt;

use crate::{outcome::Outcome, print};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
One side is SANDBOX:PATH, the other a path here; `-` is standard input or output. A path without a slash in
front is below the sandbox's working directory. A directory is copied with all files, directories and links in it;
FIFOs, sockets and devices are left out. Where the destination is a directory already, the copy goes into it.

Examples:
  dsec cp ./project work:project
  dsec cp work:project/out.tar .
  echo hi | dsec cp - work:/tmp/hi")]
pub(crate) struct Args {
    /// PATH or SANDBOX:PATH
    from: String,
    /// PATH or SANDBOX:PATH
    to: String,
    /// As this user of the sandbox: a name, UID or UID:GID
    #[arg(long, short)]
    user: Option<String>,
}

#[derive(Debug, PartialEq)]
enum Side {
    Here(PathBuf),
    Pipe,
    Inside { sandbox: String, path: String },
}

/// `a:b` is a sandbox's path, unless a `/` comes before the colon.
fn side(text: &str) -> Side {
    match text.split_once(':') {
        _ if text == "-" => Side::Pipe,
        Some((sandbox, path))
            if !sandbox.is_empty() && !sandbox.contains('/') && !sandbox.starts_with('.') =>
        {
            let path = if path.is_empty() { "." } else { path };
            Side::Inside { sandbox: sandbox.to_owned(), path: path.to_owned() }
        }
        _ => Side::Here(text.into()),
    }
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let client = Client::from_env()?;
    let open = |sandbox: String| {
        let (client, user) = (client.clone(), args.user.clone());
        async move {
            let files = client.get(&sandbox).await?.files();
            Ok::<_, libdsec::Error>(match user {
                Some(user) => files.as_user(user),
                None => files,
            })
        }
    };
    let bytes = match (side(&args.from), side(&args.to)) {
        (Side::Here(from), Side::Inside { sandbox, path }) => {
            upload(&open(sandbox).await?, &from, &path, json).await?
        }
        (Side::Pipe, Side::Inside { sandbox, path }) => {
            open(sandbox).await?.write_from(&path, tokio::io::stdin(), None).await?.size_bytes
        }
        (Side::Inside { sandbox, path }, Side::Here(to)) => {
            download(&open(sandbox).await?, &path, &to, json).await?
        }
        (Side::Inside { sandbox, path }, Side::Pipe) => {
            // Standard output is the file's; nothing else may be on it.
            to_writer(&open(sandbox).await?, &path, &mut tokio::io::stdout(), &ProgressBar::hidden()).await?;
            return Ok(0);
        }
        _ => return Err(anyhow::anyhow!("exactly one side is in a sandbox: write SANDBOX:PATH").into()),
    };
    if json {
        print::json(&serde_json::json!({"bytes": bytes}))?;
    }
    Ok(0)
}

/// The path, or, where a directory is there, the path in it.
async fn remote_target(
    files: &Files,
    path: &str,
    name: Option<&std::ffi::OsStr>,
    of_directory: bool,
) -> anyhow::Result<String> {
    match files.stat(path).await {
        Ok(info) if info.kind == FileKind::Directory => match name {
            Some(name) => {
                let name = name.to_str().context("a name that is not UTF-8: give the destination in full")?;
                Ok(format!("{}/{name}", path.trim_end_matches('/')))
            }
            None => Ok(path.to_owned()),
        },
        Ok(_) if path.ends_with('/') => bail!("{path} is not a directory"),
        Ok(_) => Ok(path.to_owned()),
        Err(e) if e.code == Code::NotFound && path.ends_with('/') && !of_directory => {
            bail!("there is no directory {path} in the sandbox")
        }
        Err(e) if e.code == Code::NotFound => Ok(path.to_owned()),
        Err(e) => Err(e.into()),
    }
}

async fn upload(files: &Files, from: &Path, to: &str, json: bool) -> anyhow::Result<u64> {
    let at = || format!("reading {}", from.display());
    let metadata = tokio::fs::metadata(from).await.with_context(at)?;
    // `.` and `..` have no name of their own: what is in them goes into the destination.
    let to = remote_target(files, to, from.file_name(), metadata.is_dir()).await?;
    if metadata.is_dir() {
        let bar = print::spinner(format!("copying {}", from.display()), json);
        let report = files.upload_dir(from, &to).await;
        bar.finish_and_clear();
        return Ok(report?.bytes);
    }
    if !metadata.is_file() {
        bail!("{} is neither a file nor a directory", from.display());
    }
    let file = tokio::fs::File::open(from).await.with_context(at)?;
    let mode = std::os::unix::fs::MetadataExt::mode(&metadata) & 0o777;
    let bar = print::bytes_bar(Some(metadata.len()), "copying", json);
    let written = files.write_from(&to, bar.wrap_async_read(file), Some(mode)).await;
    bar.finish_and_clear();
    Ok(written?.size_bytes)
}

async fn download(files: &Files, from: &str, to: &Path, json: bool) -> anyhow::Result<u64> {
    let info = files.stat(from).await?;
    let name = Path::new(from).file_name();
    let to = match name {
        Some(name) if to.is_dir() => to.join(name),
        _ => to.to_owned(),
    };
    if info.kind == FileKind::Directory {
        let bar = print::spinner(format!("copying {}", print::plain(from)), json);
        let report = files.download_dir(from, &to).await;
        bar.finish_and_clear();
        return Ok(report?.bytes);
    }
    if to.is_dir() {
        bail!("{} is a directory", to.display());
    }
    if to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!("there is no directory {}", to.display());
    }
    let bar = print::bytes_bar(Some(info.size_bytes), "copying", json);
    let done = download_file(files, from, &to, info.mode & 0o777, &bar).await;
    bar.finish_and_clear();
    done
}

/// Whole or not at all: into a name beside it, then renamed. What is no regular file is written through.
async fn download_file(
    files: &Files,
    from: &str,
    to: &Path,
    mode: u32,
    bar: &ProgressBar,
) -> anyhow::Result<u64> {
    let at = || format!("writing {}", to.display());
    if tokio::fs::metadata(to).await.is_ok_and(|m| !m.is_file()) {
        let mut file = tokio::fs::OpenOptions::new().write(true).open(to).await.with_context(at)?;
        return to_writer(files, from, &mut file, bar).await;
    }
    let mut part = to.as_os_str().to_owned();
    part.push(format!(".dsec-{}", std::process::id()));
    let part = PathBuf::from(part);
    let mut file = tokio::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&part)
        .await
        .with_context(at)?;
    let done = async {
        let bytes = to_writer(files, from, &mut file, bar).await?;
        tokio::fs::rename(&part, to).await.with_context(at)?;
        Ok(bytes)
    }
    .await;
    if done.is_err() {
        let _ = tokio::fs::remove_file(&part).await;
    }
    done
}

async fn to_writer(
    files: &Files,
    from: &str,
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    bar: &ProgressBar,
) -> anyhow::Result<u64> {
    let mut body = files.read_stream(from).await?.body;
    let mut bytes = 0;
    while let Some(chunk) = body.next().await.transpose()? {
        to.write_all(&chunk).await?;
        bytes += chunk.len() as u64;
        bar.set_position(bytes);
    }
    to.flush().await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        let inside = |sandbox: &str, path: &str| Side::Inside { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(side("work:/a:b"), inside("work", "/a:b"));
        assert_eq!(side("sb-e1-x:rel"), inside("sb-e1-x", "rel"));
        assert_eq!(side("work:"), inside("work", "."));
        assert_eq!(side("./a:b"), Side::Here("./a:b".into()));
        assert_eq!(side("/a:b"), Side::Here("/a:b".into()));
        assert_eq!(side("a"), Side::Here("a".into()));
        assert_eq!(side(":x"), Side::Here(":x".into()));
        assert_eq!(side("-"), Side::Pipe);
    }
}
