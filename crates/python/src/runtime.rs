//! The one tokio runtime of the process, started by the first call, ended by `atexit`.
//!
//! **fork.** A child has the parent's memory but none of its threads, and shares its epoll and sockets. So what belongs
//! to a runtime carries the id of its process; in a child it is left as it is, never dropped (a drop would take the
//! parent's sockets out of the shared epoll), and made anew. The locks here are only taken by threads that hold the
//! GIL, as the one that forks does: a child never finds one locked.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
};

const WORKERS_MIN: usize = 2;
const WORKERS_MAX: usize = 4;
/// Execs that are being started at once. Each takes a connection: more would overrun the server's listen queue, and
/// wait there for the seconds that TCP takes to try again.
const STARTS_MAX: usize = 128;
/// At exit, for sandboxes that nobody holds to be stopped.
const ORPHANS_WITHIN: Duration = Duration::from_secs(5);
/// At exit, for a poll that is under way.
const END_WITHIN: Duration = Duration::from_millis(500);

static RUNNING: Mutex<State> = Mutex::new(State::None);

enum State {
    None,
    Running(u32, Runtime, Shared),
    Ended,
}

/// What calls need of the runtime.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    /// A permit for each exec that is being started.
    pub(crate) starts: Arc<Semaphore>,
    /// Sandboxes that are being stopped because nobody holds them.
    pub(crate) orphans: Arc<AtomicUsize>,
}

/// The runtime of this process.
pub(crate) fn shared() -> PyResult<Shared> {
    let mut state = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    match &*state {
        State::Running(pid, _, shared) if *pid == std::process::id() => return Ok(shared.clone()),
        State::Ended => return Err(ended()),
        _ => {}
    }
    let (runtime, shared) = start()?;
    let of_parent = mem::replace(&mut *state, State::Running(std::process::id(), runtime, shared.clone()));
    mem::forget(of_parent);
    Ok(shared)
}

/// What a call gets that comes too late.
fn ended() -> PyErr {
    PyRuntimeError::new_err("dsec: the interpreter is shutting down")
}

/// A task went away under the thread that waits for it. At exit that is a daemon thread: as in any other blocking call
/// it stays where it is, for an exception would only be noise on stderr.
pub(crate) fn unanswered(py: Python<'_>) -> PyErr {
    if matches!(*RUNNING.lock().unwrap_or_else(PoisonError::into_inner), State::Ended) {
        py.detach(|| {
            loop {
                std::thread::park();
            }
        });
    }
    PyRuntimeError::new_err("dsec: a bug: the call was dropped before it was answered")
}

fn start() -> PyResult<(Runtime, Shared)> {
    raise_descriptor_limit();
    let cores = std::thread::available_parallelism().map_or(WORKERS_MIN, usize::from);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(cores.clamp(WORKERS_MIN, WORKERS_MAX)).thread_name("dsec").enable_all();
    let runtime = builder.build().map_err(|e| PyRuntimeError::new_err(format!("dsec: no threads: {e}")))?;
    let handle = runtime.handle().clone();
    let shared = Shared { handle, starts: Arc::new(Semaphore::new(STARTS_MAX)), orphans: Arc::default() };
    Ok((runtime, shared))
}

/// Each attached command is a connection, and the usual soft limit of 1,024 is there for the sake of `select(2)`.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where it may not, many commands at once fail with an error that says so.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Ends the runtime before the interpreter does.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let ended = {
        let mut state = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *state, State::Ended)
    };
    match ended {
        State::Running(pid, runtime, shared) if pid == std::process::id() => py.detach(|| {
            let start = Instant::now();
            while shared.orphans.load(Ordering::SeqCst) > 0 && start.elapsed() < ORPHANS_WITHIN {
                std::thread::sleep(Duration::from_millis(5));
            }
            runtime.shutdown_timeout(END_WITHIN);
        }),
        of_parent => mem::forget(of_parent),
    }
}

/// A value that each process makes for itself.
pub(crate) struct PerProcess<T>(Mutex<Option<(u32, T)>>);

impl<T: Clone> PerProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Some((std::process::id(), value))))
    }

    /// The value of this process; `make` gives it in a child. Call it with the GIL held.
    pub(crate) fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((pid, value)) if *pid == std::process::id() => Ok(value.clone()),
            _ => {
                let value = make()?;
                mem::forget(held.replace((std::process::id(), value.clone())));
                Ok(value)
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if held.as_ref().is_some_and(|(pid, _)| *pid != std::process::id()) {
            mem::forget(held);
        }
    }
}

/// The process that something was made in, for what cannot be made anew in a child.
#[derive(Clone, Copy)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Errors: RuntimeError in a child.
    pub(crate) fn check(self, what: &str, instead: &str) -> PyResult<()> {
        if self.0 == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!("dsec: this {what} was made before os.fork(): {instead}")))
    }
}
