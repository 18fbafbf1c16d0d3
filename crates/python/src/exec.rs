//! The arguments of a command, and how it ended, between Python and libdsec.

use std::{collections::BTreeMap, time::Duration};

use libdsec::{Code, Error, Exec, ExecOutput, Exit, ExitReason, Result};
use pyo3::{IntoPyObjectExt, prelude::*, pybacked::PyBackedBytes, types::PyBytes};

use crate::runtime::Shared;

#[derive(FromPyObject)]
enum Command {
    Shell(String),
    Argv(Vec<String>),
}

/// The attributes of `dsec._options.ExecOptions`.
#[derive(FromPyObject)]
pub(crate) struct Options {
    command: Command,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    user: Option<String>,
    stdin: Option<PyBackedBytes>,
    stdin_stream: bool,
    pty: Option<(u16, u16)>,
    timeout_ms: Option<u64>,
    output_bytes_max: Option<u64>,
    idempotency_key: Option<String>,
}

impl Options {
    pub(crate) fn build(self, sandbox: &libdsec::Sandbox) -> Exec {
        let mut exec = match self.command {
            Command::Argv(argv) => sandbox.exec(argv),
            Command::Shell(text) => sandbox.sh(text),
        };
        exec = exec.envs(self.env.unwrap_or_default());
        if let Some(cwd) = self.cwd {
            exec = exec.cwd(cwd);
        }
        if let Some(user) = self.user {
            exec = exec.user(user);
        }
        if let Some(data) = self.stdin {
            exec = exec.stdin(bytes::Bytes::from_owner(data));
        }
        if self.stdin_stream {
            exec = exec.stdin_stream();
        }
        if let Some((rows, cols)) = self.pty {
            exec = exec.pty(rows, cols);
        }
        if let Some(ms) = self.timeout_ms {
            exec = exec.timeout(Duration::from_millis(ms));
        }
        if let Some(bytes) = self.output_bytes_max {
            exec = exec.output_bytes_max(bytes);
        }
        if let Some(key) = self.idempotency_key {
            exec = exec.idempotency_key(key);
        }
        exec
    }
}

pub(crate) async fn output(
    sandbox: libdsec::Sandbox,
    options: Options,
    wait_ms: Option<u64>,
    shared: Shared,
) -> Result<ExecOutput> {
    let keep = options.output_bytes_max.unwrap_or(libdsec::limit::EXEC_OUTPUT_BYTES_DEFAULT);
    let run = async {
        let permit = shared.starts.acquire().await;
        let process = options.build(&sandbox).spawn().await?;
        drop(permit);
        process.output_with(keep).await
    };
    within(wait_ms, run).await
}

/// Waits no longer than that, where it is said. The command goes on.
pub(crate) async fn within<T>(wait_ms: Option<u64>, work: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(ms) = wait_ms else { return work.await };
    tokio::time::timeout(Duration::from_millis(ms), work).await.unwrap_or_else(|_| {
        Err(Error::new(Code::DeadlineExceeded, format!("not answered within {ms} ms; the command goes on")))
    })
}

fn reason(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::Exited => "exited",
        ExitReason::Signal => "signal",
        ExitReason::Timeout => "timeout",
        ExitReason::OomKilled => "oom_killed",
        ExitReason::NotStarted => "not_started",
        ExitReason::SandboxGone => "sandbox_gone",
    }
}

/// `(code, reason, signal, seconds)`
pub(crate) type ExitTuple = (i32, &'static str, Option<i32>, f64);

pub(crate) fn exit(exit: Exit) -> ExitTuple {
    (exit.code, reason(exit.reason), exit.signal, exit.duration_ms as f64 / 1000.0)
}

/// `(exec_id, exit, (bytes, total, truncated), (bytes, total, truncated))`
pub(crate) fn result(py: Python<'_>, out: ExecOutput) -> PyResult<Py<PyAny>> {
    let stream = |output: &libdsec::Output| {
        let data = output.data.0.as_ref();
        (PyBytes::new(py, data).unbind(), output.bytes_total, output.truncated)
    };
    let tuple = (out.exec_id.as_str(), exit(out.exit), stream(&out.stdout), stream(&out.stderr));
    tuple.into_py_any(py)
}
