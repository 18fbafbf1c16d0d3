//! Projects, keys and the audit log.

mod key;
mod set;
mod show;

use libdsec::{AuditQuery, Client};

pub(crate) use key::Verb as KeyVerb;

use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Make a project below another
    Create(set::Create),
    /// Bound a project: its rights, its quota
    Set(set::Set),
    /// List the project of the key, and all below it
    Ls(show::List),
    /// What holds for a project, and what it uses
    Show(show::Show),
    /// Remove projects that have nothing
    Rm(Remove),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Remove {
    /// Paths or ids
    #[arg(required = true)]
    projects: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Audit {
    /// The newest so many
    #[arg(long, short = 'n', value_name = "N", default_value_t = AuditQuery::default().count_max)]
    lines: u32,
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    match verb {
        Verb::Create(args) => set::create(args, json).await,
        Verb::Set(args) => set::set(args, json).await,
        Verb::Ls(args) => show::list(args, json).await,
        Verb::Show(args) => show::show(args, json).await,
        Verb::Rm(args) => remove(args, json).await,
    }
}

pub(crate) async fn run_key(verb: KeyVerb, json: bool) -> Outcome {
    key::run(verb, json).await
}

async fn remove(args: Remove, json: bool) -> Outcome {
    let projects = Client::from_env()?.projects();
    outcome::each(&args.projects, "removed", json, async |project| projects.remove(project).await).await
}

pub(crate) async fn audit(args: Audit, json: bool) -> Outcome {
    let entries = Client::from_env()?.projects().audit(AuditQuery { count_max: args.lines }).await?;
    if json {
        print::json(&entries)?;
        return Ok(0);
    }
    let now = units::now_ms();
    let rows = entries.into_iter().map(|entry| {
        [
            format!("{} ago", units::duration_ms(now.saturating_sub(entry.at_ms))),
            entry.project,
            entry.key_name,
            entry.verb,
            entry.target,
            entry.code.map_or("done", libdsec::Code::as_str).to_owned(),
        ]
    });
    print::table(["WHEN", "PROJECT", "KEY", "WHAT", "TARGET", "HOW"], rows)?;
    Ok(0)
}
