//! A problem as a response (RFC 9457).

use axum::Extension;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Mistake, Problem, Slug};
use crate::http::calls::{CALL_ID, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED, header};

/// The largest integer that every reader of JSON holds exactly.
const MOST: u64 = (1 << 53) - 1;

/// Why there is no result. What is not known is null; the last five members are there where they apply.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(in crate::http) struct Body<'a> {
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
    /// Whether the call may have changed the world.
    #[schema(pattern = "^(none|done|unknown)$")]
    effect: &'static str,
    /// What the caller should do with its key.
    #[schema(pattern = "^(reuse|rotate|wait|stop)$")]
    key_action: &'static str,
    #[schema(required)]
    retry_after_ms: Option<u64>,
    /// The mistakes by the tool's schema.
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
}

impl Problem {
    /// The members of the problem.
    pub(in crate::http) fn body(&self) -> Body<'_> {
        let row = self.slug.row();
        Body {
            r#type: format!("/problems/{}", row.slug),
            title: row.title,
            status: row.status.as_u16(),
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
        }
    }

    /// The time to wait in whole seconds, rounded up.
    pub(in crate::http) fn wait_seconds(&self) -> Option<u64> {
        let time = self.retry_after?;
        let begun = u64::from(time.subsec_nanos() > 0);
        Some(time.as_secs().saturating_add(begun).min(MOST))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let is_replayed = |replayed| if replayed { "true" } else { "false" };
        let call_id = self.call_id.map(|call_id| call_id.to_string());
        (
            self.slug.row().status,
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
