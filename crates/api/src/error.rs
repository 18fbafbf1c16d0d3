//! The one error that crosses a process: a stable code, a message a stranger can act on, the request id.
//!
//! The private chain of causes goes to the log of the process where it arose, never over the wire.
//! Each code has an entry in `docs/errors.md`; a test holds the two together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RequestId;

/// What a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The caller must change something.
    Refused,
    /// Try another edge, or later.
    Busy,
    /// Ours.
    Broken,
}

macro_rules! codes {
    ($($variant:ident $text:literal $status:literal $class:ident,)*) => {
        /// The stable codes, with their HTTP status and class.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Code { $($variant,)* }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];
            /// The code as it stands on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }
            /// The HTTP status that carries it.
            pub fn status(self) -> u16 {
                match self { $(Code::$variant => $status,)* }
            }
            /// Its retry class.
            pub fn class(self) -> Class {
                match self { $(Code::$variant => Class::$class,)* }
            }
        }
    };
}

codes! {
    NotFound "not_found" 404 Refused,
    AlreadyExists "already_exists" 409 Refused,
    InvalidArgument "invalid_argument" 400 Refused,
    Unauthenticated "unauthenticated" 401 Refused,
    PermissionDenied "permission_denied" 403 Refused,
    IsDirectory "is_directory" 400 Refused,
    QuotaExceeded "quota_exceeded" 429 Refused,
    NoCapacity "no_capacity" 503 Busy,
    RateLimited "rate_limited" 429 Busy,
    Unreachable "unreachable" 502 Busy,
    DiskFull "disk_full" 507 Refused,
    DeadlineExceeded "deadline_exceeded" 504 Busy,
    Conflict "conflict" 409 Refused,
    Paused "paused" 409 Refused,
    SandboxGone "sandbox_gone" 410 Refused,
    SandboxBroken "sandbox_broken" 502 Refused,
    OomKilled "oom_killed" 502 Refused,
    Unsupported "unsupported" 501 Refused,
    Internal "internal" 500 Broken,
}

/// An error on the wire: `{"code", "message", "request_id"?, "retry_after_ms"?}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Error {
    pub code: Code,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// For class Busy: when a second try makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), request_id: None, retry_after_ms: None }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }
    /// Ours. The message is public: never put a private path or a cause chain in it; log those.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

impl From<crate::id::ParseIdError> for Error {
    fn from(e: crate::id::ParseIdError) -> Self {
        Self::invalid(e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_code_is_its_serde_name() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert!((400..600).contains(&code.status()));
        }
    }

    #[test]
    fn every_code_has_an_entry_in_the_docs() {
        let docs = include_str!("../../../docs/errors.md");
        for code in Code::ALL {
            assert!(docs.contains(&format!("| `{}` | {} |", code.as_str(), code.status())), "{code:?}");
        }
    }
}
