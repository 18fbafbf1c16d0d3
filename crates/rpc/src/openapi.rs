//! The OpenAPI 3.1 document, made from the route table.

use api::{Code, Error};
use axum::{Router, routing::get};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    route::{self, Content, On, Route, Shape},
    serve::{MOUNT, SANDBOX_MOUNT, answer},
};

/// What any route may answer, beside its own.
const COMMON: [Code; 4] = [Code::InvalidArgument, Code::Unauthenticated, Code::NotFound, Code::Internal];
const METHODS: [On; 5] = [On::Get, On::Post, On::Put, On::Patch, On::Delete];

/// Adds `/v1/openapi.json`.
pub(crate) fn mount(router: Router) -> Router {
    let document = document();
    router.route(
        "/v1/openapi.json",
        get(move || {
            let answer = answer::json(&document);
            async { answer }
        }),
    )
}

/// The document of an edge or an apiserver.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut book = Book { generator: settings.into_generator(), paths: Map::new() };
    book.add(MOUNT, &route::edge::routes());
    book.add(MOUNT, &route::images::routes());
    book.add(MOUNT, &route::environments::routes());
    book.add(MOUNT, &route::access::routes());
    book.add(SANDBOX_MOUNT, &route::chronus::routes());
    #[cfg(feature = "call")]
    book.add(SANDBOX_MOUNT, &route::chronus::proxy_routes());
    book.finish()
}

struct Book {
    generator: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Book {
    fn add<S>(&mut self, prefix: &str, routes: &[Route<S>]) {
        for route in routes {
            let path = format!("{prefix}{}", route.path);
            let methods: &[On] = if route.on == On::Any { &METHODS } else { std::slice::from_ref(&route.on) };
            for method in methods {
                let operation = self.operation(&path, *method, route);
                let path = path.replace("{*", "{");
                let item = self.paths.entry(path).or_insert_with(|| json!({}));
                item[method.as_str().to_lowercase()] = operation;
            }
        }
    }

    fn operation<S>(&mut self, path: &str, method: On, route: &Route<S>) -> Value {
        let about = &route.about;
        // A verb with several routes has several operations; their ids must differ.
        let mut id = route.verb.name.to_owned();
        if route.on == On::Any {
            let place = if path.ends_with('}') {
                "_path"
            } else if path.ends_with('/') {
                "_root"
            } else {
                ""
            };
            id = format!("{id}{place}_{}", method.as_str().to_lowercase());
        }
        let mut operation = json!({
            "operationId": id,
            "summary": about.summary,
            "parameters": self.parameters(path, about.query),
            "responses": self.responses(about.answer, about.upgrade, about.errors),
            "security": [{ "bearer": [] }, { "key": [] }],
        });
        if let Some(content) = self.content(about.body) {
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        operation
    }

    fn parameters(&mut self, path: &str, query: Option<Shape>) -> Vec<Value> {
        let mut parameters: Vec<Value> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| {
                let name = name.trim_start_matches('*');
                json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
            })
            .collect();
        let Some(query) = query else { return parameters };
        let schema = self.resolved(query);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            parameters.push(json!({
                "name": name,
                "in": "query",
                "required": required.contains(&name.as_str()),
                "schema": property,
            }));
        }
        parameters
    }

    /// A shape's own schema, where `subschema_for` gives a reference to it.
    fn resolved(&mut self, shape: Shape) -> Value {
        let schema = Value::from((shape.schema)(&mut self.generator));
        let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) else {
            return schema;
        };
        self.generator.definitions().get(name).cloned().unwrap_or(schema.clone())
    }

    fn content(&mut self, content: Content) -> Option<Value> {
        let (kind, schema) = match content {
            Content::Nothing => return None,
            Content::Json(shape) => ("application/json", Value::from((shape.schema)(&mut self.generator))),
            Content::Lines(shape) => {
                ("application/x-ndjson", Value::from((shape.schema)(&mut self.generator)))
            }
            Content::Bytes => ("application/octet-stream", json!({})),
        };
        Some(json!({ kind: { "schema": schema } }))
    }

    fn responses(&mut self, answer: Content, upgrade: Option<&str>, errors: &[Code]) -> Value {
        let mut responses = Map::new();
        match self.content(answer) {
            Some(content) => {
                responses.insert("200".into(), json!({ "description": "Done.", "content": content }));
            }
            None if upgrade.is_none() => {
                responses.insert("204".into(), json!({ "description": "Done." }));
            }
            None => {}
        }
        if let Some(protocol) = upgrade {
            let text = format!(
                "With `Connection: upgrade` and `Upgrade: {protocol}`: the connection speaks it from here."
            );
            responses.insert("101".into(), json!({ "description": text }));
        }
        let error = Value::from(self.generator.subschema_for::<Error>());
        for code in COMMON.iter().chain(errors) {
            let entry = responses.entry(code.status().to_string()).or_insert_with(
                || json!({ "description": "", "content": { "application/json": { "schema": error } } }),
            );
            let text = entry["description"].as_str().unwrap_or_default();
            if !text.contains(code.as_str()) {
                let separator = if text.is_empty() { "" } else { ", " };
                entry["description"] = format!("{text}{separator}`{}`", code.as_str()).into();
            }
        }
        Value::Object(responses)
    }

    fn finish(mut self) -> Value {
        let health = json!({
            "operationId": "health",
            "summary": "Whether the service answers. Open to all.",
            "responses": { "200": { "description": "It does." } },
            "security": [],
        });
        self.paths.insert("/v1/health".into(), json!({ "get": health }));
        let schemas = self.generator.take_definitions(true);
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "DSec",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Isolated machines for agents. Each answer carries `x-request-id`; each error is an `Error` with a stable code.",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "servers": [{ "url": "/" }],
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": { "type": "http", "scheme": "bearer" },
                    "key": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_table_is_in_the_document_and_nothing_else_is() {
        let document = document();
        let mut rows: Vec<(String, &str)> = vec![("/v1/health".into(), "GET")];
        let mut add = |prefix: &str, path: &str, on: On| {
            let methods = if on == On::Any { &METHODS[..] } else { std::slice::from_ref(&on) };
            rows.extend(methods.iter().map(|m| (format!("{prefix}{path}").replace("{*", "{"), m.as_str())));
        };
        route::edge::routes().iter().for_each(|r| add(MOUNT, r.path, r.on));
        route::images::routes().iter().for_each(|r| add(MOUNT, r.path, r.on));
        route::environments::routes().iter().for_each(|r| add(MOUNT, r.path, r.on));
        route::access::routes().iter().for_each(|r| add(MOUNT, r.path, r.on));
        route::chronus::routes().iter().for_each(|r| add(SANDBOX_MOUNT, r.path, r.on));
        #[cfg(feature = "call")]
        route::chronus::proxy_routes().iter().for_each(|r| add(SANDBOX_MOUNT, r.path, r.on));
        rows.sort();
        let mut listed: Vec<(String, &str)> = Vec::new();
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for on in METHODS {
                if item.get(on.as_str().to_lowercase()).is_some() {
                    listed.push((path.clone(), on.as_str()));
                }
            }
        }
        listed.sort();
        assert_eq!(rows, listed);
    }
}
