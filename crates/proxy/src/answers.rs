//! The gateway's own answers, in the forms that protocols of agents define.
//!
//! A client must never see an answer that its protocol reads as "make a new key". So what is not over yet, and what is not
//! known, has the status at which clients of the protocol send the same request again, and says when.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use oncegate_http::problem::{Effect, Problem, Slug};

/// Seconds after which to ask again for an unknown call that needs an operator.
const NO_CHECK_PLANNED: u64 = 300;
/// Seconds after which to ask again where nothing better is known.
const SOON: u64 = 1;

/// What the gateway has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    KeyMissing,
    /// The key stands for another request.
    KeyReused,
    InFlight,
    Unknown,
    /// Surely not sent, or the store does not say what was: the same request may come again.
    NotNow,
    /// It was executed, and the answer is lost.
    AnswerLost,
    Other,
}

impl Event {
    fn of(slug: Slug) -> Self {
        match slug {
            Slug::KeyMissing => Self::KeyMissing,
            Slug::KeyReused => Self::KeyReused,
            Slug::CallInProgress | Slug::SessionBusy | Slug::ApprovalRequired => Self::InFlight,
            Slug::OutcomeUnknown => Self::Unknown,
            Slug::ToolUnreachable
            | Slug::ToolUnavailable
            | Slug::ToolPaused
            | Slug::RateLimited
            | Slug::BudgetExceeded
            | Slug::StoreUnavailable
            | Slug::CallerNotChecked
            | Slug::ShuttingDown => Self::NotNow,
            Slug::ResultUnavailable => Self::AnswerLost,
            _ => Self::Other,
        }
    }

    /// A sentence for the client. `None`: that of the problem.
    fn sentence(self) -> Option<&'static str> {
        Some(match self {
            Self::KeyMissing => "An idempotency key is required for this request",
            Self::KeyReused => "The idempotency key was used with a different request",
            Self::InFlight => {
                "A request with this idempotency key is being processed. Send exactly the same request again after Retry-After, with the same key"
            }
            Self::Unknown => {
                "It is not known yet whether the request with this idempotency key was executed. Look at its resource, or send exactly the same request again after Retry-After, with the same key. It is not executed twice"
            }
            Self::NotNow => {
                "The request cannot be processed now. Send exactly the same request again after Retry-After, with the same key"
            }
            Self::AnswerLost => {
                "The request was executed, and its answer is lost. Look at its resource"
            }
            Self::Other => return None,
        })
    }
}

/// What a member of a body holds.
#[derive(Debug, Clone, Copy)]
enum Member {
    /// The kind of error, by its status.
    Kind,
    Code,
    Sentence,
}

/// Answers of one protocol. An event that is not listed has the status and the name of the problem.
#[derive(Debug)]
pub(crate) struct Answers {
    name: &'static str,
    events: &'static [(Event, StatusCode, &'static str)],
    /// The members of a body. Empty: the problem itself (RFC 9457).
    members: &'static [(&'static str, Member)],
}

/// The answers of a gateway that speaks no protocol of agents.
pub(crate) const PROBLEMS: &Answers = &Answers {
    name: "problem",
    events: &[],
    members: &[],
};

const ALL: [&Answers; 4] = [
    PROBLEMS,
    &Answers {
        name: "acp",
        events: &[
            (
                Event::KeyMissing,
                StatusCode::BAD_REQUEST,
                "idempotency_key_required",
            ),
            (
                Event::KeyReused,
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_conflict",
            ),
            (
                Event::InFlight,
                StatusCode::CONFLICT,
                "idempotency_in_flight",
            ),
            (
                Event::Unknown,
                StatusCode::CONFLICT,
                "idempotency_in_flight",
            ),
            (
                Event::NotNow,
                StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable",
            ),
            (
                Event::AnswerLost,
                StatusCode::INTERNAL_SERVER_ERROR,
                "processing_error",
            ),
        ],
        members: &[
            ("type", Member::Kind),
            ("code", Member::Code),
            ("message", Member::Sentence),
        ],
    },
    &Answers {
        name: "ucp",
        events: &[
            (
                Event::KeyMissing,
                StatusCode::BAD_REQUEST,
                "idempotency_key_required",
            ),
            (
                Event::KeyReused,
                StatusCode::CONFLICT,
                "idempotency_conflict",
            ),
            (
                Event::InFlight,
                StatusCode::SERVICE_UNAVAILABLE,
                "in_progress",
            ),
            (
                Event::Unknown,
                StatusCode::SERVICE_UNAVAILABLE,
                "in_progress",
            ),
            (
                Event::NotNow,
                StatusCode::SERVICE_UNAVAILABLE,
                "service_unavailable",
            ),
            (
                Event::AnswerLost,
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
            ),
        ],
        members: &[("code", Member::Code), ("content", Member::Sentence)],
    },
    &Answers {
        name: "payment",
        events: &[
            (Event::KeyReused, StatusCode::CONFLICT, "key-reused"),
            (
                Event::InFlight,
                StatusCode::SERVICE_UNAVAILABLE,
                "call-in-progress",
            ),
            (
                Event::Unknown,
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome-unknown",
            ),
            (
                Event::NotNow,
                StatusCode::SERVICE_UNAVAILABLE,
                "tool-unavailable",
            ),
            (
                Event::AnswerLost,
                StatusCode::INTERNAL_SERVER_ERROR,
                "result-unavailable",
            ),
        ],
        members: &[],
    },
];

/// The answers of this name.
///
/// # Errors
/// There are none; says which there are.
pub(crate) fn named(name: &str) -> Result<&'static Answers, String> {
    let found = ALL.into_iter().find(|answers| answers.name == name);
    found.ok_or_else(|| {
        let names = ALL.map(|answers| answers.name).join(", ");
        format!("must be one of {names}")
    })
}

impl Answers {
    /// The answer for a failure. `is_payment`: whether the request pays.
    pub(crate) fn write(&self, problem: Problem, is_payment: bool) -> Response {
        let event = match Event::of(problem.slug) {
            // It may be the same call: with another credential that does not show.
            Event::KeyReused if problem.effect == Effect::Unknown => Event::Unknown,
            event => event,
        };
        let problem = match is_payment {
            true => problem.for_payment(),
            false => problem,
        };
        let row = self.events.iter().find(|(of, ..)| *of == event);
        let wait = match (event, problem.wait_seconds()) {
            (_, Some(seconds)) => Some(seconds),
            (Event::Unknown, None) => Some(NO_CHECK_PLANNED),
            (Event::InFlight | Event::NotNow, None) if row.is_some() => Some(SOON),
            _ => None,
        };
        let code = match row {
            Some((_, _, code)) => (*code).to_owned(),
            None => problem.slug.as_str().replace('-', "_"),
        };
        let sentence = event.sentence().map(str::to_owned);
        let sentence = sentence.unwrap_or_else(|| problem.detail.clone());
        let problem = match row {
            Some((_, status, _)) => problem.with_status(*status),
            None => problem,
        };
        let (mut parts, problem) = problem.into_response().into_parts();
        if let Some(wait) = wait {
            parts.headers.insert(RETRY_AFTER, wait.into());
        }
        if self.members.is_empty() {
            return Response::from_parts(parts, problem);
        }
        let kind = match parts.status {
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable",
            status if status.is_server_error() => "processing_error",
            _ => "invalid_request",
        };
        let members = self.members.iter().map(|(name, member)| {
            let value = match member {
                Member::Kind => kind,
                Member::Code => &code,
                Member::Sentence => &sentence,
            };
            ((*name).to_owned(), Value::from(value))
        });
        let body = Value::Object(members.collect::<Map<_, _>>()).to_string();
        parts.headers.remove(CONTENT_LENGTH);
        let json = HeaderValue::from_static("application/json");
        parts.headers.insert(CONTENT_TYPE, json);
        Response::from_parts(parts, Body::from(body))
    }
}
