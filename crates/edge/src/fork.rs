//! fork: sandboxes with the spec and the layers of another, whose disks start as copies of its disk.

use std::sync::Arc;

use api::{
    Code, Error, Result, SandboxId,
    arrow::BoxStream,
    snapshot::ForkRequest,
    spec::{CreateEvent, CreateRequest, SandboxSpec, Scratch},
};

use crate::{create, node::Parts, plan, uses::User};

/// See `api::arrow::Edge::fork`.
#[tracing::instrument(level = "debug", name = "edge.fork", skip_all)]
pub(crate) async fn fork(
    parts: &Arc<Parts>,
    id: &SandboxId,
    request: ForkRequest,
) -> Result<BoxStream<CreateEvent>> {
    parts.check_open()?;
    request.validate()?;
    let source = parts.registry.get(id)?;
    let spec = child_spec(&source.spec, &request)?;
    let checkpoint = request.checkpoint.clone();
    let request = CreateRequest {
        // Of this disk: the same key for another one is another request.
        idempotency_key: request
            .idempotency_key
            .map(|key| format!("fork {id} {} {key}", request.checkpoint.as_deref().unwrap_or_default())),
        project: Some(source.project.clone()),
        reservation: request.reservation,
        made_only: request.made_only,
        ..CreateRequest::many(request.count, spec)
    };
    create::start(parts, request, async |parts, request| {
        let used = parts.uses.hold(source.images(), source.layers(), User::Request);
        let (disk, snapshot) = match &checkpoint {
            Some(name) => (source.checkpoint_path(name)?, None),
            None => {
                let snapshot = source.snapshot().await?;
                (snapshot.path.clone(), Some(snapshot))
            }
        };
        let composition = plan::again(&parts.layers, &source, &request.spec, Some(disk)).await?;
        Ok(create::Ground { composition, _used: used, _snapshot: snapshot })
    })
    .await
}

/// The source's, with what the request says otherwise. A name is one sandbox's alone.
pub(crate) fn child_spec(source: &SandboxSpec, request: &ForkRequest) -> Result<SandboxSpec> {
    if source.scratch == Scratch::Memory {
        return Err(Error::new(
            Code::Unsupported,
            "its writable part is in memory (scratch: memory): there is no disk to copy",
        ));
    }
    let mut spec = SandboxSpec { name: None, hostname: None, ..source.clone() };
    spec.ttl_ms = request.ttl_ms.unwrap_or(spec.ttl_ms);
    spec.labels.extend(request.labels.clone());
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_its_sources_spec_and_no_name() {
        let mut source = SandboxSpec::new("base");
        source.name = Some("one".into());
        source.labels = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "1".to_owned())].into();
        let mut request = ForkRequest::new(3);
        request.labels = [("b".to_owned(), "2".to_owned())].into();
        request.ttl_ms = Some(7);
        let child = child_spec(&source, &request).unwrap();
        assert_eq!((child.name.as_deref(), child.ttl_ms, child.labels["b"].as_str()), (None, 7, "2"));
        assert_eq!(child.labels["a"], "1");
        source.scratch = Scratch::Memory;
        assert_eq!(child_spec(&source, &request).unwrap_err().code, Code::Unsupported);
    }
}
