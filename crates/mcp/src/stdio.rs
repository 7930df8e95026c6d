//! One MCP client on standard input and output: each request is a line, and each answer is a line.
//!
//! Each message goes through the same router as a request over HTTP, so that the same rules hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::BodyExt;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::message::{INTERNAL_ERROR, INVALID_REQUEST};
use crate::state::FromStdin;
use oncegate_rules::mcp::lines::{Line, Lines, one_line};
use oncegate_rules::mcp::revision::headers_of;
use oncegate_rules::mcp::sse::Decoder;

/// How many messages are handled at a time; further ones wait in the pipe.
const MOST_AT_ONCE: usize = 64;
/// The bytes of one read.
const PIECE: usize = 64 << 10;
/// How long the last answers may take: longer than the longest wait for a call.
const LAST_ANSWERS: Duration = Duration::from_secs(150);
/// The longest message that is searched for a cancellation before its turn, in bytes.
const MAX_CANCELLATION: usize = 4 << 10;
/// How much input is read ahead, in bytes.
const AHEAD: usize = 256 << 10;

/// The router, and the pipe to the client.
struct Client<W> {
    router: Router,
    path: Uri,
    output: AsyncMutex<W>,
    /// The running requests, by their ids as written.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// Cancelled when the client no longer reads.
    closed: CancellationToken,
}

/// Reads the input ahead, so that its end is seen while nothing takes it.
///
/// `ended` is cancelled then.
pub fn ahead(
    mut input: impl AsyncRead + Unpin + Send + 'static,
    ended: CancellationToken,
) -> impl AsyncRead + Unpin {
    let (mut writes, reads) = tokio::io::duplex(AHEAD);
    tokio::spawn(async move {
        // Either way nothing more comes.
        tokio::io::copy(&mut input, &mut writes).await.ok();
        ended.cancel();
    });
    reads
}

/// Answers messages until the input ends, `stop` is cancelled, or the client no longer reads.
///
/// Then it waits for the answers to all messages so far. Messages are handled in parallel, so their order
/// is not kept. `ended` is called when the last message has been read.
pub async fn serve(
    router: Router,
    path: Uri,
    max_line: usize,
    mut input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    stop: &CancellationToken,
    ended: impl FnOnce(),
) {
    let client = Arc::new(Client {
        router,
        path,
        output: AsyncMutex::new(output),
        running: Mutex::default(),
        closed: CancellationToken::new(),
    });
    let (tasks, permits) = (TaskTracker::new(), Arc::new(Semaphore::new(MOST_AT_ONCE)));
    let (mut lines, mut piece) = (Lines::new(max_line), vec![0; PIECE]);
    loop {
        let read = tokio::select! {
            read = input.read(&mut piece) => read.unwrap_or(0),
            () = client.closed.cancelled() => 0,
            () = stop.cancelled() => 0,
        };
        let mut ended = lines.push(&piece[..read]);
        if read == 0 {
            ended.extend(lines.end());
        }
        for line in ended {
            // Needs no permit: a cancellation must arrive even if all permits are taken.
            if client.is_cancellation(&line) {
                continue;
            }
            let Ok(permit) = permits.clone().acquire_owned().await else {
                break;
            };
            let client = client.clone();
            tasks.spawn(async move {
                client.handle(line).await;
                drop(permit);
            });
        }
        if read == 0 {
            break;
        }
    }
    ended();
    tasks.close();
    // A client that lives on without reading must not keep the process open.
    timeout(LAST_ANSWERS, tasks.wait()).await.ok();
}

impl<W: AsyncWrite + Unpin> Client<W> {
    async fn handle(&self, line: Line) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong(_) => {
                let why = "Invalid request: the line is too long; nothing was run";
                return self.refuse(None, INVALID_REQUEST, why).await;
            }
        };
        // The router refuses what is not JSON.
        let message: Value = serde_json::from_slice(&line).unwrap_or_default();
        if is_response(&message) {
            return;
        }
        let id = message.get("id").map(Value::to_string);
        let cancelled = self.closed.child_token();
        if let Some(id) = &id {
            self.running().insert(id.clone(), cancelled.clone());
        }
        self.answer(line, &message, &cancelled).await;
        if let Some(id) = id {
            self.running().remove(&id);
        }
    }

    /// Whether a message is a cancellation. Cancels the request that it names.
    fn is_cancellation(&self, line: &Line) -> bool {
        let Line::Whole(line) = line else {
            return false;
        };
        if line.len() > MAX_CANCELLATION {
            return false;
        }
        let message: Value = serde_json::from_slice(line).unwrap_or_default();
        if message["method"] != "notifications/cancelled" {
            return false;
        }
        let id = message["params"]["requestId"].to_string();
        if let Some(request) = self.running().get(&id) {
            request.cancel();
        }
        true
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the router, and writes its answer.
    ///
    /// A cancelled request gets no answer; its call goes on.
    async fn answer(&self, line: Vec<u8>, message: &Value, cancelled: &CancellationToken) {
        let answering = self.router.clone().oneshot(self.request(line, message));
        let Ok(response) = tokio::select! {
            () = cancelled.cancelled() => return,
            response = answering => response,
        };
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.map_or(&[][..], HeaderValue::as_bytes).to_owned();
        if kind.starts_with(b"text/event-stream") {
            self.pass_events(response, cancelled).await;
        } else if kind.starts_with(b"application/json") {
            self.pass(response).await;
        } else if !response.status().is_success() {
            // A problem: the request was refused before its JSON-RPC message was read.
            let body = response.into_body().collect().await;
            let problem = body.map(|body| body.to_bytes()).unwrap_or_default();
            let problem: Value = serde_json::from_slice(&problem).unwrap_or_default();
            let why = problem["detail"].as_str().unwrap_or("it was refused");
            let id = message.get("id").map(Value::to_string);
            self.refuse(id, INTERNAL_ERROR, why).await;
        }
    }

    fn request(&self, line: Vec<u8>, message: &Value) -> Request<Body> {
        let mut request = Request::new(Body::from(line));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        request.extensions_mut().insert(FromStdin);
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, both);
        for (name, text) in headers_of(message) {
            if let Ok(value) = text.parse() {
                headers.insert(name, value);
            }
        }
        request
    }

    /// Writes a message piece by piece.
    async fn pass(&self, response: Response<Body>) {
        let mut body = response.into_body();
        let mut output = self.output.lock().await;
        while let Some(Ok(frame)) = body.frame().await {
            let piece = frame.into_data().unwrap_or_default();
            let mut piece = one_line(&piece);
            piece.pop();
            if output.write_all(&piece).await.is_err() {
                return self.closed.cancel();
            }
        }
        if output.write_all(b"\n").await.is_err() || output.flush().await.is_err() {
            self.closed.cancel();
        }
    }

    async fn pass_events(&self, response: Response<Body>, cancelled: &CancellationToken) {
        let (mut body, mut events) = (response.into_body(), Decoder::default());
        loop {
            let frame = tokio::select! {
                () = cancelled.cancelled() => return,
                frame = body.frame() => frame,
            };
            let Some(Ok(frame)) = frame else { return };
            let piece: Bytes = frame.into_data().unwrap_or_default();
            for event in events.push(&piece) {
                self.write(&event).await;
            }
        }
    }

    async fn refuse(&self, id: Option<String>, code: i32, why: &str) {
        let id = id.and_then(|id| RawValue::from_string(id).ok());
        let error = json!({ "code": code, "message": why });
        let answer = json!({ "jsonrpc": "2.0", "id": id, "error": error });
        self.write(answer.to_string().as_bytes()).await;
    }

    async fn write(&self, message: &[u8]) {
        let mut output = self.output.lock().await;
        let line = one_line(message);
        if output.write_all(&line).await.is_err() || output.flush().await.is_err() {
            self.closed.cancel();
        }
    }
}

/// Whether a message is a response. The gateway asks a client nothing, so it has no use for one.
///
/// Its id is one of the server's: a request of the client with an equal id is another one.
fn is_response(message: &Value) -> bool {
    let has = |member| message.get(member).is_some();
    (has("result") || has("error")) && !has("method")
}
