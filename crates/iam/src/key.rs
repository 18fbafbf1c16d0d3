//! Keys: how one is made, and the digest that stands for it.
//!
//! A key holds 256 random bits, so a fast hash is enough: there is nothing to guess.

use api::{Error, Result};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

const PREFIX: &str = "dsec_";
const RANDOM_BYTES: usize = 32;
/// 32 bytes in base64url.
const RANDOM_CHARS: usize = 43;

pub(crate) type Digest = [u8; 32];

pub(crate) fn generate() -> Result<String> {
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random()?)))
}

pub(crate) fn random() -> Result<[u8; RANDOM_BYTES]> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|e| {
        tracing::error!(error = %e, "the kernel gave no random bytes");
        Error::internal("no random bytes for a key")
    })?;
    Ok(random)
}

/// None where the text has not the shape of a key: no store needs to be asked.
pub(crate) fn digest(plaintext: &str) -> Option<Digest> {
    let random = plaintext.strip_prefix(PREFIX)?;
    let shaped = random.len() == RANDOM_CHARS
        && random.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    shaped.then(|| *blake3::hash(plaintext.as_bytes()).as_bytes())
}
