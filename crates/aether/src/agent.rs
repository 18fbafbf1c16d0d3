//! One agent: waits in forge's pool as little as a process can be, then serves one sandbox.

use std::{io, os::fd::OwnedFd, os::unix::net::UnixListener, sync::Arc};

use api::husk::{ACTIVATION_BYTES_MAX, Activation};
use linux::scm;

use crate::{Service, inside::Inside};

/// Blocks until activated by `forge`, then serves until killed. Ok: forge closed its end before it activated us.
pub fn run(forge: OwnedFd) -> io::Result<()> {
    linux::fork::keep_heap_small();
    // Nothing of us can be traced or read by anyone inside, nor can a child before its execve.
    linux::privilege::set_undumpable()?;
    linux::clone::ensure_single_threaded()?;
    let Some((activation, fds)) = receive(&forge)? else { return Ok(()) };
    let mut fds = fds.into_iter();
    let listener = fds.next().ok_or_else(|| io::Error::other("activation without a listener"))?;
    let inside = Inside::new(activation, fds.collect())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(UnixListener::from(listener), inside, forge))
}

fn receive(forge: &OwnedFd) -> io::Result<Option<(Activation, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; ACTIVATION_BYTES_MAX];
    let (length, fds) = scm::recv(forge, &mut buffer)?;
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&buffer[..length])?, fds)))
}

async fn serve(listener: UnixListener, inside: Inside, forge: OwnedFd) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let router = rpc::chronus_router(Arc::new(Service::new(inside)));
    linux::fork::trim_heap();
    rustix::io::write(&forge, &[1])?;
    drop(forge);
    rpc::serve(rpc::Listener::Unix(listener), router, std::future::pending()).await
}
