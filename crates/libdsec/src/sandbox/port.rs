//! port: TCP to a server inside a sandbox, on its loopback. No network of the sandbox is needed for it.

use std::time::Duration;

use api::{Code, Error, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rpc::PortConnection;

use super::Sandbox;

/// The most that [`Port::get`] takes into memory.
const GET_BYTES_MAX: usize = 64 << 20;
const GET_WITHIN: Duration = Duration::from_secs(60);

impl Sandbox {
    /// A port on the sandbox's loopback.
    ///
    /// ```no_run
    /// # async fn demo(sandbox: libdsec::Sandbox) -> libdsec::Result<()> {
    /// let page = sandbox.port(8000).get("/").await?;
    /// println!("{} {}", page.status(), String::from_utf8_lossy(page.body()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn port(&self, port: u16) -> Port {
        Port { sandbox: self.clone(), port }
    }
}

#[derive(Clone, Debug)]
pub struct Port {
    sandbox: Sandbox,
    port: u16,
}

impl Port {
    /// Dials it. Errors: `not_found` or `conflict` where nothing listens.
    pub async fn connect(&self) -> Result<PortConnection> {
        let stream = self.sandbox.chronus().await?.port_dial(self.port).await?;
        Ok(stream.into())
    }

    /// `GET` over HTTP/1.1, with the whole answer in memory: at most 64 MiB, within a minute.
    pub async fn get(&self, path: &str) -> Result<http::Response<Bytes>> {
        tokio::time::timeout(GET_WITHIN, self.get_unbounded(path)).await.map_err(|_| {
            Error::new(Code::DeadlineExceeded, "the server inside did not answer within a minute")
        })?
    }

    async fn get_unbounded(&self, path: &str) -> Result<http::Response<Bytes>> {
        let failed = |e: &dyn std::fmt::Display| {
            Error::new(Code::SandboxBroken, format!("HTTP with the server at port {}: {e}", self.port))
        };
        let request = http::Request::get(path)
            .header(http::header::HOST, format!("localhost:{}", self.port))
            .header(http::header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|e| Error::invalid(format!("path: {e}")))?;
        let io = TokioIo::new(self.connect().await?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(io).await.map_err(|e| failed(&e))?;
        let exchange = async {
            let (head, body) = sender.send_request(request).await.map_err(|e| failed(&e))?.into_parts();
            let body = Limited::new(body, GET_BYTES_MAX).collect().await.map_err(|e| failed(&e))?;
            Ok(http::Response::from_parts(head, body.to_bytes()))
        };
        tokio::pin!(exchange, connection);
        tokio::select! {
            done = &mut exchange => done,
            // The connection may end with its last bytes still to be taken.
            _ = &mut connection => exchange.await,
        }
    }
}
