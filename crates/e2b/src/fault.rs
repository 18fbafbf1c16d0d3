//! Why a request failed, in the two forms that their clients read: REST (`{"code": 404, "message"}`) and Connect
//! (`{"code": "not_found", "message"}`).
//!
//! Clients tell "the sandbox is gone" and "its port is closed" from other failures by the status 502 and by words of
//! the message, so those words are fixed here.

use api::{Code, Error, SandboxId, error::Class};
use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    /// A code of the Connect protocol.
    code: &'static str,
    message: String,
    /// Fields of its own.
    detail: Option<Value>,
    retry_after_ms: Option<u64>,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), detail: None, retry_after_ms: None }
    }
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }
    pub(crate) fn already_exists(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "already_exists", message)
    }
    pub(crate) fn precondition(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "failed_precondition", message)
    }
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "unimplemented", message)
    }
    pub(crate) fn late(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "data_loss", message)
    }

    pub(crate) fn gone(id: &SandboxId) -> Self {
        Self::no_such_sandbox(id.as_str())
    }
    pub(crate) fn no_such_sandbox(id: &str) -> Self {
        let id: String = id.chars().take(80).collect();
        let mut fault =
            Self::new(StatusCode::BAD_GATEWAY, "unavailable", format!("The sandbox {id} was not found"));
        fault.detail = Some(json!({ "sandboxId": id }));
        fault
    }
    pub(crate) fn port_closed(id: &SandboxId, port: u16) -> Self {
        let message = format!("The sandbox {id} is running but port is not open: {port}");
        let mut fault = Self::new(StatusCode::BAD_GATEWAY, "unavailable", message);
        fault.detail = Some(json!({ "sandboxId": id, "port": port }));
        fault
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn rest(self) -> Response {
        let mut body = json!({ "code": self.status.as_u16(), "message": self.message });
        if let (Value::Object(body), Some(Value::Object(detail))) = (&mut body, self.detail.clone()) {
            body.extend(detail);
        }
        self.answer(&body)
    }

    /// As a unary call of Connect answers it. A 502 is a gateway's answer there too, as their proxy gives it.
    pub(crate) fn connect(self) -> Response {
        if self.status == StatusCode::BAD_GATEWAY {
            return self.rest();
        }
        let body = self.in_stream();
        self.answer(&body)
    }

    /// As the end of a stream tells it.
    pub(crate) fn in_stream(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }

    fn answer(self, body: &Value) -> Response {
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
            headers.insert("should-retry", HeaderValue::from_static("true"));
        }
        response
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let (status, code) = match error.code {
            Code::NotFound => (404, "not_found"),
            Code::AlreadyExists => (409, "already_exists"),
            Code::InvalidArgument | Code::IsDirectory => (400, "invalid_argument"),
            Code::Unauthenticated => (401, "unauthenticated"),
            Code::PermissionDenied => (403, "permission_denied"),
            Code::QuotaExceeded | Code::RateLimited => (429, "resource_exhausted"),
            Code::NoCapacity => (503, "resource_exhausted"),
            Code::DiskFull => (507, "resource_exhausted"),
            Code::DeadlineExceeded => (504, "deadline_exceeded"),
            Code::Conflict | Code::Paused => (409, "failed_precondition"),
            Code::Unreachable | Code::SandboxGone | Code::SandboxBroken | Code::OomKilled => {
                (502, "unavailable")
            }
            Code::Unsupported => (501, "unimplemented"),
            Code::Internal => (500, "internal"),
        };
        let retry_after_ms =
            (error.code.class() == Class::Busy).then(|| error.retry_after_ms.unwrap_or(1000));
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, code, message: error.message, detail: None, retry_after_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(response: Response) -> (u16, Value) {
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn clients_find_the_words_they_look_for() {
        let id: SandboxId = "sb-e1-01h00000000000000000000000".parse().unwrap();
        let (status, body) = read(Fault::gone(&id).connect()).await;
        assert_eq!((status, &body["code"]), (502, &json!(502)));
        assert!(body["message"].as_str().unwrap().contains("was not found"));
        assert_eq!(body["sandboxId"], json!(id));
        let (status, body) = read(Fault::port_closed(&id, 8000).rest()).await;
        assert_eq!((status, &body["port"]), (502, &json!(8000)));
        assert!(body["message"].as_str().unwrap().contains("port is not open"));
    }

    #[tokio::test]
    async fn each_code_has_both_forms() {
        for code in Code::ALL {
            let fault = || Fault::from(Error::new(*code, "why"));
            let (status, body) = read(fault().rest()).await;
            assert_eq!(body, json!({ "code": status, "message": "why" }), "{code:?}");
            assert!(!fault().code.is_empty());
        }
        let busy = Fault::from(Error::new(Code::NoCapacity, "full").retry_after_ms(1500)).rest();
        assert_eq!(
            (busy.headers()["retry-after"].as_bytes(), busy.headers().contains_key("should-retry")),
            (&b"2"[..], true)
        );
        let (status, body) = read(Fault::not_found("x").connect()).await;
        assert_eq!((status, body), (404, json!({ "code": "not_found", "message": "x" })));
    }
}
