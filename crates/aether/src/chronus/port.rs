//! port_dial: a child connects in the sandbox's network and passes the socket back.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use api::{
    Code, Error, Result,
    arrow::{FRAMES_IN_FLIGHT, PortStream},
};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    sync::mpsc,
};

use crate::{
    inside::{Depth, Inside},
    worker::Worker,
};

/// On a loopback only a listener with a full backlog takes longer.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// One read from the port.
const READ_BYTES: usize = 16 << 10;

pub async fn dial(inside: &Inside, port: u16) -> Result<PortStream> {
    if port == 0 {
        return Err(Error::invalid("port: 0 is no port"));
    }
    let mut worker = Worker::run(inside, Depth::Network, None, Vec::new(), |job| {
        let socket = connect(port)?;
        job.answer(&(), &[socket.as_fd()])
    })
    .await?;
    let ((), fds) = worker.answer().await?;
    let fd: OwnedFd = fds.into_iter().next().ok_or_else(|| Error::internal("a port without its socket"))?;
    let fail = |e: std::io::Error| Error::internal(format!("port {port}: {}", e.kind()));
    let socket = TcpStream::from(fd);
    socket.set_nonblocking(true).map_err(fail)?;
    let socket = tokio::net::TcpStream::from_std(socket).map_err(fail)?;
    socket.set_nodelay(true).map_err(fail)?;
    let (read, write) = socket.into_split();
    let (input, bytes_in) = mpsc::channel(FRAMES_IN_FLIGHT);
    let (bytes_out, output) = mpsc::channel(FRAMES_IN_FLIGHT);
    tokio::spawn(relay_in(bytes_in, write));
    tokio::spawn(relay_out(read, bytes_out));
    Ok(PortStream { input, output })
}

fn connect(port: u16) -> Result<TcpStream> {
    let places =
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    for place in places {
        match TcpStream::connect_timeout(&place, CONNECT_DEADLINE) {
            Ok(socket) => return Ok(socket),
            Err(e) if e.kind() == ErrorKind::TimedOut => {
                return Err(Error::new(
                    Code::DeadlineExceeded,
                    format!("port {port} does not accept connections"),
                ));
            }
            Err(_) => {}
        }
    }
    Err(Error::not_found(format!("nothing listens on port {port}")))
}

/// Until the client's side is dropped (half-close) or the port is gone.
async fn relay_in(mut bytes: mpsc::Receiver<Bytes>, mut socket: OwnedWriteHalf) {
    while let Some(data) = bytes.recv().await {
        if socket.write_all(&data).await.is_err() {
            return;
        }
    }
    let _ = socket.shutdown().await;
}

async fn relay_out(mut socket: OwnedReadHalf, bytes: mpsc::Sender<Result<Bytes>>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let read = tokio::select! {
            read = socket.read_buf(&mut buffer) => read,
            () = bytes.closed() => return,
        };
        let item = match read {
            Ok(0) => return,
            Ok(_) => Ok(buffer.split().freeze()),
            Err(_) => Err(Error::new(Code::SandboxBroken, "the connection to the port was reset")),
        };
        let last = item.is_err();
        if bytes.send(item).await.is_err() || last {
            return;
        }
    }
}
