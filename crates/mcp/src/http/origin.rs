//! Which pages and names a request may come by.
//!
//! A program sends no `Origin`, and is not held by it. A name in `Host` that is neither loopback, nor the address that
//! we listen on, nor allowed, is one that somebody made to point here.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Uri, header, uri::Authority};

use super::Door;

pub(super) fn may_come(headers: &HeaderMap, local: SocketAddr, door: &Door) -> bool {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    let host_is_ours = text(header::HOST).is_some_and(|host| {
        host.parse::<Authority>().is_ok_and(|host| is_ours(host.host(), local, &door.hosts))
    });
    let origin_is_ours = text(header::ORIGIN).is_none_or(|origin| {
        door.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) || is_loopback_origin(origin)
    });
    host_is_ours && origin_is_ours
}

fn is_ours(host: &str, local: SocketAddr, allowed: &[String]) -> bool {
    if is_loopback(host) || allowed.iter().any(|name| name.eq_ignore_ascii_case(host)) {
        return true;
    }
    // By number there is no name that could have been bent.
    let by_number = address(host);
    by_number.is_some_and(|address| address == local.ip() || local.ip().is_unspecified())
}

fn is_loopback_origin(origin: &str) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    matches!(origin.scheme_str(), Some("http" | "https")) && origin.host().is_some_and(is_loopback)
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || address(host).is_some_and(|address| address.is_loopback())
}

fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes(host: &str, origin: Option<&str>, local: &str) -> bool {
        let door = Door {
            key: "k".into(),
            hosts: vec!["mcp.example.org".into()],
            origins: vec!["https://app.example.org".into()],
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        may_come(&headers, local.parse().unwrap(), &door)
    }

    #[test]
    fn names_that_may_have_been_bent_are_refused() {
        let local = "127.0.0.1:8000";
        for host in ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST", "mcp.example.org:443"] {
            assert!(comes(host, None, local), "{host}");
        }
        for host in ["evil.example:8000", "localhost.evil.example", "192.0.2.1:8000", "", "a b"] {
            assert!(!comes(host, None, local), "{host}");
        }
        assert!(comes("192.0.2.1:8000", None, "192.0.2.1:8000"));
        assert!(comes("192.0.2.1:8000", None, "0.0.0.0:8000"));
        assert!(!comes("evil.example:8000", None, "0.0.0.0:8000"));
    }

    #[test]
    fn pages_of_elsewhere_are_refused() {
        let local = "127.0.0.1:8000";
        for origin in
            ["http://localhost:6274", "http://127.0.0.1", "http://[::1]:1", "https://app.example.org"]
        {
            assert!(comes("localhost", Some(origin), local), "{origin}");
        }
        for origin in ["https://evil.example", "null", "http://localhost.evil.example", "file://", ""] {
            assert!(!comes("localhost", Some(origin), local), "{origin}");
        }
    }

    #[test]
    fn a_request_without_a_host_is_refused() {
        let door = Door { key: "k".into(), hosts: Vec::new(), origins: Vec::new() };
        assert!(!may_come(&HeaderMap::new(), "127.0.0.1:1".parse().unwrap(), &door));
    }
}
