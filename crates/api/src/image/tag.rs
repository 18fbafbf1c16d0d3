//! `POST /v1/images/{reference}/tag`: another name for the layers of an image, with its config or another one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageConfig, default_version};
use crate::{Result, spec};

/// The body of a tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TagRequest {
    /// A name and version that are there already lead to this image from then on.
    pub name: String,
    #[serde(default = "default_version")]
    pub version: String,
    /// Absent: as the image has. Another config is another digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ImageConfig>,
}

impl TagRequest {
    /// The same image, version `latest`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), version: default_version(), config: None }
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        spec::check_name("version", &self.version)?;
        self.config.as_ref().map_or(Ok(()), ImageConfig::validate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_configs_are_checked() {
        let tag: TagRequest = serde_json::from_str(r#"{"name":"app"}"#).unwrap();
        assert_eq!(tag, TagRequest::new("app"));
        tag.validate().unwrap();
        assert!(TagRequest::new("a/b").validate().is_err());
        let with = |config| TagRequest { config: Some(config), ..TagRequest::new("app") }.validate();
        let port = |port: &str| ImageConfig { exposed_ports: [port.to_owned()].into(), ..Default::default() };
        with(port("53/udp")).unwrap();
        for bad in ["53", "0/tcp", "65536/tcp", "53/x", "+1/tcp", "053/tcp"] {
            assert!(with(port(bad)).unwrap_err().message.contains(bad), "{bad}");
        }
        let workdir = ImageConfig { workdir: Some("relative".into()), ..Default::default() };
        assert!(with(workdir).is_err());
        let env = ImageConfig { env: [("A=B".to_owned(), "x".to_owned())].into(), ..Default::default() };
        assert!(with(env).is_err());
        let large =
            ImageConfig { labels: [("a".to_owned(), "x".repeat(1 << 20))].into(), ..Default::default() };
        assert!(with(large).unwrap_err().message.contains("config"));
    }
}
