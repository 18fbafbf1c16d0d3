//! The record of an image: what a name or a digest means.

use api::image::{ImageInfo, Usage};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    store::{Store, bare},
};

const FORMAT: u32 = 1;
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Images that are listed.
const LIST_MAX: usize = 10_000;
const READS_IN_FLIGHT: usize = 16;
const VERSION_DEFAULT: &str = "latest";

#[derive(Serialize, Deserialize)]
struct Record {
    format: u32,
    image: ImageInfo,
}

pub(crate) fn image_name(name: &str, version: &str) -> String {
    format!("images/{name}/{version}.json")
}

pub(crate) fn stack_name(digest: &str) -> String {
    format!("stacks/{}.json", bare(digest))
}

pub(crate) fn encode(image: &ImageInfo) -> Result<Bytes> {
    let record =
        Record { format: FORMAT, image: ImageInfo { in_use: 0, usage: Usage::default(), ..image.clone() } };
    let json = serde_json::to_vec_pretty(&record).map_err(|e| Error::disk("encode a record")(e.into()))?;
    Ok(json.into())
}

/// Errors: `Config` for a format of the future, `Damaged`.
fn decode(what: &str, json: &[u8]) -> Result<ImageInfo> {
    let damaged = |_| Error::Damaged(format!("record of {what}"));
    let record: Record = serde_json::from_slice(json).map_err(damaged)?;
    if record.format != FORMAT {
        return Err(Error::Config(format!("{what} is of a format that this version does not know")));
    }
    // They become names of objects and of directories.
    let digests = record.image.layers.iter().chain([&record.image.digest]);
    if !digests.into_iter().all(|digest| is_digest(digest)) {
        return Err(Error::Damaged(format!("record of {what}")));
    }
    Ok(record.image)
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("blake3:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

impl Store {
    /// The image of `name`, `name:version` or a digest. None: the store has none.
    pub async fn image(&self, reference: &str) -> Result<Option<ImageInfo>> {
        let by_digest = reference.starts_with("blake3:");
        if by_digest && !is_digest(reference) {
            return Ok(None);
        }
        let (name, version) = reference.split_once(':').unwrap_or((reference, VERSION_DEFAULT));
        // A reference may come from anywhere, and an object's name must not.
        let is_name = |text: &str| api::spec::check_name("name", text).is_ok();
        let object = match by_digest {
            true => stack_name(reference),
            false if is_name(name) && is_name(version) => image_name(name, version),
            false => return Ok(None),
        };
        self.document(&object, RECORD_BYTES_MAX, |json| {
            let image = decode(reference, &json)?;
            let is_it = match by_digest {
                true => image.digest == reference,
                false => (image.name.as_str(), image.version.as_str()) == (name, version),
            };
            if is_it { Ok(image) } else { Err(Error::Damaged(format!("record of {reference}"))) }
        })
        .await
    }

    /// A record of `images/` or `stacks/`, by its object's name. None: it is not there. Errors: as of `decode`.
    pub(crate) async fn record(&self, object: &str) -> Result<Option<ImageInfo>> {
        self.document(object, RECORD_BYTES_MAX, |json| decode(object, &json)).await
    }

    /// Removes a name of the store, `name` or `name:version`; and the image by its digest as well, where no other name means
    /// that. A digest: that image, which no name may mean any more. Its layers stay until the next collection.
    ///
    /// Errors: `Missing`, `InUse`.
    pub async fn remove_image(&self, reference: &str) -> Result<()> {
        let missing = || Error::Missing(format!("image {reference}"));
        let found = match self.image(reference).await {
            Ok(found) => Some(found.ok_or_else(missing)?),
            // Its name can go all the same.
            Err(Error::Damaged(_) | Error::Config(_)) => None,
            Err(error) => return Err(error),
        };
        let is_named = |images: &[ImageInfo], digest: &str| images.iter().any(|i| i.digest == digest);
        if reference.starts_with("blake3:") {
            if is_named(&self.images().await?, reference) {
                return Err(Error::InUse(format!("{reference} has a name in the store: remove that")));
            }
            return self.remove(&stack_name(reference)).await;
        }
        let (name, version) = reference.split_once(':').unwrap_or((reference, VERSION_DEFAULT));
        self.remove(&image_name(name, version)).await?;
        match found {
            Some(image) if !is_named(&self.images().await?, &image.digest) => {
                self.remove(&stack_name(&image.digest)).await
            }
            _ => Ok(()),
        }
    }

    /// All images, by name and version; one whose record is damaged is left out, with a warning.
    pub async fn images(&self) -> Result<Vec<ImageInfo>> {
        let names = self.names("images", LIST_MAX).await?;
        let read =
            stream::iter(names.into_iter().filter(|name| name.ends_with(".json"))).map(|name| async move {
                let object = format!("images/{name}");
                match self.document(&object, RECORD_BYTES_MAX, |json| decode(&name, &json)).await {
                    Err(Error::Damaged(what)) => {
                        tracing::warn!(what, "store: an image is left out of the list");
                        Ok(None)
                    }
                    read => read,
                }
            });
        let images: Vec<Option<ImageInfo>> = read.buffer_unordered(READS_IN_FLIGHT).try_collect().await?;
        let mut images: Vec<ImageInfo> = images.into_iter().flatten().collect();
        images.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(images)
    }
}
