//! Projects, keys and quota on a real node: what a key sees, what it may, how much it gets; over the SDK, the CLI and the doors.
#![allow(clippy::unwrap_used)]

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use libdsec::{
    Client, Code, Context, Dimension, ForkRequest, KeyMade, KeyRequest, LayerKind, ListQuery, PackRequest,
    ProjectRequest, ProjectUpdate, Quota, Result, Rights, SandboxSpec,
};
use testkit::{Node, tests};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

fn main() -> ExitCode {
    testkit::suite::run(
        1,
        tests![
            a_sandbox_of_another_project_does_not_exist,
            every_verb_asks_for_its_right,
            a_key_narrows_and_ends,
            quota_holds_for_all_below,
            quota_comes_back,
            quota_survives_kills,
            a_request_sent_again_takes_nothing_more,
            many_creates_share_what_there_is,
            creates_have_a_rate,
            names_and_keys_are_of_a_project,
            the_doors_ask_too,
            the_command_line,
        ],
    )
}

async fn project(node: &Node, path: &str, quota: Quota) {
    let (parent, name) = path.rsplit_once('/').unwrap();
    let request = ProjectRequest { name: name.into(), parent: Some(parent.into()), rights: None, quota };
    node.client().projects().create(request).await.unwrap();
}

fn sandboxes(count: u64) -> Quota {
    Quota::NONE.with(Dimension::Sandboxes, count)
}

static SERIAL: AtomicU32 = AtomicU32::new(0);

async fn key(node: &Node, project: &str, rights: &str) -> KeyMade {
    let request = KeyRequest {
        project: Some(project.into()),
        rights: Some(rights.parse().unwrap()),
        ..KeyRequest::new(format!("k-{}", SERIAL.fetch_add(1, Ordering::Relaxed)))
    };
    node.client().keys().create(request).await.unwrap()
}

fn with_key(node: &Node, key: &str) -> Client {
    Client::from_context(&Context { api_key: key.into(), ..node.access() }).unwrap()
}

async fn client(node: &Node, project: &str, rights: &str) -> Client {
    with_key(node, &key(node, project, rights).await.key)
}

async fn used(node: &Node, project: &str) -> u64 {
    node.client().projects().inspect(project).await.unwrap().used.get(Dimension::Sandboxes)
}

fn refused<T: std::fmt::Debug>(result: Result<T>, code: Code) {
    let error = result.unwrap_err();
    assert_eq!(error.code, code, "{error}");
}

async fn a_sandbox_of_another_project_does_not_exist(node: &Node) {
    for path in ["root/a1", "root/a1/run", "root/a2"] {
        project(node, path, Quota::NONE).await;
    }
    let (above, below, beside) = (
        client(node, "root/a1", "*").await,
        client(node, "root/a1/run", "*").await,
        client(node, "root/a2", "*").await,
    );
    let sandbox = below.create(node.spec()).await.unwrap();
    let id = sandbox.id().as_str();
    let info = above.get(id).await.unwrap().info().await.unwrap();
    assert!(info.project.starts_with("pr-") && info.project != "pr-root");
    assert_eq!(above.list(ListQuery::default()).await.unwrap().len(), 1);
    assert_eq!(beside.list(ListQuery::default()).await.unwrap().len(), 0);
    assert!(node.client().list(ListQuery::default()).await.unwrap().iter().any(|s| s.id.as_str() == id));
    refused(beside.get(id).await.map(drop), Code::NotFound);
    // By its handle, each verb.
    let theirs = beside.sandbox(info.clone());
    refused(theirs.exec(["true"]).output().await, Code::NotFound);
    refused(theirs.files().read("/etc/passwd").await, Code::NotFound);
    refused(theirs.stop().await, Code::NotFound);
    refused(theirs.checkpoint(None).await, Code::NotFound);
    refused(theirs.pack_diff(PackRequest::new("a2-stolen")).await, Code::NotFound);
    refused(theirs.fork(ForkRequest::new(1)).next().await.unwrap().map(drop), Code::NotFound);
    refused(theirs.set_ttl(Duration::from_secs(9)).await, Code::NotFound);
    // Where it may be made: here and below.
    let unknown = beside.get("sb-e1-01arz3ndektsv4rrffq69g5fav").await.map(drop).unwrap_err();
    assert_eq!(unknown.code, Code::NotFound, "as one that never was");
    assert!(above.get(id).await.unwrap().exec(["true"]).output().await.unwrap().success());
    sandbox.stop().await.unwrap();
}

async fn every_verb_asks_for_its_right(node: &Node) {
    project(node, "root/r", Quota::NONE).await;
    let all = client(node, "root/r", "*").await;
    let sandbox = all.create(node.spec()).await.unwrap();
    let info = sandbox.info().await.unwrap();
    let as_ = async |rights: &str| client(node, "root/r", rights).await.sandbox(info.clone());

    let exec = as_("sandbox.exec,sandbox.read").await;
    assert!(exec.exec(["true"]).output().await.unwrap().success());
    refused(exec.files().read("/etc/hostname").await, Code::PermissionDenied);
    refused(exec.stop().await, Code::PermissionDenied);
    refused(exec.checkpoint(None).await, Code::PermissionDenied);
    let files = as_("sandbox.files:container").await;
    files.files().write("/home/user/f", "x").await.unwrap();
    refused(files.exec(["true"]).output().await, Code::PermissionDenied);
    let other_kind = as_("sandbox.exec:micro_vm").await;
    refused(other_kind.exec(["true"]).output().await, Code::PermissionDenied);
    let viewer = client(node, "root/r", "viewer").await;
    assert_eq!(viewer.list(ListQuery::default()).await.unwrap().len(), 1);
    refused(viewer.create(node.spec()).await.map(drop), Code::PermissionDenied);
    refused(viewer.images().remove("debian").await, Code::PermissionDenied);
    viewer.images().inspect("debian").await.unwrap();
    refused(viewer.projects().update("root/r", ProjectUpdate::default()).await, Code::PermissionDenied);
    refused(viewer.keys().list().await, Code::PermissionDenied);
    refused(viewer.projects().audit(Default::default()).await, Code::PermissionDenied);
    // A disk becomes an image only where images may be made.
    let user = as_("user").await;
    user.checkpoint(Some("c")).await.unwrap();
    refused(
        user.pack_diff(PackRequest { kind: LayerKind::Toolkit, ..PackRequest::new("r-x") }).await,
        Code::PermissionDenied,
    );
    // Whoever has a sandbox of an image can read it.
    let blind = client(node, "root/r", "sandbox.*").await;
    refused(blind.create(node.spec()).await.map(drop), Code::PermissionDenied);
    // What is the node's is not for a project's keys, whatever they may in it.
    refused(all.images().remove_store("debian").await, Code::PermissionDenied);
    let nothing = client(node, "root/r", "node.read").await;
    assert_eq!(nothing.list(ListQuery::default()).await.unwrap().len(), 0);

    // The project's own rights bound its keys at once.
    let narrower =
        ProjectUpdate { rights: Some("viewer,sandbox.stop".parse::<Rights>().unwrap()), quota: None };
    node.client().projects().update("root/r", narrower).await.unwrap();
    refused(sandbox.exec(["true"]).output().await, Code::PermissionDenied);
    sandbox.stop().await.unwrap();
}

async fn a_key_narrows_and_ends(node: &Node) {
    project(node, "root/n", Quota::NONE).await;
    let agent = client(node, "root/n", "user,key.write").await;
    let request = KeyRequest {
        rights: Some("sandbox.*,image.read".parse().unwrap()),
        ttl_ms: Some(3_600_000),
        ..KeyRequest::new("n-narrow")
    };
    let made = agent.keys().create(request).await.unwrap();
    assert_eq!(made.info.project, "root/n");
    let narrow = with_key(node, &made.key);
    // What may do less ends none that may do more.
    let revoker = client(node, "root/n", "key.write").await;
    refused(revoker.keys().revoke("n-narrow").await, Code::PermissionDenied);
    let sandbox = narrow.create(node.spec()).await.unwrap();
    refused(narrow.keys().create(KeyRequest::new("n-x")).await, Code::PermissionDenied);
    let wide = KeyRequest { rights: Some(Rights::all()), ..KeyRequest::new("n-wide") };
    refused(agent.keys().create(wide).await, Code::PermissionDenied);
    agent.keys().revoke("n-narrow").await.unwrap();
    refused(sandbox.exec(["true"]).output().await, Code::Unauthenticated);
    node.client().get(sandbox.id().as_str()).await.unwrap().stop().await.unwrap();
    let audit = node.client().projects().audit(Default::default()).await.unwrap();
    let said: Vec<_> =
        audit.iter().filter(|entry| entry.project == "root/n").map(|e| (e.verb.as_str(), e.code)).collect();
    assert_eq!(
        said,
        [
            ("key.revoke", None),
            ("key.create", Some(Code::PermissionDenied)),
            ("key.create", Some(Code::PermissionDenied)),
            ("key.revoke", Some(Code::PermissionDenied)),
            ("key.create", None)
        ]
    );
}

async fn quota_holds_for_all_below(node: &Node) {
    project(node, "root/q", sandboxes(3)).await;
    project(node, "root/q/one", sandboxes(2)).await;
    project(node, "root/q/two", Quota::NONE).await;
    let (one, two) = (client(node, "root/q/one", "*").await, client(node, "root/q/two", "*").await);
    let first = one.create(node.spec()).await.unwrap();
    let _second = one.create(node.spec()).await.unwrap();
    let error = one.create(node.spec()).await.map(drop).unwrap_err();
    assert_eq!(error.code, Code::QuotaExceeded);
    assert!(error.message.contains("`root/q/one` may have 2, has 2"), "{error}");
    let _third = two.create(node.spec()).await.unwrap();
    let error = two.create(node.spec()).await.map(drop).unwrap_err();
    assert!(error.message.contains("`root/q` may have 3, has 3"), "{error}");
    refused(first.fork(ForkRequest::new(1)).next().await.unwrap().map(drop), Code::QuotaExceeded);
    // A batch is all or nothing.
    let mut batch = two.create_many(2, node.spec());
    refused(batch.next().await.unwrap().map(drop), Code::QuotaExceeded);
    assert!(batch.next().await.is_none());
    assert_eq!((used(node, "root/q").await, used(node, "root/q/one").await), (3, 2));
    // Memory, too.
    let memory =
        ProjectUpdate { rights: None, quota: Some(Quota::NONE.with(Dimension::MemoryBytes, 1 << 20)) };
    node.client().projects().update("root/q", memory).await.unwrap();
    let error = two.create(node.spec()).await.map(drop).unwrap_err();
    assert!(error.message.starts_with("memory_bytes"), "{error}");
    assert_eq!(one.list(ListQuery::default()).await.unwrap().len(), 2, "what runs stays");
    refused(node.client().projects().remove("root/q/one").await, Code::Conflict);
    stop_all(&node_client_of(node, "root/q").await).await;
}

async fn node_client_of(node: &Node, project: &str) -> Client {
    client(node, project, "*").await
}

async fn stop_all(client: &Client) {
    for info in client.list(ListQuery::default()).await.unwrap() {
        client.sandbox(info).stop().await.unwrap();
    }
}

async fn quota_comes_back(node: &Node) {
    project(node, "root/b", sandboxes(1)).await;
    let client = client(node, "root/b", "*").await;
    for _ in 0..5 {
        // At once after a stop, each time.
        client.create(node.spec()).await.unwrap().stop().await.unwrap();
    }
    // What ends by itself.
    let short = SandboxSpec { ttl_ms: 300, ..node.spec() };
    client.create(short).await.unwrap();
    refused(client.create(node.spec()).await.map(drop), Code::QuotaExceeded);
    for _ in 0..100 {
        if used(node, "root/b").await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // What was refused by the edge.
    refused(client.create(SandboxSpec::new("nosuch")).await.map(drop), Code::NotFound);
    client.create(node.spec()).await.unwrap().stop().await.unwrap();
    assert_eq!(used(node, "root/b").await, 0);
}

async fn quota_survives_kills(node: &Node) {
    project(node, "root/k", sandboxes(4)).await;
    let made = key(node, "root/k", "*").await;
    let client = with_key(node, &made.key);
    let mut batch = client.create_many(3, node.spec());
    while let Some(sandbox) = batch.next().await {
        sandbox.unwrap();
    }
    node.restart_kill9().unwrap();
    let client = with_key(node, &made.key);
    assert_eq!(used(node, "root/k").await, 3);
    let fourth = client.create(node.spec()).await.unwrap();
    refused(client.create(node.spec()).await.map(drop), Code::QuotaExceeded);
    // Killed in the middle of creates: what was made is counted, what was not is not.
    fourth.stop().await.unwrap();
    stop_all(&client).await;
    let mut batch = client.create_many(4, node.spec());
    let _ = tokio::time::timeout(Duration::from_millis(8), batch.next()).await;
    node.restart_kill9().unwrap();
    drop(batch);
    let client = with_key(node, &made.key);
    let lives = client.list(ListQuery::default()).await.unwrap().len() as u64;
    assert!(lives <= 4);
    assert!(used(node, "root/k").await >= lives, "what lives is counted");
    stop_all(&client).await;
    // The reservation of the killed server ends by itself, two minutes later; until then it is counted.
    assert!(used(node, "root/k").await <= 4);
}

async fn a_request_sent_again_takes_nothing_more(node: &Node) {
    project(node, "root/s", sandboxes(2)).await;
    let client = client(node, "root/s", "*").await;
    let mut made = client.create_many_keyed(2, node.spec(), "s-key");
    let mut first = Vec::new();
    while let Some(sandbox) = made.next().await {
        first.push(sandbox.unwrap().id().clone());
    }
    let mut again = client.create_many_keyed(2, node.spec(), "s-key");
    let mut second = Vec::new();
    while let Some(sandbox) = again.next().await {
        second.push(sandbox.unwrap().id().clone());
    }
    first.sort();
    second.sort();
    assert_eq!(first, second);
    let mut fresh = client.create_many_keyed(1, node.spec(), "s-other");
    refused(fresh.next().await.unwrap().map(drop), Code::QuotaExceeded);
    assert_eq!(used(node, "root/s").await, 2);
    stop_all(&client).await;
    // A fork as well.
    let source = client.create(node.spec()).await.unwrap();
    let request = ForkRequest { idempotency_key: Some("s-fork".into()), ..ForkRequest::new(1) };
    let one = source.fork(request.clone()).next().await.unwrap().unwrap();
    let again = source.fork(request).next().await.unwrap().unwrap();
    assert_eq!(one.id(), again.id());
    refused(source.fork(ForkRequest::new(1)).next().await.unwrap().map(drop), Code::QuotaExceeded);
    stop_all(&client).await;
}

async fn many_creates_share_what_there_is(node: &Node) {
    project(node, "root/m", sandboxes(10)).await;
    project(node, "root/m/one", Quota::NONE).await;
    project(node, "root/m/two", Quota::NONE).await;
    let clients = [client(node, "root/m/one", "*").await, client(node, "root/m/two", "*").await];
    let creates = (0..40).map(|n| {
        let client = &clients[n % 2];
        async move { client.create(node.spec()).await }
    });
    let results = futures_util::future::join_all(creates).await;
    let made = results.iter().filter(|result| result.is_ok()).count();
    assert!(results.iter().flat_map(|r| r.as_ref().err()).all(|e| e.code == Code::QuotaExceeded));
    assert_eq!((made as u64, used(node, "root/m").await), (10, 10));
    for client in &clients {
        stop_all(client).await;
    }
    assert_eq!(used(node, "root/m").await, 0);
}

async fn creates_have_a_rate(node: &Node) {
    project(node, "root/t", Quota::NONE.with(Dimension::CreatesPerS, 2)).await;
    project(node, "root/t/run", Quota::NONE).await;
    let made = key(node, "root/t/run", "*").await;
    let headers = format!("X-API-Key: {}\r\n", made.key);
    let mut refused = 0;
    for _ in 0..6 {
        let (status, text) =
            http(node, "POST", "/v1/sandboxes", &headers, r#"{"spec":{"image":"debian"}}"#).await;
        match status {
            200 => {}
            429 => {
                assert!(text.contains("rate_limited") && text.contains("retry_after_ms"), "{text}");
                refused += 1;
            }
            _ => panic!("{text}"),
        }
    }
    assert!(refused > 0, "six at once, and two a second");
    let client = with_key(node, &made.key);
    let lives = client.list(ListQuery::default()).await.unwrap().len();
    assert_eq!(lives, 6 - refused);
    // The SDK waits as it is told.
    client.create(node.spec()).await.unwrap();
    stop_all(&client).await;
}

async fn names_and_keys_are_of_a_project(node: &Node) {
    project(node, "root/x1", Quota::NONE).await;
    project(node, "root/x2", Quota::NONE).await;
    let (one, two) = (client(node, "root/x1", "*").await, client(node, "root/x2", "*").await);
    let named = SandboxSpec { name: Some("work".into()), ..node.spec() };
    let first = one.create(named.clone()).await.unwrap();
    let second = two.create(named.clone()).await.unwrap();
    refused(one.create(named).await.map(drop), Code::AlreadyExists);
    assert_eq!(one.get("work").await.unwrap().id(), first.id());
    assert_eq!(two.get("work").await.unwrap().id(), second.id());
    let a = one.create_many_keyed(1, node.spec(), "same").next().await.unwrap().unwrap();
    let b = two.create_many_keyed(1, node.spec(), "same").next().await.unwrap().unwrap();
    assert_ne!(a.id(), b.id());
    for client in [one, two] {
        stop_all(&client).await;
    }
}

/// The status of one request.
async fn http(node: &Node, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let access = node.access();
    let address = access.url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    (text[9..12].parse().unwrap(), text)
}

/// The APIs of others let in by the same keys, and see what the keys see.
async fn the_doors_ask_too(node: &Node) {
    project(node, "root/d1", Quota::NONE).await;
    project(node, "root/d2", sandboxes(1)).await;
    let (one, two) = (key(node, "root/d1", "*").await, key(node, "root/d2", "*").await);
    let sandbox = with_key(node, &one.key).create(node.spec()).await.unwrap();
    let id = sandbox.id();
    let key_of = |made: &KeyMade| format!("X-API-Key: {}\r\n", made.key);
    for (made, status) in [(&one, 200), (&two, 404)] {
        let (said, text) = http(node, "GET", &format!("/sandboxes/{id}"), &key_of(made), "").await;
        assert_eq!(said, status, "{text}");
        let (said, text) = http(node, "GET", &format!("/swerex/{id}/is_alive"), &key_of(made), "").await;
        assert_eq!(said, status, "{text}");
    }
    let (_, listed) = http(node, "GET", "/v2/sandboxes", &key_of(&two), "").await;
    assert!(listed.contains("[]") && !listed.contains(id.as_str()), "{listed}");
    let inside =
        |made: &KeyMade| format!("{}E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n", key_of(made));
    let (said, text) = http(node, "GET", "/files?path=/etc/hostname", &inside(&one), "").await;
    assert_eq!(said, 200, "{text}");
    let (said, text) = http(node, "GET", "/files?path=/etc/hostname", &inside(&two), "").await;
    assert_eq!(said, 502, "{text}");
    let (said, _) = http(node, "DELETE", &format!("/sandboxes/{id}"), &key_of(&two), "").await;
    assert_eq!(said, 404);
    // By host name as well, the port first.
    let host =
        |port: u16| format!("GET / HTTP/1.1\r\nHost: {port}-{id}.example.org\r\nConnection: close\r\n");
    for (made, wanted) in [(&one, "hello"), (&two, "502")] {
        let serve = "cd /tmp && mkdir -p w && echo hello > w/index.html && cd w && exec python3 -m http.server 8123 --bind 127.0.0.1";
        if wanted == "hello" {
            sandbox.sh(serve).detach().await.unwrap();
            let up = "for n in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))' && exit; sleep 0.1; done; exit 1";
            assert!(sandbox.sh(up).output().await.unwrap().success());
        }
        let access = node.access();
        let mut stream = TcpStream::connect(access.url.strip_prefix("http://").unwrap()).await.unwrap();
        stream.write_all(format!("{}{}\r\n", host(8123), key_of(made)).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(wanted), "{answer}");
    }
    // A token is for all that there is inside: a key that may not do all of it gets none.
    let (_, whole) = http(node, "GET", &format!("/sandboxes/{id}"), &key_of(&one), "").await;
    assert!(whole.contains(r#""envdAccessToken":""#), "{whole}");
    let viewer = key(node, "root/d1", "viewer,sandbox.exec").await;
    for (method, path) in [("GET", format!("/sandboxes/{id}")), ("POST", format!("/sandboxes/{id}/connect"))]
    {
        let (_, text) = http(node, method, &path, &key_of(&viewer), r#"{"timeout":60}"#).await;
        assert!(!text.contains(r#"Token":""#), "{text}");
    }
    // And it is as good as the project is now.
    let token = whole.split(r#""envdAccessToken":""#).nth(1).unwrap().split('"').next().unwrap();
    let by_token = format!("X-Access-Token: {token}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n");
    let (said, text) = http(node, "GET", "/files?path=/etc/hostname", &by_token, "").await;
    assert_eq!(said, 200, "{text}");
    let narrower = ProjectUpdate { rights: Some("viewer,sandbox.stop".parse().unwrap()), quota: None };
    node.client().projects().update("root/d1", narrower).await.unwrap();
    let (said, text) = http(node, "GET", "/files?path=/etc/hostname", &by_token, "").await;
    assert_eq!(said, 403, "{text}");
    // Quota as well.
    let create = r#"{"templateID":"debian","timeout":60}"#;
    let (said, text) = http(node, "POST", "/sandboxes", &key_of(&two), create).await;
    assert_eq!(said, 201, "{text}");
    let (said, text) = http(node, "POST", "/sandboxes", &key_of(&two), create).await;
    assert_eq!(said, 429, "{text}");
    stop_all(&with_key(node, &two.key)).await;
    sandbox.stop().await.unwrap();
}

fn cli(node: &Node, key: Option<&str>, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = node.cli();
    if let Some(key) = key {
        command.env("DSEC_API_KEY", key).env("DSEC_URL", node.access().url);
    }
    let out = command.args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

async fn the_command_line(node: &Node) {
    let (code, said, error) =
        cli(node, None, &["project", "create", "cli", "--sandboxes", "1", "--memory", "4G"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(said.starts_with("root/cli  pr-"), "{said}");
    assert_eq!(cli(node, None, &["project", "create", "root/cli/run", "--rights", "user"]).0, Some(0));
    let (code, said, error) = cli(
        node,
        None,
        &["key", "create", "cli-worker", "--project", "root/cli/run", "--kind", "agent", "--ttl", "1h"],
    );
    assert_eq!(code, Some(0), "{error}");
    let key = said.trim().to_owned();
    let (code, said, error) = cli(node, Some(&key), &["run", "debian", "--", "echo", "in"]);
    assert_eq!((code, said.as_str()), (Some(0), "in\n"), "{error}");
    let (code, _, error) = cli(node, Some(&key), &["image", "rm", "debian"]);
    assert_eq!(code, Some(125));
    assert!(error.contains("permission_denied") && error.contains("image.write"), "{error}");
    let (_, id, _) = cli(node, Some(&key), &["create", "debian"]);
    let (code, _, error) = cli(node, Some(&key), &["create", "debian"]);
    assert_eq!(code, Some(125));
    assert!(error.contains("`root/cli` may have 1, has 1"), "{error}");
    let (_, listed, _) = cli(node, None, &["project", "ls"]);
    let line = listed.lines().find(|line| line.contains("root/cli/run")).unwrap();
    assert!(line.contains("1 of 1"), "{listed}");
    assert_eq!(cli(node, None, &["project", "set", "root/cli", "--no-quota"]).0, Some(0));
    let (_, shown, _) = cli(node, None, &["project", "show", "root/cli"]);
    assert!(shown.contains(r#""quota": {}"#), "{shown}");
    assert_eq!(cli(node, Some(&key), &["stop", id.trim()]).0, Some(0));
    let (_, keys, _) = cli(node, None, &["key", "ls"]);
    assert!(keys.contains("cli-worker") && keys.contains("agent"), "{keys}");
    assert_eq!(cli(node, None, &["key", "revoke", "cli-worker"]).0, Some(0));
    assert_eq!(cli(node, Some(&key), &["ls"]).0, Some(125));
    assert_eq!(cli(node, None, &["project", "rm", "root/cli/run", "root/cli"]).0, Some(0));
    let (_, audit, _) = cli(node, None, &["audit", "-n", "4"]);
    assert!(audit.contains("project.remove") && audit.contains("root/cli/run"), "{audit}");
}
