//! Why a request failed, in the two forms that their clients read: an exception that the client raises again (status
//! 511, `{"swerexception": ...}`), and an answer of HTTP (`{"code", "detail"}`; `detail` is what they show).

use api::{Code, Error, error::Class};
use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

/// Exceptions of Python that their client knows to make from one message, by where they are defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exception {
    NonZeroExitCode,
    CommandTimeout,
    NoExitCode,
    SessionExists,
    SessionDoesNotExist,
    BashIncorrectSyntax,
    Swerex,
    /// The shell has ended.
    Eof,
    Timeout,
    FileNotFound,
    IsADirectory,
    Permission,
    Os,
    Value,
    Lookup,
    /// Their client cannot make one from a message and raises a `SwerexException`, with theirs as with ours.
    UnicodeDecode,
    BadZip,
}

impl Exception {
    fn class_path(self) -> &'static str {
        match self {
            Self::NonZeroExitCode => "swerex.exceptions.NonZeroExitCodeError",
            Self::CommandTimeout => "swerex.exceptions.CommandTimeoutError",
            Self::NoExitCode => "swerex.exceptions.NoExitCodeError",
            Self::SessionExists => "swerex.exceptions.SessionExistsError",
            Self::SessionDoesNotExist => "swerex.exceptions.SessionDoesNotExistError",
            Self::BashIncorrectSyntax => "swerex.exceptions.BashIncorrectSyntaxError",
            Self::Swerex => "swerex.exceptions.SwerexException",
            Self::Eof => "pexpect.exceptions.EOF",
            Self::Timeout => "pexpect.exceptions.TIMEOUT",
            Self::FileNotFound => "builtins.FileNotFoundError",
            Self::IsADirectory => "builtins.IsADirectoryError",
            Self::Permission => "builtins.PermissionError",
            Self::Os => "builtins.OSError",
            Self::Value => "builtins.ValueError",
            Self::Lookup => "builtins.LookupError",
            Self::UnicodeDecode => "builtins.UnicodeDecodeError",
            Self::BadZip => "zipfile.BadZipFile",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Fault {
    Raised { exception: Exception, message: String, extra: Value },
    Http { status: StatusCode, code: &'static str, detail: String, retry_after_ms: Option<u64> },
}

impl Fault {
    pub(crate) fn raised(exception: Exception, message: impl Into<String>) -> Self {
        Self::Raised { exception, message: message.into(), extra: json!({}) }
    }
    pub(crate) fn http(status: StatusCode, code: Code, detail: impl Into<String>) -> Self {
        Self::Http { status, code: code.as_str(), detail: detail.into(), retry_after_ms: None }
    }
    /// As theirs answers what does not fit its models.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::http(StatusCode::UNPROCESSABLE_ENTITY, Code::InvalidArgument, detail)
    }
    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::http(StatusCode::PAYLOAD_TOO_LARGE, Code::InvalidArgument, detail)
    }

    /// An error of a verb on the file at `path`, as Python would raise it.
    pub(crate) fn of_file(error: Error, path: &str) -> Self {
        let path = crate::python::repr(path);
        let (exception, text) = match error.code {
            Code::NotFound => (Exception::FileNotFound, "[Errno 2] No such file or directory"),
            Code::IsDirectory => (Exception::IsADirectory, "[Errno 21] Is a directory"),
            Code::PermissionDenied => (Exception::Permission, "[Errno 13] Permission denied"),
            Code::DiskFull => (Exception::Os, "[Errno 28] No space left on device"),
            // Not a directory, exists and is none, and such.
            Code::Conflict | Code::AlreadyExists => {
                return Self::raised(Exception::Os, format!("{}: {path}", error.message));
            }
            _ => return error.into(),
        };
        Self::raised(exception, format!("{text}: {path}"))
    }

    pub(crate) fn response(self) -> Response {
        match self {
            Self::Raised { exception, message, extra } => {
                let transfer = json!({
                    "message": message,
                    "class_path": exception.class_path(),
                    "traceback": "",
                    "extra_info": extra,
                });
                // Network Authentication Required: theirs took the last code that nobody uses.
                answer(StatusCode::NETWORK_AUTHENTICATION_REQUIRED, &json!({ "swerexception": transfer }))
            }
            Self::Http { status, code, detail, retry_after_ms } => {
                let mut response = answer(status, &json!({ "code": code, "detail": detail }));
                if let Some(ms) = retry_after_ms {
                    let seconds = HeaderValue::from(ms.div_ceil(1000).max(1));
                    response.headers_mut().insert(header::RETRY_AFTER, seconds);
                }
                response
            }
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let busy = error.code.class() == Class::Busy;
        Self::Http {
            status,
            code: error.code.as_str(),
            detail: error.message,
            retry_after_ms: busy.then(|| error.retry_after_ms.unwrap_or(1000)),
        }
    }
}

pub(crate) fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    // Plain data with string keys: serialising it cannot fail.
    let mut response = Response::new(Body::from(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
