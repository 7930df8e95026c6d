//! Whether a tool is paused; pausing and resuming it.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::auth::Known;
use super::ledger::{EventView, time};
use super::problem::Problem;
use super::read::{ToolName, read_optional_reason, read_reason};
use crate::gateway::ToolState;

/// `GET /v1/tools/{tool}`
pub(super) async fn show(
    State(http): State<Http>,
    Known(caller): Known,
    ToolName(tool): ToolName,
) -> Result<Response, Problem> {
    let state = http.gateway.pauses.show_tool(&caller, &tool).await?;
    Ok(Json(ToolView::of(&tool, &state)).into_response())
}

/// `POST /v1/tools/{tool}/pause`
pub(super) async fn pause(
    State(http): State<Http>,
    Known(caller): Known,
    ToolName(tool): ToolName,
    body: Body,
) -> Result<Response, Problem> {
    let reason = read_reason(body, http.max_body).await?;
    let pauses = &http.gateway.pauses;
    let state = pauses.set_paused(&caller, &tool, true, &reason).await?;
    Ok(Json(ToolView::of(&tool, &state)).into_response())
}

/// `POST /v1/tools/{tool}/resume`
pub(super) async fn resume(
    State(http): State<Http>,
    Known(caller): Known,
    ToolName(tool): ToolName,
    body: Body,
) -> Result<Response, Problem> {
    let reason = read_optional_reason(body, http.max_body).await?;
    let pauses = &http.gateway.pauses;
    let state = pauses.set_paused(&caller, &tool, false, &reason).await?;
    Ok(Json(ToolView::of(&tool, &state)).into_response())
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

impl<'a> ToolView<'a> {
    fn of(tool: &'a str, state: &'a ToolState) -> Self {
        let paused = state.paused.as_ref();
        Self {
            tool,
            paused: state.since.is_some(),
            since: state.since.map(time),
            by: paused.map(|entry| entry.by.as_str()),
            reason: paused.map(|entry| entry.detail.as_str()),
            events: state.events.iter().map(EventView::of).collect(),
        }
    }
}
