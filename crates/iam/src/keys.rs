//! Keys: who asks, and how one key makes another.

use api::{
    Code, Error, Result,
    iam::{Action, KeyInfo, KeyMade, KeyRequest, PrincipalKind, Rights},
};
use subtle::ConstantTimeEq;

use crate::{
    Iam, KeyId, Principal, ProjectId, ROOT_PROJECT, key,
    store::now_ms,
    tree::{Project, Tree},
};

impl Iam {
    /// A key of the root project with all rights, for the owner of the node. The answer is the only time that it can be read.
    /// Errors: `already_exists` where a key that works has the name, `invalid_argument`.
    pub async fn create_key(&self, name: &str) -> Result<String> {
        api::spec::check_name("name", name)?;
        let info =
            KeyInfo { kind: PrincipalKind::Person, ..new_key(name, ROOT_PROJECT, Rights::all(), None) };
        Ok(self.insert(info).await?.key)
    }

    /// A key that has a part of the rights of `by`, and ends no later. Errors: `permission_denied` where the request asks for
    /// more; `not_found` for a project that is not that of `by` or below it; `already_exists`.
    pub async fn key_create(&self, by: &Principal, request: &KeyRequest) -> Result<KeyMade> {
        request.validate()?;
        by.may(Action::KeyWrite)?;
        let tree = self.store.projects().await?;
        let project = within(&tree, by, request.project.as_deref())?;
        let rights = request.rights.unwrap_or(by.rights);
        let wider = rights.without(by.rights);
        if wider != Rights::NONE {
            let text = format!("rights: the key that asks has not `{wider}` itself");
            return Err(Error::new(Code::PermissionDenied, text));
        }
        let asked = request.ttl_ms.map(|ttl| now_ms().saturating_add(ttl));
        if let (Some(asked), Some(end)) = (asked, by.expires_ms)
            && asked > end
        {
            return Err(Error::new(Code::PermissionDenied, "ttl_ms: the key that asks ends before that"));
        }
        let info = KeyInfo {
            kind: request.kind,
            project: tree.path(&project.id),
            made_by: Some(by.key_id.to_string()),
            ..new_key(&request.name, &project.id, rights, asked.or(by.expires_ms))
        };
        self.insert(info).await
    }

    async fn insert(&self, info: KeyInfo) -> Result<KeyMade> {
        let key = key::generate()?;
        let digest = key::digest(&key).ok_or_else(|| Error::internal("made a malformed key"))?;
        self.store.insert_key(&info, &digest).await?;
        Ok(KeyMade { key, info })
    }

    /// Whose key this is. Errors: `unauthenticated`.
    pub async fn authenticate(&self, plaintext: &str) -> Result<Principal> {
        let digest = key::digest(plaintext).ok_or_else(refused)?;
        if let Some(principal) = self.cache.get(&digest) {
            return ended(&principal).then(refused).map_or(Ok(principal), Err);
        }
        let generation = self.cache.generation();
        let (stored, info) = self.store.key_by_digest(&digest).await?.ok_or_else(refused)?;
        // The index compared already, but not in constant time.
        if !bool::from(stored.ct_eq(&digest)) {
            return Err(refused());
        }
        let tree = self.tree().await?;
        let principal = Principal {
            project: tree.path(&info.project_id),
            rights: info.rights.and(tree.rights(&info.project_id)),
            project_id: ProjectId(info.project_id),
            key_id: KeyId(info.id),
            key_name: info.name,
            kind: info.kind,
            expires_ms: info.expires_ms,
        };
        if ended(&principal) {
            return Err(refused());
        }
        self.cache.put(digest, principal.clone(), generation);
        Ok(principal)
    }

    /// Every key, revoked ones too, oldest first.
    pub async fn list_keys(&self) -> Result<Vec<KeyInfo>> {
        let (tree, mut keys) = (self.store.projects().await?, self.store.keys().await?);
        keys.iter_mut().for_each(|key| key.project = tree.path(&key.project_id));
        Ok(keys)
    }

    /// Those of the project of `by` and of all below it.
    pub async fn key_list(&self, by: &Principal) -> Result<Vec<KeyInfo>> {
        by.may(Action::KeyRead)?;
        let tree = self.store.projects().await?;
        let mut keys = self.list_keys().await?;
        keys.retain(|key| tree.is_below(&key.project_id, by.project_id.as_str()));
        Ok(keys)
    }

    /// Ends a key of the root project, by its id or by the name of one that works. Errors: `not_found`.
    pub async fn revoke_key(&self, id_or_name: &str) -> Result<()> {
        let keys = self.store.keys().await?;
        let is_it = |key: &&KeyInfo| {
            key.id == id_or_name || (key.name == id_or_name && key.project_id == ROOT_PROJECT)
        };
        let found = keys.iter().filter(|key| key.revoked_ms.is_none()).find(is_it);
        self.revoke(found, id_or_name).await
    }

    /// Ends a key of the project of `by` or below it, by its id or by the name of one that works. Those that it made work on.
    /// Errors: `permission_denied`, also for a key that may do more than `by`; `not_found`.
    pub async fn key_revoke(&self, by: &Principal, id_or_name: &str) -> Result<()> {
        by.may(Action::KeyWrite)?;
        let keys = self.key_list(&Principal { rights: Rights::all(), ..by.clone() }).await?;
        let works = |key: &&KeyInfo| key.revoked_ms.is_none();
        let of_name = || {
            let mut named = keys.iter().filter(works).filter(|key| key.name == id_or_name);
            // Below it there may be several of the name: its own project's goes before, then one that is alone.
            let (own, first) = (named.clone().find(|key| key.project_id == by.project_id.0), named.next());
            own.or(first.filter(|_| named.next().is_none()))
        };
        let found = keys.iter().filter(works).find(|key| key.id == id_or_name).or_else(of_name);
        if let Some(key) = found {
            let tree = self.store.projects().await?;
            let wider = key.rights.and(tree.rights(&key.project_id)).without(by.rights);
            if wider != Rights::NONE {
                let text = format!("`{}` may do what the key that asks may not: `{wider}`", key.name);
                return Err(Error::new(Code::PermissionDenied, text));
            }
        }
        self.revoke(found, id_or_name).await
    }

    async fn revoke(&self, key: Option<&KeyInfo>, asked: &str) -> Result<()> {
        let revoked = match key {
            Some(key) => self.store.revoke_key(&key.id).await?,
            None => false,
        };
        self.changed();
        if revoked {
            return Ok(());
        }
        let shown: String = asked.chars().take(80).collect();
        Err(Error::not_found(format!("no key `{shown}` that works")))
    }
}

fn new_key(name: &str, project_id: &str, rights: Rights, expires_ms: Option<u64>) -> KeyInfo {
    KeyInfo {
        id: format!("ak-{}", uuid::Uuid::now_v7().simple()),
        name: name.to_owned(),
        project_id: project_id.to_owned(),
        project: String::new(),
        kind: PrincipalKind::default(),
        rights,
        created_ms: now_ms(),
        expires_ms,
        revoked_ms: None,
        made_by: None,
    }
}

fn ended(principal: &Principal) -> bool {
    principal.expires_ms.is_some_and(|end| end <= now_ms())
}

/// The project of `by`, or the one below it that is named. Errors: `not_found`, also for one that is elsewhere.
pub(crate) fn within<'a>(tree: &'a Tree, by: &Principal, reference: Option<&str>) -> Result<&'a Project> {
    let own = by.project_id.as_str();
    let found = match reference {
        Some(reference) => tree.find(reference),
        None => tree.get(own),
    };
    found.filter(|project| tree.is_below(&project.id, own)).ok_or_else(|| {
        let shown: String = reference.unwrap_or(own).chars().take(200).collect();
        Error::not_found(format!("no project `{shown}` in `{}`", by.project))
    })
}

/// One text for all reasons, so that it tells nothing.
pub(crate) fn refused() -> Error {
    Error::new(Code::Unauthenticated, "this API key is unknown, over or revoked")
}
