//! Pulling an image from an OCI registry: what is asked, and what is told while it goes.
//!
//! Invariants: a registry is always named, there is no default one; a password is in no `Debug` text.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    image::{ImageInfo, LayerKind},
    spec,
};

/// Until the image's manifest is known, or a refusal: the wait for the first event.
pub const RESOLVE_MS_MAX: u64 = 120_000;
/// Hosts, repositories and passwords are short; some registries give tokens of a few KiB as passwords.
const REFERENCE_BYTES_MAX: usize = 512;
const PASSWORD_BYTES_MAX: usize = 16 << 10;

/// `POST /v1/images/pull`. Answered by a stream of [`PullEvent`]s, one JSON object a line; the last is `pulled`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// `REGISTRY/REPOSITORY[:TAG][@sha256:HEX]`, e.g. `registry.example.org/team/app:1.2`. Without tag and digest:
    /// `latest`.
    pub reference: String,
    /// Of the image here; absent, the last part of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Absent, the tag; of a bare digest its first 12 digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default = "base")]
    pub kind: LayerKind,
    /// `linux/ARCHITECTURE[/VARIANT]`; absent, the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// For registries that ask for them. Kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Speak HTTP without TLS. Without this only to a loopback address, where it is the rule.
    #[serde(default)]
    pub plain_http: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    pub username: String,
    pub password: Secret,
}

/// Text that no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

fn base() -> LayerKind {
    LayerKind::Base
}

impl PullRequest {
    pub fn new(reference: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            name: None,
            version: None,
            kind: LayerKind::Base,
            platform: None,
            credentials: None,
            plain_http: false,
        }
    }

    /// Name and version that the image will have here.
    pub fn name_here(&self) -> Result<(String, String)> {
        let reference: Reference = self.reference.parse()?;
        let name = self.name.clone().unwrap_or_else(|| reference.last_part().to_owned());
        let version = match (&self.version, &reference.tag, &reference.digest) {
            (Some(version), ..) => version.clone(),
            (None, Some(tag), _) => tag.clone(),
            (None, None, Some(digest)) => digest.trim_start_matches("sha256:").chars().take(12).collect(),
            (None, None, None) => "latest".into(),
        };
        spec::check_name("name", &name)?;
        spec::check_name("version", &version)?;
        Ok((name, version))
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        self.name_here()?;
        if let Some(platform) = &self.platform {
            let parts: Vec<_> = platform.split('/').collect();
            let is_word = |part: &&str| {
                (1..=32).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric())
            };
            if parts[0] != "linux" || !(2..=3).contains(&parts.len()) || !parts.iter().all(is_word) {
                return Err(Error::invalid("platform: expected `linux/ARCHITECTURE[/VARIANT]`"));
            }
        }
        if let Some(Credentials { username, password: Secret(password) }) = &self.credentials {
            let is_text = |text: &str| !text.is_empty() && !text.chars().any(char::is_control);
            if !is_text(username) || username.contains(':') || username.len() > REFERENCE_BYTES_MAX {
                return Err(Error::invalid("credentials.username: expected text without `:`"));
            }
            if !is_text(password) || password.len() > PASSWORD_BYTES_MAX {
                return Err(Error::invalid("credentials.password: expected one line of text"));
            }
        }
        Ok(())
    }
}

/// An image at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// `host` or `host:port`.
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    /// `sha256:<64 hex digits>`
    pub digest: Option<String>,
}

impl Reference {
    /// What the registry's API calls it: the digest where there is one, else the tag.
    pub fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    fn last_part(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }
}

impl FromStr for Reference {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            let expected = "expected `REGISTRY/REPOSITORY[:TAG][@sha256:HEX]`";
            Err(Error::invalid(format!("reference: {why}: {expected}")))
        };
        if text.len() > REFERENCE_BYTES_MAX {
            return bad("too long");
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
            None => (text, None),
        };
        let Some((registry, path)) = rest.split_once('/') else { return bad("no registry is named") };
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag.to_owned())),
            None => (path, None),
        };
        if !is_registry(registry) {
            return bad("its first part is no host: a registry has a `.` or a port, or is `localhost`");
        }
        if !repository.split('/').all(is_repository_part) {
            return bad(
                "the repository has lower-case letters, digits, and single `.`, `_`, `-` between them",
            );
        }
        if !tag.as_deref().is_none_or(is_tag) {
            return bad("not a tag");
        }
        if !digest.as_deref().is_none_or(is_digest) {
            return bad("not a sha256 digest");
        }
        Ok(Self { registry: registry.into(), repository: repository.into(), tag, digest })
    }
}

/// A host name or address, with a port or without.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("ipv6.", port),
        Some(_) => return false,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let label = |part: &str| {
        !part.is_empty()
            && part.len() < 64
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
    };
    let has_port = port.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok_and(|p| p > 0));
    let is_host = host.strip_suffix('.').unwrap_or(host).split('.').all(label);
    is_host && (has_port || port.is_empty()) && (has_port || host.contains('.') || host == "localhost")
}

fn is_repository_part(part: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(is_inner) && part.bytes().last().is_some_and(is_inner);
    ends && part.bytes().all(|b| is_inner(b) || b"._-".contains(&b)) && !part.contains("..")
}

fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !text.starts_with(['.', '-'])
}

fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:");
    hex.is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// One line of a pull's answer. An error is `{"error": ...}`, and the last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "the large one comes once, at the end")]
pub enum PullEvent {
    Progress(PullProgress),
    Pulled(ImageInfo),
}

/// How far a pull is. Counts only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PullProgress {
    /// `sha256:<hex>` of the image's manifest for the platform.
    pub manifest: String,
    pub layers_total: u32,
    /// Of those: here already, from another image or an import.
    pub layers_reused: u32,
    /// Of those: ready, the reused ones included.
    pub layers_done: u32,
    /// To be fetched for the others, packed as the registry has them.
    pub bytes_total: u64,
    pub bytes_fetched: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_that_name_an_image() {
        let hex = "0123456789abcdef".repeat(4);
        for (text, registry, repository, version) in [
            ("registry.example.org/app", "registry.example.org", "app", "latest"),
            ("registry.example.org:5000/a/b-c/d_e:1.2", "registry.example.org:5000", "a/b-c/d_e", "1.2"),
            ("localhost/x:V", "localhost", "x", "V"),
            ("[::1]:5000/x", "[::1]:5000", "x", "latest"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(
                (&*reference.registry, &*reference.repository, reference.version()),
                (registry, repository, version)
            );
        }
        let both: Reference = format!("127.0.0.1:5000/x:1@sha256:{hex}").parse().unwrap();
        assert_eq!(both.version(), format!("sha256:{hex}"));
        let request = PullRequest::new(format!("registry.example.org/team/app@sha256:{hex}"));
        assert_eq!(request.name_here().unwrap(), ("app".into(), "0123456789ab".into()));
    }

    #[test]
    fn references_that_do_not() {
        for text in [
            "",
            "app",
            "app:1",
            "team/app",
            "registry.example.org/",
            "registry.example.org/App",
            "registry.example.org/../app",
            "registry.example.org/a//b",
            "registry.example.org/a/../b",
            "registry.example.org/a..b",
            "registry.example.org/app:",
            "registry.example.org/app:a/b",
            "registry.example.org/app@sha256:12",
            "registry.example.org:0/app",
            "registry.example.org:port/app",
            "user@registry.example.org/app",
            "http://registry.example.org/app",
            "registry.example.org/app?x=y",
            "-registry.example.org/app",
            "[::1/x",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_in_no_debug_text() {
        let credentials = Credentials { username: "u".into(), password: Secret("hunter2".into()) };
        let request = PullRequest { credentials: Some(credentials), ..PullRequest::new("r.example.org/x") };
        request.validate().unwrap();
        assert!(!format!("{request:?}").contains("hunter2"));
    }

    #[test]
    fn a_platform_is_linux_and_an_architecture() {
        let valid = |platform: &str| {
            PullRequest { platform: Some(platform.into()), ..PullRequest::new("r.example.org/x") }
                .validate()
                .is_ok()
        };
        assert!(valid("linux/amd64") && valid("linux/arm/v7"));
        assert!(!valid("linux") && !valid("windows/amd64") && !valid("linux/") && !valid("linux/a/b/c"));
    }
}
