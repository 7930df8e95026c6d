//! The document of the doors, for SDKs and fuzzers: OpenAPI 3.1.
//!
//! Bodies are said by the types that are read and written, statuses by the table of problems. A door
//! is added to [`document`] in a few lines; `tests/it/tools.rs` holds that none is missing.

mod door; // how it is put together

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use utoipa::openapi::path::HttpMethod;
use utoipa::openapi::{OpenApi, Required};

use self::door::{Document, Door};
use super::calls::{self, CALL_ID, FENCING_TOKEN, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED};
use super::problem::{self, Slug};
use super::{ledger, listing, ops, pages, pause, read, reconciliations, sagas, sessions, tools};

/// What is said of a request for a call before anything is known of that call.
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
/// What is said of a call.
const OF_A_CALL: [Slug; 16] = [
    Slug::CallInProgress,
    Slug::WrongState,
    Slug::OutcomeUnknown,
    Slug::SessionBusy,
    Slug::SessionFrozen,
    Slug::StaleFencingToken,
    Slug::PossibleDuplicate,
    Slug::KeyExpired,
    Slug::KeyReused,
    Slug::ToolRejected,
    Slug::RateLimited,
    Slug::BudgetExceeded,
    Slug::ToolUnreachable,
    Slug::ToolUnavailable,
    Slug::ResultUnavailable,
    Slug::ToolPaused,
];

/// `GET /openapi.json`. It says nothing of this gateway's tools, so anybody may read it.
pub(super) async fn show() -> impl IntoResponse {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_json().unwrap_or_default());
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// The document, in the order of the router.
pub fn document() -> OpenApi {
    use HttpMethod::{Get, Post};
    let mut doc = Document::default();

    doc.add(
        Door::open(
            "welcome",
            "What this is, and where to look; HTML for a browser",
        )
        .json::<pages::WelcomeView>("Where to look.", &[]),
        Get,
        "/",
    );
    doc.add(
        Door::of(
            "list_tools",
            "The tools that this token may call, for a runtime or a model",
        )
        .params::<tools::Wanted>()
        .problems(&[Slug::InvalidRequest])
        .json::<tools::ToolList>("The tools by name.", &[]),
        Get,
        "/v1/tools",
    );
    doc.add(
        Door::of("call_tool", "Run a call, or get what is known of it")
            .path("tool", "The tool's name.")
            .call_headers()
            .body::<calls::CallBody<'_>>()
            .problems(&OF_A_REQUEST)
            .problems(&OF_A_CALL)
            .json::<calls::ResultView>(
                "The tool's result, new or stored.",
                &[
                    &IDEMPOTENCY_KEY,
                    &CALL_ID,
                    &GATEWAY_OUTCOME,
                    &REPLAYED,
                    &FENCING_TOKEN,
                ],
            )
            .accepted::<calls::Accepted<'_>>(),
        Post,
        "/v1/tools/{tool}/calls",
    );
    doc.add(
        Door::of(
            "preview_key",
            "The key that a request for a call gets, and the call that it would meet; nothing is claimed",
        )
        .path("tool", "The tool's name.")
        .call_headers()
        .body::<calls::CallBody<'_>>()
        .problems(&OF_A_REQUEST)
        .json::<tools::PreviewView>("The key, and what would become of the request.", &[]),
        Post,
        "/v1/tools/{tool}/key",
    );

    let of_a_tool = [
        Slug::UnknownTool,
        Slug::UnknownPath,
        Slug::WrongState,
        Slug::StoreUnavailable,
    ];
    let tool = |door: Door| {
        let door = door.path("tool", "The tool's name.").problems(&of_a_tool);
        door.json::<pause::ToolView<'_>>("The tool, and what was done to it.", &[])
    };
    doc.add(
        tool(
            Door::of(
                "pause_tool",
                "Let no call of the tool begin, on any gateway",
            )
            .body::<read::Reason>(),
        ),
        Post,
        "/v1/tools/{tool}/pause",
    );
    doc.add(
        tool(
            Door::of("resume_tool", "Let the tool's calls begin again")
                .body_that_is::<read::OptionalReason>(Required::False),
        ),
        Post,
        "/v1/tools/{tool}/resume",
    );

    doc.add(
        Door::of("list_calls", "Calls that pass a filter, newest first")
            .params::<listing::Parameters>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::RateLimited,
                Slug::StoreUnavailable,
            ])
            .json_or_lines::<listing::PageView<'_>>(
                "A page; or, if lines are accepted, all calls, one a line.",
            ),
        Get,
        "/v1/calls",
    );
    let of_a_call = [Slug::UnknownCall, Slug::UnknownPath, Slug::StoreUnavailable];
    doc.add(
        Door::of("show_call", "A call with its history")
            .path("id", "The call's id.")
            .problems(&of_a_call)
            .json::<ledger::CallView<'_>>("The call.", &[]),
        Get,
        "/v1/calls/{id}",
    );
    doc.add(
        Door::of(
            "replay_call",
            "Whether a result is stable: as it is stored, or compared with a fresh one",
        )
        .path("id", "The call's id.")
        .body::<ledger::ReplayBody>()
        .problems(&of_a_call)
        .problems(&[
            Slug::WrongState,
            Slug::ReplayUnsafe,
            Slug::ShuttingDown,
            Slug::ToolPaused,
        ])
        .json::<ledger::ReplayView<'_>>("Both results and their differences.", &[]),
        Post,
        "/v1/calls/{id}/replay",
    );
    doc.add(
        Door::of(
            "resolve_call",
            "Say what became of a call whose outcome is unknown",
        )
        .path("id", "The call's id.")
        .body::<ledger::ResolveBody<'_>>()
        .problems(&of_a_call)
        .problems(&[Slug::WrongState])
        .json::<ledger::CallView<'_>>("The call, without its history.", &[]),
        Post,
        "/v1/calls/{id}/resolve",
    );

    doc.add(
        Door::of("compensate_call", "Undo one call")
            .path("id", "The call's id.")
            .body::<read::Reason>()
            .problems(&of_a_call)
            .problems(&[Slug::WrongState])
            .json::<sagas::SagaView<'_>>(
                "The undoing of the call, which is a saga of its own.",
                &[],
            ),
        Post,
        "/v1/calls/{id}/compensate",
    );

    doc.add(
        Door::of("list_sagas", "Sagas, newest first")
            .params::<sagas::Parameters>()
            .problems(&[Slug::InvalidRequest, Slug::StoreUnavailable])
            .json::<sagas::PageView<'_>>("A page, without the calls of the sagas.", &[]),
        Get,
        "/v1/sagas",
    );
    let of_a_saga = [
        Slug::InvalidRequest,
        Slug::UnknownSaga,
        Slug::UnknownPath,
        Slug::StoreUnavailable,
    ];
    let saga = |door: Door| {
        let door = door
            .path("id", "The saga's id.")
            .params::<read::Whose>()
            .problems(&of_a_saga);
        door.json::<sagas::SagaView<'_>>("The saga with its calls, as it is now.", &[])
    };
    doc.add(
        saga(Door::of("show_saga", "A saga with its calls")),
        Get,
        "/v1/sagas/{id}",
    );
    let complete = Door::of("complete_saga", "The plan has come to its end");
    let complete = complete.body_that_is::<read::OptionalReason>(Required::False);
    doc.add(
        saga(complete.problems(&[Slug::WrongState])),
        Post,
        "/v1/sagas/{id}/complete",
    );
    for (id, summary, path) in [
        (
            "abort_saga",
            "Undo what the saga's calls have done",
            "/v1/sagas/{id}/abort",
        ),
        (
            "retry_saga",
            "Try again what is stuck",
            "/v1/sagas/{id}/retry",
        ),
        (
            "skip_saga",
            "Go on without undoing the call that is stuck",
            "/v1/sagas/{id}/skip",
        ),
    ] {
        let door = saga(
            Door::of(id, summary)
                .body::<read::Reason>()
                .problems(&[Slug::WrongState]),
        );
        doc.add(door, Post, path);
    }

    doc.add(
        Door::of(
            "list_reconciliations",
            "What is reconciled, and the last run of each",
        )
        .problems(&[Slug::StoreUnavailable])
        .json::<reconciliations::ListView<'_>>("All that are configured.", &[]),
        Get,
        "/v1/reconciliations",
    );
    let of_a_run = [
        Slug::InvalidRequest,
        Slug::UnknownReconciliation,
        Slug::UnknownPath,
        Slug::StoreUnavailable,
    ];
    let reconciliation = |door: Door| {
        let door = door
            .path("name", "The reconciliation's name.")
            .problems(&of_a_run);
        door.json::<reconciliations::ReportView<'_>>(
            "What a run has found, and what is done about it.",
            &[],
        )
    };
    doc.add(
        reconciliation(
            Door::of(
                "show_reconciliation",
                "A report: the last one, or that of one run",
            )
            .params::<reconciliations::Wanted>(),
        ),
        Get,
        "/v1/reconciliations/{name}",
    );
    doc.add(
        reconciliation(
            Door::of(
                "run_reconciliation",
                "Hold the ledger against its sources now",
            )
            .body_that_is::<reconciliations::RunBody>(Required::False)
            .problems(&[Slug::ShuttingDown]),
        ),
        Post,
        "/v1/reconciliations/{name}/run",
    );

    let of_a_session = [
        Slug::InvalidRequest,
        Slug::UnknownPath,
        Slug::StoreUnavailable,
    ];
    let session = |door: Door| {
        door.path("id", "The session's id.")
            .params::<read::Whose>()
            .problems(&of_a_session)
    };
    doc.add(
        session(Door::of(
            "show_session",
            "What bounds the branches of a session now",
        ))
        .json::<sessions::SessionView<'_>>(
            "The session; one that was never seen has nothing in it.",
            &[],
        ),
        Get,
        "/v1/sessions/{id}",
    );
    doc.add(
        session(Door::of(
            "unlock_session",
            "Take the session's lock away from its call",
        ))
        .body::<read::Reason>()
        .problems(&[Slug::WrongState])
        .json::<sessions::Unlocked>("The call that had it.", &[]),
        Post,
        "/v1/sessions/{id}/unlock",
    );
    for (id, summary, path) in [
        (
            "freeze_session",
            "Let nothing of the session run",
            "/v1/sessions/{id}/freeze",
        ),
        (
            "thaw_session",
            "Let the session go on",
            "/v1/sessions/{id}/thaw",
        ),
    ] {
        doc.add(
            session(Door::of(id, summary))
                .body::<read::Reason>()
                .problems(&[Slug::WrongState])
                .json::<sessions::Frozen<'_>>("How it is now.", &[]),
            Post,
            path,
        );
    }

    doc.add(
        Door::of("accept_loss", "Accept that the store has lost data")
            .body::<read::Reason>()
            .problems(&[Slug::WrongState, Slug::StoreUnavailable])
            .json::<ops::LossAccepted>("How many calls are unknown now.", &[]),
        Post,
        "/v1/store/accept-loss",
    );
    doc.add(
        Door::of(
            "idempotency",
            "What this gateway promises about idempotency, for each tool that this token may call",
        )
        .json::<tools::Published>("Keys, headers and tools.", &[]),
        Get,
        "/.well-known/idempotency",
    );
    doc.add(
        Door::open("openapi", "This document").any_json("OpenAPI 3.1."),
        Get,
        "/openapi.json",
    );
    doc.add(
        Door::open("metrics", "What is counted").text("text/plain", "Prometheus text exposition."),
        Get,
        "/metrics",
    );
    doc.add(
        Door::open("healthz", "Whether the process lives").text("text/plain", "It does."),
        Get,
        "/healthz",
    );
    doc.add(
        Door::open("readyz", "Whether calls may be claimed")
            .json::<ops::ReadinessView>("They may.", &[])
            .json_at::<ops::ReadinessView>(problem::NOT_READY.as_u16(), "They may not.", &[]),
        Get,
        "/readyz",
    );
    doc.add(
        Door::open("problems", "The problems").text("text/html", "A page with all of them."),
        Get,
        "/problems",
    );
    doc.add(
        Door::open("problem", "One problem")
            .path("slug", "The problem's name.")
            .problems(&[Slug::UnknownPath])
            .text(
                "text/html",
                "A page that says what it means and what to do.",
            ),
        Get,
        "/problems/{slug}",
    );
    doc.finish()
}
