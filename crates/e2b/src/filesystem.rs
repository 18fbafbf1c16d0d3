//! The service `filesystem.Filesystem`: names and directories of a sandbox.

pub(crate) mod accounts;
mod entry;
mod watch;
pub(crate) mod watchers;
mod wire;

use api::{
    Code,
    file::{FileInfo, FileKind, FileListQuery, MkdirRequest, MoveRequest, RemoveQuery, StatQuery},
};
use axum::{body::Body, response::Response};
use serde_json::json;

use crate::{
    connect,
    fault::Fault,
    inside::{Inside, unknown},
};

pub(crate) async fn call(verb: &str, call: Inside, body: Body) -> Result<Response, Fault> {
    match verb {
        "Stat" => stat(&call, body).await,
        "ListDir" => list(&call, body).await,
        "MakeDir" => make(&call, body).await,
        "Move" => rename(&call, body).await,
        "Remove" => remove(&call, body).await,
        "WatchDir" => watch::stream(call, body).await,
        "CreateWatcher" => watch::create(&call, body).await,
        "GetWatcherEvents" => watch::events(&call, body).await,
        "RemoveWatcher" => watch::remove(&call, body).await,
        other => Err(unknown(other)),
    }
}

impl Inside {
    async fn message<T: serde::de::DeserializeOwned>(&self, body: Body) -> Result<T, Fault> {
        connect::unary(&self.headers, body).await
    }

    /// A path of the caller's, with `~` resolved. Empty is refused here, in the caller's words.
    async fn path(&self, path: &str) -> Result<String, Fault> {
        if path.is_empty() {
            return Err(Fault::invalid("path: it is missing"));
        }
        self.face.in_home(&self.id, &self.chronus, self.user.as_deref(), path).await
    }

    async fn answer_entry(&self, info: &FileInfo) -> Result<Response, Fault> {
        let entry = entry::one(self, info).await?;
        Ok(connect::answer(&json!({ "entry": entry })))
    }
}

async fn stat(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Path = call.message(body).await?;
    let info = stat_of(call, &call.path(&request.path).await?).await?;
    call.answer_entry(&info).await
}

async fn stat_of(call: &Inside, path: &str) -> Result<FileInfo, Fault> {
    let mut query = StatQuery::new(path);
    query.user.clone_from(&call.user);
    query.validate()?;
    Ok(call.chronus.file_stat(query).await?)
}

async fn list(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::List = call.message(body).await?;
    let mut query = FileListQuery::new(call.path(&request.path).await?);
    query.user.clone_from(&call.user);
    query.depth = request.depth.max(1);
    query.validate()?;
    let infos = call.chronus.file_list(query).await?;
    let entries = entry::all(call, &infos).await?;
    Ok(connect::answer(&json!({ "entries": entries })))
}

/// Theirs tells a new directory from one that was there; ours is content with both.
async fn make(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Path = call.message(body).await?;
    let path = call.path(&request.path).await?;
    let mut query = StatQuery::new(&path);
    query.user.clone_from(&call.user);
    query.follow = true;
    match call.chronus.file_stat(query).await {
        Ok(info) if info.kind == FileKind::Directory => {
            return Err(Fault::already_exists(format!("`{path}`: this directory is there already")));
        }
        Ok(_) => return Err(Fault::invalid(format!("`{path}`: is there already and no directory"))),
        Err(error) if error.code == Code::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let mut request = MkdirRequest::new(path);
    request.user.clone_from(&call.user);
    request.validate()?;
    let info = call.chronus.file_mkdir(request).await?;
    call.answer_entry(&info).await
}

async fn rename(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Move = call.message(body).await?;
    let (from, to) = (call.path(&request.source).await?, call.path(&request.destination).await?);
    let request = MoveRequest { from, to, user: call.user.clone() };
    request.validate()?;
    let info = call.chronus.file_move(request).await?;
    call.answer_entry(&info).await
}

/// A tree too, and what is not there is gone already, as with theirs.
async fn remove(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Path = call.message(body).await?;
    let mut query = RemoveQuery::new(call.path(&request.path).await?);
    query.user.clone_from(&call.user);
    query.recursive = true;
    query.validate()?;
    match call.chronus.file_remove(query).await {
        Ok(()) => {}
        Err(error) if error.code == Code::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(connect::answer(&json!({})))
}
