//! One verb that has not begun: waited for by the sync face, started on an event loop by the async one.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use libdsec::{Error, Result};
use pyo3::{IntoPyObjectExt, exceptions::PyRuntimeError, intern, prelude::*};
use tokio::task::AbortHandle;

use crate::{
    bridge::{Bridge, Completion},
    error, runtime,
};

/// How long a signal (Ctrl-C) may wait while a call is waited for.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Makes the Python value of an answer, with the GIL held. It is only called where somebody takes the value in the same
/// step, so what it takes out of a queue cannot be lost to a caller that has left.
pub(crate) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = BoxFuture<'static, Result<Make>>;

#[pyclass(frozen)]
pub(crate) struct Call(Shared);

type Shared = Arc<Mutex<State>>;

enum State {
    Ready(Work),
    Running(AbortHandle),
    /// On an event loop: there between a future that is done and the task that awaits it lies a turn of the loop, in
    /// which the task may be cancelled. The value waits here until the task goes on.
    Answered(Result<Make>),
    Spent,
}

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the answer of a call on an event loop goes. Dropped without one (a panic), it answers that.
struct Answer {
    state: Shared,
    completion: Option<Completion>,
}

impl Answer {
    fn give(&mut self, answer: Result<Make>) {
        let Some(completion) = self.completion.take() else { return };
        let before = {
            let mut state = lock(&self.state);
            match &*state {
                State::Running(_) => std::mem::replace(&mut *state, State::Answered(answer)),
                // Nobody waits any more.
                _ => State::Answered(answer),
            }
        };
        drop(before);
        completion.done();
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.give(Err(Error::internal("the call was dropped before it was answered")));
    }
}

impl Call {
    pub(crate) fn new<T: Send + 'static>(
        work: impl Future<Output = Result<T>> + Send + 'static,
        make: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let work = work.map(|done| done.map(|value| Box::new(|py: Python<'_>| make(py, value)) as Make));
        Self(Arc::new(Mutex::new(State::Ready(work.boxed()))))
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
        std::mem::replace(&mut *lock(&self.0), next)
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

    /// Begins it; the future of `event_loop` is done when there is an answer to take.
    fn start<'py>(&self, event_loop: &Bound<'py, PyAny>, bridge: &Bridge) -> PyResult<Bound<'py, PyAny>> {
        let shared = runtime::shared()?;
        let future = event_loop.call_method0(intern!(event_loop.py(), "create_future"))?;
        let work = self.take()?;
        let completion = bridge.completion(future.clone().unbind());
        let mut answer = Answer { state: self.0.clone(), completion: Some(completion) };
        // Held, so that a quick answer comes after this.
        let mut state = lock(&self.0);
        let task = shared.handle.spawn(async move { answer.give(work.await) });
        *state = State::Running(task.abort_handle());
        drop(state);
        Ok(future)
    }

    /// The value, or the exception, when the future is done.
    fn answer(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.exchange(State::Spent) {
            State::Answered(answer) => finish(py, answer),
            _ => Err(PyRuntimeError::new_err("dsec: this call has no answer")),
        }
    }

    /// Nobody waits for it any more.
    fn abort(&self) {
        if let State::Running(task) = self.exchange(State::Spent) {
            task.abort();
        }
    }
}
