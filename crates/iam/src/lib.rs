//! Who may, and how much: nested projects, keys, quota and the audit log, in one database.
//!
//! Read in this order: [`tree`] (what holds), `keys` (who asks), `projects`, `usage` (reservations and tallies), `audit`,
//! then `store`, where each is asked of the database. docs/rfd/0006-iam.md says why.
//!
//! Invariants: a key is known only to its holder, the store has its digest; what a key may do is what it, its project and all
//! above it have together; a key that was revoked, or narrowed by a project, is so at once in this process, and within
//! [`cache::AGE_MAX`] in any other on the same store; the hot path reads memory alone; no project and none above it ever
//! has more than its quota, but where the quota has shrunk.

mod audit;
mod cache;
mod key;
mod keys;
mod lately;
mod projects;
mod store;
mod tree;
mod usage;

use std::{fmt, path::Path, sync::Arc};

use api::{
    Code, Error, Result,
    iam::{Action, PrincipalKind, Rights},
};

pub use api::iam::ROOT_PROJECT;
pub use usage::Reservation;

use cache::Cache;
use lately::Lately;
use store::Store;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) String);
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}
id!(
    /// A project: `pr-<32 hex digits>`, or `pr-root`.
    ProjectId
);
id!(
    /// A key's public name, for lists and logs: `ak-<32 hex digits>`.
    KeyId
);

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub project_id: ProjectId,
    /// Names from the root.
    pub project: String,
    pub key_id: KeyId,
    pub key_name: String,
    pub kind: PrincipalKind,
    /// What it may do: the key's own rights, as far as its project and all above it have them.
    pub rights: Rights,
    /// When the key ends.
    pub expires_ms: Option<u64>,
}

impl Principal {
    /// The node itself.
    pub fn owner() -> Self {
        Self {
            project_id: ProjectId(ROOT_PROJECT.into()),
            project: "root".into(),
            key_id: KeyId("ak-owner".into()),
            key_name: "owner".into(),
            kind: PrincipalKind::Service,
            rights: Rights::all(),
            expires_ms: None,
        }
    }

    /// Errors: `permission_denied`.
    pub fn may(&self, action: Action) -> Result<()> {
        if self.rights.has(action) {
            return Ok(());
        }
        let text =
            format!("the key `{}` of project `{}` has not the right `{action}`", self.key_name, self.project);
        Err(Error::new(Code::PermissionDenied, text))
    }
}

/// The projects, keys and quota of one store. Clones share it.
#[derive(Clone)]
pub struct Iam {
    store: Store,
    cache: Arc<Cache>,
    lately: Arc<Lately>,
}

impl Iam {
    /// Opens the store, and makes it where there is none. Only its owner can read the file.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let store = Store::open(path.as_ref()).await?;
        Ok(Self { store, cache: Arc::default(), lately: Arc::default() })
    }

    /// What was known of keys and projects may have changed.
    fn changed(&self) {
        self.cache.clear();
        self.lately.forget();
    }

    /// The secret of that name: made when it is first asked for, the same ever after, for every process on this store.
    pub async fn secret(&self, name: &str) -> Result<[u8; 32]> {
        api::spec::check_name("name", name)?;
        self.store.secret(name, &key::random()?).await
    }
}

#[cfg(test)]
mod tests;
