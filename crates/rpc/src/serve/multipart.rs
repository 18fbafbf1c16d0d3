//! Uploads as `multipart/form-data`, for the faces of foreign APIs: part by part, none held whole.

use api::{Code, Error, Result, arrow::ByteStream};
use axum::body::Body;
use futures_util::stream;
use http::{HeaderMap, header};
use multer::{Constraints, Multipart, SizeLimit};

use super::byte_stream;

pub use multer::Field;

/// The parts of one request. They come in order, each to be read before the next.
pub struct Parts(Multipart<'static>);

impl Parts {
    /// Errors: `invalid_argument` where the request is no form.
    pub fn of(headers: &HeaderMap, body: Body) -> Result<Self> {
        let media = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let boundary = multer::parse_boundary(media)
            .map_err(|_| Error::invalid("Content-Type: expected multipart/form-data with a boundary"))?;
        let sizes = SizeLimit::new().whole_stream(u64::MAX).per_field(u64::MAX);
        let constraints = Constraints::new().size_limit(sizes);
        Ok(Self(Multipart::with_constraints(byte_stream(body), boundary, constraints)))
    }

    /// None after the last.
    pub async fn next(&mut self) -> Result<Option<Field<'static>>> {
        self.0.next_field().await.map_err(error_of)
    }
}

/// A part's bytes.
pub fn part_bytes(field: Field<'static>) -> ByteStream {
    Box::pin(stream::unfold(Some(field), |field| async move {
        let mut field = field?;
        match field.chunk().await.transpose()? {
            Ok(bytes) => Some((Ok(bytes), Some(field))),
            Err(error) => Some((Err(error_of(error)), None)),
        }
    }))
}

fn error_of(error: multer::Error) -> Error {
    match error {
        // Ours, of the body's stream.
        multer::Error::StreamReadFailed(inner) => match inner.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(_) => Error::invalid("body: broke off before its end"),
        },
        other => Error::new(Code::InvalidArgument, format!("body: {other}")),
    }
}
