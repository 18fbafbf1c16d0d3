//! The built binary, as a person or a script runs it: against a server of this process that runs real commands
//! (`host`), and against `dsec up --fake` on a free port and a scratch directory (`server`).

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

#[path = "../../../libdsec/tests/sdk/host.rs"]
mod host;

mod commands;
mod help;
mod server;

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

/// `dsec` that knows no server.
fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dsec"));
    for name in ["DSEC_URL", "DSEC_API_KEY", "DSEC_DATA", "DSEC_LOG"] {
        command.env_remove(name);
    }
    command.env("DSEC_CONTEXT", "/nonexistent/context.toml").stdin(Stdio::null());
    command
}

/// `dsec` with the server of a context file.
fn with_context(path: &Path) -> Command {
    let mut command = bare();
    command.env("DSEC_CONTEXT", path);
    command
}

fn run(command: &mut Command, args: &[&str]) -> Output {
    command.args(args).output().unwrap()
}

/// Runs it, feeding `input`.
fn feed(command: &mut Command, args: &[&str], input: &[u8]) -> Output {
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// A server of this process; its threads end with the test.
struct Server {
    url: String,
    host: Arc<host::Host>,
    _runtime: tokio::runtime::Runtime,
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let host = host::Host::new();
        let url = runtime.block_on(host::serve(host.clone()));
        Self { url, host, _runtime: runtime }
    }

    fn dsec(&self) -> Command {
        let mut command = bare();
        command.env("DSEC_URL", &self.url).env("DSEC_API_KEY", "key");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        run(&mut self.dsec(), args)
    }

    /// A sandbox named `work`.
    fn with_work() -> Self {
        let server = Self::start();
        let made = server.run(&["create", "base", "--name", "work"]);
        assert_eq!(code(&made), 0, "{made:?}");
        server
    }
}
