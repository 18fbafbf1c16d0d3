//! The SDK over HTTP against a server in the same process.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod host;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::StreamExt;
use host::Host;
use libdsec::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn sandbox() -> (Arc<Host>, Client, Sandbox) {
    let host = Host::new();
    let client = Client::new(&host::serve(host.clone()).await, "key").unwrap();
    let sandbox = client.create(SandboxSpec::new("base")).await.unwrap();
    (host, client, sandbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_from_create_to_stop() {
    let (_host, client, sandbox) = sandbox().await;
    assert_eq!(sandbox.info().await.unwrap().state, State::Running);
    assert_eq!(client.list(ListQuery::default()).await.unwrap().len(), 1);
    assert_eq!(client.get(sandbox.id().as_str()).await.unwrap().id(), sandbox.id());
    assert_eq!(sandbox.set_ttl(Duration::from_secs(5)).await.unwrap().expires_ms, 6_000);
    assert_eq!(sandbox.set_ttl(Duration::MAX).await.unwrap_err().code, Code::InvalidArgument);
    sandbox.stop().await.unwrap();
    assert_eq!(sandbox.stop().await.unwrap_err().code, Code::NotFound);
    assert_eq!(sandbox.sh("true").output().await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_as_good_as_ids() {
    let (_host, client, _) = sandbox().await;
    let spec = SandboxSpec { name: Some("work".into()), ..SandboxSpec::new("base") };
    let named = client.create(spec.clone()).await.unwrap();
    assert_eq!(client.get("work").await.unwrap().id(), named.id());
    assert_eq!(client.create(spec).await.unwrap_err().code, Code::AlreadyExists);
    assert_eq!(client.get("play").await.unwrap_err().code, Code::NotFound);
    assert_eq!(client.get("sb-e1-short").await.unwrap_err().code, Code::InvalidArgument);
    assert_eq!(client.get("../x").await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_cut_is_asked_for_again_and_made_once() {
    let (host, client, first) = sandbox().await;
    host.faults.short_creates.store(2, Ordering::SeqCst);
    let batch: Vec<_> = client.create_many(8, SandboxSpec::new("base")).collect().await;
    let mut ids: Vec<_> = batch.into_iter().map(|s| s.unwrap().id().clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
    assert!(!ids.contains(first.id()));
    assert_eq!(host.sandboxes.lock().unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_batch_is_one_error() {
    let (_host, client, _) = sandbox().await;
    let mut none = client.create_many(0, SandboxSpec::new("base"));
    assert_eq!(none.next().await.unwrap().unwrap_err().code, Code::InvalidArgument);
    assert!(none.next().await.is_none());
    assert_eq!(client.create(SandboxSpec::new("nosuch")).await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_say_all_they_have_to_say() {
    let (_host, _, sandbox) = sandbox().await;
    let out = sandbox.sh("echo out; echo err >&2; exit 3").output().await.unwrap();
    assert_eq!(
        (out.stdout_text().as_str(), out.stderr_text().as_str(), out.exit.code),
        ("out\n", "err\n", 3)
    );
    assert!(!out.success());
    let e = out.check().unwrap_err();
    assert!(e.message.contains("code 3") && e.message.contains("err"), "{e}");
    // Cases 14, 15, 34.
    let exec = sandbox.exec(["printf", "%s|", "a b", "$HOME"]);
    assert_eq!(exec.output().await.unwrap().stdout_text(), "a b|$HOME|");
    let value = "a'b\"c$HOME`id`\n2nd";
    let out = sandbox.exec(["printenv", "B"]).env("B", value).output().await.unwrap();
    assert_eq!(out.stdout_text(), format!("{value}\n"));
    assert_eq!(sandbox.sh("cat; echo done").output().await.unwrap().stdout_text(), "done\n");
    let out = sandbox.exec(["nosuch-command"]).output().await.unwrap();
    assert_eq!((out.exit.code, out.exit.reason), (127, ExitReason::NotStarted));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_25_a_timeout_keeps_what_was_written() {
    let (_host, _, sandbox) = sandbox().await;
    let out = sandbox.sh("echo A; sleep 60").timeout(Duration::from_millis(300)).output().await.unwrap();
    assert_eq!((out.stdout_text().as_str(), out.exit.reason), ("A\n", ExitReason::Timeout));
}

#[tokio::test(flavor = "multi_thread")]
async fn case_36_input_of_any_size_arrives_whole() {
    let (_host, _, sandbox) = sandbox().await;
    for size in [0, 5, limit::STDIN_INLINE_BYTES_MAX, limit::STDIN_INLINE_BYTES_MAX + 1, 20 << 20] {
        let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let out = sandbox.exec(["wc", "-c"]).stdin(data).output().await.unwrap();
        assert_eq!(out.stdout_text().trim(), size.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_35_half_close() {
    let (_host, _, sandbox) = sandbox().await;
    let mut process = sandbox.sh("wc -l; echo after").stdin_stream().spawn().await.unwrap();
    let stdin = process.stdin();
    stdin.write("a\nb\n").await.unwrap();
    stdin.close().await.unwrap();
    stdin.close().await.unwrap();
    assert_eq!(stdin.write("c").await.unwrap_err().code, Code::Conflict);
    let mut text = String::new();
    while let Some(event) = process.next_text().await.unwrap() {
        if let TextEvent::Stdout(part) = event {
            text.push_str(&part);
        }
    }
    assert_eq!(text, "2\nafter\n");
    assert_eq!(process.wait().await.unwrap().code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_9_a_character_in_pieces_is_one_character() {
    let (_host, _, sandbox) = sandbox().await;
    let text = r"printf '\342'; sleep 0.1; printf '\211'; sleep 0.1; printf '\244 \342\211'";
    let mut process = sandbox.sh(text).spawn().await.unwrap();
    let mut all = String::new();
    while let Some(event) = process.next_text().await.unwrap() {
        if let TextEvent::Stdout(part) = event {
            all.push_str(&part);
        }
    }
    assert_eq!(all, "≤ \u{fffd}");
    assert_eq!(sandbox.sh(text).output().await.unwrap().stdout.data.0, &b"\xe2\x89\xa4 \xe2\x89"[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_connections_are_not_noticed() {
    let (host, _, sandbox) = sandbox().await;
    host.faults.cut_after_frames.store(3, Ordering::SeqCst);
    host.faults.cuts.store(5, Ordering::SeqCst);
    let out = sandbox.sh("seq 1 5000; echo end >&2").output().await.unwrap();
    let expected: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    assert_eq!(out.stdout_text(), expected);
    assert_eq!(out.stderr_text(), "end\n");
    assert_eq!(out.stdout.bytes_dropped, 0);
    assert_eq!(host.faults.attaches.load(Ordering::SeqCst), 5);
    assert_eq!(host.faults.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_always_cuts_is_left_in_the_end() {
    let (host, _, sandbox) = sandbox().await;
    host.faults.cuts.store(u32::MAX, Ordering::SeqCst);
    let e = sandbox.sh("echo x").output().await.unwrap_err();
    assert_eq!(e.code, Code::Internal);
    assert!(host.faults.attaches.load(Ordering::SeqCst) <= 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_input_is_an_error_and_names_the_exec() {
    let (host, _, sandbox) = sandbox().await;
    host.faults.cuts.store(1, Ordering::SeqCst);
    let mut process = sandbox.sh("head -c 1; sleep 5").stdin_stream().spawn().await.unwrap();
    process.stdin().write("abc").await.unwrap();
    let e = process.wait().await.unwrap_err();
    assert_eq!(e.code, Code::Conflict);
    assert!(e.message.contains(process.exec_id().as_str()), "{e}");
    process.kill().await.unwrap();
    let mut again = sandbox.attach(process.exec_id(), 0, 0).await.unwrap();
    assert_eq!(again.wait().await.unwrap().code, 137);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_whose_answer_was_lost_runs_once() {
    let (host, _, sandbox) = sandbox().await;
    host.faults.lost.store(2, Ordering::SeqCst);
    let out = sandbox.sh("echo once").output().await.unwrap();
    assert_eq!(out.stdout_text(), "once\n");
    assert_eq!(host.faults.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_command_is_found_again() {
    let (_host, _, sandbox) = sandbox().await;
    let id = sandbox.sh("echo early; sleep 0.2; echo late; exit 4").detach().await.unwrap();
    let out = sandbox.attach(&id, 6, 0).await.unwrap().output().await.unwrap();
    assert_eq!((out.stdout_text().as_str(), out.exit.code), ("late\n", 4));
    assert_eq!(sandbox.execs().await.unwrap().len(), 1);
    assert_eq!(sandbox.exec_info(&id).await.unwrap().stdout_bytes, 11);
    assert_eq!(sandbox.exec_info(&ExecId::new()).await.unwrap_err().code, Code::NotFound);
    assert_eq!(sandbox.sh("x").stdin_stream().detach().await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_command() {
    let (_host, _, sandbox) = sandbox().await;
    let mut process = sandbox
        .sh("trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
        .spawn()
        .await
        .unwrap();
    assert_eq!(process.next().await.unwrap(), Some(Event::Stdout("ready\n".into())));
    process.signal(10).await.unwrap();
    assert_eq!(process.signal(0).await.unwrap_err().code, Code::InvalidArgument);
    let events: Vec<_> = process.into_stream().map(|e| e.unwrap()).collect().await;
    assert!(events.contains(&Event::Stdout("got\n".into())));
    assert!(matches!(events.last(), Some(Event::Exit(Exit { code: 9, .. }))));
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_bounded_and_says_so() {
    let (_host, _, sandbox) = sandbox().await;
    let out = sandbox
        .sh("printf 'head'; head -c 100000 /dev/zero; printf 'tail'")
        .output_bytes_max(8)
        .output()
        .await
        .unwrap();
    assert_eq!(out.stdout.data.0, "headtail");
    assert_eq!(
        (out.stdout.bytes_total, out.stdout.bytes_dropped, out.stdout.truncated),
        (100_008, 100_000, true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_in_and_come_out() {
    let (_host, _, sandbox) = sandbox().await;
    let files = sandbox.files();
    for size in [0, 1, 17 << 10, 1 << 20, (16 << 20) + 1] {
        let data: Vec<u8> = (0..size).map(|i| (i * 7 % 256) as u8).collect();
        assert_eq!(files.write("/d/f", data.clone()).await.unwrap().size_bytes, size as u64);
        assert_eq!(files.read("/d/f").await.unwrap(), data);
    }
    files.write("/t", "one ≤").await.unwrap();
    files.append("/t", " two").await.unwrap();
    assert_eq!(files.read_text("/t").await.unwrap(), "one ≤ two");
    assert_eq!(files.read_range("/t", 8, 100).await.unwrap(), "two");
    files.write_from("/r", &b"reader"[..], None).await.unwrap();
    assert_eq!(files.stat("/r").await.unwrap().size_bytes, 6);
    files.rename("/r", "/s").await.unwrap();
    assert_eq!(files.stat("/r").await.unwrap_err().code, Code::NotFound);
    files.mkdir("/m/n").await.unwrap();
    assert_eq!(files.read("/m").await.unwrap_err().code, Code::IsDirectory);
    assert_eq!(files.list("/m").await.unwrap()[0].name.to_text(), "n");
    assert!(files.remove("/m").await.is_err());
    files.remove_all("/m").await.unwrap();
    let event = files.watch("/", false).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(event.kind, WatchKind::Created);
    assert_eq!(files.read("").await.unwrap_err().code, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_leaves_the_file_as_it_was() {
    let (_host, _, sandbox) = sandbox().await;
    sandbox.files().write("/f", "old").await.unwrap();
    let body =
        futures_util::stream::iter([Ok("new".into()), Err(Error::invalid("the source broke"))]).boxed();
    assert!(sandbox.files().write_stream("/f", body).await.is_err());
    assert_eq!(sandbox.files().read("/f").await.unwrap(), "old");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_55_trees_keep_their_shape() {
    let (_host, _, sandbox) = sandbox().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    std::fs::create_dir_all(at("in/文件 报告/deep")).unwrap();
    std::fs::write(at("in/文件 报告/deep/f"), "x".repeat(100_000)).unwrap();
    std::fs::write(at(&format!("in/{}", "n".repeat(255))), "long").unwrap();
    std::os::unix::fs::symlink("../nowhere", at("in/dangling")).unwrap();
    std::fs::write(at("in/run"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(at("in/run"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.files().upload_dir(at("in"), "/up/here").await.unwrap();
    let report = sandbox.files().download_dir("/up/here", at("out")).await.unwrap();
    assert_eq!(report.bytes, 100_000 + 4 + 10);
    let same = std::process::Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([at("in"), at("out")])
        .output()
        .unwrap();
    assert!(same.status.success(), "{same:?}");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(at("out/run")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o755);
    let e = sandbox.files().upload_dir(at("nosuch"), "/x").await.unwrap_err();
    assert!(e.message.contains("nosuch"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_inside_answers() {
    let (_host, _, sandbox) = sandbox().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut echo, _) = listener.accept().await.unwrap();
        let mut data = Vec::new();
        echo.read_to_end(&mut data).await.unwrap();
        echo.write_all(&data).await.unwrap();
        drop(echo);
        let (mut web, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let n = web.read(&mut head).await.unwrap();
        assert!(head[..n].starts_with(b"GET /x?y HTTP/1.1\r\n"));
        web.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
    });
    let mut connection = sandbox.port(port).connect().await.unwrap();
    let sent = vec![7; 300_000];
    connection.write_all(&sent).await.unwrap();
    connection.shutdown().await.unwrap();
    let mut back = Vec::new();
    connection.read_to_end(&mut back).await.unwrap();
    assert_eq!(back, sent);
    let page = sandbox.port(port).get("/x?y").await.unwrap();
    assert_eq!((page.status().as_u16(), &page.body()[..]), (200, &b"hi"[..]));
    server.await.unwrap();
    assert_eq!(sandbox.port(port).connect().await.err().unwrap().code, Code::Conflict);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_imported_with_all_that_a_root_has() {
    let (host, client, _) = sandbox().await;
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    std::fs::create_dir(at("etc")).unwrap();
    std::fs::write(at("etc/a"), "data").unwrap();
    std::fs::hard_link(at("etc/a"), at("etc/b")).unwrap();
    std::os::unix::fs::symlink("a", at("etc/link")).unwrap();
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let query = ImportQuery::new("root", LayerKind::Base);
    let image =
        client.images().import_path(here.path(), query, move |p| sender.send(p).unwrap()).await.unwrap();
    let mut last = None;
    while let Ok(p) = seen.try_recv() {
        last = Some(p);
    }
    assert_eq!(last, Some(Progress { bytes_sent: image.size_bytes, bytes_total: None }));
    let listed = std::process::Command::new("tar")
        .arg("-tvf")
        .arg(host.data.path().join("root.tar"))
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("etc/b link to etc/a") && listed.contains("etc/link -> a"), "{listed}");
    let tar = host.data.path().join("root.tar");
    let query = ImportQuery::new("again", LayerKind::Base);
    let again = client.images().import_path(&tar, query, |_| ()).await.unwrap();
    assert_eq!(again.size_bytes, image.size_bytes);
    assert_eq!(client.images().list().await.unwrap().len(), 3);
    let mut archive = client.images().export("again", libdsec::ExportFormat::Tar).await.unwrap();
    let mut exported = 0;
    while let Some(part) = archive.next().await {
        exported += part.unwrap().len() as u64;
    }
    assert_eq!(exported, image.size_bytes);
    let merged = client.images().merge("again", libdsec::MergeRequest::new("small")).await.unwrap();
    assert_eq!(merged.version, "small");
    client.images().remove("again").await.unwrap();
    assert_eq!(client.images().inspect("again").await.unwrap_err().code, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_survive_a_lost_connection_and_a_dead_server_is_named() {
    let (host, client, _) = sandbox().await;
    host.faults.lost.store(2, Ordering::SeqCst);
    assert_eq!(client.list(ListQuery::default()).await.unwrap().len(), 1);
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let e =
        Client::new(&format!("http://{dead}"), "k").unwrap().list(ListQuery::default()).await.unwrap_err();
    assert!(e.message.contains(&dead.to_string()), "{e}");
    assert_eq!(Client::new("nonsense", "k").err().unwrap().code, Code::InvalidArgument);
}
