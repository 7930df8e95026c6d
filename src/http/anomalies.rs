//! The routes of persons' acts on anomalies.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request};
use axum::response::{IntoResponse, Response};
use axum::{Json, RequestExt};

use super::Http;
use super::auth::Known;
use super::problem::Problem;
use super::read::read_reason;
use super::reconciliations::AnomalyView;
use crate::core::caller::Caller;
use crate::core::reconcile::anomaly;
use crate::gateway::ErrorKind;

/// A person's act on an anomaly, and why.
pub(super) struct Act {
    http: Http,
    caller: Caller,
    name: String,
    id: String,
    reason: String,
}

impl FromRequest<Http> for Act {
    type Rejection = Problem;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Problem> {
        let Known(caller) = request.extract_parts_with_state(http).await?;
        let named: Result<Path<(String, String)>, PathRejection> = request.extract_parts().await;
        let Path((name, id)) = named.map_err(|_| ErrorKind::UnknownReconciliation)?;
        Ok(Self {
            http: http.clone(),
            caller,
            name,
            id,
            reason: read_reason(request.into_body(), http.max_body).await?,
        })
    }
}

impl Act {
    async fn make(self, request: anomaly::Request) -> Result<Response, Problem> {
        let reconciler = &self.http.gateway.reconciler;
        let (name, id, reason) = (&self.name, &self.id, &self.reason);
        let acting = reconciler.act_on_anomaly(&self.caller, name, id, request, reason);
        Ok(Json(AnomalyView::of(&acting.await?)).into_response())
    }
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/compensate`
pub(super) async fn undo(act: Act) -> Result<Response, Problem> {
    act.make(anomaly::Request::Compensate).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/ignore`
pub(super) async fn ignore(act: Act) -> Result<Response, Problem> {
    act.make(anomaly::Request::Ignore).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/adopt`
pub(super) async fn adopt(act: Act) -> Result<Response, Problem> {
    act.make(anomaly::Request::Adopt).await
}
