//! A client that speaks MCP, of either era.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{Answer, Gateway};

pub const MODERN: &str = "2026-07-28";
pub const LEGACY: &str = "2025-11-25";

/// `_meta` of a modern request, with more.
pub fn meta(more: Value) -> Value {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "tests", "version": "1" },
    });
    for (name, value) in more.as_object().expect("an object") {
        meta[name] = value.clone();
    }
    meta
}

/// The configuration of a token that is its own name, and whatever else is said of it.
pub fn token(token: &str, scopes: &str, more: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
    format!(
        "[[auth.tokens]]\nname = \"{token}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n{more}\n"
    )
}

/// A request of 2026-07-28 to an MCP endpoint.
pub fn modern(endpoint: RequestBuilder, method: &str, mut params: Value) -> RequestBuilder {
    let more = params.get("_meta").cloned().unwrap_or_else(|| json!({}));
    params["_meta"] = meta(more);
    let name = params
        .get("name")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let request = endpoint
        .body(body.to_string())
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", method);
    match name {
        Some(name) if method == "tools/call" => request.header("mcp-name", name),
        _ => request,
    }
}

impl Gateway {
    /// A request to the MCP endpoint, with nothing but this body.
    pub fn mcp_raw(&self, body: String) -> RequestBuilder {
        let request = self.client.post(self.url("/mcp")).body(body);
        request.header("accept", "application/json, text/event-stream")
    }

    /// A request of 2026-07-28.
    pub fn mcp_request(&self, method: &str, params: Value) -> RequestBuilder {
        modern(self.client.post(self.url("/mcp")), method, params)
    }

    pub async fn mcp(&self, method: &str, params: Value) -> Answer {
        Answer::to(self.mcp_request(method, params)).await
    }

    /// A request of 2025-11-25.
    pub async fn mcp_legacy(&self, method: &str, params: Value) -> Answer {
        let body = json!({ "jsonrpc": "2.0", "id": "seven", "method": method, "params": params });
        let request = self.mcp_raw(body.to_string());
        Answer::to(request.header("mcp-protocol-version", LEGACY)).await
    }

    /// Calls `act` with these arguments.
    pub async fn mcp_call(&self, args: Value) -> Answer {
        self.mcp("tools/call", json!({ "name": "act", "arguments": args }))
            .await
    }
}

impl Answer {
    /// The message that a whole answer is, or the last one of a stream.
    pub fn message(&self) -> Value {
        if !self.header("content-type").starts_with("text/event-stream") {
            return self.json();
        }
        let events = self.text.split("\n\n");
        let data = events.filter_map(|event| event.split_once("data: ").map(|(_, data)| data));
        serde_json::from_str(data.last().expect("an event")).expect("JSON")
    }

    /// What a model reads first of the result.
    #[track_caller]
    pub fn told(&self) -> String {
        let message = self.message();
        let text = message
            .pointer("/result/content/0/text")
            .and_then(Value::as_str);
        text.unwrap_or_else(|| panic!("no text: {}", self.text))
            .to_owned()
    }

    /// Whether the result says that there is none.
    #[track_caller]
    pub fn is_error(&self) -> bool {
        let message = self.message();
        let is_error = message.pointer("/result/isError").and_then(Value::as_bool);
        is_error.unwrap_or_else(|| panic!("no result: {}", self.text))
    }

    /// A member of `_meta` of the result; null if it is not there.
    pub fn meta(&self, name: &str) -> Value {
        self.message()["result"]["_meta"][format!("dev.oncegate/{name}")].clone()
    }

    /// The code of an error of JSON-RPC.
    #[track_caller]
    pub fn rpc_code(&self) -> i64 {
        let message = self.message();
        let code = message.pointer("/error/code").and_then(Value::as_i64);
        code.unwrap_or_else(|| panic!("no error: {}", self.text))
    }
}
