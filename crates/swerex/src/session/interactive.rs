//! Lines for a program that talks with its user, as they are, and what it says until the words that are waited for.

use tokio::time::{Duration, Instant};

use super::{
    expect::{Expect, Watch},
    run::{Session, late},
};
use crate::{
    fault::{Exception, Fault},
    wire::{BashAction, Observation},
};

/// For a program that was told to quit to be gone, and bash to have its terminal back.
const QUIT_TIME: Duration = Duration::from_secs(2);

pub(super) async fn run(
    session: &mut Session<'_>,
    action: &BashAction,
    expect: &Expect,
    deadline: Instant,
) -> Result<Observation, Fault> {
    let mut watch = Watch::with_words_from_the_start(&session.terminal);
    session.terminal.send(format!("{}\n", action.command));
    let hit = watch.next(&mut session.terminal, expect, deadline).await?;
    let (at, pattern) = hit.place().ok_or_else(|| late(action))?;
    let output = session.terminal.text.text(0, at.start);
    session.note(at.end);
    if action.is_interactive_quit {
        quit(session).await?;
        return Ok(Observation::new(output, Some(0), pattern));
    }
    // Programs that edit lines echo them themselves.
    let output = output.trim_start();
    let output = output.strip_prefix(action.command.as_str()).unwrap_or(output).trim();
    Ok(Observation::new(output.to_owned(), Some(0), pattern))
}

/// The program may have left the terminal as it liked it.
async fn quit(session: &mut Session<'_>) -> Result<(), Fault> {
    let deadline = Instant::now() + QUIT_TIME;
    loop {
        // Again where it was lost with the program: what is typed while one ends may be thrown away.
        if session.take("stty -echo;").await?.is_some() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Fault::raised(Exception::Timeout, "Timeout exceeded."));
        }
    }
}
