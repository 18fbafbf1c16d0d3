//! Commands through the edge: every byte once, at the client's pace, whoever comes and goes.

use std::time::Duration;

use api::{
    Code, Error, ExecId, SandboxId,
    arrow::Edge,
    exec::{AttachQuery, ExecRequest, ExitReason, SignalRequest, Stdin},
    frame::{ClientFrame, ServerFrame},
    limit,
};
use edge::EdgeNode;
use runtime::fake::Step;

use crate::world::*;

/// What `flood` writes.
fn pattern(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(|o| (o % 251) as u8).collect()
}

fn keyed(key: &str, text: &str) -> ExecRequest {
    ExecRequest { idempotency_key: Some(key.into()), ..ExecRequest::shell(text) }
}

fn from(stdout_offset: u64) -> AttachQuery {
    AttachQuery { stdout_offset, stderr_offset: 0 }
}

async fn ended(node: &EdgeNode, id: &SandboxId, exec: &ExecId) {
    let chronus = inside(node, id).await;
    until("it has ended", async || chronus.exec_inspect(exec.clone()).await.unwrap().exit.is_some()).await;
}

#[tokio::test]
async fn commands_run_and_are_remembered() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let heard = run(&node, &id, ExecRequest::shell("echo a; err b; env FROM; exit 3")).await;
    assert_eq!((heard.text(), &heard.stderr[..]), ("a\nimage\n", &b"b\n"[..]));
    assert_eq!(heard.exit.map(|e| (e.code, e.reason)), Some((3, ExitReason::Exited)));
    let chronus = inside(&node, &id).await;
    let [info] = &chronus.exec_list().await.unwrap()[..] else { panic!() };
    assert_eq!((info.stdout_bytes, info.stderr_bytes, info.exit), (8, 2, heard.exit));
    let again =
        listen(chronus.exec_attach(info.exec_id.clone(), AttachQuery::default()).await.unwrap()).await;
    assert_eq!((again.text(), again.exit), ("a\nimage\n", heard.exit));
    let signal = SignalRequest { signal: 9, tree: false };
    assert_eq!(chronus.exec_signal(info.exec_id.clone(), signal).await.unwrap_err().code, Code::Conflict);
    for error in [
        chronus.exec_inspect(ExecId::new()).await.unwrap_err(),
        chronus.exec_attach(ExecId::new(), AttachQuery::default()).await.err().unwrap(),
        chronus.exec_signal(ExecId::new(), signal).await.unwrap_err(),
    ] {
        assert_eq!(error.code, Code::NotFound);
    }
    let bad = ExecRequest::argv(Vec::<String>::new());
    assert_eq!(chronus.exec(bad).await.err().map(|e| e.code), Some(Code::InvalidArgument));
}

#[tokio::test]
async fn input_signals_and_sizes_reach_the_command() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let request = ExecRequest { stdin: Stdin::Stream, ..ExecRequest::shell("cat; echo end") };
    let stream = start_exec(&node, &id, request).await.unwrap();
    for part in ["x", "y", "z"] {
        stream.input.send(ClientFrame::Stdin(part.into())).await.unwrap();
    }
    stream.input.send(ClientFrame::StdinClose).await.unwrap();
    assert_eq!(listen(stream).await.text(), "xyzend\n");
    let stream = start_exec(&node, &id, ExecRequest::shell("sleep 1000")).await.unwrap();
    // An acknowledgement of a client is none of aether's business, and no end of the stream.
    stream.input.send(ClientFrame::Ack { stdout: u64::MAX, stderr: 0 }).await.unwrap();
    stream.input.send(ClientFrame::Signal(15)).await.unwrap();
    assert_eq!(listen(stream).await.exit.map(|e| (e.code, e.signal)), Some((143, Some(15))));
    let stream = start_exec(&node, &id, ExecRequest::shell("sleep 1000")).await.unwrap();
    let chronus = inside(&node, &id).await;
    chronus.exec_signal(stream.exec_id.clone(), SignalRequest { signal: 9, tree: true }).await.unwrap();
    assert_eq!(listen(stream).await.exit.map(|e| e.code), Some(137));
}

#[tokio::test]
async fn much_input_and_much_output_do_not_wait_for_each_other() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total: u64 = 16 << 20;
    let stream =
        start_exec(&node, &id, ExecRequest { stdin: Stdin::Stream, ..ExecRequest::shell("cat") }).await;
    let stream = stream.unwrap();
    let input = stream.input.clone();
    let feed = tokio::spawn(async move {
        for from in (0..total).step_by(limit::FRAME_BYTES_MAX) {
            let data = pattern(from, from + limit::FRAME_BYTES_MAX as u64);
            input.send(ClientFrame::Stdin(data.into())).await.unwrap();
        }
        input.send(ClientFrame::StdinClose).await.unwrap();
    });
    let heard = listen(stream).await;
    feed.await.unwrap();
    assert!(heard.dropped.is_empty() && heard.stdout == pattern(0, total));
}

#[tokio::test]
async fn an_attached_client_gets_every_byte_of_a_long_output() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total = 3 * (limit::SPOOL_HEAD_BYTES + limit::SPOOL_TAIL_BYTES);
    let heard = run(&node, &id, ExecRequest::shell(format!("flood {total}"))).await;
    assert!(heard.dropped.is_empty());
    assert_eq!(heard.stdout.len() as u64, total);
    assert!(heard.stdout == pattern(0, total));
    assert_eq!(heard.exit.map(|e| e.code), Some(0));
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_command() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total = 64 << 20;
    let stream = start_exec(&node, &id, ExecRequest::shell(format!("flood {total}"))).await.unwrap();
    let chronus = inside(&node, &id).await;
    let exec = stream.exec_id.clone();
    let written = async || chronus.exec_inspect(exec.clone()).await.unwrap().stdout_bytes;
    let mut before = u64::MAX;
    until("it stands still", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = written().await;
        std::mem::replace(&mut before, now) == now
    })
    .await;
    // The lag that is allowed, and what waits in the channel to the client.
    let bound = (1 << 20) + 9 * limit::FRAME_BYTES_MAX as u64;
    assert!(before > 0 && before <= bound, "{before} bytes were taken");
    assert!(world.runtime.bytes_held(&id) <= 2 * limit::AETHER_BUFFER_BYTES as u64);
    let heard = listen(stream).await;
    assert!(heard.dropped.is_empty() && heard.stdout.len() as u64 == total);
}

#[tokio::test]
async fn without_a_client_the_middle_is_dropped_and_told() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total: u64 = 40 << 20;
    let request = ExecRequest { detach: true, ..ExecRequest::shell(format!("flood {total}")) };
    let stream = start_exec(&node, &id, request).await.unwrap();
    let exec = stream.exec_id.clone();
    drop(stream);
    ended(&node, &id, &exec).await;
    let chronus = inside(&node, &id).await;
    let (head, tail) = (limit::SPOOL_HEAD_BYTES, total - limit::SPOOL_TAIL_BYTES);
    let heard = listen(chronus.exec_attach(exec.clone(), AttachQuery::default()).await.unwrap()).await;
    assert_eq!(heard.dropped, [(head, tail - head)]);
    assert!(heard.stdout == [pattern(0, head), pattern(tail, total)].concat());
    for offset in [1, head - 1, head, head + 1, tail - 1, tail, tail + 1, total - 1, total] {
        let heard = listen_from(chronus.exec_attach(exec.clone(), from(offset)).await.unwrap(), offset).await;
        let first = if offset < head { pattern(offset, head) } else { Vec::new() };
        assert!(heard.stdout == [first, pattern(offset.max(tail), total)].concat(), "from {offset}");
        assert!(heard.exit.is_some());
    }
    let spooled: u64 = std::fs::read_dir(world.config.spool_dir.join(id.as_str()))
        .unwrap()
        .map(|f| f.unwrap().metadata().unwrap().len())
        .sum();
    assert!(
        spooled < limit::SPOOL_HEAD_BYTES + limit::SPOOL_TAIL_BYTES + (1 << 20),
        "{spooled} bytes on disk"
    );
}

#[tokio::test]
async fn clients_come_and_go_and_each_sees_all() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total: u64 = 6 << 20;
    let text = format!("flood {total}; sleep 0.05; echo end");
    let mut first = start_exec(&node, &id, ExecRequest::shell(text)).await.unwrap();
    let exec = first.exec_id.clone();
    let chronus = inside(&node, &id).await;
    let mut others = Vec::new();
    for _ in 0..5 {
        let stream = chronus.exec_attach(exec.clone(), AttachQuery::default()).await.unwrap();
        others.push(tokio::spawn(listen(stream)));
    }
    let mut seen = 0;
    while seen < 100_000 {
        if let Some(ServerFrame::Output { data, .. }) = first.output.recv().await {
            seen += data.len() as u64;
        }
    }
    drop(first);
    let rest = listen_from(chronus.exec_attach(exec.clone(), from(seen)).await.unwrap(), seen).await;
    let expected = [pattern(0, total), b"end\n".to_vec()].concat();
    assert!(rest.stdout == expected[seen as usize..]);
    for other in others {
        let heard = other.await.unwrap();
        assert!(heard.dropped.is_empty() && heard.stdout == expected);
        assert_eq!(heard.exit.map(|e| e.code), Some(0));
    }
}

#[tokio::test]
async fn a_lost_connection_to_the_agent_is_not_noticed() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let total: u64 = 4 << 20;
    let request = ExecRequest { stdin: Stdin::Stream, ..ExecRequest::shell(format!("flood {total}; cat")) };
    let stream = start_exec(&node, &id, request).await.unwrap();
    let input = stream.input.clone();
    let heard = tokio::spawn(listen(stream));
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        world.runtime.cut_streams(&id);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    input.send(ClientFrame::Stdin("tail".into())).await.unwrap();
    input.send(ClientFrame::StdinClose).await.unwrap();
    let heard = heard.await.unwrap();
    assert!(heard.stdout == [pattern(0, total), b"tail".to_vec()].concat());
    assert_eq!(heard.exit.map(|e| e.code), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_runs_once_however_often_it_is_sent() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    world.runtime.set_latency_ms(Step::Exec, 20);
    let execs = (0..50).map(|_| {
        let (node, id) = (node.clone(), id.clone());
        tokio::spawn(async move {
            let stream = start_exec(&node, &id, keyed("k", "echo once")).await.unwrap();
            (stream.exec_id.clone(), listen(stream).await)
        })
    });
    let mut ids = Vec::new();
    for result in futures_util::future::join_all(execs).await {
        let (exec, heard) = result.unwrap();
        assert_eq!((heard.text(), heard.exit.map(|e| e.code)), ("once\n", Some(0)));
        ids.push(exec);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(world.runtime.calls(Step::Exec), 1);
    assert_eq!(run(&node, &id, keyed("k", "echo once")).await.text(), "once\n");
    let other = start_exec(&node, &id, keyed("k", "echo twice")).await;
    assert_eq!(other.err().map(|e| e.code), Some(Code::Conflict));
}

#[tokio::test]
async fn a_start_that_fails_frees_its_key_and_its_place() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    world.runtime.fail_next(Step::Exec, 1, Error::new(Code::DiskFull, "x"));
    let failed = start_exec(&node, &id, keyed("k", "echo a")).await;
    assert_eq!(failed.err().map(|e| e.code), Some(Code::DiskFull));
    assert_eq!(node.inspect(&id).await.unwrap().execs_live, 0);
    assert_eq!(run(&node, &id, keyed("k", "echo b")).await.text(), "b\n");
}

#[tokio::test]
async fn a_caller_who_leaves_during_the_start_leaves_a_run_behind() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    world.runtime.set_latency_ms(Step::Exec, 30);
    let impatient =
        tokio::time::timeout(Duration::from_millis(5), start_exec(&node, &id, keyed("k", "echo a")));
    assert!(impatient.await.is_err());
    assert_eq!(run(&node, &id, keyed("k", "echo a")).await.text(), "a\n");
    assert_eq!(world.runtime.calls(Step::Exec), 1);
}

#[tokio::test]
async fn ended_execs_are_forgotten_oldest_first() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let mut execs = Vec::new();
    for n in 0..limit::EXECS_REMEMBERED_MAX + 6 {
        let request =
            if n == 0 { keyed("k", "echo 0") } else { ExecRequest::shell(format!("flood {}", n * 3000)) };
        let stream = start_exec(&node, &id, request).await.unwrap();
        execs.push(stream.exec_id.clone());
        listen(stream).await;
    }
    let chronus = inside(&node, &id).await;
    until("the oldest are forgotten", async || {
        chronus.exec_list().await.unwrap().len() == limit::EXECS_REMEMBERED_MAX
    })
    .await;
    assert_eq!(chronus.exec_inspect(execs[0].clone()).await.unwrap_err().code, Code::NotFound);
    chronus.exec_inspect(execs[6].clone()).await.unwrap();
    let dir = world.config.spool_dir.join(id.as_str());
    until("their files are gone", async || !files(&dir).iter().any(|f| f.starts_with(execs[5].as_str())))
        .await;
    let records = files(&dir).iter().filter(|f| f.ends_with(".json")).count();
    assert_eq!(records, limit::EXECS_REMEMBERED_MAX);
    // Each of the big ones can be read back, from its file.
    let last = listen(chronus.exec_attach(execs[69].clone(), AttachQuery::default()).await.unwrap()).await;
    assert!(last.stdout == pattern(0, 69 * 3000));
    node.stop(&id).await.unwrap();
    world.assert_empty(&node);
}

#[tokio::test]
async fn live_execs_are_bounded() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let mut streams = Vec::new();
    for _ in 0..limit::EXECS_LIVE_MAX {
        streams.push(start_exec(&node, &id, ExecRequest::shell("sleep 1000")).await.unwrap());
    }
    assert_eq!(node.inspect(&id).await.unwrap().execs_live as usize, limit::EXECS_LIVE_MAX);
    let error = start_exec(&node, &id, ExecRequest::shell("true")).await.err().unwrap();
    assert_eq!((error.code, error.retry_after_ms.is_some()), (Code::NoCapacity, true));
    let stops = node.stop(&id);
    let (stopped, heard) =
        tokio::join!(stops, futures_util::future::join_all(streams.into_iter().map(listen)));
    stopped.unwrap();
    assert!(heard.iter().all(|h| h.exit.is_some_and(|e| e.reason == ExitReason::SandboxGone)));
    world.assert_empty(&node);
}

#[tokio::test]
async fn many_short_commands_lose_nothing() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    for n in 0..2000 {
        let heard = run(&node, &id, ExecRequest::shell(format!("echo {n}"))).await;
        assert_eq!((heard.text(), heard.exit.map(|e| e.code)), (&format!("{n}\n")[..], Some(0)));
    }
}

#[tokio::test]
async fn files_are_relayed() {
    let world = World::new();
    let node = world.start().await;
    let id = create(&node, spec()).await.unwrap().id;
    let chronus = inside(&node, &id).await;
    let body = futures_util::stream::iter([Ok("ab".into()), Ok("c".into())]);
    let query = api::file::WriteQuery::new("/d/f");
    assert_eq!(chronus.file_write(query, Box::pin(body)).await.unwrap().size_bytes, 3);
    let stat = chronus.file_stat(api::file::StatQuery::new("/d/f")).await.unwrap();
    assert_eq!(stat.size_bytes, 3);
    let missing = chronus.file_read(api::file::ReadQuery::new("/nosuch")).await;
    assert_eq!(missing.err().map(|e| e.code), Some(Code::NotFound));
    assert_eq!(chronus.port_dial(80).await.err().map(|e| e.code), Some(Code::Unsupported));
}
