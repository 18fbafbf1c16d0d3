//! Raw connections to ports inside.

use api::{Error, Result, arrow::PortStream};
use bytes::{Bytes, BytesMut};
use http::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

use super::ChronusClient;
use crate::PORT_PROTOCOL;

const READ_BYTES: usize = 64 << 10;
/// Chunks in flight each way before the sender waits.
const CHUNKS_IN_FLIGHT: usize = 4;

impl ChronusClient {
    pub(super) async fn dial(&self, port: u16) -> Result<PortStream> {
        let path = self.path(&format!("/ports/{port}/connect"));
        let io = self.origin.upgrade(self.origin.request(Method::GET, path), PORT_PROTOCOL).await?;
        let (mut read, mut write) = tokio::io::split(io);
        let (input, mut from_caller) = mpsc::channel::<Bytes>(CHUNKS_IN_FLIGHT);
        let (to_caller, output) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let origin = self.origin.clone();
        let inward = async move {
            while let Some(mut bytes) = from_caller.recv().await {
                write.write_all_buf(&mut bytes).await?;
                write.flush().await?;
            }
            write.shutdown().await
        };
        // Owns the caller's end, so that the port's end-of-file is the caller's too, whatever the other way does.
        let outward = async move {
            let mut buffer = BytesMut::new();
            loop {
                buffer.reserve(READ_BYTES);
                let read = tokio::select! {
                    read = read.read_buf(&mut buffer) => read,
                    // The caller dropped it: that closes both ways.
                    () = to_caller.closed() => return Err(std::io::ErrorKind::BrokenPipe.into()),
                };
                match read {
                    Ok(0) => return Ok(()),
                    Ok(_) if to_caller.send(Ok(buffer.split().freeze())).await.is_ok() => {}
                    Ok(_) => return Err(std::io::ErrorKind::BrokenPipe.into()),
                    Err(e) => {
                        let error: Error = origin.lost(&e);
                        // The caller may be gone.
                        let _ = to_caller.send(Err(error)).await;
                        return Err(e);
                    }
                }
            }
        };
        tokio::spawn(async move {
            let ended: std::io::Result<((), ())> = tokio::try_join!(inward, outward);
            drop(ended);
        });
        Ok(PortStream { input, output })
    }
}
