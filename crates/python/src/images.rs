//! The catalogue of layers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use libdsec::{
    Build, Built, EnvironmentRequest, ExportFormat, ImportQuery, MergeRequest, Network, PullRequest, Scrub,
    TagRequest,
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{
    call::Call,
    client::{Access, parse},
};

/// A build's arguments; what is absent is as of `Build::new`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    dockerfile: Option<PathBuf>,
    tag: Option<String>,
    #[serde(default)]
    arguments: BTreeMap<String, String>,
    network: Network,
    memory_bytes_max: Option<u64>,
    cpu_millis_max: Option<u32>,
    disk_bytes_max: Option<u64>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    skip: BTreeSet<String>,
    #[serde(default)]
    scrub: Scrub,
    #[serde(default)]
    no_cache: bool,
}

impl Options {
    fn into_build(self, context: PathBuf) -> Build {
        let default = Build::new(context);
        Build {
            dockerfile: self.dockerfile,
            tag: self.tag,
            arguments: self.arguments,
            network: self.network,
            memory_bytes_max: self.memory_bytes_max.unwrap_or(default.memory_bytes_max),
            cpu_millis_max: self.cpu_millis_max.unwrap_or(default.cpu_millis_max),
            disk_bytes_max: self.disk_bytes_max.unwrap_or(default.disk_bytes_max),
            timeout: self.timeout_ms.map_or(default.timeout, Duration::from_millis),
            skip: self.skip,
            scrub: self.scrub,
            no_cache: self.no_cache,
            ..default
        }
    }
}

#[derive(Serialize)]
struct Report {
    image: libdsec::ImageInfo,
    steps_run: usize,
    steps_cached: usize,
}

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

    /// `options`: JSON of a build's arguments.
    fn build(&self, py: Python<'_>, context: PathBuf, options: &str) -> PyResult<Call> {
        let (client, options): (_, Options) = (self.0.client(py)?, parse(py, options)?);
        let build = options.into_build(context);
        Ok(Call::json(async move {
            // Dropped, it stops its sandbox.
            let built = client.build(&build, |_| (), std::future::pending()).await?;
            let Built { image, steps_run, steps_cached } = built;
            Ok(Report { image, steps_run, steps_cached })
        }))
    }

    /// `request`: JSON of a tag's arguments.
    fn tag(&self, py: Python<'_>, reference: String, request: &str) -> PyResult<Call> {
        let (images, request): (_, TagRequest) = (self.0.client(py)?.images(), parse(py, request)?);
        Ok(Call::json(async move { images.tag(&reference, request).await }))
    }

    fn prune(&self, py: Python<'_>) -> PyResult<Call> {
        let images = self.0.client(py)?.images();
        Ok(Call::json(async move { images.prune().await }))
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
