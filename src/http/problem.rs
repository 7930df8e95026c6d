//! Every failure that a client can see: one table, one exhaustive match. The only place that knows
//! failure statuses. Problems are RFC 9457, and each `type` is a page that the gateway serves.

mod body; // a problem on the wire
#[cfg(test)]
mod told; // what each problem tells

use std::time::Duration;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

pub(super) use self::body::Body;
use crate::core::key;
use crate::core::record::CallId;
use crate::core::record::Failure;
use crate::core::session::Refusal;
use crate::gateway::{Differs, Error, ErrorKind, Reused};

/// What `/readyz` answers while write tools may not be called.
pub const NOT_READY: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

/// How soon to ask again for a call that is running.
const RETRY_RUNNING: Duration = Duration::from_secs(1);
/// How soon to ask again when the gateway or its store has to recover first.
const RETRY_GATEWAY: Duration = Duration::from_secs(2);
/// How soon to try a tool again that a person has paused.
const RETRY_PAUSED: Duration = Duration::from_secs(30);
/// How soon to try a tool again that did not say itself.
const RETRY_TOOL: Duration = Duration::from_secs(5);

/// The longest reason why a request cannot be read, in bytes.
const MAX_WHY: usize = 300;

macro_rules! slugs {
    ($($variant:ident = $slug:literal),* $(,)?) => {
        /// The name of a problem; its `type` is `/problems/{slug}`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Slug { $($variant),* }

        impl Slug {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $slug),* }
            }
        }
    };
}

slugs! {
    InvalidRequest = "invalid-request",
    KeyMissing = "key-missing",
    KeyInvalid = "key-invalid",
    KeyConflict = "key-conflict",
    Unauthenticated = "unauthenticated",
    Forbidden = "forbidden",
    UnknownTool = "unknown-tool",
    UnknownCall = "unknown-call",
    UnknownSaga = "unknown-saga",
    UnknownReconciliation = "unknown-reconciliation",
    UnknownPath = "unknown-path",
    MethodNotAllowed = "method-not-allowed",
    CallInProgress = "call-in-progress",
    OutcomeUnknown = "outcome-unknown",
    WrongState = "wrong-state",
    ReplayUnsafe = "replay-unsafe",
    SessionBusy = "session-busy",
    SessionFrozen = "session-frozen",
    StaleFencingToken = "stale-fencing-token",
    PossibleDuplicate = "possible-duplicate",
    KeyExpired = "key-expired",
    RequestTimeout = "request-timeout",
    BodyTooLarge = "body-too-large",
    KeyReused = "key-reused",
    InvalidArguments = "invalid-arguments",
    ToolRejected = "tool-rejected",
    RateLimited = "rate-limited",
    BudgetExceeded = "budget-exceeded",
    ToolUnreachable = "tool-unreachable",
    ToolUnavailable = "tool-unavailable",
    ResultUnavailable = "result-unavailable",
    StoreUnavailable = "store-unavailable",
    ShuttingDown = "shutting-down",
    ToolPaused = "tool-paused",
}

/// Whether the call may have changed the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    None,
    Done,
    Unknown,
}

impl Effect {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Done => "done",
            Self::Unknown => "unknown",
        }
    }

    /// The value of `Gateway-Outcome`.
    fn as_outcome(self) -> &'static str {
        match self {
            Self::None => "not-executed",
            Self::Done => "executed",
            Self::Unknown => "unknown",
        }
    }
}

/// What the caller should do with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    Reuse,
    Rotate,
    Wait,
    Stop,
}

impl KeyAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reuse => "reuse",
            Self::Rotate => "rotate",
            Self::Wait => "wait",
            Self::Stop => "stop",
        }
    }
}

/// One row of the table.
pub struct Row {
    pub status: StatusCode,
    pub effect: Effect,
    pub key_action: KeyAction,
    pub title: &'static str,
    /// For the page: what it means and what to do.
    pub text: &'static str,
}

impl Slug {
    #[rustfmt::skip]
    pub fn row(self) -> Row {
        use Effect::{Done, None, Unknown};
        use KeyAction::{Reuse, Rotate, Stop, Wait};
        let row = |status, effect, key_action, title, text| Row { status, effect, key_action, title, text };
        match self {
            Self::InvalidRequest => row(StatusCode::BAD_REQUEST, None, Reuse, "The request cannot be read",
                "Nothing was run. Mend the request as the detail says and send it again with the same key."),
            Self::KeyMissing => row(StatusCode::BAD_REQUEST, None, Reuse, "An idempotency key is missing",
                "This tool runs nothing without a key. Send one in the Idempotency-Key header, and the same one with every repetition of the same intent."),
            Self::KeyInvalid => row(StatusCode::BAD_REQUEST, None, Reuse, "The idempotency key is invalid",
                "A key is 1 to 255 visible ASCII characters without spaces, bare or as a quoted string."),
            Self::KeyConflict => row(StatusCode::BAD_REQUEST, None, Reuse, "Two idempotency keys differ",
                "The header and the body both bring a key, and they are not the same. Send one of them, or both alike."),
            Self::Unauthenticated => row(StatusCode::UNAUTHORIZED, None, Stop, "No valid token",
                "Send a bearer token that this gateway knows."),
            Self::Forbidden => row(StatusCode::FORBIDDEN, None, Stop, "This token may not do that",
                "The token is known, but its scopes do not cover this door or this tool."),
            Self::UnknownTool => row(StatusCode::NOT_FOUND, None, Stop, "There is no such tool",
                "Nothing was run. The gateway's configuration has no tool of this name."),
            Self::UnknownCall => row(StatusCode::NOT_FOUND, None, Stop, "There is no such call",
                "The ledger has no such call of this tenant; it may have been kept for its retention and then deleted."),
            Self::UnknownSaga => row(StatusCode::NOT_FOUND, None, Stop, "There is no such saga",
                "A saga begins with the first call that names it. It may have been kept for its retention and then deleted."),
            Self::UnknownReconciliation => row(StatusCode::NOT_FOUND, None, Stop, "There is no such reconciliation",
                "The gateway's configuration has no reconciliation of this name, or no report of such a run is kept."),
            Self::UnknownPath => row(StatusCode::NOT_FOUND, None, Stop, "There is nothing at this path",
                "The gateway has no such door."),
            Self::MethodNotAllowed => row(StatusCode::METHOD_NOT_ALLOWED, None, Stop, "This door takes another method",
                "The Allow header says which."),
            Self::CallInProgress => row(StatusCode::CONFLICT, Unknown, Reuse, "The call is still running",
                "An earlier request with this key is under way. Send the same request again after Retry-After, with the same key; it will get the same result."),
            Self::OutcomeUnknown => row(StatusCode::CONFLICT, Unknown, Wait, "It is not known whether the call was executed",
                "The request was sent to the tool, and no proof of success or failure came back. Asking again with the same key and the same arguments is safe: it never executes the call twice, and gets the outcome when it is known. Never use a new key or other arguments for it: that would be a second intent. retry_after_ms is the time until the gateway checks next; where it is null no check is planned, and a person has to look into the tool's own system and settle the call."),
            Self::WrongState => row(StatusCode::CONFLICT, None, Stop, "Not in this state",
                "Nothing was changed: what was asked for does not fit the present state, which the detail names."),
            Self::ReplayUnsafe => row(StatusCode::CONFLICT, None, Stop, "To send it again may have an effect",
                "Nothing was sent. Only a tool that reads, or one that deduplicates and still remembers the key, can be asked once more. The stored result is there without asking: mode stored."),
            Self::SessionBusy => row(StatusCode::CONFLICT, None, Reuse, "Another call of the session is under way",
                "Nothing was run: this tool runs one call of a session at a time. Send the same request again after Retry-After, with the same key."),
            Self::SessionFrozen => row(StatusCode::CONFLICT, None, Stop, "The session is frozen",
                "Nothing was run: a person has stopped this session. Nothing of it runs until a person thaws it."),
            Self::StaleFencingToken => row(StatusCode::CONFLICT, None, Stop, "The fencing token is stale",
                "Nothing was run: a newer branch of this session has taken over. An old branch that has woken up must stop."),
            Self::PossibleDuplicate => row(StatusCode::CONFLICT, None, Stop, "This looks like an earlier call",
                "This request was not run: a short while ago a call with another key asked for the same. The member similar_to names it. With key_action wait its outcome is not known yet: send the same request again after retry_after_ms. With key_action stop: if both calls are meant, send the request again with confirm_duplicate_of set to that call's id."),
            Self::KeyExpired => row(StatusCode::GONE, Unknown, Rotate, "The key is too old",
                "The key was used before, longer ago than results are remembered. With other arguments it is a new intent: use a new key (key_action rotate). With the same arguments it is a late repetition, which may have been executed (key_action stop): look into the tool's own system, or ask a person."),
            Self::RequestTimeout => row(StatusCode::REQUEST_TIMEOUT, None, Reuse, "The request took too long to arrive",
                "Nothing was run: the request's body did not arrive in time. Send the same request again, with the same key."),
            Self::BodyTooLarge => row(StatusCode::PAYLOAD_TOO_LARGE, None, Stop, "The request is too large",
                "Nothing was run."),
            Self::KeyReused => row(StatusCode::UNPROCESSABLE_ENTITY, None, Rotate, "The key stands for another call",
                "This key was used with other arguments. A key names one intent: repeat it only with the same arguments, and use a new key for a new intent."),
            Self::InvalidArguments => row(StatusCode::UNPROCESSABLE_ENTITY, None, Rotate, "The arguments do not fit the tool's schema",
                "Nothing was run. The member errors names each mistake with its place."),
            Self::ToolRejected => row(StatusCode::UNPROCESSABLE_ENTITY, None, Rotate, "The tool rejected the call",
                "The tool answered that it will not do this; tool_status and tool_body say why. Change the request and use a new key."),
            Self::RateLimited => row(StatusCode::TOO_MANY_REQUESTS, Unknown, Reuse, "Too many requests for now",
                "This request was not run: the gateway is busy, or this token asks faster than it may. The effect is none where the gateway has seen that the call never ran, and unknown where it has not looked. Send the same request again after Retry-After, with the same key."),
            Self::BudgetExceeded => row(StatusCode::TOO_MANY_REQUESTS, None, Reuse, "The budget is used up",
                "Nothing was run: this session or user has called this tool as often as it may for now. Retry-After says when there is room again; a repetition of an earlier call costs nothing."),
            Self::ToolUnreachable => row(StatusCode::BAD_GATEWAY, None, Reuse, "The tool was not reached",
                "Surely nothing was executed: no byte of the request was sent. Send it again after Retry-After, with the same key."),
            Self::ToolUnavailable => row(StatusCode::BAD_GATEWAY, None, Reuse, "The tool did not take the call",
                "Surely nothing was executed. Send the same request again after Retry-After, with the same key."),
            Self::ResultUnavailable => row(StatusCode::BAD_GATEWAY, Done, Stop, "The tool executed the call, but its result is lost",
                "The effect has happened and will not be repeated. The answer was cut off or too large; ask the tool's own system for the result."),
            Self::StoreUnavailable => row(StatusCode::SERVICE_UNAVAILABLE, Unknown, Reuse, "The store is not available",
                "This request ran nothing. Whether an earlier one with the same key did, the gateway cannot look up now. Send it again after Retry-After, with the same key."),
            Self::ShuttingDown => row(StatusCode::SERVICE_UNAVAILABLE, Unknown, Reuse, "The gateway is shutting down",
                "This request ran nothing. Send it again after Retry-After, with the same key."),
            Self::ToolPaused => row(StatusCode::SERVICE_UNAVAILABLE, None, Reuse, "The tool is paused",
                "Nothing was run: a person has paused this tool. Calls that were made before are still answered. Send the same request again after Retry-After, with the same key."),
        }
    }
}

/// One failure, on its way out.
pub struct Problem {
    slug: Slug,
    detail: String,
    call_id: Option<String>,
    key: Option<String>,
    retry_after: Option<Duration>,
    errors: Option<Vec<Mistake>>,
    tool_status: Option<u16>,
    tool_body: Option<Box<RawValue>>,
    similar_to: Option<CallId>,
    differs: Option<Vec<String>>,
    replayed: Option<bool>,
    /// Where it is not the one of the table.
    key_action: Option<KeyAction>,
    /// Where it is better known than the table says.
    effect: Option<Effect>,
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
        Self {
            slug,
            detail: detail.into(),
            call_id: None,
            key: None,
            retry_after: None,
            errors: None,
            tool_status: None,
            tool_body: None,
            similar_to: None,
            differs: None,
            replayed: None,
            key_action: None,
            effect: None,
        }
    }

    /// It is known that the call has not run, by this request or by an earlier one.
    fn not_run(self) -> Self {
        Self {
            effect: Some(Effect::None),
            ..self
        }
    }

    fn differing(self, differs: Differs) -> Self {
        Self {
            differs: Some(differs.places).filter(|places| !places.is_empty()),
            ..self
        }
    }

    fn about(self, call_id: CallId) -> Self {
        Self {
            call_id: Some(call_id.to_string()),
            ..self
        }
    }

    /// What is wrong may be quoted, which is as long as the caller likes.
    pub fn invalid_request(why: &str) -> Self {
        let why = why
            .get(..why.floor_char_boundary(MAX_WHY))
            .unwrap_or_default();
        Self::new(
            Slug::InvalidRequest,
            format!("Nothing was run, because {why}. Mend it and send it again with the same key."),
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

    pub fn no_room() -> Self {
        ErrorKind::NoRoom.into()
    }

    pub fn unauthenticated() -> Self {
        Self::new(
            Slug::Unauthenticated,
            "Nothing was run: the request brings no valid token. Repeating it will not help. Tell the user: a person has to give you a token.",
        )
    }

    pub fn token_expired() -> Self {
        Self::new(
            Slug::Unauthenticated,
            "Nothing was run: this token has expired. Repeating the request will not help; a person has to give you a new token.",
        )
    }

    pub fn forbidden(why: &str) -> Self {
        Self::new(
            Slug::Forbidden,
            format!(
                "Nothing was run: {why}. Repeating the request will not help. Tell the user: a person decides what this token may do."
            ),
        )
    }

    pub fn unknown_problem() -> Self {
        Self::new(
            Slug::UnknownPath,
            "There is no problem of this name; /problems lists them.",
        )
    }

    pub fn unknown_call() -> Self {
        ErrorKind::UnknownCall.into()
    }

    pub fn slug(&self) -> Slug {
        self.slug
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    fn waiting(self, time: Duration) -> Self {
        Self {
            retry_after: Some(time),
            ..self
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let Error {
            kind,
            call_id,
            key,
            replayed,
        } = error;
        let problem = Self::from(kind);
        let call_id = call_id.map(|id| id.to_string()).or(problem.call_id);
        Self {
            call_id,
            key,
            replayed,
            ..problem
        }
    }
}

impl From<ErrorKind> for Problem {
    /// What each failure says. `detail` is written for a model that has to decide what to do next.
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidRequest(why) => Self::invalid_request(&why),
            ErrorKind::Key(refused @ key::Refused::Missing) => {
                Self::new(Slug::KeyMissing, format!("Nothing was run: {refused}. Choose a key for this intent and send the request again with it in the Idempotency-Key header."))
            }
            ErrorKind::Key(refused @ (key::Refused::Invalid(..) | key::Refused::Reserved)) => Self::new(Slug::KeyInvalid, format!("Nothing was run: {refused}. Send the request again with a valid key, and the same one with every repetition.")),
            ErrorKind::Key(refused @ key::Refused::Conflict) => {
                Self::new(Slug::KeyConflict, format!("Nothing was run: {refused}. Send the same key in both, or in one only."))
            }
            ErrorKind::Key(refused @ key::Refused::FieldMissing(_)) => Self::invalid_request(&refused.to_string()),
            ErrorKind::Forbidden => Self::forbidden("this token may not do that"),
            ErrorKind::UnknownTool => Self::new(Slug::UnknownTool, "Nothing was run: there is no tool of this name. Do not repeat the request; choose a tool that exists."),
            ErrorKind::UnknownCall => Self::new(Slug::UnknownCall, "There is no call with this id among those that you may read."),
            ErrorKind::UnknownSaga => Self::new(Slug::UnknownSaga, "There is no saga of this name; it begins with the first call that names it."),
            ErrorKind::UnknownReconciliation => Self::new(Slug::UnknownReconciliation, "There is no reconciliation of this name, or no report of it."),
            ErrorKind::InvalidArguments(mistakes) => {
                let errors: Vec<Mistake> = mistakes.into_iter().map(|(pointer, detail)| Mistake { pointer, detail }).collect();
                let named: Vec<String> = errors.iter().map(|mistake| format!("{} {}", mistake.pointer, mistake.detail).trim().to_owned()).collect();
                let detail = format!("Nothing was run: the arguments do not fit the tool's schema ({}). Correct them and call again with a new key.", named.join("; "));
                Self { errors: Some(errors), ..Self::new(Slug::InvalidArguments, detail) }
            }
            ErrorKind::CallInProgress { retry_after } => Self::new(
                Slug::CallInProgress,
                "An earlier request with this key is still running. Do not use another key. Wait, then send exactly the same request again; it will get the result.",
            )
            .waiting(retry_after),
            ErrorKind::JustChanged => Self::new(
                Slug::CallInProgress,
                "Nothing was sent: the call has just changed, most likely because another request verifies it too. Wait, then send the same request again.",
            )
            .not_run()
            .waiting(RETRY_RUNNING),
            ErrorKind::OutcomeUnknown { retry_after: Some(retry_after) } => Self::new(
                Slug::OutcomeUnknown,
                "The tool may or may not have executed this call; the gateway is finding out. Wait as long as retry_after_ms says, then send the same request again, with the same key and the same arguments: that never executes it twice, and gets the outcome when it is known. Never send it with a new key or with other arguments.",
            )
            .waiting(retry_after),
            ErrorKind::OutcomeUnknown { retry_after: None } => Self::new(
                Slug::OutcomeUnknown,
                "The tool may or may not have executed this call, and the gateway plans no further check. Tell the user, and ask a person to look into the tool's own system and to settle the call that call_id names. Sending the same request again, with the same key and the same arguments, never executes it twice, and gets the outcome when it is known. Never send it with a new key or with other arguments.",
            ),
            ErrorKind::KeyReused { call_id, reused: Reused::Other, differs } => Self::new(
                Slug::KeyReused,
                format!("This request was not run: this key stands for an earlier call, which call_id names, with other arguments{}. That call may have been executed. If you mean the same thing in other words, do not use a new key: send exactly the arguments of that call, and you get its result. Use a new key only for a new intent.", named(&differs)),
            )
            .differing(differs)
            .about(call_id),
            ErrorKind::KeyReused { call_id, reused: Reused::SameFields, differs } => Self {
                key_action: Some(KeyAction::Stop),
                ..Self::new(
                    Slug::KeyReused,
                    format!("This request was not run: an earlier call, which call_id names, has the same business id and other arguments{}. A new key would meet the same call, so do not send this request again. If you meant to repeat that call, send exactly its arguments; that gets its result. Otherwise ask a person.", named(&differs)),
                )
            }
            .differing(differs)
            .about(call_id),
            ErrorKind::KeyReused { call_id, reused: Reused::Unclear, .. } => Self {
                key_action: Some(KeyAction::Stop),
                effect: Some(Effect::Unknown),
                ..Self::new(
                    Slug::KeyReused,
                    "This request was not run: an earlier call, which call_id names, has this key, and its arguments can no longer be compared with yours. It may be the same call, and may have been executed. Do not send this request again, neither with this key nor with a new one; ask a person what became of that call.",
                )
            }
            .about(call_id),
            ErrorKind::WrongState(why) => Self::new(Slug::WrongState, format!("Nothing was changed: {why}.")),
            ErrorKind::ReplayUnsafe(why) => Self::new(Slug::ReplayUnsafe, format!("Nothing was sent: {why}. Look at the stored result instead.")),
            ErrorKind::KeyExpired { is_repetition: true } => Self {
                key_action: Some(KeyAction::Stop),
                ..Self::new(
                    Slug::KeyExpired,
                    "This request was not run: the same call was made with this key before, too long ago for its result to be remembered. It may have been executed then, so do not send it again, neither with this key nor with a new one. Look into the tool's own system, or ask a person.",
                )
            },
            ErrorKind::KeyExpired { is_repetition: false } => Self::new(
                Slug::KeyExpired,
                "This request was not run: this key was used for a call with other arguments, longer ago than results are remembered. If this is a new intent, send it with a new key; if it repeats that call in other words, do not send it, and ask a person what became of that call.",
            ),
            ErrorKind::ToolRejected(failure) => {
                let status = failure.status.map_or_else(String::new, |status| format!(" (status {status})"));
                let detail = format!("Nothing was changed: the tool rejected this call{status}. Read tool_body, correct the request, and send it with a new key.");
                Self { tool_status: failure.status, tool_body: body_of(&failure), ..Self::new(Slug::ToolRejected, detail) }
            }
            ErrorKind::Fenced(failure) => {
                let detail = "Nothing was changed: the tool has seen a newer branch of this session, which has taken over. Do not repeat the request; stop this branch and tell the user.";
                Self { tool_status: failure.status, tool_body: body_of(&failure), ..Self::new(Slug::StaleFencingToken, detail) }
            }
            ErrorKind::Refused(refusal) => refused(&refusal),
            ErrorKind::ToolUnreachable(failure) => Self::new(
                Slug::ToolUnreachable,
                "Nothing was run: the tool could not be reached. Wait, then send the same request again with the same key.",
            )
            .waiting(failure.retry_after.unwrap_or(RETRY_TOOL)),
            ErrorKind::ToolUnavailable(failure) => {
                let problem = Self::new(
                    Slug::ToolUnavailable,
                    "Nothing was changed: the tool could not take the call now. Wait, then send the same request again with the same key.",
                );
                Self { tool_status: failure.status, ..problem }.waiting(failure.retry_after.unwrap_or(RETRY_TOOL))
            }
            ErrorKind::ToolResting { retry_after } => Self::new(
                Slug::ToolUnavailable,
                "Nothing was run: the tool keeps failing, so it is left alone for a while. Wait, then send the same request again with the same key.",
            )
            .waiting(retry_after),
            ErrorKind::ResultUnavailable(_) => Self::new(
                Slug::ResultUnavailable,
                "The tool has executed this call, but its answer could not be read. The effect is done: do not call again. Look up the result in the tool's own system if you need it.",
            ),
            ErrorKind::RateLimited => Self::new(Slug::RateLimited, "Nothing was run: the gateway is busy. Wait, then send the same request again with the same key.").not_run().waiting(RETRY_RUNNING),
            ErrorKind::NoRoom => Self::new(
                Slug::RateLimited,
                "This request began nothing: the gateway has no memory left for it or for its answer. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(RETRY_RUNNING),
            ErrorKind::TooFast { retry_after } => Self::new(
                Slug::RateLimited,
                "This request was not looked at: there were too many requests with this token. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(retry_after),
            ErrorKind::TooManyNewKeys { retry_after } => Self::new(
                Slug::RateLimited,
                "Nothing was run: there were too many new calls with this token; only repetitions of earlier calls are answered now. Ask yourself whether this call is really needed. Wait, then send the same request again with the same key.",
            )
            .not_run()
            .waiting(retry_after),
            ErrorKind::StoreUnavailable => Self::new(
                Slug::StoreUnavailable,
                "This request was not run, because the gateway's store does not answer. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(RETRY_GATEWAY),
            ErrorKind::KeysSettle { retry_after } => Self::new(
                Slug::StoreUnavailable,
                "Nothing was run: the settings of this tool's keys have just changed, and not every gateway may know them yet. Wait, then send the same request again with the same key.",
            )
            .not_run()
            .waiting(retry_after),
            ErrorKind::ShuttingDown => Self::new(Slug::ShuttingDown, "This request was not looked at: the gateway is shutting down. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.").waiting(RETRY_GATEWAY),
            ErrorKind::ToolPaused => Self::new(
                Slug::ToolPaused,
                "Nothing was run: a person has paused this tool for the time being. Do not look for another way to the same effect. Wait, then send the same request again with the same key.",
            )
            .waiting(RETRY_PAUSED),
        }
    }
}

/// A call that its session does not let begin.
fn refused(refusal: &Refusal) -> Problem {
    match refusal {
        Refusal::Frozen => Problem::new(
            Slug::SessionFrozen,
            "Nothing was run: a person has frozen this session. Stop calling tools in it and tell the user; only a person can thaw it.",
        ),
        Refusal::Stale => Problem::new(
            Slug::StaleFencingToken,
            "Nothing was run: the session has given out a newer fencing token, so another branch has taken over. Do not repeat the request; stop this branch and tell the user.",
        ),
        Refusal::NotGiven => Problem::invalid_request(
            "this session has not given out fencing_token, or has been at rest for a week; leave it out, or bring the one of the session's newest answer",
        ),
        Refusal::Busy { retry_after } => Problem::new(
            Slug::SessionBusy,
            "Nothing was run: another call of this session is still under way, or its outcome is not known yet. Wait, then send the same request again with the same key.",
        )
        .waiting(*retry_after),
        Refusal::Spent { retry_after } => Problem::new(
            Slug::BudgetExceeded,
            format!(
                "Nothing was run: this tool has been called as often as it may be for now. There is room again in {} seconds. Ask yourself whether this call is really needed; then send the same request with the same key.",
                retry_after.as_millis().div_ceil(1000)
            ),
        )
        .waiting(*retry_after),
        Refusal::Similar { call_id } => {
            let detail = format!(
                "Nothing was run: call {call_id} asked for the same a short while ago, with another key. If this repeats that call, do not send it again: GET /v1/calls/{call_id} says what became of it. Only if both are meant, send it again with \"confirm_duplicate_of\": \"{call_id}\"."
            );
            Problem { similar_to: Some(*call_id), ..Problem::new(Slug::PossibleDuplicate, detail) }
        }
        Refusal::SimilarPending { call_id, retry_after } => {
            let detail = match retry_after {
                Some(_) => format!(
                    "This request was not run: call {call_id} asked for the same a short while ago, with another key, and its outcome is not known yet. Wait as long as retry_after_ms says, then send the same request again with the same key: if that call has succeeded, you get its result. Do not use a new key."
                ),
                None => format!(
                    "This request was not run: call {call_id} asked for the same a short while ago, with another key, and it may or may not have been executed. The gateway plans no further check. Tell the user, and ask a person to look into the tool's own system and to settle that call; after that the same request, with the same key, gets its result. Do not use a new key."
                ),
            };
            let problem = Problem::new(Slug::PossibleDuplicate, detail);
            Problem {
                similar_to: Some(*call_id),
                effect: Some(Effect::Unknown),
                key_action: Some(KeyAction::Wait),
                retry_after: *retry_after,
                ..problem
            }
        }
    }
}

/// Where the arguments differ, as part of a sentence.
fn named(differs: &Differs) -> String {
    if differs.places.is_empty() {
        String::new()
    } else {
        format!(" (they differ at {})", differs.places.join(", "))
    }
}

fn body_of(failure: &Failure) -> Option<Box<RawValue>> {
    failure
        .body
        .as_deref()
        .and_then(|json| serde_json::from_slice(json).ok())
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
        "This door takes another method; the Allow header says which.",
    )
}
