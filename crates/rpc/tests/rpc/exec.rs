//! Execs: plain, upgraded, detached, attached again; back-pressure; disconnects.

use std::sync::atomic::Ordering::SeqCst;

use api::{
    Code, ExecId,
    arrow::{Chronus, ExecStream},
    exec::{AttachQuery, ExecRequest, ExecResult, ExitReason, OutputQuery, PtySize, SignalRequest, Stdin},
    frame::{ClientFrame, ServerFrame},
};
use bytes::Bytes;
use rpc::{ChronusClient, collect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Duration, sleep},
};

use crate::wire::{agent, agent_at, node, raw, request};

/// Waits for what must come; the test harness bounds it.
async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(2)).await;
    }
}

async fn text(client: &ChronusClient, request: ExecRequest) -> ExecResult {
    collect(client.exec(request).await.unwrap(), 1 << 20).await.unwrap()
}

#[tokio::test]
async fn a_command_runs_over_both_kinds_of_socket() {
    let (node, agent) = (node().await, agent());
    for client in [node.client.sandbox(&node.id), agent.client.clone()] {
        let result = text(&client, ExecRequest::argv(["echo", "hi", "there"])).await;
        assert_eq!(result.stdout.data.to_text(), "hi there\n");
        assert_eq!(result.exit.unwrap().reason, ExitReason::Exited);
        let with_input =
            ExecRequest { stdin: Stdin::Data(vec![0xff, 0].into()), ..ExecRequest::argv(["true"]) };
        assert_eq!(text(&client, with_input).await.stdout.data.0, &[0xff, 0][..]);
    }
}

#[tokio::test]
async fn plain_http_answers_with_the_result_and_cuts_the_middle() {
    let node = node().await;
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    let body = br#"{"command":["flood","1000000"],"output_bytes_max":1000}"#;
    let answer = raw(node.address, &request("POST", &path, "", body)).await;
    let result: ExecResult = serde_json::from_slice(&answer.body).unwrap();
    let out = result.stdout;
    assert_eq!((answer.status, out.data.0.len(), out.bytes_total), (200, 1000, 1_000_000));
    assert_eq!((out.truncated, out.bytes_dropped, out.dropped_at), (true, 999_000, 500));
}

#[tokio::test]
async fn a_detached_command_is_found_again() {
    let node = node().await;
    let client = node.client.sandbox(&node.id);
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    let body = br#"{"command":["sleep"],"detach":true,"stdin":{"data":"first"}}"#;
    let answer = raw(node.address, &request("POST", &path, "", body)).await;
    let started: ExecResult = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(started.exit, None);
    let id = started.exec_id;
    until(|| node.edge.inside.attached.load(SeqCst) == 0).await;

    while client.exec_inspect(id.clone()).await.unwrap().stdout_bytes < 5 {
        sleep(Duration::from_millis(1)).await;
    }
    let so_far = client.exec_output(&id, OutputQuery::default()).await.unwrap();
    assert_eq!((so_far.exit, so_far.stdout.data.to_text().as_str()), (None, "first"));
    assert_eq!(client.exec_list().await.unwrap()[0].exec_id, id);
    client.exec_signal(id.clone(), SignalRequest { signal: 15, tree: true }).await.unwrap();
    let query = OutputQuery { wait: true, ..OutputQuery::default() };
    let ended = client.exec_output(&id, query).await.unwrap();
    assert_eq!((ended.exit.unwrap().code, ended.stdout.data.to_text().as_str()), (143, "first"));

    // From an offset on.
    let from = AttachQuery { stdout_offset: 3, stderr_offset: 0 };
    let mut stream = client.exec_attach(id.clone(), from).await.unwrap();
    assert_eq!(stream.exec_id, id);
    match stream.output.recv().await.unwrap() {
        ServerFrame::Output { offset: 3, data, .. } => assert_eq!(data, "st"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(stream.output.recv().await, Some(ServerFrame::Exit(_))));
    assert!(stream.output.recv().await.is_none());
    assert_eq!(client.exec_attach(ExecId::new(), from).await.err().unwrap().code, Code::NotFound);
}

#[tokio::test]
async fn input_streams_in_and_its_end_is_not_the_end_of_output() {
    let (node, agent) = (node().await, agent());
    for (client, inside) in
        [(node.client.sandbox(&node.id), &node.edge.inside), (agent.client.clone(), &agent.inside)]
    {
        let request = ExecRequest { stdin: Stdin::Stream, ..ExecRequest::argv(["cat"]) };
        let ExecStream { exec_id, input, output } = client.exec(request).await.unwrap();
        let big = Bytes::from((0..3_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        // Over the limit of one frame: cut on the way.
        let sent = big.clone();
        let write = async move {
            input.send(ClientFrame::Resize(PtySize { rows: 30, cols: 100 })).await.unwrap();
            input.send(ClientFrame::Stdin(sent)).await.unwrap();
            input.send(ClientFrame::StdinClose).await.unwrap();
            input
        };
        let read = collect(ExecStream { exec_id, input: tokio::sync::mpsc::channel(1).0, output }, 8 << 20);
        let (_input, result) = tokio::join!(write, read);
        let out = result.unwrap().stdout.data.0;
        assert_eq!((out.len(), &out[big.len()..]), (big.len() + 5, &b"<eof>"[..]));
        assert_eq!(&out[..big.len()], &big[..]);
        assert!(matches!(
            inside.control.lock().unwrap()[..],
            [ClientFrame::Resize(PtySize { rows: 30, cols: 100 })]
        ));
    }
}

#[tokio::test]
async fn a_disconnect_detaches_and_does_not_kill() {
    let node = node().await;
    let client = node.client.sandbox(&node.id);
    let request_ = ExecRequest { stdin: Stdin::Stream, ..ExecRequest::argv(["cat"]) };
    let stream = client.exec(request_).await.unwrap();
    let id = stream.exec_id.clone();
    stream.input.send(ClientFrame::Stdin("a".into())).await.unwrap();
    until(|| node.edge.inside.attached.load(SeqCst) == 1).await;
    drop(stream);
    until(|| node.edge.inside.attached.load(SeqCst) == 0).await;
    assert_eq!(client.exec_inspect(id.clone()).await.unwrap().exit, None, "it goes on");
    // Attached again it takes more input.
    let stream = client.exec_attach(id, AttachQuery::default()).await.unwrap();
    stream.input.send(ClientFrame::Stdin("b".into())).await.unwrap();
    stream.input.send(ClientFrame::StdinClose).await.unwrap();
    assert_eq!(collect(stream, 100).await.unwrap().stdout.data.to_text(), "ab<eof>");

    // The same with plain HTTP: the client leaves while it waits.
    let mut socket = TcpStream::connect(node.address).await.unwrap();
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    socket.write_all(&request("POST", &path, "", br#"{"command":["sleep"]}"#)).await.unwrap();
    until(|| node.edge.inside.attached.load(SeqCst) == 1).await;
    drop(socket);
    until(|| node.edge.inside.attached.load(SeqCst) == 0).await;
    let running = client.exec_list().await.unwrap().into_iter().filter(|e| e.exit.is_none()).count();
    assert_eq!(running, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_stops_the_writer() {
    const TOTAL: u64 = 256 << 20;
    let (node, agent) = (node().await, agent());
    for (client, inside) in
        [(node.client.sandbox(&node.id), &node.edge.inside), (agent.client.clone(), &agent.inside)]
    {
        let mut stream = client.exec(ExecRequest::argv(["flood", &TOTAL.to_string()])).await.unwrap();
        // The writer stands when its count does not move any more.
        let (mut last, mut still) = (0, 0);
        while still < 20 {
            sleep(Duration::from_millis(10)).await;
            let now = inside.flooded.load(SeqCst);
            still = if now == last && now > 0 { still + 1 } else { 0 };
            last = now;
        }
        assert!(last < 32 << 20, "{last} bytes in flight");
        let mut total = 0;
        while let Some(frame) = stream.output.recv().await {
            match frame {
                ServerFrame::Output { offset, data, .. } => {
                    assert_eq!(offset, total);
                    total += data.len() as u64;
                }
                ServerFrame::Exit(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(total, TOTAL);
    }
}

#[tokio::test]
async fn a_dead_agent_is_a_broken_sandbox() {
    let agent = agent();
    let request_ = ExecRequest { stdin: Stdin::Stream, ..ExecRequest::argv(["cat"]) };
    let mut stream = agent.client.exec(request_).await.unwrap();
    agent.client.exec_list().await.unwrap();
    agent.stop.send(()).unwrap();
    agent.server.await.unwrap().unwrap();
    match stream.output.recv().await.unwrap() {
        ServerFrame::Error(e) => assert_eq!(e.code, Code::SandboxBroken),
        other => panic!("{other:?}"),
    }
    let exec = agent.client.exec(ExecRequest::shell("x")).await.err().unwrap();
    let list = agent.client.exec_list().await.unwrap_err();
    assert_eq!((exec.code, list.code), (Code::SandboxBroken, Code::SandboxBroken));
    // One that comes back on the same path is found, whatever the pool still holds.
    std::fs::remove_file(&agent.path).unwrap();
    let (_stop, _server) = agent_at(&agent.path, agent.inside.clone());
    assert_eq!(agent.client.exec_list().await.unwrap().len(), 1);
    drop(agent.directory);
}

#[tokio::test]
async fn hostile_frames_end_the_stream_and_not_the_command() {
    let node = node().await;
    for garbage in [&b"\x40\xff\xff\xff\xff"[..], b"\x00\x00\x00\x00\x00", b"\x42\x00\x00\x00\x01x"] {
        let mut socket = TcpStream::connect(node.address).await.unwrap();
        let head = format!(
            "POST /v1/sandboxes/{}/exec HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: dsec-frames\r\ncontent-length: 36\r\n\r\n",
            node.id
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(br#"{"command":["cat"],"stdin":"stream"}"#).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = socket.read(&mut answer).await.unwrap();
        assert!(
            answer[..count].starts_with(b"HTTP/1.1 101"),
            "{}",
            String::from_utf8_lossy(&answer[..count])
        );
        until(|| node.edge.inside.attached.load(SeqCst) == 1).await;
        socket.write_all(garbage).await.unwrap();
        until(|| node.edge.inside.attached.load(SeqCst) == 0).await;
    }
    let execs = node.client.sandbox(&node.id).exec_list().await.unwrap();
    assert_eq!(execs.iter().filter(|e| e.exit.is_none()).count(), 3);
}

#[tokio::test]
async fn another_upgrade_is_refused() {
    let node = node().await;
    let path = format!("/v1/sandboxes/{}/exec", node.id);
    let answer =
        raw(node.address, &request("POST", &path, "upgrade: websocket\r\n", br#"{"command":"x"}"#)).await;
    assert_eq!((answer.status, answer.error().code), (400, Code::InvalidArgument));
}
