//! The context file: where `dsec up` tells the CLI and the SDK of its URL and key. Mode 0600, since it holds a key.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use api::{Code, Error, Result};
use serde::{Deserialize, Serialize};

/// A server and the key to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub url: String,
    pub api_key: String,
    /// Where the server keeps what it has, for a tool on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
}

impl std::fmt::Debug for Context {
    /// The key stays out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("url", &self.url).finish_non_exhaustive()
    }
}

/// `$DSEC_CONTEXT`, else `~/.config/dsec/context.toml`. None where there is no home.
pub fn default_context_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("DSEC_CONTEXT").filter(|p| !p.is_empty()) {
        return Some(path.into());
    }
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty())?;
    Some(Path::new(&home).join(".config/dsec/context.toml"))
}

impl Context {
    /// `DSEC_URL` and `DSEC_API_KEY`, each over what the context file says. Errors: `unauthenticated` where a part
    /// is nowhere, `invalid_argument` for a file that does not parse.
    pub fn from_env() -> Result<Self> {
        let var = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        let (url, api_key) = (var("DSEC_URL"), var("DSEC_API_KEY"));
        if let (Some(url), Some(api_key)) = (&url, &api_key) {
            return Ok(Self { url: url.clone(), api_key: api_key.clone(), data: None });
        }
        let path = default_context_path();
        match path.as_deref().map(Self::load).transpose()?.flatten() {
            Some(file) => Ok(Self {
                url: url.unwrap_or(file.url),
                api_key: api_key.unwrap_or(file.api_key),
                data: file.data,
            }),
            None => Err(Error::new(
                Code::Unauthenticated,
                format!(
                    "no server is known: start one with `dsec up`, or set DSEC_URL and DSEC_API_KEY (no context file at {})",
                    path.map_or_else(|| "~/.config/dsec/context.toml".into(), |p| p.display().to_string())
                ),
            )),
        }
    }

    /// Reads a context file; None where there is none. Errors: `invalid_argument`.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let invalid =
            |e: &dyn std::fmt::Display| Error::invalid(format!("context file {}: {e}", path.display()));
        match fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(|e| invalid(&e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(invalid(&e)),
        }
    }

    /// Writes it, readable by its owner alone; a reader sees the old file or the new one, never a part.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(directory)?;
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_round_trips_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/context.toml");
        assert_eq!(Context::load(&path).unwrap(), None);
        let context = Context { url: "http://127.0.0.1:1".into(), api_key: "k\"ey".into(), data: None };
        context.save(&path).unwrap();
        assert_eq!(Context::load(&path).unwrap(), Some(context.clone()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
        assert!(!format!("{context:?}").contains("ey\""), "no key in a debug print");
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("context.toml");
        fs::write(&path, "url = 1\nsurprise = true\n").unwrap();
        let e = Context::load(&path).unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument);
        assert!(e.message.contains("context.toml"), "{e}");
    }
}
