//! The scrub of git repositories: objects that HEAD does not reach, which may hold the answer that a later commit removed.
//!
//! What is in a repository is hostile, so nothing of it is read here: git itself cleans a copy of the sandbox, from inside,
//! with no network, and the copy is packed. The sandbox is held still for the moment of its snapshot, as for any pack.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{
    Code, Error, Result, SandboxId,
    arrow::{Chronus, ExecStream},
    exec::{ExecRequest, Exit},
    frame::{ServerFrame, Stream},
    limit,
    snapshot::{ForkRequest, PackReport, PackRequest, ScrubRule, Scrubbed},
    spec::{CreateEvent, CreateRequest, Network, SandboxSpec},
};
use futures_util::StreamExt;

use super::pack_one;
use crate::{create, fork, node::Parts, plan, sandbox::Sandbox, uses::User};

const SCRIPT: &str = include_str!("git.sh");
/// git is the sandbox's own, and may do what it likes for so long.
const CLEAN_MS_MAX: u64 = 5 * 60 * 1000;
/// What the script says of itself where there is no git.
const NO_GIT: i32 = 69;
/// A line for each repository, and complaints.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
const COMPLAINT_CHARS_MAX: usize = 500;
/// Names the sandbox that a copy is of.
const LABEL: &str = "dsec.pack";

/// As [`pack_one`], of a copy in which git has cleaned up.
pub(super) async fn pack_cleaned(
    parts: &Arc<Parts>,
    id: &SandboxId,
    mut request: PackRequest,
) -> Result<PackReport> {
    request.scrub.git_unreachable = false;
    let source = parts.registry.get(id)?;
    // Its caller has a place among the packs: so many copies there are at most.
    let (copy, frozen) = copy_of(parts, &source).await?;
    let packed = async {
        let cleaned = clean(copy.chronus()?.as_ref()).await?;
        let mut report = pack_one(parts, &copy, request).await?;
        report.frozen_us = frozen.as_micros() as u64;
        report.scrubbed_count += cleaned.len() as u64;
        report.scrubbed.extend(cleaned);
        report.scrubbed.truncate(limit::SCRUBBED_TOLD_MAX);
        Ok(report)
    };
    let packed = packed.await;
    if let Err(error) = copy.stop().await {
        tracing::warn!(%error, copy = %copy.id, "a copy that was packed ends with its TTL");
    }
    packed
}

/// A sandbox with the source's disk, and how long that was held still. It is the node's: no project sees or pays for it.
async fn copy_of(parts: &Arc<Parts>, source: &Arc<Sandbox>) -> Result<(Arc<Sandbox>, Duration)> {
    let spec = copy_spec(&source.spec, &source.id)?;
    let mut frozen = Duration::ZERO;
    let took = &mut frozen;
    let created = create::start(parts, CreateRequest::one(spec), async move |parts, request| {
        let used = parts.uses.hold(source.images(), source.layers(), User::Request);
        let snapshot = source.snapshot().await?;
        *took = snapshot.took;
        let composition =
            plan::again(&parts.layers, source, &request.spec, Some(snapshot.path.clone())).await?;
        Ok(create::Ground { composition, _used: used, _snapshot: Some(snapshot) })
    });
    let event = created.await?.next().await;
    match event {
        Some(CreateEvent::Created { sandbox, .. }) => Ok((parts.registry.get(&sandbox.id)?, frozen)),
        Some(CreateEvent::Failed { error, .. }) => Err(error),
        None => Err(Error::internal("the copy to pack was not made")),
    }
}

fn copy_spec(source: &SandboxSpec, id: &SandboxId) -> Result<SandboxSpec> {
    let request = ForkRequest { ttl_ms: Some(limit::PACK_MS_MAX + CLEAN_MS_MAX), ..ForkRequest::new(1) };
    Ok(SandboxSpec {
        network: Network::None,
        labels: BTreeMap::from([(LABEL.to_owned(), id.to_string())]),
        ..fork::child_spec(source, &request)?
    })
}

/// The repositories that have lost objects.
async fn clean(inside: &dyn Chronus) -> Result<Vec<Scrubbed>> {
    let request = ExecRequest {
        user: Some("0".into()),
        cwd: Some("/".into()),
        timeout_ms: Some(CLEAN_MS_MAX),
        ..ExecRequest::shell(SCRIPT)
    };
    let (out, complaint, exit) = collect(inside.exec(request).await?).await?;
    match exit.code {
        0 => Ok(parse(&out)),
        NO_GIT => Err(Error::new(Code::Unsupported, "scrub.git_unreachable: there is no git in the sandbox")),
        code => {
            let complaint = String::from_utf8_lossy(&complaint);
            let end: String = complaint.chars().take(COMPLAINT_CHARS_MAX).collect();
            Err(Error::new(
                Code::Conflict,
                format!("scrub.git_unreachable: git failed ({code}): {}", end.trim()),
            ))
        }
    }
}

async fn collect(mut stream: ExecStream) -> Result<(Vec<u8>, Vec<u8>, Exit)> {
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    while let Some(frame) = stream.output.recv().await {
        match frame {
            ServerFrame::Output { stream, data, .. } => {
                let into = if stream == Stream::Stdout { &mut out } else { &mut complaint };
                if into.len() + data.len() <= OUTPUT_BYTES_MAX {
                    into.extend_from_slice(&data);
                }
            }
            ServerFrame::Exit(exit) => return Ok((out, complaint, exit)),
            ServerFrame::Error(error) => return Err(error),
            ServerFrame::Started(_) | ServerFrame::Dropped { .. } | ServerFrame::Alive => {}
        }
    }
    Err(Error::internal("the copy to pack ended while git cleaned it"))
}

/// What the script says of each repository; what else is there says nothing.
fn parse(out: &[u8]) -> Vec<Scrubbed> {
    let cleaned = out.split(|byte| *byte == 0).filter_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(3, ' ');
        let (before, after): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let path = words.next()?.to_owned();
        (after < before).then_some(Scrubbed { path, rule: ScrubRule::GitUnreachable })
    });
    cleaned.take(limit::SCRUBBED_TOLD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_lost_objects_is_told() {
        let out = b"12 9 /srv/a repo/.git\x003 3 /srv/b\n9 1 /etc/.git\x00noise\x004 x /c\x00";
        let told = parse(out);
        assert_eq!(told, [Scrubbed { path: "/srv/a repo/.git".into(), rule: ScrubRule::GitUnreachable }]);
    }

    #[test]
    fn the_copy_has_no_network_and_no_name() {
        let id = SandboxId::new(&"e1".parse().unwrap());
        let mut source = SandboxSpec::new("debian");
        source.network = Network::Egress;
        source.name = Some("work".into());
        source.labels = [("team".to_owned(), "a".to_owned())].into();
        let copy = copy_spec(&source, &id).unwrap();
        assert_eq!((copy.network, copy.name, copy.labels.len()), (Network::None, None, 1));
    }
}
