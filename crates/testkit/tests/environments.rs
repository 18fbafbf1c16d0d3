//! Environments on a real node: one name for a composition, what it keeps, and an upgrade of what many share.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use libdsec::{
    Code, EnvironmentInfo, EnvironmentRequest, ForkRequest, ImageInfo, ImportQuery, LayerKind, Sandbox,
    SandboxSpec,
};
use serde_json::Value;
use tar::{Builder, Header};
use testkit::{Node, suite::Test, tests};

fn main() -> ExitCode {
    let mut all = tests![
        a_sandbox_of_an_environment_is_its_composition,
        an_environment_outlives_the_names_it_was_made_of,
        one_import_upgrades_a_toolkit_under_all_workspaces,
        nothing_that_lives_is_removed,
        creates_and_removals_do_not_meet,
        uses_are_counted_over_restarts,
        bad_requests_have_their_codes,
        the_command_line,
    ];
    all.push(Test::alone("an_environment_goes_to_another_node", || {
        Box::pin(an_environment_goes_to_another_node())
    }));
    testkit::suite::run(1, all)
}

async fn ok(sandbox: &Sandbox, script: &str) -> String {
    let out = sandbox.sh(script).timeout(Duration::from_secs(60)).output().await.unwrap();
    assert!(out.success(), "{script}: {}{}", out.stdout_text(), out.stderr_text());
    out.stdout_text()
}

/// An image of one file.
async fn import(node: &Node, name: &str, kind: LayerKind, path: &str, content: &str) -> ImageInfo {
    let mut tar = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    tar.append_data(&mut header, path.trim_start_matches('/'), content.as_bytes()).unwrap();
    let bytes = tar.into_inner().unwrap();
    let body = stream::iter([Ok(bytes.into())]).boxed();
    node.client().images().import(ImportQuery::new(name, kind), body).await.unwrap()
}

async fn tool(node: &Node, name: &str, version: &str) -> ImageInfo {
    import(node, name, LayerKind::Toolkit, "/opt/tool", &format!("#!/bin/sh\necho {version}\n")).await
}

fn of(name: &str, workspace: &str, toolkit: &str) -> EnvironmentRequest {
    EnvironmentRequest {
        workspaces: vec![workspace.into()],
        toolkits: vec![toolkit.into()],
        ..EnvironmentRequest::new(name, "debian")
    }
}

fn following(name: &str, workspace: &str, toolkit: &str) -> EnvironmentRequest {
    EnvironmentRequest { follow: vec![LayerKind::Toolkit], ..of(name, workspace, toolkit) }
}

async fn named(node: &Node, request: EnvironmentRequest) -> EnvironmentInfo {
    node.client().environments().create(request).await.unwrap()
}

async fn start(node: &Node, image: &str) -> Sandbox {
    node.sandbox_with(SandboxSpec::new(image)).await
}

/// Names of all files of a kind that the catalogue keeps.
fn kept(node: &Node, part: &str) -> BTreeSet<String> {
    fn walk(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => walk(&entry.path(), found),
                false => drop(found.insert(entry.path().display().to_string())),
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&node.data().join("volume").join(part), &mut found);
    found
}

fn layers(node: &Node) -> BTreeSet<String> {
    let entries = fs::read_dir(node.data().join("volume/layers")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn a_sandbox_of_an_environment_is_its_composition(node: &Node) {
    let work = import(node, "a-work", LayerKind::Workspace, "/srv/work", "work").await;
    let kit = tool(node, "a-tool", "1").await;
    let base = node.client().images().inspect("debian").await.unwrap();
    let request = EnvironmentRequest {
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        user: Some("root".into()),
        workdir: Some("/srv".into()),
        ..of("a-env", "a-work", "a-tool")
    };
    let made = named(node, request).await;
    let sandbox = start(node, "a-env").await;
    let info = node.client().list(Default::default()).await.unwrap().remove(0);
    assert_eq!(info.layers, made.layers);
    assert_eq!(info.layers, [base.layers, work.layers, kit.layers].concat());
    assert_eq!(
        ok(&sandbox, "id -un; pwd; cat work; /opt/tool; echo $GREETING").await,
        "root\n/srv\nwork1\nhello\n"
    );
    // What a create adds goes over it, and what it says over what the environment says.
    tool(node, "a-over", "over").await;
    let spec = SandboxSpec {
        toolkits: vec!["a-over".into()],
        env: [("GREETING".to_owned(), "bye".to_owned())].into(),
        ..SandboxSpec::new("a-env:latest")
    };
    let over = node.sandbox_with(spec).await;
    assert_eq!(ok(&over, "/opt/tool; echo $GREETING").await, "over\nbye\n");
    // A fork and a pack stand on the same ground.
    ok(&sandbox, "echo mine > /srv/mine").await;
    let fork = sandbox.fork(ForkRequest::new(1)).next().await.unwrap().unwrap();
    assert_eq!(ok(&fork, "cat work mine; echo $GREETING").await, "workmine\nhello\n");
    sandbox.pack_diff(libdsec::PackRequest::new("a-packed")).await.unwrap();
    let packed = start(node, "a-packed").await;
    assert_eq!(ok(&packed, "id -un; cat work mine; /opt/tool").await, "root\nworkmine\n1\n");
    for sandbox in [sandbox, over, fork, packed] {
        sandbox.stop().await.unwrap();
    }
}

async fn an_environment_outlives_the_names_it_was_made_of(node: &Node) {
    import(node, "b-work", LayerKind::Workspace, "/srv/b", "one").await;
    tool(node, "b-tool", "1").await;
    let made = named(node, of("b-env", "b-work", "b-tool")).await;
    import(node, "b-work", LayerKind::Workspace, "/srv/b", "two").await;
    node.client().images().remove("b-tool").await.unwrap();
    node.restart_kill9().unwrap();
    let sandbox = start(node, "b-env").await;
    assert_eq!(ok(&sandbox, "cat /srv/b; /opt/tool").await, "one1\n");
    sandbox.stop().await.unwrap();
    // By digest as well: it is the name of exactly this.
    let sandbox = start(node, made.digest.as_deref().unwrap()).await;
    assert_eq!(ok(&sandbox, "cat /srv/b; /opt/tool").await, "one1\n");
    sandbox.stop().await.unwrap();
    let again = node.client().environments().inspect("b-env").await.unwrap();
    assert_eq!((again.digest, again.layers, again.parts), (made.digest, made.layers, made.parts));
}

/// C1: what an upgrade costs does not grow with the workspaces that are under it.
async fn one_import_upgrades_a_toolkit_under_all_workspaces(node: &Node) {
    const WORKSPACES: usize = 1000;
    tool(node, "u-tool", "1").await;
    let work = |n: usize| format!("u-{n}");
    let each = |n: usize| async move {
        let (name, file) = (format!("u-{n}"), format!("/srv/u-{n}"));
        import(node, &name, LayerKind::Workspace, &file, &format!("workspace {n}")).await;
        let request = following(&format!("u-env-{n}"), &name, "u-tool");
        node.client().environments().create(request).await.map(drop)
    };
    let made = stream::iter(0..WORKSPACES).map(|n| Ok(each(n))).try_buffer_unordered(8);
    made.try_for_each(|()| async { Ok(()) }).await.unwrap();
    let exact = named(node, of("u-exact", &work(7), "u-tool")).await;
    let lives = start(node, "u-env-7").await;
    let before = ["layers", "images", "environments"].map(|part| kept(node, part));

    let newer = tool(node, "u-tool", "2").await;

    let after = ["layers", "images", "environments"].map(|part| kept(node, part));
    let new_layers: BTreeSet<_> = after[0].difference(&before[0]).collect();
    let in_it = newer.layers[0].trim_start_matches("blake3:");
    assert!(!new_layers.is_empty() && new_layers.iter().all(|file| file.contains(in_it)), "{new_layers:?}");
    assert_eq!(before[0].difference(&after[0]).count(), 0, "the exact environment has the old one");
    assert_eq!((&before[1], &before[2]), (&after[1], &after[2]), "no other name has changed");

    for n in [0, 7, WORKSPACES - 1] {
        let sandbox = start(node, &format!("u-env-{n}")).await;
        assert_eq!(ok(&sandbox, &format!("cat /srv/u-{n}; /opt/tool")).await, format!("workspace {n}2\n"));
        sandbox.stop().await.unwrap();
    }
    assert_eq!(ok(&lives, "/opt/tool").await, "1\n", "what lives is as it was made");
    lives.stop().await.unwrap();
    let sandbox = start(node, "u-exact").await;
    assert_eq!(ok(&sandbox, "/opt/tool").await, "1\n");
    sandbox.stop().await.unwrap();
    let now = node.client().environments().inspect("u-env-7").await.unwrap();
    assert_ne!(now.digest, exact.digest);
    assert_eq!(now.parts.last().unwrap().digest.as_ref(), Some(&newer.digest));
}

async fn nothing_that_lives_is_removed(node: &Node) {
    import(node, "c-work", LayerKind::Workspace, "/srv/c", "c").await;
    let kit = tool(node, "c-tool", "c").await;
    named(node, following("c-env", "c-work", "c-tool")).await;
    let (images, environments) = (node.client().images(), node.client().environments());
    let error = images.remove("c-tool").await.unwrap_err();
    assert_eq!(error.code, Code::Conflict, "{error}");
    assert!(error.message.contains("c-env"), "{error}");
    let sandbox = start(node, "c-env").await;
    assert_eq!(environments.inspect("c-env").await.unwrap().in_use, 1);
    assert_eq!(images.inspect("c-tool").await.unwrap().in_use, 1, "it is a part of it");
    assert_eq!(environments.remove("c-env").await.unwrap_err().code, Code::Conflict);
    // Replaced, it means something else; then the environment may go, and what lives keeps what it has.
    tool(node, "c-tool", "d").await;
    environments.remove("c-env").await.unwrap();
    images.remove("c-tool").await.unwrap();
    assert_eq!(environments.inspect("c-env").await.unwrap_err().code, Code::NotFound);
    let layer = kit.layers[0].trim_start_matches("blake3:").to_owned();
    assert!(layers(node).contains(&layer));
    assert_eq!(ok(&sandbox, "/opt/tool").await, "c\n");
    node.restart_kill9().unwrap();
    let sandbox = node.client().get(sandbox.id().as_str()).await.unwrap();
    assert_eq!(ok(&sandbox, "/opt/tool").await, "c\n");
    sandbox.stop().await.unwrap();
    // Any import sweeps.
    import(node, "c-other", LayerKind::Workspace, "/srv/x", "x").await;
    assert!(!layers(node).contains(&layer));
}

/// A create either is told that there is no such thing, or has all of it: under names that come, change and go.
async fn creates_and_removals_do_not_meet(node: &Node) {
    const ROUNDS: u32 = 40;
    let done = AtomicBool::new(false);
    import(node, "r-work", LayerKind::Workspace, "/srv/r", "r").await;
    let changes = async {
        for round in 0..ROUNDS {
            tool(node, "r-tool", &round.to_string()).await;
            named(node, following("r-env", "r-work", "r-tool")).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            // While a sandbox of it lives it stays.
            let removed = node.client().environments().remove("r-env").await;
            assert!(removed.as_ref().is_ok_or_conflict(), "{removed:?}");
            let removed = node.client().images().remove("r-tool").await;
            assert!(removed.as_ref().is_ok_or_conflict(), "{removed:?}");
        }
        done.store(true, Ordering::Relaxed);
    };
    let creates = async |n: usize| {
        let mut made = 0;
        while !done.load(Ordering::Relaxed) {
            match node.client().create(SandboxSpec::new("r-env")).await {
                Ok(sandbox) => {
                    let said = ok(&sandbox, "cat /srv/r; /opt/tool").await;
                    assert!(said.starts_with('r') && said[1..].trim().parse::<u32>().is_ok(), "{n}: {said}");
                    made += 1;
                    sandbox.stop().await.unwrap();
                }
                Err(error) => assert_eq!(error.code, Code::NotFound, "{error}"),
            }
        }
        made
    };
    let ((), one, two, three) = tokio::join!(changes, creates(1), creates(2), creates(3));
    assert!(one + two + three > 0, "none was ever made");
    let _ = node.client().environments().remove("r-env").await;
    let _ = node.client().images().remove("r-tool").await;
    import(node, "r-other", LayerKind::Workspace, "/srv/y", "y").await;
    let named: BTreeSet<String> = named_layers(node).await;
    assert_eq!(layers(node), named, "what nothing names is gone, what something names is there");
}

trait OkOrConflict {
    fn is_ok_or_conflict(&self) -> bool;
}

impl OkOrConflict for std::result::Result<&(), &libdsec::Error> {
    fn is_ok_or_conflict(&self) -> bool {
        self.is_ok() || self.is_err_and(|error| error.code == Code::Conflict)
    }
}

async fn named_layers(node: &Node) -> BTreeSet<String> {
    let images = node.client().images().list().await.unwrap().into_iter().flat_map(|image| image.layers);
    let environments = node.client().environments().list().await.unwrap().into_iter().flat_map(|e| e.layers);
    images.chain(environments).map(|digest| digest.trim_start_matches("blake3:").to_owned()).collect()
}

async fn uses_are_counted_over_restarts(node: &Node) {
    import(node, "n-work", LayerKind::Workspace, "/srv/n", "n").await;
    tool(node, "n-tool", "n").await;
    named(node, of("n-env", "n-work", "n-tool")).await;
    for _ in 0..3 {
        start(node, "n-env").await.stop().await.unwrap();
    }
    let environments = node.client().environments();
    let info = environments.inspect("n-env").await.unwrap();
    assert_eq!((info.usage.sandboxes, info.in_use), (3, 0));
    assert!(info.usage.last_ms >= info.created_ms);
    assert_eq!(node.client().images().inspect("n-tool").await.unwrap().usage.sandboxes, 3);
    // It is written down within seconds.
    let file = node.data().join("usage.json");
    let written = || fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let digest = info.digest.unwrap();
    for _ in 0..150 {
        if written().is_some_and(|counts| counts[&digest]["sandboxes"] == 3) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.restart_kill9().unwrap();
    let again = node.client().environments().inspect("n-env").await.unwrap();
    assert_eq!(again.usage, info.usage);
}

async fn bad_requests_have_their_codes(node: &Node) {
    import(node, "x-work", LayerKind::Workspace, "/srv/x", "x").await;
    let create = async |request| node.client().environments().create(request).await.unwrap_err();
    assert_eq!(create(EnvironmentRequest::new("x-env", "nope")).await.code, Code::NotFound);
    let wrong =
        EnvironmentRequest { toolkits: vec!["x-work".into()], ..EnvironmentRequest::new("x-env", "debian") };
    assert_eq!(create(wrong).await.code, Code::InvalidArgument);
    assert_eq!(create(EnvironmentRequest::new("debian", "debian")).await.code, Code::AlreadyExists);
    assert_eq!(create(EnvironmentRequest::new("../x", "debian")).await.code, Code::InvalidArgument);
    let many = vec!["x-work".to_owned(); 64];
    let many = EnvironmentRequest { workspaces: many, ..EnvironmentRequest::new("x-env", "debian") };
    assert_eq!(create(many).await.code, Code::InvalidArgument);
    let environments = node.client().environments();
    assert_eq!(environments.inspect("x-env").await.unwrap_err().code, Code::NotFound);
    assert_eq!(environments.remove("x-env").await.unwrap_err().code, Code::NotFound);
    named(node, EnvironmentRequest::new("x-env", "debian")).await;
    let other = EnvironmentRequest {
        workspaces: vec!["x-work".into()],
        ..EnvironmentRequest::new("x-env", "debian")
    };
    assert_eq!(create(other).await.code, Code::AlreadyExists);
    let images = node.client().images();
    let refused = images.import(
        ImportQuery::new("x-env", LayerKind::Base),
        stream::iter([Ok(vec![0; 10240].into())]).boxed(),
    );
    assert_eq!(refused.await.unwrap_err().code, Code::AlreadyExists);
}

fn cli(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let out = node.cli().args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

async fn the_command_line(node: &Node) {
    import(node, "l-work", LayerKind::Workspace, "/srv/l", "l").await;
    tool(node, "l-tool", "l").await;
    let create = [
        "env",
        "create",
        "l-env:1",
        "--image",
        "debian",
        "--workspace",
        "l-work",
        "--toolkit",
        "l-tool",
        "--follow",
        "toolkit",
        "--env",
        "A=b",
        "--user",
        "root",
        "--workdir",
        "/srv",
    ];
    let (code, said, error) = cli(node, &create);
    assert_eq!(code, Some(0), "{error}");
    assert!(said.starts_with("l-env:1  3 layers, "), "{said}");
    let (code, said, error) = cli(node, &["run", "l-env:1", "--", "sh", "-c", "echo $A; cat l; /opt/tool"]);
    assert_eq!((code, said.as_str()), (Some(0), "b\nll\n"), "{error}");
    let (_, listed, _) = cli(node, &["env", "ls"]);
    let line = listed
        .lines()
        .find(|line| line.trim_start().starts_with("l-env:1"))
        .unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains("debian l-work ~l-tool") && listed.contains("USES"), "{listed}");
    let (_, quiet, _) = cli(node, &["env", "ls", "-q"]);
    assert!(quiet.lines().any(|line| line == "l-env:1"), "{quiet}");
    let (_, json, _) = cli(node, &["env", "inspect", "l-env:1"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["usage"]["sandboxes"], &json["parts"][2]["follow"]),
        (&1.into(), &true.into()),
        "{json}"
    );
    let (code, _, error) = cli(node, &["env", "rm", "nope", "l-env:1"]);
    assert_eq!(code, Some(125));
    assert!(error.contains("no environment `nope`"), "{error}");
    assert_eq!(cli(node, &["env", "inspect", "l-env:1"]).0, Some(125), "the other was removed");
}

async fn an_environment_goes_to_another_node() {
    let place = tempfile::Builder::new().prefix("dsec-store-").tempdir_in("/var/tmp").unwrap();
    let url = format!("file://{}", place.path().display());
    let a = Node::start_with(&["--store", &url]).await.unwrap();
    import(&a, "s-work", LayerKind::Workspace, "/srv/s", "s").await;
    tool(&a, "s-tool", "s").await;
    let made =
        named(&a, EnvironmentRequest { user: Some("root".into()), ..of("s-env", "s-work", "s-tool") }).await;
    a.client().images().publish("s-env").await.unwrap();
    let b = Node::start_bare(&["--store", &url], &[]).unwrap();
    let sandbox = b.sandbox_with(SandboxSpec::new("s-env")).await;
    assert_eq!(ok(&sandbox, "id -un; cat /srv/s; /opt/tool").await, "root\nss\n");
    assert_eq!(b.client().images().inspect("s-env").await.unwrap().digest, made.digest.unwrap());
    sandbox.stop().await.unwrap();
    b.stop().unwrap();
    a.stop().unwrap();
}
