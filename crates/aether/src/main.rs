//! The static binary beside each container. `aether agents` forks one agent for each (see `aether::agents`);
//! `aether agent` is one alone. The role is the first argument; what they are told by is descriptor 3.

use std::{io, process::ExitCode};

fn main() -> ExitCode {
    // What `ps` and the leak checks find it by; without it, the name of the memfd.
    let _ = rustix::thread::set_name(c"aether");
    let done = match std::env::args().nth(1).unwrap_or_default().as_str() {
        "agents" => aether::agents::run(),
        "agent" => linux::fork::inherited(3).and_then(aether::agent::run),
        other => Err(io::Error::other(format!("expected the role `agents` or `agent`, got `{other}`"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("aether: {e}");
            ExitCode::FAILURE
        }
    }
}
