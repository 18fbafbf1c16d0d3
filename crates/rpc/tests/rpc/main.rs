//! rpc over real sockets, against a fake of everything behind it.
#![allow(clippy::unwrap_used)]

mod exec;
mod fake;
mod faults;
mod files;
mod openapi;
mod ports;
mod sandboxes;
mod wire;
