//! The tree of projects, in memory: who is below whom, what holds, what is used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use api::iam::{Amount, Dimension, PATH_SEPARATOR, Quota, Rights};

/// A project as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: String,
    pub(crate) parent_id: Option<String>,
    pub(crate) name: String,
    pub(crate) rights: Rights,
    pub(crate) quota: Quota,
    /// Of its sandboxes and those of all below it.
    pub(crate) used: Amount,
    pub(crate) created_ms: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    projects: BTreeMap<String, Project>,
    changed: BTreeSet<String>,
}

/// Which bound of which project stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) path: String,
    pub(crate) dimension: Dimension,
    bound: u64,
    used: u64,
    more: u64,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, dimension, bound, used, more } = self;
        let dimension = dimension.as_str();
        write!(f, "{dimension}: project `{path}` may have {bound}, has {used}, and this takes {more} more")
    }
}

impl Tree {
    pub(crate) fn new(projects: Vec<Project>) -> Self {
        let projects = projects.into_iter().map(|project| (project.id.clone(), project)).collect();
        Self { projects, changed: BTreeSet::new() }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Project> {
        self.projects.get(id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Project> {
        self.projects.values()
    }

    /// By id, or by path from the root.
    pub(crate) fn find(&self, reference: &str) -> Option<&Project> {
        self.get(reference).or_else(|| self.all().find(|project| self.path(&project.id) == reference))
    }

    /// The project and all above it, lowest first.
    pub(crate) fn chain<'a>(&'a self, id: &str) -> impl Iterator<Item = &'a Project> + use<'a> {
        let parent = |project: &&'a Project| project.parent_id.as_deref().and_then(|id| self.get(id));
        // A circle cannot come to be; it must not hang what reads a damaged store.
        std::iter::successors(self.get(id), parent).take(self.projects.len())
    }

    /// `id` itself is below it, too.
    pub(crate) fn is_below(&self, id: &str, top: &str) -> bool {
        self.chain(id).any(|project| project.id == top)
    }

    pub(crate) fn has_children(&self, id: &str) -> bool {
        self.all().any(|project| project.parent_id.as_deref() == Some(id))
    }

    pub(crate) fn depth(&self, id: &str) -> usize {
        self.chain(id).count()
    }

    pub(crate) fn path(&self, id: &str) -> String {
        let mut names: Vec<&str> = self.chain(id).map(|project| project.name.as_str()).collect();
        names.reverse();
        names.join(&PATH_SEPARATOR.to_string())
    }

    /// What it and all above it have.
    pub(crate) fn rights(&self, id: &str) -> Rights {
        match self.get(id) {
            Some(_) => self.chain(id).fold(Rights::all(), |rights, project| rights.and(project.rights)),
            None => Rights::NONE,
        }
    }

    pub(crate) fn quota(&self, id: &str) -> Quota {
        self.chain(id).fold(Quota::NONE, |quota, project| quota.and(&project.quota))
    }

    /// The lowest bound that does not hold `more`.
    pub(crate) fn exceeded(&self, id: &str, more: &Amount) -> Option<Exceeded> {
        self.chain(id).find_map(|project| {
            let dimension = project.quota.exceeded(&project.used, more)?;
            Some(Exceeded {
                path: self.path(&project.id),
                dimension,
                bound: project.quota.get(dimension).unwrap_or_default(),
                used: project.used.get(dimension),
                more: more.get(dimension),
            })
        })
    }

    pub(crate) fn add(&mut self, id: &str, amount: &Amount) {
        self.change(id, |used| used.plus(amount));
    }

    pub(crate) fn take(&mut self, id: &str, amount: &Amount) {
        self.change(id, |used| used.minus(amount));
    }

    fn change(&mut self, id: &str, change: impl Fn(&Amount) -> Amount) {
        let chain: Vec<String> = self.chain(id).map(|project| project.id.clone()).collect();
        for id in chain {
            if let Some(project) = self.projects.get_mut(&id) {
                project.used = change(&project.used);
                self.changed.insert(id);
            }
        }
    }

    /// Those whose use has changed.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Project> {
        self.changed.iter().filter_map(|id| self.get(id))
    }
}
