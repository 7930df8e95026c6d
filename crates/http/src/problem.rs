//! Every failure that a client can see: one table, one exhaustive match.
//!
//! The only file that knows failure statuses. Problems follow RFC 9457; the gateway serves each `type` as a page.

mod failures; // the text of each failure of the gateway
pub mod refusals; // every problem that is answered is counted
#[cfg(test)]
mod sentences_tests;

use std::time::Duration;

use axum::Extension;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::headers::{CALL_ID, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED, header};
use oncegate_rules::key;
use oncegate_rules::record::CallId;
use oncegate_rules::words::words;

/// The status of `/readyz` while write tools may not be called.
pub const NOT_READY: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

/// The status for a malformed MCP message, and in 2026-07-28 for an unknown method.
pub const MALFORMED: StatusCode = StatusCode::BAD_REQUEST;
pub const NO_SUCH_METHOD: StatusCode = StatusCode::NOT_FOUND;

/// How soon to ask again for a running call.
const RETRY_RUNNING: Duration = Duration::from_secs(1);

/// The longest reason why a request is unreadable, in bytes.
const MAX_WHY: usize = 300;

/// The largest integer that every reader of JSON holds exactly.
const MOST: u64 = (1 << 53) - 1;

words! {
    /// Whether the call may have had an effect.
    pub enum Effect { None = "none", Done = "done", Unknown = "unknown" }
}

impl Effect {
    /// The value of `Gateway-Outcome`.
    fn as_outcome(self) -> &'static str {
        match self {
            Self::None => "not-executed",
            Self::Done => "executed",
            Self::Unknown => "unknown",
        }
    }
}

words! {
    /// What the caller should do with its key.
    pub enum KeyAction { Reuse = "reuse", Rotate = "rotate", Wait = "wait", Stop = "stop" }
}

/// One row of the table.
pub struct Row {
    slug: &'static str,
    pub status: StatusCode,
    pub effect: Effect,
    pub key_action: KeyAction,
    pub title: &'static str,
    /// The text of its page: what it means and what to do.
    pub text: &'static str,
}

macro_rules! table {
    ($($variant:ident = $slug:literal, $status:ident, $effect:ident, $key_action:ident, $title:literal, $text:literal;)*) => {
        /// The name of a problem; its `type` is `/problems/{slug}`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Slug { $($variant),* }

        impl Slug {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn row(self) -> Row {
                match self {
                    $(Self::$variant => Row {
                        slug: $slug,
                        status: StatusCode::$status,
                        effect: Effect::$effect,
                        key_action: KeyAction::$key_action,
                        title: $title,
                        text: $text,
                    }),*
                }
            }
        }
    };
}

// Each row: name, status, whether the call may have had an effect, what to do with the key, title, text of the page.
table! {
    InvalidRequest = "invalid-request", BAD_REQUEST, None, Reuse, "The request cannot be read",
        "Nothing was run. Fix the request as the detail says and send it again with the same key.";
    KeyMissing = "key-missing", BAD_REQUEST, None, Reuse, "An idempotency key is missing",
        "This tool requires an idempotency key. Send one in the Idempotency-Key header, and the same one with every repetition of the same intent.";
    KeyInvalid = "key-invalid", BAD_REQUEST, None, Reuse, "The idempotency key is invalid",
        "A key is 1 to 255 visible ASCII characters without spaces, bare or as a quoted string.";
    KeyConflict = "key-conflict", BAD_REQUEST, None, Reuse, "Two idempotency keys differ",
        "The header and the body both have a key, and they differ. Send one of them, or both alike.";
    Unauthenticated = "unauthenticated", UNAUTHORIZED, None, Stop, "No valid token",
        "Send a bearer token that this gateway knows.";
    Forbidden = "forbidden", FORBIDDEN, None, Stop, "This token may not do that",
        "The token is known, but its scopes do not cover this route or this tool.";
    UnknownTool = "unknown-tool", NOT_FOUND, None, Stop, "There is no such tool",
        "Nothing was run. The gateway's configuration has no tool of this name.";
    UnknownCall = "unknown-call", NOT_FOUND, None, Stop, "There is no such call",
        "The ledger has no such call of this tenant; it may have been deleted after its retention.";
    UnknownSaga = "unknown-saga", NOT_FOUND, None, Stop, "There is no such saga",
        "A saga begins with the first call that names it. It may have been deleted after its retention.";
    UnknownReconciliation = "unknown-reconciliation", NOT_FOUND, None, Stop, "There is no such reconciliation",
        "The gateway's configuration has no reconciliation of this name, or no such report or anomaly of it is stored.";
    UnknownPath = "unknown-path", NOT_FOUND, None, Stop, "There is nothing at this path",
        "No such route.";
    MethodNotAllowed = "method-not-allowed", METHOD_NOT_ALLOWED, None, Stop, "Method not allowed on this route",
        "The Allow header names the allowed methods.";
    CallInProgress = "call-in-progress", CONFLICT, Unknown, Reuse, "The call is still running",
        "An earlier request with this key is under way. Send the same request again after Retry-After, with the same key; it will get the same result.";
    ApprovalRequired = "approval-required", CONFLICT, None, Wait, "The call waits for approval",
        "Nothing was run yet: an approver has to approve exactly this call, and does so elsewhere. Tell the user. Send the same request again after Retry-After, with the same key and the same arguments: it gets the result once the call was approved and has run. Never send it with other arguments, and do not look for another way to the same effect.";
    ApprovalDeclined = "approval-declined", CONFLICT, None, Stop, "The call was declined",
        "Nothing was run: an approver has declined this call. It will not run under this key. Do not send it in other words, and do not look for another way to the same effect.";
    ApprovalLapsed = "approval-lapsed", CONFLICT, None, Reuse, "The call was not approved in time",
        "Nothing was run: it was not approved in time, it did not begin in time, or it was taken back. If it is still needed, send the same request again, with the same key: approvers are asked once more, as long as the detail does not say otherwise.";
    OutcomeUnknown = "outcome-unknown", CONFLICT, Unknown, Wait, "It is not known whether the call was executed",
        "The request was sent to the tool, and no proof of success or failure came back. Asking again with the same key and the same arguments is safe: it never executes the call twice, and gets the outcome when it is known. Never use a new key or other arguments for it: that would be a second intent. retry_after_ms is the time until the gateway checks next; where it is null no check is planned, and an operator has to look into the tool's own system and settle the call.";
    WrongState = "wrong-state", CONFLICT, None, Stop, "Not in this state",
        "Nothing was changed: what was asked for does not fit the present state, which the detail names.";
    NotConfirmed = "not-confirmed", CONFLICT, None, Stop, "Not what was confirmed",
        "Nothing was done: the act, or what it would be done to, is not what the dry run has shown. The detail says what is different. Make the dry run again, look at its answer, and confirm that.";
    ReplayUnsafe = "replay-unsafe", CONFLICT, None, Stop, "To send it again may have an effect",
        "Nothing was sent. Only a tool that reads, or one that deduplicates and still remembers the key, can be asked once more. The stored result is there without asking: mode stored.";
    SessionBusy = "session-busy", CONFLICT, None, Reuse, "Another call of the session is under way",
        "Nothing was run: this tool runs one call of a session at a time. Send the same request again after Retry-After, with the same key.";
    SessionFrozen = "session-frozen", CONFLICT, None, Stop, "The session is frozen",
        "Nothing was run: an operator has stopped this session. Nothing of it runs until an operator thaws it.";
    StaleFencingToken = "stale-fencing-token", CONFLICT, None, Stop, "The fencing token is stale",
        "Nothing was run: a newer branch of this session has taken over. An old branch that has woken up must stop.";
    PossibleDuplicate = "possible-duplicate", CONFLICT, None, Stop, "This looks like an earlier call",
        "This request was not run: a short while ago a call with another key asked for the same. The member similar_to names it. With key_action wait its outcome is not known yet: send the same request again after retry_after_ms. With key_action stop: if both calls are meant, send the request again with confirm_duplicate_of set to that call's id.";
    KeyExpired = "key-expired", GONE, Unknown, Rotate, "The key is too old",
        "The key was used before, longer ago than results are remembered. With other arguments it is a new intent: use a new key (key_action rotate). With the same arguments it is a late repetition, which may have been executed (key_action stop): look into the tool's own system, or ask an operator.";
    RequestTimeout = "request-timeout", REQUEST_TIMEOUT, None, Reuse, "The request took too long to arrive",
        "Nothing was run: the request's body did not arrive in time. Send the same request again, with the same key.";
    BodyTooLarge = "body-too-large", PAYLOAD_TOO_LARGE, None, Stop, "The request is too large",
        "Nothing was run.";
    KeyReused = "key-reused", UNPROCESSABLE_ENTITY, None, Rotate, "The key stands for another call",
        "This key was used with other arguments. A key names one intent: repeat it only with the same arguments, and use a new key for a new intent.";
    InputRequired = "input-required", UNPROCESSABLE_ENTITY, None, Stop, "The tool asks for more",
        "The tool's MCP server did not execute the call, but asked questions that this caller cannot be asked. A client of MCP 2026-07-28 that says what it can answer gets them.";
    InvalidArguments = "invalid-arguments", UNPROCESSABLE_ENTITY, None, Rotate, "The arguments do not fit the tool's schema",
        "Nothing was run. The member errors names each mistake with its place.";
    ToolRejected = "tool-rejected", UNPROCESSABLE_ENTITY, None, Rotate, "The tool rejected the call",
        "The tool answered that it will not do this; tool_status and tool_body say why. Change the request and use a new key.";
    RateLimited = "rate-limited", TOO_MANY_REQUESTS, Unknown, Reuse, "Too many requests for now",
        "This request was not run: the gateway is busy, or this token asks faster than it may. The effect is none where the gateway has seen that the call never ran, and unknown where it has not looked. Send the same request again after Retry-After, with the same key.";
    BudgetExceeded = "budget-exceeded", TOO_MANY_REQUESTS, None, Reuse, "The budget is used up",
        "Nothing was run: this session or user has called this tool as often as it may for now. Retry-After says when there is room again; a repetition of an earlier call costs nothing.";
    ToolUnreachable = "tool-unreachable", BAD_GATEWAY, None, Reuse, "The tool was not reached",
        "Surely nothing was executed: no byte of the request was sent. Send it again after Retry-After, with the same key.";
    ToolUnavailable = "tool-unavailable", BAD_GATEWAY, None, Reuse, "The tool did not take the call",
        "Surely nothing was executed. Send the same request again after Retry-After, with the same key.";
    ResultUnavailable = "result-unavailable", BAD_GATEWAY, Done, Stop, "The tool executed the call, but its result is lost",
        "The effect has happened and will not be repeated. The answer was cut off or too large; ask the tool's own system for the result.";
    NotAnswered = "not-answered", UNPROCESSABLE_ENTITY, Unknown, Stop, "The API has not answered a request without a key",
        "The request was forwarded without a key, as the gateway is configured, so nothing guards it: it may have been executed, and to send it again may execute it twice. Look into the API's own system.";
    StoreUnavailable = "store-unavailable", SERVICE_UNAVAILABLE, Unknown, Reuse, "The store is not available",
        "This request ran nothing. Whether an earlier one with the same key did, the gateway cannot look up now. Send it again after Retry-After, with the same key.";
    CallerNotChecked = "caller-not-checked", SERVICE_UNAVAILABLE, Unknown, Reuse, "It was not found out who the caller is",
        "This request ran nothing. Whether an earlier one with the same key did is not said before the caller is known. Send it again after Retry-After, with the same key.";
    ShuttingDown = "shutting-down", SERVICE_UNAVAILABLE, Unknown, Reuse, "The gateway is shutting down",
        "This request ran nothing. Send it again after Retry-After, with the same key.";
    ToolPaused = "tool-paused", SERVICE_UNAVAILABLE, None, Reuse, "The tool is paused",
        "Nothing was run: an operator has paused this tool. Calls that were made before are still answered. Send the same request again after Retry-After, with the same key.";
}

impl Slug {
    pub fn as_str(self) -> &'static str {
        self.row().slug
    }
}

/// One failure, as a caller is told of it.
pub struct Problem {
    pub slug: Slug,
    /// As in the table, unless the client would misread that.
    status: StatusCode,
    pub detail: String,
    /// The call that the problem is about.
    pub call_id: Option<CallId>,
    key: Option<String>,
    pub retry_after: Option<Duration>,
    errors: Option<Vec<Mistake>>,
    tool_status: Option<u16>,
    /// The tool's answer.
    pub tool_body: Option<Box<RawValue>>,
    /// The call that this one looks like.
    pub similar_to: Option<CallId>,
    /// Where the arguments differ from those of the call that has the key.
    pub differs: Vec<String>,
    replayed: Option<bool>,
    /// When it was asked, and until when it may be approved.
    approval: Option<ApprovalTimes>,
    /// As in the table, unless the failure is known better.
    pub key_action: KeyAction,
    pub effect: Effect,
}

/// The times of an ask.
#[derive(Debug, Serialize, ToSchema)]
struct ApprovalTimes {
    #[schema(format = DateTime)]
    asked_at: String,
    #[schema(format = DateTime)]
    expires_at: String,
}

/// One mistake in the arguments.
#[derive(Debug, Serialize, ToSchema)]
struct Mistake {
    /// A JSON Pointer into `args`.
    pointer: String,
    detail: String,
}

impl Problem {
    fn new(slug: Slug, detail: impl Into<String>) -> Self {
        let row = slug.row();
        Self {
            slug,
            status: row.status,
            detail: detail.into(),
            call_id: None,
            key: None,
            retry_after: None,
            errors: None,
            tool_status: None,
            tool_body: None,
            similar_to: None,
            differs: Vec::new(),
            replayed: None,
            approval: None,
            key_action: row.key_action,
            effect: row.effect,
        }
    }

    /// The call has surely not run.
    fn not_run(mut self) -> Self {
        self.effect = Effect::None;
        self
    }

    /// Neither this key nor a new one helps.
    fn stop(mut self) -> Self {
        self.key_action = KeyAction::Stop;
        self
    }

    fn waiting(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    /// The same failure with the status by which clients of a protocol know it.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The problem for a client of a payment protocol.
    ///
    /// It takes 409 for "another request has this key", makes a new key, and would pay twice. So "not yet" is 503 there.
    pub fn for_payment(mut self) -> Self {
        if matches!(self.slug, Slug::CallInProgress | Slug::OutcomeUnknown) {
            self.status = StatusCode::SERVICE_UNAVAILABLE;
        }
        self
    }

    /// A request that cannot be read. `why` is cut, because it may quote the caller.
    pub fn invalid_request(why: &str) -> Self {
        let why = &why[..why.floor_char_boundary(MAX_WHY)];
        Self::new(
            Slug::InvalidRequest,
            format!("Nothing was run, because {why}. Fix it and send it again with the same key."),
        )
    }

    pub fn body_too_large(max_body: usize) -> Self {
        Self::new(
            Slug::BodyTooLarge,
            format!(
                "Nothing was run: the request's body is larger than {max_body} bytes. Do not repeat it as it is."
            ),
        )
    }

    pub fn body_too_slow() -> Self {
        Self::new(
            Slug::RequestTimeout,
            "Nothing was run: the request's body did not arrive in time. Send the same request again with the same key.",
        )
    }

    pub fn unauthenticated() -> Self {
        Self::new(
            Slug::Unauthenticated,
            "Nothing was run: the request has no valid token. Repeating it will not help. Tell the user: an operator has to give you a token.",
        )
    }

    pub fn token_expired() -> Self {
        Self::new(
            Slug::Unauthenticated,
            "Nothing was run: this token has expired. Repeating the request will not help; an operator has to give you a new token.",
        )
    }

    pub fn forbidden(why: &str) -> Self {
        Self::new(
            Slug::Forbidden,
            format!(
                "Nothing was run: {why}. Repeating the request will not help. Tell the user: an operator decides what this token may do."
            ),
        )
    }

    pub fn unknown_problem() -> Self {
        Self::new(
            Slug::UnknownPath,
            "There is no problem of this name; /problems lists them.",
        )
    }

    /// Whether the request answers a tool's questions (MCP).
    pub fn is_of_elicitation(&self) -> bool {
        let key = self.key.as_deref();
        key.is_some_and(|key| key.starts_with(key::ELICITATION))
    }
}

/// Why a request has no result. Unknown members are null; the last six are present only where they apply.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Body<'a> {
    /// A page that says what it means and what to do.
    #[schema(pattern = "^/problems/[a-z-]+$")]
    r#type: String,
    title: &'a str,
    status: u16,
    /// A sentence that says what to do next.
    detail: &'a str,
    #[schema(required)]
    call_id: Option<String>,
    #[schema(required)]
    idempotency_key: Option<&'a str>,
    /// Whether the call may have had an effect.
    #[schema(pattern = "^(none|done|unknown)$")]
    effect: &'static str,
    /// What the caller should do with its key.
    #[schema(pattern = "^(reuse|rotate|wait|stop)$")]
    key_action: &'static str,
    #[schema(required)]
    retry_after_ms: Option<u64>,
    /// Where the arguments do not fit the tool's schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<Mistake>, nullable = false)]
    errors: Option<&'a [Mistake]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    tool_status: Option<u16>,
    /// The tool's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    tool_body: Option<&'a RawValue>,
    /// The call that this one looks like.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    similar_to: Option<String>,
    /// Where the arguments differ from those of the call that has the key: JSON Pointers into `args`. Only for a token
    /// that may read that call, and not for tools that redact arguments.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    differs: &'a [String],
    /// The times of an ask for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ApprovalTimes, nullable = false)]
    approval: Option<&'a ApprovalTimes>,
}

impl Problem {
    /// The members of the problem.
    pub fn body(&self) -> Body<'_> {
        let row = self.slug.row();
        Body {
            r#type: format!("/problems/{}", row.slug),
            title: row.title,
            status: self.status.as_u16(),
            detail: &self.detail,
            call_id: self.call_id.map(|call_id| call_id.to_string()),
            idempotency_key: self.key.as_deref(),
            effect: self.effect.as_str(),
            key_action: self.key_action.as_str(),
            // Rounded up, because a caller that asks a moment too early is refused once more.
            retry_after_ms: self.retry_after.map(|time| {
                u64::try_from(time.as_nanos().div_ceil(1_000_000))
                    .unwrap_or(MOST)
                    .min(MOST)
            }),
            errors: self.errors.as_deref(),
            tool_status: self.tool_status,
            tool_body: self.tool_body.as_deref(),
            similar_to: self.similar_to.map(|call_id| call_id.to_string()),
            differs: &self.differs,
            approval: self.approval.as_ref(),
        }
    }

    /// The time to wait in whole seconds, rounded up.
    pub fn wait_seconds(&self) -> Option<u64> {
        self.retry_after.map(whole_seconds)
    }
}

/// A time to wait in whole seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    let begun = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(begun).min(MOST)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let is_replayed = |replayed| if replayed { "true" } else { "false" };
        let call_id = self.call_id.map(|call_id| call_id.to_string());
        (
            self.status,
            Extension(self.slug),
            [
                (CONTENT_TYPE, "application/problem+json"),
                (GATEWAY_OUTCOME, self.effect.as_outcome()),
            ],
            header(REPLAYED, self.replayed.map(is_replayed)),
            header(RETRY_AFTER, self.wait_seconds()),
            header(CALL_ID, call_id),
            header(IDEMPOTENCY_KEY, self.key.as_deref()),
            header(
                WWW_AUTHENTICATE,
                (self.slug == Slug::Unauthenticated).then_some("Bearer"),
            ),
            axum::Json(self.body()),
        )
            .into_response()
    }
}

pub async fn too_many_connections() -> Problem {
    Problem::new(
        Slug::RateLimited,
        "This request was not looked at: there are too many connections, or there is no memory left for it. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.",
    )
    .waiting(RETRY_RUNNING)
}

pub async fn unknown_path() -> Problem {
    Problem::new(
        Slug::UnknownPath,
        "There is nothing at this path. Calls go to POST /v1/tools/{tool}/calls.",
    )
}

pub async fn method_not_allowed() -> Problem {
    Problem::new(
        Slug::MethodNotAllowed,
        "Method not allowed on this route; the Allow header names those that are.",
    )
}
