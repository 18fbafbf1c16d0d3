//! aether, the agent beside each container, and chronus, its service.
//!
//! ```text
//! edge --chronus.sock--> agent --fork--> child --setns--> the sandbox's namespaces
//!                          |               |-- becomes a caller's process (exec), or
//!                          '--- reports <--'-- does one file operation, passes a descriptor back, ends
//! ```
//! It runs outside the sandbox, as the owner of the sandbox's user namespace and with no host privilege.
//!
//! Invariants: one thread, always (it forks and runs plain Rust in the child). Never dumpable, nor any child before
//! its execve, so nothing inside can trace or read it. A child closes every descriptor that it does not need before
//! it follows a path. What is read inside is bounded.

pub mod account;
pub mod agent;
pub mod agents;
pub mod chronus;
pub mod heap;
pub mod inside;
pub mod process;
pub mod worker;

pub use chronus::Service;
