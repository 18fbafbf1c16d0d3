//! What is left out of a packed layer, by rules. Where a lower layer has something of that name it is hidden, too.

mod lower;

use std::{
    fs::{self, Metadata},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use api::{
    limit,
    snapshot::{Scrub, ScrubRule, Scrubbed},
};
use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{
    error::{Error, Result, show},
    import::directory::Verdict,
};

pub(crate) use lower::Lower;

/// Of shells, editors and clients of databases: names of files anywhere.
const HISTORIES: &[&str] = &[
    "/**/.bash_history",
    "/**/.zsh_history",
    "/**/.ash_history",
    "/**/.sh_history",
    "/**/.histfile",
    "/**/fish_history",
    "/**/.python_history",
    "/**/.node_repl_history",
    "/**/.irb_history",
    "/**/.lesshst",
    "/**/.viminfo",
    "/**/.psql_history",
    "/**/.mysql_history",
    "/**/.sqlite_history",
    "/**/.rediscli_history",
    "/**/.wget-hsts",
];
/// What can be made again.
const CACHES: &[&str] = &[
    "/tmp/*",
    "/var/tmp/*",
    "/var/cache/*/*",
    "/var/lib/apt/lists/*",
    "/**/.cache/*",
    "/**/.npm/_cacache",
    "/**/.cargo/registry/cache",
    "/**/__pycache__",
    "/**/.pytest_cache",
    "/**/.mypy_cache",
    "/**/.ruff_cache",
];
/// DSec's own, written anew into each sandbox: neither kept nor hidden.
const PLATFORM: &[&[u8]] = &[b"etc/hostname", b"etc/hosts", b"etc/resolv.conf"];

/// The rules, and what they have taken out so far.
pub(crate) struct Scrubber<'a> {
    lower: Lower<'a>,
    rules: Vec<(ScrubRule, GlobSet)>,
    /// Change time of the marker, in seconds and nanoseconds.
    newer_than: Option<(i64, i64)>,
    pub(crate) told: Vec<Scrubbed>,
    pub(crate) count: u64,
}

impl<'a> Scrubber<'a> {
    /// `upper` is where the marker is looked for; `lower` what lies below it.
    pub(crate) fn new(scrub: &Scrub, upper: &Path, lower: Lower<'a>) -> Result<Self> {
        let mut rules = vec![(ScrubRule::Exclude, globs(scrub.exclude.iter().map(String::as_str))?)];
        if scrub.shell_history {
            rules.push((ScrubRule::ShellHistory, globs(HISTORIES.iter().copied())?));
        }
        if scrub.caches {
            rules.push((ScrubRule::Caches, globs(CACHES.iter().copied())?));
        }
        let newer_than = scrub.newer_than.as_deref().map(|marker| changed(upper, marker)).transpose()?;
        Ok(Self { lower, rules, newer_than, told: Vec::new(), count: 0 })
    }

    pub(crate) fn judge(&mut self, path: &[u8], metadata: &Metadata) -> Result<Verdict> {
        if PLATFORM.contains(&path) && !metadata.is_dir() {
            return Ok(Verdict::LeaveOut);
        }
        let absolute = [b"/", path].concat();
        let candidate = Candidate::from_bytes(&absolute);
        let matched = self.rules.iter().find(|(_, globs)| globs.is_match_candidate(&candidate));
        let rule = match (matched, self.newer_than) {
            (Some((rule, _)), _) => *rule,
            (None, Some(than)) if !metadata.is_dir() && changed_at(metadata) > than => ScrubRule::NewerThan,
            _ => return Ok(Verdict::Keep),
        };
        self.count += 1;
        if self.told.len() < limit::SCRUBBED_TOLD_MAX {
            self.told.push(Scrubbed { path: String::from_utf8_lossy(&absolute).into_owned(), rule });
        }
        Ok(if self.lower.has(path)? { Verdict::Whiteout } else { Verdict::LeaveOut })
    }
}

fn globs<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<GlobSet> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        set.add(glob.map_err(|e| Error::refused(format!("scrub.exclude: {e}")))?);
    }
    set.build().map_err(|e| Error::refused(format!("scrub.exclude: {e}")))
}

/// The change time: a caller inside cannot set it, as it can the time of modification.
fn changed_at(metadata: &Metadata) -> (i64, i64) {
    (metadata.ctime(), metadata.ctime_nsec())
}

/// Of the marker, which no symlink may lead to: the tree is hostile.
fn changed(upper: &Path, marker: &str) -> Result<(i64, i64)> {
    let mut at = upper.to_owned();
    let lost = || {
        Error::refused(format!("scrub.newer_than: {} is not in the writable part", show(marker.as_bytes())))
    };
    let parts: Vec<_> = marker.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    let (last, dirs) = parts.split_last().ok_or_else(lost)?;
    for dir in dirs {
        at.push(dir);
        if !fs::symlink_metadata(&at).is_ok_and(|m| m.is_dir()) {
            return Err(lost());
        }
    }
    at.push(last);
    debug_assert!(at.as_os_str().as_bytes().starts_with(upper.as_os_str().as_bytes()));
    fs::symlink_metadata(&at).map(|m| changed_at(&m)).map_err(|_| lost())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(upper: &Path) -> Lower<'_> {
        Lower::new(upper, || Ok(Vec::new()))
    }

    /// Over nothing.
    fn verdict(scrub: &Scrub, path: &str) -> Verdict {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        fs::write(&file, "x").unwrap();
        let metadata = fs::symlink_metadata(&file).unwrap();
        Scrubber::new(scrub, dir.path(), nothing(dir.path()))
            .unwrap()
            .judge(path.as_bytes(), &metadata)
            .unwrap()
    }

    #[test]
    fn patterns_are_anchored_and_stars_stay_in_a_name() {
        let scrub = Scrub { exclude: vec!["/home/*/answers".into(), "/**/*.key".into()], ..Scrub::default() };
        assert_eq!(verdict(&scrub, "home/a/answers"), Verdict::LeaveOut);
        assert_eq!(verdict(&scrub, "home/a/b/answers"), Verdict::Keep);
        assert_eq!(verdict(&scrub, "x.key"), Verdict::LeaveOut);
        assert_eq!(verdict(&scrub, "a/b/x.key"), Verdict::LeaveOut);
        assert_eq!(verdict(&scrub, "a/b/x.keys"), Verdict::Keep);
        let bad = Scrub { exclude: vec!["/a[".into()], ..Scrub::default() };
        assert!(Scrubber::new(&bad, Path::new("/"), nothing(Path::new("/"))).is_err());
    }

    #[test]
    fn histories_caches_and_what_the_platform_wrote() {
        let histories = Scrub { shell_history: true, ..Scrub::default() };
        assert_eq!(verdict(&histories, "root/.bash_history"), Verdict::LeaveOut);
        assert_eq!(verdict(&histories, "home/user/.local/share/fish/fish_history"), Verdict::LeaveOut);
        let caches = Scrub { caches: true, ..Scrub::default() };
        assert_eq!(verdict(&caches, "tmp/x"), Verdict::LeaveOut);
        assert_eq!(verdict(&caches, "home/user/.cache/pip"), Verdict::LeaveOut);
        assert_eq!(verdict(&caches, "home/user/.cache"), Verdict::Keep, "the directory itself stays");
        assert_eq!(verdict(&Scrub::default(), "root/.bash_history"), Verdict::Keep);
        assert_eq!(verdict(&Scrub::default(), "etc/hosts"), Verdict::LeaveOut);
    }

    #[test]
    fn the_marker_is_found_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/marker"), "").unwrap();
        std::os::unix::fs::symlink("d", dir.path().join("link")).unwrap();
        let by = |marker: &str| {
            let scrub = Scrub { newer_than: Some(marker.into()), ..Scrub::default() };
            Scrubber::new(&scrub, dir.path(), nothing(dir.path())).map(drop)
        };
        assert!(by("/d/marker").is_ok());
        assert!(by("/link/marker").is_err());
        assert!(by("/none").is_err());
    }
}
