//! `_dsec`: the native half of the Python package `dsec`, over libdsec. The other half, `python/dsec`, has the names
//! that users see, their types and their documentation.
//!
//! Every verb here gives a [`call::Call`]: work that has not begun. The sync face waits for it with the GIL released;
//! the async face starts it and gets a future of the running event loop. So there is one core and no second copy of
//! anything.
//!
//! **Invariants.**
//! - No thread of ours ever takes the GIL: completions go to a queue, and an eventfd that the loop watches wakes it
//!   once for many ([`bridge`]).
//! - Giving up waiting (a cancelled task, Ctrl-C) never kills a command and loses no output; a sandbox that was being
//!   made for somebody who left is stopped ([`orphan`]).
//! - After `os.fork()` nothing of the parent's runtime or connections is touched ([`runtime`]).

mod bridge;
mod call;
mod client;
mod error;
mod exec;
mod feed;
mod files;
mod images;
mod orphan;
mod port;
mod process;
mod runtime;
mod sandbox;

use pyo3::prelude::*;

#[pymodule]
fn _dsec(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<bridge::Bridge>()?;
    module.add_class::<call::Call>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Batch>()?;
    module.add_class::<files::Files>()?;
    module.add_class::<files::Watch>()?;
    module.add_class::<images::Images>()?;
    module.add_class::<images::Environments>()?;
    module.add_class::<port::Connection>()?;
    module.add_class::<process::Process>()?;
    module.add_class::<sandbox::Sandbox>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let shutdown = wrap_pyfunction!(runtime::shutdown, module)?;
    module.py().import("atexit")?.call_method1("register", (shutdown,))?;
    Ok(())
}
