//! Who is here: sandboxes by id, by name, and by the key of the request that made them.
//!
//! A name is taken when its sandbox enters and free when it is gone; there is no moment between, so of two creates with
//! one name exactly one enters. A key lives as long as one of its sandboxes does.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use api::{
    Code, Error, Result, SandboxId,
    spec::{CreateRequest, ListQuery, SandboxSpec, root_project},
};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::{ledger::EntryKey, sandbox::Sandbox};

/// Item by item, what a keyed request has made.
pub(crate) type Items = Vec<Option<SandboxId>>;

/// One idempotency key.
pub(crate) struct Keyed {
    /// With its project.
    key: (String, String),
    count: u32,
    spec: SandboxSpec,
    items: Arc<AsyncMutex<Items>>,
}

/// The right to work on a key's items. Others with the same key wait for it.
pub(crate) struct KeyTurn {
    keyed: Arc<Keyed>,
    pub(crate) items: OwnedMutexGuard<Items>,
}

#[derive(Default)]
struct Inner {
    sandboxes: BTreeMap<SandboxId, Arc<Sandbox>>,
    /// Of a project.
    names: HashMap<(String, String), SandboxId>,
    /// Of a project.
    keys: HashMap<(String, String), Arc<Keyed>>,
}

#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

impl Inner {
    fn forget_key_if_unused(&mut self, key: &(String, String), items: &Items) {
        if !items.iter().flatten().any(|id| self.sandboxes.contains_key(id)) {
            self.keys.remove(key);
        }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Errors: `already_exists` where a living sandbox has the name.
    pub(crate) fn enter(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        let mut inner = self.lock();
        if let Some(name) = &sandbox.spec.name {
            let name_of = (sandbox.project.clone(), name.clone());
            if let Some(holder) = inner.names.get(&name_of) {
                let message = format!("name: `{name}` is the name of {holder}");
                return Err(Error::new(Code::AlreadyExists, message));
            }
            inner.names.insert(name_of, sandbox.id.clone());
        }
        inner.sandboxes.insert(sandbox.id.clone(), sandbox.clone());
        Ok(())
    }

    /// It is gone: its id is unknown and its name free.
    pub(crate) fn leave(&self, sandbox: &Sandbox) {
        let mut inner = self.lock();
        inner.sandboxes.remove(&sandbox.id);
        let of_project = |text: &String| (sandbox.project.clone(), text.clone());
        if let Some(name) = sandbox.spec.name.as_ref().map(of_project)
            && inner.names.get(&name) == Some(&sandbox.id)
        {
            inner.names.remove(&name);
        }
        if let Some(key) = sandbox.key.as_ref().map(|key| of_project(&key.key))
            && let Some(keyed) = inner.keys.get(&key).cloned()
            // Whoever holds the items looks after the key when done.
            && let Ok(items) = keyed.items.try_lock()
        {
            inner.forget_key_if_unused(&key, &items);
        }
    }

    /// Errors: `not_found`.
    pub(crate) fn get(&self, id: &SandboxId) -> Result<Arc<Sandbox>> {
        let unknown = || Error::not_found(format!("no sandbox {id} on this node"));
        self.lock().sandboxes.get(id).cloned().ok_or_else(unknown)
    }

    /// All, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.lock().sandboxes.values().cloned().collect()
    }

    /// Errors: `invalid_argument` for a label that is not `key=value`.
    pub(crate) fn list(&self, query: &ListQuery) -> Result<Vec<Arc<Sandbox>>> {
        let label = match &query.label {
            Some(text) => Some(text.split_once('=').ok_or_else(|| {
                Error::invalid(format!("label: `{}` is not `key=value`", text.escape_default()))
            })?),
            None => None,
        };
        let matches = |sandbox: &Arc<Sandbox>| {
            let name = query.name.is_none() || sandbox.spec.name == query.name;
            let labels = &sandbox.spec.labels;
            name && label.is_none_or(|(key, value)| labels.get(key).is_some_and(|v| v == value))
        };
        Ok(self.all().into_iter().filter(matches).collect())
    }

    /// Waits until nobody else works on the key. Errors: `conflict` where it was used for another request.
    pub(crate) async fn key_turn(&self, request: &CreateRequest, key: &str) -> Result<KeyTurn> {
        let of_project = (request.project.clone().unwrap_or_else(root_project), key.to_owned());
        loop {
            let keyed = {
                let mut inner = self.lock();
                let new = || {
                    let items = Arc::new(AsyncMutex::new(vec![None; request.count as usize]));
                    let (key, count, spec) = (of_project.clone(), request.count, request.spec.clone());
                    Arc::new(Keyed { key, count, spec, items })
                };
                inner.keys.entry(of_project.clone()).or_insert_with(new).clone()
            };
            if keyed.count != request.count || keyed.spec != request.spec {
                let message = format!("idempotency_key: `{key}` was used for another request");
                return Err(Error::new(Code::Conflict, message));
            }
            let turn = KeyTurn { items: keyed.items.clone().lock_owned().await, keyed };
            // While we waited the key may have ended, and begun anew.
            if self.lock().keys.get(&of_project).is_some_and(|now| Arc::ptr_eq(now, &turn.keyed)) {
                return Ok(turn);
            }
        }
    }

    /// Ends a turn: a key that has made nothing is free again.
    pub(crate) fn end_key_turn(&self, turn: KeyTurn) {
        let mut inner = self.lock();
        inner.forget_key_if_unused(&turn.keyed.key, &turn.items);
        // The lock on the items goes before the one on the books, so that nobody sees the one without the other.
        drop(turn);
    }

    /// After a restart: the sandbox was made under this key.
    pub(crate) fn restore_key(&self, entry: &EntryKey, sandbox: &Sandbox) {
        let mut inner = self.lock();
        let key = (sandbox.project.clone(), entry.key.clone());
        let keyed = inner.keys.entry(key.clone()).or_insert_with(|| {
            let items = Arc::new(AsyncMutex::new(vec![None; entry.count as usize]));
            Arc::new(Keyed { key, count: entry.count, spec: sandbox.spec.clone(), items })
        });
        // Nobody calls yet: the lock is free.
        if let Ok(mut items) = keyed.items.try_lock()
            && let Some(item) = items.get_mut(entry.index as usize)
        {
            *item = Some(sandbox.id.clone());
        }
    }
}
