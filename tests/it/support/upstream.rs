//! An MCP server over streamable HTTP that counts its effects and misbehaves on request.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::mcp::{LEGACY, MODERN};

/// What the server does with a `tools/call`. All but `Status` and `Error` execute it.
#[derive(Debug, Clone)]
pub enum Does {
    /// Answers with this result as JSON.
    Json(Value),
    /// The same as the last event of a stream, after others.
    Stream(Value),
    /// The same, but only after this time.
    Late(Duration, Value),
    /// Begins a stream, says this, and ends it.
    StreamThenEnd(&'static [u8]),
    /// Begins a stream, and then says nothing for ever.
    StreamThenHang,
    /// Answers for another request, by JSON or in a stream.
    OtherId,
    OtherIdInStream,
    /// Refuses another request with 400.
    RefuseAnother,
    /// Two responses in a stream; the second is another one.
    Twice(Value),
    /// One line of this length in a stream.
    Long(usize),
    /// Executes and answers with this error.
    ExecuteThenError(i64),
    /// The same with status 400.
    ExecuteThenRefuse(i64),
    ExecuteThenStatus(u16),
    /// Executes, answers with 200 and no body.
    ExecuteThenNothing,
    /// Executes nothing, and answers with this error and status.
    Error(u16, i64),
    /// Executes nothing, and answers with this error object.
    Demand(Value),
    /// The same without the id of the request.
    Nameless(u16, i64),
    Status(u16),
    /// Tells of progress this often, under the token of the request and another, and then answers.
    Progress(usize),
    /// Executes nothing, and answers with this result, which asks.
    Ask(Value),
    /// Executes, and answers with this status and an error that names no request.
    ExecuteThenNameless(u16, i64),
    /// The same, and forgets all sessions.
    ExecuteThenForget(u16, i64),
    /// The same after it was notified.
    HeldThenForget(Arc<Notify>),
    /// Answers with this text as the result.
    Text(&'static str),
    /// Answers with a batch: progress, and the result. As JSON, or in a stream.
    Batch(Value),
    BatchInStream(Value),
    /// Executes, and answers with a task of this id, to a client that knows tasks.
    Task(&'static str),
}

/// The extension of tasks.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// A result that asks, with this state.
pub fn asks(state: Option<&str>) -> Value {
    let question = json!({ "method": "elicitation/create", "params": { "message": "Sure?" } });
    let mut asks = json!({ "resultType": "input_required", "inputRequests": { "sure": question } });
    if let Some(state) = state {
        asks["requestState"] = state.into();
    }
    asks
}

#[derive(Default)]
struct Inner {
    next: VecDeque<Does>,
    seen: Vec<(HeaderMap, Value)>,
    effects: HashMap<String, usize>,
    sessions: HashSet<String>,
    opened: usize,
    /// What it says of a session that it does not know.
    unknown_session: Option<(u16, i64)>,
    /// Its list of tools.
    tools: Vec<Value>,
    /// The revision that it answers to `initialize`, if it is another one.
    revision: Option<&'static str>,
    /// Its tasks that are not as they were given.
    tasks: HashMap<String, Value>,
    /// It answers nothing but 503.
    is_down: bool,
}

#[derive(Clone)]
pub struct Upstream {
    port: u16,
    is_modern: bool,
    inner: Arc<Mutex<Inner>>,
}

/// A result as servers give it.
pub fn result(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": { "said": text }, "isError": false })
}

impl Upstream {
    /// One of 2026-07-28.
    pub async fn modern() -> Self {
        Self::start(true).await
    }

    /// One of 2025-11-25, with sessions.
    pub async fn legacy() -> Self {
        Self::start(false).await
    }

    /// One that speaks only this earlier revision.
    pub async fn of_revision(revision: &'static str) -> Self {
        let upstream = Self::start(false).await;
        upstream.lock().revision = Some(revision);
        upstream
    }

    async fn start(is_modern: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let upstream = Self {
            port: listener.local_addr().expect("an address").port(),
            is_modern,
            inner: Arc::default(),
        };
        let router = Router::new()
            .route("/mcp", post(answer).delete(end))
            .with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        upstream
    }

    /// The configuration of its tool `act`, and whatever else is said of it.
    pub fn config(&self, more: &str) -> String {
        format!(
            "[upstreams.up]\nurl = \"{}\"\nheaders = {{ X-Secret = \"of-the-gateway\" }}\n[tools.act]\nupstream = \"up\"\n{more}\n",
            self.url()
        )
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    pub fn then(&self, does: Does) -> &Self {
        self.lock().next.push_back(does);
        self
    }

    /// All messages of this method that have arrived, with their headers.
    pub fn seen(&self, method: &str) -> Vec<(HeaderMap, Value)> {
        let mut seen = self.lock().seen.clone();
        seen.retain(|(_, message)| message["method"] == method);
        seen
    }

    /// How often something was executed.
    pub fn effects(&self) -> usize {
        self.lock().effects.values().sum()
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Forgets all sessions, and says so with this status and error.
    pub fn forget_sessions(&self, status: u16, code: i64) {
        let mut inner = self.lock();
        inner.sessions.clear();
        inner.unknown_session = Some((status, code));
    }

    /// From now on it lists these tools.
    pub fn list(&self, tools: &[Value]) -> &Self {
        self.lock().tools = tools.to_vec();
        self
    }

    /// From now on it says this of a task; null: that there is no such task.
    pub fn task(&self, id: &str, says: Value) {
        self.lock().tasks.insert(id.to_owned(), says);
    }

    /// Whether it answers nothing but 503.
    pub fn is_down(&self, is_down: bool) {
        self.lock().is_down = is_down;
    }

    /// A question about a task, which names it in a header.
    fn about_task(&self, headers: &HeaderMap, message: &Value) -> Response {
        let id = message["params"]["taskId"].as_str().expect("an id");
        if headers.get("mcp-name").is_none_or(|name| name != id) {
            return error(400, message, -32_020);
        }
        if !knows_tasks(message) {
            return error(400, message, -32_021);
        }
        if message["method"] != "tasks/get" {
            return json_of(message, &json!({ "resultType": "complete" }));
        }
        let says = self.lock().tasks.get(id).cloned();
        let mut task = says.unwrap_or_else(|| json!({ "status": "working" }));
        if task.is_null() {
            return error(200, message, -32_602);
        }
        task["resultType"] = "complete".into();
        task["taskId"] = id.into();
        task["pollIntervalMs"] = 100.into();
        json_of(message, &task)
    }

    /// What is asked beside calls, of either era.
    fn question(&self, message: &Value) -> Option<Response> {
        let params = &message["params"];
        let result = match message["method"].as_str().expect("a method") {
            // One tool a page.
            "tools/list" => {
                let at = params["cursor"]
                    .as_str()
                    .map_or(0, |at| at.parse().expect("a cursor"));
                let tools = self.lock().tools.clone();
                let mut page = json!({ "tools": tools.get(at).into_iter().collect::<Vec<_>>() });
                if at + 1 < tools.len() {
                    page["nextCursor"] = (at + 1).to_string().into();
                }
                page
            }
            "resources/read" => {
                json!({ "contents": [{ "uri": params["uri"], "text": "t" }], "new": 1.5 })
            }
            "prompts/get" => return Some(error(200, message, -32_602)),
            _ => return None,
        };
        Some(json_of(message, &result))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("not poisoned")
    }

    /// What is asked beside calls; `None`: it is a call that may be executed.
    fn other(&self, headers: &HeaderMap, message: &Value) -> Option<Response> {
        let header = |name: &str| headers.get(name).map(|value| value.to_str().expect("text"));
        let method = message["method"].as_str().expect("a method");
        if self.is_modern {
            if header("mcp-protocol-version") != Some(MODERN)
                || header("mcp-method") != Some(method)
            {
                return Some(error(400, message, -32_020));
            }
            return match method {
                "server/discover" => {
                    let result = json!({ "resultType": "complete", "supportedVersions": [MODERN], "instructions": "Be kind.",
                        "capabilities": { "tools": { "listChanged": true }, "resources": {} } });
                    Some(json_of(message, &result))
                }
                "tools/call" if header("mcp-name") != message["params"]["name"].as_str() => {
                    Some(error(400, message, -32_020))
                }
                "tools/call" => None,
                "tasks/get" | "tasks/update" | "tasks/cancel" => {
                    Some(self.about_task(headers, message))
                }
                _ => self
                    .question(message)
                    .or_else(|| Some(error(404, message, -32_601))),
            };
        }
        if method == "initialize" {
            let mut inner = self.lock();
            inner.opened += 1;
            let session = format!("session-{}", inner.opened);
            inner.sessions.insert(session.clone());
            let revision = inner.revision.unwrap_or(LEGACY);
            let result = json!({ "protocolVersion": revision, "capabilities": { "prompts": {} }, "serverInfo": { "name": "s", "version": "1" } });
            let mut response = json_of(message, &result);
            let session = session.parse().expect("a header");
            response.headers_mut().insert("mcp-session-id", session);
            return Some(response);
        }
        let Some(session) = header("mcp-session-id") else {
            return Some(error(400, message, -32_000));
        };
        if !self.lock().sessions.contains(session) {
            let (status, code) = self.lock().unknown_session.unwrap_or((404, -32_001));
            return Some(error(status, &json!({ "id": "server-error" }), code));
        }
        match method {
            "notifications/initialized" => Some(StatusCode::ACCEPTED.into_response()),
            "tools/call" => None,
            _ => self
                .question(message)
                .or_else(|| Some(error(200, message, -32_601))),
        }
    }
}

async fn end(State(upstream): State<Upstream>, headers: HeaderMap) -> StatusCode {
    let session = headers["mcp-session-id"].to_str().expect("text");
    if upstream.lock().revision.is_none() {
        assert_eq!(headers["mcp-protocol-version"], LEGACY);
    }
    let is_there = upstream.lock().sessions.remove(session);
    assert!(is_there, "it was opened");
    StatusCode::NO_CONTENT
}

async fn answer(State(upstream): State<Upstream>, headers: HeaderMap, body: Bytes) -> Response {
    let message: Value = serde_json::from_slice(&body).expect("JSON");
    upstream
        .lock()
        .seen
        .push((headers.clone(), message.clone()));
    if upstream.lock().is_down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if let Some(response) = upstream.other(&headers, &message) {
        return response;
    }
    let does = upstream.lock().next.pop_front();
    let does = does.unwrap_or_else(|| Does::Json(result("done")));
    let executes_nothing = matches!(
        does,
        Does::Error(..) | Does::Nameless(..) | Does::Status(_) | Does::Ask(_) | Does::Demand(_)
    );
    if !executes_nothing {
        let key = message["params"]["_meta"]["dev.oncegate/idempotency-key"].to_string();
        *upstream.lock().effects.entry(key).or_default() += 1;
    }
    let whole = |id: Value, result: &Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let (id, other) = (message["id"].clone(), json!("oncegate-another"));
    match does {
        Does::Json(result) | Does::Ask(result) => json_of(&message, &result),
        Does::Stream(result) => {
            let progress =
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
            let asks = json!({ "jsonrpc": "2.0", "id": id, "method": "sampling/createMessage" });
            events(&[progress, asks, whole(id, &result)])
        }
        Does::Late(time, result) => {
            let last = format!("data: {}\n\n", whole(id, &result));
            let first = stream::iter([Bytes::from_static(b":\n\n")]);
            let late = stream::once(async move {
                sleep(time).await;
                Bytes::from(last)
            });
            stream_of(first.chain(late))
        }
        Does::Progress(times) => {
            let token = message["params"]["_meta"]["progressToken"].clone();
            let note = |token: &Value, n: usize, said: &str| {
                let params = json!({ "progressToken": token, "progress": n, "message": said });
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
            };
            let notes = (0..times)
                .flat_map(|n| [note(&json!("another"), n, "theirs"), note(&token, n, "m")]);
            let mut all: Vec<Value> = notes.collect();
            all.push(whole(id, &result("done")));
            events(&all)
        }
        Does::Twice(second) => {
            let first = whole(id.clone(), &result("first"));
            events(&[first, whole(id, &second)])
        }
        Does::OtherId => axum::Json(whole(other, &result("other"))).into_response(),
        Does::RefuseAnother => {
            let other = json!({ "id": "oncegate-another" });
            error(400, &other, -32_600)
        }
        Does::OtherIdInStream => events(&[whole(other, &result("other"))]),
        Does::StreamThenEnd(bytes) => stream_of(stream::iter([Bytes::from_static(bytes)])),
        Does::StreamThenHang => {
            let first = stream::iter([Bytes::from_static(b":\n\n")]);
            let never = stream::once(async {
                sleep(Duration::from_secs(3_600)).await;
                Bytes::new()
            });
            stream_of(first.chain(never))
        }
        Does::Long(length) => {
            let piece = Bytes::from(vec![b'a'; 1 << 16]);
            let begin = stream::iter([Bytes::from_static(b"data: ")]);
            stream_of(begin.chain(stream::repeat(piece).take(length >> 16)))
        }
        Does::ExecuteThenError(code) => error(200, &message, code),
        Does::ExecuteThenRefuse(code) => error(400, &message, code),
        Does::ExecuteThenNameless(status, code) => error(status, &Value::Null, code),
        Does::ExecuteThenForget(status, code) => {
            upstream.forget_sessions(status, code);
            error(status, &Value::Null, code)
        }
        Does::HeldThenForget(held) => {
            held.notified().await;
            upstream.forget_sessions(404, -32_001);
            error(404, &Value::Null, -32_001)
        }
        Does::Text(result) => {
            let text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}");
            ([("content-type", "application/json")], text).into_response()
        }
        Does::Batch(result) => {
            let progress =
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
            axum::Json(json!([progress, whole(id, &result)])).into_response()
        }
        Does::BatchInStream(result) => {
            let progress =
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
            events(&[json!([progress, whole(id, &result)])])
        }
        Does::Task(id) if knows_tasks(&message) => {
            let task = json!({ "resultType": "task", "taskId": id, "status": "working", "pollIntervalMs": 100 });
            json_of(&message, &task)
        }
        Does::Task(_) => json_of(&message, &result("done")),
        Does::Error(status, code) => error(status, &message, code),
        Does::Demand(error) => {
            axum::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
                .into_response()
        }
        Does::Nameless(status, code) => error(status, &Value::Null, code),
        Does::ExecuteThenNothing => StatusCode::OK.into_response(),
        Does::ExecuteThenStatus(status) | Does::Status(status) => StatusCode::from_u16(status)
            .expect("a status")
            .into_response(),
    }
}

/// Whether the sender of a request says that it knows tasks.
fn knows_tasks(message: &Value) -> bool {
    let abilities = &message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    abilities["extensions"][TASKS].is_object()
}

fn json_of(message: &Value, result: &Value) -> Response {
    axum::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
}

fn error(status: u16, message: &Value, code: i64) -> Response {
    let status = StatusCode::from_u16(status).expect("a status");
    let error = json!({ "code": code, "message": "m" });
    let body = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
    (status, axum::Json(body)).into_response()
}

/// Events of a few bytes at a time.
fn events(messages: &[Value]) -> Response {
    let events = messages
        .iter()
        .map(|message| format!("event: message\r\ndata: {message}\r\n\r\n"));
    let bytes = events.collect::<String>().into_bytes();
    let pieces: Vec<Bytes> = bytes.chunks(7).map(Bytes::copy_from_slice).collect();
    stream_of(stream::iter(pieces))
}

fn stream_of(pieces: impl stream::Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = Body::from_stream(pieces.map(Ok::<_, Infallible>));
    ([("content-type", "text/event-stream")], body).into_response()
}
