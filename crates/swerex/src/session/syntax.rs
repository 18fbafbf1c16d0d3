//! A command is checked before bash gets it: an open quote would have it wait for the rest. By the sandbox's own bash,
//! as theirs does, in an exec of its own.

use std::{sync::Arc, time::Duration};

use api::{
    arrow::Chronus,
    exec::{ExecRequest, ExitReason, Stdin},
};
use serde_json::json;

use crate::{
    fault::{Exception, Fault},
    python::{backslashreplace, repr},
};

const TIME_MAX: Duration = Duration::from_secs(60);
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// Faults: `BashIncorrectSyntaxError`.
pub(super) async fn check(chronus: &Arc<dyn Chronus>, command: &str) -> Result<(), Fault> {
    if command.trim().is_empty() {
        return Ok(());
    }
    let mut request = ExecRequest::argv(["bash", "-n"]);
    request.stdin = Stdin::Data(format!("{command}\n").into_bytes().into());
    request.timeout_ms = u64::try_from(TIME_MAX.as_millis()).ok();
    request.validate()?;
    let result = rpc::collect(chronus.exec(request).await?, OUTPUT_BYTES_MAX).await?;
    let Some(exit) = result.exit.filter(|exit| exit.reason != ExitReason::Exited || exit.code != 0) else {
        return Ok(());
    };
    let (stdout, stderr) = (backslashreplace(&result.stdout.data.0), backslashreplace(&result.stderr.data.0));
    let message = format!(
        "Error (exit code {}) while checking bash command \n{}\n---- Stderr ----\n{stderr}\n---- Stdout ----\n{stdout}",
        exit.code,
        repr(command)
    );
    let extra = json!({ "bash_stdout": stdout, "bash_stderr": stderr });
    Err(Fault::Raised { exception: Exception::BashIncorrectSyntax, message, extra })
}
