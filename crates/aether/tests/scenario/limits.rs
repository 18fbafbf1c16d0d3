//! Scenarios of limits, confinement and damage.

use std::time::{Duration, Instant};

use api::{
    Code,
    arrow::Chronus,
    exec::{ExecRequest, ExitReason},
};

use crate::lab::{Lab, assert_error, collect};

const HOG: &str = "x=bytearray(10**9)";

pub async fn case_19_oom_is_told_apart(lab: &Lab) {
    let out = lab.run(ExecRequest::argv(["/usr/bin/python3", "-c", HOG])).await;
    assert_eq!((out.code(), out.reason()), (137, ExitReason::OomKilled));
    let out = lab.sh(&format!("/usr/bin/python3 -c '{HOG}'; exit $?")).await;
    assert_eq!((out.code(), out.reason()), (137, ExitReason::OomKilled));
    let out = lab.sh("kill -9 $$").await;
    assert_eq!((out.code(), out.reason()), (137, ExitReason::Signal));
    let out = lab.run(ExecRequest { timeout_ms: Some(200), ..ExecRequest::shell("sleep 60") }).await;
    assert_eq!((out.code(), out.reason()), (137, ExitReason::Timeout));
    assert_eq!(lab.ok("echo well").await, "well\n");
}

pub async fn case_43_fork_bomb(lab: &Lab) {
    let bomb = ":(){ :|:& };: ; sleep 300";
    let attached = lab.service.exec(ExecRequest::argv(["bash", "-c", bomb])).await.unwrap();
    lab.sleep(1500).await;
    // The sandbox is full: a new command works or is told why not; files and signals work all the same.
    let mut refused = 0;
    for _ in 0..20 {
        match lab.service.exec(ExecRequest::argv(["true"])).await {
            Ok(stream) => drop(collect(stream).await),
            Err(e) => {
                assert_eq!(e.code, Code::QuotaExceeded, "{e}");
                assert!(e.message.contains("pids_max"), "{e}");
                refused += 1;
            }
        }
    }
    println!("refused {refused} of 20");
    lab.write("/tmp/x", None, b"still there").await.unwrap();
    let id = attached.exec_id.clone();
    lab.service.exec_signal(id, api::exec::SignalRequest { signal: 9, tree: true }).await.unwrap();
    assert_eq!(collect(attached).await.reason(), ExitReason::Signal);
    assert_eq!(lab.ok("cat /tmp/x").await, "still there");
}

pub async fn confinement(lab: &Lab) {
    for (what, text) in [
        ("mount", "mount -t tmpfs x /mnt"),
        ("a new user namespace", "unshare -U true"),
        ("a new mount namespace", "unshare -m true"),
        ("setns", "nsenter -t 1 -m true"),
        ("umount", "umount /proc"),
        ("the hostname", "hostname other"),
        ("raw kernel memory", "cat /proc/kcore"),
        ("core_pattern", "echo '|/tmp/x' > /proc/sys/kernel/core_pattern"),
        ("the kernel log", "dmesg"),
        ("pivot_root", "pivot_root / /tmp"),
        ("sysrq", "echo b > /proc/sysrq-trigger"),
    ] {
        assert_ne!(lab.sh(text).await.code(), 0, "{what} must be refused");
    }
    assert_eq!(lab.ok("grep CapBnd /proc/self/status").await, "CapBnd:\t00000000a80425fb\n");
    assert_eq!(lab.ok("grep CapEff /proc/self/status").await, "CapEff:\t00000000a80425fb\n");
    assert_eq!(
        lab.as_user("ann", "grep -h CapEff /proc/self/status").await.text(),
        "CapEff:\t0000000000000000\n"
    );
    assert_eq!(lab.ok("grep Seccomp: /proc/self/status").await, "Seccomp:\t2\n");
    assert_eq!(lab.ok("grep NoNewPrivs /proc/self/status").await, "NoNewPrivs:\t0\n");
    // TIOCSTI, io_uring, bpf, keyctl, clone3 by number; personality and threads work.
    let probe = "import ctypes, errno, threading
c = ctypes.CDLL(None, use_errno=True)
def call(*a):
    r = c.syscall(*a); return errno.errorcode[ctypes.get_errno()] if r < 0 else 'ok'
print(call(16, 0, 0x5412, b'x'), call(425, 1, 0), call(321, 0, 0, 0), call(250, 0, 0), call(435, 0, 0), call(135, 0xffffffff), call(999))
t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()";
    let out = lab.run(ExecRequest::argv(["/usr/bin/python3", "-c", probe])).await;
    assert_eq!(out.text(), "EPERM ENOSYS EPERM EPERM ENOSYS ok ENOSYS\nthread\n", "{}", out.errors());
    // Debugging one's own processes works.
    let out = lab.sh("strace -o /tmp/trace true && grep -c exit_group /tmp/trace").await;
    assert_eq!(out.text(), "1\n", "{}", out.errors());
}

pub async fn nothing_of_aether_is_inside(lab: &Lab) {
    assert_eq!(lab.ok("ls -1 /proc/self/fd").await, "0\n1\n2\n3\n", "3 is of ls itself");
    let fds = lab
        .run(ExecRequest::argv([
            "/usr/bin/python3",
            "-c",
            "import os; print(sorted(os.listdir('/proc/self/fd')))",
        ]))
        .await;
    assert_eq!(fds.text(), "['0', '1', '2', '3']\n");
    assert_eq!(
        lab.ok("ps -e -o comm= | sort | uniq | grep -v -E '^(ps|sort|uniq|grep|sh)$'").await,
        "init\n",
        "init alone"
    );
    // init: a sealed memfd, without descriptors.
    assert_eq!(lab.ok("ls /proc/1/fd 2>/dev/null | grep -v -x '[012]' | wc -l").await, "0\n");
    let out = lab.sh("printf x >> /proc/1/exe").await;
    assert_ne!(out.code(), 0);
    // A tracer that lies in wait for what enters: it may see commands of its own user, never the agent's children
    // before their execve. What it catches must always be a program of the sandbox.
    let spy = "import os, time
end = time.time() + 2
seen = set()
while time.time() < end:
    for p in os.listdir('/proc'):
        if not p.isdigit() or p == '1': continue
        try:
            exe = os.readlink(f'/proc/{p}/exe')
            fds = [os.readlink(f'/proc/{p}/fd/{f}') for f in os.listdir(f'/proc/{p}/fd')]
        except OSError: continue
        seen.add(exe)
        for f in fds:
            if 'cgroup' in f or 'ns' in f.split(':')[0].split('/'): seen.add(f)
print(sorted(seen))";
    let attached = lab.service.exec(ExecRequest::argv(["/usr/bin/python3", "-c", spy])).await.unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        lab.run(ExecRequest::argv(["/usr/bin/true"])).await;
    }
    let out = collect(attached).await;
    assert_eq!(out.code(), 0, "{out:?}");
    assert!(
        !out.text().contains("memfd") && !out.text().contains("aether") && !out.text().contains("cgroup"),
        "{out:?}"
    );
    let left = lab.sh("cat /proc/self/mountinfo | grep -c dsec-test").await.text();
    assert_eq!(left, "0\n", "no host path shows in the mounts");
}

pub async fn broken_shell_and_dead_init(lab: &Lab) {
    lab.ok("rm /bin; mkdir /bin").await;
    assert_error(lab.service.exec(ExecRequest::shell("true")).await, Code::SandboxBroken, "/bin/sh");
    assert_eq!(lab.run(ExecRequest::argv(["/usr/bin/true"])).await.code(), 0);
    // The tables may be anything.
    let run = |argv: &[&str]| lab.run(ExecRequest::argv(argv.iter().map(|s| (*s).to_owned())));
    for argv in [
        &["/usr/bin/rm", "/etc/passwd"][..],
        &["/usr/bin/mkfifo", "/etc/passwd"],
        &["/usr/bin/ln", "-sf", "/proc/self/fd/0", "/etc/passwd"],
        &["/usr/bin/ln", "-sf", "/dev/zero", "/etc/passwd"],
    ] {
        assert_eq!(run(argv).await.code(), 0, "{argv:?}");
    }
    assert_error(
        lab.service
            .exec(ExecRequest { user: Some("ann".into()), ..ExecRequest::argv(["/usr/bin/id"]) })
            .await,
        Code::InvalidArgument,
        "`ann`",
    );
    for (path, with) in [("/dev/null", "/proc/self/fd/9"), ("/dev/ptmx", "/etc/group")] {
        let _ = run(&["/usr/bin/umount", path]).await;
        let _ = run(&["/usr/bin/ln", "-sfn", with, path]).await;
    }
    assert_eq!(run(&["/usr/bin/cat"]).await.code(), 0);
    let pty =
        ExecRequest { pty: Some(api::exec::PtySize::default()), ..ExecRequest::argv(["/usr/bin/true"]) };
    assert_error(lab.service.exec(pty).await, Code::SandboxBroken, "/dev/ptmx");
}

pub async fn latency_of_true(lab: &Lab) {
    let mut times = Vec::new();
    for _ in 0..300 {
        let start = Instant::now();
        lab.run(ExecRequest::argv(["/usr/bin/true"])).await;
        times.push(start.elapsed());
    }
    times.sort();
    println!("exec of true: p50 {:?} p90 {:?} p99 {:?}", times[150], times[270], times[297]);
    let start = Instant::now();
    for _ in 0..100 {
        lab.service.file_stat(api::file::StatQuery::new("/etc/passwd")).await.unwrap();
    }
    println!("stat: mean {:?}", start.elapsed() / 100);
}
