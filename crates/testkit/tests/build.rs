//! `dsec build`: a Dockerfile's steps in sandboxes of a real node, through the SDK and the CLI.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use futures_util::StreamExt;
use libdsec::{
    BUILD_CACHE, Build, BuildEvent, Built, Code, ExportFormat, ImageInfo, ListQuery, Result, SandboxSpec,
    Scrub,
};
use testkit::{Node, host, tests};

fn main() -> ExitCode {
    // One at a time: they count the node's sandboxes and images.
    testkit::suite::run(
        1,
        tests![
            every_instruction_does_what_it_says,
            what_did_not_change_is_not_run_again,
            a_failing_run_leaves_nothing,
            what_is_refused_is_refused_before_anything_runs,
            copies_stay_in_their_context,
            two_builds_at_once_both_succeed,
            what_is_pruned_is_made_again,
            a_cancelled_build_stops_its_sandbox,
            a_killed_builder_leaves_a_sandbox_with_a_short_life,
            what_is_scrubbed_is_in_no_layer,
            an_export_says_what_the_file_said,
            the_command_line,
        ],
    )
}

/// A context with these files.
fn context(node: &Node, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let dir = node.scratch().join(name);
    let _ = fs::remove_dir_all(&dir);
    for (name, content) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    dir
}

/// FROM the node's image, as root.
fn file(node: &Node, rest: &str) -> String {
    format!("FROM {}\nUSER root\n{rest}", node.spec().image)
}

async fn run(node: &Node, build: &Build) -> (Result<Built>, Vec<BuildEvent>) {
    let mut events = Vec::new();
    let built = node.client().build(build, |event| events.push(event), std::future::pending()).await;
    (built, events)
}

async fn built(node: &Node, dir: &Path, tag: &str) -> Built {
    let build = Build { tag: Some(tag.into()), ..Build::new(dir) };
    run(node, &build).await.0.unwrap_or_else(|e| panic!("{tag}: {e}"))
}

async fn steps(node: &Node) -> Vec<ImageInfo> {
    let images = node.client().images().list().await.unwrap();
    images.into_iter().filter(|image| image.name == BUILD_CACHE).collect()
}

async fn sandboxes(node: &Node) -> usize {
    node.client().list(ListQuery::default()).await.unwrap().len()
}

/// What a command in a new sandbox of an image writes.
async fn said(node: &Node, image: &str, script: &str) -> String {
    let sandbox = node.client().create(SandboxSpec::new(image)).await.unwrap();
    let out = sandbox.sh(script).output().await.unwrap();
    assert!(out.success(), "{script}: {}{}", out.stdout_text(), out.stderr_text());
    sandbox.stop().await.unwrap();
    out.stdout_text()
}

fn output(events: &[BuildEvent]) -> String {
    let text = |event: &BuildEvent| match event {
        BuildEvent::Stdout(bytes) | BuildEvent::Stderr(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

const EVERYTHING: &str = r#"# syntax=docker/dockerfile:1
ARG BASE=none
FROM $BASE AS only
ARG VERSION=1
USER root
LABEL org.example.version="$VERSION" \
      org.example.two='two words'
ENV GREETING="hello there" NAME=${VERSION:-none}
EXPOSE 8080 53/udp
WORKDIR /srv
WORKDIR app
COPY src/ ./
COPY --chown=user:user --chmod=0600 one.txt x.md /srv/many/
COPY [ "two words.txt", "/srv/renamed" ]
COPY one.txt /srv/app
COPY *.md docs/
ADD packed.tar.gz /srv/packed
# A comment within is as if it were not there.
RUN echo "$GREETING $NAME $(id -un) $(pwd)" > said \
    # so
    && rm /etc/motd
RUN ["/bin/sh", "-c", "echo $0 > /srv/argv", "zero"]
USER user
RUN id -un > /tmp/who; (sleep 3601 &)
"#;

fn everything(node: &Node) -> PathBuf {
    let files = [
        ("src/a", "a"),
        ("src/deep/b", "b"),
        ("src/skip.log", "no"),
        ("one.txt", "1"),
        ("two words.txt", "2"),
        ("x.md", "x"),
        ("y.md", "y"),
        ("z.md", "z"),
        (".dockerignore", "**/*.log\nz.md\n"),
        ("in/tar", "t"),
        ("Dockerfile", EVERYTHING),
    ];
    let dir = context(node, "everything", &files);
    symlink("../../etc/passwd", dir.join("src/link")).unwrap();
    let archive = fs::File::create(dir.join("packed.tar.gz")).unwrap();
    let done = Command::new("tar").args(["-cz", "-C"]).arg(&dir).arg("in").stdout(archive).status().unwrap();
    assert!(done.success());
    dir
}

async fn every_instruction_does_what_it_says(node: &Node) {
    let base = node.client().images().inspect(&node.spec().image).await.unwrap();
    let arguments: BTreeMap<_, _> = [("BASE", node.spec().image.as_str()), ("VERSION", "7"), ("TYPO", "")]
        .map(|(k, v)| (k.into(), v.into()))
        .into();
    let build = Build { tag: Some("everything:1".into()), arguments, ..Build::new(everything(node)) };
    let (built, events) = run(node, &build).await;
    let built = built.unwrap();
    // Five COPYs, an ADD, three RUNs.
    assert_eq!((built.steps_run, built.steps_cached), (9, 0), "{events:?}");
    let image = &built.image;
    assert_eq!(
        (image.name.as_str(), image.version.as_str(), image.layers.len()),
        ("everything", "1", base.layers.len() + 9)
    );
    assert_eq!(image.layers[..base.layers.len()], base.layers);
    assert_eq!(sandboxes(node).await, 0);
    assert!(host::with_argument("3601").is_empty(), "nothing of a step lives on");
    assert!(events.iter().any(|event| matches!(event, BuildEvent::Note(text) if text.contains("`TYPO`"))));

    let config = &image.config;
    assert_eq!((config.user.as_deref(), config.workdir.as_deref()), (Some("user"), Some("/srv/app")));
    assert_eq!((config.env["GREETING"].as_str(), config.env["NAME"].as_str()), ("hello there", "7"));
    assert!(!config.env.contains_key("VERSION"), "an ARG is of the build alone");
    assert_eq!(
        (config.labels["org.example.version"].as_str(), config.labels["org.example.two"].as_str()),
        ("7", "two words")
    );
    assert_eq!(config.exposed_ports, ["53/udp", "8080/tcp"].map(str::to_owned).into());

    let tree = said(
        node,
        "everything:1",
        "find . /srv -printf '%P %M %u:%g %l\n' | sort -u; cat said /srv/argv /tmp/who",
    )
    .await;
    for line in [
        "app drwxr-xr-x root:root ",
        "deep drwxr-xr-x root:root ",
        "link lrwxrwxrwx root:root ../../etc/passwd",
        "many/one.txt -rw------- user:user ",
        "many/x.md -rw------- user:user ",
        "renamed -rw-r--r-- root:root ",
        "app/one.txt -rw-r--r-- root:root ",
        "app/docs/x.md -rw-r--r-- root:root ",
        "app/docs/y.md -rw-r--r-- root:root ",
        "packed/in/tar -rw-r--r-- root:root ",
        "hello there 7 root /srv/app",
        "zero",
        "user",
    ] {
        assert!(tree.lines().any(|one| one == line), "{line:?} in {tree}");
    }
    for absent in ["skip.log", "z.md"] {
        assert!(!tree.contains(absent), "{absent}: {tree}");
    }
    assert_eq!(said(node, "everything:1", "test -e /etc/motd || echo gone").await, "gone\n");
}

async fn what_did_not_change_is_not_run_again(node: &Node) {
    let text =
        file(node, "RUN date +%N > /stamp\nCOPY a /a\nRUN cat /a /stamp > /b; date +%N >> /b\nLABEL n=1\n");
    let dir = context(node, "cache", &[("Dockerfile", &text), ("a", "one"), ("other", "1")]);
    let first = built(node, &dir, "cached:1").await;
    assert_eq!((first.steps_run, first.steps_cached), (3, 0));
    // No node has that much: a sandbox could not be made.
    let refusing = Build { memory_bytes_max: 1 << 50, tag: Some("cached:2".into()), ..Build::new(&dir) };
    fs::write(dir.join("other"), "2").unwrap();
    let (second, events) = run(node, &refusing).await;
    let second = second.unwrap();
    assert_eq!(
        (second.steps_run, second.steps_cached, second.image.digest),
        (0, 3, first.image.digest.clone())
    );
    let cached = events.iter().filter(|event| matches!(event, BuildEvent::Cached { .. })).count();
    assert_eq!((cached, output(&events).as_str()), (3, ""));
    // A label makes another image of the same layers, and no step.
    fs::write(dir.join("Dockerfile"), text.replace("n=1", "n=2")).unwrap();
    let (labelled, _) = run(node, &refusing).await;
    let labelled = labelled.unwrap().image;
    assert_eq!(labelled.layers, first.image.layers);
    assert_ne!(labelled.digest, first.image.digest);
    // A changed file runs from its COPY on.
    fs::write(dir.join("a"), "two").unwrap();
    let refused = run(node, &refusing).await.0.unwrap_err();
    assert!(refused.code == Code::InvalidArgument && refused.message.contains("memory"), "{refused}");
    let third = built(node, &dir, "cached:3").await;
    assert_eq!((third.steps_run, third.steps_cached), (2, 1));
    let shared = third.image.layers.iter().zip(&first.image.layers).take_while(|(a, b)| a == b).count();
    assert_eq!(shared, first.image.layers.len() - 2);
    // And back: what was cached is there still.
    fs::write(dir.join("a"), "one").unwrap();
    assert_eq!(built(node, &dir, "cached:4").await.steps_run, 0);
    let anew = Build { no_cache: true, tag: Some("cached:5".into()), ..Build::new(&dir) };
    assert_eq!(run(node, &anew).await.0.unwrap().steps_run, 3);
}

async fn a_failing_run_leaves_nothing(node: &Node) {
    let text = file(node, "RUN echo begun\nRUN echo a tail >&2; exit 7\nRUN echo never\n");
    let dir = context(node, "fails", &[("Dockerfile", &text)]);
    let (failed, events) = run(node, &Build { tag: Some("fails:1".into()), ..Build::new(&dir) }).await;
    let failed = failed.unwrap_err();
    assert_eq!(failed.code, Code::InvalidArgument);
    for part in ["line 4: ", "exit 7", "ended with code 7", "a tail"] {
        assert!(failed.message.contains(part), "{part}: {failed}");
    }
    assert_eq!(output(&events), "begun\na tail\n");
    assert_eq!(sandboxes(node).await, 0);
    assert_eq!(node.client().images().inspect("fails:1").await.unwrap_err().code, Code::NotFound);
    let slow = context(node, "slow", &[("Dockerfile", &file(node, "RUN sleep 3602\n"))]);
    let (failed, _) = run(node, &Build { timeout: Duration::from_millis(300), ..Build::new(&slow) }).await;
    assert!(failed.unwrap_err().message.contains("Timeout"));
    assert!(host::with_argument("3602").is_empty());
    assert_eq!(sandboxes(node).await, 0);
}

async fn what_is_refused_is_refused_before_anything_runs(node: &Node) {
    let before = steps(node).await.len();
    let lines: String = "RUN true\n".repeat(100);
    for (rest, code, said) in [
        ("RUN echo no\nCMD [\"x\"]", Code::Unsupported, "line 4: CMD"),
        ("RUN echo no\nFROM other", Code::Unsupported, "line 4: "),
        ("RUN echo no\nCOPY --from=x a b", Code::Unsupported, "line 4: COPY --from"),
        ("RUN echo no\nRUN --mount=type=cache,target=/x y", Code::Unsupported, "line 4: RUN --mount"),
        ("RUN echo no\nCOPY nope /", Code::NotFound, "line 4: `nope`"),
        ("RUN echo no\nEXPOSE x", Code::InvalidArgument, "line 4: EXPOSE"),
        (lines.as_str(), Code::InvalidArgument, "layers, at most 64"),
    ] {
        let dir = context(node, "refused", &[("Dockerfile", &file(node, rest))]);
        let (refused, events) = run(node, &Build { tag: Some("refused".into()), ..Build::new(&dir) }).await;
        let refused = refused.unwrap_err();
        assert!(refused.code == code && refused.message.contains(said), "{said}: {refused}");
        assert_eq!(events, [], "{said}");
    }
    // What would be waited for.
    let dir = context(node, "pipe", &[("Dockerfile", &file(node, "RUN true"))]);
    assert!(Command::new("mkfifo").arg(dir.join(".dockerignore")).status().unwrap().success());
    let refused = run(node, &Build::new(&dir)).await.0.unwrap_err();
    assert!(
        refused.code == Code::InvalidArgument && refused.message.contains("no regular file"),
        "{refused}"
    );
    let dir = context(node, "refused", &[("Dockerfile", "FROM no-such-image\nRUN x")]);
    let missing = run(node, &Build::new(&dir)).await.0.unwrap_err();
    assert!(missing.code == Code::NotFound && missing.message.starts_with("line 1: "), "{missing}");
    assert_eq!(run(node, &Build::new(dir.join("none"))).await.0.unwrap_err().code, Code::NotFound);
    assert_eq!(steps(node).await.len(), before);
    // What makes no layer is not counted.
    let many = context(node, "many", &[("Dockerfile", &file(node, &"LABEL a=b\n".repeat(100)))]);
    assert_eq!(built(node, &many, "many").await.steps_run, 0);
}

async fn copies_stay_in_their_context(node: &Node) {
    let outside = context(node, "outside", &[("secret", "s")]);
    for (rest, code) in [
        ("COPY ../outside/secret /", Code::InvalidArgument),
        ("COPY way/secret /", Code::InvalidArgument),
        ("COPY way /x", Code::InvalidArgument),
        ("COPY hidden /", Code::NotFound),
        ("ADD link /", Code::InvalidArgument),
    ] {
        let text = file(node, rest);
        let dir =
            context(node, "escape", &[("Dockerfile", &text), ("hidden", "x"), (".dockerignore", "hidden")]);
        symlink(&outside, dir.join("way")).unwrap();
        symlink(outside.join("secret"), dir.join("link")).unwrap();
        let refused = run(node, &Build::new(&dir)).await.0.unwrap_err();
        assert_eq!(refused.code, code, "{rest}: {refused}");
    }
    // In an image a symlink leads somewhere in the image, and nowhere else.
    let text =
        file(node, "RUN ln -s /etc /way && ln -s /nowhere /broken\nCOPY a /way/copied\nCOPY . /tree\n");
    let dir = context(node, "inside", &[("Dockerfile", &text), ("a", "in")]);
    symlink(outside.join("secret"), dir.join("link")).unwrap();
    built(node, &dir, "inside").await;
    assert_eq!(
        said(node, "inside", "cat /etc/copied; readlink /tree/link").await,
        format!("in{}/secret\n", outside.display())
    );
    assert!(!Path::new("/etc/copied").exists());
}

async fn two_builds_at_once_both_succeed(node: &Node) {
    let text = file(node, "RUN date +%N > /a\nRUN date +%N > /b; sleep 0.1\nRUN date +%N > /c\n");
    let dir = context(node, "twice", &[("Dockerfile", &text)]);
    let all = ["twice:1", "twice:2", "twice:3"].map(|tag| built(node, &dir, tag));
    let all = futures_util::future::join_all(all).await;
    assert!(all.iter().all(|one| one.steps_run > 0 && one.image.layers.len() == all[0].image.layers.len()));
    for tag in ["twice:1", "twice:2", "twice:3"] {
        assert_eq!(said(node, tag, "cat /a /b /c | wc -l").await, "3\n");
    }
    assert_eq!(built(node, &dir, "twice:4").await.steps_run, 0);
    assert_eq!(sandboxes(node).await, 0);
}

async fn what_is_pruned_is_made_again(node: &Node) {
    let dir = context(node, "prune", &[("Dockerfile", &file(node, "RUN echo 1 > /a\nRUN echo 2 > /b\n"))]);
    built(node, &dir, "prune:1").await;
    assert!(!steps(node).await.is_empty());
    let removed = node.client().images().prune().await.unwrap();
    assert!(removed.iter().all(|image| image.name == BUILD_CACHE) && removed.len() >= 2);
    assert_eq!(steps(node).await, []);
    assert_eq!(said(node, "prune:1", "cat /a /b").await, "1\n2\n", "what was named stays");
    let second = built(node, &dir, "prune:2").await;
    assert_eq!(second.steps_run, 2);
    // One step's image gone: those above it are there, so nothing is run.
    let all = steps(node).await;
    let lower = all.iter().find(|image| image.layers.len() == second.image.layers.len() - 1).unwrap();
    node.client().images().remove(&format!("{BUILD_CACHE}:{}", lower.version)).await.unwrap();
    assert_eq!(built(node, &dir, "prune:3").await.steps_run, 0);
    // Without a name the image is among what is pruned.
    let unnamed = run(node, &Build::new(&dir)).await.0.unwrap().image;
    assert_eq!((unnamed.name.as_str(), unnamed.layers), (BUILD_CACHE, second.image.layers));
}

async fn a_cancelled_build_stops_its_sandbox(node: &Node) {
    let dir = context(node, "cancel", &[("Dockerfile", &file(node, "RUN echo ready; sleep 3603\n"))]);
    let build = Build { tag: Some("cancel".into()), ..Build::new(&dir) };
    let (ready, cancelled) = tokio::sync::oneshot::channel::<()>();
    let mut ready = Some(ready);
    let on_event = |event| {
        if matches!(event, BuildEvent::Stdout(_)) {
            ready.take().map(|ready| ready.send(()));
        }
    };
    let stop = async {
        let _ = cancelled.await;
    };
    let ended = node.client().build(&build, on_event, stop).await.unwrap_err();
    assert_eq!((ended.code, ended.message.as_str()), (Code::Conflict, "the build was cancelled"));
    assert_eq!(sandboxes(node).await, 0);
    assert!(host::with_argument("3603").is_empty());
    assert_eq!(node.client().images().inspect("cancel").await.unwrap_err().code, Code::NotFound);
}

/// Until its step's command runs.
fn building(node: &Node, dir: &Path, tag: &str) -> std::process::Child {
    let mut command = node.cli();
    command.args(["build", "-t", tag]).arg(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    let stderr = child.stderr.as_mut().unwrap();
    while !seen.contains("\nready") {
        let read = stderr.read(&mut buffer).unwrap();
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    child
}

async fn a_killed_builder_leaves_a_sandbox_with_a_short_life(node: &Node) {
    let before = steps(node).await.len();
    let dir = context(node, "killed", &[("Dockerfile", &file(node, "RUN echo ready; sleep 3604\n"))]);
    let mut child = building(node, &dir, "killed");
    child.kill().unwrap();
    child.wait().unwrap();
    let left = node.client().list(ListQuery::default()).await.unwrap();
    assert_eq!(left.len(), 1);
    assert!(left[0].expires_ms - left[0].created_ms <= 75_000, "{:?}", left[0]);
    assert!(left[0].spec.labels.contains_key("dsec.build"));
    assert_eq!(steps(node).await.len(), before);
    assert_eq!(node.client().images().inspect("killed").await.unwrap_err().code, Code::NotFound);
    node.client().get(left[0].id.as_str()).await.unwrap().stop().await.unwrap();
    // A signal that can be caught leaves nothing at all.
    let mut child = building(node, &dir, "killed");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(sandboxes(node).await, 0);
    assert!(host::with_argument("3604").is_empty());
}

async fn what_is_scrubbed_is_in_no_layer(node: &Node) {
    let text =
        file(node, "COPY . /work/\nRUN cp /work/kept /work/answer.key; echo x > /root/.bash_history\n");
    let dir = context(node, "scrub", &[("Dockerfile", &text), ("kept", "k"), ("answers/1", "42")]);
    let scrub = Scrub {
        exclude: vec!["/work/answers".into(), "/**/*.key".into()],
        shell_history: true,
        ..Scrub::default()
    };
    let (built, events) = run(node, &Build { tag: Some("scrub".into()), scrub, ..Build::new(&dir) }).await;
    built.unwrap();
    let left_out = |event: &BuildEvent| match event {
        BuildEvent::Layer { scrubbed_count, .. } => Some(*scrubbed_count),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(left_out).collect::<Vec<_>>(), [1, 2]);
    let script = "ls -A /work; test -e /root/.bash_history || echo none";
    let spec = SandboxSpec { user: Some("root".into()), ..SandboxSpec::new("scrub") };
    let sandbox = node.client().create(spec).await.unwrap();
    let out = sandbox.sh(script).output().await.unwrap().stdout_text();
    sandbox.stop().await.unwrap();
    assert_eq!(out, "Dockerfile\nkept\nnone\n");
}

async fn an_export_says_what_the_file_said(node: &Node) {
    let text =
        file(node, "ENV A=b\nLABEL org.example.a=1\nEXPOSE 80\nWORKDIR /srv\nRUN touch x\nUSER 1000:1000\n");
    let dir = context(node, "export", &[("Dockerfile", &text)]);
    let layers = built(node, &dir, "export").await.image.layers.len();
    let mut bytes = Vec::new();
    let mut archive = node.client().images().export("export", ExportFormat::Oci).await.unwrap();
    while let Some(part) = archive.next().await {
        bytes.extend_from_slice(&part.unwrap());
    }
    let mut documents = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut content = Vec::new();
        entry.unwrap().take(1 << 20).read_to_end(&mut content).unwrap();
        documents.extend(serde_json::from_slice::<serde_json::Value>(&content).ok());
    }
    let config = documents.iter().find(|one| one.get("rootfs").is_some()).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), layers);
    let run = &config["config"];
    assert_eq!((&run["User"], &run["WorkingDir"]), (&"1000:1000".into(), &"/srv".into()));
    assert!(run["Env"].as_array().unwrap().contains(&"A=b".into()));
    assert_eq!(run["Labels"]["org.example.a"], "1");
    assert_eq!(run["ExposedPorts"], serde_json::json!({"80/tcp": {}}));
}

async fn the_command_line(node: &Node) {
    let run = |args: &[&str]| {
        let out = node.cli().args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let text =
        format!("FROM {}\nARG WHO\nUSER root\nRUN echo \"hi $WHO\" | tee /hi\nCMD x\n", node.spec().image);
    let dir = context(node, "cli", &[("other/File", &text)]);
    let (dir, at) = (dir.to_str().unwrap().to_owned(), dir.join("other/File").to_str().unwrap().to_owned());
    let (code, _, error) = run(&["build", "-t", "cli:1", "-f", &at, &dir]);
    assert!(
        code == Some(125) && error.contains("unsupported: line 5: CMD") && error.contains("--skip CMD"),
        "{error}"
    );
    let arguments =
        ["build", "-t", "cli:1", "-f", &at, "--build-arg", "WHO=me", "--skip", "cmd", "--json", &dir];
    let (code, out, progress) = run(&arguments);
    assert_eq!(code, Some(0), "{progress}");
    assert!(progress.contains("\nhi me\n") && progress.contains("#3/3 RUN"), "{progress}");
    let told: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&told["image"]["name"], &told["steps_run"]), (&"cli".into(), &1.into()));
    assert_eq!(run(&["run", "cli:1", "--", "cat", "/hi"]).1, "hi me");
    assert!(run(&arguments).2.contains("CACHED"));
    assert!(!run(&["image", "ls"]).1.contains(BUILD_CACHE));
    assert!(run(&["image", "ls", "--all"]).1.contains(BUILD_CACHE));
    assert_eq!(run(&["image", "tag", "cli:1", "cli:2"]).0, Some(0));
    assert_eq!(run(&["image", "rm", "cli:1"]).0, Some(0));
    let (code, out, error) = run(&["image", "prune"]);
    assert!(code == Some(0) && out.ends_with("cached steps removed"), "{out} {error}");
    assert_eq!(run(&["run", "cli:2", "--", "cat", "/hi"]).1, "hi me");
}
