//! Projects, keys and the audit log, as callers see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Amount, Quota, Rights};
use crate::{Code, Error, Result, spec};

/// The text between the names of a path.
pub const PATH_SEPARATOR: char = '/';
/// From the root to the deepest.
pub const DEPTH_MAX: usize = 32;
/// A key that is to end ends within ten years.
pub const KEY_MS_MAX: u64 = 10 * 366 * 24 * 60 * 60 * 1000;

/// `POST /v1/projects`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectRequest {
    /// Of its parent's children, one has it.
    pub name: String,
    /// An id or a path; absent, the project of the key that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Absent: all that the parent has, now and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    #[serde(default)]
    pub quota: Quota,
}

impl ProjectRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        self.parent.iter().try_for_each(|parent| check_reference("parent", parent))
    }
}

/// `PATCH /v1/projects/{project}`: what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProjectUpdate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    /// As a whole: bounds that are not in it go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// A project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectInfo {
    pub id: String,
    /// Names from the root, with `/` between: `root/team/run`.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// As they were set.
    pub rights: Rights,
    pub quota: Quota,
    /// What holds: its own and those of all above it together.
    pub rights_effective: Rights,
    pub quota_effective: Quota,
    /// What its sandboxes, and those of all below it, take now.
    pub used: Amount,
    pub created_ms: u64,
}

/// Who holds a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    Person,
    #[default]
    Service,
    Agent,
}

impl PrincipalKind {
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
            Self::Agent => "agent",
        }
    }
}

/// `POST /v1/keys`: a key whose rights are a part of those of the key that asks, and which does not outlive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// Of the keys of a project that work, one has it.
    pub name: String,
    /// An id or a path; absent, the project of the key that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(default)]
    pub kind: PrincipalKind,
    /// Absent: those of the key that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Rights>,
    /// Absent: as long as the key that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

impl KeyRequest {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), project: None, kind: PrincipalKind::default(), rights: None, ttl_ms: None }
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        self.project.iter().try_for_each(|project| check_reference("project", project))?;
        match self.ttl_ms {
            Some(ms) if !(1..=KEY_MS_MAX).contains(&ms) => {
                Err(Error::invalid(format!("ttl_ms: {ms} is outside 1..={KEY_MS_MAX}")))
            }
            _ => Ok(()),
        }
    }
}

/// What is known of a key. The key itself is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyInfo {
    /// `ak-<32 hex digits>`
    pub id: String,
    pub name: String,
    pub project_id: String,
    pub project: String,
    pub kind: PrincipalKind,
    /// Its own; what it may do is what its project has of them.
    pub rights: Rights,
    pub created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    /// The key that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
}

/// A new key: the only answer that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyMade {
    pub key: String,
    pub info: KeyInfo,
}

/// One management call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    pub at_ms: u64,
    pub key_id: String,
    pub key_name: String,
    pub project: String,
    /// `project.create`, `key.revoke`, ...
    pub verb: String,
    /// What it was done to.
    pub target: String,
    /// Of the error; absent where it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

/// `GET /v1/audit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// The newest so many.
    #[serde(default = "audit_count")]
    pub count_max: u32,
}

fn audit_count() -> u32 {
    100
}

impl Default for AuditQuery {
    fn default() -> Self {
        Self { count_max: audit_count() }
    }
}

/// An id, or a path of names. Errors: `invalid_argument`.
pub fn check_reference(field: &str, reference: &str) -> Result<()> {
    let names = reference.split(PATH_SEPARATOR).take(DEPTH_MAX + 1);
    if reference.split(PATH_SEPARATOR).count() > DEPTH_MAX {
        return Err(Error::invalid(format!("{field}: deeper than {DEPTH_MAX} projects")));
    }
    names.into_iter().try_for_each(|name| spec::check_name(field, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_has_a_default_and_bad_fields_are_named() {
        let request: KeyRequest = serde_json::from_str(r#"{"name":"ci"}"#).unwrap();
        request.validate().unwrap();
        assert_eq!(request, KeyRequest::new("ci"));
        for (field, bad) in [
            ("name", KeyRequest::new("a/b")),
            ("project", KeyRequest { project: Some("root//x".into()), ..KeyRequest::new("a") }),
            ("ttl_ms", KeyRequest { ttl_ms: Some(0), ..KeyRequest::new("a") }),
            ("ttl_ms", KeyRequest { ttl_ms: Some(u64::MAX), ..KeyRequest::new("a") }),
        ] {
            assert!(bad.validate().unwrap_err().message.starts_with(field), "{field}");
        }
        let deep = vec!["a"; DEPTH_MAX + 1].join("/");
        assert!(check_reference("parent", &deep).is_err());
        check_reference("parent", "root/team/run-1").unwrap();
        let json = r#"{"name":"team","quota":{"sandboxes":5},"rights":["user"]}"#;
        let project: ProjectRequest = serde_json::from_str(json).unwrap();
        project.validate().unwrap();
        assert!(project.rights.unwrap() != Rights::all());
    }
}
