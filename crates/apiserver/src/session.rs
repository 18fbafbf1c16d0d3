//! The service as one caller sees it: what its key may do, on what its project has.
//!
//! Whoever has all rights of the root project may do everything to everything, and is not looked after. For the others a
//! sandbox of a project that is neither theirs nor below it does not exist.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use api::{
    Code, Error, Result, SandboxId,
    arrow::Front,
    iam::{Action, ROOT_PROJECT, Rights},
    spec::{Kind, SandboxInfo},
};
use iam::Principal;

use crate::Apiserver;

/// Whose a sandbox is and what kind it has never change, so what was asked once is known.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<SandboxId, (String, Kind)>>);

/// More are forgotten, all at once: asking again is cheap.
const KNOWN_MAX: usize = 100_000;

impl Known {
    fn get(&self, id: &SandboxId) -> Option<(String, Kind)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn put(&self, info: &SandboxInfo) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(info.id.clone(), (info.project.clone(), info.spec.kind));
    }
}

/// The apiserver, for the holder of a key.
#[derive(Clone)]
pub struct Session {
    pub(crate) shared: Arc<Apiserver>,
    pub(crate) who: Principal,
    /// For the holders of sandboxes' tokens: who may do inside what the sandbox's project may.
    pub(crate) by_token: bool,
}

impl Apiserver {
    /// Whose a sandbox is, and its kind. Errors: `not_found`.
    pub(crate) async fn project_of(&self, id: &SandboxId, edge: &Arc<dyn Front>) -> Result<(String, Kind)> {
        if let Some(known) = self.known.get(id) {
            return Ok(known);
        }
        let info = edge.inspect(id).await?;
        self.known.put(&info);
        Ok((info.project, info.spec.kind))
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Apiserver>, who: Principal) -> Self {
        Self { shared, who, by_token: false }
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.who.project_id.as_str() == ROOT_PROJECT && self.who.rights == Rights::all()
    }

    /// What is a node's is for keys of the root project. Errors: `permission_denied`.
    pub(crate) fn may(&self, action: Action) -> Result<()> {
        let of_node = matches!(action, Action::NodeRead | Action::NodeWrite);
        if of_node && self.who.project_id.as_str() != ROOT_PROJECT {
            let text = format!("`{action}` is for keys of the root project");
            return Err(Error::new(Code::PermissionDenied, text));
        }
        self.who.may(action)
    }

    /// A change of what the node's projects share goes into the audit log.
    pub(crate) async fn noted<T>(
        &self,
        verb: &str,
        target: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let done = work.await;
        self.shared.iam.note(&self.who, verb, target, &done).await;
        done
    }

    /// The edge of a sandbox that the caller sees and may do this to. Errors: `not_found`, `permission_denied`.
    pub(crate) async fn sandbox(
        &self,
        id: &SandboxId,
        action: fn(Kind) -> Action,
    ) -> Result<&Arc<dyn Front>> {
        let edge = self.shared.edge_of(id)?;
        if !self.is_owner() {
            self.may(action(self.whose(id, edge).await?.1))?;
        }
        Ok(edge)
    }

    /// Whose a sandbox is that the caller sees, and its kind. Errors: `not_found`.
    pub(crate) async fn whose(&self, id: &SandboxId, edge: &Arc<dyn Front>) -> Result<(String, Kind)> {
        let (project, kind) = self.shared.project_of(id, edge).await?;
        match self.shared.iam.is_within(&project, &self.who).await? {
            true => Ok((project, kind)),
            false => Err(Error::not_found(format!("no sandbox `{id}`"))),
        }
    }

    /// The edge for what names none, where the key may do this to images. Errors: `permission_denied`, `no_capacity`.
    pub(crate) fn image_edge(&self, action: Action) -> Result<&Arc<dyn Front>> {
        self.may(action)?;
        self.shared.any_edge()
    }

    /// Those of `infos` that the caller sees and may read.
    pub(crate) async fn seen(&self, infos: Vec<SandboxInfo>) -> Result<Vec<SandboxInfo>> {
        if self.is_owner() {
            return Ok(infos);
        }
        let mut seen = Vec::new();
        for info in infos {
            let readable = self.who.rights.has(Action::SandboxRead(info.spec.kind));
            if readable && self.shared.iam.is_within(&info.project, &self.who).await? {
                seen.push(info);
            }
        }
        Ok(seen)
    }
}
