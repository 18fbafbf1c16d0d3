//! Where a request goes, told by its headers, its host name or its path.

use api::SandboxId;
use axum::body::Body;
use http::{Request, header};

use crate::{
    fault::Fault,
    token::{AGENT_TOKEN_HEADER, Tokens},
};

const ID_HEADER: &str = "e2b-sandbox-id";
const PORT_HEADER: &str = "e2b-sandbox-port";
/// The port at which their agent answers inside a sandbox; with us it is this face.
pub(crate) const AGENT_PORT: u16 = 49983;
/// First segments of their control API, after an optional version.
const CONTROL: [&str; 5] = ["sandboxes", "templates", "volumes", "snapshots", "secrets"];
const VERSIONS: [&str; 2] = ["v2", "v3"];

#[derive(Debug)]
pub(crate) enum Target {
    Native,
    Control,
    Inside {
        id: SandboxId,
        port: u16,
    },
    /// It names a sandbox that cannot be.
    Nowhere(Fault),
}

/// Headers go before the host name, the host name before the path: what runs inside may have any path. Their agent has
/// none of the control API's, and some versions send the headers with calls of that too.
pub(crate) fn of(request: &Request<Body>) -> Target {
    match named(request) {
        Some(Target::Inside { port: AGENT_PORT, .. } | Target::Nowhere(_)) | None
            if is_control(request.uri().path()) =>
        {
            Target::Control
        }
        named => named.unwrap_or(Target::Native),
    }
}

/// The sandbox that a request names.
fn named(request: &Request<Body>) -> Option<Target> {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(id) = text(ID_HEADER) {
        let Ok(id) = id.parse() else { return Some(Target::Nowhere(Fault::no_such_sandbox(id))) };
        let port = text(PORT_HEADER).map_or(Some(AGENT_PORT), port_of);
        return Some(match port {
            Some(port) => Target::Inside { id, port },
            None => Target::Nowhere(Fault::invalid("E2b-Sandbox-Port: expected 1 to 65535")),
        });
    }
    // HTTP/2 has the host in the URI.
    let host = request.uri().authority().map(|a| a.host()).or_else(|| text(header::HOST.as_str()));
    if let Some((port, id)) = host.and_then(in_host) {
        return Some(Target::Inside { id, port });
    }
    let id = Tokens::claimed(text(AGENT_TOKEN_HEADER)?)?;
    Some(Target::Inside { id, port: AGENT_PORT })
}

fn port_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// `PORT-ID.domain`, whatever the domain.
fn in_host(host: &str) -> Option<(u16, SandboxId)> {
    let label = host.split(['.', ':']).next()?.to_ascii_lowercase();
    let (port, id) = label.split_once('-')?;
    Some((port_of(port)?, id.parse().ok()?))
}

fn is_control(path: &str) -> bool {
    let mut segments = path.split('/').skip(1);
    let first = segments.next().unwrap_or_default();
    let first = if VERSIONS.contains(&first) { segments.next().unwrap_or_default() } else { first };
    CONTROL.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "sb-e1-01h00000000000000000000000";

    fn target(uri: &str, headers: &[(&str, &str)]) -> String {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match of(&request.body(Body::empty()).unwrap()) {
            Target::Native => "native".into(),
            Target::Control => "control".into(),
            Target::Inside { id, port } => format!("{port} of {id}"),
            Target::Nowhere(fault) => format!("{}", fault.status()),
        }
    }

    #[test]
    fn headers_then_the_host_then_the_path() {
        let inside = format!("8000 of {ID}");
        let host = format!("8000-{ID}.sandboxes.example.org:3732");
        let both = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", "8000"), ("host", "49983-x.example.org")];
        assert_eq!(target("/sandboxes", &both), inside);
        assert_eq!(target("/v1/sandboxes", &both[..2]), inside);
        assert_eq!(target("/x", &both[..1]), format!("49983 of {ID}"));
        assert_eq!(target("/sandboxes", &[("host", &host)]), inside);
        assert_eq!(target(&format!("http://{}/", host.to_uppercase()), &[]), inside);
        assert_eq!(target("/sandboxes/x/connect", &both[..1]), "control");
        assert_eq!(target("/x", &[("e2b-sandbox-id", "nope")]), "502 Bad Gateway");
        assert_eq!(target("/files", &[("x-access-token", &format!("{ID}.00"))]), format!("49983 of {ID}"));
        let zero = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", "0")];
        assert_eq!(target("/x", &zero), "400 Bad Request");
    }

    #[test]
    fn their_paths_and_ours_are_apart() {
        for path in
            ["/sandboxes", "/sandboxes/x/timeout", "/v2/sandboxes?limit=1", "/v3/templates", "/volumes"]
        {
            assert_eq!(target(path, &[("host", "localhost:3732")]), "control", "{path}");
        }
        for path in ["/", "/v1/sandboxes", "/v2", "/v1/health", "/sandboxesx", "//sandboxes"] {
            assert_eq!(target(path, &[("host", "127.0.0.1")]), "native", "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_host_is_read_or_not(host in ".{0,80}") {
            let _ = in_host(&host);
        }
    }
}
