//! The routes of persons' acts on anomalies.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::Http;
use super::auth::Known;
use super::problem::Problem;
use super::read::read_reason;
use super::reconciliations::AnomalyView;
use crate::core::reconcile::anomaly::Request;
use crate::gateway::ErrorKind;

type Named = Result<Path<(String, String)>, PathRejection>;

/// `POST /v1/reconciliations/{name}/anomalies/{id}/compensate`
pub(super) async fn undo(
    state: State<Http>,
    known: Known,
    anomaly: Named,
    body: Body,
) -> Result<Response, Problem> {
    act(state, known, anomaly, Request::Compensate, body).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/ignore`
pub(super) async fn ignore(
    state: State<Http>,
    known: Known,
    anomaly: Named,
    body: Body,
) -> Result<Response, Problem> {
    act(state, known, anomaly, Request::Ignore, body).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/adopt`
pub(super) async fn adopt(
    state: State<Http>,
    known: Known,
    anomaly: Named,
    body: Body,
) -> Result<Response, Problem> {
    act(state, known, anomaly, Request::Adopt, body).await
}

async fn act(
    State(http): State<Http>,
    Known(caller): Known,
    anomaly: Named,
    request: Request,
    body: Body,
) -> Result<Response, Problem> {
    let unknown = |_| Problem::from(ErrorKind::UnknownReconciliation);
    let Path((name, id)) = anomaly.map_err(unknown)?;
    let reason = read_reason(body, http.max_body).await?;
    let reconciler = &http.gateway.reconciler;
    let acting = reconciler.act_on_anomaly(&caller, &name, &id, request, &reason);
    let listed = acting.await?;
    Ok(Json(AnomalyView::of(&listed)).into_response())
}
