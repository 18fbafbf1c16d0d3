//! Execs: run, attach, look, signal.
//!
//! Invariant: a client that leaves drops its [`ExecStream`], which detaches. Nothing here kills.

use std::{sync::Arc, time::Duration};

use api::{
    Error, ExecId, Result,
    arrow::{Chronus, ExecStream, FRAMES_IN_FLIGHT},
    exec::{AttachQuery, ExecRequest, ExecResult, OutputQuery, SignalRequest, Stdin},
    frame::{self, ServerFrame},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::mpsc,
    time::timeout,
};

use super::{
    answer::{self, ALIVE_PERIOD},
    call::{Call, to_the_end},
};
use crate::{
    collect::{Gathered, collect},
    frames::{FrameReader, FrameWriter, pump_in},
    route::Reply,
};

/// After the last frame, how long the client may take to hang up.
const LINGER: Duration = Duration::from_secs(5);
/// What is recorded should come without a pause; a longer one means that the counts were wrong.
const RECORDED_PAUSE_MAX: Duration = Duration::from_secs(5);

type To = Arc<dyn Chronus>;

pub(crate) async fn exec(to: To, mut call: Call) -> Reply {
    let upgrade = call.upgrade(frame::PROTOCOL)?;
    let request: ExecRequest = call.json().await?;
    request.validate()?;
    if upgrade.is_none() && request.stdin == Stdin::Stream {
        return Err(Error::invalid("stdin: a stream needs `Upgrade: dsec-frames`").into());
    }
    let (detach, output_bytes_max) = (request.detach, request.output_bytes_max);
    let stream = to_the_end(async move { to.exec(request).await }).await?;
    if let Some(upgrade) = upgrade {
        let stopping = call.stopping();
        return Ok(answer::switch(upgrade, frame::PROTOCOL, |io| relay(io, stream, stopping)));
    }
    let result = if detach {
        Gathered::new(0).finish(stream.exec_id, None)
    } else {
        collect(stream, output_bytes_max).await?
    };
    Ok(answer::json(&result))
}

pub(crate) async fn attach(to: To, mut call: Call) -> Reply {
    let upgrade = call.must_upgrade(frame::PROTOCOL)?;
    let exec_id: ExecId = call.param("exec")?;
    let from: AttachQuery = call.query()?;
    let stream = to.exec_attach(exec_id, from).await?;
    let stopping = call.stopping();
    Ok(answer::switch(upgrade, frame::PROTOCOL, |io| relay(io, stream, stopping)))
}

pub(crate) async fn list(to: To, _: Call) -> Reply {
    Ok(answer::json(&to.exec_list().await?))
}

pub(crate) async fn inspect(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.exec_inspect(call.param("exec")?).await?))
}

pub(crate) async fn output(to: To, call: Call) -> Reply {
    let exec_id: ExecId = call.param("exec")?;
    let query: OutputQuery = call.query()?;
    query.validate()?;
    let info = to.exec_inspect(exec_id.clone()).await?;
    let stream = to.exec_attach(exec_id, AttachQuery::default()).await?;
    let result = if query.wait || info.exit.is_some() {
        collect(stream, query.output_bytes_max).await?
    } else {
        recorded(stream, query.output_bytes_max, (info.stdout_bytes, info.stderr_bytes)).await?
    };
    Ok(answer::json(&result))
}

/// What a running command has written up to the offsets `until`.
async fn recorded(mut stream: ExecStream, output_bytes_max: u64, until: (u64, u64)) -> Result<ExecResult> {
    let mut gathered = Gathered::new(output_bytes_max);
    loop {
        let (stdout, stderr) = gathered.seen();
        if stdout >= until.0 && stderr >= until.1 {
            return Ok(gathered.finish(stream.exec_id, None));
        }
        let Ok(Some(frame)) = timeout(RECORDED_PAUSE_MAX, stream.output.recv()).await else {
            return Ok(gathered.finish(stream.exec_id, None));
        };
        if let Some(exit) = gathered.add(frame)? {
            return Ok(gathered.finish(stream.exec_id, Some(exit)));
        }
    }
}

pub(crate) async fn signal(to: To, mut call: Call) -> Reply {
    let exec_id: ExecId = call.param("exec")?;
    let request: SignalRequest = call.json().await?;
    request.validate()?;
    to_the_end(async move { to.exec_signal(exec_id, request).await }).await?;
    Ok(answer::nothing())
}

/// Frames both ways, until the last one is out, the client is gone, or the server stops.
async fn relay<IO>(io: IO, stream: ExecStream, stopping: impl Future<Output = ()>)
where
    IO: AsyncRead + AsyncWrite + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    let mut reader = FrameReader::new(read);
    let mut writer = FrameWriter::new(write);
    let ExecStream { exec_id, input, output } = stream;
    tokio::select! {
        // The client is gone: dropping the channels detaches.
        () = pump_in(&mut reader, input) => return,
        () = stopping => return,
        () = pump_out(&mut writer, exec_id, output) => {}
    }
    // Closing while the client's bytes lie unread would reset the connection and could take the last frames with it.
    let _ = timeout(LINGER, async {
        if writer.shutdown().await.is_ok() {
            reader.discard().await;
        }
    })
    .await;
}

/// `Started`, then all that comes, then the end; signs of life between. Returns too when the client is gone.
async fn pump_out<W: AsyncWrite + Unpin>(
    writer: &mut FrameWriter<W>,
    exec_id: ExecId,
    mut output: mpsc::Receiver<ServerFrame>,
) {
    let mut frames = vec![ServerFrame::Started(exec_id)];
    let mut ended = false;
    while !ended {
        if writer.write(&mut frames).await.is_err() {
            return;
        }
        let mut came = Vec::with_capacity(FRAMES_IN_FLIGHT);
        match timeout(ALIVE_PERIOD, output.recv_many(&mut came, FRAMES_IN_FLIGHT)).await {
            Err(_) => frames.push(ServerFrame::Alive),
            Ok(0) => return,
            Ok(_) => {
                for frame in came {
                    ended |= matches!(frame, ServerFrame::Exit(_) | ServerFrame::Error(_));
                    if !matches!(frame, ServerFrame::Started(_) | ServerFrame::Alive) {
                        frames.push(frame);
                    }
                    if ended {
                        break;
                    }
                }
            }
        }
    }
    // A failure is a client that is gone: there is nobody to tell.
    let _ = writer.write(&mut frames).await;
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads to the end of the connection and keeps nothing.
    async fn discard(&mut self) {
        let mut scrap = [0; 4096];
        while self.io_mut().read(&mut scrap).await.is_ok_and(|count| count > 0) {}
    }
}
