//! The disk at one instant: checkpoint, rollback, fork, pack_diff, through the SDK and the CLI on a real node.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use futures_util::StreamExt;
use libdsec::{
    Code, ExitReason, ForkRequest, ImportQuery, LayerKind, PackRequest, Sandbox, SandboxSpec, Scratch, Scrub,
    ScrubRule, State,
};
use testkit::{Node, artifact::Artifacts, host, tests, tree::TREE};

const S: fn(u64) -> Duration = Duration::from_secs;

fn main() -> ExitCode {
    testkit::suite::run(
        1,
        tests![
            a_rollback_brings_the_disk_back_and_ends_the_processes,
            checkpoints_are_named_counted_and_bounded,
            a_stop_takes_the_checkpoints_along,
            a_server_killed_in_a_rollback_does_it_again,
            checkpoints_survive_the_server,
            forks_start_from_the_same_disk_and_go_their_own_ways,
            a_fork_of_a_checkpoint_and_its_key,
            a_snapshot_is_of_one_instant,
            a_packed_disk_starts_new_sandboxes,
            what_is_scrubbed_is_gone,
            what_head_does_not_reach_is_gone,
            what_is_scrubbed_leaves_no_name,
            a_diff_alone_goes_over_another_base,
            a_pack_outlives_its_sandbox,
            memory_has_no_disk_and_devices_no_layer,
            the_cli_does_it_all,
        ],
    )
}

async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let out = sandbox.sh(script).user("root").timeout(S(60)).output().await.unwrap();
    assert!(out.success(), "{script}: {}{}", out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

async fn a_rollback_brings_the_disk_back_and_ends_the_processes(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "mkdir /work; echo one > /work/f; rm -r /usr/share/bash-completion").await;
    let before = ok(&sandbox, TREE).await;
    let checkpoint = sandbox.checkpoint(Some("clean")).await.unwrap();
    assert_eq!(checkpoint.name, "clean");
    ok(
        &sandbox,
        "rm -rf /work /home/user/.bashrc /etc/apt; echo two > /new; mkdir /usr/share/bash-completion",
    )
    .await;
    let running = sandbox.exec(["sleep", "3401"]).detach().await.unwrap();
    let slot = host::find("3401").unwrap().slot;
    let info = sandbox.rollback("clean").await.unwrap();
    assert_eq!((info.state, info.execs_live, &info.id), (State::Running, 0, sandbox.id()));
    assert_eq!(ok(&sandbox, TREE).await, before);
    assert!(host::with_argument("3401").is_empty());
    assert!(!node.slots().contains(&slot));
    let ended = sandbox.attach(&running, 0, 0).await.unwrap().output().await.unwrap();
    assert_eq!((ended.exit.reason, ended.exit.code), (ExitReason::SandboxGone, 137));
    // And again, from a disk that went on from the first.
    ok(&sandbox, "rm -rf /work").await;
    sandbox.rollback("clean").await.unwrap();
    assert_eq!(ok(&sandbox, "cat /work/f").await, "one\n");
    let free = sandbox.sh("head -c 50M /dev/urandom > /var/tmp/x && rm /var/tmp/x").output().await.unwrap();
    assert!(free.success(), "{}", free.stderr_text());
    sandbox.stop().await.unwrap();
}

async fn checkpoints_are_named_counted_and_bounded(node: &Node) {
    let sandbox = node.sandbox().await;
    let made_up = sandbox.checkpoint(None).await.unwrap();
    for n in 1..libdsec::limit::CHECKPOINTS_MAX {
        sandbox.checkpoint(Some(&format!("c{n}"))).await.unwrap();
    }
    let e = sandbox.checkpoint(Some("more")).await.unwrap_err();
    assert_eq!(e.code, Code::QuotaExceeded, "{e}");
    sandbox.remove_checkpoint(&made_up.name).await.unwrap();
    let e = sandbox.checkpoint(Some("c1")).await.unwrap_err();
    assert_eq!(e.code, Code::AlreadyExists, "{e}");
    let names: Vec<String> = sandbox.checkpoints().await.unwrap().into_iter().map(|c| c.name).collect();
    assert_eq!(names, (1..8).map(|n| format!("c{n}")).collect::<Vec<_>>());
    for bad in ["_x", "a/b", "..", ""] {
        assert_eq!(sandbox.checkpoint(Some(bad)).await.unwrap_err().code, Code::InvalidArgument, "{bad}");
    }
    for absent in ["none", "../c1", "c1/up"] {
        let e = sandbox.remove_checkpoint(absent).await.unwrap_err();
        assert!(matches!(e.code, Code::NotFound | Code::InvalidArgument), "{absent}: {e}");
    }
    assert_eq!(sandbox.rollback("none").await.unwrap_err().code, Code::NotFound);
    assert!(sandbox.sh("true").output().await.unwrap().success(), "nothing was ended for it");
    sandbox.stop().await.unwrap();
}

fn snapshots(node: &Node) -> usize {
    std::fs::read_dir(node.data().join("volume/snapshots")).unwrap().count()
}

async fn a_stop_takes_the_checkpoints_along(node: &Node) {
    let sandbox = node.sandbox().await;
    sandbox.checkpoint(None).await.unwrap();
    sandbox.checkpoint(None).await.unwrap();
    assert_eq!(snapshots(node), 1);
    sandbox.stop().await.unwrap();
    assert_eq!(snapshots(node), 0);
    assert_eq!(sandbox.checkpoint(None).await.unwrap_err().code, Code::NotFound);
}

async fn a_server_killed_in_a_rollback_does_it_again(node: &Node) {
    let mut sandbox = node.sandbox().await;
    ok(&sandbox, "echo one > /f").await;
    sandbox.checkpoint(Some("c")).await.unwrap();
    for round in 0..6u64 {
        ok(&sandbox, "echo two > /f").await;
        sandbox.exec(["sleep", "3402"]).detach().await.unwrap();
        let client = node.client();
        let id = sandbox.id().to_string();
        let rolling = tokio::spawn(async move { client.get(&id).await?.rollback("c").await });
        tokio::time::sleep(Duration::from_millis(3 + round * 2)).await;
        node.restart_kill9().unwrap();
        let _ = rolling.await;
        // It happened whole or not at all.
        let again = tokio::time::timeout(S(20), async {
            loop {
                let found = node.client().get(sandbox.id().as_str()).await;
                let sandbox = found.unwrap_or_else(|e| panic!("{e}\n{}", node.log_tail()));
                if sandbox.created().state == State::Running {
                    return sandbox;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let again = again.await.expect("it does not run again");
        let (file, sleeping) = (ok(&again, "cat /f").await, host::with_argument("3402").len());
        assert!(
            (file == "one\n" && sleeping == 0) || (file == "two\n" && sleeping == 1),
            "round {round}: {file} {sleeping}"
        );
        again.rollback("c").await.unwrap();
        assert_eq!(ok(&again, "cat /f").await, "one\n");
        sandbox = again;
    }
    sandbox.stop().await.unwrap();
}

async fn checkpoints_survive_the_server(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "echo one > /f").await;
    sandbox.checkpoint(Some("c")).await.unwrap();
    ok(&sandbox, "echo two > /f").await;
    node.restart_kill9().unwrap();
    let sandbox = node.client().get(sandbox.id().as_str()).await.unwrap();
    assert_eq!(sandbox.checkpoints().await.unwrap().len(), 1);
    let child = sandbox.fork(ForkRequest::new(1)).next().await.unwrap().unwrap();
    assert_eq!(ok(&child, "cat /f").await, "two\n");
    sandbox.rollback("c").await.unwrap();
    assert_eq!(ok(&sandbox, "cat /f").await, "one\n");
    child.stop().await.unwrap();
    sandbox.stop().await.unwrap();
}

async fn forks_start_from_the_same_disk_and_go_their_own_ways(node: &Node) {
    let spec = SandboxSpec { name: Some("source".into()), ..node.spec() };
    let source = node.sandbox_with(spec).await;
    ok(&source, "echo shared > /f; rm /etc/issue").await;
    source.exec(["sleep", "3403"]).detach().await.unwrap();
    let request = ForkRequest { labels: [("try".to_owned(), "1".to_owned())].into(), ..ForkRequest::new(16) };
    let children: Vec<Sandbox> = source.fork(request).map(|child| child.unwrap()).collect().await;
    assert_eq!(children.iter().map(|c| c.id().to_string()).collect::<BTreeSet<_>>().len(), 16);
    for (n, child) in children.iter().enumerate() {
        let spec = &child.created().spec;
        assert_eq!((spec.name.as_deref(), spec.labels["try"].as_str()), (None, "1"));
        assert_eq!(
            ok(child, "cat /f; ls /etc/issue 2>&1 | wc -l; hostname").await,
            format!("shared\n1\n{}\n", child.id())
        );
        ok(child, &format!("echo {n} > /f")).await;
    }
    assert_eq!(host::with_argument("3403").len(), 1, "no process came along");
    for (n, child) in children.iter().enumerate() {
        assert_eq!(ok(child, "cat /f").await, format!("{n}\n"));
    }
    assert_eq!(ok(&source, "cat /f").await, "shared\n");
    source.stop().await.unwrap();
    // The children stand on their own.
    assert_eq!(ok(&children[3], "cat /f").await, "3\n");
    for child in children {
        child.stop().await.unwrap();
    }
    assert_eq!(snapshots(node), 0);
}

async fn a_fork_of_a_checkpoint_and_its_key(node: &Node) {
    let source = node.sandbox().await;
    ok(&source, "echo then > /f").await;
    source.checkpoint(Some("c")).await.unwrap();
    ok(&source, "echo now > /f").await;
    let request = ForkRequest {
        checkpoint: Some("c".into()),
        ttl_ms: Some(77_000),
        idempotency_key: Some("fork-of-a-checkpoint".into()),
        ..ForkRequest::new(2)
    };
    let first: Vec<Sandbox> = source.fork(request.clone()).map(|c| c.unwrap()).collect().await;
    let second: Vec<Sandbox> = source.fork(request).map(|c| c.unwrap()).collect().await;
    let ids = |all: &[Sandbox]| all.iter().map(|c| c.id().to_string()).collect::<BTreeSet<_>>();
    assert_eq!(ids(&first), ids(&second));
    assert_eq!(ok(&first[0], "cat /f").await, "then\n");
    assert_eq!(first[0].created().spec.ttl_ms, 77_000);
    // The key is of that disk: for another it is another request.
    let now = ForkRequest { idempotency_key: Some("fork-of-a-checkpoint".into()), ..ForkRequest::new(2) };
    let third: Vec<Sandbox> = source.fork(now).map(|c| c.unwrap()).collect().await;
    assert_eq!(ok(&third[0], "cat /f").await, "now\n");
    let absent = ForkRequest { checkpoint: Some("none".into()), ..ForkRequest::new(1) };
    let e = source.fork(absent).next().await.unwrap().unwrap_err();
    assert_eq!(e.code, Code::NotFound, "{e}");
    for sandbox in first.iter().chain(&third).chain([&source]) {
        sandbox.stop().await.unwrap();
    }
}

/// A writer of two files, always in this order, is never seen with the second ahead of the first.
async fn a_snapshot_is_of_one_instant(node: &Node) {
    let sandbox = node.sandbox().await;
    let writer = "import os
n = 0
while True:
    n += 1
    for name in 'ab':
        with open('/tmp/' + name + '.new', 'w') as f: f.write(str(n))
        os.rename('/tmp/' + name + '.new', '/tmp/' + name)";
    sandbox.exec(["python3", "-c", writer]).detach().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut seen = BTreeSet::new();
    for _ in 0..6 {
        let child = sandbox.fork(ForkRequest::new(1)).next().await.unwrap().unwrap();
        let said = ok(&child, "cat /tmp/a; echo; cat /tmp/b").await;
        let numbers: Vec<u64> = said.lines().map(|l| l.parse().unwrap()).collect();
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "{numbers:?}");
        seen.insert(numbers[0]);
        child.stop().await.unwrap();
    }
    assert!(seen.len() > 1, "the writer stood still");
    sandbox.stop().await.unwrap();
}

async fn remove(node: &Node, names: &[&str]) {
    for name in names {
        node.client().images().remove(name).await.unwrap();
    }
}

async fn a_packed_disk_starts_new_sandboxes(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(
        &sandbox,
        "mkdir -p /work/d; echo hello > /work/f; ln /work/f /work/hard; ln -s f /work/link; mkfifo /work/pipe
         chown 1234:4321 /work/f; chmod 4755 /work/f; touch -d @1000000000 /work/f
         python3 -c 'import os; os.setxattr(\"/work/f\", \"user.note\", b\"kept\"); open(b\"/work/\\xff\", \"w\")'
         truncate -s 64M /work/sparse; head -c 3M /dev/urandom > /work/noise
         rm -rf /etc/apt; mkdir /etc/apt; echo only > /etc/apt/only
         rm /etc/issue; mv /usr/share/base-files /usr/share/moved; echo x >> /etc/profile",
    )
    .await;
    let before = ok(&sandbox, TREE).await;
    let report = sandbox.pack_diff(PackRequest::new("packed")).await.unwrap();
    assert_eq!(report.image.layers.len(), sandbox.created().layers.len() + 1);
    assert_eq!(report.image.layers.last(), Some(&report.layer));
    assert!(report.size_bytes > 3 << 20 && report.size_bytes < 8 << 20, "{report:?}");
    assert!(report.frozen_us > 0);
    assert_eq!(report.scrubbed_count, 0);
    assert!(sandbox.sh("true").output().await.unwrap().success());
    let child = node.sandbox_with(SandboxSpec { image: "packed".into(), ..node.spec() }).await;
    let after = ok(&child, TREE).await;
    for (a, b) in before.lines().zip(after.lines()) {
        assert_eq!(a, b);
    }
    assert_eq!(before.lines().count(), after.lines().count());
    // A diff of a diff.
    ok(&child, "rm /work/f; echo two > /work/second").await;
    let second =
        child.pack_diff(PackRequest { version: "2".into(), ..PackRequest::new("packed") }).await.unwrap();
    assert_eq!(second.image.layers.len(), report.image.layers.len() + 1);
    let third = node.sandbox_with(SandboxSpec { image: "packed:2".into(), ..node.spec() }).await;
    assert_eq!(ok(&third, "ls /work/f 2>/dev/null; cat /work/second /work/hard").await, "two\nhello\n");
    for sandbox in [sandbox, child, third] {
        sandbox.stop().await.unwrap();
    }
    remove(node, &["packed:2", "packed"]).await;
}

async fn what_is_scrubbed_is_gone(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(
        &sandbox,
        "mkdir -p /srv/answers/deep /home/user/.cache/x; echo 42 > /srv/answers/deep/a; touch /srv/kept
         echo secret > /home/user/.bash_history; touch /tmp/t /srv/marker; sleep 0.05; touch /srv/late
         echo changed >> /etc/issue",
    )
    .await;
    let mut request = PackRequest::new("scrubbed");
    request.scrub = Scrub {
        exclude: vec!["/srv/answers".into(), "/etc/issue".into()],
        shell_history: true,
        caches: true,
        newer_than: Some("/srv/marker".into()),
        ..Scrub::default()
    };
    let report = sandbox.pack_diff(request.clone()).await.unwrap();
    let named: Vec<(&str, ScrubRule)> = report.scrubbed.iter().map(|s| (s.path.as_str(), s.rule)).collect();
    for expected in [
        ("/srv/answers", ScrubRule::Exclude),
        ("/etc/issue", ScrubRule::Exclude),
        ("/home/user/.bash_history", ScrubRule::ShellHistory),
        ("/home/user/.cache/x", ScrubRule::Caches),
        ("/tmp/t", ScrubRule::Caches),
        ("/srv/late", ScrubRule::NewerThan),
    ] {
        assert!(named.contains(&expected), "{expected:?} in {named:?}");
    }
    assert_eq!(report.scrubbed_count as usize, report.scrubbed.len());
    let child = node.sandbox_with(SandboxSpec { image: "scrubbed".into(), ..node.spec() }).await;
    // The base's own /etc/issue does not come back either.
    let said = ok(
        &child,
        "ls -A /srv /etc/issue /home/user/.cache /tmp 2>&1; test -f /home/user/.bash_history || echo none",
    )
    .await;
    assert!(
        said.contains("kept") && said.contains("none") && said.contains("'/etc/issue': No such file"),
        "{said}"
    );
    assert!(!said.contains("answers") && !said.contains("late"), "{said}");
    assert_eq!(ok(&sandbox, "cat /srv/answers/deep/a").await, "42\n", "the sandbox itself keeps it");
    for marker in ["/none", "/srv/kept/x", "/proc/1/environ"] {
        request.scrub.newer_than = Some(marker.into());
        let e = sandbox.pack_diff(request.clone()).await.unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument, "{marker}: {e}");
    }
    request.scrub = Scrub { exclude: vec!["/a[".into()], ..Scrub::default() };
    assert_eq!(sandbox.pack_diff(request).await.unwrap_err().code, Code::InvalidArgument);
    child.stop().await.unwrap();
    sandbox.stop().await.unwrap();
    remove(node, &["scrubbed"]).await;
    assert_eq!(snapshots(node), 0);
}

/// overlayfs shows a whiteout of a directory that no other layer has, as a name that cannot be looked up.
async fn what_is_scrubbed_leaves_no_name(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "mkdir -p /srv/new/answers && touch /srv/new/a.key /srv/new/b /srv/new/answers/1; touch /etc/new.key /etc/issue; echo x >> /etc/issue").await;
    let scrub = Scrub {
        exclude: vec!["/**/*.key".into(), "/srv/new/answers/*".into(), "/etc/issue".into()],
        ..Scrub::default()
    };
    for kind in [LayerKind::Base, LayerKind::Workspace] {
        let name = format!("no-name-{kind:?}").to_lowercase();
        sandbox
            .pack_diff(PackRequest { kind, scrub: scrub.clone(), ..PackRequest::new(&name) })
            .await
            .unwrap();
        let spec = match kind {
            LayerKind::Base => SandboxSpec::new(&name),
            _ => SandboxSpec { workspaces: vec![name], ..node.spec() },
        };
        let later = node.sandbox_with(spec).await;
        assert_eq!(
            ok(&later, "ls -A /srv/new; ls -A /srv/new/answers; cp -r /srv/new /tmp/copy").await,
            "answers\nb\n"
        );
        assert_eq!(
            ok(&later, "ls /etc | grep -c -e new.key -e ^issue$ || true").await,
            "0\n",
            "what lay below is hidden"
        );
        later.stop().await.unwrap();
    }
    sandbox.stop().await.unwrap();
}

/// The answer is in a later commit, a stash, a tag and a reflog: the classic ways in which it leaks.
async fn what_head_does_not_reach_is_gone(node: &Node) {
    let query = ImportQuery {
        env: Some("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ..ImportQuery::new("with-git", LayerKind::Base)
    };
    let images = node.client().images();
    images.import_path(Artifacts::image("python").unwrap(), query, |_| ()).await.unwrap();
    let sandbox = node.sandbox_with(SandboxSpec::new("with-git")).await;
    let make = "set -e; export HOME=/root; git config --global user.email a@example.org; git config --global user.name a
        git init -q /srv/repo; cd /srv/repo; echo task > task; git add .; git commit -qm task
        echo answer-later > answer; git add .; git commit -qm answer; git tag solution; git branch solved; git reset -q --hard HEAD~
        echo answer-stashed > answer; git add .; git stash -q
        echo staged > staged; git add staged
        git init -q --bare /srv/bare.git; git init -q /srv/empty
        git -C /srv/repo gc -q; echo answer-loose | git hash-object -w --stdin >/dev/null
        git clone -q /srv/repo '/srv/a clone'; git clone -q -s /srv/repo /srv/shared
        mkdir -p /srv/refs /srv/worktrees; git clone -q --bare --filter=blob:none file:///srv/repo /srv/refs/logs
        git clone -q /srv/repo /srv/worktrees/x; cd /srv/worktrees/x; git fetch -q origin tag solution
        git worktree add -q /srv/linked solved 2>/dev/null || git worktree add -q /srv/linked -b other
        cd /srv/linked; echo answer-linked > a; git add .; git commit -qm linked; git reset -q --hard HEAD~2 2>/dev/null || git reset -q --hard HEAD~";
    ok(&sandbox, make).await;
    let objects = "cd /srv/repo && git cat-file --batch-all-objects --batch | grep -a -c answer- || true";
    assert_ne!(ok(&sandbox, objects).await, "0\n");
    let pack = |name: &str, kind, scrub| PackRequest { kind, scrub, ..PackRequest::new(name) };
    let scrub = Scrub { git_unreachable: true, ..Scrub::default() };
    let report = sandbox.pack_diff(pack("git-clean", LayerKind::Base, scrub.clone())).await.unwrap();
    let told: BTreeSet<&str> = report.scrubbed.iter().map(|s| s.path.as_str()).collect();
    assert!(told.contains("/srv/repo/.git"), "{report:?}");
    assert!(report.scrubbed.iter().all(|s| s.rule == ScrubRule::GitUnreachable));
    assert!(report.frozen_us > 0);
    assert_ne!(ok(&sandbox, objects).await, "0\n", "the sandbox keeps it");
    assert_eq!(node.client().list(Default::default()).await.unwrap().len(), 1, "the copy has gone");

    let clean = node.sandbox_with(SandboxSpec::new("git-clean")).await;
    let all = "cd \"$0\" && git fsck --full --strict 2>&1 | grep -v '^notice' || true
        git cat-file --batch-all-objects --batch | grep -a -c answer- || true; git log --all --format=%s; git stash list; git tag";
    let repo = clean.exec(["sh", "-c", all, "/srv/repo"]).user("root").output().await.unwrap();
    assert_eq!(repo.stdout_text(), "0\ntask\n", "{}", repo.stderr_text());
    for repo in ["/srv/a clone", "/srv/shared", "/srv/refs/logs", "/srv/worktrees/x"] {
        let copy = clean.exec(["sh", "-c", all, repo]).user("root").output().await.unwrap();
        assert_eq!(copy.stdout_text(), "0\ntask\n", "{repo}: {}", copy.stderr_text());
    }
    assert_eq!(
        ok(&clean, "cd /srv/repo && git status --short && git show :staged && cat task").await,
        "A  staged\nstaged\ntask\n"
    );
    ok(
        &clean,
        "cd /srv/repo && git commit -qm more && git log -1 --format=%s && git -C /srv/empty status -s",
    )
    .await;
    clean.stop().await.unwrap();

    // A repository that is damaged, and a sandbox without git.
    ok(&sandbox, "cd /srv/repo && rm -f .git/objects/pack/*.pack").await;
    let error = sandbox.pack_diff(pack("git-bad", LayerKind::Base, scrub.clone())).await.unwrap_err();
    assert_eq!(error.code, Code::Conflict, "{error}");
    sandbox.stop().await.unwrap();
    let sandbox = node.sandbox().await;
    let error = sandbox.pack_diff(pack("git-bad", LayerKind::Base, scrub)).await.unwrap_err();
    assert_eq!(error.code, Code::Unsupported, "{error}");
    assert_eq!(node.client().list(Default::default()).await.unwrap().len(), 1);
    assert_eq!(node.client().images().inspect("git-bad").await.unwrap_err().code, Code::NotFound);
    sandbox.stop().await.unwrap();
}

async fn a_diff_alone_goes_over_another_base(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(&sandbox, "mkdir -p /opt/tool/bin; echo tool > /opt/tool/bin/t").await;
    let request = PackRequest { kind: LayerKind::Toolkit, ..PackRequest::new("tool") };
    let report = sandbox.pack_diff(request).await.unwrap();
    assert_eq!(report.image.layers, [report.layer]);
    let spec = SandboxSpec { toolkits: vec!["tool".into()], ..node.spec() };
    let other = node.sandbox_with(spec).await;
    assert_eq!(ok(&other, "cat /opt/tool/bin/t").await, "tool\n");
    // An image that is lived on stays.
    assert_eq!(node.client().images().remove("tool").await.unwrap_err().code, Code::Conflict);
    other.stop().await.unwrap();
    sandbox.stop().await.unwrap();
    remove(node, &["tool"]).await;
}

async fn a_pack_outlives_its_sandbox(node: &Node) {
    let sandbox = node.sandbox().await;
    ok(
        &sandbox,
        "mkdir /many; cd /many; for d in 1 2 3 4; do mkdir $d; (cd $d; seq 2000 | xargs touch); done",
    )
    .await;
    let packing = {
        let sandbox = sandbox.clone();
        tokio::spawn(async move { sandbox.pack_diff(PackRequest::new("outlived")).await })
    };
    tokio::time::sleep(Duration::from_millis(40)).await;
    sandbox.stop().await.unwrap();
    // Whole, or an error that says why; never half an image.
    match packing.await.unwrap() {
        Ok(_) => {
            let child = node.sandbox_with(SandboxSpec { image: "outlived".into(), ..node.spec() }).await;
            assert_eq!(ok(&child, "find /many -type f | wc -l").await, "8000\n");
            child.stop().await.unwrap();
            remove(node, &["outlived"]).await;
        }
        Err(_) => assert!(node.client().images().inspect("outlived").await.is_err()),
    }
    assert_eq!(snapshots(node), 0);
}

async fn memory_has_no_disk_and_devices_no_layer(node: &Node) {
    let sandbox = node.sandbox_with(SandboxSpec { scratch: Scratch::Memory, ..node.spec() }).await;
    assert_eq!(sandbox.checkpoint(None).await.unwrap_err().code, Code::Unsupported);
    assert_eq!(sandbox.pack_diff(PackRequest::new("x")).await.unwrap_err().code, Code::Unsupported);
    let e = sandbox.fork(ForkRequest::new(1)).next().await.unwrap().unwrap_err();
    assert_eq!(e.code, Code::Unsupported, "{e}");
    sandbox.stop().await.unwrap();
    let sandbox = node.sandbox().await;
    for bad in [PackRequest::new("a/b"), PackRequest { version: "a b".into(), ..PackRequest::new("x") }] {
        assert_eq!(sandbox.pack_diff(bad).await.unwrap_err().code, Code::InvalidArgument);
    }
    sandbox.stop().await.unwrap();
}

async fn the_cli_does_it_all(node: &Node) {
    let run = |args: &[&str]| {
        let out = node.cli().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        (out.status.code(), said, String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let image = node.spec().image;
    assert_eq!(run(&["create", &image, "--name", "cli-disk"]).0, Some(0));
    run(&["exec", "cli-disk", "-u", "root", "--", "sh", "-c", "echo one > /f"]);
    assert_eq!(run(&["checkpoint", "create", "cli-disk", "c"]).1, "c");
    run(&["exec", "cli-disk", "-u", "root", "--", "sh", "-c", "echo two > /f; touch /x.key"]);
    let (code, forked, _) = run(&["fork", "cli-disk", "-n", "2", "--checkpoint", "c", "--label", "a=b"]);
    assert_eq!((code, forked.lines().count()), (Some(0), 2));
    assert_eq!(run(&["exec", forked.lines().next().unwrap(), "--", "cat", "/f"]).1, "one");
    let (code, packed, said) = run(&["pack", "cli-disk", "cli-packed:7", "--exclude", "/**/*.key", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let packed: serde_json::Value = serde_json::from_str(&packed).unwrap();
    assert_eq!(packed["image"]["version"], "7");
    assert_eq!(packed["scrubbed"][0]["path"], "/x.key");
    assert_eq!(run(&["rollback", "cli-disk", "c"]).0, Some(0));
    assert_eq!(run(&["exec", "cli-disk", "--", "cat", "/f"]).1, "one");
    let (code, _, said) = run(&["rollback", "cli-disk", "none"]);
    assert!(code == Some(125) && said.contains("not_found"), "{said}");
    assert_eq!(run(&["checkpoint", "ls", "cli-disk"]).1, "c");
    assert_eq!(run(&["checkpoint", "rm", "cli-disk", "c"]).0, Some(0));
    let mut stop = vec!["stop", "cli-disk"];
    stop.extend(forked.lines());
    assert_eq!(run(&stop).0, Some(0));
    assert_eq!(run(&["image", "rm", "cli-packed:7"]).0, Some(0));
}
