//! Uploads as `multipart/form-data`, each part written as it comes.

use api::{Code, Error, arrow::ByteStream, file::WriteQuery};
use axum::body::Body;
use futures_util::stream;
use http::header;
use multer::{Constraints, Field, Multipart, SizeLimit};

use super::{
    Inside,
    files::{FILES_MAX, Written},
};
use crate::fault::Fault;

/// The parts named so are files; others are ignored, as their agent does.
const FIELD: &str = "file";

/// `path`: where the file goes when there is one; without it, each part's file name says.
pub(super) async fn write(
    call: Inside,
    body: Body,
    path: Option<String>,
    user: Option<String>,
) -> Result<Vec<Written>, Fault> {
    let content_type =
        call.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type)
        .map_err(|_| Fault::invalid("Content-Type: multipart/form-data without a boundary"))?;
    let body = rpc::byte_stream(body);
    let limits = Constraints::new().size_limit(SizeLimit::new().whole_stream(u64::MAX).per_field(u64::MAX));
    let mut parts = Multipart::with_constraints(body, boundary, limits);
    let mut written: Vec<Written> = Vec::new();
    while let Some(field) = parts.next_field().await.map_err(broken)? {
        if field.name() != Some(FIELD) {
            continue;
        }
        if written.len() >= FILES_MAX {
            return Err(Fault::invalid(format!("body: over {FILES_MAX} files in one request")));
        }
        let target = match (&path, field.file_name()) {
            (Some(_), _) if !written.is_empty() => {
                return Err(Fault::invalid("path: names one file, but the body has several"));
            }
            (Some(path), _) => path.clone(),
            (None, Some(name)) => call.face.in_home(&call.id, &call.chronus, user.as_deref(), name).await?,
            (None, None) => return Err(Fault::invalid("body: a file without a name, and no path")),
        };
        let mut query = WriteQuery::new(target);
        query.user.clone_from(&user);
        query.validate()?;
        let info = call.chronus.file_write(query, bytes_of(field)).await?;
        written.push(Written::of(&info));
    }
    Ok(written)
}

fn bytes_of(field: Field<'static>) -> ByteStream {
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

fn broken(error: multer::Error) -> Fault {
    error_of(error).into()
}
