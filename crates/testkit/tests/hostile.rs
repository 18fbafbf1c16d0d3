//! Code that means harm. After each attack: a neighbour answers, stop works, nothing of the sandbox is left (the
//! slot's cgroups and processes here, the rest by the leak check at the node's end).
#![allow(clippy::unwrap_used)]

use std::{process::ExitCode, time::Duration};

use libdsec::{Code, ExitReason, Sandbox, SandboxSpec};
use testkit::{Node, tests};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    // One at a time: each attack measures its effect on the others.
    testkit::suite::run(
        1,
        tests![
            case_43_fork_bomb,
            memory_hog,
            disk_filler,
            yes_for_ten_seconds_grows_no_server,
            descriptor_exhaustion,
            processes_that_ignore_signals,
            rm_rf_everything_as_root,
            bash_overwritten,
            every_file_of_proc_and_sys_read,
            writes_to_every_file_of_proc_sys,
            output_of_many_execs_that_nobody_reads,
        ],
    )
}

/// The victim and its neighbour.
struct Pair {
    attacker: Sandbox,
    neighbour: Sandbox,
}

impl Pair {
    async fn new(node: &Node) -> Self {
        let spec = SandboxSpec {
            user: Some("root".into()),
            pids_max: 256,
            memory_bytes_max: 256 << 20,
            ..node.spec()
        };
        Self { attacker: node.sandbox_with(spec).await, neighbour: node.sandbox().await }
    }

    async fn neighbour_answers(&self) {
        let answer = tokio::time::timeout(S(60), self.neighbour.exec(["echo", "here"]).output()).await;
        assert_eq!(answer.expect("the neighbour hangs").unwrap().stdout_text(), "here\n");
    }

    /// The neighbour lives, the attacker ends and leaves nothing.
    async fn end(self, node: &Node) {
        self.neighbour_answers().await;
        let id = self.attacker.id().to_string();
        tokio::time::timeout(S(60), self.attacker.stop()).await.expect("stop hangs").unwrap();
        assert!(node.client().get(&id).await.is_err());
        assert!(!node.data().join("run").join(&id).exists());
        assert!(!node.data().join("volume/uppers").join(&id).exists());
        self.neighbour_answers().await;
        self.neighbour.stop().await.unwrap();
    }
}

async fn case_43_fork_bomb(node: &Node) {
    let pair = Pair::new(node).await;
    let bomb = pair.attacker.exec(["bash", "-c", ":(){ :|:& };:"]).detach().await.unwrap();
    tokio::time::sleep(S(2)).await;
    for _ in 0..10 {
        pair.neighbour_answers().await;
    }
    match tokio::time::timeout(S(60), pair.attacker.exec(["true"]).output()).await.expect("hangs") {
        Ok(out) => assert!(out.exit.code >= 0),
        Err(e) => assert_eq!(e.code.as_str(), "quota_exceeded", "{e}"),
    }
    drop(bomb);
    pair.end(node).await;
}

async fn memory_hog(node: &Node) {
    let pair = Pair::new(node).await;
    let hog = "x=[]\nwhile True: x.append(bytearray(1<<24))";
    let out = pair.attacker.exec(["python3", "-c", hog]).timeout(S(100)).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (137, ExitReason::OomKilled));
    // Shared memory and tmpfs count too.
    let out = pair
        .attacker
        .sh("head -c 2G /dev/zero > /dev/shm/x; echo $?")
        .timeout(S(100))
        .output()
        .await
        .unwrap();
    assert_ne!(out.stdout_text(), "0\n", "two gigabytes in 256 MiB");
    pair.end(node).await;
}

async fn disk_filler(node: &Node) {
    let spec = SandboxSpec { disk_bytes_max: 64 << 20, ..node.spec() };
    let pair = Pair { attacker: node.sandbox_with(spec).await, neighbour: node.sandbox().await };
    let text = "mkdir /var/tmp/d; i=0; while [ $i -lt 40 ]; do head -c 8M /dev/urandom > /var/tmp/f$i || break; i=$((i+1)); done; echo $i";
    let out = pair.attacker.sh(text).timeout(S(100)).output().await.unwrap();
    let files: u32 = out.stdout_text().trim().parse().unwrap();
    assert!(files < 16, "{files} files of 8 MiB in 64 MiB");
    let many = "import os\nfor i in range(200000):\n try: open(f'/var/tmp/d/{i}','w').write('x'*100)\n except OSError: break\nprint('end')";
    let out = pair.attacker.exec(["python3", "-c", many]).timeout(S(60)).output().await.unwrap();
    assert!(out.exit.reason == ExitReason::Timeout || out.success(), "{:?}", out.exit);
    pair.end(node).await;
}

async fn yes_for_ten_seconds_grows_no_server(node: &Node) {
    let pair = Pair::new(node).await;
    pair.neighbour_answers().await;
    let before = node.server_rss_bytes().unwrap();
    let flood = pair.attacker.exec(["yes"]).timeout(S(10)).spawn().await.unwrap();
    let mut most = 0;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        most = most.max(node.server_rss_bytes().unwrap());
        pair.neighbour_answers().await;
    }
    let out = flood.output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout);
    assert!(most.saturating_sub(before) < 64 << 20, "the server grew from {before} to {most} bytes");
    pair.end(node).await;
}

async fn descriptor_exhaustion(node: &Node) {
    let pair = Pair::new(node).await;
    let hold = "import os,time\nn=0\ntry:\n while True: os.open('/dev/null',0); n+=1\nexcept OSError as e: print(n>100, flush=True)\ntime.sleep(3100)";
    let mut holders = Vec::new();
    for _ in 0..8 {
        let mut process = pair.attacker.exec(["python3", "-c", hold]).spawn().await.unwrap();
        let first = tokio::time::timeout(S(60), process.next()).await.expect("hangs").unwrap();
        assert!(matches!(first, Some(libdsec::Event::Stdout(_))), "{first:?}");
        holders.push(process);
    }
    assert!(pair.attacker.exec(["true"]).output().await.unwrap().success());
    pair.end(node).await;
}

async fn processes_that_ignore_signals(node: &Node) {
    let pair = Pair::new(node).await;
    let text = "for i in 1 2 3 4 5; do (trap '' TERM INT HUP QUIT USR1; setsid sh -c 'while :; do sleep 1; done') & done; kill -STOP $$";
    let out = pair.attacker.sh(text).timeout(S(2)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::Timeout, "a stopped process too");
    pair.attacker.sh("trap '' TERM INT; while :; do :; done").detach().await.unwrap();
    pair.end(node).await;
}

async fn rm_rf_everything_as_root(node: &Node) {
    let pair = Pair::new(node).await;
    let out = pair.attacker.exec(["bash", "-c", "rm -rf --no-preserve-root /* 2>/dev/null; echo gone"]);
    assert_eq!(out.timeout(S(120)).output().await.unwrap().stdout_text(), "gone\n");
    let out = pair.attacker.exec(["/bin/ls", "/"]).cwd("/").output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (127, ExitReason::NotStarted));
    // What the platform does inside needs nothing of the image.
    pair.attacker.files().write("/new/file", "x").await.unwrap();
    assert_eq!(&pair.attacker.files().read("/new/file").await.unwrap()[..], b"x");
    assert_eq!(
        pair.neighbour.exec(["ls", "/bin/bash"]).output().await.unwrap().exit.code,
        0,
        "the shared layer"
    );
    pair.end(node).await;
}

async fn bash_overwritten(node: &Node) {
    let pair = Pair::new(node).await;
    let text = "for f in /bin/bash /bin/sh /usr/bin/dash /usr/bin/env; do printf '#!/nosuch\\n' > /tmp/x; chmod 755 /tmp/x; cp --remove-destination /tmp/x $f; done";
    assert!(pair.attacker.exec(["bash", "-c", text]).output().await.unwrap().success());
    match pair.attacker.sh("echo hi").output().await {
        Ok(out) => assert_eq!(out.exit.reason, ExitReason::NotStarted, "{:?}", out.exit),
        Err(e) => assert_eq!(e.code, Code::SandboxBroken, "{e}"),
    }
    assert!(pair.attacker.exec(["python3", "-c", "print(1)"]).output().await.unwrap().success());
    pair.end(node).await;
}

async fn every_file_of_proc_and_sys_read(node: &Node) {
    let pair = Pair::new(node).await;
    let walk = "
import os, signal
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
seen = 0
for top in ('/proc', '/sys', '/dev'):
    for base, dirs, files in os.walk(top):
        dirs[:] = [d for d in dirs if not (base == '/proc' and d.isdigit() and d != '1')]
        for name in files:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                fd = os.open(os.path.join(base, name), os.O_RDONLY | os.O_NONBLOCK)
                try: os.read(fd, 65536)
                finally: os.close(fd)
            except (OSError, Late): pass
            finally: signal.setitimer(signal.ITIMER_REAL, 0)
            seen += 1
print(seen > 100)
";
    let out = pair.attacker.exec(["python3", "-c", walk]).timeout(S(120)).output().await.unwrap();
    assert!(out.exit.reason == ExitReason::Timeout || out.stdout_text() == "True\n", "{}", out.stderr_text());
    pair.end(node).await;
}

async fn writes_to_every_file_of_proc_sys(node: &Node) {
    let pair = Pair::new(node).await;
    let watched =
        ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic"];
    let before = watched.map(|f| std::fs::read_to_string(f).unwrap());
    let text = "
import os
for base, _, files in os.walk('/proc/sys'):
    for name in files:
        try:
            fd = os.open(os.path.join(base, name), os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b'1'); os.close(fd)
        except OSError: pass
print('end')
";
    let out = pair.attacker.exec(["python3", "-c", text]).timeout(S(100)).output().await.unwrap();
    assert_eq!(out.stdout_text(), "end\n", "{}", out.stderr_text());
    assert_eq!(watched.map(|f| std::fs::read_to_string(f).unwrap()), before, "the host's settings");
    pair.end(node).await;
}

async fn output_of_many_execs_that_nobody_reads(node: &Node) {
    let pair = Pair::new(node).await;
    let before = node.server_rss_bytes().unwrap();
    let mut floods = Vec::new();
    for _ in 0..20 {
        floods.push(pair.attacker.exec(["yes"]).spawn().await.unwrap());
    }
    tokio::time::sleep(S(2)).await;
    pair.neighbour_answers().await;
    let grown = node.server_rss_bytes().unwrap().saturating_sub(before);
    assert!(grown < 256 << 20, "the server grew by {grown} bytes for 20 floods");
    drop(floods);
    pair.end(node).await;
}
