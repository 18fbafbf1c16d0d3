//! One verb that has not begun: waited for by the sync face, started on an event loop by the async one.

use std::{
    future::Future,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use libdsec::Result;
use pyo3::{IntoPyObjectExt, exceptions::PyRuntimeError, prelude::*};
use tokio::task::AbortHandle;

use crate::{bridge::Bridge, error, runtime};

/// How long a signal (Ctrl-C) may wait while a call is waited for.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Makes the Python value of an answer, with the GIL held. It is only called where somebody takes the value, so what
/// it takes out of a queue cannot be lost to a caller that has left.
pub(crate) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = BoxFuture<'static, Result<Make>>;

#[pyclass(frozen)]
pub(crate) struct Call(Mutex<State>);

enum State {
    Ready(Work),
    Running(AbortHandle),
    Spent,
}

impl Call {
    pub(crate) fn new<T: Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
        make: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work = work.map(|done| done.map(|value| Box::new(|py: Python<'_>| make(py, value)) as Make));
        Self(Mutex::new(State::Ready(work.boxed())))
    }

    /// Whose answer is nothing.
    pub(crate) fn unit(work: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self::new(work, |py, ()| Ok(py.None()))
    }

    /// Whose answer is JSON: plain data is turned into Python's by Python.
    pub(crate) fn json<T: serde::Serialize + Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        Self::new(work, |py, value| json(&value)?.into_py_any(py))
    }

    fn exchange(&self, next: State) -> State {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), next)
    }

    fn take(&self) -> PyResult<Work> {
        match self.exchange(State::Spent) {
            State::Ready(work) => Ok(work),
            _ => Err(PyRuntimeError::new_err("dsec: this call has been made already")),
        }
    }
}

/// Plain data as JSON text.
pub(crate) fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| PyRuntimeError::new_err(format!("dsec: {e}")))
}

/// The value, or the exception.
pub(crate) fn finish(py: Python<'_>, done: Result<Make>) -> PyResult<Py<PyAny>> {
    match done {
        Ok(make) => make(py),
        Err(e) => Err(error::raise(py, e)),
    }
}

#[pymethods]
impl Call {
    /// Waits for it; a signal's exception ends the waiting, not what was begun.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let shared = runtime::shared()?;
        let work = self.take()?;
        // On the runtime's threads: polled here, it would panic in a daemon thread that outlives the runtime.
        let (done, mut answer) = mpsc::sync_channel(1);
        let task = shared.handle.spawn(async move {
            let _ = done.send(work.await);
        });
        loop {
            let got;
            (answer, got) = py.detach(move || {
                let got = answer.recv_timeout(SIGNALS_EVERY);
                (answer, got)
            });
            match got {
                Ok(done) => return finish(py, done),
                Err(RecvTimeoutError::Timeout) => {
                    py.check_signals().inspect_err(|_| task.abort())?;
                }
                Err(RecvTimeoutError::Disconnected) => return Err(runtime::unanswered(py)),
            }
        }
    }

    /// Begins it; the future of `event_loop` gets its answer.
    fn start<'py>(&self, event_loop: &Bound<'py, PyAny>, bridge: &Bridge) -> PyResult<Bound<'py, PyAny>> {
        let shared = runtime::shared()?;
        let work = self.take()?;
        let future = event_loop.call_method0(pyo3::intern!(event_loop.py(), "create_future"))?;
        let completion = bridge.completion(future.clone().unbind());
        let task = shared.handle.spawn(async move { completion.done(work.await) });
        self.exchange(State::Running(task.abort_handle()));
        Ok(future)
    }

    /// Nobody waits for it any more.
    fn abort(&self) {
        if let State::Running(task) = self.exchange(State::Spent) {
            task.abort();
        }
    }
}
