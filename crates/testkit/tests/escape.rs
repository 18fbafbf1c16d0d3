//! Known ways out of a container, each by its name. The attacker is root inside; the host must not notice. Where an
//! attack only fails, a control shows that the means of the attack work.
#![allow(clippy::unwrap_used)]

use std::{fs, process::ExitCode, time::Duration};

use libdsec::{ImportQuery, LayerKind, Sandbox, SandboxSpec};
use testkit::{Node, host, tests};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    testkit::suite::run(
        3,
        tests![
            cve_2019_5736_runtime_overwritten_through_proc_self_exe,
            cve_2024_21626_leaked_directory_descriptors,
            cve_2025_31133_dev_null_of_the_image_is_a_symlink,
            cve_2025_52565_dev_console_and_pts_of_the_image_are_symlinks,
            cve_2025_52881_proc_of_the_image_is_a_symlink,
            cgroup_release_agent,
            core_pattern_and_sysrq_and_other_host_settings,
            file_api_symlink_race,
            ptrace_of_pid_1,
            dangerous_system_calls_are_refused,
            device_nodes_cannot_be_made_or_opened,
            root_inside_is_nobody_outside,
            nothing_of_the_platform_is_visible,
            kill_of_everything_stays_inside,
        ],
    )
}

async fn root(node: &Node) -> Sandbox {
    node.sandbox_with(SandboxSpec { user: Some("root".into()), ..node.spec() }).await
}

async fn python(sandbox: &Sandbox, text: &str) -> String {
    let out = sandbox.exec(["python3", "-c", text]).timeout(S(100)).output().await.unwrap();
    assert!(out.success(), "{:?} {}{}", out.exit, out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

fn bytes_of(path: &std::path::Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

async fn cve_2019_5736_runtime_overwritten_through_proc_self_exe(node: &Node) {
    let aether = testkit::artifact::Artifacts::find().unwrap().aether;
    let before = bytes_of(&aether);
    let sandbox = root(node).await;
    // Every program that an exec of ours would load is the platform's own, if the platform is careless.
    python(&sandbox, "import os\nfor f in ('/bin/true','/usr/bin/id'):\n os.unlink(f); open(f,'w').write('#!/proc/self/exe\\n'); os.chmod(f,0o755)").await;
    let hunter = "
import os, time
end = time.time() + 8
tried = opened = 0
while time.time() < end:
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or int(pid) == os.getpid(): continue
        exe = f'/proc/{pid}/exe'
        try: target = os.readlink(exe)
        except OSError: continue
        if '/python' in target: continue
        tried += 1
        try:
            fd = os.open(exe, os.O_WRONLY)
            os.write(fd, b'#!/bin/sh\\n'); opened += 1; print('wrote', target)
        except OSError: pass
print(opened)
";
    let hunt = sandbox.exec(["python3", "-c", hunter]).timeout(S(100)).spawn().await.unwrap();
    for _ in 0..30 {
        let _ = sandbox.exec(["/bin/true"]).timeout(S(20)).output().await.unwrap();
        let _ = sandbox.files().stat("/etc/passwd").await.unwrap();
    }
    let out = hunt.output().await.unwrap();
    assert_eq!(out.stdout_text(), "0\n", "{}", out.stderr_text());
    assert!(bytes_of(&aether) == before, "the agent's binary was changed");
    // Control: this is how one's own program is opened.
    assert_eq!(python(&sandbox, "print(open('/proc/self/exe','rb').read(4)[1:].decode())").await, "ELF\n");
    sandbox.stop().await.unwrap();
    let other = root(node).await;
    assert!(other.exec(["true"]).output().await.unwrap().success());
    other.stop().await.unwrap();
}

async fn cve_2024_21626_leaked_directory_descriptors(node: &Node) {
    let sandbox = root(node).await;
    let open = "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])";
    assert_eq!(python(&sandbox, open).await, "[0, 1, 2]\n");
    // A directory of the host that no image has.
    let host = env!("CARGO_MANIFEST_DIR");
    for fd in 0..32 {
        for cwd in [format!("/proc/self/fd/{fd}"), format!("/proc/self/fd/{fd}/../../../..")] {
            let out = sandbox.exec(["ls", "-d", &format!("/proc/self/cwd{host}")]).cwd(cwd);
            if let Ok(out) = out.output().await {
                assert!(!out.stdout_text().contains(host), "{fd}: {}", out.stdout_text());
            }
        }
    }
    // Nor has pid 1 any that lead out.
    let first = "import os\ntry: print([os.readlink(f'/proc/1/fd/{f}') for f in os.listdir('/proc/1/fd')])\nexcept PermissionError: print([])";
    let fds = python(&sandbox, first).await;
    assert!(!fds.contains("dsec") && !fds.contains("/work"), "{fds}");
    // Control: a descriptor of one's own is found that way.
    let own =
        "import os; fd=os.open('/etc',os.O_RDONLY); os.chdir(f'/proc/self/fd/{fd}'); print(os.getcwd())";
    assert_eq!(python(&sandbox, own).await, "/etc\n");
    sandbox.stop().await.unwrap();
}

/// A static busybox and these symlinks; the sandbox, or that it was refused.
async fn hostile_image(node: &Node, name: &str, links: &[(&str, &str)]) -> Option<Sandbox> {
    let donor = node.sandbox().await;
    let busybox = donor.files().read("/usr/bin/busybox").await.unwrap();
    donor.stop().await.unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(busybox.len() as u64);
    tar.append_data(&mut header, "bin/busybox", &busybox[..]).unwrap();
    for (path, target) in links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        tar.append_link(&mut header, path, target).unwrap();
    }
    let path = node.scratch().join(format!("{name}.tar"));
    fs::write(&path, tar.into_inner().unwrap()).unwrap();
    let query = ImportQuery::new(name, LayerKind::Base);
    node.client().images().import_path(path, query, |_| ()).await.unwrap();
    match node.client().create(SandboxSpec::new(name)).await {
        Ok(sandbox) => Some(sandbox),
        Err(e) => {
            assert!(!e.message.contains("/var/tmp"), "no private path: {e}");
            None
        }
    }
}

async fn busybox(sandbox: &Sandbox, text: &str) -> String {
    let out =
        sandbox.exec(["/bin/busybox", "sh", "-c", text]).user("0").timeout(S(60)).output().await.unwrap();
    out.stdout_text() + &out.stderr_text()
}

/// The host's settings are as before and the masks hold.
async fn masks_hold(sandbox: Option<Sandbox>, core_pattern: &str) {
    if let Some(sandbox) = sandbox {
        let kcore =
            busybox(&sandbox, "/bin/busybox head -c 4 /proc/kcore 2>/dev/null | /bin/busybox wc -c").await;
        assert_eq!(kcore.trim(), "0", "kcore is masked");
        busybox(&sandbox, "echo pwned > /dev/null; echo pwned > /proc/sys/kernel/core_pattern").await;
        busybox(&sandbox, "echo h > /proc/sysrq-trigger; echo pwned > /dev/console; echo pwned > /dev/pts/0")
            .await;
        sandbox.stop().await.unwrap();
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), core_pattern);
}

async fn cve_2025_31133_dev_null_of_the_image_is_a_symlink(node: &Node) {
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let links = [("dev/null", "/proc/sys/kernel/core_pattern"), ("dev/zero", "/proc/sysrq-trigger")];
    masks_hold(hostile_image(node, "null-link", &links).await, &before).await;
}

async fn cve_2025_52565_dev_console_and_pts_of_the_image_are_symlinks(node: &Node) {
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let links = [
        ("dev/console", "/proc/sys/kernel/core_pattern"),
        ("dev/pts", "/proc/sys/kernel"),
        ("dev/ptmx", "/proc/sysrq-trigger"),
        ("dev/shm", "../../../../../var/tmp"),
    ];
    masks_hold(hostile_image(node, "console-link", &links).await, &before).await;
}

async fn cve_2025_52881_proc_of_the_image_is_a_symlink(node: &Node) {
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let links = [
        ("proc", "/fake"),
        ("sys", "/fake"),
        ("etc", "../../../../../../../../etc"),
        ("tmp", "/proc/self/cwd/../../.."),
    ];
    let host_files: Vec<_> =
        ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"].map(|f| fs::read(f).ok()).into();
    let sandbox = hostile_image(node, "proc-link", &links).await;
    masks_hold(sandbox, &before).await;
    let after: Vec<_> = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"].map(|f| fs::read(f).ok()).into();
    assert_eq!(host_files, after, "the host's own files");
}

async fn cgroup_release_agent(node: &Node) {
    let sandbox = root(node).await;
    for text in [
        "mkdir -p /m && busybox mount -t cgroup -o memory cgroup /m",
        "mkdir -p /m && busybox mount -t cgroup -o rdma cgroup /m",
        "mkdir -p /m && busybox mount -t cgroup2 none /m",
        "mkdir -p /m && busybox unshare -m busybox mount -t cgroup -o memory cgroup /m",
        "mkdir -p /m && busybox unshare -U -r -m busybox mount -t cgroup -o memory cgroup /m",
        "mkdir -p /m && busybox mount -t tmpfs none /m",
    ] {
        let out = sandbox.sh(text).output().await.unwrap();
        assert!(!out.success(), "{text}");
    }
    let found =
        sandbox.sh("find / -xdev -name release_agent 2>/dev/null; find /sys -name release_agent 2>/dev/null");
    assert_eq!(found.timeout(S(60)).output().await.unwrap().stdout_text(), "");
    // Control: the directory could be made, so it was the mount that failed.
    assert!(sandbox.sh("test -d /m && busybox true").output().await.unwrap().success());
    sandbox.stop().await.unwrap();
}

async fn core_pattern_and_sysrq_and_other_host_settings(node: &Node) {
    let sandbox = root(node).await;
    let settings = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/proc/1/oom_score_adj",
    ];
    let before: Vec<_> = settings.iter().map(|f| fs::read(f).ok()).collect();
    for setting in settings {
        let out = sandbox.sh(format!("echo 1 > {setting}")).output().await.unwrap();
        if setting != "/proc/1/oom_score_adj" {
            assert!(!out.success(), "{setting}");
        }
    }
    let after: Vec<_> = settings.iter().map(|f| fs::read(f).ok()).collect();
    assert_eq!(before[..2], after[..2]);
    // Control: what is the sandbox's own can be written.
    assert!(sandbox.sh("echo 1 > /tmp/x").output().await.unwrap().success());
    sandbox.stop().await.unwrap();
}

async fn file_api_symlink_race(node: &Node) {
    let sandbox = root(node).await;
    let secret = node.scratch().join("secret");
    fs::write(&secret, "host").unwrap();
    let dir = secret.parent().unwrap().display().to_string();
    let swap = format!(
        "import os,itertools\nos.makedirs('/r/real',exist_ok=True); open('/r/real/secret','w').write('inside')\nup='../'*12+{dir:?}[1:]\nos.symlink('real','/r/x')\nprint('go',flush=True)\nfor i in itertools.count():\n os.symlink('real' if i%2 else (up if i%4 else {dir:?}),'/r/n'); os.rename('/r/n','/r/x')"
    );
    let mut swapping = sandbox.exec(["python3", "-c", &swap]).timeout(S(150)).spawn().await.unwrap();
    swapping.next().await.unwrap();
    let mut inside = 0;
    for i in 0..300 {
        match sandbox.files().read("/r/x/secret").await {
            Ok(data) if data == "inside" => inside += 1,
            Ok(data) => panic!("read {data:?}"),
            Err(e) => assert!(e.code.status() < 500, "{e}"),
        }
        if i % 3 == 0 {
            let _ = sandbox.files().write("/r/x/made", "x").await;
            let _ = sandbox.files().list("/r/x").await;
            let _ = sandbox.files().remove("/r/x/made").await;
        }
    }
    assert!(inside > 0, "control: the race is being run");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "host");
    assert!(!node.scratch().join("made").exists());
    swapping.kill().await.unwrap();
    sandbox.stop().await.unwrap();
}

const CALL: &str = "import ctypes,os,errno\nl=ctypes.CDLL(None,use_errno=True)\ndef c(*a):\n r=l.syscall(*a)\n return 'ok' if r>=0 else errno.errorcode[ctypes.get_errno()]\n";

async fn ptrace_of_pid_1(node: &Node) {
    let sandbox = root(node).await;
    // PTRACE_ATTACH is 16, PTRACE_SEIZE 0x4206.
    let text = format!("{CALL}print(c(101,16,1,0,0), c(101,0x4206,1,0,0))");
    let out = python(&sandbox, &text).await;
    assert!(!out.contains("ok"), "{out}");
    let text =
        "import os\ntry: os.open('/proc/1/mem', os.O_RDWR); print('opened')\nexcept OSError: print('no')";
    assert_eq!(python(&sandbox, text).await, "no\n");
    sandbox.stop().await.unwrap();
}

async fn dangerous_system_calls_are_refused(node: &Node) {
    let sandbox = root(node).await;
    for user in ["root", "user"] {
        let text = format!(
            "{CALL}t=ctypes.create_string_buffer(128)
n=b'none';p=b'/tmp'
for name,a in dict(mount=(165,n,p,b'tmpfs',0,0),unshare_user=(272,0x10000000),unshare_mount=(272,0x20000),
 add_key=(248,b'user',b'k',b'v',1,-2),keyctl=(250,0,-3,0,0,0),request_key=(249,b'user',b'k',0,0),
 bpf=(321,0,t,128),perf=(298,t,0,-1,-1,0),kexec=(246,0,0,0,0),init_module=(175,t,1,b''),delete_module=(176,b'x',0),
 reboot=(169,0xfee1dead,672274793,0,0),swapon=(167,p,0),setns=(308,0,0),open_by_handle=(304,-100,t,0),
 iopl=(172,3),clock_settime=(227,0,t),pivot_root=(155,p,p),fsopen=(430,b'tmpfs',0),move_mount=(429,-100,p,-100,p,0),
 open_tree=(428,-100,p,1),mount_setattr=(442,-100,p,0,t,32),userfaultfd=(323,0),io_uring=(425,1,t),
 acct=(163,p),quotactl=(179,0,p,0,t),syslog=(103,2,t,1),name_to_handle_by_fs=(304,-1,t,0)).items():
 print(name,c(*a))
print('getpid',c(39))"
        );
        let out = sandbox.exec(["python3", "-c", &text]).user(user).timeout(S(60)).output().await.unwrap();
        let said = out.stdout_text();
        assert!(said.ends_with("getpid ok\n"), "control, {user}: {said}{}", out.stderr_text());
        let passed: Vec<&str> =
            said.lines().filter(|l| l.ends_with(" ok") && !l.starts_with("getpid")).collect();
        assert!(passed.is_empty(), "{user}: {passed:?}");
    }
    sandbox.stop().await.unwrap();
}

async fn device_nodes_cannot_be_made_or_opened(node: &Node) {
    let sandbox = root(node).await;
    for text in [
        "busybox mknod /tmp/d b 254 0",
        "busybox mknod /tmp/m c 1 1",
        "cat /dev/mem",
        "cat /dev/vda",
        "cat /dev/kmsg",
    ] {
        let out = sandbox
            .sh(format!("{text} | head -c 1; test -e /tmp/d -o -e /tmp/m && echo made"))
            .output()
            .await
            .unwrap();
        assert_eq!(out.stdout_text(), "", "{text}");
    }
    // Control: what a program needs is there.
    let out = sandbox
        .sh("head -c 4 /dev/urandom | wc -c; echo x > /dev/null; head -c 2 /dev/zero | wc -c")
        .output()
        .await
        .unwrap();
    assert_eq!(out.stdout_text(), "4\n2\n");
    sandbox.stop().await.unwrap();
}

async fn root_inside_is_nobody_outside(node: &Node) {
    let a = root(node).await;
    let b = root(node).await;
    a.exec(["sleep", "3190"]).detach().await.unwrap();
    b.exec(["sleep", "3191"]).detach().await.unwrap();
    let (seen_a, seen_b) = (host::find("3190").unwrap(), host::find("3191").unwrap());
    let uids = [host::uid_of(seen_a.pid).unwrap(), host::uid_of(seen_b.pid).unwrap()];
    assert!(uids.iter().all(|uid| *uid >= 65_536), "{uids:?}");
    assert!(uids[0].abs_diff(uids[1]) >= 65_536, "their ranges are apart: {uids:?}");
    for seen in [&seen_a, &seen_b] {
        let agent = host::agent_of(seen.slot).unwrap();
        assert!(host::uid_of(agent).unwrap() >= 65_536, "the agent is not root");
        let status = fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
        let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim();
        assert_eq!(effective, "0000000000000000", "the agent has no capability on the host");
    }
    a.stop().await.unwrap();
    b.stop().await.unwrap();
}

async fn nothing_of_the_platform_is_visible(node: &Node) {
    let sandbox = root(node).await;
    let text = "cat /proc/self/mountinfo /proc/self/cgroup /proc/mounts; ls -la /proc/1/fd /proc/1/exe 2>&1; cat /proc/1/environ /proc/1/cmdline /proc/1/comm /proc/1/maps; cat /proc/net/unix; env";
    let out = sandbox.sh(text).output().await.unwrap().stdout_text();
    for word in ["/var/tmp/dsec", "chronus", "aether", "volume.btrfs", "forge"] {
        assert!(!out.contains(word), "`{word}` in {out}");
    }
    let processes =
        python(&sandbox, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))").await;
    assert_eq!(processes, "2\n", "init and the one that looks");
    sandbox.stop().await.unwrap();
}

async fn kill_of_everything_stays_inside(node: &Node) {
    let (sandbox, other) = (root(node).await, root(node).await);
    other.exec(["sleep", "3192"]).detach().await.unwrap();
    sandbox.exec(["python3", "-c", "import os; os.kill(-1, 9)"]).timeout(S(60)).output().await.unwrap();
    assert!(sandbox.exec(["true"]).output().await.unwrap().success());
    assert_eq!(host::with_argument("3192").len(), 1);
    sandbox.stop().await.unwrap();
    other.stop().await.unwrap();
}
