//! One create request: its layers are looked up once, its sandboxes are made some at a time, each is told of when it is
//! ready, one failure does not sink the rest.
//!
//! A caller who leaves in the middle of a batch: what has not been started is not started; what has stays, until its
//! TTL. With an idempotency key the caller comes back with the same request and is told of those, and the rest is made.
//! A key lives as long as one of its sandboxes; items of it that failed are tried again, items that were made and have
//! ended since are `sandbox_gone`.

use std::sync::Arc;

use api::{
    Code, Error, Result, SandboxId,
    arrow::BoxStream,
    spec::{CreateEvent, CreateRequest, SandboxInfo, root_project},
    state::State,
};
use futures_util::{StreamExt, stream, stream::FuturesUnordered};
use tokio::sync::{mpsc, oneshot};
use tracing::Instrument;

use crate::{
    clock::now_ms,
    fetch,
    ledger::{Entry, EntryKey},
    node::Parts,
    plan::{self, Composition},
    registry::KeyTurn,
    sandbox::{Actor, Begin, Sandbox, disk::Snapshot},
    tally::Working,
    uses::{Use, User},
};

/// Events that wait for the caller before the batch waits too.
const EVENTS_IN_FLIGHT: usize = 16;

/// A sandbox that is on its way.
struct Begun {
    sandbox: Arc<Sandbox>,
    ready: oneshot::Receiver<Result<()>>,
}

/// A request that is allowed to go on.
struct Batch {
    parts: Arc<Parts>,
    request: CreateRequest,
    /// Ends with the batch, however it ends.
    _working: Option<Working>,
    ground: Ground,
    turn: Option<KeyTurn>,
}

/// What all sandboxes of a request stand on, held until they do.
pub(crate) struct Ground {
    pub(crate) composition: Composition,
    pub(crate) _used: Use,
    /// What their disks start as copies of.
    pub(crate) _snapshot: Option<Snapshot>,
}

/// See `api::arrow::Edge::create`. For a request of one sandbox also `no_capacity` and `already_exists` are errors of
/// the whole, before anything is made.
#[tracing::instrument(level = "debug", name = "edge.create", skip_all)]
pub(crate) async fn create(parts: &Arc<Parts>, request: CreateRequest) -> Result<BoxStream<CreateEvent>> {
    parts.check_open()?;
    request.validate()?;
    start(parts, request, resolve).await
}

/// The rest of a request that is sound; `resolve` finds what its sandboxes stand on.
pub(crate) async fn start(
    parts: &Arc<Parts>,
    request: CreateRequest,
    resolve: impl AsyncFnOnce(&Arc<Parts>, &CreateRequest) -> Result<Ground>,
) -> Result<BoxStream<CreateEvent>> {
    let working = request.reservation.clone().map(|reservation| parts.tallies.work(reservation));
    parts.runtime(request.spec.kind)?;
    let turn = match &request.idempotency_key {
        Some(key) => Some(parts.registry.key_turn(&request, key).await?),
        None => None,
    };
    if request.made_only && !turn.as_ref().is_some_and(|turn| turn.items.iter().any(Option::is_some)) {
        turn.into_iter().for_each(|turn| parts.registry.end_key_turn(turn));
        return Err(no_quota());
    }
    let ground = match resolve(parts, &request).await {
        Ok(found) => found,
        Err(error) => {
            turn.into_iter().for_each(|turn| parts.registry.end_key_turn(turn));
            return Err(error);
        }
    };
    let _working = working;
    let batch = Batch { parts: parts.clone(), request, _working, ground, turn };
    let first = match batch.begin_single() {
        Ok(first) => first,
        Err(error) => {
            batch.end();
            return Err(error);
        }
    };
    let (events, receiver) = mpsc::channel(EVENTS_IN_FLIGHT);
    tokio::spawn(batch.drive(first, events).in_current_span());
    Ok(Box::pin(stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (event, receiver))
    })))
}

/// Looks the images up, and holds them until the sandboxes do.
async fn resolve(parts: &Arc<Parts>, request: &CreateRequest) -> Result<Ground> {
    fetch::ensure(parts, request.spec.images()).await?;
    let _no_removal = parts.images.read().await;
    let composition = plan::resolve(parts.layers.as_ref(), &request.spec)?;
    let used = parts.uses.hold(&composition.images, &composition.digests(), User::Request);
    Ok(Ground { composition, _used: used, _snapshot: None })
}

/// The apiserver knows which bound of which project it was.
fn no_quota() -> Error {
    Error::new(Code::QuotaExceeded, "the project's quota holds no more sandboxes")
}

impl Batch {
    fn made(&self, index: u32) -> Option<&SandboxId> {
        self.turn.as_ref().and_then(|turn| turn.items.get(index as usize)).and_then(Option::as_ref)
    }

    /// A request of one is admitted before it is answered, so that its refusal is the answer.
    fn begin_single(&self) -> Result<Option<Begun>> {
        if self.request.count > 1 || self.made(0).is_some() {
            return Ok(None);
        }
        self.begin(0).map(Some)
    }

    /// Admits one sandbox and starts its actor. Errors: `no_capacity`, `already_exists`.
    #[tracing::instrument(level = "debug", name = "edge.admit", skip_all)]
    fn begin(&self, index: u32) -> Result<Begun> {
        let parts = &self.parts;
        parts.check_open()?;
        if self.request.made_only {
            return Err(no_quota());
        }
        let spec = &self.request.spec;
        let runtime = parts.runtime(spec.kind)?;
        let reservation = parts.admission.reserve(spec)?;
        let place = parts.gate.enter()?;
        let id = SandboxId::new(&parts.config.edge);
        let created_ms = now_ms();
        let key = self.request.idempotency_key.clone();
        let composition = &self.ground.composition;
        let entry = Entry {
            version: parts.ledger.version(),
            boot_id: parts.ledger.boot_id().to_owned(),
            id: id.clone(),
            spec: spec.clone(),
            project: self.request.project.clone().unwrap_or_else(root_project),
            reservation: self.request.reservation.clone(),
            layers: composition.digests(),
            images: composition.images.clone(),
            config: composition.config.clone(),
            checkpoints: Vec::new(),
            rolling_back: None,
            state: State::Creating,
            created_ms,
            expires_ms: created_ms.saturating_add(spec.ttl_ms),
            record: serde_json::Value::Null,
            key: key.map(|key| EntryKey { key, index, count: self.request.count }),
        };
        let (sandbox, ends) = Sandbox::new(&entry, &parts.config.spool_dir);
        parts.registry.enter(&sandbox)?;
        let used = parts.uses.hold(&composition.images, &composition.digests(), User::Sandbox);
        parts.usages.count(&composition.images);
        let actor =
            Actor::new((sandbox.clone(), ends), (entry, None), (runtime, parts.clone()), (reservation, used));
        let plan = Box::new(plan::plan_sandbox(&id, spec, composition));
        let (done, ready) = oneshot::channel();
        let span = tracing::debug_span!("edge.sandbox.create", sandbox_id = %id);
        actor.start(Begin::Create { plan, place, ready: done, span });
        Ok(Begun { sandbox, ready })
    }

    /// What an earlier request with this key has made.
    fn again(&self, id: &SandboxId) -> Result<SandboxInfo> {
        let gone =
            || Error::new(Code::SandboxGone, format!("{id} was made under this key and has ended since"));
        self.parts.registry.get(id).map(|sandbox| sandbox.info()).map_err(|_| gone())
    }

    async fn drive(mut self, first: Option<Begun>, events: mpsc::Sender<CreateEvent>) {
        let in_flight_max = self.parts.config.batch_in_flight_max;
        let mut making = FuturesUnordered::new();
        let mut next = 0;
        if let Some(begun) = first {
            making.push(finish(0, begun));
            next = 1;
        }
        loop {
            while next < self.request.count && making.len() < in_flight_max && !events.is_closed() {
                let index = next;
                next += 1;
                let known = self.made(index).cloned();
                let result = match known {
                    Some(id) => self.again(&id),
                    None => match self.begin(index) {
                        Ok(begun) => {
                            making.push(finish(index, begun));
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                };
                tell(&events, index, result).await;
            }
            let Some((index, result)) = making.next().await else { break };
            if let (Some(turn), Ok(sandbox)) = (&mut self.turn, &result) {
                turn.items[index as usize] = Some(sandbox.id.clone());
            }
            tell(&events, index, result).await;
        }
        self.end();
    }

    fn end(self) {
        if let Some(turn) = self.turn {
            self.parts.registry.end_key_turn(turn);
        }
    }
}

async fn finish(index: u32, begun: Begun) -> (u32, Result<SandboxInfo>) {
    let ready = begun.ready.await.unwrap_or_else(|_| Err(Error::internal("the sandbox's actor ended")));
    (index, ready.map(|()| begun.sandbox.info()))
}

async fn tell(events: &mpsc::Sender<CreateEvent>, index: u32, result: Result<SandboxInfo>) {
    let event = match result {
        Ok(sandbox) => CreateEvent::Created { index, sandbox },
        Err(error) => CreateEvent::Failed { index, error },
    };
    // A caller who has left is not told; the rest is decided by the loop.
    let _ = events.send(event).await;
}
