//! key create, key ls, key revoke.

use std::time::Duration;

use clap::ValueEnum;
use libdsec::{Client, KeyRequest, PrincipalKind, Rights};

use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Make a key that may do a part of what yours may, and print it
    Create(Create),
    /// List keys of your project, and of all below it
    Ls(List),
    /// End keys
    Revoke(Revoke),
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The key is printed once and kept nowhere. A key may do what it, its project and all above it may together, and ends no later
than the key that made it.

Examples:
  dsec key create ci --project root/team --rights user --ttl 30d
  DSEC_API_KEY=$(dsec key create worker --kind agent --rights sandbox.exec,sandbox.files --ttl 1h) dsec ls")]
pub(crate) struct Create {
    /// A name, of the keys of its project that work
    name: String,
    /// Path or id [default: that of your key]
    #[arg(long, short, value_name = "PROJECT")]
    project: Option<String>,
    /// Who holds it
    #[arg(long, value_enum, default_value_t = Kind::Service)]
    kind: Kind,
    /// What it may do, e.g. user, sandbox.*,image.read or sandbox.exec:container [default: all that yours may]
    #[arg(long, value_name = "RIGHTS")]
    rights: Option<Rights>,
    /// Its life, e.g. 12h [default: as long as yours]
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
    ttl: Option<Duration>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Kind {
    Person,
    Service,
    Agent,
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    /// Those that work no more, too
    #[arg(long, short)]
    all: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Revoke {
    /// Ids, or names of keys that work
    #[arg(required = true)]
    keys: Vec<String>,
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Create(args) => create(args, json).await,
        Verb::Ls(args) => list(&args, json).await,
        Verb::Revoke(args) => revoke(args, json).await,
    }
}

async fn create(args: Create, json: bool) -> Outcome {
    let request = KeyRequest {
        name: args.name,
        project: args.project,
        kind: match args.kind {
            Kind::Person => PrincipalKind::Person,
            Kind::Service => PrincipalKind::Service,
            Kind::Agent => PrincipalKind::Agent,
        },
        rights: args.rights,
        ttl_ms: args.ttl.map(|ttl| ttl.as_millis() as u64),
    };
    let made = Client::from_env()?.keys().create(request).await?;
    match json {
        true => print::json(&made)?,
        false => print::line(&made.key)?,
    }
    Ok(0)
}

async fn list(args: &List, json: bool) -> Outcome {
    let now = units::now_ms();
    let mut keys = Client::from_env()?.keys().list().await?;
    let works =
        |key: &libdsec::KeyInfo| key.revoked_ms.is_none() && key.expires_ms.is_none_or(|end| end > now);
    keys.retain(|key| args.all || works(key));
    if json {
        print::json(&keys)?;
        return Ok(0);
    }
    let rows = keys.into_iter().map(|key| {
        let state = match (key.revoked_ms, key.expires_ms) {
            (Some(_), _) => "revoked".to_owned(),
            (None, Some(end)) if end <= now => "over".to_owned(),
            (None, Some(end)) => format!("{} left", units::duration_ms(end - now)),
            (None, None) => "works".to_owned(),
        };
        [key.name, key.project, key.kind.as_str().to_owned(), key.rights.to_string(), state, key.id]
    });
    print::table(["NAME", "PROJECT", "KIND", "RIGHTS", "STATE", "ID"], rows)?;
    Ok(0)
}

async fn revoke(args: Revoke, json: bool) -> Outcome {
    let keys = Client::from_env()?.keys();
    outcome::each(&args.keys, "revoked", json, async |key| keys.revoke(key).await).await
}
