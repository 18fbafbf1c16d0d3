//! Template names, which are image references here.

use api::image::LayerKind;
use axum::response::Response;
use http::StatusCode;
use serde_json::json;

use super::{Call, snapshot};
use crate::{E2b, body, fault::Fault};

/// Templates that their clients name when their user names none.
const STOCK: [&str; 3] = ["base", "code-interpreter-v1", "code-interpreter"];

impl E2b {
    /// The image that a template name stands for. Faults: `not_found`, with what there is.
    pub(super) async fn image_of(&self, template: &str) -> Result<String, Fault> {
        if let Some(image) = self.config.templates.get(template) {
            return Ok(image.clone());
        }
        // `name:default` is how some versions write a name without a tag.
        let name = template.strip_suffix(":default").unwrap_or(template);
        if self.front.image_inspect(name).await.is_ok_and(|image| image.kind == LayerKind::Base) {
            return Ok(name.to_owned());
        }
        let images = self.front.image_list().await?;
        if let Some(snapshot) = snapshot::named(&images, name) {
            return Ok(snapshot);
        }
        // A snapshot is asked for by its id or its name; it does not take the place of the only base there is.
        let bases = images.into_iter().filter(|i| i.kind == LayerKind::Base && !snapshot::is_one(i));
        let mut bases: Vec<String> = bases.map(|i| i.name).collect();
        bases.sort();
        bases.dedup();
        if STOCK.contains(&name) {
            if let Some(image) = &self.config.default_image {
                return Ok(image.clone());
            }
            if let [only] = bases.as_slice() {
                return Ok(only.clone());
            }
        }
        let shown: String = name.chars().take(80).collect();
        bases.truncate(20);
        Err(Fault::not_found(format!(
            "template '{shown}' not found: no base image has this name, nor does [e2b] templates or default_image of \
             the configuration give one; there is: {}",
            if bases.is_empty() { "none".to_owned() } else { bases.join(", ") }
        )))
    }
}

pub(super) async fn exists(call: Call, name: &str) -> Result<Response, Fault> {
    let decoded = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    let image = call.face.image_of(&decoded).await?;
    Ok(body::json(StatusCode::OK, &json!({ "templateID": image, "public": false })))
}
