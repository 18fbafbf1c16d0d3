//! Environments: named compositions of a base, workspaces and toolkits.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    image::{ImageConfig, LayerKind, Usage},
    limit, spec,
};

/// `POST /v1/environments`: a composition gets a name, under which sandboxes are created as of an image.
///
/// Each part is taken as what it means now, and stays that for as long as the environment is there. Parts whose kind is in
/// `follow` mean what their name means when a sandbox is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentRequest {
    /// No image has this name and version.
    pub name: String,
    #[serde(default = "default_version")]
    pub version: String,
    /// The base: `name`, `name:version` or a digest, as are the others.
    pub image: String,
    /// Over the base, in order.
    #[serde(default)]
    pub workspaces: Vec<String>,
    /// On top, in order.
    #[serde(default)]
    pub toolkits: Vec<String>,
    #[serde(default)]
    pub follow: Vec<LayerKind>,
    /// Over the base image's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default: the base image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default: the base image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
}

fn default_version() -> String {
    "latest".into()
}

impl EnvironmentRequest {
    pub fn new(name: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: default_version(),
            image: image.into(),
            workspaces: Vec::new(),
            toolkits: Vec::new(),
            follow: Vec::new(),
            env: BTreeMap::new(),
            user: None,
            workdir: None,
        }
    }

    /// The parts as they were named, lowest first.
    pub fn parts(&self) -> impl Iterator<Item = (LayerKind, &str)> {
        let workspaces = self.workspaces.iter().map(|w| (LayerKind::Workspace, w.as_str()));
        let toolkits = self.toolkits.iter().map(|t| (LayerKind::Toolkit, t.as_str()));
        std::iter::once((LayerKind::Base, self.image.as_str())).chain(workspaces).chain(toolkits)
    }

    /// Errors: `invalid_argument`.
    pub fn validate(&self) -> Result<()> {
        spec::check_name("name", &self.name)?;
        spec::check_name("version", &self.version)?;
        if self.parts().count() > limit::LAYERS_MAX {
            return Err(Error::invalid(format!("an environment has at most {} parts", limit::LAYERS_MAX)));
        }
        spec::check_text("image", &self.image)?;
        self.workspaces.iter().try_for_each(|w| spec::check_text("workspaces", w))?;
        self.toolkits.iter().try_for_each(|t| spec::check_text("toolkits", t))?;
        for (kind, reference) in self.parts() {
            if self.follow.contains(&kind) && reference.starts_with("blake3:") {
                return Err(Error::invalid(format!(
                    "follow: `{reference}` is a digest, which never changes"
                )));
            }
        }
        spec::check_env(&self.env)?;
        if let Some(user) = &self.user {
            spec::check_text("user", user)?;
        }
        self.workdir.iter().try_for_each(|workdir| spec::check_absolute("workdir", workdir))
    }
}

/// A part, and what it means now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentPart {
    pub kind: LayerKind,
    /// As it was named.
    pub reference: String,
    /// It means what its name means when a sandbox is created.
    pub follow: bool,
    /// Of the image; absent where it is followed and is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What an environment means: the sandboxes of one created now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnvironmentInfo {
    pub name: String,
    pub version: String,
    /// Lowest first.
    pub parts: Vec<EnvironmentPart>,
    /// Over layers and config, as an image's; absent where a part is not there. For ever the same where no part is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Digests of the EROFS layers, lowest first.
    pub layers: Vec<String>,
    pub config: ImageConfig,
    pub files: u64,
    pub size_bytes: u64,
    pub created_ms: u64,
    /// Sandboxes that live on this composition now.
    #[serde(default)]
    pub in_use: u32,
    #[serde(default)]
    pub usage: Usage,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn only_name_and_image_are_required_and_parts_are_in_order() {
        let json = r#"{"name":"task","image":"debian","toolkits":["t"],"workspaces":["w"]}"#;
        let request: EnvironmentRequest = serde_json::from_str(json).unwrap();
        request.validate().unwrap();
        assert_eq!(request.version, "latest");
        let parts: Vec<_> = request.parts().map(|(_, reference)| reference).collect();
        assert_eq!(parts, ["debian", "w", "t"]);
        assert!(
            serde_json::from_str::<EnvironmentRequest>(r#"{"name":"a","image":"b","base":"c"}"#).is_err()
        );
    }

    #[test]
    fn each_bad_field_is_named() {
        let good = EnvironmentRequest::new("task", "debian");
        let many = vec!["t".to_owned(); limit::LAYERS_MAX];
        let digest = format!("blake3:{}", "0".repeat(64));
        let bad = [
            ("name", EnvironmentRequest { name: "a/b".into(), ..good.clone() }),
            ("version", EnvironmentRequest { version: String::new(), ..good.clone() }),
            ("image", EnvironmentRequest { image: String::new(), ..good.clone() }),
            ("an environment", EnvironmentRequest { toolkits: many, ..good.clone() }),
            (
                "follow",
                EnvironmentRequest {
                    toolkits: vec![digest],
                    follow: vec![LayerKind::Toolkit],
                    ..good.clone()
                },
            ),
            ("env", EnvironmentRequest { env: [("A=".to_owned(), String::new())].into(), ..good.clone() }),
            ("workdir", EnvironmentRequest { workdir: Some("x".into()), ..good.clone() }),
        ];
        for (field, request) in bad {
            let error = request.validate().unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.starts_with(field), "{field}: {error}");
        }
    }
}
