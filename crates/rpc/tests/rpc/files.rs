//! Files and tar: exact bytes, any name, no whole file in memory.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use api::{
    Code, Error,
    arrow::{ByteStream, Chronus},
    file::*,
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use rpc::ChronusClient;
use tokio::time::{Duration, sleep};

use crate::wire::{agent, node, raw, request};

fn body(bytes: &[u8]) -> ByteStream {
    let chunks: Vec<_> = bytes.chunks(10_000).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    Box::pin(stream::iter(chunks))
}

async fn read(client: &ChronusClient, query: ReadQuery) -> Result<(FileInfo, Vec<u8>), Error> {
    let file = client.file_read(query).await?;
    let bytes: Vec<Bytes> = file.body.try_collect().await?;
    Ok((file.info, bytes.concat()))
}

/// Cases 49, 50 and 56: sizes, all bytes, names.
#[tokio::test]
async fn what_is_written_is_read_whatever_its_size_or_name() {
    let (node, agent) = (node().await, agent());
    for client in [node.client.sandbox(&node.id), agent.client.clone()] {
        for size in [0, 1, 17 << 10, (1 << 20) + 1, 17 << 20] {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 256) as u8).collect();
            for name in ["/plain", "/文件 报告.txt", "/a&b=c%20+?#\n\"'", "/-\u{1F600}"] {
                let info = client.file_write(WriteQuery::new(name), body(&bytes)).await.unwrap();
                assert_eq!(info.size_bytes, size as u64);
                let (info, back) = read(&client, ReadQuery::new(name)).await.unwrap();
                assert_eq!(info.path.to_text(), name);
                assert!(back == bytes, "{name:?} {size}");
            }
        }
        let part = ReadQuery { offset: 10, length: Some(5), ..ReadQuery::new("/plain") };
        assert_eq!(read(&client, part).await.unwrap().1, (10..15).map(|i| i * 7).collect::<Vec<u8>>());
        let beyond = ReadQuery { offset: 1 << 40, ..ReadQuery::new("/plain") };
        assert!(read(&client, beyond).await.unwrap().1.is_empty());
        assert_eq!(read(&client, ReadQuery::new("/absent")).await.unwrap_err().code, Code::NotFound);
    }
}

#[tokio::test]
async fn a_file_that_changes_is_cut_or_an_error_and_proc_is_whole() {
    let node = node().await;
    let client = node.client.sandbox(&node.id);
    for name in ["/proc", "/shrunk", "/grown"] {
        client.file_write(WriteQuery::new(name), body(&[b'x'; 1000])).await.unwrap();
    }
    assert_eq!(read(&client, ReadQuery::new("/proc")).await.unwrap().1.len(), 1000);
    assert_eq!(read(&client, ReadQuery::new("/grown")).await.unwrap().1.len(), 500);
    assert_eq!(read(&client, ReadQuery::new("/shrunk")).await.unwrap_err().code, Code::Internal);
}

#[tokio::test]
async fn a_download_has_its_headers() {
    let node = node().await;
    let client = node.client.sandbox(&node.id);
    client.file_write(WriteQuery::new("/dir/é \".txt"), body(b"abc")).await.unwrap();
    let path = format!("/v1/sandboxes/{}/files?path=/dir/%C3%A9+%22.txt", node.id);
    let answer = raw(node.address, &request("GET", &path, "", b"")).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"abc"[..]));
    assert_eq!(answer.header("content-length"), Some("3"));
    let disposition = answer.header("content-disposition").unwrap();
    assert!(disposition.ends_with("filename*=UTF-8''%C3%A9%20%22.txt"), "{disposition}");
    let info: FileInfo = serde_json::from_str(answer.header(rpc::FILE_HEADER).unwrap()).unwrap();
    assert_eq!(info.path.to_text(), "/dir/é \".txt");
}

#[tokio::test]
async fn every_other_verb_goes_through() {
    let (node, agent) = (node().await, agent());
    for client in [node.client.sandbox(&node.id), agent.client.clone()] {
        let made =
            client.file_mkdir(MkdirRequest { mode: Some(0o700), ..MkdirRequest::new("/d") }).await.unwrap();
        assert_eq!(made.kind, FileKind::Directory);
        client.file_write(WriteQuery::new("/d/a"), body(b"1")).await.unwrap();
        let moved = MoveRequest { from: "/d/a".into(), to: "/d/b".into(), user: None };
        assert_eq!(client.file_move(moved).await.unwrap().name.to_text(), "b");
        assert_eq!(client.file_stat(StatQuery::new("/d/b")).await.unwrap().size_bytes, 1);
        assert_eq!(client.file_list(FileListQuery::new("/d")).await.unwrap().len(), 2);
        client.file_remove(RemoveQuery::new("/d/b")).await.unwrap();
        assert_eq!(client.file_remove(RemoveQuery::new("/d/b")).await.unwrap_err().code, Code::NotFound);

        let events: Vec<_> = client.file_watch(WatchQuery::new("/d")).await.unwrap().collect().await;
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].as_ref().unwrap().name.0, &[0xff][..]);
        assert_eq!(events[2].as_ref().unwrap_err().code, Code::SandboxGone);

        let tar: Vec<Bytes> = client.tar_get(TarQuery::new("/")).await.unwrap().try_collect().await.unwrap();
        assert_eq!(tar.concat(), b"tarend");
        let report = client.tar_put(TarQuery::new("/"), body(&[1; 1_000_000])).await.unwrap();
        assert_eq!(report.bytes, 1_000_000);
        // A stream that breaks inside is never taken for a whole one.
        let broken = client.tar_get(TarQuery::new("/broken")).await;
        let broken: Result<Vec<Bytes>, Error> = match broken {
            Ok(stream) => stream.try_collect().await,
            Err(e) => Err(e),
        };
        assert!(broken.is_err());
    }
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_no_file() {
    let agent = agent();
    let parts = [Ok(Bytes::from(vec![0; 100_000])), Err(Error::new(Code::DiskFull, "mine"))];
    let error =
        agent.client.file_write(WriteQuery::new("/half"), Box::pin(stream::iter(parts))).await.unwrap_err();
    assert_eq!(error.code, Code::DiskFull);
    agent.client.exec_list().await.unwrap();
    assert!(agent.inside.files.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_upload_waits_for_its_reader() {
    let node = node().await;
    let client = node.client.sandbox(&node.id);
    let sent = Arc::new(AtomicU64::new(0));
    let count = sent.clone();
    let endless = stream::repeat(Bytes::from(vec![0; 64 << 10])).map(move |bytes| {
        count.fetch_add(bytes.len() as u64, SeqCst);
        Ok(bytes)
    });
    let upload =
        tokio::spawn(async move { client.file_write(WriteQuery::new("/stuck"), Box::pin(endless)).await });
    let (mut last, mut still) = (0, 0);
    while still < 20 {
        sleep(Duration::from_millis(10)).await;
        let now = sent.load(SeqCst);
        still = if now == last && now > 0 { still + 1 } else { 0 };
        last = now;
    }
    assert!(last < 32 << 20, "{last} bytes in flight");
    upload.abort();
}
