//! A stream that Python takes item by item, from any task, without losing one to a task that was cancelled.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{Stream, StreamExt, stream::BoxStream};
use libdsec::Result;
use pyo3::{IntoPyObjectExt, prelude::*};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::{call::Call, error};

/// What arrives waits in `ready` until Python takes it with the GIL held; one reader at a time reads on, and only
/// while nothing waits, so `ready` holds no more than there are readers.
pub(crate) struct Feed<T> {
    source: AsyncMutex<Option<BoxStream<'static, Result<T>>>>,
    ready: Mutex<VecDeque<Result<T>>>,
    /// Has no permits and is closed with the feed, which ends a wait that is under way.
    open: Semaphore,
}

/// What a reader takes away.
pub(crate) enum Taken<T> {
    Item(Result<T>),
    /// Another reader was faster: ask again.
    Again,
    End,
}

impl<T: Send + 'static> Feed<T> {
    pub(crate) fn new(source: impl Stream<Item = Result<T>> + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            source: AsyncMutex::new(Some(source.boxed())),
            ready: Mutex::default(),
            open: Semaphore::new(0),
        })
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, VecDeque<Result<T>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to take; false at the end.
    async fn fill(&self) -> bool {
        let mut source = self.source.lock().await;
        if !self.ready().is_empty() {
            return true;
        }
        let Some(stream) = &mut *source else { return false };
        let next = tokio::select! {
            next = stream.next() => next,
            _ = self.open.acquire() => None,
        };
        match next {
            Some(item) => self.ready().push_back(item),
            None => *source = None,
        }
        source.is_some()
    }

    /// The next item as what `make` makes of it; None at the end, False where another reader was faster.
    pub(crate) fn next(
        self: &Arc<Self>,
        make: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Call {
        let feed = self.clone();
        Call::new(
            {
                let feed = feed.clone();
                async move { Ok(feed.fill().await) }
            },
            move |py, more| match feed.take(more) {
                Taken::Item(Ok(item)) => make(py, item),
                Taken::Item(Err(e)) => Err(error::raise(py, e)),
                Taken::Again => false.into_py_any(py),
                Taken::End => Ok(py.None()),
            },
        )
    }

    fn take(&self, more: bool) -> Taken<T> {
        match self.ready().pop_front() {
            Some(item) => Taken::Item(item),
            None if more => Taken::Again,
            None => Taken::End,
        }
    }

    /// Ends it: the source is dropped, and who waits is told the end.
    pub(crate) async fn close(self: Arc<Self>) -> Result<()> {
        self.open.close();
        let source = self.source.lock().await.take();
        drop(source);
        self.ready().clear();
        Ok(())
    }
}
