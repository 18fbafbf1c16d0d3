//! Snapshots: a sandbox's disk, packed into an image of its own that starts others. Theirs may hold memory too, ours
//! never does: asked for by name it is refused, and left to the server's choice the choice is the disk.
//!
//! The image's reference is the snapshot's id, and says all there is to know: `snapshot.NAME:SOURCE`, or
//! `snapshot-MS:SOURCE` where no name was given; SOURCE is the sandbox's id without its `sb-`, which no version may
//! start with. So nothing is kept here, and `dsec image` sees and removes them like any other.

use std::time::{SystemTime, UNIX_EPOCH};

use api::{Code, SandboxId, image::ImageInfo, snapshot::PackRequest};
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Call,
    list::{self, Place},
};
use crate::{
    body::{self, Query},
    fault::Fault,
};

const NAMED: &str = "snapshot.";
const UNNAMED: &str = "snapshot-";

/// What an image's reference says of a snapshot.
#[derive(Debug, PartialEq)]
struct Snapshot<'a> {
    name: Option<&'a str>,
    source: SandboxId,
}

impl<'a> Snapshot<'a> {
    /// None: some other image.
    fn read(image: &'a str, version: &str) -> Option<Self> {
        let source = format!("sb-{version}").parse().ok()?;
        let name = image.strip_prefix(NAMED);
        (name.is_some() || image.starts_with(UNNAMED)).then_some(Self { name, source })
    }

    fn of(image: &'a ImageInfo) -> Option<Self> {
        Self::read(&image.name, &image.version)
    }
}

pub(super) fn is_one(image: &ImageInfo) -> bool {
    Snapshot::of(image).is_some()
}

/// The newest snapshot that was given this name.
pub(super) fn named(images: &[ImageInfo], name: &str) -> Option<String> {
    let alike = images.iter().filter(|i| Snapshot::of(i).is_some_and(|s| s.name == Some(name)));
    alike.max_by_key(|i| i.created_ms).map(reference)
}

fn reference(image: &ImageInfo) -> String {
    format!("{}:{}", image.name, image.version)
}

fn view(image: &ImageInfo) -> Value {
    let name = Snapshot::of(image).and_then(|s| s.name);
    json!({ "snapshotID": reference(image), "names": name.into_iter().collect::<Vec<_>>() })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSnapshot {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    memory: Option<bool>,
}

impl NewSnapshot {
    fn request(self, source: &SandboxId) -> Result<PackRequest, Fault> {
        if self.memory == Some(true) {
            return Err(Fault::unsupported(
                "memory: not supported by DSec: a snapshot is of the disk alone (mode=\"filesystem\")",
            ));
        }
        let name = match self.name {
            Some(name) => format!("{NAMED}{name}"),
            // One sandbox packs one disk at a time, so two of a millisecond differ in their source.
            None => format!(
                "{UNNAMED}{}",
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
            ),
        };
        let version = source.as_str().strip_prefix("sb-").unwrap_or_default().to_owned();
        let request = PackRequest { version, ..PackRequest::new(name) };
        request.validate()?;
        Ok(request)
    }
}

pub(super) async fn create(call: Call, id: &str) -> Result<Response, Fault> {
    let asked: NewSnapshot = body::parse(&body::whole(call.body).await?)?;
    let id = call.face.alive(id).await?.id;
    let request = asked.request(&id)?;
    let front = call.face.front.clone();
    let report = rpc::to_the_end(async move { front.pack_diff(&id, request).await }).await?;
    Ok(body::json(StatusCode::CREATED, &view(&report.image)))
}

/// Newest first, in pages.
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let query = Query::of(&call.uri);
    let (limit, after) = (list::limit(&query)?, list::after(&query)?);
    let wanted = |image: &ImageInfo| {
        Snapshot::of(image).is_some_and(|snapshot| {
            query.get("sandboxID").is_none_or(|id| snapshot.source.as_str() == id)
                && query.get("name").is_none_or(|name| snapshot.name == Some(name))
        })
    };
    let images = call.face.front.image_list().await?;
    let mut found: Vec<(Place, Value)> = images
        .iter()
        .filter(|image| wanted(image))
        .map(|image| ((image.created_ms, reference(image)), view(image)))
        .filter(|(place, _)| after.as_ref().is_none_or(|after| place < after))
        .collect();
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(place, _)| place.clone());
    let shown: Vec<Value> = found.into_iter().map(|(_, value)| value).collect();
    Ok(list::page(&shown, next.as_ref()))
}

/// By the path of their templates, of which snapshots are the only ones that this API may remove.
pub(super) async fn delete(call: Call, id: &str) -> Result<Response, Fault> {
    let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
    let known = call.face.front.image_inspect(&id).await;
    let image = known.map_err(|error| match error.code {
        Code::NotFound | Code::InvalidArgument => Fault::not_found("snapshot not found"),
        _ => error.into(),
    })?;
    if !is_one(&image) {
        return Err(super::unsupported(&["templates"]));
    }
    call.face.front.image_remove(&reference(&image)).await?;
    Ok(body::nothing())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "sb-e1-01h00000000000000000000000";

    fn asked(body: Value) -> Result<PackRequest, Fault> {
        let asked: NewSnapshot = body::parse(body.to_string().as_bytes())?;
        asked.request(&SOURCE.parse().unwrap())
    }

    #[test]
    fn an_id_says_all_there_is_to_know() {
        for (body, name) in
            [(json!({ "name": "golden" }), Some("golden")), (json!({ "memory": false }), None)]
        {
            let request = asked(body).unwrap();
            let read = Snapshot::read(&request.name, &request.version).unwrap();
            assert_eq!((read.name, read.source.as_str()), (name, SOURCE));
            assert!(request.scrub == api::snapshot::Scrub::default());
        }
        for (image, version) in
            [("debian", "latest"), ("snapshot.x", "latest"), ("x", "e1-01h00000000000000000000000")]
        {
            assert_eq!(Snapshot::read(image, version), None, "{image}:{version}");
        }
    }

    #[test]
    fn memory_and_names_that_are_none_are_refused() {
        assert_eq!(asked(json!({ "memory": true })).unwrap_err().status(), 501);
        for body in [json!({ "name": "a/b" }), json!({ "name": "a:b" }), json!({ "disk": true })] {
            assert_eq!(asked(body).unwrap_err().status(), 400);
        }
    }
}
