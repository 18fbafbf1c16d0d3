//! The route table: what is served, and what the OpenAPI document says is served.
//!
//! A [`Route`] holds both the handler and its description, so there is no second list to forget. The routes of
//! chronus are listed once and mounted twice: under `/v1` by aether, under `/v1/sandboxes/{id}` by all others.

pub(crate) mod access;
pub(crate) mod chronus;
pub(crate) mod disk;
pub(crate) mod edge;
pub(crate) mod environments;
pub(crate) mod images;

use api::{Code, RequestId};
use axum::response::Response;
use futures_util::future::BoxFuture;
use http::Method;

use crate::serve::{answer::Fault, call::Call};

pub(crate) type Reply = Result<Response, Fault>;
/// `S`: what the verb is called on.
pub(crate) type Handler<S> = fn(S, Call) -> BoxFuture<'static, Reply>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Get,
    Post,
    Put,
    Patch,
    Delete,
    /// Every method: a proxy.
    #[cfg_attr(not(feature = "call"), allow(dead_code))]
    Any,
}

impl On {
    pub(crate) fn takes(self, method: &Method) -> bool {
        self == Self::Any || self.as_str() == method.as_str()
    }
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Any => "ANY",
        }
    }
}

/// A type, as the document will show it.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    #[cfg(feature = "openapi")]
    pub(crate) schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

/// The shape of `T`.
pub(crate) fn shape<T: schemars::JsonSchema>() -> Shape {
    Shape {
        #[cfg(feature = "openapi")]
        schema: |generator| generator.subschema_for::<T>(),
    }
}

/// A body, of a request or an answer.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "openapi"), allow(dead_code))]
pub(crate) enum Content {
    Nothing,
    Json(Shape),
    /// One JSON object a line, as they come; blank lines keep the connection alive.
    Lines(Shape),
    Bytes,
}

/// The name of the trait's method, of the operation, and after `rpc.` of the span.
#[derive(Clone, Copy)]
pub(crate) struct Verb {
    #[cfg_attr(not(feature = "openapi"), allow(dead_code))]
    pub(crate) name: &'static str,
    pub(crate) span: fn(&RequestId, &str) -> tracing::Span,
}

/// A [`Verb`]; a macro because the name of a span is a constant of its place.
macro_rules! verb {
    ($name:literal) => {
        $crate::route::Verb {
            name: $name,
            span: |id, sandbox| tracing::info_span!(concat!("rpc.", $name), request_id = %id, sandbox_id = sandbox),
        }
    };
}
pub(crate) use verb;

/// What the document tells of a route.
#[cfg_attr(not(feature = "openapi"), allow(dead_code))]
pub(crate) struct About {
    pub(crate) summary: &'static str,
    pub(crate) query: Option<Shape>,
    pub(crate) body: Content,
    pub(crate) answer: Content,
    /// The `Upgrade` token it knows.
    pub(crate) upgrade: Option<&'static str>,
    /// Codes of its own, beside those that any route may answer.
    pub(crate) errors: &'static [Code],
}

pub(crate) struct Route<S> {
    pub(crate) on: On,
    /// Below its mount, with `{name}` for what varies.
    pub(crate) path: &'static str,
    pub(crate) verb: Verb,
    pub(crate) about: About,
    pub(crate) run: Handler<S>,
}

impl<S> Route<S> {
    pub(crate) fn new(
        on: On,
        path: &'static str,
        verb: Verb,
        summary: &'static str,
        run: Handler<S>,
    ) -> Self {
        let about = About {
            summary,
            query: None,
            body: Content::Nothing,
            answer: Content::Nothing,
            upgrade: None,
            errors: &[],
        };
        Self { on, path, verb, about, run }
    }
    pub(crate) fn query<T: schemars::JsonSchema>(mut self) -> Self {
        self.about.query = Some(shape::<T>());
        self
    }
    pub(crate) fn body<T: schemars::JsonSchema>(mut self) -> Self {
        self.about.body = Content::Json(shape::<T>());
        self
    }
    pub(crate) fn body_bytes(mut self) -> Self {
        self.about.body = Content::Bytes;
        self
    }
    pub(crate) fn json<T: schemars::JsonSchema>(mut self) -> Self {
        self.about.answer = Content::Json(shape::<T>());
        self
    }
    pub(crate) fn lines<T: schemars::JsonSchema>(mut self) -> Self {
        self.about.answer = Content::Lines(shape::<T>());
        self
    }
    pub(crate) fn bytes(mut self) -> Self {
        self.about.answer = Content::Bytes;
        self
    }
    pub(crate) fn upgrade(mut self, protocol: &'static str) -> Self {
        self.about.upgrade = Some(protocol);
        self
    }
    pub(crate) fn errors(mut self, errors: &'static [Code]) -> Self {
        self.about.errors = errors;
        self
    }
}
