//! The disk of a sandbox at one instant: checkpoint, rollback, fork, pack_diff. Processes are not part of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    image::{ImageInfo, LayerKind},
    limit, spec,
};

/// `POST /v1/sandboxes/{id}/checkpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// Unique in the sandbox; absent, one is made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl CheckpointRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        self.name.as_ref().map_or(Ok(()), |name| spec::check_name("name", name))
    }
}

/// A disk that can be returned to. It goes with its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    pub name: String,
    pub created_ms: u64,
}

/// `POST /v1/sandboxes/{id}/rollback`: its processes end, its disk is what it was, it runs again under the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    pub checkpoint: String,
}

impl RollbackRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("checkpoint", &self.checkpoint)
    }
}

/// `POST /v1/sandboxes/{id}/fork`: new sandboxes with the same spec, whose disks start as copies of this one's. No
/// process comes along. Answered as a create is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    #[serde(default = "one")]
    pub count: u32,
    /// The disk as it was then; absent, as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Absent: as the source had when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Over the source's.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// As of a create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// As of a create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// As of a create.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_only: bool,
}

fn one() -> u32 {
    1
}

impl ForkRequest {
    pub fn new(count: u32) -> Self {
        Self {
            count,
            checkpoint: None,
            ttl_ms: None,
            labels: BTreeMap::new(),
            idempotency_key: None,
            reservation: None,
            made_only: false,
        }
    }

    /// What can be checked without the source's spec. Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        if !(1..=limit::CREATE_COUNT_MAX).contains(&self.count) {
            return Err(Error::invalid(format!(
                "count: {} is outside 1..={}",
                self.count,
                limit::CREATE_COUNT_MAX
            )));
        }
        self.checkpoint.as_ref().map_or(Ok(()), |name| spec::check_name("checkpoint", name))
    }
}

/// `POST /v1/sandboxes/{id}/pack_diff`: what the sandbox has written, as a layer and an image that starts new ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackRequest {
    /// Of the image.
    pub name: String,
    #[serde(default = "latest")]
    pub version: String,
    /// `base`: the sandbox's layers with the diff on top. `workspace`, `toolkit`: the diff alone, for any base.
    #[serde(default = "base")]
    pub kind: LayerKind,
    #[serde(default)]
    pub scrub: Scrub,
}

fn latest() -> String {
    "latest".into()
}

fn base() -> LayerKind {
    LayerKind::Base
}

impl PackRequest {
    /// A base, nothing scrubbed.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), version: latest(), kind: base(), scrub: Scrub::default() }
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        spec::check_name("version", &self.version)?;
        self.scrub.validate()
    }
}

/// What does not go into the layer. Left out is gone: a lower layer's file of that name is hidden, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scrub {
    /// Patterns over absolute paths: `*` within a name, `**` across, `?`, `[a-z]`, `{a,b}`. A directory goes whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Histories of shells, editors and clients of databases.
    #[serde(default)]
    pub shell_history: bool,
    /// `~/.cache`, what apt downloaded, `__pycache__` and its kind, and what is in `/tmp` and `/var/tmp`.
    #[serde(default)]
    pub caches: bool,
    /// Of git repositories, what neither HEAD nor the index reaches: other branches and tags, stashes, reflogs, lost commits.
    /// Done by the git that is in the sandbox. Not for a step of a build.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub git_unreachable: bool,
    /// Files that changed after this file of the writable part did: an absolute path, followed through no symlink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<String>,
}

impl Scrub {
    /// Errors: `invalid_argument`; the patterns themselves are read where they are used.
    pub fn validate(&self) -> Result<()> {
        if self.exclude.len() > limit::SCRUB_PATTERNS_MAX {
            return Err(Error::invalid(format!(
                "scrub.exclude: {} patterns, at most {}",
                self.exclude.len(),
                limit::SCRUB_PATTERNS_MAX
            )));
        }
        for pattern in &self.exclude {
            spec::check_absolute("scrub.exclude", pattern)?;
        }
        if self.git_unreachable && self.newer_than.is_some() {
            let text = "scrub.newer_than: git writes files anew; pack without scrub.git_unreachable, or without this";
            return Err(Error::invalid(text));
        }
        if let Some(marker) = &self.newer_than {
            spec::check_absolute("scrub.newer_than", marker)?;
            if marker.split('/').any(|part| part == "..") {
                return Err(Error::invalid("scrub.newer_than: `..` has no place in it"));
            }
        }
        Ok(())
    }
}

/// Why a path was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubRule {
    Exclude,
    ShellHistory,
    Caches,
    GitUnreachable,
    NewerThan,
}

/// One path that was left out, with all below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Scrubbed {
    /// Bytes that are no UTF-8 are replaced.
    pub path: String,
    pub rule: ScrubRule,
}

/// What `pack_diff` made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PackReport {
    pub image: ImageInfo,
    /// The digest of the diff's own layer.
    pub layer: String,
    /// Inodes of the diff.
    pub files: u64,
    /// Bytes of its layer on disk.
    pub size_bytes: u64,
    /// How long the sandbox was held still, freeze and thaw included.
    pub frozen_us: u64,
    /// The first of what was left out, in order of paths.
    pub scrubbed: Vec<Scrubbed>,
    /// All that were.
    pub scrubbed_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        let mut pack = PackRequest::new("env");
        pack.validate().unwrap();
        pack.scrub.exclude = vec!["relative/*".into()];
        assert!(pack.validate().unwrap_err().message.contains("scrub.exclude"));
        pack.scrub = Scrub { newer_than: Some("/a/../b".into()), ..Scrub::default() };
        assert!(pack.validate().is_err());
        pack.scrub = Scrub { newer_than: Some("/a".into()), git_unreachable: true, ..Scrub::default() };
        assert!(pack.validate().is_err());
        assert!(PackRequest::new("a/b").validate().is_err());
        assert!(ForkRequest::new(0).validate().is_err());
        assert!(ForkRequest::new(limit::CREATE_COUNT_MAX + 1).validate().is_err());
        assert!(CheckpointRequest { name: Some("_x".into()) }.validate().is_err());
        assert!(RollbackRequest { checkpoint: "../x".into() }.validate().is_err());
    }

    #[test]
    fn unknown_fields_are_refused_and_defaults_hold() {
        let pack: PackRequest = serde_json::from_str(r#"{"name":"a"}"#).unwrap();
        assert_eq!(pack, PackRequest::new("a"));
        assert!(serde_json::from_str::<PackRequest>(r#"{"name":"a","scrub":{"all":true}}"#).is_err());
        assert_eq!(serde_json::from_str::<ForkRequest>("{}").unwrap(), ForkRequest::new(1));
    }
}
