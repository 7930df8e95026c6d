//! The programs that the gateway is compared with. Each is a process of its own: this binary, run with a program's name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderMap};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::Fallible;

/// The tool's result, up to its note.
const RESULT: &str = r#"{"order_id":"ord_7fd1c2","status":"created","total":1999,"note":""#;
/// How long the slow tool takes.
pub(super) const SLOW: Duration = Duration::from_secs(20);
/// How long the bare gateway keeps a key, in seconds.
const KEPT: u64 = 3_600;

/// Runs the program of this name until the process is killed.
pub(super) async fn run(name: &str, listen: SocketAddr, beside: &str) -> Fallible<()> {
    let router = match name {
        "tool" => tool(),
        "null" => Router::new().route("/do", post(async |_: Bytes| answer())),
        "forward" => forward(beside)?,
        "bare" => bare(beside).await?,
        other => return Err(format!("there is no program {other}").into()),
    };
    let listener = TcpListener::bind(listen).await?;
    Ok(axum::serve(listener, router).await?)
}

/// The tool. It answers at once, and counts its effects.
fn tool() -> Router {
    let count = Arc::new(AtomicU64::new(0));
    let work = async |State(count): State<Arc<AtomicU64>>, _args: Bytes| {
        count.fetch_add(1, Relaxed);
        answer()
    };
    let slow = async |_args: Bytes| {
        sleep(SLOW).await;
        answer()
    };
    let read = async |State(count): State<Arc<AtomicU64>>| Json(count.load(Relaxed));
    Router::new()
        .route("/do", post(work))
        .route("/slow", post(slow))
        .route("/count", get(read))
        .with_state(count)
}

fn answer() -> Response {
    let json = HeaderValue::from_static("application/json");
    let body = format!("{RESULT}{:.<230}\"}}", "as long as usual ");
    ([(CONTENT_TYPE, json)], body).into_response()
}

/// A proxy that only passes requests on.
fn forward(tool: &str) -> Fallible<Router> {
    let passes = Passes::new(tool)?;
    let pass = async |State(passes): State<Passes>, body: Bytes| match passes.pass(body).await {
        Ok(body) => body.into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    };
    Ok(Router::new().route("/do", post(pass)).with_state(passes))
}

/// Sends requests to the tool.
#[derive(Clone)]
struct Passes {
    client: reqwest::Client,
    url: String,
}

impl Passes {
    fn new(tool: &str) -> Fallible<Self> {
        let client = reqwest::Client::builder().no_proxy().http1_only().build()?;
        let url = format!("http://{tool}/do");
        Ok(Self { client, url })
    }

    async fn pass(&self, body: Bytes) -> reqwest::Result<Bytes> {
        let request = self.client.post(&self.url).body(body);
        let request = request.header(CONTENT_TYPE, "application/json");
        request.send().await?.error_for_status()?.bytes().await
    }
}

#[derive(Clone)]
struct Bare {
    passes: Passes,
    redis: MultiplexedConnection,
}

/// The bare gateway. It claims a key with `SET NX EX` and draws a token with `INCR`, in one pipeline; calls the tool; and
/// keeps the result. It has no ledger and no durability, and does not record failures.
async fn bare(beside: &str) -> Fallible<Router> {
    let (tool, redis) = beside.split_once(',').ok_or("a tool and a Redis")?;
    let client = redis::Client::open(redis)?;
    let bare = Bare {
        passes: Passes::new(tool)?,
        redis: client.get_multiplexed_async_connection().await?,
    };
    let call = async |State(bare): State<Bare>, headers: HeaderMap, body: Bytes| {
        let failed = |_| StatusCode::BAD_GATEWAY.into_response();
        bare.call(&headers, &body).await.unwrap_or_else(failed)
    };
    Ok(Router::new()
        .route("/v1/tools/do/calls", post(call))
        .with_state(bare))
}

impl Bare {
    async fn call(mut self, headers: &HeaderMap, body: &[u8]) -> Fallible<Response> {
        let key = headers.get("idempotency-key").ok_or("no key")?.to_str()?;
        let request: Value = serde_json::from_slice(body)?;
        let session = request["session_id"].as_str().unwrap_or_default();
        let (name, tokens) = (format!("bare:{key}"), format!("tokens:{session}"));
        let mut claim = redis::pipe();
        claim.cmd("SET").arg(&name).arg("running").arg("NX");
        claim.arg("EX").arg(KEPT);
        claim.cmd("INCR").arg(tokens);
        let (claimed, token): (Option<String>, u64) = claim.query_async(&mut self.redis).await?;
        if claimed.is_none() {
            let get = redis::cmd("GET").arg(&name).clone();
            let kept: Vec<u8> = get.query_async(&mut self.redis).await?;
            return Ok(outcome("replayed", kept));
        }
        let args = serde_json::to_vec(&request["args"])?;
        let result = self.passes.pass(args.into()).await?;
        let result: Value = serde_json::from_slice(&result)?;
        let answer = json!({ "status": "ok", "result": result, "fencing": token });
        let answer = serde_json::to_vec(&answer)?;
        let mut keep = redis::cmd("SET");
        keep.arg(&name).arg(&answer).arg("EX").arg(KEPT);
        keep.query_async::<()>(&mut self.redis).await?;
        Ok(outcome("executed", answer))
    }
}

fn outcome(outcome: &'static str, body: Vec<u8>) -> Response {
    let headers = [
        ("content-type", "application/json"),
        ("gateway-outcome", outcome),
    ];
    (headers, body).into_response()
}
