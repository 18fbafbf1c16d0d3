//! What a tool is: a verb with typed arguments and a typed answer. One file a tool; the list of them is `ALL`.
//!
//! The argument `sandbox` is not the tools' own: whether there is one depends on what the server is for, so it is taken
//! out of the arguments, and put into the schema, here.

mod create;
mod exec;
mod images;
mod kill;
mod list;
mod list_dir;
mod output;
mod port;
mod read_file;
mod stop;
mod write_file;

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use libdsec::{Code, Error, Result, Sandbox};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::{limit, scope::Sandboxes, text};

pub(crate) type Object = Map<String, Value>;

const SANDBOX: &str = "sandbox";

/// What a client may assume of a tool. (MCP's annotations.)
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hints {
    pub(crate) read_only: bool,
    pub(crate) destructive: bool,
    pub(crate) idempotent: bool,
    pub(crate) open_world: bool,
}

const READS: Hints = Hints { read_only: true, destructive: false, idempotent: true, open_world: false };
const CHANGES: Hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: false };

/// A tool.
trait Verb: 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    /// For the model.
    const ABOUT: &'static str;
    const HINTS: Hints;
    /// Acts in a sandbox; otherwise it is about which there are, and not offered where there is one alone.
    const IN_SANDBOX: bool = true;
    /// Dropping its future is all that a cancel needs; otherwise it looks at [`Call::cancel`] itself.
    const CANCEL_DROPS: bool = true;
    type Args: DeserializeOwned + JsonSchema + Send + 'static;
    type Answer: Serialize + JsonSchema + Send + 'static;

    /// The call's deadline.
    fn within(_args: &Self::Args) -> Duration {
        limit::CALL_WITHIN
    }

    fn run(call: Call, args: Self::Args) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// What a call comes with beside its arguments.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) cancel: CancellationToken,
    named: Option<String>,
}

impl Call {
    async fn sandbox(&self) -> Result<Sandbox> {
        self.sandboxes.find(self.named.as_deref()).await
    }

    /// As [`Call::sandbox`], but none is made for it.
    async fn sandbox_made(&self) -> Result<Sandbox> {
        if self.named.is_none() && self.sandboxes.would_make().await {
            return Err(Error::not_found("this session has no sandbox yet"));
        }
        self.sandbox().await
    }
}

/// A tool without its types.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) hints: Hints,
    pub(crate) input: Object,
    pub(crate) output: Object,
    in_sandbox: bool,
    run: fn(Call, Object) -> BoxFuture<'static, Result<Value>>,
}

/// The tools of a server with these sandboxes.
pub(crate) fn offered(sandboxes: &Sandboxes) -> Vec<Tool> {
    let all = [
        Tool::of::<exec::Exec>(),
        Tool::of::<output::ExecOutput>(),
        Tool::of::<kill::ExecKill>(),
        Tool::of::<read_file::ReadFile>(),
        Tool::of::<write_file::WriteFile>(),
        Tool::of::<list_dir::ListDir>(),
        Tool::of::<port::FetchPort>(),
        Tool::of::<create::CreateSandbox>(),
        Tool::of::<list::ListSandboxes>(),
        Tool::of::<stop::StopSandbox>(),
        Tool::of::<images::ListImages>(),
    ];
    let can_be_named = sandboxes.can_be_named();
    let mut offered: Vec<Tool> =
        all.into_iter().filter(|tool| can_be_named || tool.in_sandbox && tool.name != stop::NAME).collect();
    for tool in offered.iter_mut().filter(|tool| can_be_named && tool.in_sandbox) {
        tool.take_sandbox(sandboxes.must_be_named());
    }
    if sandboxes.are_own() {
        // Their life is the server's.
        let create = offered.iter_mut().find(|tool| tool.name == create::NAME);
        let properties = create.and_then(|tool| tool.input.get_mut("properties")?.as_object_mut());
        properties.map(|properties| properties.remove(create::TTL));
    }
    offered
}

impl Tool {
    fn of<V: Verb>() -> Self {
        Self {
            name: V::NAME,
            title: V::TITLE,
            about: V::ABOUT,
            hints: V::HINTS,
            input: schema::<V::Args>(SchemaSettings::draft2020_12()),
            output: schema::<V::Answer>(SchemaSettings::draft2020_12().for_serialize()),
            in_sandbox: V::IN_SANDBOX,
            run: |call, args| Box::pin(run::<V>(call, args)),
        }
    }

    fn take_sandbox(&mut self, required: bool) {
        let about = if required {
            "The sandbox: its id (sb-...) or name."
        } else {
            "The sandbox: its id (sb-...) or name. Leave it out for this session's own, made at its first use."
        };
        let properties = self.input.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert(SANDBOX.into(), json!({"type": "string", "description": about}));
        }
        if required && let Some(names) = self.input.entry("required").or_insert(json!([])).as_array_mut() {
            names.insert(0, SANDBOX.into());
        }
    }

    /// Runs it. Its errors are for the model to read.
    pub(crate) async fn call(
        &self,
        sandboxes: Arc<Sandboxes>,
        mut args: Object,
        cancel: CancellationToken,
    ) -> Result<Value> {
        // Where there is no such argument, it is left to be found an unknown one.
        let takes = self.in_sandbox && sandboxes.can_be_named();
        let named = match takes.then(|| args.remove(SANDBOX)).flatten() {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name),
            Some(_) => return Err(Error::invalid("sandbox: expected a string")),
        };
        let call = Call { sandboxes: sandboxes.clone(), cancel, named };
        let by_default = call.named.is_none();
        match (self.run)(call, args).await {
            Err(error) if by_default => {
                let explained = tokio::time::timeout(limit::EXPLAIN_WITHIN, sandboxes.explain(error.clone()));
                Err(explained.await.unwrap_or(error))
            }
            done => done,
        }
    }
}

async fn run<V: Verb>(call: Call, args: Object) -> Result<Value> {
    let args: V::Args = serde_path_to_error::deserialize(Value::Object(args)).map_err(|e| {
        let (path, inner) = (e.path().to_string(), e.inner().to_string());
        Error::invalid(if path == "." { inner } else { format!("{path}: {inner}") })
    })?;
    let (within, cancel) = (V::within(&args), call.cancel.clone());
    let answer = tokio::select! {
        () = cancel.cancelled(), if V::CANCEL_DROPS => return Err(cancelled()),
        done = tokio::time::timeout(within, V::run(call, args)) => done.map_err(|_| {
            Error::new(Code::DeadlineExceeded, format!("{} was not done within {} s", V::NAME, within.as_secs()))
        })??,
    };
    serde_json::to_value(answer).map_err(|e| Error::internal(format!("the answer: {e}")))
}

fn cancelled() -> Error {
    Error::new(Code::Conflict, "the call was cancelled")
}

/// As a client likes it: flat, without the names of our types.
fn schema<T: JsonSchema>(settings: SchemaSettings) -> Object {
    let settings = settings.with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut object = schema.as_object().cloned().unwrap_or_default();
    object.remove("title");
    object.remove("description");
    let mut schema = Value::Object(object);
    simplify(&mut schema);
    let Value::Object(mut object) = schema else { return Object::new() };
    // A tool without arguments has none in its schema either, which some clients do not take.
    object.entry("properties").or_insert_with(|| json!({}));
    object
}

/// Takes out what says nothing to a model, and what some clients refuse: an option's null (which is accepted all the
/// same), and the sizes of our integers.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if let Some(Value::Array(kinds)) = object.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [one] = kinds.as_slice() {
                    let one = one.clone();
                    object.insert("type".into(), one);
                }
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(all) => all.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// A name, a path, a reason: one clean line.
fn line(bytes: &[u8]) -> String {
    text::line(bytes, limit::LINE_CHARS_MAX)
}

/// `value` where it is in its bounds.
fn within_bounds(field: &str, value: u64, min: u64, max: u64) -> Result<u64> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(Error::invalid(format!("{field}: {value} is outside {min}..={max}")))
}

/// How bytes travel in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Encoding {
    #[default]
    Text,
    Base64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_words_say_is_what_the_limits_are() {
        let exec = Tool::of::<exec::Exec>();
        let says = |tool: &Tool, field: &str, number: u64| {
            let about = tool.input["properties"][field]["description"].as_str().unwrap();
            assert!(about.contains(&number.to_string()), "{field}: {about}");
        };
        says(&exec, "timeout_s", limit::EXEC_S_DEFAULT);
        says(&exec, "timeout_s", limit::EXEC_S_MAX);
        says(&exec, "max_output_chars", limit::OUTPUT_CHARS_DEFAULT as u64);
        let read = Tool::of::<read_file::ReadFile>();
        says(&read, "limit", limit::OUTPUT_CHARS_DEFAULT as u64);
        says(&read, "limit", limit::READ_BYTES_MAX);
        says(&Tool::of::<output::ExecOutput>(), "wait_s", limit::POLL_S_MAX);
        let port = Tool::of::<port::FetchPort>();
        says(&port, "timeout_s", limit::FETCH_S_DEFAULT);
        says(&port, "timeout_s", limit::FETCH_S_MAX);
        assert!(Tool::of::<list_dir::ListDir>().about.contains(&limit::ENTRIES_MAX.to_string()));
        says(&Tool::of::<write_file::WriteFile>(), "content", limit::WRITE_BYTES_MAX as u64 >> 20);
    }

    #[test]
    fn schemas_are_plain() {
        let mut exec = Tool::of::<exec::Exec>();
        exec.take_sandbox(true);
        let text =
            Value::Object(exec.input.clone()).to_string() + &Value::Object(exec.output.clone()).to_string();
        for noise in ["null", "uint", "$ref", "$defs", "$schema"] {
            assert!(!text.contains(noise), "{noise}: {text}");
        }
        assert_eq!(exec.input["additionalProperties"], false);
        assert_eq!(exec.input["required"], json!(["sandbox", "command"]));
        assert_eq!(exec.input["properties"]["cwd"]["type"], "string");
        assert!(!exec.output["required"].as_array().unwrap().contains(&json!("exit_code")));
    }
}
