//! Ports: raw connections, half-close, the HTTP proxy, upgrades through it.

use api::{Code, arrow::Chronus};
use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::wire::{agent, node, raw, request};

/// Takes one connection: reads to the end, then answers with what came, backwards.
async fn reverser() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                all.reverse();
                stream.write_all(&all).await.unwrap();
            });
        }
    });
    port
}

#[tokio::test]
async fn a_half_close_reaches_the_port_and_its_answer_comes_back() {
    let (node, agent) = (node().await, agent());
    let port = reverser().await;
    for client in [node.client.sandbox(&node.id), agent.client.clone()] {
        let mut stream = client.port_dial(port).await.unwrap();
        let bytes: Vec<u8> = (0..2_000_000u32).map(|i| (i % 253) as u8).collect();
        for chunk in bytes.chunks(100_000) {
            stream.input.send(Bytes::copy_from_slice(chunk)).await.unwrap();
        }
        drop(stream.input);
        let mut back = Vec::new();
        while let Some(bytes) = stream.output.recv().await {
            back.extend_from_slice(&bytes.unwrap());
        }
        back.reverse();
        assert!(back == bytes);
        let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        assert_eq!(client.port_dial(refused).await.err().unwrap().code, Code::NotFound);
    }
}

#[tokio::test]
async fn dropping_the_output_closes_the_connection() {
    let agent = agent();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = agent.client.port_dial(listener.local_addr().unwrap().port()).await.unwrap();
    let (mut inside, _) = listener.accept().await.unwrap();
    drop(stream.output);
    assert_eq!(inside.read(&mut [0; 8]).await.unwrap(), 0);
    drop(stream.input);
}

#[tokio::test]
async fn the_ports_end_of_file_comes_while_the_callers_side_is_open() {
    let (node, agent) = (node().await, agent());
    for client in [node.client.sandbox(&node.id), agent.client.clone()] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = client.port_dial(listener.local_addr().unwrap().port()).await.unwrap();
        let (mut inside, _) = listener.accept().await.unwrap();
        inside.write_all(b"bye").await.unwrap();
        drop(inside);
        let mut back = Vec::new();
        while let Some(bytes) = stream.output.recv().await {
            back.extend_from_slice(&bytes.unwrap());
        }
        assert_eq!(back, b"bye");
        drop(stream.input);
    }
}

/// An HTTP server that says what it was asked; on `/ws` it switches and echoes.
async fn http_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let text = String::from_utf8(head).unwrap();
                if text.starts_with("GET /ws ") {
                    let answer =
                        "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                    return;
                }
                let length = text
                    .lines()
                    .find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                stream.read_exact(&mut body).await.unwrap();
                let mut answer = text.into_bytes();
                answer.extend_from_slice(&body);
                let head = format!(
                    "HTTP/1.1 418 Teapot\r\nx-mine: 1\r\nconnection: close, x-hop\r\nx-hop: 1\r\ncontent-length: {}\r\n\r\n",
                    answer.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            });
        }
    });
    port
}

#[tokio::test]
async fn http_goes_through_to_a_port_untouched() {
    let node = node().await;
    let port = http_server().await;
    let mount = format!("/v1/sandboxes/{}/ports/{port}/http", node.id);
    let headers = "x-mine: é\r\nx-api-key: secret\r\nte: gzip\r\nauthorization: Bearer of-the-app\r\n";
    let answer =
        raw(node.address, &request("PATCH", &format!("{mount}/a%2Fb/%2e?q=%20&r"), headers, b"body")).await;
    assert_eq!((answer.status, answer.header("x-mine"), answer.header("x-hop")), (418, Some("1"), None));
    let seen = String::from_utf8(answer.body).unwrap();
    assert!(seen.starts_with("PATCH /a%2Fb/%2e?q=%20&r HTTP/1.1\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\nbody"), "{seen}");
    let lower = seen.to_lowercase();
    for there in [
        "x-mine: é",
        &format!("host: localhost:{port}"),
        "authorization: bearer of-the-app",
        "x-forwarded-host: x",
        "x-forwarded-prefix: /v1/",
    ] {
        assert!(lower.contains(there), "{there}: {seen}");
    }
    assert!(!lower.contains("secret") && !lower.contains("\nte:"), "{seen}");
    for (path, inside) in [("", "/"), ("/", "/"), ("?x=1", "/?x=1")] {
        let answer = raw(node.address, &request("GET", &format!("{mount}{path}"), "", b"")).await;
        let seen = String::from_utf8(answer.body).unwrap();
        assert!(seen.starts_with(&format!("GET {inside} HTTP")), "{path}: {seen}");
    }
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let answer = raw(
        node.address,
        &request("GET", &format!("/v1/sandboxes/{}/ports/{silent}/http/", node.id), "", b""),
    )
    .await;
    assert_eq!((answer.status, answer.error().code), (404, Code::NotFound));
}

#[tokio::test]
async fn an_upgrade_goes_through_the_proxy() {
    let node = node().await;
    let port = http_server().await;
    let mut socket = TcpStream::connect(node.address).await.unwrap();
    let head = format!(
        "GET /v1/sandboxes/{}/ports/{port}/http/ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
        node.id
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 101") && answer.contains("upgrade: websocket"), "{answer}");
    socket.write_all(b"ping").await.unwrap();
    let mut back = [0; 4];
    socket.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"ping");
}
