//! A problem on the wire (RFC 9457).

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{Mistake, Problem, Slug};
use crate::http::calls::{CALL_ID, GATEWAY_OUTCOME, IDEMPOTENCY_KEY, REPLAYED};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<String>, nullable = false)]
    differs: Option<&'a [String]>,
}

impl Problem {
    /// The members of the problem.
    pub(in crate::http) fn body(&self) -> Body<'_> {
        let row = self.slug.row();
        Body {
            r#type: format!("/problems/{}", self.slug.as_str()),
            title: row.title,
            status: row.status.as_u16(),
            detail: &self.detail,
            call_id: self.call_id(),
            idempotency_key: self.key.as_deref(),
            effect: self.effect().as_str(),
            key_action: self.key_action().as_str(),
            // Rounded up: who comes a moment too early is sent away once more.
            retry_after_ms: self.retry_after.map(|time| {
                u64::try_from(time.as_nanos().div_ceil(1_000_000))
                    .unwrap_or(MOST)
                    .min(MOST)
            }),
            errors: self.errors.as_deref(),
            tool_status: self.tool_status,
            tool_body: self.tool_body.as_deref(),
            similar_to: self.similar_to.map(|call_id| call_id.to_string()),
            differs: self.differs.as_deref(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.slug.row().status;
        let mut response = (status, axum::Json(self.body())).into_response();
        response.extensions_mut().insert(self.slug);
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(
            GATEWAY_OUTCOME,
            HeaderValue::from_static(self.effect().as_outcome()),
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
        if let Some(call_id) = self.call_id().and_then(|id| HeaderValue::try_from(id).ok()) {
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
