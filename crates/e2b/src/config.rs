//! What an operator sets of this face.

use std::collections::BTreeMap;

use api::spec::SandboxSpec;
use serde::{Deserialize, Serialize};

/// `[e2b]` of the node's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Image references for template names: `base = "debian:12"`.
    pub templates: BTreeMap<String, String>,
    /// For the stock templates (`base`, `code-interpreter-v1` ...) that `templates` does not name. Absent: the only
    /// base image of the catalogue.
    pub default_image: Option<String>,
    /// What each sandbox may use, as a template of theirs would say. Absent: the defaults of any sandbox.
    pub memory_bytes_max: Option<u64>,
    pub cpu_millis_max: Option<u32>,
    pub disk_bytes_max: Option<u64>,
    /// The domain that clients put behind `PORT-ID.`; it and all below it lead here. Absent: the client's own.
    pub domain: Option<String>,
    /// Ports of sandboxes are open to whoever knows the sandbox's id, as in E2B's cloud. False: a token is asked for.
    pub public_ports: bool,
}

impl Config {
    /// Errors: what is wrong, with the field's name.
    pub fn validate(&self) -> Result<(), String> {
        self.sized(SandboxSpec::new("any")).validate().map_err(|e| e.message)?;
        let domain = self.domain.as_deref().unwrap_or("localhost");
        let ok = (1..=190).contains(&domain.len())
            && domain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b));
        if !ok {
            return Err(format!("domain: `{domain}` is no host name"));
        }
        let images = self.templates.iter().chain(self.default_image.iter().map(|i| (i, i)));
        for (name, image) in images {
            if name.is_empty() || image.is_empty() {
                return Err("templates, default_image: an empty name".into());
            }
        }
        Ok(())
    }
}

impl Config {
    /// The spec with the sizes that are set.
    pub(crate) fn sized(&self, mut spec: SandboxSpec) -> SandboxSpec {
        spec.memory_bytes_max = self.memory_bytes_max.unwrap_or(spec.memory_bytes_max);
        spec.cpu_millis_max = self.cpu_millis_max.unwrap_or(spec.cpu_millis_max);
        spec.disk_bytes_max = self.disk_bytes_max.unwrap_or(spec.disk_bytes_max);
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(Config::default().validate(), Ok(()));
        let domain = |d: &str| Config { domain: Some(d.into()), ..Config::default() }.validate();
        assert_eq!(domain("sandboxes.example.org"), Ok(()));
        assert!(domain("a b").unwrap_err().contains("domain"));
        let small = Config { memory_bytes_max: Some(1), ..Config::default() };
        assert!(small.validate().unwrap_err().contains("memory_bytes_max"));
        let empty = Config { default_image: Some(String::new()), ..Config::default() };
        assert!(empty.validate().unwrap_err().contains("default_image"));
    }
}
