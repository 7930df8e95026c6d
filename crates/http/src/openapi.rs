//! The OpenAPI 3.1 document of all routes, for SDKs and fuzzers.
//!
//! The types that handlers read and write give the bodies; the table of problems gives the statuses. A new route needs an
//! entry in [`document`]; `tests/it/openapi.rs` fails if one is missing. Paths below `/proxy` are described by the API's own
//! document.

mod door; // the description of one route

use std::sync::LazyLock;

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::IntoResponse;
use utoipa::openapi::OpenApi;

use self::door::Door;
use super::headers::{CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED};
use super::problem::{self, Slug};
use super::{
    audit, calls, ledger, listing, many, mcp, ops, pages, read, reconciliations, sagas, sessions,
    tools,
};

/// Problems of a request before its call is known.
const OF_A_REQUEST: [Slug; 8] = [
    Slug::KeyMissing,
    Slug::KeyInvalid,
    Slug::KeyConflict,
    Slug::UnknownTool,
    Slug::UnknownPath,
    Slug::InvalidArguments,
    Slug::StoreUnavailable,
    Slug::ShuttingDown,
];
/// Problems of a call.
const OF_A_CALL: [Slug; 17] = [
    Slug::CallInProgress,
    Slug::WrongState,
    Slug::OutcomeUnknown,
    Slug::SessionBusy,
    Slug::SessionFrozen,
    Slug::StaleFencingToken,
    Slug::PossibleDuplicate,
    Slug::KeyExpired,
    Slug::KeyReused,
    Slug::InputRequired,
    Slug::ToolRejected,
    Slug::RateLimited,
    Slug::BudgetExceeded,
    Slug::ToolUnreachable,
    Slug::ToolUnavailable,
    Slug::ResultUnavailable,
    Slug::ToolPaused,
];

/// `GET /openapi.json`
///
/// The document names no tool of this gateway, so it needs no token.
pub(super) async fn show() -> impl IntoResponse {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_json().unwrap_or_default());
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// The document, in the order of the router.
pub fn document() -> OpenApi {
    let on_one = |door: Door| door.problems(&[Slug::UnknownPath, Slug::StoreUnavailable]);
    let on_tool = |door: Door| {
        let door = door.path("tool", "The tool's name.");
        on_one(door.problems(&[Slug::UnknownTool, Slug::WrongState]))
            .json::<tools::ToolStateView<'_>>("The tool, and what was done to it.")
    };
    let on_call = |door: Door| {
        let door = door.path("id", "The call's id.");
        on_one(door.problems(&[Slug::UnknownCall]))
    };
    let of_saga = |door: Door| {
        door.params::<read::TenantQuery>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::UnknownSaga,
                Slug::StoreUnavailable,
            ])
            .json::<sagas::SagaView<'_>>("The saga with its calls, as it is now.")
    };
    let on_saga =
        |door: Door| of_saga(door.path("id", "The saga's id.")).problems(&[Slug::UnknownPath]);
    let saga_named = |path, id| of_saga(Door::get(path, id, "A saga that has this name"));
    let on_reconciliation = |door: Door| {
        let door = door.path("name", "The reconciliation's name.");
        on_one(door.problems(&[Slug::InvalidRequest, Slug::UnknownReconciliation]))
    };
    let report = "What a run has found, and what is done about it.";
    let on_session = |door: Door| {
        let door = door.path("id", "The session's id.");
        on_one(door.params::<read::TenantQuery>()).problems(&[Slug::InvalidRequest])
    };
    let on_anomaly = |door: Door| {
        on_reconciliation(door.path("id", "The anomaly's id."))
            .json::<reconciliations::AnomalyView<'_>>("The anomaly, as it is now.")
    };
    // An act of an operator: it needs a reason, and a state that allows it.
    let act = |path, id, summary| {
        Door::post(path, id, summary)
            .body::<read::Reason>()
            .problems(&[Slug::WrongState])
    };
    Door::document([
        Door::open("/", "welcome", "What this is, and where to look; HTML for a browser")
            .json::<pages::WelcomeView>("Where to look."),
        Door::get("/v1/tools", "list_tools", "The tools that this token may call, for a runtime or a model")
            .params::<tools::Wanted>()
            .problems(&[Slug::InvalidRequest])
            .json::<tools::ToolList>("The tools by name."),
        on_tool(Door::get("/v1/tools/{tool}", "show_tool", "Whether a tool is paused; for administrators also the last acts of operators on it")),
        Door::post("/v1/tools/{tool}/calls", "call_tool", "Run a call, or get what is known of it")
            .path("tool", "The tool's name.")
            .call_headers()
            .body::<calls::CallBody<'_>>()
            .problems(&OF_A_REQUEST)
            .problems(&OF_A_CALL)
            .json_with::<calls::ResultView<'_>>(
                200,
                "The tool's result, new or stored.",
                &[&IDEMPOTENCY_KEY, &CALL_ID, &GATEWAY_OUTCOME, &REPLAYED, &FENCING_TOKEN],
            )
            .json_with::<calls::Accepted<'_>>(
                202,
                "The call runs; ask for it at Location.",
                &[&LOCATION, &IDEMPOTENCY_KEY, &CALL_ID, &GATEWAY_OUTCOME, &FENCING_TOKEN],
            ),
        Door::post(
            "/v1/tools/{tool}/key",
            "preview_key",
            "The key that a request for a call gets, and the call that holds it; nothing is claimed",
        )
        .path("tool", "The tool's name.")
        .call_headers()
        .body::<calls::CallBody<'_>>()
        .problems(&OF_A_REQUEST)
        .json::<tools::PreviewView>("The key, and what would become of the request."),
        Door::post("/mcp", "mcp", "The tools for clients that speak MCP: one JSON-RPC message a request")
            .json_rpc::<mcp::Message<'_>>(),
        Door::post("/mcp/{upstream}", "mcp_upstream", "One MCP server, for clients that speak MCP: its calls are claimed")
            .path("upstream", "The name of the server's section.")
            .problems(&[Slug::UnknownPath])
            .json_rpc::<mcp::Message<'_>>(),
        on_tool(
            Door::post("/v1/tools/{tool}/pause", "pause_tool", "Let no call of the tool begin, on any gateway")
                .body::<read::Reason>(),
        ),
        on_tool(
            Door::post("/v1/tools/{tool}/resume", "resume_tool", "Let the tool's calls begin again")
                .optional_body::<read::OptionalReason>(),
        ),
        Door::get("/v1/calls", "list_calls", "Calls that pass a filter, newest first")
            .params::<listing::Parameters>()
            .problems(&[Slug::InvalidRequest, Slug::RateLimited, Slug::StoreUnavailable])
            .json_or_lines::<listing::PageView<'_>>(
                "A page; or, if lines are accepted, all calls, one a line.",
            ),
        Door::post("/v1/calls/resolve", "resolve_calls", "Settle many calls whose outcome is unknown")
            .on_many::<many::ResolveBody, many::CallsDryRun<'_>>(),
        Door::post("/v1/calls/probe", "probe_calls", "Ask the tools of many unknown calls whether they know the keys")
            .on_many::<many::CallsBody, many::CallsDryRun<'_>>(),
        on_call(Door::get("/v1/calls/{id}", "show_call", "A call with its history"))
            .json::<ledger::CallView<'_>>("The call."),
        on_call(
            Door::post(
                "/v1/calls/{id}/replay",
                "replay_call",
                "Whether a result is stable: as it is stored, or compared with a fresh one",
            )
            .body::<ledger::ReplayBody>(),
        )
        .problems(&[
            Slug::WrongState,
            Slug::ReplayUnsafe,
            Slug::ShuttingDown,
            Slug::ToolPaused,
        ])
        .json::<ledger::ReplayView<'_>>("Both results and their differences."),
        on_call(
            Door::post(
                "/v1/calls/{id}/resolve",
                "resolve_call",
                "Settle a call whose outcome is unknown",
            )
            .body::<ledger::ResolveBody>(),
        )
        .problems(&[Slug::WrongState])
        .json::<ledger::CallView<'_>>("The call, without its history."),
        on_call(act(
            "/v1/calls/{id}/probe",
            "probe_call",
            "Ask the tool of an unknown call whether it knows the key; nothing is sent again",
        ))
        .problems(&[Slug::CallInProgress])
        .json::<ledger::CallView<'_>>("The call as the answer leaves it, without its history."),
        on_call(act("/v1/calls/{id}/compensate", "compensate_call", "Undo one call"))
            .json::<sagas::SagaView<'_>>("The undoing of the call, which is a saga of its own."),
        Door::get("/v1/sagas", "list_sagas", "Sagas, newest first")
            .page::<sagas::Parameters, sagas::PageView<'_>>("A page, without the calls of the sagas."),
        Door::post("/v1/sagas/retry", "retry_sagas", "Try again what is stuck of many sagas")
            .on_many::<many::SagasBody, many::SagasDryRun<'_>>(),
        saga_named("/v1/sagas/retry", "show_saga_named_retry"),
        Door::post("/v1/sagas/skip", "skip_sagas", "Go on with many sagas without undoing the calls that are stuck")
            .on_many::<many::SagasBody, many::SagasDryRun<'_>>(),
        saga_named("/v1/sagas/skip", "show_saga_named_skip"),
        on_saga(Door::get("/v1/sagas/{id}", "show_saga", "A saga with its calls")),
        on_saga(
            Door::post("/v1/sagas/{id}/complete", "complete_saga", "Complete a saga whose plan has come to its end")
                .optional_body::<read::OptionalReason>()
                .problems(&[Slug::WrongState]),
        ),
        on_saga(act("/v1/sagas/{id}/abort", "abort_saga", "Undo what the saga's calls have done")),
        on_saga(act("/v1/sagas/{id}/retry", "retry_saga", "Try again what is stuck")),
        on_saga(act("/v1/sagas/{id}/skip", "skip_saga", "Go on without undoing the call that is stuck")),
        Door::get("/v1/reconciliations", "list_reconciliations", "What is reconciled, and the last run of each")
            .problems(&[Slug::StoreUnavailable])
            .json::<reconciliations::ListView<'_>>("All that are configured."),
        on_reconciliation(
            Door::get("/v1/reconciliations/{name}", "show_reconciliation", "A report: the last one, or that of one run")
                .params::<reconciliations::Wanted>(),
        )
        .json::<reconciliations::ReportView<'_>>(report),
        on_reconciliation(
            Door::post("/v1/reconciliations/{name}/run", "run_reconciliation", "Compare the ledger with its sources now")
                .optional_body::<reconciliations::RunBody>()
                .problems(&[Slug::ShuttingDown]),
        )
        .json::<reconciliations::ReportView<'_>>(report),
        on_anomaly(act(
            "/v1/reconciliations/{name}/anomalies/{id}/compensate",
            "compensate_anomaly",
            "Undo the call of an anomaly, or its surplus effect",
        )),
        on_anomaly(act(
            "/v1/reconciliations/{name}/anomalies/{id}/ignore",
            "ignore_anomaly",
            "Do nothing about an anomaly",
        )),
        on_anomaly(act(
            "/v1/reconciliations/{name}/anomalies/{id}/adopt",
            "adopt_anomaly",
            "Write an effect that the ledger has forgotten back as a call",
        )),
        Door::get("/v1/sessions", "list_sessions", "Sessions that are frozen or locked, newest first")
            .page::<sessions::Parameters, sessions::PageView<'_>>("A page; it may be short, and even empty."),
        on_session(Door::get("/v1/sessions/{id}", "show_session", "What bounds the branches of a session now"))
            .json::<sessions::SessionView<'_>>("The session; one that was never seen has nothing in it."),
        on_session(act("/v1/sessions/{id}/unlock", "unlock_session", "Take the session's lock away from its call"))
            .json::<sessions::Unlocked>("The call that held the lock."),
        on_session(act("/v1/sessions/{id}/freeze", "freeze_session", "Let nothing of the session run"))
            .json::<sessions::Frozen<'_>>("Whether the session is frozen now."),
        on_session(act("/v1/sessions/{id}/thaw", "thaw_session", "Let the session go on"))
            .json::<sessions::Frozen<'_>>("Whether the session is frozen now."),
        Door::get("/v1/audit", "list_acts", "What operators have done, newest first")
            .page::<audit::Parameters, audit::PageView<'_>>("A page."),
        act("/v1/store/accept-loss", "accept_loss", "Accept that the store has lost data")
            .problems(&[Slug::StoreUnavailable])
            .json::<ops::LossAccepted>("How many calls are unknown now.")
            .json_with::<ops::LossUnderWay>(
                202,
                "The acceptance is under way, and goes on by itself. Ask again at the same gateway for its result.",
                &[],
            ),
        Door::get(
            "/.well-known/idempotency",
            "idempotency",
            "What this gateway promises about idempotency, for each tool that this token may call",
        )
        .json::<tools::Published>("Keys, headers and tools."),
        Door::open("/openapi.json", "openapi", "This document").any_json("OpenAPI 3.1."),
        Door::open("/metrics", "metrics", "What is counted")
            .text("text/plain", "Prometheus text exposition."),
        Door::open("/healthz", "healthz", "Whether the process lives").text("text/plain", "The process lives."),
        Door::open("/readyz", "readyz", "Whether calls may be claimed")
            .json::<ops::ReadinessView>("Calls may be claimed.")
            .json_with::<ops::ReadinessView>(problem::NOT_READY.as_u16(), "No call may be claimed.", &[]),
        Door::open("/problems", "problems", "The problems").text("text/html", "A page with all of them."),
        Door::open("/problems/{slug}", "problem", "One problem")
            .path("slug", "The problem's name.")
            .problems(&[Slug::UnknownPath])
            .text("text/html", "A page that says what it means and what to do."),
    ])
}
