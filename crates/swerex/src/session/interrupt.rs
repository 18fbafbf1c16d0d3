//! `BashInterruptAction`: the interrupt key, a few times; then what runs is stopped and killed.
//!
//! It does not wait for its turn: a command that another request waits for is what it is there to end. Then that one
//! tells the output, and asks for the status; this one only tells that the prompt came.

use std::ops::Range;

use tokio::time::Instant;

use super::{
    expect::{Expect, Watch},
    find,
    run::Session,
};
use crate::{
    call::Call,
    fault::{Exception, Fault},
    wire::{Interrupt, Observation, check_name, span},
};

const INTERRUPT_KEY: &str = "\x03";
const STOP_KEY: &str = "\x1a";

pub(super) async fn run(call: &Call, action: &Interrupt) -> Result<Observation, Fault> {
    check_name(&action.session)?;
    action.validate()?;
    let expect = Expect::of(&action.expect)?;
    let exec = find::one(&call.chronus, &action.session).await?;
    let place = call.face.places.of(&call.id, &action.session);
    let turn = place.turn.try_lock().ok();
    let mut session = Session::open(call, &action.session, exec, &place).await?;
    for _ in 0..action.n_retry {
        if let Some((at, pattern)) = key(&mut session, INTERRUPT_KEY, &expect, action).await? {
            if turn.is_none() {
                return Ok(told("", pattern));
            }
            let output = session.terminal.text.text(0, at.start);
            session.note(at.end);
            let settled = if pattern == super::PROMPT { session.take("").await? } else { None };
            return Ok(told(&settled.unwrap_or(output), pattern));
        }
    }
    let stopped = key(&mut session, STOP_KEY, &expect, action).await?;
    let killed = if stopped.is_some() { session.take("kill -9 %1;").await? } else { None };
    // What is left of it comes with the next command: bash has not heard of its end.
    let output = killed.ok_or_else(|| Fault::raised(Exception::Timeout, "Failed to interrupt session"))?;
    Ok(told(&output, super::PROMPT.into()))
}

/// Where what ended the output is, and what it was.
async fn key(
    session: &mut Session<'_>,
    key: &'static str,
    expect: &Expect,
    action: &Interrupt,
) -> Result<Option<(Range<usize>, String)>, Fault> {
    let mut watch = Watch::new(&session.terminal);
    session.terminal.send(key);
    let deadline = Instant::now() + span(action.timeout);
    let hit = watch.next(&mut session.terminal, expect, deadline).await?;
    Ok(hit.place())
}

fn told(output: &str, pattern: String) -> Observation {
    Observation::new(output.trim().to_owned(), Some(0), pattern)
}
