//! Doors for those who run the gateway: health, readiness, metrics. They tell nothing of any tenant.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{Http, problem};

/// The process lives.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether write tools may be called, and if not, why.
pub(super) async fn readyz(State(http): State<Http>) -> Response {
    let readiness = http.gateway.readiness().await;
    let ready = readiness.reasons.is_empty();
    let status = if ready { StatusCode::OK } else { problem::NOT_READY };
    let body =
        json!({ "ready": ready, "durability": readiness.durability.as_str(), "reasons": readiness.reasons });
    (status, Json(body)).into_response()
}

/// Prometheus text exposition.
pub(super) async fn metrics(State(http): State<Http>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], http.gateway.scrape().await)
        .into_response()
}
