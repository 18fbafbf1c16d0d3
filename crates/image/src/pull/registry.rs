//! One repository of a registry: what the distribution API's `manifests` and `blobs` give.
//!
//! Invariants: `Authorization` goes to the registry's own origin and nowhere else; a redirect never leads from TLS to
//! no TLS; a document is believed when its sha256 is the promised one.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use api::{
    Code, Error,
    pull::{Credentials, PullRequest, Reference},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use sha2::{Digest, Sha256};

use super::{
    auth::{self, Challenge},
    failure::{Failure, repeat},
    transport::{Answer, Transport, authority, is_loopback},
};
use crate::import::document::Descriptor;

const REDIRECTS_MAX: usize = 5;
/// Manifests and configs.
const DOCUMENT_BYTES_MAX: u64 = 8 << 20;
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

pub struct Registry {
    transport: Transport,
    /// Scheme and authority.
    base: Uri,
    plain_http: bool,
    repository: String,
    credentials: Option<Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl Registry {
    pub fn new(transport: Transport, reference: &Reference, request: &PullRequest) -> Result<Self, Error> {
        let bad = |_| Error::invalid("reference: its registry is no host");
        let secure: Uri = format!("https://{}/", reference.registry).parse().map_err(bad)?;
        let plain = request.plain_http || is_loopback(&secure);
        let base =
            if plain { format!("http://{}/", reference.registry).parse().map_err(bad)? } else { secure };
        Ok(Self {
            transport,
            base,
            plain_http: request.plain_http,
            repository: reference.repository.clone(),
            credentials: request.credentials.clone(),
            authorization: Mutex::default(),
        })
    }

    /// A manifest or an index by tag or digest, and its digest's hex.
    pub async fn manifest(&self, version: &str) -> Result<(Bytes, String), Error> {
        let bytes = repeat(async || {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(MANIFESTS));
            let answer = self.get(&format!("manifests/{version}"), &headers).await?;
            answer.whole(DOCUMENT_BYTES_MAX, "the manifest").await
        });
        let bytes = bytes.await?;
        let hex = hex_of(Sha256::digest(&bytes).as_slice());
        match version.strip_prefix("sha256:") {
            Some(promised) if promised != hex => Err(mismatch("the manifest", promised, &hex)),
            _ => Ok((bytes, hex)),
        }
    }

    /// A small blob, checked.
    pub async fn document(&self, what: &str, descriptor: &Descriptor) -> Result<Bytes, Error> {
        let promised = descriptor.hex()?;
        if descriptor.size.is_some_and(|size| size > DOCUMENT_BYTES_MAX) {
            return Err(Error::invalid(format!("{what}: larger than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let bytes = repeat(async || {
            let answer = self.blob(promised, 0).await?;
            answer.whole(descriptor.size.unwrap_or(DOCUMENT_BYTES_MAX), what).await
        });
        let bytes = bytes.await?;
        let hex = hex_of(Sha256::digest(&bytes).as_slice());
        if hex == promised { Ok(bytes) } else { Err(mismatch(what, promised, &hex)) }
    }

    /// A blob from a byte on; the registry may give it from its beginning all the same.
    pub async fn blob(&self, hex: &str, from: u64) -> Result<Answer, Failure> {
        let mut headers = HeaderMap::new();
        if from > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={from}-"))
        {
            headers.insert(header::RANGE, range);
        }
        self.get(&format!("blobs/sha256:{hex}"), &headers).await
    }

    async fn get(&self, what: &str, headers: &HeaderMap) -> Result<Answer, Failure> {
        let host = authority(&self.base)?;
        let mut has_answered = false;
        loop {
            let (answer, is_own) = self.follow(what, headers).await?;
            if answer.head.status != StatusCode::UNAUTHORIZED || !is_own {
                return self.judged(answer, is_own);
            }
            // A token may have expired since; a fresh one that is refused is an answer.
            if has_answered {
                return Err(auth::refused(&host, self.credentials.is_some()));
            }
            has_answered = true;
            let authorization = self.authenticate(&answer.head.headers, &host).await?;
            *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization);
        }
    }

    /// The answer, and whether the registry itself gave it.
    async fn follow(&self, what: &str, headers: &HeaderMap) -> Result<(Answer, bool), Failure> {
        let path = format!("/v2/{}/{what}", self.repository);
        let mut url = resolve(&self.base, &path)?;
        for _ in 0..=REDIRECTS_MAX {
            let mut headers = headers.clone();
            let is_own = origin(&url) == origin(&self.base);
            let authorization = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(authorization) = authorization.filter(|_| is_own) {
                headers.insert(header::AUTHORIZATION, authorization);
            }
            let answer = self.transport.get(&url, headers).await?;
            let status = answer.head.status.as_u16();
            let Some(location) = matches!(status, 301 | 302 | 303 | 307 | 308)
                .then(|| answer.header(header::LOCATION))
                .flatten()
            else {
                return Ok((answer, is_own));
            };
            let next = resolve(&url, location)?;
            self.check_step(&url, &next)?;
            url = next;
        }
        Err(Failure::last(Code::InvalidArgument, "the registry redirects without end"))
    }

    /// From TLS to no TLS never; else no TLS only where that was asked for, or on this machine.
    fn check_step(&self, from: &Uri, to: &Uri) -> Result<(), Failure> {
        let is_plain = |url: &Uri| url.scheme_str() == Some("http");
        if is_plain(to) && !(is_plain(from) && (self.plain_http || is_loopback(to))) {
            let host = authority(to)?;
            let message = format!("the registry leads to `{host}` without TLS, which was not asked for");
            return Err(Failure::last(Code::PermissionDenied, message));
        }
        Ok(())
    }

    async fn authenticate(&self, headers: &HeaderMap, host: &str) -> Result<HeaderValue, Failure> {
        match auth::challenge(headers) {
            Some(Challenge::Bearer { realm, service, scope }) => {
                let realm = resolve(&self.base, &realm)?;
                self.check_step(&self.base, &realm)?;
                let own = format!("repository:{}:pull", self.repository);
                let scope = scope.unwrap_or(own);
                let credentials = self.credentials.as_ref();
                auth::token(&self.transport, &realm, service.as_deref(), &scope, credentials).await
            }
            Some(Challenge::Basic) => match &self.credentials {
                Some(credentials) => auth::basic(credentials),
                None => Err(auth::refused(host, false)),
            },
            None => {
                let message = format!("`{host}` asks for a kind of credentials that is not known here");
                Err(Failure::last(Code::Unauthenticated, message))
            }
        }
    }

    fn judged(&self, answer: Answer, is_own: bool) -> Result<Answer, Failure> {
        let status = answer.head.status;
        let host = authority(&self.base)?;
        let who = if is_own { format!("`{host}`") } else { format!("the storage behind `{host}`") };
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let message = format!("{who} does not allow this: {status}");
                Err(Failure::last(Code::PermissionDenied, message))
            }
            StatusCode::NOT_FOUND => {
                let message = format!("{who} has no such image in `{}`", self.repository);
                Err(Failure::last(Code::NotFound, message))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let message = format!("{who} has fewer bytes than the manifest promises");
                Err(Failure::last(Code::InvalidArgument, message))
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let after = answer.header(header::RETRY_AFTER).and_then(|text| text.trim().parse().ok());
                let message = format!("{who} takes no more requests now");
                Err(Failure::rate_limited(message, after.map(Duration::from_secs)))
            }
            StatusCode::REQUEST_TIMEOUT => Err(Failure::unreachable(format!("{who} answers {status}"))),
            status if status.is_server_error() => {
                Err(Failure::unreachable(format!("{who} answers {status}")))
            }
            status => Err(Failure::last(Code::InvalidArgument, format!("{who} answers {status}"))),
        }
    }
}

/// Scheme, host, port.
fn origin(url: &Uri) -> (Option<&str>, String, u16) {
    let port = if url.scheme_str() == Some("https") { 443 } else { 80 };
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    (url.scheme_str(), host, url.port_u16().unwrap_or(port))
}

/// An absolute URL, or a path on the same host.
fn resolve(base: &Uri, location: &str) -> Result<Uri, Failure> {
    let (scheme, host) = (base.scheme_str().unwrap_or("https"), authority(base)?);
    let text = match location {
        rest if rest.starts_with("//") => format!("{scheme}:{rest}"),
        path if path.starts_with('/') => format!("{scheme}://{host}{path}"),
        absolute => absolute.to_owned(),
    };
    let text = text.split('#').next().unwrap_or_default();
    let url: Uri = text
        .parse()
        .map_err(|_| Failure::last(Code::InvalidArgument, format!("`{host}` leads to a URL that is none")))?;
    authority(&url)?;
    Ok(url)
}

pub fn hex_of(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn mismatch(what: &str, promised: &str, found: &str) -> Error {
    Error::invalid(format!(
        "{what}: its sha256 is {found}, not {promised} as promised: the registry's copy is damaged"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn registry(reference: &str, plain_http: bool) -> Registry {
        let transport = Transport::trusting(rustls::RootCertStore::empty()).unwrap();
        let request = PullRequest { plain_http, ..PullRequest::new(reference) };
        Registry::new(transport, &reference.parse().unwrap(), &request).unwrap()
    }

    #[test]
    fn plain_http_is_for_this_machine_or_where_it_is_asked_for() {
        let scheme =
            |reference: &str, plain| registry(reference, plain).base.scheme_str().unwrap().to_owned();
        assert_eq!(scheme("registry.example.org/x", false), "https");
        assert_eq!(scheme("registry.example.org/x", true), "http");
        assert_eq!(scheme("10.0.0.1:5000/x", false), "https");
        for here in ["localhost:5000/x", "127.0.0.1:5000/x", "127.9.9.9/x", "[::1]:5000/x"] {
            assert_eq!(scheme(here, false), "http", "{here}");
        }
    }

    #[test]
    fn a_redirect_does_not_lose_tls() {
        let step = |registry: &Registry, from: &str, to: &str| {
            registry.check_step(&from.parse().unwrap(), &to.parse().unwrap()).is_ok()
        };
        let (secure, plain) = (registry("r.example.org/x", false), registry("r.example.org/x", true));
        assert!(step(&secure, "https://r.example.org/", "https://storage.example.org/"));
        assert!(!step(&secure, "https://r.example.org/", "http://storage.example.org/"));
        assert!(!step(&secure, "https://r.example.org/", "http://127.0.0.1/"));
        assert!(!step(&plain, "https://r.example.org/", "http://127.0.0.1/"));
        assert!(step(&plain, "http://r.example.org/", "http://storage.example.org/"));
        let here = registry("localhost:5000/x", false);
        assert!(step(&here, "http://localhost:5000/", "http://127.0.0.1:9000/"));
        assert!(!step(&here, "http://localhost:5000/", "http://storage.example.org/"));
    }

    #[test]
    fn locations_are_absolute_or_paths() {
        let base: Uri = "https://r.example.org:5000/v2/x?y".parse().unwrap();
        let to = |location: &str| resolve(&base, location).map(|url| url.to_string()).ok();
        assert_eq!(to("/a?b=c#d").as_deref(), Some("https://r.example.org:5000/a?b=c"));
        assert_eq!(to("//s.example.org/a").as_deref(), Some("https://s.example.org/a"));
        assert_eq!(to("http://s.example.org/a").as_deref(), Some("http://s.example.org/a"));
        for bad in ["", "a/b", "ftp://x/y", "https://user:pass@x/y", "https://", "file:///etc/passwd"] {
            assert_eq!(to(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |url: &str| {
            let url: Uri = url.parse().unwrap();
            let (scheme, host, port) = origin(&url);
            (scheme.map(str::to_owned), host, port)
        };
        assert_eq!(of("https://R.example.org/x"), of("https://r.example.org:443/y"));
        assert_ne!(of("https://r.example.org/"), of("http://r.example.org/"));
        assert_ne!(of("https://r.example.org/"), of("https://r.example.org:5000/"));
    }
}
