//! A real S3 server on loopback, in this process, until it is dropped.

use std::net::SocketAddr;

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};

pub const KEY: &str = "key-of-a-test";

pub struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Server {
    /// With one bucket.
    pub async fn start(bucket: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(bucket)).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, KEY));
        let service = service.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let serving = Builder::new(TokioExecutor::new());
                    let _ = serving.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { address, task, _dir: dir }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
