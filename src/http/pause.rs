//! The pause of a tool: show, pause and resume.

use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::ledger::{EventView, time};
use super::problem::Problem;
use super::read::{Act, On, ToolName, read_optional_reason};
use crate::gateway::ToolState;

/// `GET /v1/tools/{tool}`
pub(super) async fn show(on: On<ToolName>) -> Result<Response, Problem> {
    let (pauses, ToolName(tool)) = (&on.http.gateway.pauses, &on.target);
    let state = pauses.show_tool(&on.caller, tool).await?;
    Ok(shown(tool, &state))
}

/// `POST /v1/tools/{tool}/pause`
pub(super) async fn pause(act: Act<ToolName>) -> Result<Response, Problem> {
    let (pauses, ToolName(tool)) = (&act.http.gateway.pauses, &act.target);
    let state = pauses
        .set_paused(&act.caller, tool, true, &act.reason)
        .await?;
    Ok(shown(tool, &state))
}

/// `POST /v1/tools/{tool}/resume`
pub(super) async fn resume(on: On<ToolName>, body: Body) -> Result<Response, Problem> {
    let reason = read_optional_reason(body, on.http.max_body).await?;
    let (pauses, ToolName(tool)) = (&on.http.gateway.pauses, &on.target);
    let state = pauses.set_paused(&on.caller, tool, false, &reason).await?;
    Ok(shown(tool, &state))
}

/// A tool, and what persons have done to it.
#[derive(Serialize, ToSchema)]
#[schema(as = ToolState)]
pub(super) struct ToolView<'a> {
    tool: &'a str,
    paused: bool,
    #[schema(required, format = DateTime)]
    since: Option<String>,
    /// Who paused it; for administrators only.
    #[schema(required)]
    by: Option<&'a str>,
    /// Why it is paused; for administrators only.
    #[schema(required)]
    reason: Option<&'a str>,
    /// Oldest first; of many the newest. For administrators only.
    events: Vec<EventView<'a>>,
}

fn shown(tool: &str, state: &ToolState) -> Response {
    let paused = state.paused.as_ref();
    Json(ToolView {
        tool,
        paused: state.since.is_some(),
        since: state.since.map(time),
        by: paused.map(|entry| entry.by.as_str()),
        reason: paused.map(|entry| entry.detail.as_str()),
        events: state.events.iter().map(EventView::of).collect(),
    })
    .into_response()
}
