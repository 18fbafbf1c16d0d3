//! Servers for the tests, and HTTP by hand for what no decent client would send.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use api::{
    SandboxId,
    arrow::Edge,
    spec::{CreateEvent, CreateRequest, SandboxSpec},
};
use futures_util::StreamExt;
use rpc::{ChronusClient, EdgeClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    sync::oneshot,
    task::JoinHandle,
};

use crate::fake::{FakeChronus, FakeEdge, Inside};

/// An edge on a TCP port, with one sandbox.
pub struct Node {
    pub edge: Arc<FakeEdge>,
    pub address: SocketAddr,
    pub client: EdgeClient,
    pub id: SandboxId,
    pub stop: oneshot::Sender<()>,
    pub server: JoinHandle<std::io::Result<()>>,
}

pub async fn node() -> Node {
    let edge = Arc::new(FakeEdge::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let router = rpc::front_router(edge.clone());
    let server = tokio::spawn(rpc::serve(listener.into(), router, async {
        let _ = stopped.await;
    }));
    let client = EdgeClient::new(&format!("http://{address}"), Some("key")).unwrap();
    let id = create_one(&client).await;
    Node { edge, address, client, id, stop, server }
}

pub async fn create_one(edge: &dyn Edge) -> SandboxId {
    let mut events = edge.create(CreateRequest::one(SandboxSpec::new("debian"))).await.unwrap();
    match events.next().await.unwrap() {
        CreateEvent::Created { sandbox, .. } => sandbox.id,
        CreateEvent::Failed { error, .. } => panic!("{error}"),
    }
}

/// A chronus on a UNIX socket.
pub struct Agent {
    pub inside: Arc<Inside>,
    pub client: ChronusClient,
    pub path: PathBuf,
    pub stop: oneshot::Sender<()>,
    pub server: JoinHandle<std::io::Result<()>>,
    pub directory: tempfile::TempDir,
}

pub fn agent() -> Agent {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chronus.sock");
    let inside = Arc::new(Inside::default());
    let (stop, server) = agent_at(&path, inside.clone());
    Agent { inside, client: ChronusClient::unix(&path), path, stop, server, directory }
}

pub fn agent_at(
    path: &PathBuf,
    inside: Arc<Inside>,
) -> (oneshot::Sender<()>, JoinHandle<std::io::Result<()>>) {
    let listener = UnixListener::bind(path).unwrap();
    let (stop, stopped) = oneshot::channel();
    let router = rpc::chronus_router(Arc::new(FakeChronus(inside)));
    let server = tokio::spawn(rpc::serve(listener.into(), router, async {
        let _ = stopped.await;
    }));
    (stop, server)
}

/// An answer, as it came.
#[derive(Debug)]
pub struct Raw {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Raw {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
    pub fn error(&self) -> api::Error {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.head, String::from_utf8_lossy(&self.body)))
    }
}

/// Sends bytes and reads the answer to the end of the connection.
pub async fn raw(address: SocketAddr, request: &[u8]) -> Raw {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may answer and close before it has read all.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let split = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| {
        panic!(
            "no answer to {:?}: {:?}",
            String::from_utf8_lossy(&request[..request.len().min(200)]),
            answer.len()
        )
    });
    let head = String::from_utf8_lossy(&answer[..split]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Raw { status, head, body: answer[split + 4..].to_vec() }
}

pub fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(body);
    out
}
