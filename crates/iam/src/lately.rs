//! The tree of projects as it was read lately, so that a request costs no query.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{
    Result,
    iam::{Dimension, Rights},
};

use crate::{Iam, Principal, keys::within, tree::Tree};

/// How long a change by another process may go unseen.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Lately(Mutex<State>);

#[derive(Default)]
struct State {
    /// Grows with each change here: what was read before it is not taken in after it.
    generation: u64,
    tree: Option<(Instant, Arc<Tree>)>,
}

impl Lately {
    pub(crate) fn forget(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.generation += 1;
        state.tree = None;
    }
}

impl Iam {
    pub(crate) async fn tree(&self) -> Result<Arc<Tree>> {
        let generation = {
            let state = self.lately.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, tree)) = &state.tree
                && since.elapsed() < AGE_MAX
            {
                return Ok(tree.clone());
            }
            state.generation
        };
        let tree = Arc::new(self.store.projects().await?);
        let mut state = self.lately.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.generation == generation {
            state.tree = Some((Instant::now(), tree.clone()));
        }
        Ok(tree)
    }

    /// Whether a project is that of `who`, or below it.
    pub async fn is_within(&self, project_id: &str, who: &Principal) -> Result<bool> {
        Ok(project_id == who.project_id.as_str()
            || self.tree().await?.is_below(project_id, who.project_id.as_str()))
    }

    /// What a project, and all above it, may.
    pub async fn rights_of(&self, project_id: &str) -> Result<Rights> {
        Ok(self.tree().await?.rights(project_id))
    }

    /// Whether it or one above it has any bound.
    pub async fn is_bounded(&self, project_id: &str) -> Result<bool> {
        let quota = self.tree().await?.quota(project_id).with(Dimension::CreatesPerS, None);
        Ok(quota != api::iam::Quota::NONE)
    }

    /// How many sandboxes a second it and those above it may create, where one of them has such a bound: each with its id.
    pub async fn rates(&self, project_id: &str) -> Result<Vec<(String, u64)>> {
        let tree = self.tree().await?;
        let bound = |project: &crate::tree::Project| {
            Some((project.id.clone(), project.quota.get(Dimension::CreatesPerS)?))
        };
        Ok(tree.chain(project_id).filter_map(bound).collect())
    }

    /// The id of the project of `who`, or of the one below it that is named. Errors: `not_found`.
    pub async fn project_within(&self, who: &Principal, reference: Option<&str>) -> Result<String> {
        let tree = self.tree().await?;
        match within(&tree, who, reference) {
            Ok(project) => Ok(project.id.clone()),
            // It may have been made a moment ago, by another process.
            Err(_) => Ok(within(&self.store.projects().await?, who, reference)?.id.clone()),
        }
    }
}
