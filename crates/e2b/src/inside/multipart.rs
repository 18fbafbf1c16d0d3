//! Uploads as `multipart/form-data`, each part written as it comes.

use api::file::WriteQuery;
use axum::body::Body;

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
    let mut parts = rpc::Parts::of(&call.headers, body)?;
    let mut written: Vec<Written> = Vec::new();
    while let Some(field) = parts.next().await? {
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
        let info = call.chronus.file_write(query, rpc::part_bytes(field)).await?;
        written.push(Written::of(&info));
    }
    Ok(written)
}
