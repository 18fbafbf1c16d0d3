//! How a registry asks who is there: `WWW-Authenticate` with `Bearer`, which sends us to a token server, or `Basic`.

use api::{Code, pull::Credentials};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;

use super::{
    failure::Failure,
    transport::{Transport, authority},
};

const TOKEN_BYTES_MAX: u64 = 256 << 10;
/// More challenges than this are noise.
const PARAMETERS_MAX: usize = 32;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
    Basic,
}

/// The first challenge of a kind that is known, `Bearer` before `Basic`.
pub fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let mut found: Vec<(String, Vec<(String, String)>)> = values.flat_map(schemes).collect();
    found.sort_by_key(|(scheme, _)| scheme != "bearer");
    found.into_iter().find_map(|(scheme, parameters)| {
        let get = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        match scheme.as_str() {
            "bearer" => {
                Some(Challenge::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") })
            }
            "basic" => Some(Challenge::Basic),
            _ => None,
        }
    })
}

/// `Scheme key=value, key="value", Scheme ...`, schemes and keys in lower case.
fn schemes(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
    let mut rest = text;
    for _ in 0..PARAMETERS_MAX {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find(['=', ' ', '\t', ',']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            break;
        }
        let Some(value) = after.strip_prefix('=') else {
            found.push((word.to_ascii_lowercase(), Vec::new()));
            rest = after;
            continue;
        };
        let (value, after) = value_of(value);
        if let Some((_, parameters)) = found.last_mut() {
            parameters.push((word.to_ascii_lowercase(), value));
        }
        rest = after;
    }
    found
}

/// A token or a quoted string, and what follows it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            c => value.push(c),
        }
    }
    (value, "")
}

pub fn basic(credentials: &Credentials) -> Result<HeaderValue, Failure> {
    let pair = format!("{}:{}", credentials.username, credentials.password.0);
    sensitive(&format!("Basic {}", STANDARD.encode(pair)))
}

fn sensitive(text: &str) -> Result<HeaderValue, Failure> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Failure::last(Code::InvalidArgument, "the token server gives what is no token"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Asks the token server at `realm` for `scope`.
pub async fn token(
    transport: &Transport,
    realm: &Uri,
    service: Option<&str>,
    scope: &str,
    credentials: Option<&Credentials>,
) -> Result<HeaderValue, Failure> {
    let host = authority(realm)?;
    let mut url = realm.to_string();
    let mut separator = if realm.query().is_some() { '&' } else { '?' };
    for (key, value) in service.map(|s| ("service", s)).into_iter().chain([("scope", scope)]) {
        url.push_str(&format!("{separator}{key}={}", encode(value)));
        separator = '&';
    }
    let url: Uri =
        url.parse().map_err(|_| Failure::last(Code::InvalidArgument, "the token server's URL is none"))?;
    let mut headers = HeaderMap::new();
    if let Some(credentials) = credentials {
        headers.insert(header::AUTHORIZATION, basic(credentials)?);
    }
    let answer = transport.get(&url, headers).await?;
    match answer.head.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(refused(&host, credentials.is_some()));
        }
        status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
            return Err(Failure::unreachable(format!("the token server `{host}` answers {status}")));
        }
        status => {
            let message = format!("the token server `{host}` answers {status}");
            return Err(Failure::last(Code::Unauthenticated, message));
        }
    }
    let bytes = answer.whole(TOKEN_BYTES_MAX, "the token").await?;
    let token: Option<Token> = serde_json::from_slice(&bytes).ok();
    let token = token.and_then(|token| token.token.or(token.access_token));
    let token = token.ok_or_else(|| {
        Failure::last(Code::Unauthenticated, format!("the token server `{host}` gives no token"))
    })?;
    sensitive(&format!("Bearer {token}"))
}

/// Nobody may have this, or not with these credentials.
pub fn refused(host: &str, has_credentials: bool) -> Failure {
    let message = if has_credentials {
        format!("`{host}` does not accept these credentials")
    } else {
        format!("`{host}` asks for credentials, or has no such repository")
    };
    Failure::last(Code::Unauthenticated, message)
}

/// Percent-encodes all that is not unreserved (RFC 3986).
fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap());
        }
        challenge(&headers)
    }

    #[test]
    fn challenges_as_registries_write_them() {
        let bearer = Challenge::Bearer {
            realm: "https://auth.example.org/token".into(),
            service: Some("registry.example.org".into()),
            scope: Some("repository:team/app:pull,push".into()),
        };
        let text = r#"Bearer realm="https://auth.example.org/token",service="registry.example.org",scope="repository:team/app:pull,push""#;
        assert_eq!(read(&[text]), Some(bearer));
        let bare = Challenge::Bearer { realm: "https://a/t".into(), service: None, scope: None };
        assert_eq!(read(&["Basic realm=\"x\", bearer realm=https://a/t"]), Some(bare));
        assert_eq!(read(&["Negotiate", "Basic realm=\"a \\\" , b\", charset=UTF-8"]), Some(Challenge::Basic));
        for nonsense in ["", "Bearer", "Bearer scope=\"x\"", "=,=", "Digest realm=\"x\"", "Bearer realm"] {
            assert_eq!(read(&[nonsense]), None, "{nonsense}");
        }
        assert!(read(&[&"a,".repeat(10_000)]).is_none());
    }
}
