//! The one way to serve and to call the traits of `api::arrow`: HTTP/1.1 over TCP and UNIX sockets, and HTTP/2 to
//! clients that begin with it.
//!
//! ```text
//! route table --> router (serve)      EdgeClient, ChronusClient (call) --> the same traits again
//!            \--> OpenAPI (openapi)
//! ```
//! Invariants: the router and the document are made from one table, so they cannot drift. No stream is buffered
//! whole: each has a bounded channel, and a slow reader slows the writer at the far end. A client that disconnects
//! detaches; it kills nothing. No request can panic the process or hang it: heads, JSON bodies and answers that are
//! bounded have deadlines.

mod collect;
mod frames;
mod port_connection;
mod request;
mod socket;

#[cfg(feature = "call")]
pub mod call;
#[cfg(feature = "openapi")]
pub mod openapi;
#[cfg(feature = "serve")]
mod route;
#[cfg(feature = "serve")]
pub mod serve;

#[cfg(feature = "call")]
pub use call::{ChronusClient, EdgeClient};
pub use collect::collect;
pub use port_connection::PortConnection;
pub use request::{HEADER as REQUEST_ID_HEADER, current as request_id};
#[cfg(all(feature = "serve", feature = "call"))]
pub use serve::proxy;
#[cfg(feature = "serve")]
pub use serve::{
    BodyFault, Entered, Keys, Listener, Stopping, byte_stream, chronus_router, error_response, front_router,
    front_router_for, is_whole_inside, serve, to_the_end, whole_body,
};
#[cfg(all(feature = "serve", feature = "multipart"))]
pub use serve::{Field, Parts, part_bytes};

/// The `Upgrade` token of a connection to a port: raw bytes both ways.
pub const PORT_PROTOCOL: &str = "dsec-tcp";
/// `FileInfo` of a download, as JSON in ASCII.
pub const FILE_HEADER: &str = "x-dsec-file";
