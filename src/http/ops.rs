//! Doors for those who run the gateway: health, readiness, metrics. They tell nothing of any tenant.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Known;
use super::calls::read_body;
use super::problem::{self, Problem};
use super::{Http, MaxBody};

/// The longest reason that a person may give, in bytes.
const MAX_REASON: usize = 1_000;

/// Why a person does something.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    /// A sentence in one line.
    #[schema(max_length = 1000, pattern = r"^[^\x00-\x1f\x7f-\x9f]*[!-~][^\x00-\x1f\x7f-\x9f]*$")]
    reason: String,
}

/// Why a person does something that needs no reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OptionalReason {
    /// A sentence in one line.
    #[schema(max_length = 1000, pattern = r"^[^\x00-\x1f\x7f-\x9f]*[!-~][^\x00-\x1f\x7f-\x9f]*$")]
    reason: Option<String>,
}

/// What a connection is served with for which there is no place: whoever runs the gateway must still see it.
pub fn spare_router(http: Http) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(problem::too_many_connections)
        .with_state(http)
}

/// The process lives.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether calls may be claimed.
#[derive(Serialize, ToSchema)]
#[schema(as = Readiness)]
pub(super) struct ReadinessView {
    ready: bool,
    /// What the store is found to be.
    #[schema(required, pattern = "^(strict|bounded|relaxed)$")]
    durability: Option<&'static str>,
    /// Why no call may be claimed; empty if they may.
    reasons: Vec<String>,
    /// What weakens the promise and is allowed as the store is configured.
    warnings: Vec<String>,
}

/// Whether write tools may be called, and if not, why.
pub(super) async fn readyz(State(http): State<Http>) -> Response {
    let readiness = http.gateway.readiness().await;
    let ready = readiness.reasons.is_empty();
    let status = if ready { StatusCode::OK } else { problem::NOT_READY };
    let body = ReadinessView {
        ready,
        durability: readiness.durability.map(|durability| durability.as_str()),
        reasons: readiness.reasons.into_iter().map(|reason| reason.text).collect(),
        warnings: readiness.warnings.into_iter().map(|reason| reason.text).collect(),
    };
    (status, Json(body)).into_response()
}

/// Prometheus text exposition.
pub(super) async fn metrics(State(http): State<Http>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], http.gateway.scrape().await)
        .into_response()
}

/// The store counts as whole again.
#[derive(Serialize, ToSchema)]
pub(super) struct LossAccepted {
    accepted: bool,
    calls_now_unknown: usize,
}

/// `POST /v1/store/accept-loss`: a person accepts that the store has lost data.
pub(super) async fn accept_loss(
    State(http): State<Http>,
    Known(caller): Known,
    body: Body,
) -> Result<Response, Problem> {
    let reason = read_reason(body, http.max_body).await?;
    let marked = http.gateway.accept_loss(caller, reason).await?;
    Ok(Json(LossAccepted { accepted: true, calls_now_unknown: marked }).into_response())
}

/// Why a person does something: `{"reason": "…"}`.
pub(super) async fn read_reason(body: Body, max_body: MaxBody) -> Result<String, Problem> {
    let bytes = read_body(body, max_body).await?;
    let body: Reason = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    reason(body.reason)
}

/// The same of an act that needs none: then the body may be empty, and so is the reason.
pub(super) async fn read_optional_reason(body: Body, max_body: MaxBody) -> Result<String, Problem> {
    let bytes = read_body(body, max_body).await?;
    if bytes.is_empty() {
        return Ok(String::new());
    }
    let body: OptionalReason = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    body.reason.map_or_else(|| Ok(String::new()), reason)
}

/// A reason that can be stored, logged and read.
pub(super) fn reason(reason: String) -> Result<String, Problem> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON || reason.chars().any(char::is_control) {
        return Err(Problem::invalid_request("reason must be a sentence of at most 1000 bytes in one line"));
    }
    Ok(reason)
}
