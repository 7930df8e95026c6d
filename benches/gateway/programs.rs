//! The programs that the gateway is compared with. Each is a process of its own: this binary, run with a program's name.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::passes::Passes;
use super::{Fallible, bare};

/// The tool's result, up to its note.
const RESULT: &str = r#"{"order_id":"ord_7fd1c2","status":"created","total":1999,"note":""#;
/// How long the slow tool takes.
pub(super) const SLOW: Duration = Duration::from_secs(20);

/// Runs the program of this name until the process is killed.
pub(super) async fn run(name: &str, listen: SocketAddr, beside: &str) -> Fallible<()> {
    let router = match name {
        "tool" => tool(),
        "null" => Router::new().route("/do", post(async |_: Bytes| answer())),
        "forward" => forward(beside),
        "bare" => bare::router(beside).await?,
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
fn forward(tool: &str) -> Router {
    let pass = async |State(passes): State<Arc<Passes>>, body: Bytes| match passes.pass(body).await
    {
        Ok(body) => body.into_response(),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    };
    let passes = Arc::new(Passes::new(tool));
    Router::new().route("/do", post(pass)).with_state(passes)
}
