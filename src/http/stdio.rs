//! One MCP client on standard input and output: a line is a request, and its answer a line.
//!
//! Each message goes to the same door as a request over HTTP, so that the same rules hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Guard, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::BodyExt;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::core::mcp::lines::{Line, Lines, one_line};
use crate::core::mcp::revision::headers_of;
use crate::core::mcp::sse::Decoder;

/// Messages that are handled at once; more wait in the pipe.
const AT_ONCE: usize = 64;
/// Bytes of one read.
const PIECE: usize = 64 << 10;
/// How long the last answers may take: longer than the longest wait for a call.
const LAST_ANSWERS: Duration = Duration::from_secs(150);
/// The longest message that is read before there is a place for it, in bytes.
const MAX_CANCELLATION: usize = 4 << 10;
/// The JSON-RPC code of an internal error.
const INTERNAL_ERROR: i32 = -32_603;
const INVALID_REQUEST: i32 = -32_600;

/// The router, and the client's end of the pipe.
struct Client<W> {
    door: Router,
    path: Uri,
    output: Mutex<W>,
    /// Requests under way by their ids, as written.
    under_way: Guard<HashMap<String, CancellationToken>>,
    /// Cancelled when the client reads no more.
    gone: CancellationToken,
}

/// Answers messages until the input ends, or `stop`, and all of them are answered.
///
/// It also ends when the client reads no more. Messages that come at once may be executed in any
/// order.
///
/// `ended` is called when no more messages are read.
pub async fn serve(
    door: Router,
    path: Uri,
    max_line: usize,
    mut input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
    stop: &CancellationToken,
    ended: impl FnOnce(),
) {
    let client = Arc::new(Client {
        door,
        path,
        output: Mutex::new(output),
        under_way: Guard::default(),
        gone: CancellationToken::new(),
    });
    let (tasks, places) = (TaskTracker::new(), Arc::new(Semaphore::new(AT_ONCE)));
    let (mut lines, mut piece) = (Lines::new(max_line), vec![0; PIECE]);
    loop {
        let read = tokio::select! {
            read = input.read(&mut piece) => read.unwrap_or(0),
            () = client.gone.cancelled() => 0,
            () = stop.cancelled() => 0,
        };
        let mut ended = lines.push(&piece[..read]);
        if read == 0 {
            ended.extend(lines.end());
        }
        for line in ended {
            // Also when there is no place for more.
            if client.is_cancellation(&line) {
                continue;
            }
            let Ok(place) = places.clone().acquire_owned().await else {
                break;
            };
            let client = client.clone();
            tasks.spawn(async move {
                client.take(line).await;
                drop(place);
            });
        }
        if read == 0 {
            break;
        }
    }
    ended();
    tasks.close();
    // A client that lives and reads no more keeps nothing open for ever.
    timeout(LAST_ANSWERS, tasks.wait()).await.ok();
}

impl<W: AsyncWrite + Unpin> Client<W> {
    async fn take(&self, line: Line) {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong(_) => {
                let why = "Invalid request: the line is too long; nothing was run";
                return self.refuse(None, INVALID_REQUEST, why).await;
            }
        };
        // What is no JSON is told so at the door.
        let message: Value = serde_json::from_slice(&line).unwrap_or_default();
        let id = message.get("id").map(Value::to_string);
        let cancelled = self.gone.child_token();
        if let Some(id) = &id {
            self.under_way().insert(id.clone(), cancelled.clone());
        }
        self.answer(line, &message, &cancelled).await;
        if let Some(id) = id {
            self.under_way().remove(&id);
        }
    }

    /// Whether a message cancels another request.
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
        if let Some(request) = self.under_way().get(&id) {
            request.cancel();
        }
        true
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the router, and writes its answer.
    ///
    /// A cancelled request is not waited for; its call goes on.
    async fn answer(&self, line: Vec<u8>, message: &Value, cancelled: &CancellationToken) {
        let asked = self.door.clone().oneshot(self.request(line, message));
        let response = tokio::select! {
            () = cancelled.cancelled() => return,
            response = asked => match response {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.map_or(&[][..], HeaderValue::as_bytes).to_owned();
        if kind.starts_with(b"text/event-stream") {
            self.pass_events(response, cancelled).await;
        } else if kind.starts_with(b"application/json") {
            self.pass(response).await;
        } else if !response.status().is_success() {
            // It was refused before it was looked into.
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
                return self.gone.cancel();
            }
        }
        if output.write_all(b"\n").await.is_err() || output.flush().await.is_err() {
            self.gone.cancel();
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
            self.gone.cancel();
        }
    }
}
