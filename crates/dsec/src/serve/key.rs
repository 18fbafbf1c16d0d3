//! The key of the node's owner: made at the first start, kept in a file that only the owner reads.

use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::Context;
use api::Code;
use iam::Iam;

/// The name of the owner's key.
const NAME: &str = "owner";

/// The key in the file, or a new one where it is not there or not good any more.
pub(super) async fn ensure(iam: &Iam, path: &Path) -> anyhow::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if iam.authenticate(text.trim()).await.is_ok() => return Ok(text.trim().to_owned()),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("reading the key {}", path.display()));
        }
        _ => {}
    }
    let key = match iam.create_key(NAME).await {
        // Its text is lost, so nobody can hold it.
        Err(e) if e.code == Code::AlreadyExists => {
            iam.revoke_key(NAME).await?;
            iam.create_key(NAME).await?
        }
        made => made?,
    };
    save(path, &key).with_context(|| format!("writing the key {}", path.display()))?;
    Ok(key)
}

fn save(path: &Path, key: &str) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    writeln!(file, "{key}")?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn it_stays_the_same_until_its_file_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let iam = Iam::open(dir.path().join("iam.db")).await.unwrap();
        let path = dir.path().join("key");
        let key = ensure(&iam, &path).await.unwrap();
        assert_eq!(ensure(&iam, &path).await.unwrap(), key);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        let other = ensure(&iam, &path).await.unwrap();
        assert!(iam.authenticate(&key).await.is_err(), "the lost one is revoked");
        assert!(iam.authenticate(&other).await.is_ok());
    }
}
