//! `POST /v1/tools/{tool}/key`: the key of a call that is not made.

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use serde::Serialize;
use utoipa::ToSchema;

use super::{CallBody, OF_A_REQUEST, parse};
use crate::openapi::Route;
use crate::problem::Problem;
use crate::read::{On, ToolName, read_body};
use oncegate_engine::Would;

/// The route of the preview.
pub(crate) fn routes() -> Vec<Route> {
    let about =
        "The key that a request for a call gets, and the call that holds it; nothing is claimed";
    vec![
        Route::post("/v1/tools/{tool}/key", "preview_key", about, key)
            .path("tool", "The tool's name.")
            .call_headers()
            .body::<CallBody<'_>>()
            .problems(&OF_A_REQUEST)
            .json::<PreviewView>("The key, and what would become of the request."),
    ]
}

/// The answer that a request for a call would get.
#[derive(Serialize, ToSchema)]
#[schema(as = KeyPreview)]
struct PreviewView {
    tool: String,
    idempotency_key: String,
    #[schema(pattern = "^(runtime|business|model|derived)$")]
    key_source: &'static str,
    /// The `Idempotency-Key` that the tool gets. Null for a tool that reads: it gets a new one each time.
    tool_key: Option<String>,
    /// What would happen to the request, as far as its key decides; `ask`: it would wait for approval. Null for a tool that redacts arguments, unless the
    /// token may read calls: arguments of others could be guessed by it. Each such request counts as a new key.
    #[schema(required, pattern = "^(run|ask|wait|replay|refuse)$")]
    would: Option<&'static str>,
    /// The name of the problem that would be answered.
    problem: Option<&'static str>,
    /// The call that holds the key, if the caller may read it. `state` is its state.
    call_id: Option<String>,
    state: Option<&'static str>,
}

/// `POST /v1/tools/{tool}/key`
async fn key(
    on: On<ToolName>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PreviewView>, Problem> {
    let bytes = read_body(body, on.http.max_body).await?;
    let engine = &on.http.gateway.engine;
    let parse = || parse(on.target.0, &headers, &bytes);
    let request = engine.large.read_off_workers(bytes.len(), parse).await?;
    let preview = engine.preview(&on.caller, request).await?;
    let (intent, meets) = (preview.intent, preview.meets.as_ref());
    let (would, problem) = match preview.would {
        None => (None, None),
        Some(Would::Run) => (Some("run"), None),
        Some(Would::Ask) => (Some("ask"), None),
        Some(Would::Wait) => (Some("wait"), None),
        Some(Would::Replay) => (Some("replay"), None),
        Some(Would::Refuse(kind)) => (Some("refuse"), Some(Problem::from(kind).slug.as_str())),
    };
    Ok(Json(PreviewView {
        tool: intent.tool.clone(),
        idempotency_key: intent.key.clone(),
        key_source: intent.key_source.as_str(),
        tool_key: preview.has_tool_key.then(|| intent.lookup.for_tool()),
        would,
        problem,
        call_id: meets.map(|record| record.intent.call_id.to_string()),
        state: meets.map(|record| record.state.as_str()),
    }))
}
