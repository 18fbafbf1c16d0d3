//! A handle to one sandbox.

use std::{sync::Arc, time::Duration};

use libdsec::{ExecId, ForkRequest, PackRequest, SandboxInfo};
use pyo3::{IntoPyObjectExt, prelude::*};

use crate::{
    call::{Call, json},
    client::{Access, Batch, parse},
    error,
    exec::{self, Options},
    files::Files,
    port,
    process::Process,
    runtime::{self, PerProcess},
};

#[pyclass(frozen)]
pub(crate) struct Sandbox(pub(crate) Arc<Handle>);

pub(crate) struct Handle {
    access: Arc<Access>,
    created: SandboxInfo,
    sandbox: PerProcess<libdsec::Sandbox>,
}

impl Handle {
    pub(crate) fn sandbox(&self, py: Python<'_>) -> PyResult<libdsec::Sandbox> {
        self.sandbox.get(|| Ok(self.access.client(py)?.sandbox(self.created.clone())))
    }
}

impl Sandbox {
    pub(crate) fn new(access: Arc<Access>, sandbox: libdsec::Sandbox) -> Self {
        let created = sandbox.created().clone();
        Self(Arc::new(Handle { access, created, sandbox: PerProcess::new(sandbox) }))
    }
}

fn exec_id(py: Python<'_>, text: &str) -> PyResult<ExecId> {
    text.parse().map_err(|e: <ExecId as std::str::FromStr>::Err| error::raise(py, e.into()))
}

#[pymethods]
impl Sandbox {
    #[getter]
    fn id(&self) -> &str {
        self.0.created.id.as_str()
    }

    /// JSON of what was known when the handle was made.
    fn created(&self) -> PyResult<String> {
        json(&self.0.created)
    }

    fn info(&self, py: Python<'_>) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.info().await }))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::unit(async move { sandbox.stop().await }))
    }

    fn set_ttl(&self, py: Python<'_>, ttl_ms: u64) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.set_ttl(Duration::from_millis(ttl_ms)).await }))
    }

    #[pyo3(signature = (name))]
    fn checkpoint(&self, py: Python<'_>, name: Option<String>) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.checkpoint(name.as_deref()).await }))
    }

    fn checkpoints(&self, py: Python<'_>) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.checkpoints().await }))
    }

    fn remove_checkpoint(&self, py: Python<'_>, name: String) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::unit(async move { sandbox.remove_checkpoint(&name).await }))
    }

    fn rollback(&self, py: Python<'_>, checkpoint: String) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.rollback(&checkpoint).await }))
    }

    /// `request`: JSON of a `ForkRequest`.
    fn fork(&self, py: Python<'_>, request: &str) -> PyResult<Batch> {
        let request: ForkRequest = parse(py, request)?;
        let (sandbox, shared) = (self.0.sandbox(py)?, runtime::shared()?);
        // Whoever has a key may ask for them again.
        let stops = request.idempotency_key.is_none();
        Ok(Batch::new(self.0.access.clone(), sandbox.fork(request), &shared, stops))
    }

    /// `request`: JSON of a `PackRequest`.
    fn pack_diff(&self, py: Python<'_>, request: &str) -> PyResult<Call> {
        let (sandbox, request): (_, PackRequest) = (self.0.sandbox(py)?, parse(py, request)?);
        Ok(Call::json(async move { sandbox.pack_diff(request).await }))
    }

    /// Runs a command to its end. `wait_ms`: how long to wait for it; the command goes on.
    #[pyo3(signature = (options, wait_ms))]
    fn exec(&self, py: Python<'_>, options: Options, wait_ms: Option<u64>) -> PyResult<Call> {
        let (sandbox, shared) = (self.0.sandbox(py)?, runtime::shared()?);
        Ok(Call::new(exec::output(sandbox, options, wait_ms, shared), exec::result))
    }

    fn spawn(&self, py: Python<'_>, options: Options) -> PyResult<Call> {
        let (sandbox, shared) = (self.0.sandbox(py)?, runtime::shared()?);
        let work = async move {
            let _permit = shared.starts.acquire().await;
            options.build(&sandbox).spawn().await
        };
        Ok(Call::new(work, |py, process| Ok(Py::new(py, Process::new(process))?.into_any())))
    }

    /// Starts a command and leaves it; answers its id.
    fn detach(&self, py: Python<'_>, options: Options) -> PyResult<Call> {
        let (sandbox, shared) = (self.0.sandbox(py)?, runtime::shared()?);
        let work = async move {
            let _permit = shared.starts.acquire().await;
            options.build(&sandbox).detach().await
        };
        Ok(Call::new(work, |py, id| id.as_str().into_py_any(py)))
    }

    fn attach(&self, py: Python<'_>, id: &str, stdout_offset: u64, stderr_offset: u64) -> PyResult<Call> {
        let (sandbox, id) = (self.0.sandbox(py)?, exec_id(py, id)?);
        let work = async move { sandbox.attach(&id, stdout_offset, stderr_offset).await };
        Ok(Call::new(work, |py, process| Ok(Py::new(py, Process::new(process))?.into_any())))
    }

    fn execs(&self, py: Python<'_>) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::json(async move { sandbox.execs().await }))
    }

    fn exec_info(&self, py: Python<'_>, id: &str) -> PyResult<Call> {
        let (sandbox, id) = (self.0.sandbox(py)?, exec_id(py, id)?);
        Ok(Call::json(async move { sandbox.exec_info(&id).await }))
    }

    #[pyo3(signature = (user))]
    fn files(&self, user: Option<String>) -> Files {
        Files { handle: self.0.clone(), user }
    }

    fn port_connect(&self, py: Python<'_>, port: u16) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::new(async move { sandbox.port(port).connect().await }, port::connection))
    }

    fn port_get(&self, py: Python<'_>, port: u16, path: String) -> PyResult<Call> {
        let sandbox = self.0.sandbox(py)?;
        Ok(Call::new(async move { sandbox.port(port).get(&path).await }, port::response))
    }
}
