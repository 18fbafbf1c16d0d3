//! Typed ids. They are DNS-safe (lower-case letters, digits, `-`), carry a prefix, and sort by time of creation.
//!
//! A sandbox id names its edge: `sb-<edge>-<26 characters>`. The edge part is a routing hint, never a proof:
//! the edge that is asked looks the id up in its own ledger.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The alphabet of the random part: Crockford's base 32, lower case.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 128 bits in 5-bit digits.
const RANDOM_LEN: usize = 26;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: expected {expected}")]
pub struct ParseIdError {
    pub text: String,
    pub what: &'static str,
    pub expected: &'static str,
}

fn random_part() -> String {
    let bits = uuid::Uuid::now_v7().as_u128();
    (0..RANDOM_LEN).rev().map(|digit| ALPHABET[((bits >> (digit * 5)) & 31) as usize] as char).collect()
}

fn is_random_part(text: &str) -> bool {
    text.len() == RANDOM_LEN && text.bytes().all(|b| ALPHABET.contains(&b)) && text.as_bytes()[0] < b'8'
}

fn parse_error(text: &str, what: &'static str, expected: &'static str) -> ParseIdError {
    // A hostile id must not flood a log or an answer.
    ParseIdError { text: text.chars().take(80).collect(), what, expected }
}

macro_rules! text_id {
    ($name:ident) => {
        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string" })
            }
        }
    };
}

/// An edge's code: 1 to 8 lower-case letters or digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(String);
text_id!(EdgeId);

impl FromStr for EdgeId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let ok = (1..=8).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        ok.then(|| Self(text.to_owned()))
            .ok_or_else(|| parse_error(text, "an edge id", "1 to 8 lower-case letters or digits"))
    }
}

/// A sandbox: `sb-<edge>-<26 base-32 characters>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId(String);
text_id!(SandboxId);

impl SandboxId {
    /// A new id on `edge`.
    pub fn new(edge: &EdgeId) -> Self {
        Self(format!("sb-{edge}-{}", random_part()))
    }
    /// The edge that this id names.
    pub fn edge(&self) -> EdgeId {
        EdgeId(self.0.split('-').nth(1).unwrap_or_default().to_owned())
    }
}

impl FromStr for SandboxId {
    type Err = ParseIdError;
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let mut parts = text.splitn(3, '-');
        let ok = parts.next() == Some("sb")
            && parts.next().is_some_and(|edge| edge.parse::<EdgeId>().is_ok())
            && parts.next().is_some_and(is_random_part);
        ok.then(|| Self(text.to_owned()))
            .ok_or_else(|| parse_error(text, "a sandbox id", "sb-<edge>-<26 characters>"))
    }
}

/// One run of a command: `ex-<26 base-32 characters>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecId(String);
text_id!(ExecId);

/// One call of the API: `rq-<26 base-32 characters>`; each answer carries it in `x-request-id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(String);
text_id!(RequestId);

macro_rules! random_id {
    ($name:ident, $prefix:literal, $what:literal, $expected:literal) => {
        impl $name {
            /// A new id.
            #[allow(clippy::new_without_default)]
            pub fn new() -> Self {
                Self(format!(concat!($prefix, "{}"), random_part()))
            }
        }
        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let ok = text.strip_prefix($prefix).is_some_and(is_random_part);
                ok.then(|| Self(text.to_owned())).ok_or_else(|| parse_error(text, $what, $expected))
            }
        }
    };
}
random_id!(ExecId, "ex-", "an exec id", "ex-<26 characters>");
random_id!(RequestId, "rq-", "a request id", "rq-<26 characters>");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sandbox_id_names_its_edge_and_round_trips() {
        let edge: EdgeId = "e1".parse().unwrap();
        let id = SandboxId::new(&edge);
        assert_eq!(id.edge(), edge);
        assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        assert!(id.as_str().len() <= 63, "a DNS label");
    }

    #[test]
    fn ids_of_one_moment_differ_and_sort_by_time() {
        let edge: EdgeId = "e1".parse().unwrap();
        let ids: Vec<_> = (0..1000).map(|_| SandboxId::new(&edge)).collect();
        let mut sorted = ids.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), ids.len());
        assert!(ids[0] < ids[999]);
    }

    #[test]
    fn near_misses_are_refused() {
        for text in [
            "",
            "sb",
            "sb-",
            "sb-e1",
            "sb-e1-",
            "sb--01arz3ndektsv4rrffq69g5fav",
            "sb-E1-01arz3ndektsv4rrffq69g5fav",
            "sb-e1-01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "sb-e1-01arz3ndektsv4rrffq69g5fa",
            "sb-e1-01arz3ndektsv4rrffq69g5favx",
            "sb-e1-../../../../../../etc/passwd",
            "sb-e1-81arz3ndektsv4rrffq69g5fav",
            "sb-toolongedge-01arz3ndektsv4rrffq69g5fav",
            "sb-e1-01arz3ndektsv4rrffq69g5fa\0",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_errs_without_a_panic(text in ".*") {
            let _ = text.parse::<SandboxId>();
            let _ = text.parse::<ExecId>();
            let _ = text.parse::<EdgeId>();
        }
        #[test]
        fn what_parses_prints_the_same(text in "sb-[a-z0-9]{1,8}-[0-7][0-9a-hjkmnp-tv-z]{25}") {
            prop_assert_eq!(text.parse::<SandboxId>().unwrap().to_string(), text);
        }
    }
}
