//! The catalogue of layers.

use std::{path::PathBuf, sync::Arc};

use libdsec::{EnvironmentRequest, ExportFormat, ImportQuery, MergeRequest, PullRequest};
use pyo3::prelude::*;

use crate::{
    call::Call,
    client::{Access, parse},
};

#[pyclass(frozen)]
pub(crate) struct Images(pub(crate) Arc<Access>);

#[pymethods]
impl Images {
    fn list(&self, py: Python<'_>) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::json(async move { images.list().await }))
    }

    fn inspect(&self, py: Python<'_>, reference: String) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::json(async move { images.inspect(&reference).await }))
    }

    fn remove(&self, py: Python<'_>, reference: String) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::unit(async move { images.remove(&reference).await }))
    }

    /// `query`: JSON of an import's arguments.
    fn import_path(&self, py: Python<'_>, path: PathBuf, query: &str) -> PyResult<Call> {
        let (images, query): (_, ImportQuery) = (self.0.client(py)?.images(), parse(py, query)?);
        Ok(Call::json(async move { images.import_path(path, query, |_| ()).await }))
    }

    /// `request`: JSON of a pull's arguments.
    fn pull(&self, py: Python<'_>, request: &str) -> PyResult<Call> {
        let (images, request): (_, PullRequest) = (self.0.client(py)?.images(), parse(py, request)?);
        Ok(Call::json(async move { images.pull(request, |_| ()).await }))
    }

    /// `request`: JSON of a merge's arguments.
    fn merge(&self, py: Python<'_>, reference: String, request: &str) -> PyResult<Call> {
        let (images, request): (_, MergeRequest) = (self.0.client(py)?.images(), parse(py, request)?);
        Ok(Call::json(async move { images.merge(&reference, request).await }))
    }

    /// `format`: a JSON string.
    fn export(&self, py: Python<'_>, reference: String, format: &str, path: PathBuf) -> PyResult<Call> {
        let (images, format): (_, ExportFormat) = (self.0.client(py)?.images(), parse(py, format)?);
        Ok(Call::json(async move { images.export_path(&reference, format, path, |_| ()).await }))
    }

    fn publish(&self, py: Python<'_>, reference: String) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::json(async move { images.publish(&reference).await }))
    }

    fn list_store(&self, py: Python<'_>) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::json(async move { images.list_store().await }))
    }
}

/// Named compositions.
#[pyclass(frozen)]
pub(crate) struct Environments(pub(crate) Arc<Access>);

#[pymethods]
impl Environments {
    /// `request`: its JSON.
    fn create(&self, py: Python<'_>, request: &str) -> PyResult<Call> {
        let (client, request): (_, EnvironmentRequest) = (self.0.client(py)?, parse(py, request)?);
        Ok(Call::json(async move { client.environments().create(request).await }))
    }

    fn list(&self, py: Python<'_>) -> PyResult<Call> {
        let environments = self.0.client(py)?.environments();
        Ok(Call::json(async move { environments.list().await }))
    }

    fn inspect(&self, py: Python<'_>, reference: String) -> PyResult<Call> {
        let environments = self.0.client(py)?.environments();
        Ok(Call::json(async move { environments.inspect(&reference).await }))
    }

    fn remove(&self, py: Python<'_>, reference: String) -> PyResult<Call> {
        let environments = self.0.client(py)?.environments();
        Ok(Call::unit(async move { environments.remove(&reference).await }))
    }
}
