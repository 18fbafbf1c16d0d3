//! List: all sandboxes that run, filtered, in pages. A page begins after a sandbox, not at a count, so that one which
//! ends between two pages shifts nothing.

use std::collections::BTreeMap;

use api::{
    spec::{ListQuery, SandboxInfo},
    state::State,
};
use axum::response::Response;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode};
use serde_json::Value;

use super::{Call, view};
use crate::{
    body::{self, Query},
    fault::Fault,
    time,
};

const LIMIT_MAX: usize = 100;
const NEXT_HEADER: &str = "x-next-token";

/// When it was made, and its id: those of one moment have an order too.
pub(super) type Place = (u64, String);

#[derive(Debug, Default, PartialEq)]
struct Filter {
    metadata: BTreeMap<String, String>,
    running: bool,
    started_after_ms: Option<i64>,
    template: Option<String>,
    newest_first: bool,
    limit: usize,
    after: Option<Place>,
}

impl Filter {
    fn of(query: &Query) -> Result<Self, Fault> {
        let started_after_ms = match query.get("startedAfter") {
            None => None,
            Some(text) => {
                Some(time::parse(text).ok_or_else(|| Fault::invalid("startedAfter: expected RFC 3339"))?)
            }
        };
        Ok(Self {
            metadata: metadata(query.get("metadata").unwrap_or_default()),
            running: states(query.get("state"))?,
            started_after_ms,
            template: query.get("template").map(str::to_owned),
            newest_first: match query.get("order") {
                None | Some("desc") => true,
                Some("asc") => false,
                Some(_) => return Err(Fault::invalid("order: expected asc or desc")),
            },
            limit: limit(query)?,
            after: after(query)?,
        })
    }

    fn takes(&self, info: &SandboxInfo) -> bool {
        let labels = &info.spec.labels;
        self.running
            && matches!(info.state, State::Creating | State::Running)
            && self.metadata.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.started_after_ms.is_none_or(|at| i64::try_from(info.created_ms).unwrap_or(i64::MAX) >= at)
            && self.template.as_ref().is_none_or(|template| info.spec.image == *template)
    }

    /// The page, and where the next begins if there is one.
    fn page(&self, mut infos: Vec<SandboxInfo>) -> (Vec<SandboxInfo>, Option<Place>) {
        infos.retain(|info| self.takes(info));
        infos.sort_by_cached_key(place);
        if self.newest_first {
            infos.reverse();
        }
        if let Some(after) = &self.after {
            infos.retain(|info| if self.newest_first { place(info) < *after } else { place(info) > *after });
        }
        let more = infos.len() > self.limit;
        infos.truncate(self.limit);
        let next = infos.last().filter(|_| more).map(place);
        (infos, next)
    }
}

fn place(info: &SandboxInfo) -> Place {
    (info.created_ms, info.id.to_string())
}

/// How many a page holds.
pub(super) fn limit(query: &Query) -> Result<usize, Fault> {
    let limit = query.get("limit").unwrap_or("100").parse().ok();
    let limit = limit.filter(|n| (1..=LIMIT_MAX).contains(n));
    limit.ok_or_else(|| Fault::invalid(format!("limit: expected 1 to {LIMIT_MAX}")))
}

/// What the page begins after.
pub(super) fn after(query: &Query) -> Result<Option<Place>, Fault> {
    let Some(token) = query.get("nextToken") else { return Ok(None) };
    read_token(token).map(Some).ok_or_else(|| Fault::invalid("nextToken: not one of ours"))
}

/// A page, and the token of the one after it.
pub(super) fn page(shown: &[Value], next: Option<&Place>) -> Response {
    let mut response = body::json(StatusCode::OK, &shown);
    if let Some(Ok(token)) = next.map(|next| HeaderValue::from_str(&write_token(next))) {
        response.headers_mut().insert(NEXT_HEADER, token);
    }
    response
}

fn write_token((created_ms, id): &Place) -> String {
    URL_SAFE_NO_PAD.encode(format!("{created_ms}:{id}"))
}

fn read_token(token: &str) -> Option<Place> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    let (created_ms, id) = text.split_once(':')?;
    Some((created_ms.parse().ok()?, id.to_owned()))
}

/// `k=v&k2=v2`, keys and values encoded once more, as their clients send it.
fn metadata(text: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    form_urlencoded::parse(text.as_bytes()).map(|(key, value)| (decode(&key), decode(&value))).collect()
}

/// Whether those that run are asked for; none is paused.
fn states(states: Option<&str>) -> Result<bool, Fault> {
    let Some(states) = states else { return Ok(true) };
    let mut running = false;
    for state in states.split(',') {
        match state {
            "running" => running = true,
            "paused" => {}
            _ => return Err(Fault::invalid("state: expected running or paused")),
        }
    }
    Ok(running)
}

pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let filter = Filter::of(&Query::of(&call.uri))?;
    // The first version has no pages.
    let whole = !call.uri.path().starts_with("/v2");
    let filter = if whole { Filter { limit: usize::MAX, ..filter } } else { filter };
    let (infos, next) = filter.page(call.face.front.list(ListQuery::default()).await?);
    let shown: Vec<Value> = infos.iter().map(view::listed).collect();
    Ok(page(&shown, next.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::{EdgeId, SandboxId, spec::SandboxSpec};

    fn filter(query: &str) -> Result<Filter, Fault> {
        Filter::of(&Query::of(&format!("/v2/sandboxes?{query}").parse().unwrap()))
    }

    fn info(created_ms: u64, team: &str) -> SandboxInfo {
        let edge: EdgeId = "e1".parse().unwrap();
        let mut spec = SandboxSpec::new("debian");
        spec.labels.insert("team name".into(), team.into());
        SandboxInfo {
            id: SandboxId::new(&edge),
            state: State::Running,
            reason: None,
            spec,
            project: api::spec::root_project(),
            layers: Vec::new(),
            created_ms,
            expires_ms: 0,
            execs_live: 0,
        }
    }

    #[test]
    fn pages_hold_each_once_whatever_ends_between_them() {
        let mut all: Vec<_> = (0..7).map(|n| info(n / 2, "a")).collect();
        for order in ["asc", "desc"] {
            let (mut seen, mut token) = (Vec::new(), String::new());
            loop {
                let (page, next) =
                    filter(&format!("limit=2&order={order}&nextToken={token}")).unwrap().page(all.clone());
                seen.extend(page.into_iter().map(|i| i.id));
                // The last one seen ends: the next page begins after it all the same.
                let Some(next) = next else { break };
                token = write_token(&next);
            }
            assert_eq!(seen.len(), 7);
            assert_eq!(seen.iter().collect::<std::collections::BTreeSet<_>>().len(), 7);
        }
        let (page, next) = filter("limit=3").unwrap().page(all.clone());
        all.retain(|i| !page.contains(i));
        let (rest, _) =
            filter(&format!("limit=9&nextToken={}", write_token(&next.unwrap()))).unwrap().page(all.clone());
        assert_eq!(rest.len(), 4);
    }

    #[test]
    fn filters() {
        let all = vec![info(1000, "red & blue"), info(2000, "green")];
        let count = |query: &str| filter(query).unwrap().page(all.clone()).0.len();
        // As urllib's quote and urlencode make it, and httpx encodes it again.
        assert_eq!(count("metadata=team%252520name%3Dred%252520%252526%252520blue"), 1);
        assert_eq!(count("metadata=team%252520name%3Dred"), 0);
        assert_eq!(count("state=paused"), 0);
        assert_eq!(count("state=running,paused"), 2);
        assert_eq!(count("startedAfter=1970-01-01T00:00:02Z"), 1);
        assert_eq!((count("template=debian"), count("template=x")), (2, 0));
        for wrong in ["limit=0", "limit=101", "state=gone", "order=x", "startedAfter=x", "nextToken=%21"] {
            assert_eq!(filter(wrong).unwrap_err().status(), 400, "{wrong}");
        }
    }
}
