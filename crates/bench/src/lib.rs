//! What `cargo xtask bench` measures of ours: a real `dsec up`, called through its SDK, and the kernel's floor below it.
//!
//! One module a figure. Each prints `bench: <key> <number>` lines through [`report::Report`], which also holds the
//! budgets. Nothing is asserted: a slow run is a number, not a failure. Keys end in their unit; percentiles are of all
//! runs. `docs/benchmarks.md` says what each key means.
//!
//! **Invariant:** a run leaves nothing: the data directory, its mounts and all processes go with [`node::Node`].

pub mod archive;
pub mod create;
pub mod disk;
pub mod exec;
pub mod floor;
pub mod idle;
pub mod image;
pub mod node;
pub mod process;
pub mod report;
pub mod store;
pub mod transfer;
pub mod upgrade;
