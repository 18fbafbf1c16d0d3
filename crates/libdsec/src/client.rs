//! The way in: a server and a key. Cheap to clone; all clones share the connections.

use std::sync::Arc;

use api::{
    Error, Result, SandboxId,
    arrow::Front,
    spec::{ListQuery, SandboxInfo, SandboxSpec},
};

use crate::{Context, Environments, Images, Keys, Projects, Sandbox, retry, sandbox::create::Created};

/// A client of one DSec server.
#[derive(Clone)]
pub struct Client {
    front: Arc<dyn Front>,
}

impl Client {
    /// The server named by `DSEC_URL` and `DSEC_API_KEY`, else by the context file that `dsec up` wrote
    /// (`$DSEC_CONTEXT`, else `~/.config/dsec/context.toml`). Nothing is sent yet.
    pub fn from_env() -> Result<Self> {
        Self::from_context(&Context::from_env()?)
    }

    /// The server of a context.
    pub fn from_context(context: &Context) -> Result<Self> {
        Self::new(&context.url, &context.api_key)
    }

    /// The server at `url`, e.g. `http://127.0.0.1:3732`. Nothing is sent yet. Errors: `invalid_argument`.
    pub fn new(url: &str, api_key: &str) -> Result<Self> {
        Ok(Self::with_front(Arc::new(rpc::EdgeClient::new(url, Some(api_key))?)))
    }

    /// Over anything that answers as a server does: one in the same process, or a test's.
    pub fn with_front(front: Arc<dyn Front>) -> Self {
        Self { front }
    }

    /// Makes one sandbox and waits until it runs.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::{Network, SandboxSpec};
    /// let sandbox = client
    ///     .create(SandboxSpec { memory_bytes_max: 1 << 30, network: Network::Egress, ..SandboxSpec::new("debian") })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create(&self, spec: SandboxSpec) -> Result<Sandbox> {
        crate::sandbox::create::one(self.front.clone(), spec).await
    }

    /// Makes `count` alike. Each comes as soon as it is ready; one that fails is an `Err` item and the rest go on.
    ///
    /// ```no_run
    /// # async fn demo(client: libdsec::Client) -> libdsec::Result<()> {
    /// use libdsec::SandboxSpec;
    /// let mut batch = client.create_many(8, SandboxSpec::new("debian"));
    /// while let Some(sandbox) = batch.next().await {
    ///     println!("{}", sandbox?.id());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_many(&self, count: u32, spec: SandboxSpec) -> Created {
        Created::new(self.front.clone(), count, spec, None)
    }

    /// As [`Client::create_many`], with a key of your own: asked again with it, even from another program, the same
    /// sandboxes are answered and none is made.
    pub fn create_many_keyed(
        &self,
        count: u32,
        spec: SandboxSpec,
        idempotency_key: impl Into<String>,
    ) -> Created {
        Created::new(self.front.clone(), count, spec, Some(idempotency_key.into()))
    }

    /// The sandbox with this id or name. Errors: `not_found`.
    pub async fn get(&self, id_or_name: &str) -> Result<Sandbox> {
        if id_or_name.starts_with("sb-") {
            let id: SandboxId = id_or_name.parse()?;
            let info = retry::repeat(|| self.front.inspect(&id)).await?;
            return Ok(Sandbox::new(self.front.clone(), info));
        }
        api::spec::check_name("sandbox", id_or_name)?;
        let found = self.list(ListQuery { name: Some(id_or_name.to_owned()), label: None }).await?;
        let info = found.into_iter().find(|s| s.spec.name.as_deref() == Some(id_or_name));
        info.map(|info| Sandbox::new(self.front.clone(), info))
            .ok_or_else(|| Error::not_found(format!("no sandbox is named `{id_or_name}`")))
    }

    /// What lives now. `ListQuery::default()` is everything.
    pub async fn list(&self, query: ListQuery) -> Result<Vec<SandboxInfo>> {
        retry::repeat(|| self.front.list(query.clone())).await
    }

    /// The handle to a sandbox that [`Client::list`] told of, without asking again.
    pub fn sandbox(&self, info: SandboxInfo) -> Sandbox {
        Sandbox::new(self.front.clone(), info)
    }

    /// The catalogue.
    pub fn images(&self) -> Images {
        Images::new(self.front.clone())
    }

    /// What may be used, and by whom.
    pub fn projects(&self) -> Projects {
        Projects::new(self.front.clone())
    }

    /// The keys of projects.
    pub fn keys(&self) -> Keys {
        Keys::new(self.front.clone())
    }

    /// The compositions that have names.
    pub fn environments(&self) -> Environments {
        Environments::new(self.front.clone())
    }
}
