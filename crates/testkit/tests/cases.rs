//! Sections A to D of the black-box cases (exec, timeouts, stdin, terminals, limits), through the SDK over real HTTP.
//! A test has the number of its case. Deadlines here bound hangs; none asserts a speed.
#![allow(clippy::unwrap_used)]

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use libdsec::{Code, Event, ExecOutput, ExitReason, Sandbox, SandboxSpec, TextEvent};
use testkit::{Node, tests};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    testkit::suite::run(
        4,
        tests![
            case_01_background_child_keeps_the_pipe_open,
            case_03_exit_does_not_wait_for_a_daemon_with_the_pipes,
            case_04_one_stuck_exec_freezes_no_other,
            case_05_fast_commands_lose_no_output,
            case_07_the_last_line_without_newline_and_crlf_on_a_terminal,
            case_09_a_multi_byte_character_across_chunks,
            case_10_invalid_utf8_is_no_error,
            case_11_a_flood_is_capped_and_counted,
            case_13_not_found_and_not_executable,
            case_14_argv_boundaries_survive,
            case_15_env_values_verbatim,
            case_17_huge_commands_work_or_say_so,
            case_18_a_signal_of_its_own_is_no_timeout,
            case_19_oom_timeout_and_sigkill_are_told_apart,
            case_21_timeout_kills_the_whole_tree,
            case_22_timeout_kills_what_ignores_and_escapes,
            case_23_timeout_without_any_tool_in_the_image,
            case_25_partial_output_at_timeout,
            case_26_three_clocks_three_errors,
            case_28_a_hung_command_bricks_nothing,
            case_31_a_daemon_survives_its_exec,
            case_32_reattach_later,
            case_34_no_stdin_is_end_of_file,
            case_35_half_close,
            case_36_fifty_mebibytes_of_stdin,
            case_38_terminal_size_at_start_and_on_resize,
            case_39_the_terminal_controls,
            case_41_zombies_are_reaped,
            case_45_dev_shm_is_half_of_memory,
            case_46_pid_1_cannot_be_killed_and_a_lost_shell_is_told,
            case_47_a_tree_walk_is_bounded,
            case_81_locale,
            case_82_home_user_path_and_cwd,
        ],
    )
}

async fn sh(sandbox: &Sandbox, text: &str) -> ExecOutput {
    sandbox.sh(text).timeout(S(120)).output().await.unwrap_or_else(|e| panic!("{text}: {e}"))
}

async fn ok(sandbox: &Sandbox, text: &str) -> String {
    let out = sh(sandbox, text).await;
    assert!(out.success(), "{text}: {:?} {}{}", out.exit, out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

/// Asks until it holds: for what the kernel does a moment later.
async fn until(sandbox: &Sandbox, text: &str, expected: &str) {
    let mut last = String::new();
    for _ in 0..100 {
        last = ok(sandbox, text).await;
        if last.trim() == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{text}: {last:?}, expected {expected:?}");
}

/// How many processes have this in their command line.
fn count(word: &str) -> String {
    // A class of one letter, so that the search does not find itself.
    let (first, rest) = word.split_at(1);
    format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^[{first}]{rest}$' || true")
}

/// Waits until so many live: a child that was just forked has its parent's command line until its exec.
async fn until_count(sandbox: &Sandbox, word: &str, expected: &str) {
    for _ in 0..600 {
        if ok(sandbox, &count(word)).await.trim() == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("never {expected} of {word}");
}

async fn case_01_background_child_keeps_the_pipe_open(node: &Node) {
    let sandbox = node.sandbox().await;
    for expected in ["1", "2"] {
        let out = tokio::time::timeout(S(60), sandbox.sh("sleep 3001 & echo started").output()).await;
        let out = out.expect("it must not wait for the child").unwrap();
        assert_eq!(
            (out.exit.code, out.exit.reason, &*out.stdout_text()),
            (0, ExitReason::Exited, "started\n")
        );
        until_count(&sandbox, "3001", expected).await;
    }
    sandbox.stop().await.unwrap();
}

async fn case_03_exit_does_not_wait_for_a_daemon_with_the_pipes(node: &Node) {
    let sandbox = node.sandbox().await;
    let id = sandbox.sh("setsid sleep 3003 & exit 0").detach().await.unwrap();
    let mut process = sandbox.attach(&id, 0, 0).await.unwrap();
    let exit = tokio::time::timeout(S(60), process.wait()).await.expect("no exit").unwrap();
    assert_eq!(exit.code, 0);
    assert!(sandbox.exec_info(&id).await.unwrap().exit.is_some());
    assert_eq!(sandbox.info().await.unwrap().execs_live, 0, "not shown busy");
    until_count(&sandbox, "3003", "1").await;
    sandbox.stop().await.unwrap();
}

async fn case_04_one_stuck_exec_freezes_no_other(node: &Node) {
    let sandbox = node.sandbox().await;
    // Attached, its output never read: it stops at back-pressure.
    let stuck = sandbox.exec(["yes"]).spawn().await.unwrap();
    let all = stream::iter(0..100).map(|_| async {
        assert!(sandbox.exec(["true"]).output().await.unwrap().success());
        sandbox.info().await.unwrap();
    });
    tokio::time::timeout(S(100), all.buffer_unordered(20).collect::<Vec<()>>()).await.expect("frozen");
    stuck.kill().await.unwrap();
    sandbox.stop().await.unwrap();
}

async fn case_05_fast_commands_lose_no_output(node: &Node) {
    let sandbox = node.sandbox().await;
    let right = AtomicU32::new(0);
    let run = |_| async {
        let out = sandbox.exec(["echo", "running"]).output().await.unwrap();
        assert_eq!((&*out.stdout_text(), out.exit.code), ("running\n", 0));
        right.fetch_add(1, Ordering::Relaxed);
    };
    stream::iter(0..500).for_each(run).await;
    stream::iter(0..1500).for_each_concurrent(8, run).await;
    assert_eq!(right.into_inner(), 2000);
    sandbox.stop().await.unwrap();
}

async fn case_07_the_last_line_without_newline_and_crlf_on_a_terminal(node: &Node) {
    let sandbox = node.sandbox().await;
    assert_eq!(sandbox.exec(["printf", "abc"]).output().await.unwrap().stdout_text(), "abc");
    let run = |_| async {
        let out = sandbox.exec(["echo", "0"]).pty(24, 80).output().await.unwrap();
        assert_eq!(out.stdout_text(), "0\r\n");
    };
    stream::iter(0..500).for_each_concurrent(4, run).await;
    sandbox.stop().await.unwrap();
}

async fn case_09_a_multi_byte_character_across_chunks(node: &Node) {
    let sandbox = node.sandbox().await;
    let text = r"printf '\342'; sleep 0.3; printf '\211'; sleep 0.3; printf '\244'";
    assert_eq!(&sandbox.sh(text).output().await.unwrap().stdout.data.0[..], b"\xe2\x89\xa4");
    for (command, expected) in [(text, "≤"), (r"printf 'a\342\211'", "a\u{fffd}")] {
        let mut process = sandbox.sh(command).spawn().await.unwrap();
        let mut seen = String::new();
        while let Some(event) = process.next_text().await.unwrap() {
            if let TextEvent::Stdout(part) = event {
                seen.push_str(&part);
            }
        }
        assert_eq!(seen, expected);
    }
    sandbox.stop().await.unwrap();
}

async fn case_10_invalid_utf8_is_no_error(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.sh(r"printf '\303\050\377\000'").output().await.unwrap();
    assert_eq!(&out.stdout.data.0[..], b"\xc3\x28\xff\0");
    assert_eq!(out.stdout_text(), "\u{fffd}(\u{fffd}\0");
    sandbox.stop().await.unwrap();
}

async fn case_11_a_flood_is_capped_and_counted(node: &Node) {
    let sandbox = node.sandbox().await;
    let before = node.server_rss_bytes().unwrap();
    let out = sandbox.exec(["yes"]).timeout(S(10)).output_bytes_max(1 << 20).output().await.unwrap();
    let grown = node.server_rss_bytes().unwrap().saturating_sub(before);
    assert_eq!((out.exit.reason, out.exit.code), (ExitReason::Timeout, 137));
    assert!(out.stdout.truncated && out.stdout.data.0.len() <= 1 << 20);
    assert_eq!(out.stdout.bytes_total, out.stdout.bytes_dropped + out.stdout.data.0.len() as u64);
    assert!(out.stdout.bytes_total > 1 << 20, "{}", out.stdout.bytes_total);
    // Other tests of this binary share the server: their bounded buffers are in it too.
    assert!(grown < 192 << 20, "the server grew by {grown} bytes");
    let spool = walk_bytes(&node.data().join("spool").join(sandbox.id().as_str()));
    assert!(spool <= 20 << 20, "{spool} bytes on the node's disk");
    sandbox.stop().await.unwrap();
    assert!(!node.data().join("spool").join(sandbox.id().as_str()).exists(), "the spool goes with it");
}

fn walk_bytes(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| match e.file_type() {
            Ok(t) if t.is_dir() => walk_bytes(&e.path()),
            _ => e.metadata().map_or(0, |m| m.blocks() * 512),
        })
        .sum()
}

async fn case_13_not_found_and_not_executable(node: &Node) {
    let sandbox = node.sandbox().await;
    for (command, code) in [("nosuch", 127), ("/nosuch/x", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        let out = sandbox.exec([command]).output().await.unwrap();
        assert_eq!((out.exit.code, out.exit.reason), (code, ExitReason::NotStarted), "{command}");
        assert!(out.stderr_text().contains(command), "{command}: {:?}", out.stderr_text());
    }
    sandbox.stop().await.unwrap();
}

async fn case_14_argv_boundaries_survive(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["python3", "-c", "print('hi there')"]).output().await.unwrap();
    assert_eq!(out.stdout_text(), "hi there\n");
    let odd = ["", " ", "a b", "'", "\"", "$HOME", "*", "\n", "é", "-n", "\\"];
    let script = "import sys; sys.stdout.write('|'.join(sys.argv[1:]))";
    let argv = ["python3", "-c", script].into_iter().chain(odd);
    assert_eq!(sandbox.exec(argv).output().await.unwrap().stdout_text(), odd.join("|"));
    sandbox.stop().await.unwrap();
}

async fn case_15_env_values_verbatim(node: &Node) {
    let spec = SandboxSpec {
        env: [("FROM_SPEC".into(), "s".into()), ("A".into(), "x".into())].into(),
        ..node.spec()
    };
    let sandbox = node.sandbox_with(spec).await;
    let b = "a'b\"c$HOME`id`\n2nd";
    for (key, value) in [("A", "hello world"), ("B", b), ("C", ""), ("FROM_SPEC", "s")] {
        let exec = sandbox.exec(["printenv", key]).env("A", "hello world").env("B", b).env("C", "");
        assert_eq!(exec.output().await.unwrap().stdout_text(), format!("{value}\n"));
    }
    sandbox.stop().await.unwrap();
}

async fn case_17_huge_commands_work_or_say_so(node: &Node) {
    let sandbox = node.sandbox().await;
    let big = "x".repeat(64 << 10);
    let script = "import sys; print(sum(map(len, sys.argv[1:])))";
    let argv = ["python3", "-c", script].into_iter().chain(std::iter::repeat_n(&*big, 16));
    assert_eq!(sandbox.exec(argv).output().await.unwrap().stdout_text(), format!("{}\n", 1 << 20));
    match sandbox.sh(format!(": {}\necho end", "y".repeat(300 << 10))).output().await {
        Ok(out) if out.success() => assert_eq!(out.stdout_text(), "end\n"),
        Ok(out) => assert!(out.stderr_text().to_lowercase().contains("argument"), "{}", out.stderr_text()),
        Err(e) => assert!(e.message.contains("argument too long"), "{e}"),
    }
    let e = sandbox.exec(["echo", &*"z".repeat(200 << 10)]).output().await.unwrap_err();
    assert!(e.message.contains("argument too long"), "{e}");
    sandbox.stop().await.unwrap();
}

async fn case_18_a_signal_of_its_own_is_no_timeout(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["sh", "-c", "kill -TERM $$"]).timeout(S(100)).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason, out.exit.signal), (143, ExitReason::Signal, Some(15)));
    sandbox.stop().await.unwrap();
}

async fn case_19_oom_timeout_and_sigkill_are_told_apart(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { memory_bytes_max: 128 << 20, ..node.spec() }).await;
    let out = sandbox.exec(["python3", "-c", "x=bytearray(10**9)"]).timeout(S(100)).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (137, ExitReason::OomKilled));
    let out = sh(&sandbox, "kill -9 $$").await;
    assert_eq!((out.exit.code, out.exit.reason), (137, ExitReason::Signal));
    let out = sandbox.exec(["sleep", "100"]).timeout(S(1)).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (137, ExitReason::Timeout));
    // Another's kill for memory while it ran explains nothing of its own.
    let own = sandbox.sh("read x; kill -9 $$").stdin_stream().spawn().await.unwrap();
    let out = sandbox.exec(["python3", "-c", "x=bytearray(10**9)"]).timeout(S(100)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::OomKilled);
    own.stdin().write("now\n").await.unwrap();
    assert_eq!(own.output().await.unwrap().exit.reason, ExitReason::Signal);
    assert_eq!(ok(&sandbox, "echo alive").await, "alive\n");
    sandbox.stop().await.unwrap();
}

async fn case_21_timeout_kills_the_whole_tree(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.sh("sleep 3021 & sleep 3021; :").timeout(S(2)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout);
    assert_eq!(ok(&sandbox, &count("3021")).await.trim(), "0");
    sandbox.stop().await.unwrap();
}

async fn case_22_timeout_kills_what_ignores_and_escapes(node: &Node) {
    let sandbox = node.sandbox().await;
    let text = "trap '' TERM INT HUP; setsid sleep 3022 & (setsid sh -c 'sleep 3022 & sleep 3022' &) ; sleep 3022; sleep 3022";
    let out = sandbox.sh(text).timeout(S(2)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout);
    assert_eq!(ok(&sandbox, &count("3022")).await.trim(), "0");
    sandbox.stop().await.unwrap();
}

/// A root file system with one static program and nothing else.
async fn import_static(node: &Node) {
    use std::sync::atomic::AtomicBool;
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::SeqCst) {
        return;
    }
    let donor = node.sandbox().await;
    let program = donor.files().read("/usr/bin/busybox").await.expect("the image has a static busybox");
    donor.stop().await.unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(program.len() as u64);
    tar.append_data(&mut header, "sleep", &program[..]).unwrap();
    let path = node.scratch().join("static.tar");
    std::fs::write(&path, tar.into_inner().unwrap()).unwrap();
    let query = libdsec::ImportQuery::new("static", libdsec::LayerKind::Base);
    node.client().images().import_path(path, query, |_| ()).await.unwrap();
}

async fn case_23_timeout_without_any_tool_in_the_image(node: &Node) {
    import_static(node).await;
    let sandbox = node.sandbox_with(SandboxSpec::new("static")).await;
    let out = sandbox.exec(["/sleep", "0"]).output().await.unwrap();
    assert!(out.success(), "{:?} {}", out.exit, out.stderr_text());
    let out = sandbox.exec(["/sleep", "3023"]).timeout(S(1)).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (137, ExitReason::Timeout));
    let e = sandbox.sh("echo no shell here").output().await.unwrap_err();
    assert_eq!(e.code, Code::SandboxBroken, "{e}");
    sandbox.files().write("/a/b", "c").await.unwrap();
    assert_eq!(&sandbox.files().read("/a/b").await.unwrap()[..], b"c");
    sandbox.stop().await.unwrap();
}

async fn case_25_partial_output_at_timeout(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.sh("echo A; sleep 100").timeout(S(2)).output().await.unwrap();
    assert_eq!((&*out.stdout_text(), out.exit.reason), ("A\n", ExitReason::Timeout));
    sandbox.stop().await.unwrap();
}

async fn case_26_three_clocks_three_errors(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["sleep", "3026"]).timeout(S(1)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout);
    // The caller's own patience ends: the command goes on.
    let process = sandbox.exec(["sleep", "3026"]).spawn().await.unwrap();
    let id = process.exec_id().clone();
    assert!(tokio::time::timeout(S(1), process.output()).await.is_err());
    assert_eq!(sandbox.exec_info(&id).await.unwrap().exit, None);
    // The sandbox's life ends: the attached command is told.
    let mut process = sandbox.attach(&id, 0, 0).await.unwrap();
    sandbox.set_ttl(Duration::from_millis(500)).await.unwrap();
    let ended = tokio::time::timeout(S(60), process.wait()).await.expect("the TTL did not end it");
    match ended {
        Ok(exit) => assert_eq!(exit.reason, ExitReason::SandboxGone),
        Err(e) => assert!(matches!(e.code.as_str(), "sandbox_gone" | "not_found"), "{e}"),
    }
}

async fn case_28_a_hung_command_bricks_nothing(node: &Node) {
    // There are no sessions: the same on execs, with one that holds a terminal.
    let sandbox = node.sandbox().await;
    let hung = sandbox.exec(["cat"]).stdin_stream().spawn().await.unwrap();
    let out = sandbox.exec(["sleep", "100"]).timeout(S(1)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout);
    assert_eq!(ok(&sandbox, "echo ok").await, "ok\n");
    hung.signal(2).await.unwrap();
    let out = hung.output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (130, ExitReason::Signal));
    sandbox.stop().await.unwrap();
}

async fn case_31_a_daemon_survives_its_exec(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "cd /tmp && nohup python3 -m http.server 8000 >/tmp/l 2>&1 &").await;
    let get = "import time,urllib.request as u\nfor i in range(300):\n try: print(u.urlopen('http://127.0.0.1:8000/').status); break\n except OSError: time.sleep(0.1)";
    assert_eq!(sandbox.exec(["python3", "-c", get]).output().await.unwrap().stdout_text(), "200\n");
    assert_eq!(sandbox.port(8000).get("/").await.unwrap().status(), 200, "and from outside");
    sandbox.stop().await.unwrap();
}

async fn case_32_reattach_later(node: &Node) {
    let sandbox = node.sandbox().await;
    let text = "i=0; while [ $i -lt 20 ]; do echo $i; i=$((i+1)); sleep 0.1; done; exit 7";
    let mut process = sandbox.sh(text).spawn().await.unwrap();
    let id = process.exec_id().clone();
    let first = process.next().await.unwrap();
    assert!(matches!(first, Some(Event::Stdout(_))), "{first:?}");
    drop(process);
    let expected: String = (0..20).map(|i| format!("{i}\n")).collect();
    // While it runs, after its end, and from the middle.
    for _ in 0..2 {
        let out = sandbox.attach(&id, 0, 0).await.unwrap().output().await.unwrap();
        assert_eq!((out.stdout_text(), out.exit.code), (expected.clone(), 7));
    }
    let out = sandbox.attach(&id, 10, 0).await.unwrap().output().await.unwrap();
    assert_eq!(out.stdout_text(), expected[10..]);
    assert_eq!(sandbox.exec_info(&id).await.unwrap().exit.unwrap().code, 7);
    sandbox.stop().await.unwrap();
}

async fn case_34_no_stdin_is_end_of_file(node: &Node) {
    let sandbox = node.sandbox().await;
    assert_eq!(ok(&sandbox, "cat; echo done").await, "done\n");
    assert_eq!(sandbox.exec(["cat"]).stdin("").output().await.unwrap().stdout_text(), "");
    sandbox.stop().await.unwrap();
}

async fn case_35_half_close(node: &Node) {
    let sandbox = node.sandbox().await;
    let process = sandbox.sh("wc -l; sleep 0.5; echo after").stdin_stream().spawn().await.unwrap();
    process.stdin().write("a\n").await.unwrap();
    process.stdin().write("b\n").await.unwrap();
    process.stdin().close().await.unwrap();
    assert_eq!(process.output().await.unwrap().stdout_text(), "2\nafter\n");
    sandbox.stop().await.unwrap();
}

async fn case_36_fifty_mebibytes_of_stdin(node: &Node) {
    let sandbox = node.sandbox().await;
    let data = vec![b'x'; 50 << 20];
    let out = sandbox.exec(["wc", "-c"]).stdin(data).output().await.unwrap();
    assert_eq!(out.stdout_text().trim(), (50 << 20).to_string());
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let out = sandbox.sh("cat > /tmp/binary").stdin(binary.clone()).output().await.unwrap();
    assert!(out.success());
    assert_eq!(sandbox.files().read("/tmp/binary").await.unwrap(), binary);
    sandbox.stop().await.unwrap();
}

async fn case_38_terminal_size_at_start_and_on_resize(node: &Node) {
    let sandbox = node.sandbox().await;
    for (rows, cols) in [(43, 132), (24, 80), (0, 0), (65535, 65535)] {
        let out = sandbox.exec(["stty", "size"]).pty(rows, cols).output().await.unwrap();
        assert_eq!(out.stdout_text(), format!("{rows} {cols}\r\n"));
    }
    let text = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut process = sandbox.sh(text).pty(43, 132).timeout(S(100)).spawn().await.unwrap();
    let mut seen = String::new();
    while let Some(event) = process.next_text().await.unwrap() {
        if let TextEvent::Stdout(part) = event {
            seen.push_str(&part);
            if seen == "ready\r\n" {
                process.resize(30, 100).await.unwrap();
            }
        }
    }
    assert_eq!(seen, "ready\r\n30 100\r\n");
    sandbox.stop().await.unwrap();
}

async fn case_39_the_terminal_controls(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["tty"]).pty(24, 80).output().await.unwrap();
    assert!(out.stdout_text().starts_with("/dev/pts/"), "{}", out.stdout_text());
    let mut process =
        sandbox.sh("echo ready; exec sleep 3039").pty(24, 80).timeout(S(100)).spawn().await.unwrap();
    let exit = loop {
        match process.next().await.unwrap().expect("an exit comes first") {
            Event::Stdout(data) if data.starts_with(b"ready") => process.stdin().write("\x03").await.unwrap(),
            Event::Exit(exit) => break exit,
            _ => {}
        }
    };
    assert_eq!((exit.reason, exit.signal), (ExitReason::Signal, Some(2)));
    let out =
        sandbox.exec(["bash", "-c", "set -m; sleep 100 & jobs; kill %1"]).pty(24, 80).output().await.unwrap();
    assert!(out.stdout_text().contains("Running"), "{}", out.stdout_text());
    sandbox.stop().await.unwrap();
}

async fn case_41_zombies_are_reaped(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "i=0; while [ $i -lt 500 ]; do sh -c 'sleep 0.1 &'; i=$((i+1)); done").await;
    until(&sandbox, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z' || true", "0").await;
    sandbox.stop().await.unwrap();
}

async fn case_45_dev_shm_is_half_of_memory(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { memory_bytes_max: 1 << 30, ..node.spec() }).await;
    let size: u64 =
        ok(&sandbox, "df -P -k /dev/shm | tail -1 | awk '{print $2}'").await.trim().parse().unwrap();
    assert!(size >= 512 << 10, "{size} KiB");
    ok(&sandbox, "dd if=/dev/zero of=/dev/shm/a bs=1M count=500 2>/dev/null && rm /dev/shm/a").await;
    let pool = "import multiprocessing as m\nq=m.Queue(); l=m.Lock(); print(m.Value('i', 7).value)";
    assert_eq!(sandbox.exec(["python3", "-c", pool]).output().await.unwrap().stdout_text(), "7\n");
    sandbox.stop().await.unwrap();
}

async fn case_46_pid_1_cannot_be_killed_and_a_lost_shell_is_told(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { user: Some("root".into()), ..node.spec() }).await;
    sh(&sandbox, "kill -9 1; kill -15 1; kill -2 1").await;
    assert_eq!(ok(&sandbox, "echo alive").await, "alive\n");
    ok(&sandbox, "rm -f /bin/sh /usr/bin/sh /bin/dash").await;
    let e = sandbox.sh("echo hi").output().await.unwrap_err();
    assert_eq!(e.code, Code::SandboxBroken, "never an exit code that looks like the command's: {e}");
    assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    sandbox.stop().await.unwrap();
}

async fn case_47_a_tree_walk_is_bounded(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { user: Some("root".into()), ..node.spec() }).await;
    let text = "grep -rs --exclude-dir=usr nosuchword_dsec / >/dev/null; echo end";
    let out = sandbox.sh(text).timeout(S(100)).output().await.unwrap();
    assert!(out.exit.reason == ExitReason::Timeout || out.stdout_text() == "end\n", "{:?}", out.exit);
    for hidden in ["/proc/kcore", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kmsg"] {
        let out = sandbox.exec(["head", "-c", "1", hidden]).timeout(S(60)).output().await.unwrap();
        assert_eq!(out.stdout.bytes_total, 0, "{hidden}");
    }
    sandbox.stop().await.unwrap();
}

async fn case_81_locale(node: &Node) {
    let sandbox = node.sandbox().await;
    let out = sandbox.exec(["python3", "-c", "print('é中')"]).output().await.unwrap();
    assert_eq!((&*out.stdout_text(), out.exit.code), ("é中\n", 0), "{}", out.stderr_text());
    sandbox.stop().await.unwrap();
}

async fn case_82_home_user_path_and_cwd(node: &Node) {
    let sandbox = node.sandbox().await;
    for (user, home, name) in
        [("user", "/home/user", "user"), ("root", "/root", "root"), ("0", "/root", "root")]
    {
        let out = sandbox.sh("echo $HOME $USER; id -u; pwd").user(user).output().await.unwrap();
        let uid = if name == "root" { 0 } else { 1000 };
        assert_eq!(out.stdout_text(), format!("{home} {name}\n{uid}\n/home/user\n"));
    }
    let out = sandbox
        .sh("id -u; id -g; test -n \"$PATH\" && test -n \"$HOME\" && pwd")
        .user("4321:77")
        .output()
        .await
        .unwrap();
    assert_eq!(out.stdout_text(), "4321\n77\n/home/user\n", "{}", out.stderr_text());
    let e = sandbox.exec(["true"]).user("nosuch").output().await;
    assert!(matches!(&e, Err(e) if e.message.contains("nosuch")), "{e:?}");
    sandbox.stop().await.unwrap();
}
