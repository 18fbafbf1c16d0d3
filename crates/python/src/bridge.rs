//! From tokio's threads to one event loop: a queue of completions, and an eventfd that the loop watches.
//!
//! A thread that completes a call pushes and, where the loop is not yet awake, writes to the eventfd; it never waits
//! for the GIL. The loop then takes many in one turn: ten thousand answers are not ten thousand wake-ups. The queue
//! holds one entry for each future that somebody awaits, which is its bound.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::{intern, prelude::*};
use rustix::event::{EventfdFlags, eventfd};

/// In one turn of the loop; the rest comes in the next, so that other callbacks are not held up.
const DRAIN_MAX: usize = 256;

struct Shared {
    wake: OwnedFd,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    done: VecDeque<Py<PyAny>>,
    /// The loop has been told and has not yet taken all.
    awake: bool,
}

impl Shared {
    fn wake(&self) {
        // It fails only where the counter is full: then the loop wakes anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// One for each event loop. It holds nothing of the loop: the loop holds it, by the reader that it watches.
#[pyclass(frozen)]
pub(crate) struct Bridge(Arc<Shared>);

/// Tells the loop that the future of one call is done.
pub(crate) struct Completion {
    shared: Arc<Shared>,
    future: Py<PyAny>,
}

impl Completion {
    pub(crate) fn done(self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.done.push_back(self.future);
        let asleep = !std::mem::replace(&mut queue.awake, true);
        drop(queue);
        if asleep {
            self.shared.wake();
        }
    }
}

impl Bridge {
    pub(crate) fn completion(&self, future: Py<PyAny>) -> Completion {
        Completion { shared: self.0.clone(), future }
    }
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Self(Arc::new(Shared { wake, queue: Mutex::default() })))
    }

    /// What the loop watches.
    fn fileno(&self) -> i32 {
        self.0.wake.as_raw_fd()
    }

    /// Resolves the futures of what is done; the loop calls it when the eventfd says so.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let _ = rustix::io::read(&self.0.wake, &mut [0u8; 8]);
        let batch: Vec<_> = {
            let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let many = queue.done.len().min(DRAIN_MAX);
            let batch = queue.done.drain(..many).collect();
            queue.awake = !queue.done.is_empty();
            if queue.awake {
                self.0.wake();
            }
            batch
        };
        let mut failed = None;
        for future in batch {
            if let Err(e) = resolve(future.bind(py)) {
                failed = Some(e);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// One that was cancelled is done already.
fn resolve(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
        future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    }
    Ok(())
}
