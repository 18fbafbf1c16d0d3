//! The least client of MCP: lines of JSON to a real `dsec mcp`, and back. It forgives nothing: a line on standard output
//! that is not the protocol's ends the test.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use serde_json::{Value, json};
use testkit::Node;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command},
};

const ANSWER_WITHIN: Duration = Duration::from_secs(60);

pub struct Session {
    pub child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    next_id: u64,
    /// Answers that came before they were asked for.
    early: BTreeMap<u64, Value>,
}

impl Session {
    /// Started, and shaken hands with.
    pub async fn start(node: &Node, args: &[&str]) -> Self {
        let mut session = Self::spawn(node, args);
        session.shake_hands().await;
        session
    }

    pub fn spawn(node: &Node, args: &[&str]) -> Self {
        let mut command = Command::from(node.cli());
        command.arg("mcp").args(args).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { input: child.stdin.take(), child, output, next_id: 1, early: BTreeMap::new() }
    }

    pub async fn shake_hands(&mut self) -> Value {
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = self.request("initialize", params).await;
        self.line(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
        answer["result"].clone()
    }

    pub async fn line(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        input.flush().await.unwrap();
    }

    /// Sends a request; gives its id.
    pub async fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.line(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
        id
    }

    pub async fn send_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.send("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// The next message, whatever it is.
    pub async fn message(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(ANSWER_WITHIN, self.output.next_line())
            .await
            .expect("an answer")
            .unwrap()?;
        let message: Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("not the protocol: {e}: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        Some(message)
    }

    pub async fn answer(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.early.remove(&id) {
                return answer;
            }
            let message = self.message().await.expect("the server left");
            if let Some(of) = message["id"].as_u64() {
                self.early.insert(of, message);
            }
        }
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        self.answer(id).await
    }

    /// The structured answer of a tool that succeeds.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        good(&answer)
    }

    /// The error of a tool that fails.
    pub async fn fail(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        bad(&answer)
    }

    pub async fn sh(&mut self, command: &str) -> String {
        let done = self.call("exec", json!({"command": command})).await;
        assert_eq!(done["exit_code"], 0, "{done}");
        done["stdout"].as_str().unwrap().to_owned()
    }

    pub async fn tools(&mut self) -> BTreeMap<String, Value> {
        let answer = self.request("tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        tools.into_iter().map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool)).collect()
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Closes its input and waits for its end; gives its exit code.
    pub async fn end(mut self) -> i32 {
        self.close_input();
        self.ended().await
    }

    pub async fn ended(&mut self) -> i32 {
        let status = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await.expect("it ends");
        status.unwrap().code().unwrap()
    }
}

pub fn good(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], false, "{answer}");
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, result["structuredContent"], "both forms say the same");
    text
}

pub fn bad(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    assert!(result.get("structuredContent").is_none(), "{answer}");
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(text["error"]["message"].is_string(), "{text}");
    text["error"].clone()
}

/// One answer by HTTP.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The message in its body, plain or as an event.
    pub fn message(&self) -> Value {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        let found = events
            .map(str::trim)
            .chain([self.body.as_str()])
            .find_map(|text| serde_json::from_str(text).ok());
        found.unwrap_or_else(|| panic!("no message: {} {}", self.status, self.body))
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    }
}

/// A `dsec mcp --listen`.
pub struct Listening {
    pub child: Child,
    pub address: String,
    pub key: String,
}

impl Listening {
    pub async fn start(node: &Node, args: &[&str]) -> Self {
        Self::start_with(node, args, &[]).await
    }

    pub async fn start_with(node: &Node, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = Command::from(node.cli());
        command.args(["mcp", "--listen", "0"]).args(args).envs(env.iter().copied()).kill_on_drop(true);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).await.unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap().strip_suffix("/mcp").unwrap();
        Self { child, address: address.to_owned(), key: node.access().api_key }
    }

    /// A request with these headers, beside the usual ones that it does not name.
    pub async fn ask(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let bearer = format!("Bearer {}", self.key);
        let usual = [
            ("Host", self.address.as_str()),
            ("Authorization", bearer.as_str()),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
        ];
        let mut text =
            format!("{method} /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        let named = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        for (name, value) in usual.iter().filter(|(name, _)| !named(name)).chain(headers) {
            // An empty value takes a usual one away.
            if !value.is_empty() {
                text += &format!("{name}: {value}\r\n");
            }
        }
        let mut socket = TcpStream::connect(&self.address).await.unwrap();
        socket.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
        // It may be refused before it has been read.
        let _ = socket.write_all(body.as_bytes()).await;
        let mut bytes = Vec::new();
        let read =
            tokio::time::timeout(ANSWER_WITHIN, socket.read_to_end(&mut bytes)).await.expect("an answer");
        if bytes.is_empty() {
            read.unwrap();
        }
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunk(body) } else { body.to_owned() };
        Answer { status, head: head.to_owned(), body }
    }

    pub async fn handshake(&self) -> Answer {
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        self.ask("POST", &[], &body.to_string()).await
    }
}

fn dechunk(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = text.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body += &rest[..length];
        text = rest[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    body
}
