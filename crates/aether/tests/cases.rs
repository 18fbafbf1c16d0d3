//! The scenarios of `tests/scenario`, one test each, each in a sandbox of its own. Needs root.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

fn scenario(name: &str) {
    let out = Command::new(env!("CARGO_BIN_EXE_aether-scenario")).arg(name).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    print!("{stdout}");
    assert!(out.status.success(), "{name}: {}\n{stdout}\n{stderr}", out.status);
}

macro_rules! scenarios {
    ($($name:ident,)*) => { $(#[test] fn $name() { scenario(stringify!($name)); })* };
}

scenarios! {
    case_01_03_background_child_holds_the_pipe,
    case_04_a_stuck_exec_freezes_nobody,
    case_05_fast_commands_lose_nothing,
    case_07_last_line,
    case_09_10_bytes_are_exact,
    case_13_not_found_and_not_executable,
    case_14_15_argv_and_env_verbatim,
    case_17_huge_commands,
    case_18_own_signal_is_no_timeout,
    case_19_oom_is_told_apart,
    case_21_22_25_timeout_kills_the_tree,
    case_34_35_36_stdin,
    case_38_39_terminal,
    case_41_no_zombies,
    case_43_fork_bomb,
    case_49_50_write_and_read,
    case_52_ownership,
    case_53_nothing_escapes,
    case_55_links_and_races,
    case_56_names,
    case_57_typed_errors,
    case_59_disk_full,
    case_81_82_users_and_defaults,
    attach_ack_and_backpressure,
    broken_shell_and_dead_init,
    confinement,
    dial,
    idempotency,
    latency_of_true,
    list_move_remove,
    nothing_of_aether_is_inside,
    round_trip,
    signals,
    watch,
    whole_or_not_at_all,
}

/// Memory that this process alone costs, in KiB: its program's pages are shared by all agents of a node.
fn private_kib(pid: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let of = |key: &str| -> u64 {
        let line = text.lines().find(|l| l.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    of("Anonymous:")
}

#[test]
fn the_real_agent_serves_and_idles_small() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let socket = directory.path().join("chronus.sock");
    let mut husk = Command::new(env!("CARGO_BIN_EXE_aether-scenario"))
        .args(["serve", env!("CARGO_BIN_EXE_aether"), socket.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(husk.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (agent, init) = line.trim().split_once(' ').unwrap();
    let idle = private_kib(agent);
    let mut connection = UnixStream::connect(&socket).unwrap();
    let body = r#"{"command":"echo from inside"}"#;
    let request = format!(
        "POST /v1/exec HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    println!(
        "agent idle {idle} KiB, after an exec {} KiB; init {} KiB private",
        private_kib(agent),
        private_kib(init)
    );
    assert!(idle < 700, "{idle} KiB");
    assert!(answer.contains("from inside\\n"), "{answer}");
    drop(husk.stdin.take());
    assert!(husk.wait().unwrap().success(), "nothing is left");
}
