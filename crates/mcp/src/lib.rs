//! The MCP server: sandboxes as tools for any client of the Model Context Protocol, over libdsec.
//!
//! ```text
//!  stdio.rs ─┐                        ┌─ tool/exec.rs, tool/read_file.rs, ...: one file a tool
//!            ├─ server.rs ── tool.rs ─┤
//!  http.rs ──┘  (rmcp)      (ours)    └─ scope.rs: which sandboxes they may touch
//! ```
//!
//! Invariants: what a tool answers is bounded and clean text (`text.rs`), for it is read by a model and came from a
//! sandbox; every wait has a deadline; a tool that fails is a tool error with our code, never an error of the
//! protocol; the types of the SDK stay in `server.rs`, `stdio.rs` and `http.rs`.

mod http;
mod limit;
mod scope;
mod server;
mod stdio;
mod text;
mod tool;

pub use http::{Door, serve_http};
pub use limit::{LEASE, OUTPUT_CHARS_DEFAULT};
pub use scope::Scope;
pub use server::Tools;
pub use stdio::serve_stdio;
