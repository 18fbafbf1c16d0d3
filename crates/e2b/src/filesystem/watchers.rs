//! Watchers that are polled, and events in their words.
//!
//! Ours is a stream, theirs may be a list that grows until it is fetched: it grows here, in this apiserver, within
//! bounds. A watcher that nobody polls for long is forgotten.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use api::{
    RequestId, SandboxId,
    file::{WatchEvent, WatchKind},
};
use serde_json::{Value, json};
use tokio::task::AbortHandle;

use super::watch::Watched;
use crate::fault::Fault;

const WATCHERS_MAX: usize = 4096;
const OF_SANDBOX_MAX: usize = 64;
/// Events that wait to be fetched.
const EVENTS_MAX: usize = 4096;
const UNPOLLED_MAX: Duration = Duration::from_secs(3600);
/// Names that a watch remembers.
const KNOWN_MAX: usize = 50_000;
/// An upload is a file of this name that then takes the place of its target.
const UPLOAD_PREFIX: &str = ".dsec-upload-";

/// Our events made theirs.
pub(super) struct Events {
    known: HashSet<String>,
    /// The last event took an upload from its temporary name.
    uploaded: bool,
}

impl Events {
    pub(super) fn new(known: impl IntoIterator<Item = String>) -> Self {
        Self { known: known.into_iter().collect(), uploaded: false }
    }

    /// Faults: `data_loss` where the kernel dropped events.
    pub(super) fn read(&mut self, event: &WatchEvent) -> Result<Vec<Value>, Fault> {
        let name = event.name.to_text();
        let last = name.rsplit('/').next().unwrap_or_default();
        if last.starts_with(UPLOAD_PREFIX) {
            self.uploaded = event.kind == WatchKind::MovedFrom;
            return Ok(Vec::new());
        }
        let uploaded = std::mem::take(&mut self.uploaded);
        let kinds: &[&str] = match event.kind {
            WatchKind::Created => &["CREATE"],
            WatchKind::MovedTo if uploaded && self.known.contains(&name) => &["WRITE"],
            WatchKind::MovedTo if uploaded => &["CREATE", "WRITE"],
            WatchKind::MovedTo => &["CREATE"],
            WatchKind::Modified => &["WRITE"],
            WatchKind::Removed => &["REMOVE"],
            WatchKind::MovedFrom => &["RENAME"],
            WatchKind::Overflow => {
                return Err(Fault::lost(
                    "more happened than could be told: list the directory and watch again",
                ));
            }
        };
        if matches!(event.kind, WatchKind::Removed | WatchKind::MovedFrom) {
            self.known.remove(&name);
        } else if self.known.len() < KNOWN_MAX {
            self.known.insert(name.clone());
        }
        Ok(kinds.iter().map(|kind| json!({ "name": name, "type": format!("EVENT_TYPE_{kind}") })).collect())
    }
}

#[derive(Default)]
struct Waiting {
    events: Vec<Value>,
    /// Told at the next fetch.
    fault: Option<Fault>,
}

struct Watcher {
    sandbox: SandboxId,
    waiting: Arc<Mutex<Waiting>>,
    polled: Instant,
    task: AbortHandle,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
pub(crate) struct Watchers(Mutex<HashMap<String, Watcher>>);

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watcher>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Faults: too many.
    pub(super) fn add(&self, sandbox: &SandboxId, watched: Watched) -> Result<String, Fault> {
        let mut watchers = self.lock();
        watchers.retain(|_, w| w.polled.elapsed() < UNPOLLED_MAX && !w.task.is_finished());
        let of_sandbox = watchers.values().filter(|w| w.sandbox == *sandbox).count();
        if of_sandbox >= OF_SANDBOX_MAX || watchers.len() >= WATCHERS_MAX {
            let message = format!("too many watchers: {OF_SANDBOX_MAX} of a sandbox, {WATCHERS_MAX} in all");
            return Err(api::Error::new(api::Code::QuotaExceeded, message).into());
        }
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let task = tokio::spawn(gather(watched, waiting.clone())).abort_handle();
        // Random enough that nobody guesses another's.
        let id = RequestId::new().as_str().replace("rq-", "w-");
        let watcher = Watcher { sandbox: sandbox.clone(), waiting, polled: Instant::now(), task };
        watchers.insert(id.clone(), watcher);
        Ok(id)
    }

    /// What came since the last time. Faults: `not_found`, `data_loss`.
    pub(super) fn take(&self, sandbox: &SandboxId, id: &str) -> Result<Vec<Value>, Fault> {
        let mut watchers = self.lock();
        let watcher = watchers.get_mut(id).filter(|w| w.sandbox == *sandbox).ok_or_else(|| unknown(id))?;
        watcher.polled = Instant::now();
        let mut waiting = watcher.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(std::mem::take(&mut waiting.events)),
        }
    }

    /// Faults: `not_found`.
    pub(super) fn remove(&self, sandbox: &SandboxId, id: &str) -> Result<(), Fault> {
        let mut watchers = self.lock();
        if watchers.get(id).is_some_and(|w| w.sandbox == *sandbox) {
            watchers.remove(id);
            return Ok(());
        }
        Err(unknown(id))
    }
}

fn unknown(id: &str) -> Fault {
    let id: String = id.chars().take(80).collect();
    Fault::not_found(format!("watcher {id} not found"))
}

async fn gather(mut watched: Watched, waiting: Arc<Mutex<Waiting>>) {
    while let Some(next) = watched.next().await {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Ok(events) if waiting.events.len() + events.len() <= EVENTS_MAX => waiting.events.extend(events),
            Ok(_) => {
                waiting.events.clear();
                waiting.fault =
                    Some(Fault::lost(format!("over {EVENTS_MAX} events came without being fetched")));
            }
            Err(fault) => waiting.fault = Some(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::payload::Payload;

    fn told(events: &mut Events, kind: WatchKind, name: &'static str) -> Vec<(String, String)> {
        let event = WatchEvent { kind, name: Payload::from(name.as_bytes()) };
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        events.read(&event).unwrap().iter().map(|e| (text(&e["type"]), text(&e["name"]))).collect()
    }

    #[test]
    fn an_upload_is_a_write_and_its_temporary_name_is_not_told() {
        let mut events = Events::new(["old".to_owned()]);
        for (target, kinds) in [("old", &["WRITE"][..]), ("new", &["CREATE", "WRITE"]), ("new", &["WRITE"])] {
            assert_eq!(told(&mut events, WatchKind::Created, "d/.dsec-upload-1"), []);
            assert_eq!(told(&mut events, WatchKind::Modified, "d/.dsec-upload-1"), []);
            assert_eq!(told(&mut events, WatchKind::MovedFrom, "d/.dsec-upload-1"), []);
            let expected: Vec<_> =
                kinds.iter().map(|k| (format!("EVENT_TYPE_{k}"), target.to_owned())).collect();
            assert_eq!(told(&mut events, WatchKind::MovedTo, target), expected);
        }
        let moved = told(&mut events, WatchKind::MovedTo, "other");
        assert_eq!(moved, [("EVENT_TYPE_CREATE".to_owned(), "other".to_owned())]);
        let gone = told(&mut events, WatchKind::MovedFrom, "other");
        assert_eq!(gone, [("EVENT_TYPE_RENAME".to_owned(), "other".to_owned())]);
    }

    #[test]
    fn what_the_kernel_dropped_is_said() {
        let event = WatchEvent { kind: WatchKind::Overflow, name: Payload::default() };
        assert!(Events::new([]).read(&event).is_err());
    }
}
