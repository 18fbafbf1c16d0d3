//! By standard input and output: one client, which started us, and whose end is our end.
//!
//! Invariant: nothing but the protocol is written to standard output.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use libdsec::{Error, Result};
use rmcp::{service::ServerInitializeError, transport::async_rw::AsyncRwTransport};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::{limit, server::Tools};

/// Serves until the client closes its side, or `stop` is cancelled. Errors: the client does not speak MCP.
pub async fn serve_stdio(tools: &Tools, stop: CancellationToken) -> Result<()> {
    let left = CancellationToken::new();
    let input = UntilEnd { inner: tokio::io::stdin(), ended: left.clone() };
    let transport =
        AsyncRwTransport::new_server(input, tokio::io::stdout()).with_max_line_length(limit::LINE_BYTES_MAX);
    let serving = serve(tools.clone(), transport, stop.child_token());
    let overdue = async {
        tokio::select! {
            () = left.cancelled() => tokio::time::sleep(limit::GRACE).await,
            () = stop.cancelled() => {}
        }
        tools.end_calls();
        // The SDK waits for its last writes, which nobody may be reading.
        tokio::time::sleep(limit::END_WITHIN).await;
    };
    tokio::select! {
        done = serving => done,
        () = overdue => Ok(()),
    }
}

async fn serve<T>(tools: Tools, transport: T, stop: CancellationToken) -> Result<()>
where
    T: rmcp::transport::Transport<rmcp::RoleServer, Error = io::Error> + Send + 'static,
{
    match rmcp::service::serve_server_with_ct(tools, transport, stop).await {
        Ok(running) => {
            running
                .waiting()
                .await
                .map_err(|e| Error::internal(format!("the protocol's loop broke: {e}")))?;
            Ok(())
        }
        // It left, or was made to leave, before it began.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(e) => {
            tracing::debug!(error = ?e, "no handshake");
            Err(Error::invalid("the client does not begin as MCP does"))
        }
    }
}

/// Tells when the input has ended.
struct UntilEnd<R> {
    inner: R,
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for UntilEnd<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let nothing = matches!(&polled, Poll::Ready(Ok(()))) && buffer.filled().len() == before && room > 0;
        if nothing || matches!(&polled, Poll::Ready(Err(_))) {
            self.ended.cancel();
        }
        polled
    }
}
