//! Execs over an upgraded connection of their own.

use std::time::Duration;

use api::{
    Code, Error, ExecId, Result,
    arrow::{ExecStream, FRAMES_IN_FLIGHT},
    exec::{AttachQuery, ExecInfo, ExecRequest, ExecResult, OutputQuery, SignalRequest},
    frame::{self, ServerFrame},
};
use http::{Method, Request};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::mpsc,
    time::timeout,
};

use super::{
    ChronusClient,
    body::Body,
    origin::{DEADLINE, NO_DEADLINE, Origin},
};
use crate::frames::{FrameReader, FrameWriter, ReadEnd};

/// The server gives a sign of life every 15 s; after four that did not come it is gone.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// For what is queued when the caller leaves.
const LINGER: Duration = Duration::from_secs(5);

type Reader = FrameReader<ReadHalf<TokioIo<Upgraded>>>;
type Writer = FrameWriter<WriteHalf<TokioIo<Upgraded>>>;

impl ChronusClient {
    #[tracing::instrument(level = "debug", name = "rpc.call.exec", skip_all)]
    pub(super) async fn exec_start(&self, request: ExecRequest) -> Result<ExecStream> {
        request.validate()?;
        let request = self.origin.request_json(Method::POST, self.path("/exec"), &request)?;
        self.framed(request).await
    }

    pub(super) async fn attach(&self, exec_id: &ExecId, from: AttachQuery) -> Result<ExecStream> {
        let path = self.path_query(&format!("/execs/{exec_id}/attach"), &from)?;
        self.framed(self.origin.request(Method::GET, path)).await
    }

    async fn framed(&self, request: Request<Body>) -> Result<ExecStream> {
        let io = self.origin.upgrade(request, frame::PROTOCOL).await?;
        let (read, write) = tokio::io::split(io);
        let mut reader = FrameReader::new(read);
        let exec_id = match timeout(DEADLINE, reader.next::<ServerFrame>()).await {
            Ok(Ok(ServerFrame::Started(id))) => id,
            Ok(Ok(ServerFrame::Error(e)) | Err(ReadEnd::Bad(e))) => return Err(e),
            _ => return Err(self.origin.ended("the command had started")),
        };
        let (input, from_caller) = mpsc::channel(FRAMES_IN_FLIGHT);
        let (to_caller, output) = mpsc::channel(FRAMES_IN_FLIGHT);
        let attached = Attached { reader, writer: FrameWriter::new(write), origin: self.origin.clone() };
        tokio::spawn(attached.run(from_caller, to_caller));
        Ok(ExecStream { exec_id, input, output })
    }

    pub(super) async fn execs(&self) -> Result<Vec<ExecInfo>> {
        self.origin.json(self.origin.request(Method::GET, self.path("/execs")), DEADLINE).await
    }

    pub(super) async fn exec_info(&self, exec_id: &ExecId) -> Result<ExecInfo> {
        let path = self.path(&format!("/execs/{exec_id}"));
        self.origin.json(self.origin.request(Method::GET, path), DEADLINE).await
    }

    pub(super) async fn send_signal(&self, exec_id: &ExecId, request: SignalRequest) -> Result<()> {
        let path = self.path(&format!("/execs/{exec_id}/signal"));
        self.origin.done(self.origin.request_json(Method::POST, path, &request)?, DEADLINE).await
    }

    /// What an exec has written so far, or with `wait` all of it when it has ended.
    pub async fn exec_output(&self, exec_id: &ExecId, query: OutputQuery) -> Result<ExecResult> {
        query.validate()?;
        let path = self.path_query(&format!("/execs/{exec_id}/output"), &query)?;
        let deadline = if query.wait { NO_DEADLINE } else { DEADLINE };
        self.origin.json(self.origin.request(Method::GET, path), deadline).await
    }
}

/// The client's end of one attached exec. One task; it ends when either side does.
struct Attached {
    reader: Reader,
    writer: Writer,
    origin: Origin,
}

impl Attached {
    async fn run(
        self,
        mut from_caller: mpsc::Receiver<frame::ClientFrame>,
        to_caller: mpsc::Sender<ServerFrame>,
    ) {
        let Self { mut reader, mut writer, origin } = self;
        let write = async {
            // A failure shows on the reading side too, after the frames that are still on the way.
            if writer.pump(&mut from_caller, to_caller.closed()).await.is_ok() && to_caller.is_closed() {
                let _ = writer.shutdown().await;
                return;
            }
            // The caller says no more, but it listens.
            std::future::pending().await
        };
        let detached = async {
            to_caller.closed().await;
            // What the caller sent before it left goes out.
            tokio::time::sleep(LINGER).await;
        };
        tokio::select! {
            () = read_out(&mut reader, &origin, &to_caller) => {}
            () = write => {}
            () = detached => {}
        }
    }
}

/// Hands frames to the caller until the last one.
async fn read_out(reader: &mut Reader, origin: &Origin, to_caller: &mpsc::Sender<ServerFrame>) {
    loop {
        let frame = match timeout(SILENCE_MAX, reader.next::<ServerFrame>()).await {
            Ok(Ok(ServerFrame::Alive | ServerFrame::Started(_))) => continue,
            Ok(Ok(frame)) => frame,
            Ok(Err(ReadEnd::Closed)) => {
                ServerFrame::Error(origin.ended("the command's exit; attach to it again"))
            }
            Ok(Err(ReadEnd::Bad(e))) => ServerFrame::Error(e),
            Err(_) => ServerFrame::Error(Error::new(
                Code::DeadlineExceeded,
                format!("nothing came for {} s; attach to the command again", SILENCE_MAX.as_secs()),
            )),
        };
        let last = matches!(frame, ServerFrame::Exit(_) | ServerFrame::Error(_));
        if to_caller.send(frame).await.is_err() {
            // It has left; the writing side ends this.
            std::future::pending::<()>().await;
        }
        if last {
            return;
        }
    }
}
