//! The wire: what a request says, and what a failure answers.

use std::convert::Infallible;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinError;

/// Whom an effect was for: the headers of the request, as they came.
pub(super) struct Tag {
    pub(super) idempotency_key: Option<String>,
    pub(super) call_id: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) fencing_token: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Tag {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let text =
            |name| Some(String::from_utf8_lossy(parts.headers.get(name)?.as_bytes()).into_owned());
        Ok(Self {
            idempotency_key: text("idempotency-key"),
            call_id: text("x-call-id"),
            session_id: text("x-session-id"),
            fencing_token: text("fencing-token"),
        })
    }
}

/// A JSON body, whatever its content type. Members that we do not know are ignored.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state).await?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let fields = error.is_data(); // JSON, but not what this endpoint takes
            let status = if fields {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::BAD_REQUEST
            };
            Failure::new(status, format!("the body: {error}"))
        })
    }
}

/// A request that had no effect, and why.
pub(super) struct Failure {
    status: StatusCode,
    error: String,
    newest_token: Option<i64>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            newest_token: None,
        }
    }

    pub(super) fn stale(newest_token: i64) -> Self {
        let failure = Self::new(StatusCode::CONFLICT, "stale-fencing-token");
        Self {
            newest_token: Some(newest_token),
            ..failure
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.error });
        let Some(newest) = self.newest_token else {
            return (self.status, Json(body)).into_response();
        };
        body["newest"] = newest.into();
        (
            self.status,
            [("fencing-token", newest.to_string())],
            Json(body),
        )
            .into_response()
    }
}

macro_rules! failure_from {
    ($($cause:ty),* => |$it:ident| $failure:expr) => {$(
        impl From<$cause> for Failure {
            fn from($it: $cause) -> Self {
                $failure
            }
        }
    )*};
}

// What axum refuses keeps its status, but speaks JSON.
failure_from!(BytesRejection, PathRejection, QueryRejection => |refusal| {
    Self::new(refusal.status(), refusal.body_text())
});

// What is the shop's own fault goes to its log; the client learns no more than that.
failure_from!(rusqlite::Error, serde_json::Error, JoinError => |fault| {
    tracing::error!(error = %fault, "a request failed");
    Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the shop failed")
});
