//! The one static binary beside and inside each container: `aether agent` outside, `aether init` as its pid 1.
//!
//! The role is the name it was started by, or its first argument. init must stay tiny, so it is decided before
//! anything else is set up.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let role = args.next().unwrap_or_else(|| name.rsplit('/').next().unwrap_or_default().to_owned());
    match role.as_str() {
        "init" => aether::init::run(),
        "agent" => {
            // What `ps` and the leak checks find it by; without it, the name of the memfd.
            let _ = rustix::thread::set_name(c"aether");
            match aether::agent::run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => {
                    eprintln!("aether: {e}");
                    ExitCode::FAILURE
                }
            }
        }
        other => {
            eprintln!("aether: expected the role `agent` or `init`, got `{other}`");
            ExitCode::FAILURE
        }
    }
}
