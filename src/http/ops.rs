//! Doors for those who run the gateway: health, readiness, metrics. They tell nothing of any tenant.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::auth::Known;
use super::problem::{self, Problem};
use super::read::read_reason;
use crate::gateway::AFTER_LOSS;

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
    /// What a person has to look at now.
    notice: &'static str,
}

/// `POST /v1/store/accept-loss`: a person accepts that the store has lost data.
pub(super) async fn accept_loss(
    State(http): State<Http>,
    Known(caller): Known,
    body: Body,
) -> Result<Response, Problem> {
    let reason = read_reason(body, http.max_body).await?;
    let marked = http.gateway.accept_loss(caller, reason).await?;
    Ok(Json(LossAccepted { accepted: true, calls_now_unknown: marked, notice: AFTER_LOSS }).into_response())
}
