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
            socket_memory_counts,
            a_deep_tree_is_listed_within_bounds,
            uploads_into_memory_count,
            a_stuck_start_does_not_run_later,
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

async fn python(sandbox: &Sandbox, text: &str) -> String {
    let out = sandbox.exec(["python3", "-c", text]).timeout(S(100)).output().await.unwrap();
    format!("{}{}", out.stdout_text(), out.stderr_text().trim())
}

/// Rings of packet sockets are memory that no limit counts; buffers of TCP have a limit of their own.
async fn socket_memory_counts(node: &Node) {
    let pair = Pair::new(node).await;
    for family in [17, 44, 40, 38] {
        let said = python(&pair.attacker, &format!("import socket; socket.socket({family}, 3, 0)")).await;
        assert!(said.contains("PermissionError"), "family {family}: {said}");
    }
    let flood = "
import socket
l = socket.socket(); l.bind(('127.0.0.1', 9)); l.listen(4096)
queued, kept = 0, []
for _ in range(2000):
    try:
        c = socket.socket(); c.connect(('127.0.0.1', 9)); s, _ = l.accept()
        c.setblocking(False)
        while True:
            queued += c.send(bytes(1 << 20))
    except BlockingIOError:
        pass
    except OSError as e:
        break
    kept += [c, s]
    if queued > 1 << 30: break
print(queued >> 20)
";
    let out = pair.attacker.exec(["python3", "-c", flood]).timeout(S(100)).output().await.unwrap();
    // cgroup v2 counts them as any other memory, so there the flood ends by the limit.
    if out.exit.reason != ExitReason::OomKilled {
        let queued: u64 = out.stdout_text().trim().parse().unwrap();
        assert!(queued < 256, "{queued} MiB in the buffers of a sandbox of 256 MiB");
    }
    pair.end(node).await;
}

/// Each path is long, and there are many: the answer is refused while it is gathered, not when it is there.
async fn a_deep_tree_is_listed_within_bounds(node: &Node) {
    let pair = Pair::new(node).await;
    let deep = "
import os
os.mkdir('/deep'); os.chdir('/deep')
for _ in range(200):
    os.mkdir('d' * 250); os.chdir('d' * 250)
for n in range(3000): open(str(n), 'w').close()
";
    assert_eq!(python(&pair.attacker, deep).await, "");
    let error = pair.attacker.files().list_depth("/deep", 300).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    assert!(error.message.len() < 1000, "{} bytes of message", error.message.len());
    pair.end(node).await;
}

/// What the file API writes to memory is the sandbox's.
async fn uploads_into_memory_count(node: &Node) {
    let spec = SandboxSpec {
        user: Some("root".into()),
        memory_bytes_max: 64 << 20,
        scratch: libdsec::Scratch::Memory,
        ..node.spec()
    };
    let sandbox = node.sandbox_with(spec).await;
    let large = vec![7u8; 200 << 20];
    for path in ["/big", "/dev/shm/big"] {
        let error = sandbox.files().write(path, large.clone()).await.unwrap_err();
        assert!(matches!(error.code, Code::DiskFull | Code::OomKilled), "{path}: {error}");
    }
    // Half of its memory in files is charged: with as much again a process is over the limit.
    sandbox.files().write("/dev/shm/half", vec![7u8; 40 << 20]).await.unwrap();
    let out =
        sandbox.exec(["python3", "-c", "x = bytearray(40 << 20)"]).timeout(S(60)).output().await.unwrap();
    assert_eq!(out.exit.reason, ExitReason::OomKilled, "{out:?}");
    sandbox.files().remove("/dev/shm/half").await.unwrap();
    assert!(sandbox.exec(["python3", "-c", "x = bytearray(20 << 20)"]).output().await.unwrap().success());
    sandbox.stop().await.unwrap();
}

/// A command that was given up must not start when the sandbox comes to.
async fn a_stuck_start_does_not_run_later(node: &Node) {
    let pair = Pair::new(node).await;
    let freeze = "
import os, time
end = time.time() + 14
while time.time() < end:
    try: os.kill(-1, 19)
    except OSError: pass
os.kill(-1, 18)
";
    pair.attacker.exec(["python3", "-c", freeze]).detach().await.unwrap();
    tokio::time::sleep(S(1)).await;
    let started = pair.attacker.sh("echo ran > /ran").output().await;
    if let Err(error) = started {
        assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
        tokio::time::sleep(S(15)).await;
        let ran = pair.attacker.files().stat("/ran").await;
        assert_eq!(ran.map(|_| ()).unwrap_err().code, Code::NotFound, "it was given up and ran");
    }
    pair.end(node).await;
}
