//! exec_kill: ends a command that runs.

use libdsec::{ExecId, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CHANGES, Call, Hints, Verb, within_bounds};

pub(super) struct ExecKill;

const SIGKILL: i32 = 9;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// As exec answered it.
    exec_id: String,
    /// The signal's number: 9 (KILL) unless told otherwise; 15 (TERM) and 2 (INT) let a program clean up.
    #[serde(default)]
    signal: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Answer {
    /// The command had ended by itself before.
    ended_before: bool,
}

impl Verb for ExecKill {
    const NAME: &'static str = "exec_kill";
    const TITLE: &'static str = "Kill a command";
    const ABOUT: &'static str = "Send a signal to a command that runs in the background and to all that it started. Killing one that has ended is no error.";
    const HINTS: Hints = Hints { idempotent: true, ..CHANGES };
    type Args = Args;
    type Answer = Answer;

    async fn run(call: Call, args: Args) -> Result<Answer> {
        let signal = within_bounds("signal", args.signal.unwrap_or(SIGKILL as u64), 1, 64)? as i32;
        let exec_id: ExecId = args.exec_id.parse()?;
        let sandbox = call.sandbox().await?;
        let info = sandbox.exec_info(&exec_id).await?;
        if info.exit.is_some() {
            return Ok(Answer { ended_before: true });
        }
        let process = sandbox.attach(&exec_id, info.stdout_bytes, info.stderr_bytes).await?;
        match signal {
            SIGKILL => process.kill().await?,
            signal => process.control().signal_tree(signal).await?,
        }
        Ok(Answer { ended_before: false })
    }
}
