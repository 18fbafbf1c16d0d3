//! Projects, keys, the audit log, and an edge's tally.

use std::sync::Arc;

use api::{
    Result,
    arrow::Front,
    iam::{AuditQuery, KeyRequest, ProjectRequest, ProjectUpdate, TallyQuery, check_reference},
    spec,
};

use super::{
    answer,
    call::{Call, to_the_end},
};
use crate::route::Reply;

type To = Arc<dyn Front>;

fn project(call: &Call) -> Result<String> {
    let text = call.text("reference").unwrap_or_default();
    check_reference("project", text)?;
    Ok(text.to_owned())
}

pub(crate) async fn project_create(to: To, mut call: Call) -> Reply {
    let request: ProjectRequest = call.json().await?;
    request.validate()?;
    Ok(answer::json(&to_the_end(async move { to.project_create(request).await }).await?))
}

pub(crate) async fn project_list(to: To, _: Call) -> Reply {
    Ok(answer::json(&to.project_list().await?))
}

pub(crate) async fn project_inspect(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.project_inspect(&project(&call)?).await?))
}

pub(crate) async fn project_update(to: To, mut call: Call) -> Reply {
    let project = project(&call)?;
    let update: ProjectUpdate = call.json().await?;
    Ok(answer::json(&to_the_end(async move { to.project_update(&project, update).await }).await?))
}

pub(crate) async fn project_remove(to: To, call: Call) -> Reply {
    let project = project(&call)?;
    to_the_end(async move { to.project_remove(&project).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn key_create(to: To, mut call: Call) -> Reply {
    let request: KeyRequest = call.json().await?;
    request.validate()?;
    Ok(answer::json(&to_the_end(async move { to.key_create(request).await }).await?))
}

pub(crate) async fn key_list(to: To, _: Call) -> Reply {
    Ok(answer::json(&to.key_list().await?))
}

pub(crate) async fn key_revoke(to: To, call: Call) -> Reply {
    let key = call.text("reference").unwrap_or_default().to_owned();
    spec::check_name("key", &key)?;
    to_the_end(async move { to.key_revoke(&key).await }).await?;
    Ok(answer::nothing())
}

pub(crate) async fn audit_list(to: To, call: Call) -> Reply {
    let query: AuditQuery = call.query()?;
    Ok(answer::json(&to.audit_list(query).await?))
}

pub(crate) async fn tally(to: To, mut call: Call) -> Reply {
    let query: TallyQuery = call.json().await?;
    Ok(answer::json(&to.tally(query).await?))
}
