//! Raw connections to ports inside.

use std::sync::Arc;

use api::{
    Error, Result,
    arrow::{Chronus, PortStream},
};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::{answer, call::Call};
use crate::{PORT_PROTOCOL, route::Reply};

const READ_BYTES: usize = 64 << 10;

/// The `{port}` of the path.
pub(crate) fn port_of(call: &Call) -> Result<u16> {
    let port: u16 = call.param("port").map_err(|_| Error::invalid("port: expected 1 to 65535"))?;
    if port == 0 {
        return Err(Error::invalid("port: expected 1 to 65535"));
    }
    Ok(port)
}

pub(crate) async fn dial(to: Arc<dyn Chronus>, mut call: Call) -> Reply {
    let upgrade = call.must_upgrade(PORT_PROTOCOL)?;
    let stream = to.port_dial(port_of(&call)?).await?;
    let stopping = call.stopping();
    Ok(answer::switch(upgrade, PORT_PROTOCOL, |io| async move {
        let (read, write) = tokio::io::split(io);
        let PortStream { input, output } = stream;
        tokio::select! {
            () = stopping => {}
            // Each direction closes alone; a broken one takes the other with it.
            _ = async { tokio::try_join!(inward(read, input), outward(write, output)) } => {}
        }
    }))
}

struct Broken;

/// Bytes from the client, until it half-closes.
async fn inward(mut read: impl AsyncRead + Unpin, input: mpsc::Sender<Bytes>) -> Result<(), Broken> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let count = tokio::select! {
            count = read.read_buf(&mut buffer) => count.map_err(|_| Broken)?,
            // The port takes no more; what it still says goes out.
            () = input.closed() => return Ok(()),
        };
        if count == 0 {
            return Ok(());
        }
        if input.send(buffer.split().freeze()).await.is_err() {
            return Ok(());
        }
    }
}

/// Bytes to the client, until the port closes.
async fn outward(
    mut write: impl AsyncWrite + Unpin,
    mut output: mpsc::Receiver<Result<Bytes>>,
) -> Result<(), Broken> {
    while let Some(bytes) = output.recv().await {
        let mut bytes = bytes.map_err(|_| Broken)?;
        write.write_all_buf(&mut bytes).await.map_err(|_| Broken)?;
        write.flush().await.map_err(|_| Broken)?;
    }
    write.shutdown().await.map_err(|_| Broken)
}
