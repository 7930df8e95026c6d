//! A problem on the wire (RFC 9457).

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Mistake, Problem, Slug};
use crate::http::calls::{CALL_ID, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED};

/// The largest number that every reader of JSON takes for itself.
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
    call_id: Option<&'a str>,
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
    /// What does not fit the tool's schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    errors: Option<Vec<Mistake>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    tool_status: Option<u16>,
    /// What the tool answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    tool_body: Option<Box<RawValue>>,
    /// The call that this one looks like.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    similar_to: Option<String>,
    /// Where the arguments differ from those of the call that has the key: JSON Pointers into `args`. Only for a token
    /// that may read that call, and not for tools that redact arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    differs: Option<Vec<String>>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let row = self.slug.row();
        // A guessed key must not lead to a call of another tenant.
        let named = !matches!(self.slug, Slug::KeyExpired);
        let call_id = self.call_id.filter(|_| named);
        let effect = self.effect.unwrap_or(row.effect);
        let body = Body {
            r#type: format!("/problems/{}", self.slug.as_str()),
            title: row.title,
            status: row.status.as_u16(),
            detail: &self.detail,
            call_id: call_id.as_deref(),
            idempotency_key: self.key.as_deref(),
            effect: effect.as_str(),
            key_action: self.key_action.unwrap_or(row.key_action).as_str(),
            // Rounded up: who comes a moment too early is sent away once more.
            retry_after_ms: self.retry_after.map(|time| {
                u64::try_from(time.as_nanos().div_ceil(1_000_000))
                    .unwrap_or(MOST)
                    .min(MOST)
            }),
            errors: self.errors,
            tool_status: self.tool_status,
            tool_body: self.tool_body,
            similar_to: self.similar_to.map(|call_id| call_id.to_string()),
            differs: self.differs,
        };
        let mut response = (row.status, axum::Json(body)).into_response();
        response.extensions_mut().insert(self.slug);
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(
            GATEWAY_OUTCOME,
            HeaderValue::from_static(effect.as_outcome()),
        );
        if let Some(replayed) = self.replayed {
            headers.insert(
                REPLAYED,
                HeaderValue::from_static(if replayed { "true" } else { "false" }),
            );
        }
        if let Some(time) = self.retry_after {
            headers.insert(
                RETRY_AFTER,
                HeaderValue::from(
                    time.as_secs()
                        .saturating_add(u64::from(time.subsec_nanos() > 0))
                        .min(MOST),
                ),
            );
        }
        if let Some(call_id) = call_id.and_then(|id| HeaderValue::try_from(id).ok()) {
            headers.insert(CALL_ID, call_id);
        }
        if let Some(key) = self.key.and_then(|key| HeaderValue::try_from(key).ok()) {
            headers.insert(IDEMPOTENCY_KEY, key);
        }
        if self.slug == Slug::Unauthenticated {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
