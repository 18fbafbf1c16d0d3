//! logs: the output of a command that runs or has ended; without an exec, the commands there are.

use std::io;

use libdsec::{Client, Command, Event, ExecId, ExecInfo, Sandbox};

use super::attach::{self, Join, OnSignal};
use crate::{
    outcome::{self, Outcome},
    print, units,
};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Without EXEC it lists the commands that run or are remembered. With --follow the exit status is the command's.

Examples:
  dsec logs work
  dsec logs work ex-01jg... --follow")]
pub(crate) struct Args {
    /// An id or a name
    sandbox: String,
    /// An exec's id
    exec: Option<ExecId>,
    /// Stay until the command ends
    #[arg(long, short, requires = "exec")]
    follow: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let sandbox = Client::from_env()?.get(&args.sandbox).await?;
    let Some(exec_id) = args.exec else { return list(&sandbox, json).await };
    if args.follow {
        let process = sandbox.attach(&exec_id, 0, 0).await?;
        return attach::join(process, Join { stdin: false, pty: false, json, on_signal: OnSignal::Leave })
            .await;
    }
    let info = sandbox.exec_info(&exec_id).await?;
    show(&sandbox, &info, json).await
}

/// What there is now.
async fn show(sandbox: &Sandbox, info: &ExecInfo, json: bool) -> Outcome {
    if json {
        print::json(&sandbox.exec_output(&info.exec_id).await?)?;
        return Ok(0);
    }
    let mut process = sandbox.attach(&info.exec_id, 0, 0).await?;
    loop {
        let at = process.offsets();
        if info.exit.is_none()
            && at.stdout_offset >= info.stdout_bytes
            && at.stderr_offset >= info.stderr_bytes
        {
            return Ok(0);
        }
        match process.next().await? {
            Some(Event::Stdout(data)) => attach::write(&mut io::stdout().lock(), &data)?,
            Some(Event::Stderr(data)) => attach::write(&mut io::stderr().lock(), &data)?,
            Some(Event::Dropped { stream, bytes, .. }) => outcome::note(&attach::dropped(stream, bytes)),
            Some(Event::Exit(_)) | None => return Ok(0),
        }
    }
}

async fn list(sandbox: &Sandbox, json: bool) -> Outcome {
    let mut execs = sandbox.execs().await?;
    execs.sort_by_key(|e| e.started_ms);
    if json {
        print::json(&execs)?;
        return Ok(0);
    }
    let now = units::now_ms();
    let rows = execs.into_iter().map(|e| {
        let ended = e.exit.map_or_else(|| "running".into(), |x| x.code.to_string());
        let started = format!("{} ago", units::duration_ms(now.saturating_sub(e.started_ms)));
        let (stdout, stderr) = (units::size(e.stdout_bytes), units::size(e.stderr_bytes));
        [e.exec_id.to_string(), started, ended, stdout, stderr, command(&e.command)]
    });
    print::table(["EXEC", "STARTED", "EXIT", "STDOUT", "STDERR", "COMMAND"], rows)?;
    Ok(0)
}

fn command(command: &Command) -> String {
    let text = match command {
        Command::Argv(argv) => argv.join(" "),
        Command::Shell(text) => text.clone(),
    };
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
