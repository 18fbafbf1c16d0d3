//! Memory that a stream took goes back to the machine once the sandbox is quiet: most agents idle most of their life.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// From the end of a stream to the trim: long enough that a row of commands pays for one.
const QUIET: Duration = Duration::from_secs(5);

static PLANNED: AtomicBool = AtomicBool::new(false);

/// Trims the heap in a while. Cheap to call often. Needs the runtime.
pub fn trim_later() {
    if PLANNED.swap(true, Ordering::Relaxed) {
        return;
    }
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async {
        tokio::time::sleep(QUIET).await;
        PLANNED.store(false, Ordering::Relaxed);
        linux::fork::trim_heap();
    });
}

/// Dropped with a stream: see [`trim_later`].
pub struct TrimAfter;

impl Drop for TrimAfter {
    fn drop(&mut self) {
        trim_later();
    }
}
