//! Watching a directory: as a stream, or polled.

use axum::{body::Body, response::Response};
use futures_util::StreamExt;
use serde_json::{Value, json};

use api::{
    arrow::BoxStream,
    file::{FileInfo, FileListQuery, WatchEvent, WatchQuery},
};

use super::{watchers::Events, wire};
use crate::{
    connect::{self, Ended, Sink},
    fault::Fault,
    inside::Inside,
};

/// Names that a watch knows from its start, so that a file that is replaced is told from a new one; how deep.
const KNOWN_MAX: usize = 20_000;
const KNOWN_DEPTH: u32 = 16;

/// What comes of a watch, in their form.
pub(super) struct Watched {
    stream: BoxStream<api::Result<WatchEvent>>,
    events: Events,
}

impl Watched {
    async fn start(call: &Inside, request: &wire::Watch) -> Result<Self, Fault> {
        if request.include_entry {
            return Err(Fault::unsupported("includeEntry: events carry no entries here"));
        }
        let path = call.path(&request.path).await?;
        let mut query = WatchQuery::new(&path);
        query.user.clone_from(&call.user);
        query.recursive = request.recursive;
        query.validate()?;
        let mut list = FileListQuery::new(path);
        list.user.clone_from(&call.user);
        list.depth = if request.recursive { KNOWN_DEPTH } else { 1 };
        // Only to tell better what happens: a directory that cannot be listed can be watched.
        let known = call.chronus.file_list(list).await.unwrap_or_default();
        let stream = call.chronus.file_watch(query).await?;
        Ok(Self { stream, events: Events::new(relative_names(&known)) })
    }

    /// The next ones; None when the sandbox has ended.
    pub(super) async fn next(&mut self) -> Option<Result<Vec<Value>, Fault>> {
        match self.stream.next().await? {
            Ok(event) => Some(self.events.read(&event)),
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// Names as events give them: relative to the directory, which is what the shortest path has before its name.
fn relative_names(infos: &[FileInfo]) -> impl Iterator<Item = String> {
    let root = infos.iter().map(|info| info.path.0.len() - info.name.0.len().min(info.path.0.len())).min();
    let root = root.unwrap_or_default();
    let names = infos.iter().take(KNOWN_MAX).map(move |info| info.path.0.get(root..).unwrap_or_default());
    names.map(|name| String::from_utf8_lossy(name).into_owned())
}

pub(super) async fn stream(call: Inside, body: Body) -> Result<Response, Fault> {
    let deadline = connect::deadline(&call.headers)?;
    let period = connect::ping_period(&call.headers);
    let request: wire::Watch = connect::single(&call.headers, body).await?;
    let mut watched = Watched::start(&call, &request).await?;
    Ok(connect::stream(call.stopping.clone(), |sink| async move {
        sink.send(&json!({ "start": {} })).await?;
        tokio::select! {
            ended = relay(&mut watched, &sink, period) => match ended {
                Ok(Ok(())) => Ok(Err(Fault::gone(&call.id))),
                other => other,
            },
            () = connect::until(deadline) => Ok(Err(Fault::late("the time given to this watch is over"))),
        }
    }))
}

async fn relay(watched: &mut Watched, sink: &Sink, period: std::time::Duration) -> Ended {
    let mut ping = tokio::time::interval(period);
    ping.reset();
    loop {
        let next = tokio::select! {
            next = watched.next() => next,
            _ = ping.tick() => {
                sink.send(&json!({ "keepalive": {} })).await?;
                continue;
            }
        };
        match next {
            None => return Ok(Ok(())),
            Some(Err(fault)) => return Ok(Err(fault)),
            Some(Ok(events)) => {
                for event in events {
                    sink.send(&json!({ "filesystem": event })).await?;
                }
            }
        }
    }
}

pub(super) async fn create(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::Watch = call.message(body).await?;
    let watched = Watched::start(call, &request).await?;
    let id = call.face.watchers.add(&call.id, watched)?;
    Ok(connect::answer(&json!({ "watcherId": id })))
}

pub(super) async fn events(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::OfWatcher = call.message(body).await?;
    let events = call.face.watchers.take(&call.id, &request.watcher_id)?;
    Ok(connect::answer(&json!({ "events": events })))
}

pub(super) async fn remove(call: &Inside, body: Body) -> Result<Response, Fault> {
    let request: wire::OfWatcher = call.message(body).await?;
    call.face.watchers.remove(&call.id, &request.watcher_id)?;
    Ok(connect::answer(&json!({})))
}
