//! ls.

use libdsec::{Client, ListQuery, SandboxInfo, State};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only those with this label
    #[arg(long, value_name = "KEY=VALUE")]
    label: Option<String>,
    /// Ids alone
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let mut living = Client::from_env()?.list(ListQuery { name: None, label: args.label }).await?;
    living.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
    if json {
        print::json(&living)?;
    } else if args.quiet {
        living.iter().try_for_each(|s| print::line(&s.id))?;
    } else {
        let now = units::now_ms();
        print::table(
            ["ID", "NAME", "STATE", "IMAGE", "MEMORY", "CPUS", "AGE", "ENDS IN", "EXECS"],
            living.into_iter().map(|s| row(s, now)),
        )?;
    }
    Ok(0)
}

fn row(s: SandboxInfo, now_ms: u64) -> [String; 9] {
    [
        s.id.to_string(),
        print::or_dash(s.spec.name),
        state(s.state).to_owned(),
        s.spec.image,
        units::size(s.spec.memory_bytes_max),
        format!("{}", f64::from(s.spec.cpu_millis_max) / 1000.0),
        units::duration_ms(now_ms.saturating_sub(s.created_ms)),
        units::duration_ms(s.expires_ms.saturating_sub(now_ms)),
        s.execs_live.to_string(),
    ]
}

fn state(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        State::Running => "running",
        State::Broken => "broken",
        State::Stopping => "stopping",
        State::Gone => "gone",
    }
}
