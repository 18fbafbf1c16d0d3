//! Projects: made, bounded and removed by keys of those above them.

use api::{
    Code, Error, Result,
    iam::{Action, DEPTH_MAX, ProjectInfo, ProjectRequest, ProjectUpdate, Quota, Rights},
};

use crate::{
    Iam, Principal, ROOT_PROJECT,
    keys::within,
    store::now_ms,
    tree::{Project, Tree},
};

/// Of one store.
const PROJECTS_MAX: usize = 100_000;

impl Iam {
    /// Errors: `permission_denied`; `not_found` for a parent that is not the project of `by` or below it; `already_exists`;
    /// `invalid_argument` where it would have more than its parent.
    pub async fn project_create(&self, by: &Principal, request: &ProjectRequest) -> Result<ProjectInfo> {
        request.validate()?;
        by.may(Action::ProjectWrite)?;
        let tree = self.store.projects().await?;
        let parent_id = within(&tree, by, request.parent.as_deref())?.id.clone();
        let project = Project {
            id: format!("pr-{}", uuid::Uuid::now_v7().simple()),
            parent_id: Some(parent_id.clone()),
            name: request.name.clone(),
            rights: request.rights.unwrap_or_else(Rights::all),
            quota: request.quota,
            used: Default::default(),
            created_ms: now_ms(),
        };
        let check = |tree: &Tree| {
            if tree.get(&parent_id).is_none() {
                return Err(Error::not_found("the parent is gone"));
            }
            if tree.all().count() >= PROJECTS_MAX || tree.depth(&parent_id) >= DEPTH_MAX {
                let text = format!("at most {PROJECTS_MAX} projects, and {DEPTH_MAX} in a line");
                return Err(Error::new(Code::QuotaExceeded, text));
            }
            no_wider(tree, &parent_id, request.rights, &project.quota)
        };
        self.store.insert_project(&project, check).await?;
        self.changed();
        self.project_inspect(by, &project.id).await
    }

    /// The project of `by` and all below it, by path.
    pub async fn project_list(&self, by: &Principal) -> Result<Vec<ProjectInfo>> {
        by.may(Action::ProjectRead)?;
        let tree = self.store.projects().await?;
        let below = tree.all().filter(|project| tree.is_below(&project.id, by.project_id.as_str()));
        let mut infos: Vec<ProjectInfo> = below.map(|project| info(&tree, project)).collect();
        infos.sort_by(|one, two| one.path.cmp(&two.path));
        Ok(infos)
    }

    /// Without a reference: the project of `by`. Errors: `permission_denied`, `not_found`.
    pub async fn project_inspect(&self, by: &Principal, reference: &str) -> Result<ProjectInfo> {
        by.may(Action::ProjectRead)?;
        let tree = self.store.projects().await?;
        Ok(info(&tree, within(&tree, by, Some(reference))?))
    }

    /// Bounds a project. One's own is bounded by keys of those above; the root, which has none above, by its own. What runs
    /// stays, whatever the bounds. Errors: `permission_denied`, `not_found`, `invalid_argument`.
    pub async fn project_update(
        &self,
        by: &Principal,
        reference: &str,
        update: &ProjectUpdate,
    ) -> Result<ProjectInfo> {
        by.may(Action::ProjectWrite)?;
        let tree = self.store.projects().await?;
        let project = within(&tree, by, Some(reference))?;
        if project.id == by.project_id.as_str() && project.id != ROOT_PROJECT {
            let text = "a project is bounded from above: ask with a key of a project above it";
            return Err(Error::new(Code::PermissionDenied, text));
        }
        if project.id == ROOT_PROJECT && update.rights.is_some() {
            return Err(Error::invalid("rights: the root project has all of them"));
        }
        let id = project.id.clone();
        let check = |tree: &Tree| {
            let parent =
                tree.get(&id).ok_or_else(|| Error::not_found("the project is gone"))?.parent_id.clone();
            let quota = update.quota.unwrap_or(Quota::NONE);
            parent.map_or(Ok(()), |parent| no_wider(tree, &parent, update.rights, &quota))
        };
        self.store.update_project(&id, update, check).await?;
        self.changed();
        self.project_inspect(by, &id).await
    }

    /// Errors: `permission_denied`, `not_found`; `conflict` while it has children, keys that work or sandboxes.
    pub async fn project_remove(&self, by: &Principal, reference: &str) -> Result<()> {
        by.may(Action::ProjectWrite)?;
        let tree = self.store.projects().await?;
        let id = within(&tree, by, Some(reference))?.id.clone();
        if id == by.project_id.as_str() {
            return Err(Error::new(Code::Conflict, "the key that asks is of this project"));
        }
        let check = |tree: &Tree| {
            let project = tree.get(&id).ok_or_else(|| Error::not_found("the project is gone"))?;
            let conflict = |what| Err(Error::new(Code::Conflict, format!("the project has {what}")));
            match (tree.has_children(&id), project.used.is_nothing()) {
                (true, _) => conflict("projects below it"),
                (_, false) => conflict("sandboxes"),
                _ => Ok(()),
            }
        };
        self.store.remove_project(&id, check).await?;
        self.changed();
        Ok(())
    }
}

/// Courtesy: what holds is computed from the whole chain, at each moment.
fn no_wider(tree: &Tree, parent_id: &str, rights: Option<Rights>, quota: &Quota) -> Result<()> {
    let wider = rights.unwrap_or(Rights::NONE).without(tree.rights(parent_id));
    if wider != Rights::NONE {
        return Err(Error::invalid(format!("rights: the parent has not `{wider}`")));
    }
    match quota.wider_than(&tree.quota(parent_id)) {
        Some(dimension) => {
            let bound = tree.quota(parent_id).get(dimension).unwrap_or_default();
            Err(Error::invalid(format!("quota: the parent has at most {bound} {}", dimension.as_str())))
        }
        None => Ok(()),
    }
}

fn info(tree: &Tree, project: &Project) -> ProjectInfo {
    ProjectInfo {
        id: project.id.clone(),
        path: tree.path(&project.id),
        parent_id: project.parent_id.clone(),
        rights: project.rights,
        quota: project.quota,
        rights_effective: tree.rights(&project.id),
        quota_effective: tree.quota(&project.id),
        used: project.used,
        created_ms: project.created_ms,
    }
}
