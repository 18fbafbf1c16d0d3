//! `[store]` of a node's configuration.

use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{Error, Result};

/// Below this a cache would drop what it has just fetched: one batch.
const CACHE_BYTES_MIN: u64 = 8 << 20;
/// Shorter, and one slow answer is an error; longer, and whoever reads hangs.
const READ_WITHIN_MS: std::ops::RangeInclusive<u64> = 500..=300_000;
const TRACE_IDLE_MS: std::ops::RangeInclusive<u64> = 200..=3_600_000;

/// When what a node makes goes to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Publish {
    /// When it is asked to.
    #[default]
    Asked,
    /// Each import and pack, in the background.
    Always,
}

/// When the bytes of files come to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fetch {
    /// When they are read.
    #[default]
    OnDemand,
    /// All, before the first sandbox starts.
    Eager,
}

/// Where the store is. Keys of S3 come from the environment (`AWS_ACCESS_KEY_ID`, ...), never from a file of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// `file:///mnt/x` or `s3://bucket/prefix`; empty: no store.
    pub url: String,
    /// Of an S3 that is not Amazon's.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub publish: Publish,
    pub fetch: Fetch,
    /// What chunks may take of this node's disk.
    pub cache_bytes_max: u64,
    /// How long one call of the store may take with all its retries; after that a read is EIO.
    pub read_within_ms: u64,
    /// Whether chunks that the first sandboxes elsewhere have read are fetched before anyone asks for them here.
    pub prefetch: bool,
    /// A layer of which nothing new was read for so long: what was read is told to the store, for `prefetch` elsewhere.
    pub trace_idle_ms: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            endpoint: None,
            region: None,
            publish: Publish::default(),
            fetch: Fetch::default(),
            cache_bytes_max: 16 << 30,
            read_within_ms: 20_000,
            prefetch: true,
            trace_idle_ms: 60_000,
        }
    }
}

/// A parsed [`StoreConfig::url`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Directory(std::path::PathBuf),
    Bucket { name: String, prefix: String },
}

impl StoreConfig {
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    pub fn is_set(&self) -> bool {
        !self.url.is_empty()
    }

    /// Errors: which field, and why.
    pub fn validate(&self) -> Result<()> {
        if self.is_set() {
            self.place()?;
        }
        if let Some(endpoint) = &self.endpoint {
            let ok = Url::parse(endpoint).is_ok_and(|u| matches!(u.scheme(), "http" | "https"));
            if !ok {
                return Err(Error::Config(format!("endpoint: `{endpoint}` is no http or https URL")));
            }
        }
        if self.cache_bytes_max < CACHE_BYTES_MIN {
            let text = format!("cache_bytes_max: {} is less than {CACHE_BYTES_MIN}", self.cache_bytes_max);
            return Err(Error::Config(text));
        }
        let times = [
            ("read_within_ms", self.read_within_ms, READ_WITHIN_MS),
            ("trace_idle_ms", self.trace_idle_ms, TRACE_IDLE_MS),
        ];
        for (field, value, range) in times {
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                return Err(Error::Config(format!("{field}: {value} is outside {least}..={most}")));
            }
        }
        Ok(())
    }

    pub(crate) fn place(&self) -> Result<Place> {
        let bad = |why: &str| Error::Config(format!("url: `{}` {why}", self.url));
        let url = Url::parse(&self.url).map_err(|_| bad("is no URL: expected file:///DIR or s3://BUCKET"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::Config("url: keys belong in the environment, not in the URL".into()));
        }
        match url.scheme() {
            "file" => match url.to_file_path() {
                Ok(path) if path.parent().is_some() => Ok(Place::Directory(path)),
                _ => Err(bad("names no directory: expected file:///DIR")),
            },
            "s3" => match url.host_str() {
                Some(name) => Ok(Place::Bucket {
                    name: name.to_owned(),
                    prefix: url.path().trim_matches('/').to_owned(),
                }),
                None => Err(bad("names no bucket: expected s3://BUCKET/PREFIX")),
            },
            _ => Err(bad("is neither file:// nor s3://")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_directory_or_a_bucket() {
        let place = |url: &str| StoreConfig::at(url).place();
        assert_eq!(place("file:///mnt/x").unwrap(), Place::Directory("/mnt/x".into()));
        let bucket = |prefix: &str| Place::Bucket { name: "abc".into(), prefix: prefix.into() };
        assert_eq!(place("s3://abc").unwrap(), bucket(""));
        assert_eq!(place("s3://abc/a/b/").unwrap(), bucket("a/b"));
        for bad in ["/mnt/x", "file:///", "ftp://x/y", "s3:///x", "s3://a:b@abc/x", "x"] {
            assert!(place(bad).unwrap_err().to_string().starts_with("url: "), "{bad}");
        }
    }

    #[test]
    fn bad_fields_are_named() {
        StoreConfig::default().validate().unwrap();
        let small = StoreConfig { cache_bytes_max: 1, ..StoreConfig::default() };
        assert!(small.validate().unwrap_err().to_string().starts_with("cache_bytes_max"));
        let hasty = StoreConfig { read_within_ms: 1, ..StoreConfig::default() };
        assert!(hasty.validate().unwrap_err().to_string().starts_with("read_within_ms"));
        let odd = StoreConfig { endpoint: Some("x".into()), ..StoreConfig::at("s3://abc") };
        assert!(odd.validate().unwrap_err().to_string().starts_with("endpoint"));
    }
}
