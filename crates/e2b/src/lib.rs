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

use api::{arrow::Front, iam::Rights};
use axum::{
    Router,
    body::Body,
    extract::State,
    middleware::{self, Next},
    response::Response,
};
use http::Request;

pub use config::Config;
use rpc::{Entered, Keys};

use filesystem::{accounts::Accounts, watchers::Watchers};
use target::Target;
use token::Tokens;

/// The face. One for each apiserver; clones share all but the service behind it, which is as the caller sees it.
#[derive(Clone)]
pub struct E2b {
    front: Arc<dyn Front>,
    /// Of the caller's key; none where he has come by a token.
    rights: Rights,
    keys: Arc<dyn Keys>,
    config: Arc<Config>,
    tokens: Arc<Tokens>,
    watchers: Arc<Watchers>,
    accounts: Arc<Accounts>,
}

impl E2b {
    /// `front`: for the holders of a sandbox's token. `secret`: from which the tokens of sandboxes are made; the same at every apiserver, and after a restart.
    pub fn new(front: Arc<dyn Front>, keys: Arc<dyn Keys>, config: Config, secret: [u8; 32]) -> Self {
        Self {
            front,
            rights: Rights::NONE,
            keys,
            config: Arc::new(config),
            tokens: Arc::new(Tokens::new(secret)),
            watchers: Arc::default(),
            accounts: Arc::default(),
        }
    }

    /// As the holder of a key sees it. Errors: `unauthenticated`.
    async fn entered(&self, key: &str) -> api::Result<Arc<Self>> {
        let Entered { front, rights } = self.keys.enter(key).await?;
        Ok(Arc::new(Self { front, rights, ..self.clone() }))
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
