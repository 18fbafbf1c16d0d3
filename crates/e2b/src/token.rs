//! Tokens of a sandbox, made from its id and a secret of the cluster, so that no apiserver has to remember them; and
//! signatures of file URLs, made by the client from the first of them.
//!
//! A token is `<sandbox id>.<64 hex digits>`: some clients send it and nothing else that names the sandbox.

use std::time::{SystemTime, UNIX_EPOCH};

use api::SandboxId;
use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

pub(crate) const AGENT_TOKEN_HEADER: &str = "x-access-token";
pub(crate) const TRAFFIC_TOKEN_HEADER: &str = "e2b-traffic-access-token";

/// What a token opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Commands and files.
    Agent,
    /// Ports.
    Traffic,
}

pub(crate) struct Tokens {
    secret: [u8; 32],
}

/// What a signed URL allows.
pub(crate) struct Signed<'a> {
    pub(crate) path: &'a str,
    /// `read` or `write`.
    pub(crate) operation: &'a str,
    pub(crate) user: &'a str,
    pub(crate) signature: &'a str,
    /// Seconds since the Unix epoch.
    pub(crate) expiration: Option<&'a str>,
}

impl Tokens {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self { secret }
    }

    pub(crate) fn of(&self, id: &SandboxId, scope: Scope) -> String {
        let scope = match scope {
            Scope::Agent => "agent",
            Scope::Traffic => "traffic",
        };
        let digest = blake3::keyed_hash(&self.secret, format!("{scope}:{id}").as_bytes());
        format!("{id}.{}", digest.to_hex())
    }

    /// The sandbox that a token says it is of, true or not.
    pub(crate) fn claimed(token: &str) -> Option<SandboxId> {
        token.split_once('.')?.0.parse().ok()
    }

    pub(crate) fn fits(&self, id: &SandboxId, scope: Scope, token: &str) -> bool {
        self.of(id, scope).as_bytes().ct_eq(token.as_bytes()).into()
    }

    pub(crate) fn fits_signature(&self, id: &SandboxId, signed: &Signed) -> bool {
        let Signed { path, operation, user, signature, expiration } = signed;
        let token = self.of(id, Scope::Agent);
        let text = match expiration {
            None => format!("{path}:{operation}:{user}:{token}"),
            Some(at) if is_past(at) => return false,
            Some(at) => format!("{path}:{operation}:{user}:{token}:{at}"),
        };
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
        expected.as_bytes().ct_eq(signature.as_bytes()).into()
    }
}

fn is_past(at: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    at.parse::<u64>().map_or(true, |at| at < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SandboxId {
        "sb-e1-01h00000000000000000000000".parse().unwrap()
    }

    #[test]
    fn a_token_is_of_one_sandbox_and_one_scope() {
        let tokens = Tokens::new([7; 32]);
        let other: SandboxId = "sb-e1-01h00000000000000000000001".parse().unwrap();
        let token = tokens.of(&id(), Scope::Agent);
        assert!(tokens.fits(&id(), Scope::Agent, &token));
        assert!(!tokens.fits(&id(), Scope::Traffic, &token));
        assert!(!tokens.fits(&other, Scope::Agent, &token));
        assert!(!Tokens::new([8; 32]).fits(&id(), Scope::Agent, &token));
        assert!(!tokens.fits(&id(), Scope::Agent, ""));
        assert_eq!(Tokens::claimed(&token), Some(id()));
        assert_eq!((Tokens::claimed("x.y"), Tokens::claimed("")), (None, None));
    }

    #[test]
    fn a_signature_is_of_one_path_operation_user_and_time() {
        let tokens = Tokens::new([7; 32]);
        let token = tokens.of(&id(), Scope::Agent);
        let sign = |text: String| format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
        let plain = sign(format!("/a:read::{token}"));
        let fits = |path, operation, signature: &str, expiration| {
            let signed = Signed { path, operation, user: "", signature, expiration };
            tokens.fits_signature(&id(), &signed)
        };
        assert!(fits("/a", "read", &plain, None));
        assert!(!fits("/a", "write", &plain, None));
        assert!(!fits("/b", "read", &plain, None));
        assert!(!fits("/a", "read", &plain, Some("99999999999")));
        let timed = sign(format!("/a:read::{token}:99999999999"));
        assert!(fits("/a", "read", &timed, Some("99999999999")));
        let past = sign(format!("/a:read::{token}:1"));
        assert!(!fits("/a", "read", &past, Some("1")));
        assert!(!fits("/a", "read", &past, Some("x")));
    }
}
