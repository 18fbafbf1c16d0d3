//! A face for clients of SWE-ReX, the runtime protocol of SWE-agent, over `api::arrow::Front`.
//!
//! ```text
//! /swerex/<sandbox id>/<verb> -- key --> sessions: create, run, close   an exec with a terminal, where bash runs
//!                                   |--> execute                        an exec
//!                                   '--> read_file, write_file, upload  files, a tar
//! all else -> the native API
//! ```
//! Invariants: nothing of SWE-ReX runs inside a sandbox. A session is an exec and its output is the edge's log, so no
//! state of it is here: which sessions there are, what has been read of one and whether a command runs is read from
//! the execs and from marks in the log (see [`session`]), by any apiserver, also after a restart. What is here is a lock
//! and a hint. The stock package is the judge: `cargo xtask swerex`.

mod call;
mod execute;
mod fault;
mod files;
mod python;
mod session;
mod upload;
mod wire;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    middleware::{self, Next},
    response::Response,
};
use http::Request;
use rpc::Keys;

use session::places::Places;
use upload::Uploads;

/// Under which each sandbox's runtime stands, by its id.
const MOUNT: &str = "/swerex/";

/// The face. One for each apiserver.
pub struct Swerex {
    keys: Arc<dyn Keys>,
    places: Places,
    uploads: Uploads,
}

impl Swerex {
    pub fn new(keys: Arc<dyn Keys>) -> Self {
        Self { keys, places: Places::default(), uploads: Uploads::default() }
    }

    /// `native` with this face before it: what is not for SWE-ReX passes untouched.
    pub fn before(self, native: Router) -> Router {
        native.layer(middleware::from_fn_with_state(Arc::new(self), serve))
    }
}

async fn serve(State(face): State<Arc<Swerex>>, request: Request<Body>, next: Next) -> Response {
    match request.uri().path().strip_prefix(MOUNT).map(str::to_owned) {
        Some(rest) => call::serve(face, &rest, request).await,
        None => next.run(request).await,
    }
}
