//! A face for clients of E2B: their control API and their in-sandbox API, over `api::arrow::Front`.
//!
//! ```text
//! request -- names a sandbox (header, host name)? -- port 49983 --> inside: files, process.Process, filesystem.Filesystem
//!                |                                  \- other port -> the port of the sandbox (rpc's proxy)
//!                |-- a path of theirs (/sandboxes, /v2/sandboxes ...) --> control
//!                '-- else --> the native API
//! ```
//! Invariants: nothing is done here a second time; each verb of theirs becomes verbs of ours. What they ask and we
//! cannot do is refused, never ignored. All state is the edge's, but for polled watchers (they have no native form)
//! and a cache of account names. The stock package is the judge: `cargo xtask e2b`.

mod body;
mod config;
mod connect;
mod control;
mod fault;
mod filesystem;
mod inside;
mod process;
mod target;
mod time;
mod token;

use std::sync::Arc;

use api::arrow::Front;
use axum::{
    Router,
    body::Body,
    extract::State,
    middleware::{self, Next},
    response::Response,
};
use http::Request;

pub use config::Config;
use rpc::Keys;

use filesystem::{accounts::Accounts, watchers::Watchers};
use target::Target;
use token::Tokens;

/// The face. One for each apiserver.
pub struct E2b {
    front: Arc<dyn Front>,
    keys: Arc<dyn Keys>,
    config: Config,
    tokens: Tokens,
    watchers: Watchers,
    accounts: Accounts,
}

impl E2b {
    /// `secret`: from which the tokens of sandboxes are made; the same at every apiserver, and after a restart.
    pub fn new(front: Arc<dyn Front>, keys: Arc<dyn Keys>, config: Config, secret: [u8; 32]) -> Self {
        Self {
            front,
            keys,
            config,
            tokens: Tokens::new(secret),
            watchers: Watchers::default(),
            accounts: Accounts::default(),
        }
    }

    /// `native` with this face before it: what is not for E2B passes untouched.
    pub fn before(self, native: Router) -> Router {
        native.layer(middleware::from_fn_with_state(Arc::new(self), serve))
    }
}

async fn serve(State(face): State<Arc<E2b>>, request: Request<Body>, next: Next) -> Response {
    match target::of(&request) {
        Target::Native => next.run(request).await,
        Target::Control => control::serve(face, request).await,
        Target::Inside { id, port } => inside::serve(face, id, port, request).await,
        Target::Nowhere(fault) => fault.rest(),
    }
}
