//! The tools as the SDK wants them: its handler, and our answers in its types.
//!
//! Invariants: a tool that fails, panics or is given what it does not take is an answer with `isError` and
//! `{"error": {"code", "message"}}`; only a tool that is not there is an error of the protocol, as MCP has it. No more
//! than `CALLS_MAX` calls run at once.

use std::{borrow::Cow, sync::Arc};

use libdsec::{Client, Code, Error, Result};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool as McpTool,
        ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    limit,
    scope::{Sandboxes, Scope},
    text,
    tool::{self, Object, Tool},
};

/// The tools of one server, for any number of its clients. Cheap to clone.
#[derive(Clone)]
pub struct Tools {
    inner: Arc<Inner>,
}

struct Inner {
    sandboxes: Arc<Sandboxes>,
    tools: Vec<Tool>,
    calls: Arc<Semaphore>,
    /// Ends every call.
    end: CancellationToken,
    version: String,
}

impl Tools {
    /// Errors: `not_found` where the sandbox or the image of `scope` is not there.
    pub async fn open(client: Client, scope: Scope, version: &str) -> Result<Self> {
        let opened = tokio::time::timeout(limit::CALL_WITHIN, Sandboxes::open(client, scope)).await;
        let late = |_| Error::new(Code::DeadlineExceeded, "the server does not answer");
        let sandboxes = Arc::new(opened.map_err(late)??);
        let tools = tool::offered(&sandboxes);
        let calls = Arc::new(Semaphore::new(limit::CALLS_MAX));
        let (end, version) = (CancellationToken::new(), version.to_owned());
        Ok(Self { inner: Arc::new(Inner { sandboxes, tools, calls, end, version }) })
    }

    /// Ends the calls that run.
    pub(crate) fn end_calls(&self) {
        self.inner.end.cancel();
    }

    /// Ends the calls that run, and stops the sandboxes that belong to this server. Bounded.
    pub async fn close(&self) {
        self.end_calls();
        self.inner.sandboxes.close().await;
    }

    async fn answer(&self, tool: usize, args: Object, gone: CancellationToken) -> CallToolResult {
        let inner = self.inner.clone();
        let Ok(place) = inner.calls.clone().try_acquire_owned() else {
            let text = format!("{} calls run already; wait for one to end", limit::CALLS_MAX);
            return failure(&Error::new(Code::RateLimited, text));
        };
        let cancel = inner.end.child_token();
        let token = cancel.clone();
        // A task of its own: a panic comes back as an error.
        let mut work = tokio::spawn(async move {
            let sandboxes = inner.sandboxes.clone();
            let done = inner.tools[tool].call(sandboxes, args, token).await;
            drop(place);
            done
        });
        let done = tokio::select! {
            done = &mut work => done,
            () = gone.cancelled() => {
                cancel.cancel();
                work.await
            }
        };
        match done {
            Ok(Ok(answer)) => CallToolResult::structured(answer),
            Ok(Err(error)) => failure(&error),
            Err(e) => {
                tracing::error!(error = %e, tool = self.inner.tools[tool].name, "a tool broke");
                failure(&Error::internal("the tool broke; the server's log says more"))
            }
        }
    }

    fn instructions(&self) -> &'static str {
        let sandboxes = &self.inner.sandboxes;
        if !sandboxes.can_be_named() {
            "One Linux sandbox, isolated from the machine of the user. All tools act in it; its files and processes stay between calls."
        } else if sandboxes.must_be_named() {
            "Linux sandboxes, isolated from the machine of the user. Make one with create_sandbox (list_images tells the images), give its id to the \
             other tools, and stop it with stop_sandbox when it is of no more use. Files and processes stay between calls."
        } else {
            "A Linux sandbox of this session, isolated from the machine of the user: made at the first use, ended with the session. Files and processes \
             stay between calls. Leave `sandbox` out to use it; create_sandbox makes more."
        }
    }
}

/// Not structured: a client would hold it against the schema of the tool's answers.
fn failure(error: &Error) -> CallToolResult {
    let message = text::line(error.message.as_bytes(), limit::MESSAGE_CHARS_MAX);
    let mut told = json!({"code": error.code.as_str(), "message": message});
    if let Some(id) = &error.request_id {
        told["request_id"] = Value::String(id.to_string());
    }
    if let Some(ms) = error.retry_after_ms {
        told["retry_after_ms"] = ms.into();
    }
    CallToolResult::error(vec![ContentBlock::text(json!({"error": told}).to_string())])
}

fn described(tool: &Tool) -> McpTool {
    let hints = tool.hints;
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(hints.read_only)
        .destructive(hints.destructive)
        .idempotent(hints.idempotent)
        .open_world(hints.open_world);
    McpTool::new(tool.name, tool.about, tool.input.clone())
        .with_title(tool.title)
        .with_raw_output_schema(Arc::new(tool.output.clone()))
        .with_annotations(annotations)
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let identity = Implementation::new("dsec", self.inner.version.clone()).with_title("DSec sandboxes");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(identity)
            .with_instructions(self.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.inner.tools.iter().map(described).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<McpTool> {
        self.inner.tools.iter().find(|tool| tool.name == name).map(described)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.inner.tools.iter().position(|tool| tool.name == request.name) else {
            let name = text::line(request.name.as_bytes(), limit::HEADER_CHARS_MAX);
            return Err(ErrorData::invalid_params(Cow::from(format!("unknown tool: {name}")), None));
        };
        let args = request.arguments.unwrap_or_default();
        Ok(self.answer(tool, args, context.ct).await.into())
    }
}
