//! Which sandboxes the tools may touch, and the life of those that belong to this server.
//!
//! ```text
//! Any    every sandbox of the key; each call names one
//! One    that one alone
//! Own    those that this server made, found by a label; the first use makes the default one
//! ```
//!
//! Invariant of `Own`: a sandbox lives no longer than this server. It is stopped when the server ends, and has a short
//! TTL that the server renews, for the end that a program cannot see coming.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use libdsec::{Client, Code, Error, ListQuery, Result, Sandbox, SandboxInfo, SandboxSpec, State};
use tokio::{
    sync::{Mutex, RwLock},
    task::AbortHandle,
};
use tokio_util::sync::CancellationToken;

use crate::limit;

/// The key of the label that tells whose a sandbox is.
const LABEL: &str = "dsec-mcp";
/// Stops at once, at the end.
const STOPS_AT_ONCE: usize = 16;

/// What a server is for.
#[derive(Debug, Clone)]
pub enum Scope {
    Any,
    /// An id or a name.
    One(String),
    /// As this; its TTL is ours to set.
    Own(Box<SandboxSpec>),
}

enum Reach {
    Any,
    One(Sandbox),
    Own(Box<Own>),
}

struct Own {
    spec: SandboxSpec,
    /// The label's value.
    server: String,
    default: Mutex<Option<Sandbox>>,
    /// Held by each create, taken whole by the end; true from then on.
    closed: RwLock<bool>,
    lease: std::sync::Mutex<Option<AbortHandle>>,
}

/// The sandboxes in reach.
pub(crate) struct Sandboxes {
    pub(crate) client: Client,
    reach: Reach,
}

impl Sandboxes {
    /// Errors: `not_found` where the sandbox or the image is not there; better said before a client comes.
    pub(crate) async fn open(client: Client, scope: Scope) -> Result<Self> {
        let reach = match scope {
            Scope::Any => Reach::Any,
            // By its id from now on: another one may get the name.
            Scope::One(name) => Reach::One(client.get(&name).await?),
            Scope::Own(spec) => {
                client.images().inspect(&spec.image).await?;
                let server = uuid::Uuid::new_v4().to_string();
                let (default, closed) = (Mutex::default(), RwLock::default());
                Reach::Own(Box::new(Own { spec: *spec, server, default, closed, lease: Default::default() }))
            }
        };
        Ok(Self { client, reach })
    }

    /// A call must say which sandbox it means.
    pub(crate) fn must_be_named(&self) -> bool {
        matches!(self.reach, Reach::Any)
    }

    /// A call can say which sandbox it means; also, sandboxes can be made, listed and stopped.
    pub(crate) fn can_be_named(&self) -> bool {
        !matches!(self.reach, Reach::One(_))
    }

    /// They belong to this server, and live as long as it does.
    pub(crate) fn are_own(&self) -> bool {
        matches!(self.reach, Reach::Own(_))
    }

    /// A call that names none would have one made.
    pub(crate) async fn would_make(&self) -> bool {
        match &self.reach {
            Reach::Any | Reach::One(_) => false,
            Reach::Own(own) => own.default.lock().await.is_none(),
        }
    }

    /// The sandbox that a call means.
    pub(crate) async fn find(self: &Arc<Self>, named: Option<&str>) -> Result<Sandbox> {
        match (&self.reach, named) {
            (Reach::One(sandbox), _) => Ok(sandbox.clone()),
            (Reach::Any, Some(name)) => self.client.get(name).await,
            (Reach::Any, None) => Err(Error::invalid(
                "sandbox: which one? list_sandboxes tells what there is, create_sandbox makes one",
            )),
            (Reach::Own(own), Some(name)) => {
                let sandbox = self.client.get(name).await?;
                if own.is_ours(sandbox.created()) {
                    return Ok(sandbox);
                }
                Err(Error::not_found(format!("no sandbox of this session is `{name}`")))
            }
            // A task of its own: a call that is cancelled must not lose a sandbox half made.
            (Reach::Own(_), None) => {
                let me = self.clone();
                let made = tokio::spawn(async move { me.ensure_default().await });
                made.await.map_err(|e| Error::internal(format!("making the sandbox: {e}")))?
            }
        }
    }

    async fn ensure_default(self: &Arc<Self>) -> Result<Sandbox> {
        let Reach::Own(own) = &self.reach else { return Err(Error::internal("no default sandbox")) };
        let mut default = own.default.lock().await;
        if let Some(sandbox) = &*default {
            return Ok(sandbox.clone());
        }
        let sandbox = self.make(own.spec.clone()).await?;
        tracing::info!(sandbox = %sandbox.id(), "made");
        Ok(default.insert(sandbox).clone())
    }

    /// Makes one. Where `cancel` comes while it is made, it is stopped again.
    pub(crate) async fn create(
        self: &Arc<Self>,
        spec: SandboxSpec,
        cancel: CancellationToken,
    ) -> Result<Sandbox> {
        let me = self.clone();
        let made = tokio::spawn(async move {
            let sandbox = me.make(spec).await?;
            if cancel.is_cancelled() {
                sandbox.stop().await?;
                return Err(Error::new(Code::Conflict, "the call was cancelled"));
            }
            Ok(sandbox)
        });
        made.await.map_err(|e| Error::internal(format!("making the sandbox: {e}")))?
    }

    async fn make(self: &Arc<Self>, mut spec: SandboxSpec) -> Result<Sandbox> {
        let Reach::Own(own) = &self.reach else { return self.client.create(spec).await };
        let closed = own.closed.read().await;
        if *closed {
            return Err(Error::new(Code::Conflict, "this server is ending"));
        }
        spec.labels.insert(LABEL.into(), own.server.clone());
        spec.ttl_ms = limit::LEASE.as_millis() as u64;
        let sandbox = self.client.create(spec).await?;
        own.renew(&self.client);
        drop(closed);
        Ok(sandbox)
    }

    /// Those in reach.
    pub(crate) async fn list(&self) -> Result<Vec<SandboxInfo>> {
        match &self.reach {
            Reach::Any => self.client.list(ListQuery::default()).await,
            Reach::One(sandbox) => Ok(vec![sandbox.info().await?]),
            Reach::Own(own) => self.client.list(own.query()).await,
        }
    }

    /// After a call failed with `error`: was it because the default sandbox is no more? Then the next use makes a new
    /// one, and the model must know that all it had is gone.
    pub(crate) async fn explain(&self, error: Error) -> Error {
        let Reach::Own(own) = &self.reach else { return error };
        if !matches!(error.code, Code::NotFound | Code::SandboxGone | Code::SandboxBroken | Code::Conflict) {
            return error;
        }
        let mut default = own.default.lock().await;
        let Some(sandbox) = &*default else { return error };
        let gone = match sandbox.info().await {
            Ok(info) => !matches!(info.state, State::Creating | State::Running),
            Err(e) => matches!(e.code, Code::NotFound | Code::SandboxGone),
        };
        if !gone {
            return error;
        }
        let text = format!(
            "the sandbox {} has ended, with its files and processes; the next call gets a new one",
            sandbox.id()
        );
        *default = None;
        Error::new(Code::SandboxGone, text)
    }

    /// A sandbox was stopped by a call.
    pub(crate) async fn forget(&self, stopped: &Sandbox) {
        if let Reach::Own(own) = &self.reach {
            let mut default = own.default.lock().await;
            default.take_if(|default| default.id() == stopped.id());
        }
    }

    /// Stops those that belong to this server. Bounded; what it cannot stop ends by its TTL.
    pub(crate) async fn close(&self) {
        let Reach::Own(own) = &self.reach else { return };
        let closing = async {
            *own.closed.write().await = true;
            if let Some(lease) = own.lease.lock().expect("no panic while it is held").take() {
                lease.abort();
            }
            let left = self.client.list(own.query()).await?;
            let stops = stream::iter(left).map(|info| {
                let sandbox = self.client.sandbox(info);
                async move {
                    match sandbox.stop().await {
                        Err(e) if e.code != Code::NotFound => {
                            tracing::warn!(sandbox = %sandbox.id(), error = %e, "not stopped; its TTL will end it");
                        }
                        _ => tracing::info!(sandbox = %sandbox.id(), "stopped"),
                    }
                }
            });
            stops.buffer_unordered(STOPS_AT_ONCE).collect::<Vec<()>>().await;
            Ok::<(), Error>(())
        };
        match tokio::time::timeout(limit::CLOSE_WITHIN, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!(error = %e, "sandboxes are left to their TTL"),
            Err(_) => tracing::warn!("sandboxes are left to their TTL: the server does not answer"),
        }
    }
}

impl Own {
    fn query(&self) -> ListQuery {
        ListQuery { name: None, label: Some(format!("{LABEL}={}", self.server)) }
    }

    fn is_ours(&self, info: &SandboxInfo) -> bool {
        info.spec.labels.get(LABEL) == Some(&self.server)
    }

    /// Starts the task that renews the lease, where it does not run yet.
    fn renew(&self, client: &Client) {
        let mut lease = self.lease.lock().expect("no panic while it is held");
        if lease.is_some() {
            return;
        }
        let (client, query) = (client.clone(), self.query());
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(limit::LEASE_PERIOD).await;
                match tokio::time::timeout(limit::LEASE_PERIOD, renew_all(&client, &query, limit::LEASE))
                    .await
                {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => tracing::warn!(error = %e, "the lease of the sandboxes was not renewed"),
                    Err(_) => tracing::warn!("the lease of the sandboxes was not renewed in time"),
                }
            }
        });
        *lease = Some(task.abort_handle());
    }
}

async fn renew_all(client: &Client, query: &ListQuery, lease: Duration) -> Result<()> {
    for info in client.list(query.clone()).await? {
        match client.sandbox(info).set_ttl(lease).await {
            // It ended in between.
            Err(e) if e.code == Code::NotFound => {}
            done => drop(done?),
        }
    }
    Ok(())
}
