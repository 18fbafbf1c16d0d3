//! Who may: API keys in SQLite.
//!
//! Invariants: a key is known only to its holder, the store has its digest; a key that was revoked is refused at
//! once by this process, and within [`cache::AGE_MAX`] by any other on the same store; the hot path reads memory alone.

mod cache;
mod key;
mod store;

use std::{fmt, path::Path, sync::Arc};

use api::{Code, Error, Result};
use subtle::ConstantTimeEq;

use cache::Cache;
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
    /// A project: the scope of keys. There is one now, `pr-root`.
    ProjectId
);
id!(
    /// A key's public name, for lists and logs: `ak-<32 hex digits>`.
    KeyId
);

/// The project that every key belongs to now.
pub const ROOT_PROJECT: &str = "pr-root";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub project_id: ProjectId,
    pub key_id: KeyId,
    pub key_name: String,
}

/// What is known of a key. The key itself is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    pub id: KeyId,
    pub project_id: ProjectId,
    pub name: String,
    pub created_ms: u64,
    pub revoked_ms: Option<u64>,
}

/// The keys of one store. Clones share it.
#[derive(Clone)]
pub struct Iam {
    store: Store,
    cache: Arc<Cache>,
}

impl Iam {
    /// Opens the store, and makes it where there is none. Only its owner can read the file.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        let store = Store::open(path.as_ref()).await?;
        Ok(Self { store, cache: Arc::default() })
    }

    /// A new key of the root project. The answer is the only time that it can be read.
    /// Errors: `already_exists` where a key that works has the name, `invalid_argument`.
    pub async fn create_key(&self, name: &str) -> Result<String> {
        api::spec::check_name("name", name)?;
        let plaintext = key::generate()?;
        let digest = key::digest(&plaintext).ok_or_else(|| Error::internal("made a malformed key"))?;
        self.store.insert(name, &digest).await?;
        Ok(plaintext)
    }

    /// Whose key this is. Errors: `unauthenticated`.
    pub async fn authenticate(&self, plaintext: &str) -> Result<Principal> {
        let digest = key::digest(plaintext).ok_or_else(refused)?;
        if let Some(principal) = self.cache.get(&digest) {
            return Ok(principal);
        }
        let generation = self.cache.generation();
        let (stored, principal) = self.store.by_digest(&digest).await?.ok_or_else(refused)?;
        // The index compared already, but not in constant time.
        if !bool::from(stored.ct_eq(&digest)) {
            return Err(refused());
        }
        self.cache.put(digest, principal.clone(), generation);
        Ok(principal)
    }

    /// The secret of that name: made when it is first asked for, the same ever after, for every process on this store.
    pub async fn secret(&self, name: &str) -> Result<[u8; 32]> {
        api::spec::check_name("name", name)?;
        self.store.secret(name, &key::random()?).await
    }

    /// Every key, revoked ones too, oldest first.
    pub async fn list_keys(&self) -> Result<Vec<KeyInfo>> {
        self.store.list().await
    }

    /// Ends a key, by its id or by the name of one that works. Errors: `not_found`.
    pub async fn revoke_key(&self, id_or_name: &str) -> Result<()> {
        let revoked = self.store.revoke(id_or_name).await?;
        self.cache.clear();
        if revoked {
            return Ok(());
        }
        let shown: String = id_or_name.chars().take(80).collect();
        Err(Error::not_found(format!("no key `{shown}` that works")))
    }
}

/// One text for all reasons, so that it tells nothing.
fn refused() -> Error {
    Error::new(Code::Unauthenticated, "this API key is unknown or revoked")
}

#[cfg(test)]
mod tests;
