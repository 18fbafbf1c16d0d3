//! `aether-scenario NAME`: makes a sandbox as forge would, runs one scenario against its chronus, removes every trace.
//!
//! `aether-scenario serve AETHER SOCKET` starts the real agent instead, prints its pid and init's, and serves until
//! its standard input closes. Run as root. Single-threaded, as everything that forks must be.
#![allow(clippy::unwrap_used)]

mod exec;
mod file;
mod husk;
mod lab;
mod limits;
mod port;
mod tar;

use std::{io::Read, process::ExitCode, time::Duration};

use lab::Lab;

/// Longer than any scenario: a hang is a failure, not a hang.
const DEADLINE: Duration = Duration::from_secs(150);

macro_rules! scenarios {
    ($($module:ident :: $name:ident,)*) => {
        async fn run(name: &str, lab: &Lab) {
            match name {
                $(stringify!($name) => $module::$name(lab).await,)*
                other => panic!("no scenario `{other}`"),
            }
        }
    };
}

scenarios! {
    exec::case_01_03_background_child_holds_the_pipe,
    exec::case_04_a_stuck_exec_freezes_nobody,
    exec::case_05_fast_commands_lose_nothing,
    exec::case_07_last_line,
    exec::case_09_10_bytes_are_exact,
    exec::case_13_not_found_and_not_executable,
    exec::case_14_15_argv_and_env_verbatim,
    exec::case_17_huge_commands,
    exec::case_18_own_signal_is_no_timeout,
    exec::case_21_22_25_timeout_kills_the_tree,
    exec::case_34_35_36_stdin,
    exec::case_38_39_terminal,
    exec::case_41_no_zombies,
    exec::case_81_82_users_and_defaults,
    exec::attach_ack_and_backpressure,
    exec::signals,
    exec::idempotency,
    limits::case_19_oom_is_told_apart,
    limits::case_43_fork_bomb,
    limits::confinement,
    limits::nothing_of_aether_is_inside,
    limits::broken_shell_and_dead_init,
    limits::latency_of_true,
    file::case_49_50_write_and_read,
    file::case_52_ownership,
    file::case_55_links_and_races,
    file::case_56_names,
    file::case_57_typed_errors,
    file::case_59_disk_full,
    file::whole_or_not_at_all,
    file::list_move_remove,
    file::watch,
    tar::case_53_nothing_escapes,
    tar::round_trip,
    port::dial,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    linux::clone::ensure_single_threaded().expect("single-threaded");
    let husk = husk::Husk::make();
    let ok = match &args[1..] {
        [mode, aether, socket] if mode == "serve" => {
            let agent = husk.activate(aether, socket);
            println!("{} {}", agent.pid, husk.init.pid);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = rustix::process::pidfd_send_signal(&agent.pidfd, rustix::process::Signal::KILL);
            husk::wait(&agent.pidfd);
            true
        }
        [name] => {
            let agent = husk.agent(|inside| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
                runtime.block_on(async {
                    let lab = Lab::new(inside);
                    tokio::time::timeout(DEADLINE, run(name, &lab)).await.expect("the scenario hangs");
                });
            });
            husk::wait(&agent.pidfd) == Some(0)
        }
        _ => panic!("usage: aether-scenario NAME | serve AETHER SOCKET"),
    };
    let clean = husk.destroy();
    if ok && clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
