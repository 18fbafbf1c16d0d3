//! A sandbox as their API shows it.

use api::spec::{Network, SandboxInfo};
use serde_json::{Value, json};

use crate::{E2b, time, token::Scope};

/// The version of their in-sandbox agent whose API this is: their clients ask for no more than it had. From 0.6.2 on
/// they would send metadata of files, which has no native form.
pub(super) const AGENT_VERSION: &str = "0.6.1";

/// A token is for all that there is inside, so only who may do all of it himself is given one.
fn token(face: &E2b, info: &SandboxInfo, scope: Scope) -> Option<String> {
    rpc::is_whole_inside(face.rights, info.spec.kind).then(|| face.tokens.of(&info.id, scope))
}

/// What a client needs to talk to it.
pub(super) fn access(face: &E2b, info: &SandboxInfo) -> Value {
    let traffic = token(face, info, Scope::Traffic).filter(|_| !face.config.public_ports);
    let mut value = json!({
        "sandboxID": info.id,
        "templateID": info.spec.image,
        "clientID": info.id.edge(),
        "envdVersion": AGENT_VERSION,
        "envdAccessToken": token(face, info, Scope::Agent),
        "trafficAccessToken": traffic,
    });
    if let Some(domain) = &face.config.domain {
        value["domain"] = json!(domain);
    }
    value
}

pub(super) fn listed(info: &SandboxInfo) -> Value {
    let spec = &info.spec;
    json!({
        "sandboxID": info.id,
        "templateID": spec.image,
        "alias": spec.image,
        "clientID": info.id.edge(),
        "startedAt": moment(info.created_ms),
        "endAt": moment(info.expires_ms),
        "cpuCount": spec.cpu_millis_max.div_ceil(1000).max(1),
        "memoryMB": spec.memory_bytes_max >> 20,
        "diskSizeMB": spec.disk_bytes_max >> 20,
        // Alone those are shown that run, or are about to.
        "state": "running",
        "metadata": spec.labels,
        "envdVersion": AGENT_VERSION,
    })
}

pub(super) fn detail(face: &E2b, info: &SandboxInfo) -> Value {
    let mut value = listed(info);
    let more = json!({
        "envdAccessToken": token(face, info, Scope::Agent),
        "allowInternetAccess": info.spec.network == Network::Egress,
        "domain": face.config.domain,
        "lifecycle": { "autoResume": false, "onTimeout": "kill" },
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

fn moment(ms: u64) -> String {
    time::format(i64::try_from(ms).unwrap_or(i64::MAX))
}
