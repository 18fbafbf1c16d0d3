//! The document against the server: what it lists is there, and what it refers to exists.

use std::collections::BTreeSet;

use api::ExecId;
use serde_json::Value;

use crate::wire::{node, raw, request};

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                found.insert(reference.clone());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_listed_operation_is_served_and_every_reference_resolves() {
    let node = node().await;
    let answer = raw(node.address, &request("GET", "/v1/openapi.json", "", b"")).await;
    let document: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["info"]["title"].is_string() && document["info"]["version"].is_string());

    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.contains("#/components/schemas/ExecResult"));
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }

    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let filled = path
            .replace("{id}", node.id.as_str())
            .replace("{exec}", ExecId::new().as_str())
            .replace("{port}", "1")
            .replace("{name}", "x")
            .replace("{path}", "x")
            .replace("{reference}", "absent");
        assert!(!filled.contains(['{', '}']), "{filled}");
        for (method, operation) in item.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{operation}");
            assert!(!operation["responses"].as_object().unwrap().is_empty());
            // The sandbox must be there for the next operation.
            if operation["operationId"] == "stop" {
                continue;
            }
            let answer = raw(node.address, &request(&method.to_uppercase(), &filled, "", b"")).await;
            assert_ne!(answer.status, 405, "{method} {path}");
            let body = String::from_utf8_lossy(&answer.body);
            assert!(!body.contains("no such path"), "{method} {path}: {body}");
        }
    }
    for path in ["/v1/sandboxes/{id}/exec", "/v1/sandboxes/{id}/files", "/v1/images/import", "/v1/health"] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    let mut parameters =
        document["paths"]["/v1/sandboxes/{id}/files"]["get"]["parameters"].as_array().unwrap().iter();
    assert!(parameters.any(|p| p["name"] == "path" && p["in"] == "query" && p["required"] == true));
}
