//! Reads bodies, reasons, ids, times and pages. One place for all routes, so that they refuse the
//! same.

use std::fmt;
use std::marker::PhantomData;

use axum::RequestExt;
use axum::body::{self, Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use http_body_util::LengthLimitError;
use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::auth::Known;
use super::problem::Problem;
use super::{Http, MaxBody};
use crate::budget::Exhausted;
use crate::core::caller::Caller;
use crate::core::ledger::LIMITS;
use crate::core::record::CallId;
use crate::gateway::ErrorKind;

/// The longest reason that a person may give, in bytes.
const MAX_REASON: usize = 1_000;
/// The longest user, session, saga or trace id, in bytes.
const MAX_ID: usize = 255;

/// A sentence in one line.
#[derive(Deserialize, ToSchema)]
#[schema(
    max_length = 1000,
    pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
)]
pub(super) struct Sentence(String);

impl Sentence {
    pub(super) fn checked(self) -> Result<String, Problem> {
        reason(self.0)
    }
}

/// Why a person does something.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reason {
    // Documented as a type: a description here would make it a string and an object at once.
    #[schema(inline)]
    reason: Sentence,
}

/// Why a person does something that needs no reason.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OptionalReason {
    /// A sentence in one line.
    #[schema(
        max_length = 1000,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
    )]
    reason: Option<String>,
}

/// The tenant parameter. An administrator may name another tenant.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    /// Whose it is; the caller's own tenant if it is not named.
    #[param(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    tenant: Option<String>,
}

impl Whose {
    /// The tenant that a caller means.
    pub(super) fn tenant_for(self, caller: &Caller) -> Result<String, Problem> {
        let tenant = self.tenant.unwrap_or_else(|| caller.tenant.clone());
        identity("tenant", tenant)
    }
}

/// The members of a query.
pub(super) struct QueryOf<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Http> for QueryOf<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Http) -> Result<Self, Problem> {
        let read = Query::try_from_uri(&parts.uri);
        read.map(|Query(asked)| Self(asked))
            .map_err(|error| Problem::invalid_request(&error.body_text()))
    }
}

/// The tool in a path.
pub(super) struct ToolName(pub(super) String);

impl FromRequestParts<Http> for ToolName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let named: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, http).await;
        named
            .map(|Path(name)| Self(name))
            .map_err(|_| ErrorKind::UnknownTool.into())
    }
}

/// The call in a path.
pub(super) struct NamedCall(pub(super) CallId);

impl FromRequestParts<Http> for NamedCall {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let named: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, http).await;
        let id = named.ok().and_then(|Path(id)| Uuid::try_parse(&id).ok());
        id.map(|id| Self(CallId(id)))
            .ok_or_else(|| ErrorKind::UnknownCall.into())
    }
}

/// One thing in a path, and its tenant.
pub(super) struct Named {
    pub(super) caller: Caller,
    pub(super) tenant: String,
    pub(super) id: String,
}

impl FromRequestParts<Http> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let Known(caller) = Known::from_request_parts(parts, http).await?;
        let id: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, http).await;
        let Path(id) = id.map_err(|_| Problem::invalid_request("the id cannot be read"))?;
        let QueryOf(whose) = QueryOf::<Whose>::from_request_parts(parts, http).await?;
        let tenant = whose.tenant_for(&caller)?;
        Ok(Self {
            caller,
            tenant,
            id: identity("the id", id)?,
        })
    }
}

/// A person's act on one thing, and why.
pub(super) struct Act {
    pub(super) on: Named,
    pub(super) reason: String,
}

impl FromRequest<Http> for Act {
    type Rejection = Problem;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Problem> {
        let on = request
            .extract_parts_with_state::<Named, Http>(http)
            .await?;
        let reason = read_reason(request.into_body(), http.max_body).await?;
        Ok(Self { on, reason })
    }
}

/// A person's act on one call, and why.
pub(super) struct ActOnCall {
    pub(super) caller: Caller,
    pub(super) call_id: CallId,
    pub(super) reason: String,
}

impl FromRequest<Http> for ActOnCall {
    type Rejection = Problem;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Problem> {
        let Known(caller) = request.extract_parts_with_state(http).await?;
        let NamedCall(call_id) = request.extract_parts_with_state(http).await?;
        Ok(Self {
            caller,
            call_id,
            reason: read_reason(request.into_body(), http.max_body).await?,
        })
    }
}

/// The whole body, if it is short and comes soon.
pub(super) async fn read_body(body: Body, max_body: MaxBody) -> Result<Bytes, Problem> {
    let read = timeout(max_body.time, body::to_bytes(body, max_body.bytes)).await;
    let read = read.map_err(|_| Problem::body_too_slow())?;
    read.map_err(|error| {
        if is_caused_by::<LengthLimitError>(&error) {
            Problem::body_too_large(max_body.bytes)
        } else if is_caused_by::<Exhausted>(&error) {
            Problem::no_room()
        } else {
            Problem::invalid_request("the request's body could not be read")
        }
    })
}

fn is_caused_by<E: std::error::Error + 'static>(error: &axum::Error) -> bool {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<E>())
}

/// Reads an object with these members.
pub(super) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let read: Result<Members<T>, _> = serde_json::from_slice(bytes);
    let read = read.map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    Ok(read.0)
}

/// The members of an object.
///
/// A list is refused. A derived `Deserialize` would read it as the members in their order.
pub(super) struct Members<T>(pub(super) T);

impl<'a, T: Deserialize<'a>> Deserialize<'a> for Members<T> {
    fn deserialize<D: Deserializer<'a>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(OfObject(PhantomData)).map(Self)
    }
}

struct OfObject<T>(PhantomData<T>);

impl<'a, T: Deserialize<'a>> Visitor<'a> for OfObject<T> {
    type Value = T;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

/// Reads one of some words.
///
/// An object is refused. A derived `Deserialize` would read `{"word": null}`, too.
pub(super) fn word<'a, D: Deserializer<'a>, T: Deserialize<'a>>(value: D) -> Result<T, D::Error> {
    let word = String::deserialize(value)?;
    T::deserialize(word.into_deserializer())
}

/// Reads an object, or an empty body.
pub(super) fn optional_object<'a, T: Default + Deserialize<'a>>(
    bytes: &'a [u8],
) -> Result<T, Problem> {
    if bytes.is_empty() {
        Ok(T::default())
    } else {
        object(bytes)
    }
}

/// Reads `{"reason": "…"}`, the reason of a person's act.
pub(super) async fn read_reason(body: Body, max_body: MaxBody) -> Result<String, Problem> {
    let read: Reason = object(&read_body(body, max_body).await?)?;
    read.reason.checked()
}

/// Reads the reason of an act that needs none: the body may be empty, and so may the reason.
pub(super) async fn read_optional_reason(body: Body, max_body: MaxBody) -> Result<String, Problem> {
    let read: OptionalReason = optional_object(&read_body(body, max_body).await?)?;
    read.reason.map_or_else(|| Ok(String::new()), reason)
}

/// Checks a reason: it is stored, logged and read.
pub(super) fn reason(reason: String) -> Result<String, Problem> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON || reason.chars().any(char::is_control)
    {
        return Err(Problem::invalid_request(
            "reason must be a sentence of at most 1000 bytes in one line",
        ));
    }
    Ok(reason)
}

/// Checks an id: it is stored, logged and sent as a header.
pub(super) fn identity(name: &str, id: String) -> Result<String, Problem> {
    if id.len() > MAX_ID || id.chars().any(char::is_control) {
        let why = format!("{name} must be at most {MAX_ID} bytes without control characters");
        return Err(Problem::invalid_request(&why));
    }
    Ok(id)
}

/// Reads a time.
pub(super) fn moment(name: &str, text: Option<String>) -> Result<Option<Timestamp>, Problem> {
    let refuse = |_| {
        Problem::invalid_request(&format!(
            "{name} must be a time of RFC 3339, such as 2026-01-31T12:00:00Z"
        ))
    };
    text.map(|text| text.parse::<Timestamp>())
        .transpose()
        .map_err(refuse)
}

/// Reads the limit of a list; without one, the default.
pub(super) fn limit(text: Option<String>, or: u32) -> Result<u32, Problem> {
    let limit = text.map_or(Some(or), |text| text.parse().ok());
    let limit = limit.filter(|limit| (1..=LIMITS.1).contains(limit));
    limit.ok_or_else(|| {
        Problem::invalid_request(&format!("limit must be a number from 1 to {}", LIMITS.1))
    })
}

/// Whether a caller accepts this media type.
pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let lines = headers.get_all(ACCEPT).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|accepted| accepted.trim().starts_with(kind))
}

/// Reads the cursor of a list.
pub(super) fn cursor<T>(
    text: Option<String>,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let refuse = || Problem::invalid_request("cursor must be the next_cursor of an earlier answer");
    text.map(|text| parse(&text).ok_or_else(refuse)).transpose()
}
