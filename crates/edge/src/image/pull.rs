//! pull: the catalogue works on a thread that may block, and what it tells comes out as a stream.
//!
//! Invariant: whoever drops the stream ends the pull; the last event, or an error, is never lost to a slow reader.

use std::time::Duration;

use api::{
    Error, Result,
    arrow::BoxStream,
    image::ImageInfo,
    pull::{PullEvent, PullProgress, PullRequest},
};
use futures_util::stream;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::node::EdgeNode;

/// Between two events of progress: more would only be overtaken.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

struct Pulling {
    told: watch::Receiver<PullProgress>,
    shown: PullProgress,
    done: oneshot::Receiver<Result<ImageInfo>>,
    last: Option<Instant>,
    /// How it ended, once that is known: the last progress is told before.
    end: Option<Result<ImageInfo>>,
    ended: bool,
}

impl EdgeNode {
    pub(super) async fn start_pull(&self, request: PullRequest) -> Result<BoxStream<Result<PullEvent>>> {
        request.validate()?;
        self.parts.check_open()?;
        let (progress, told) = watch::channel(PullProgress::default());
        let (send, done) = oneshot::channel();
        let node = Self { parts: self.parts.clone() };
        tokio::spawn(async move {
            let pulled = node.ask(move |layers| layers.pull(&request, &progress)).await;
            if pulled.is_ok() {
                // It may have taken another's name.
                super::sweep(&node.parts).await;
            }
            // Nobody listens where the caller left.
            let _ = send.send(pulled.map(|info| node.counted(info)));
        });
        let mut pulling =
            Pulling { told, shown: PullProgress::default(), done, last: None, end: None, ended: false };
        // What fails before the manifest is known is no event.
        let first = match pulling.next().await {
            Some(Err(error)) => return Err(error),
            first => first,
        };
        let rest = stream::unfold(pulling, |mut pulling| async {
            let event = pulling.next().await?;
            Some((event, pulling))
        });
        Ok(Box::pin(futures_util::StreamExt::chain(stream::iter(first), rest)))
    }
}

impl Pulling {
    async fn next(&mut self) -> Option<Result<PullEvent>> {
        if self.ended {
            return None;
        }
        if self.end.is_none()
            && let Some(progress) = self.progress().await
        {
            return Some(Ok(PullEvent::Progress(progress)));
        }
        self.ended = true;
        self.end.take().map(|end| end.map(PullEvent::Pulled))
    }

    /// None: it has ended, and all was told.
    async fn progress(&mut self) -> Option<PullProgress> {
        let (told, last) = (&mut self.told, self.last);
        let news = async {
            if let Some(last) = last {
                tokio::time::sleep_until(last + PROGRESS_PERIOD).await;
            }
            // Its sender ends with the pull, and then the other branch is ready.
            if told.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            done = &mut self.done => {
                let end = done.unwrap_or_else(|_| Err(Error::internal("the pull was cut off")));
                let is_told = end.is_err() || *self.told.borrow() == self.shown;
                self.end = Some(end);
                if is_told {
                    return None;
                }
            }
            () = news => self.last = Some(Instant::now()),
        }
        self.shown = self.told.borrow_and_update().clone();
        Some(self.shown.clone())
    }
}
