//! A real S3 server on loopback, on threads of its own, until it is dropped.

use std::net::SocketAddr;

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};

pub const KEY: &str = "key-of-a-test";

pub struct Server {
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
    _dir: tempfile::TempDir,
}

impl Server {
    /// With one bucket.
    pub fn start(bucket: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(bucket)).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, KEY));
        let service = service.build();
        // A runtime of its own: tests block theirs while a command runs that asks us.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let serving = Builder::new(TokioExecutor::new());
                    let _ = serving.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { address, runtime: Some(runtime), _dir: dir }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
