//! image import: a directory, a tar or an OCI archive becomes an image.

use std::path::PathBuf;

use clap::ValueEnum;
use libdsec::{Client, ImageInfo, ImportFormat, ImportQuery, LayerKind};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  dsec image import debian ./rootfs.tar
  dsec image import debian:12 ./rootfs/
  dsec image import python ./python-image.tar          (docker save, or an OCI archive)
  dsec image import project ./project --kind workspace --prefix /home/user/project --owner 1000:1000")]
pub(crate) struct Args {
    /// NAME or NAME:VERSION
    name: String,
    /// A directory, a tar (plain, gzip, zstd), the output of docker save, or an OCI archive
    path: PathBuf,
    /// Its place in a composition
    #[arg(long, value_enum, default_value_t = Kind::Base)]
    kind: Kind,
    /// How to read the file
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    format: Format,
    /// Put the whole tree under this directory of the sandbox
    #[arg(long, value_name = "DIR")]
    prefix: Option<String>,
    /// Give every file to this owner
    #[arg(long, value_name = "UID:GID")]
    owner: Option<String>,
    /// Default user of sandboxes, for a plain tar or a directory
    #[arg(long, short)]
    user: Option<String>,
    /// Default working directory
    #[arg(long, short, value_name = "DIR")]
    workdir: Option<String>,
    /// Environment of sandboxes; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    env: Vec<(String, String)>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
pub(super) enum Kind {
    Base,
    Workspace,
    Toolkit,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Format {
    Auto,
    Tar,
    OciArchive,
}

impl From<Kind> for LayerKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Base => Self::Base,
            Kind::Workspace => Self::Workspace,
            Kind::Toolkit => Self::Toolkit,
        }
    }
}

impl Args {
    fn query(&self) -> libdsec::Result<ImportQuery> {
        let (name, version) = self.name.split_once(':').unwrap_or((&self.name, "latest"));
        if let Some((key, _)) = self.env.iter().find(|(_, value)| value.contains('\n')) {
            return Err(libdsec::Error::invalid(format!("env: the value of `{key}` holds a newline")));
        }
        let env: Vec<String> = self.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let query = ImportQuery {
            version: version.to_owned(),
            format: match self.format {
                Format::Auto => ImportFormat::Auto,
                Format::Tar => ImportFormat::Tar,
                Format::OciArchive => ImportFormat::OciArchive,
            },
            prefix: self.prefix.clone(),
            owner: self.owner.clone(),
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            env: (!env.is_empty()).then(|| env.join("\n")),
            ..ImportQuery::new(name, self.kind.into())
        };
        query.validate()?;
        Ok(query)
    }
}

/// What there is now.
pub(super) fn tell(image: &ImageInfo, json: bool) -> Outcome {
    if json {
        print::json(image)?;
    } else {
        let (files, size) = (image.files, units::size(image.size_bytes));
        print::line(format_args!(
            "{}:{}  {files} files, {size}  {}",
            image.name, image.version, image.digest
        ))?;
    }
    Ok(0)
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let query = args.query()?;
    let client = Client::from_env()?;
    let total = std::fs::metadata(&args.path).ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
    let bar = print::bytes_bar(total, "importing", json);
    let moving = bar.clone();
    let imported =
        client.images().import_path(&args.path, query, move |p| moving.set_position(p.bytes_sent)).await;
    bar.finish_and_clear();
    let image = imported?;
    tell(&image, json)
}
