//! image pull: an image comes from an OCI registry to the node.

use std::io::Read;

use libdsec::{Client, Credentials, Error, PullProgress, PullRequest, Secret};

use super::import::{Kind, tell};
use crate::{outcome::Outcome, print};

/// Longer is no password, but the wrong file.
const PASSWORD_BYTES_MAX: u64 = 64 << 10;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  dsec image pull registry.example.org/team/app:1.2
  dsec image pull registry.example.org/team/tools@sha256:... --name tools --kind toolkit
  dsec image pull registry.example.org/private/app --username me --password-stdin < token
  dsec image pull localhost:5000/app")]
pub(crate) struct Args {
    // Not a comment of rustdoc's, which takes brackets for links.
    #[arg(help = "REGISTRY/REPOSITORY[:TAG][@DIGEST]")]
    reference: String,
    /// Its name here; the last part of the repository where none is given
    #[arg(long)]
    name: Option<String>,
    /// Its version here; the tag where none is given
    #[arg(long)]
    version: Option<String>,
    /// Its place in a composition
    #[arg(long, value_enum, default_value_t = Kind::Base)]
    kind: Kind,
    /// linux/ARCHITECTURE[/VARIANT]; the node's own where none is given
    #[arg(long)]
    platform: Option<String>,
    /// For registries that ask who is there
    #[arg(long, short, requires = "password_stdin")]
    username: Option<String>,
    /// Read the password or token from stdin
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Speak HTTP without TLS to a registry that is not on the node itself
    #[arg(long)]
    plain_http: bool,
}

impl Args {
    fn request(self) -> libdsec::Result<PullRequest> {
        let credentials =
            self.username.map(|username| password().map(|password| Credentials { username, password }));
        let request = PullRequest {
            name: self.name,
            version: self.version,
            kind: self.kind.into(),
            platform: self.platform,
            credentials: credentials.transpose()?,
            plain_http: self.plain_http,
            ..PullRequest::new(self.reference)
        };
        request.validate()?;
        Ok(request)
    }
}

/// One line, as `docker login --password-stdin` takes it.
fn password() -> libdsec::Result<Secret> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(PASSWORD_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|_| Error::invalid("the password on stdin is no text"))?;
    Ok(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let request = args.request()?;
    let client = Client::from_env()?;
    let bar = print::bytes_bar(Some(0), "resolving", json);
    let moving = bar.clone();
    let show = move |told: &PullProgress| {
        moving.set_length(told.bytes_total);
        moving.set_position(told.bytes_fetched);
        moving.set_message(format!("layers {}/{}", told.layers_done, told.layers_total));
    };
    let pulled = client.images().pull(request, show).await;
    bar.finish_and_clear();
    tell(&pulled?, json)
}
