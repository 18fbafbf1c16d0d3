//! create: one sandbox, or many that come as they are ready.
//!
//! Each request carries an idempotency key, so a lost connection is answered by asking again: the same sandboxes come
//! back, and those already handed out are skipped by their index. Nothing is made twice.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use api::{
    Class, Error, Result, SandboxId,
    arrow::{BoxStream, Front},
    snapshot::ForkRequest,
    spec::{CreateEvent, CreateRequest, SandboxInfo, SandboxSpec},
};
use futures_core::Stream;
use futures_util::{StreamExt, stream};

use super::Sandbox;
use crate::retry;

/// The sandboxes of one batch, in order of readiness. A [`Stream`]; also [`Created::next`]. Dropping it stops
/// listening: sandboxes that are made anyway live until their TTL.
pub struct Created {
    inner: BoxStream<Result<Sandbox>>,
}

/// What is asked for, as often as need be: it carries a key.
enum Asked {
    Create(CreateRequest),
    Fork(SandboxId, ForkRequest),
}

impl Asked {
    fn count(&self) -> u32 {
        match self {
            Self::Create(request) => request.count,
            Self::Fork(_, request) => request.count,
        }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Self::Create(request) => request.validate(),
            Self::Fork(_, request) => request.validate(),
        }
    }

    async fn ask(&self, front: &dyn Front) -> Result<BoxStream<CreateEvent>> {
        match self {
            Self::Create(request) => front.create(request.clone()).await,
            Self::Fork(source, request) => front.fork(source, request.clone()).await,
        }
    }
}

fn made_up() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Created {
    pub(crate) fn new(front: Arc<dyn Front>, count: u32, spec: SandboxSpec, key: Option<String>) -> Self {
        let idempotency_key = Some(key.unwrap_or_else(made_up));
        Self::asked(
            front,
            Asked::Create(CreateRequest { idempotency_key, ..CreateRequest::many(count, spec) }),
        )
    }

    pub(crate) fn forked(front: Arc<dyn Front>, source: SandboxId, mut request: ForkRequest) -> Self {
        request.idempotency_key.get_or_insert_with(made_up);
        Self::asked(front, Asked::Fork(source, request))
    }

    fn asked(front: Arc<dyn Front>, request: Asked) -> Self {
        let batch = Batch { front, request, events: None, seen: HashSet::new(), attempt: 1, ended: false };
        Self {
            inner: stream::unfold(batch, |mut b| async move { b.next().await.map(|item| (item, b)) }).boxed(),
        }
    }

    /// The next one that is ready; None when all have been answered.
    pub async fn next(&mut self) -> Option<Result<Sandbox>> {
        self.inner.next().await
    }
}

impl Stream for Created {
    type Item = Result<Sandbox>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.as_mut().poll_next(context)
    }
}

struct Batch {
    front: Arc<dyn Front>,
    request: Asked,
    events: Option<BoxStream<CreateEvent>>,
    /// Items answered already.
    seen: HashSet<u32>,
    attempt: u32,
    ended: bool,
}

impl Batch {
    async fn next(&mut self) -> Option<Result<Sandbox>> {
        loop {
            if self.ended || self.seen.len() >= self.request.count() as usize && self.request.count() > 0 {
                return None;
            }
            let Some(events) = &mut self.events else {
                if let Err(e) = self.ask().await {
                    self.ended = true;
                    return Some(Err(e));
                }
                continue;
            };
            match events.next().await {
                Some(event) => {
                    if let Some(item) = self.accept(event) {
                        return Some(item);
                    }
                }
                None => self.events = None,
            }
        }
    }

    /// Sends the request, again if need be.
    async fn ask(&mut self) -> Result<()> {
        self.request.validate()?;
        loop {
            let error = match self.request.ask(self.front.as_ref()).await {
                Ok(events) if self.attempt <= retry::ATTEMPTS_MAX => {
                    self.events = Some(events);
                    self.attempt += 1;
                    return Ok(());
                }
                Ok(_) => return Err(Error::internal("the answer to a create was cut off again and again")),
                Err(e) => e,
            };
            if self.attempt >= retry::ATTEMPTS_MAX || !retry::may_heal(&error) {
                return Err(error);
            }
            tokio::time::sleep(retry::wait(self.attempt, &error)).await;
            self.attempt += 1;
        }
    }

    fn accept(&mut self, event: CreateEvent) -> Option<Result<Sandbox>> {
        if let CreateEvent::Failed { error, .. } = &event
            && error.code.class() == Class::Broken
            && self.attempt <= retry::ATTEMPTS_MAX
        {
            // A cut connection is told as a failure of all that was still to come. Asked again, the server tells what
            // became of each.
            self.events = None;
            return None;
        }
        let (index, item) = match event {
            CreateEvent::Created { index, sandbox } => (index, Ok(self.handle(sandbox))),
            CreateEvent::Failed { index, error } => (index, Err(error)),
        };
        self.seen.insert(index).then_some(item)
    }

    fn handle(&self, info: SandboxInfo) -> Sandbox {
        Sandbox::new(self.front.clone(), info)
    }
}

pub(crate) async fn one(front: Arc<dyn Front>, spec: SandboxSpec) -> Result<Sandbox> {
    let mut created = Created::new(front, 1, spec, None);
    created.next().await.unwrap_or_else(|| Err(Error::internal("the server answered a create with nothing")))
}
