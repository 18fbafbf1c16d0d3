//! Files of a fake sandbox: a map from absolute paths to bytes. No owners, no links, no devices.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use api::{
    Code, Error, Result,
    file::{FileInfo, FileKind},
};
use bytes::Bytes;

#[derive(Debug, Clone)]
struct Entry {
    /// None: a directory.
    data: Option<Bytes>,
    mode: u32,
    modified_ms: i64,
}

/// The tree. The root is always there.
#[derive(Debug, Default)]
pub(super) struct Files {
    entries: BTreeMap<String, Entry>,
}

fn error(code: Code, path: &str, what: &str) -> Error {
    Error::new(code, format!("{path}: {what}"))
}

/// The absolute path without `.`, `..` and doubled slashes.
pub(super) fn resolve(cwd: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{cwd}/{path}") };
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(p, _)| if p.is_empty() { "/" } else { p })
}

fn under(path: &str, directory: &str) -> bool {
    let prefix = directory.trim_end_matches('/');
    path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
}

impl Files {
    fn entry(&self, path: &str) -> Result<Entry> {
        if path == "/" {
            return Ok(Entry { data: None, mode: 0o755, modified_ms: 0 });
        }
        self.entries
            .get(path)
            .cloned()
            .ok_or_else(|| error(Code::NotFound, path, "no such file or directory"))
    }

    fn info_of(path: &str, entry: &Entry) -> FileInfo {
        FileInfo {
            name: path.rsplit('/').next().unwrap_or_default().to_owned().into(),
            path: path.to_owned().into(),
            kind: if entry.data.is_some() { FileKind::File } else { FileKind::Directory },
            size_bytes: entry.data.as_ref().map_or(0, |d| d.len() as u64),
            mode: entry.mode,
            uid: 0,
            gid: 0,
            modified_ms: entry.modified_ms,
            symlink_target: None,
        }
    }

    fn put(&mut self, path: &str, data: Option<Bytes>, mode: u32) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.entries.insert(path.to_owned(), Entry { data, mode, modified_ms: now.as_millis() as i64 });
    }

    pub(super) fn stat(&self, path: &str) -> Result<FileInfo> {
        self.entry(path).map(|entry| Self::info_of(path, &entry))
    }

    pub(super) fn read(&self, path: &str, offset: u64, length: Option<u64>) -> Result<(FileInfo, Bytes)> {
        let entry = self.entry(path)?;
        let data = entry.data.as_ref().ok_or_else(|| error(Code::IsDirectory, path, "is a directory"))?;
        let from = (offset as usize).min(data.len());
        let count = length.map_or(usize::MAX, |l| l as usize).min(data.len() - from);
        Ok((Self::info_of(path, &entry), data.slice(from..from + count)))
    }

    pub(super) fn write(
        &mut self,
        path: &str,
        data: Bytes,
        mode: Option<u32>,
        append: bool,
    ) -> Result<FileInfo> {
        let old = self.entry(path).ok();
        if old.as_ref().is_some_and(|e| e.data.is_none()) {
            return Err(error(Code::IsDirectory, path, "is a directory"));
        }
        self.mkdir(parent(path), None)?;
        let kept = old.as_ref().and_then(|e| e.data.clone()).filter(|_| append).unwrap_or_default();
        let mode = mode.or(old.map(|e| e.mode)).unwrap_or(0o644);
        self.put(path, Some([kept, data].concat().into()), mode);
        self.stat(path)
    }

    pub(super) fn mkdir(&mut self, path: &str, mode: Option<u32>) -> Result<FileInfo> {
        match self.entry(path) {
            Ok(entry) if entry.data.is_some() => {
                return Err(error(Code::AlreadyExists, path, "is there and is not a directory"));
            }
            Ok(_) => {}
            Err(_) => {
                self.mkdir(parent(path), None)?;
                self.put(path, None, mode.unwrap_or(0o755));
            }
        }
        self.stat(path)
    }

    pub(super) fn list(&self, path: &str, depth: u32) -> Result<Vec<FileInfo>> {
        if self.entry(path)?.data.is_some() {
            return Err(error(Code::InvalidArgument, path, "is not a directory"));
        }
        let levels =
            |p: &str| p.matches('/').count() - if path == "/" { 0 } else { path.matches('/').count() };
        let deep = depth.max(1) as usize;
        let inside = self.entries.iter().filter(|(p, _)| under(p, path) && levels(p) <= deep);
        Ok(inside.map(|(p, e)| Self::info_of(p, e)).collect())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<FileInfo> {
        self.entry(from)?;
        if under(to, from) {
            return Err(error(Code::InvalidArgument, to, "is inside of what moves"));
        }
        self.entry(parent(to))?;
        let moved: Vec<String> =
            self.entries.keys().filter(|p| *p == from || under(p, from)).cloned().collect();
        for path in moved {
            if let Some(entry) = self.entries.remove(&path) {
                self.entries.insert(format!("{to}{}", &path[from.len()..]), entry);
            }
        }
        self.stat(to)
    }

    pub(super) fn remove(&mut self, path: &str, recursive: bool) -> Result<()> {
        let entry = self.entry(path)?;
        let full = self.entries.keys().any(|p| under(p, path));
        if entry.data.is_none() && full && !recursive {
            return Err(error(Code::Conflict, path, "is a directory that is not empty; ask for `recursive`"));
        }
        self.entries.retain(|p, _| p != path && !under(p, path));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_can_be_written_listed_moved_and_removed() {
        let mut files = Files::default();
        files.write("/a/b/c", Bytes::from_static(b"12"), None, false).unwrap();
        files.write("/a/b/c", Bytes::from_static(b"3"), None, true).unwrap();
        assert_eq!(files.read("/a/b/c", 1, Some(9)).unwrap().1, "23");
        assert_eq!(files.list("/a", 1).unwrap().len(), 1);
        assert_eq!(files.list("/", 9).unwrap().len(), 3);
        assert_eq!(files.read("/a", 0, None).unwrap_err().code, Code::IsDirectory);
        files.rename("/a/b", "/a/x").unwrap();
        assert_eq!(files.read("/a/x/c", 0, None).unwrap().1, "123");
        assert_eq!(files.remove("/a", false).unwrap_err().code, Code::Conflict);
        files.remove("/a", true).unwrap();
        assert_eq!(files.stat("/a/x/c").unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn paths_stay_inside() {
        assert_eq!(resolve("/w", "../../x/./y"), "/x/y");
        assert_eq!(resolve("/w", "z"), "/w/z");
        assert_eq!(resolve("/", "/"), "/");
    }
}
