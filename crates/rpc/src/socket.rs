//! What every TCP connection is set to, on both sides.

use std::time::Duration;

/// No waiting for full packets, and a dead peer is found within minutes.
pub(crate) fn tune(stream: &tokio::net::TcpStream) {
    use rustix::net::sockopt;
    let tuned = stream
        .set_nodelay(true)
        .and_then(|()| Ok(sockopt::set_socket_keepalive(stream, true)?))
        .and_then(|()| Ok(sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?))
        .and_then(|()| Ok(sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?))
        .and_then(|()| Ok(sockopt::set_tcp_keepcnt(stream, 4)?));
    if let Err(e) = tuned {
        tracing::debug!(error = %e, "a connection could not be tuned");
    }
}
