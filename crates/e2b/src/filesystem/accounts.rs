//! Names of users and groups, and homes: their API speaks of names, ours of numbers.
//!
//! Read from the sandbox's own /etc/passwd and /etc/group: hostile bytes, so what is read is bounded, and what comes of
//! them is only ever shown back to the caller, or used as a path inside the same sandbox.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use api::{SandboxId, arrow::Chronus, file::ReadQuery};
use futures_util::StreamExt;

use crate::{E2b, fault::Fault};

/// Of each of the two files.
const BYTES_MAX: u64 = 256 << 10;
/// How long what was read is good.
const AGE_MAX: Duration = Duration::from_secs(30);
/// A number without a name is looked up again after this: it may be new.
const UNNAMED_AGE_MAX: Duration = Duration::from_secs(1);
/// Sandboxes whose names are kept.
const SANDBOXES_MAX: usize = 1024;

/// The accounts of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    /// By name.
    homes: HashMap<String, String>,
}

impl Names {
    pub(crate) fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut names = Self::default();
        for fields in lines(passwd) {
            if let [name, _, uid, _, _, home, ..] = fields.as_slice()
                && let Ok(uid) = uid.parse()
            {
                names.users.entry(uid).or_insert_with(|| name.clone());
                names.homes.entry(name.clone()).or_insert_with(|| home.clone());
            }
        }
        for fields in lines(group) {
            if let [name, _, gid, ..] = fields.as_slice()
                && let Ok(gid) = gid.parse()
            {
                names.groups.entry(gid).or_insert_with(|| name.clone());
            }
        }
        names
    }

    /// The name, or the number where it has none.
    pub(crate) fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
    /// The home of a user given by name or as `uid[:gid]`.
    fn home(&self, user: &str) -> Option<&str> {
        let by_number = || self.users.get(&user.split(':').next()?.parse().ok()?);
        let name = if self.homes.contains_key(user) { user } else { by_number()? };
        self.homes.get(name).map(String::as_str).filter(|home| home.starts_with('/'))
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = Vec<String>> {
    let lines = bytes.split(|b| *b == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.map(|line| line.split(':').map(str::to_owned).collect())
}

#[derive(Default)]
pub(crate) struct Accounts(Mutex<HashMap<SandboxId, (Instant, Arc<Names>)>>);

impl Accounts {
    /// Those that can name `ids` (users and groups), if there are any.
    pub(crate) async fn names(
        &self,
        id: &SandboxId,
        chronus: &Arc<dyn Chronus>,
        ids: &[(u32, u32)],
    ) -> Arc<Names> {
        if let Some((age, names)) = self.kept(id) {
            let complete =
                ids.iter().all(|(u, g)| names.users.contains_key(u) && names.groups.contains_key(g));
            if age < if complete { AGE_MAX } else { UNNAMED_AGE_MAX } {
                return names;
            }
        }
        let (passwd, group) = tokio::join!(read(chronus, "/etc/passwd"), read(chronus, "/etc/group"));
        let names = Arc::new(Names::parse(&passwd, &group));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= SANDBOXES_MAX {
            kept.clear();
        }
        kept.insert(id.clone(), (Instant::now(), names.clone()));
        names
    }

    fn kept(&self, id: &SandboxId) -> Option<(Duration, Arc<Names>)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(id).map(|(read, names)| (read.elapsed(), names.clone()))
    }
}

/// What can be read of it.
async fn read(chronus: &Arc<dyn Chronus>, path: &str) -> Vec<u8> {
    let mut query = ReadQuery::new(path);
    query.length = Some(BYTES_MAX);
    let mut bytes = Vec::new();
    // A sandbox without the file has numbers only.
    let Ok(mut file) = chronus.file_read(query).await else { return bytes };
    while let Some(Ok(part)) = file.body.next().await {
        bytes.extend_from_slice(&part);
        if bytes.len() as u64 >= BYTES_MAX {
            break;
        }
    }
    bytes
}

impl E2b {
    /// `path` with a leading `~` made the user's home. A relative path stays: it starts at the sandbox's working
    /// directory. Faults: a home that cannot be told.
    pub(crate) async fn in_home(
        &self,
        id: &SandboxId,
        chronus: &Arc<dyn Chronus>,
        user: Option<&str>,
        path: &str,
    ) -> Result<String, Fault> {
        let Some(rest) = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'))
        else {
            return Ok(path.to_owned());
        };
        let user = match user {
            Some(user) => user.to_owned(),
            None => self.default_user(id).await?,
        };
        let names = self.accounts.names(id, chronus, &[]).await;
        let home = names.home(&user).ok_or_else(|| {
            Fault::invalid(format!("path: `~`: the sandbox's /etc/passwd has no home of `{user}`"))
        })?;
        Ok(format!("{}{rest}", home.trim_end_matches('/')))
    }

    async fn default_user(&self, id: &SandboxId) -> Result<String, Fault> {
        let spec = self.front.inspect(id).await?.spec;
        if let Some(user) = spec.user {
            return Ok(user);
        }
        let image = self.front.image_inspect(&spec.image).await?;
        Ok(image.config.user.unwrap_or_else(|| "root".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_homes() {
        let names = Names::parse(
            b"root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\nbad\nevil:x:7:7::no:\n",
            b"root:x:0:\nusers:x:100:user\n",
        );
        assert_eq!((names.user(1000), names.user(5)), ("user".into(), "5".into()));
        assert_eq!((names.group(100), names.group(5)), ("users".into(), "5".into()));
        assert_eq!(names.home("user"), Some("/home/user"));
        assert_eq!(names.home("1000:1000"), Some("/home/user"));
        assert_eq!((names.home("nobody"), names.home("evil")), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_accounts_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Names::parse(&bytes, &bytes);
        }
    }
}
