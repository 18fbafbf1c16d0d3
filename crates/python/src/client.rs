//! The way in, and the verbs that need no sandbox yet.

use std::sync::Arc;

use libdsec::{Context, Created, ListQuery, SandboxSpec};
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::{
    call::Call,
    error,
    feed::Feed,
    images::{Environments, Images},
    orphan::{self, Parcel, Parcels},
    runtime::{self, PerProcess, Shared},
    sandbox::Sandbox,
};

/// A server and a key, with the connections of this process.
pub(crate) struct Access {
    context: Context,
    client: PerProcess<libdsec::Client>,
}

impl Access {
    /// Errors: the address is none.
    pub(crate) fn client(&self, py: Python<'_>) -> PyResult<libdsec::Client> {
        self.client.get(|| libdsec::Client::from_context(&self.context)).map_err(|e| error::raise(py, e))
    }
}

#[pyclass(frozen)]
pub(crate) struct Client(pub(crate) Arc<Access>);

/// Arguments that are plain data come as JSON, checked by the same types as the server's.
pub(crate) fn parse<T: DeserializeOwned>(py: Python<'_>, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|e| error::raise(py, libdsec::Error::invalid(e.to_string())))
}

impl Client {
    fn created(
        &self,
        py: Python<'_>,
        count: u32,
        spec: &str,
        key: Option<String>,
    ) -> PyResult<(Created, Shared, bool)> {
        let spec: SandboxSpec = parse(py, spec)?;
        let (client, shared) = (self.0.client(py)?, runtime::shared()?);
        // Whoever has a key may ask for them again.
        let stops = key.is_none();
        let created = match key {
            Some(key) => client.create_many_keyed(count, spec, key),
            None => client.create_many(count, spec),
        };
        Ok((created, shared, stops))
    }
}

#[pymethods]
impl Client {
    /// Of what is not given, the environment or the context file tells.
    #[new]
    #[pyo3(signature = (url, api_key))]
    fn new(py: Python<'_>, url: Option<String>, api_key: Option<String>) -> PyResult<Self> {
        let context = match (url, api_key) {
            (Some(url), Some(api_key)) => Context { url, api_key, data: None },
            (url, api_key) => {
                let known = Context::from_env().map_err(|e| error::raise(py, e))?;
                Context {
                    url: url.unwrap_or(known.url),
                    api_key: api_key.unwrap_or(known.api_key),
                    data: known.data,
                }
            }
        };
        let client = libdsec::Client::from_context(&context).map_err(|e| error::raise(py, e))?;
        Ok(Self(Arc::new(Access { context, client: PerProcess::new(client) })))
    }

    #[getter]
    fn url(&self) -> &str {
        &self.0.context.url
    }

    /// The same server and key.
    fn same(&self, other: &Client) -> bool {
        self.0.context == other.0.context
    }

    #[pyo3(signature = (spec, key))]
    fn create(&self, py: Python<'_>, spec: &str, key: Option<String>) -> PyResult<Call> {
        let (created, shared, stops) = self.created(py, 1, spec, key)?;
        let access = self.0.clone();
        Ok(Call::new(orphan::one(created, shared, stops), move |py, parcel| arrive(py, &access, parcel)))
    }

    #[pyo3(signature = (count, spec, key))]
    fn create_many(&self, py: Python<'_>, count: u32, spec: &str, key: Option<String>) -> PyResult<Batch> {
        let (created, shared, stops) = self.created(py, count, spec, key)?;
        Ok(Batch::new(self.0.clone(), created, &shared, stops))
    }

    fn get(&self, py: Python<'_>, id_or_name: String) -> PyResult<Call> {
        let (client, access) = (self.0.client(py)?, self.0.clone());
        Ok(Call::new(async move { client.get(&id_or_name).await }, move |py, sandbox| {
            Ok(Py::new(py, Sandbox::new(access, sandbox))?.into_any())
        }))
    }

    /// JSON: a list of sandboxes.
    #[pyo3(signature = (name, label))]
    fn list(&self, py: Python<'_>, name: Option<String>, label: Option<String>) -> PyResult<Call> {
        let client = self.0.client(py)?;
        Ok(Call::json(async move { client.list(ListQuery { name, label }).await }))
    }

    fn images(&self) -> Images {
        Images(self.0.clone())
    }

    fn environments(&self) -> Environments {
        Environments(self.0.clone())
    }
}

fn arrive(py: Python<'_>, access: &Arc<Access>, parcel: Parcel) -> PyResult<Py<PyAny>> {
    match parcel.open() {
        Some(sandbox) => Ok(Py::new(py, Sandbox::new(access.clone(), sandbox))?.into_any()),
        None => Ok(py.None()),
    }
}

/// Sandboxes as they are ready.
#[pyclass(frozen)]
pub(crate) struct Batch {
    access: Arc<Access>,
    feed: Arc<Feed<Parcel>>,
}

impl Batch {
    pub(crate) fn new(access: Arc<Access>, created: Created, shared: &Shared, stops: bool) -> Self {
        Self { access, feed: Feed::new(Parcels::new(created, shared, stops)) }
    }
}

#[pymethods]
impl Batch {
    /// The next sandbox; None at the end, False: ask again.
    fn next(&self) -> Call {
        let access = self.access.clone();
        self.feed.next(move |py, parcel| arrive(py, &access, parcel))
    }

    /// Those that were not taken are stopped.
    fn close(&self) -> Call {
        Call::unit(self.feed.clone().close())
    }
}
