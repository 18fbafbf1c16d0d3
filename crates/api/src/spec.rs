//! What a caller asks for, and what it is told about a sandbox.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, SandboxId, limit, state::State};

/// Which kind of isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Container,
    MicroVm,
    FullVm,
    FnCall,
}

/// What a sandbox may reach. `None` has loopback only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    #[default]
    None,
    /// Out by NAT; nothing in, nothing between sandboxes, nothing to the node itself.
    Egress,
}

/// Where the writable part lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scratch {
    #[default]
    Disk,
    /// tmpfs, counted against the sandbox's memory: for short-lived work.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QosClass {
    #[default]
    LatencySensitive,
    BestEffort,
}

/// One sandbox, as asked for. Only `image` is required.
///
/// `image`, `workspaces` and `toolkits` name layers as `name`, `name:version` or `blake3:<digest>`.
/// They are composed base lowest, workspaces above it in order, toolkits on top in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSpec {
    #[serde(default)]
    pub kind: Kind,
    pub image: String,
    #[serde(default)]
    pub workspaces: Vec<String>,
    #[serde(default)]
    pub toolkits: Vec<String>,
    /// Unique on its edge while the sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default = "default_memory")]
    pub memory_bytes_max: u64,
    /// Thousandths of a core.
    #[serde(default = "default_cpu")]
    pub cpu_millis_max: u32,
    #[serde(default = "default_pids")]
    pub pids_max: u32,
    #[serde(default = "default_disk")]
    pub disk_bytes_max: u64,
    /// From creation to the hard deadline.
    #[serde(default = "default_ttl")]
    pub ttl_ms: u64,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub scratch: Scratch,
    #[serde(default)]
    pub qos: QosClass,
    /// The user of commands and files that name none: a name or `uid[:gid]`. Default: the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Added to the image's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default working directory. Default: the image's, else the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

fn default_memory() -> u64 {
    limit::MEMORY_BYTES_DEFAULT
}
fn default_cpu() -> u32 {
    limit::CPU_MILLIS_DEFAULT
}
fn default_pids() -> u32 {
    limit::PIDS_DEFAULT
}
fn default_disk() -> u64 {
    limit::DISK_BYTES_DEFAULT
}
fn default_ttl() -> u64 {
    limit::TTL_MS_DEFAULT
}

impl SandboxSpec {
    /// Every image that it names.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let above = self.workspaces.iter().chain(&self.toolkits);
        std::iter::once(self.image.as_str()).chain(above.map(String::as_str))
    }

    /// A sandbox of `image` with every default.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            kind: Kind::default(),
            image: image.into(),
            workspaces: Vec::new(),
            toolkits: Vec::new(),
            name: None,
            memory_bytes_max: default_memory(),
            cpu_millis_max: default_cpu(),
            pids_max: default_pids(),
            disk_bytes_max: default_disk(),
            ttl_ms: default_ttl(),
            network: Network::default(),
            scratch: Scratch::default(),
            qos: QosClass::default(),
            user: None,
            env: BTreeMap::new(),
            workdir: None,
            hostname: None,
            labels: BTreeMap::new(),
        }
    }

    /// Checks all that can be checked without a node. Errors: `invalid_argument` with the field's name.
    pub fn validate(&self) -> Result<()> {
        within("memory_bytes_max", self.memory_bytes_max, limit::MEMORY_BYTES_MIN, 1 << 50)?;
        within("cpu_millis_max", self.cpu_millis_max.into(), limit::CPU_MILLIS_MIN.into(), 1_000_000)?;
        within("pids_max", self.pids_max.into(), limit::PIDS_MIN.into(), 4 << 20)?;
        within("disk_bytes_max", self.disk_bytes_max, limit::DISK_BYTES_MIN, 1 << 50)?;
        within("ttl_ms", self.ttl_ms, 1, limit::TTL_MS_MAX)?;
        let layers = 1 + self.workspaces.len() + self.toolkits.len();
        within("layers (image, workspaces, toolkits)", layers as u64, 1, limit::LAYERS_MAX as u64)?;
        check_text("image", &self.image)?;
        self.workspaces.iter().try_for_each(|w| check_text("workspaces", w))?;
        self.toolkits.iter().try_for_each(|t| check_text("toolkits", t))?;
        if let Some(name) = &self.name {
            check_name("name", name)?;
        }
        if let Some(hostname) = &self.hostname {
            check_hostname(hostname)?;
        }
        if let Some(workdir) = &self.workdir {
            check_absolute("workdir", workdir)?;
        }
        if let Some(user) = &self.user {
            check_text("user", user)?;
        }
        check_env(&self.env)?;
        within("labels", self.labels.len() as u64, 0, limit::LABELS_MAX as u64)?;
        self.labels.iter().try_for_each(|(k, v)| {
            check_text("labels", k)?;
            if v.len() > limit::NAME_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "labels: the value of `{k}` is over {} bytes",
                    limit::NAME_BYTES_MAX
                )));
            }
            Ok(())
        })
    }
}

fn within(field: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("{field}: {value} is outside {min}..={max}")))
}

/// A short text: a user, a reference.
pub fn check_text(field: &str, text: &str) -> Result<()> {
    let ok = (1..=limit::NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    ok.then_some(()).ok_or_else(|| {
        Error::invalid(format!(
            "{field}: expected 1 to {} bytes without control characters",
            limit::NAME_BYTES_MAX
        ))
    })
}

/// A name: letters, digits, `.`, `_`, `-`; starts with a letter or digit; at most 63 bytes.
pub fn check_name(field: &str, name: &str) -> Result<()> {
    let ok = (1..=63).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !name.starts_with("sb-");
    ok.then_some(()).ok_or_else(|| {
        Error::invalid(format!(
            "{field}: expected 1 to 63 letters, digits, `.`, `_`, `-`, starting with a letter or digit and not with `sb-`"
        ))
    })
}

fn check_hostname(name: &str) -> Result<()> {
    let ok = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !name.starts_with('-');
    ok.then_some(()).ok_or_else(|| Error::invalid("hostname: expected 1 to 63 letters, digits and `-`"))
}

/// A path that starts at the sandbox's root and holds no NUL.
pub fn check_absolute(field: &str, path: &str) -> Result<()> {
    check_path(field, path)?;
    path.starts_with('/')
        .then_some(())
        .ok_or_else(|| Error::invalid(format!("{field}: `{path}` is not an absolute path")))
}

/// A path without NUL and within the kernel's bound.
pub fn check_path(field: &str, path: &str) -> Result<()> {
    let ok = (1..=limit::PATH_BYTES_MAX).contains(&path.len()) && !path.contains('\0');
    ok.then_some(()).ok_or_else(|| {
        Error::invalid(format!(
            "{field}: expected a path of 1 to {} bytes without NUL",
            limit::PATH_BYTES_MAX
        ))
    })
}

/// Environment names without `=` or NUL, values without NUL.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::invalid(format!(
                "env: `{}`: names hold no `=` and no NUL, values no NUL",
                key.escape_default()
            )));
        }
    }
    let bytes: usize = env.iter().map(|(key, value)| key.len() + value.len() + 2).sum();
    if bytes > limit::ENV_BYTES_MAX {
        return Err(Error::invalid(format!("env: {bytes} bytes in all, at most {}", limit::ENV_BYTES_MAX)));
    }
    Ok(())
}

/// `POST /v1/sandboxes`. Answered by a stream of [`CreateEvent`]s, one JSON object a line, as each sandbox is ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// How many alike. With more than one, `spec.name` must be absent.
    #[serde(default = "one")]
    pub count: u32,
    pub spec: SandboxSpec,
    /// Sent again with the same key, the same sandboxes are returned and none is made; for as long as one of them
    /// lives. Those that have ended since are told as `sandbox_gone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Whose they are: an id or a path; absent, the project of the key that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Of the quota that was taken for them. An apiserver's word to an edge; a caller's is not listened to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Answer with what the idempotency key has made, and make nothing: items that are missing fail as `quota_exceeded`. An
    /// apiserver's word to an edge, where a project has no quota left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_only: bool,
}

fn one() -> u32 {
    1
}

impl CreateRequest {
    pub fn one(spec: SandboxSpec) -> Self {
        Self::many(1, spec)
    }
    /// `count` alike.
    pub fn many(count: u32, spec: SandboxSpec) -> Self {
        Self { count, spec, idempotency_key: None, project: None, reservation: None, made_only: false }
    }
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        within("count", self.count.into(), 1, limit::CREATE_COUNT_MAX.into())?;
        if self.count > 1 && self.spec.name.is_some() {
            return Err(Error::invalid("name: only one sandbox can have it; use labels for a batch"));
        }
        if let Some(key) = &self.idempotency_key {
            check_text("idempotency_key", key)?;
        }
        if let Some(project) = &self.project {
            crate::iam::check_reference("project", project)?;
        }
        self.spec.validate()
    }
}

/// One line of a create's answer: item `index` of the batch is ready, or failed alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
// A success is the common case: a box would only add an allocation to it.
#[allow(clippy::large_enum_variant)]
pub enum CreateEvent {
    Created { index: u32, sandbox: SandboxInfo },
    Failed { index: u32, error: Error },
}

/// What is known of a sandbox. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxInfo {
    pub id: SandboxId,
    pub state: State,
    /// Why, for `broken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub spec: SandboxSpec,
    /// The id of the project that it belongs to.
    #[serde(default = "root_project")]
    pub project: String,
    /// The exact digests of the layers, base first.
    pub layers: Vec<String>,
    pub created_ms: u64,
    pub expires_ms: u64,
    /// Execs that run now.
    pub execs_live: u32,
}

/// Of a sandbox that was made before there were projects.
pub fn root_project() -> String {
    crate::iam::ROOT_PROJECT.into()
}

/// `GET /v1/sandboxes`: filters; all must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `key=value`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// `PUT /v1/sandboxes/{id}/ttl`: the new life, counted from now.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TtlRequest {
    pub ttl_ms: u64,
}

impl TtlRequest {
    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        within("ttl_ms", self.ttl_ms, 1, limit::TTL_MS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn only_the_image_is_required_and_unknown_fields_are_refused() {
        let spec: SandboxSpec = serde_json::from_str(r#"{"image":"debian"}"#).unwrap();
        assert_eq!(spec, SandboxSpec::new("debian"));
        spec.validate().unwrap();
        assert!(serde_json::from_str::<SandboxSpec>(r#"{"image":"d","entrypoint":"x"}"#).is_err());
    }

    #[test]
    fn each_bad_field_is_named() {
        let good = SandboxSpec::new("debian");
        let bad: Vec<(&str, SandboxSpec)> = vec![
            ("memory_bytes_max", SandboxSpec { memory_bytes_max: 0, ..good.clone() }),
            ("cpu_millis_max", SandboxSpec { cpu_millis_max: 0, ..good.clone() }),
            ("pids_max", SandboxSpec { pids_max: 0, ..good.clone() }),
            ("disk_bytes_max", SandboxSpec { disk_bytes_max: u64::MAX, ..good.clone() }),
            ("ttl_ms", SandboxSpec { ttl_ms: 0, ..good.clone() }),
            ("image", SandboxSpec { image: String::new(), ..good.clone() }),
            ("name", SandboxSpec { name: Some("../x".into()), ..good.clone() }),
            ("hostname", SandboxSpec { hostname: Some("a.b".into()), ..good.clone() }),
            ("workdir", SandboxSpec { workdir: Some("w".into()), ..good.clone() }),
            ("env", SandboxSpec { env: [("A=B".into(), "c".into())].into(), ..good.clone() }),
            ("layers", SandboxSpec { toolkits: vec!["t".into(); 64], ..good.clone() }),
        ];
        for (field, spec) in bad {
            let e = spec.validate().unwrap_err();
            assert_eq!(e.code, Code::InvalidArgument);
            assert!(e.message.starts_with(field), "{field}: {e}");
        }
    }

    #[test]
    fn a_batch_has_no_name() {
        let mut spec = SandboxSpec::new("debian");
        spec.name = Some("a".into());
        let e = CreateRequest::many(2, spec).validate().unwrap_err();
        assert_eq!(e.code, Code::InvalidArgument);
    }
}
