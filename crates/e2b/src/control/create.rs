//! Create: their request as our spec, or what of it we cannot do.

use std::collections::BTreeMap;

use api::spec::{CreateEvent, CreateRequest, Network, SandboxSpec};
use axum::response::Response;
use futures_util::StreamExt;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Call, view};
use crate::{body, fault::Fault};

/// Their own, where the client names none.
pub(super) const TIMEOUT_S_DEFAULT: u64 = 300;
const EVERYWHERE: &str = "0.0.0.0/0";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(default)]
    timeout: Option<u64>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default, rename = "envVars")]
    env: Option<BTreeMap<String, String>>,
    /// Every sandbox asks for a token, so `false` changes nothing that a client would see.
    #[serde(default, rename = "secure")]
    _secure: Option<bool>,
    #[serde(default, alias = "allowInternetAccess")]
    allow_internet_access: Option<bool>,
    #[serde(default, rename = "autoPause")]
    auto_pause: Option<bool>,
    /// Says how to pause; without pausing it says nothing.
    #[serde(default, rename = "autoPauseMemory")]
    _auto_pause_memory: Option<bool>,
    #[serde(default, rename = "autoResume")]
    auto_resume: Option<AutoResume>,
    #[serde(default)]
    network: Option<Map<String, Value>>,
    #[serde(default)]
    mcp: Option<Value>,
    #[serde(default)]
    iam: Option<Value>,
    #[serde(default, rename = "volumeMounts")]
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Deserialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

impl NewSandbox {
    /// Faults: what changes the sandbox's meaning and has no native form.
    fn refuse_what_we_cannot(&self) -> Result<(), Fault> {
        let refused = [
            ("autoPause", self.auto_pause == Some(true)),
            ("autoResume", self.auto_resume.as_ref().is_some_and(|a| a.enabled)),
            ("mcp", self.mcp.as_ref().is_some_and(|v| !is_empty(v))),
            ("iam", self.iam.as_ref().is_some_and(|v| !is_empty(v))),
            ("volumeMounts", self.volume_mounts.as_ref().is_some_and(|v| !v.is_empty())),
        ];
        match refused.iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(Fault::unsupported(format!("{field}: not supported by DSec"))),
            None => Ok(()),
        }
    }

    fn network(&self, public_ports: bool) -> Result<Network, Fault> {
        let mut reach =
            if self.allow_internet_access == Some(false) { Network::None } else { Network::Egress };
        for (field, value) in self.network.iter().flatten() {
            let nothing_asked = is_empty(value);
            match field.as_str() {
                "allowPublicTraffic" if nothing_asked || *value == Value::Bool(public_ports) => {}
                // Ours is stricter: a token is asked for, and the client is told it.
                "allowPublicTraffic" if *value == Value::Bool(true) => {}
                "denyOut" if value.as_array().is_some_and(|d| d.iter().any(|a| a == EVERYWHERE)) => {
                    reach = Network::None;
                }
                _ if nothing_asked => {}
                _ => {
                    return Err(Fault::unsupported(format!(
                        "network.{field}: not supported by DSec; a sandbox has all of the internet or none \
                         (allow_internet_access, or denyOut of {EVERYWHERE})"
                    )));
                }
            }
        }
        let allows = self.network.as_ref().and_then(|n| n.get("allowOut")).is_some_and(|a| !is_empty(a));
        if allows {
            return Err(Fault::unsupported("network.allowOut: not supported by DSec"));
        }
        Ok(reach)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let key = call.headers.get("idempotency-key").map(|v| v.to_str().unwrap_or_default().to_owned());
    let asked: NewSandbox = body::parse(&body::whole(call.body).await?)?;
    asked.refuse_what_we_cannot()?;
    let network = asked.network(call.face.config.public_ports)?;
    let image = call.face.image_of(&asked.template).await?;
    let mut spec = call.face.config.sized(SandboxSpec::new(image));
    spec.network = network;
    spec.ttl_ms = seconds(asked.timeout.unwrap_or(TIMEOUT_S_DEFAULT));
    spec.env = asked.env.unwrap_or_default();
    spec.labels = asked.metadata.unwrap_or_default();
    let mut request = CreateRequest::one(spec);
    request.idempotency_key = key;
    request.validate()?;
    let front = call.face.front.clone();
    // A client that leaves must not leave a sandbox that nobody was told of half-made.
    let event = rpc::to_the_end(async move { Ok(front.create(request).await?.next().await) }).await?;
    match event {
        Some(CreateEvent::Created { sandbox, .. }) => {
            Ok(body::json(StatusCode::CREATED, &view::access(&call.face, &sandbox)))
        }
        Some(CreateEvent::Failed { error, .. }) => Err(error.into()),
        None => Err(api::Error::internal("the create ended without an answer").into()),
    }
}

/// In milliseconds; 0 is "now".
pub(super) fn seconds(seconds: u64) -> u64 {
    seconds.saturating_mul(1000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(extra: Value) -> Result<NewSandbox, Fault> {
        let mut value = json!({ "templateID": "base" });
        if let (Value::Object(value), Value::Object(extra)) = (&mut value, extra) {
            value.extend(extra);
        }
        body::parse(value.to_string().as_bytes())
    }

    #[test]
    fn what_we_cannot_do_is_refused_by_name() {
        for (extra, field) in [
            (json!({ "autoPause": true }), "autoPause"),
            (json!({ "autoResume": { "enabled": true } }), "autoResume"),
            (json!({ "mcp": { "browserbase": {} } }), "mcp"),
            (json!({ "iam": { "tokens": { "a": {} } } }), "iam"),
            (json!({ "volumeMounts": [{ "name": "v", "path": "/v" }] }), "volumeMounts"),
        ] {
            let fault = read(extra).unwrap().refuse_what_we_cannot().unwrap_err();
            assert_eq!(fault.status(), 501);
            assert!(fault.in_stream()["message"].as_str().unwrap().starts_with(field));
        }
        let fault = read(json!({ "gpu": 1 })).unwrap_err();
        assert!(fault.in_stream()["message"].as_str().unwrap().contains("gpu"));
        let harmless = json!({ "secure": false, "autoPause": false, "autoPauseMemory": true, "mcp": null,
            "autoResume": { "enabled": false }, "volumeMounts": [], "metadata": { "a": "b" } });
        assert!(read(harmless).unwrap().refuse_what_we_cannot().is_ok());
    }

    #[test]
    fn the_internet_is_all_or_none() {
        let network = |extra| read(extra).unwrap().network(false);
        assert_eq!(network(json!({})).unwrap(), Network::Egress);
        assert_eq!(network(json!({ "allow_internet_access": true })).unwrap(), Network::Egress);
        assert_eq!(network(json!({ "allow_internet_access": false })).unwrap(), Network::None);
        let deny =
            json!({ "network": { "denyOut": ["0.0.0.0/0"], "allowOut": [], "allowPublicTraffic": true } });
        assert_eq!(network(deny).unwrap(), Network::None);
        for rules in [
            json!({ "denyOut": ["10.0.0.0/8"] }),
            json!({ "allowOut": ["example.org"], "denyOut": ["0.0.0.0/0"] }),
            json!({ "maskRequestHost": "x" }),
            json!({ "rules": { "a": {} } }),
        ] {
            assert_eq!(network(json!({ "network": rules })).unwrap_err().status(), 501, "{rules}");
        }
        let closed = json!({ "network": { "allowPublicTraffic": false } });
        assert!(read(closed).unwrap().network(true).is_err(), "the operator has opened all ports");
    }
}
