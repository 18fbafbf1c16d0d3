//! The catalogue of layers.

use std::{path::PathBuf, sync::Arc};

use libdsec::{ImportQuery, PullRequest};
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
}
