//! A real S3 server on loopback, in this process, until it is dropped.

use std::{net::SocketAddr, sync::Arc};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use object_store::{ObjectStore, aws::AmazonS3Builder};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};

const KEY: &str = "key-of-a-test";

pub struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    pub dir: tempfile::TempDir,
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
        Self { address, task, dir }
    }

    pub fn client(&self, bucket: &str) -> Arc<dyn ObjectStore> {
        let client = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(bucket)
            .with_access_key_id(KEY)
            .with_secret_access_key(KEY)
            .build();
        Arc::new(client.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
