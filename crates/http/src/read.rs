//! Reads paths, queries and bodies: all routes refuse the same mistakes in the same words.

use std::fmt;
use std::marker::PhantomData;

use axum::body::{self, Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::{RequestExt, RequestPartsExt};
use http_body_util::LengthLimitError;
use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;
use super::{Http, MaxBody, auth};
use oncegate_budget::Exhausted;
use oncegate_engine::{self as gateway, ErrorKind};
use oncegate_rules::caller::Caller;
use oncegate_rules::json;
use oncegate_rules::ledger::LIMITS;
use oncegate_rules::position::Position;
use oncegate_rules::record::CallId;
use oncegate_rules::saga::SagaId;
use oncegate_rules::session::SessionId;

/// The longest reason for an operator's act, in bytes.
const MAX_REASON: usize = 1_000;
/// The longest user, session, saga or trace id, in bytes.
const MAX_ID: usize = 255;

/// The longest sentence for an agent, in characters.
const MAX_TELL: usize = 500;

/// A sentence in one line.
#[derive(Deserialize, ToSchema)]
#[schema(
    max_length = 1000,
    pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
)]
pub struct Sentence(String);

impl Sentence {
    pub fn checked(self) -> Result<String, Problem> {
        reason(self.0)
    }
}

/// Checks what an agent is to be told, because it is stored and shown.
///
/// # Errors
/// It is too long, or not in one line.
pub fn checked_tell(tell: String) -> Result<String, Problem> {
    if tell.chars().count() > MAX_TELL || tell.chars().any(char::is_control) {
        return Err(Problem::invalid_request(
            "tell must be a sentence of at most 500 characters in one line",
        ));
    }
    Ok(tell)
}

/// Why an operator does something.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    // Documented as a type: a description here would make it a string and an object at once.
    #[schema(inline)]
    reason: Sentence,
}

/// Why an operator does something that needs no reason.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OptionalReason {
    /// A sentence in one line.
    #[schema(
        max_length = 1000,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
    )]
    reason: Option<String>,
}

/// The query of a route that finds one thing by its tenant and its id.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TenantQuery {
    /// The tenant of the session, saga or user; by default the caller's own.
    #[param(max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    tenant: Option<String>,
}

impl TenantQuery {
    /// The named tenant, or the caller's own. Whether the caller may read it is decided later.
    pub fn tenant_for(self, caller: &Caller) -> Result<String, Problem> {
        let tenant = self.tenant.unwrap_or_else(|| caller.tenant.clone());
        identity("tenant", tenant)
    }
}

/// The parameters of a request's query.
pub struct QueryOf<T>(pub T);

pub(crate) fn query_of<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let read = Query::try_from_uri(uri);
    let Query(members) = read.map_err(|error| Problem::invalid_request(&error.body_text()))?;
    Ok(members)
}

/// Reads a query that is given as text, as pages of the console have it.
pub fn query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    let uri = format!("/?{query}").parse();
    query_of(&uri.map_err(|_| Problem::invalid_request("the query cannot be read"))?)
}

/// A request of a known caller, and what it is about.
pub struct On<T> {
    pub http: Http,
    pub caller: Caller,
    pub target: T,
}

impl<T: Target> FromRequestParts<Http> for On<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Problem> {
        let caller = auth::caller_of(parts, http)?;
        let (http, target) = (http.clone(), T::read(parts, &caller).await?);
        Ok(Self {
            http,
            caller,
            target,
        })
    }
}

/// A request to act on one thing, with the operator's reason as its body.
pub struct Act<T> {
    pub on: On<T>,
    pub reason: String,
}

impl<T: Target + 'static> FromRequest<Http> for Act<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, http: &Http) -> Result<Self, Problem> {
        let on: On<T> = request.extract_parts_with_state(http).await?;
        let Reason { reason } = read_object(request.into_body(), http.max_body).await?;
        let reason = reason.checked()?;
        Ok(Self { on, reason })
    }
}

/// What a request can be about: a thing that its path names, or its query.
pub trait Target: Sized + Send {
    /// Reads it. The tenant of a session or saga is the caller's, unless the query names one.
    ///
    /// # Errors
    /// It cannot be read; no such thing can exist.
    fn read(
        parts: &mut Parts,
        caller: &Caller,
    ) -> impl Future<Output = Result<Self, Problem>> + Send;
}

/// Nothing in particular.
impl Target for () {
    async fn read(_: &mut Parts, _: &Caller) -> Result<Self, Problem> {
        Ok(())
    }
}

impl<T: DeserializeOwned + Send> Target for QueryOf<T> {
    async fn read(parts: &mut Parts, _: &Caller) -> Result<Self, Problem> {
        query_of(&parts.uri).map(Self)
    }
}

pub struct ToolName(pub String);

impl Target for ToolName {
    async fn read(parts: &mut Parts, _: &Caller) -> Result<Self, Problem> {
        let name = in_path(parts).await.ok_or(ErrorKind::UnknownTool)?;
        Ok(Self(name))
    }
}

impl Target for CallId {
    async fn read(parts: &mut Parts, _: &Caller) -> Result<Self, Problem> {
        let id = in_path(parts).await.ok_or(ErrorKind::UnknownCall)?;
        Ok(Self(id))
    }
}

impl Target for SessionId {
    async fn read(parts: &mut Parts, caller: &Caller) -> Result<Self, Problem> {
        let (tenant, id) = tenant_and_id(parts, caller).await?;
        Ok(Self { tenant, id })
    }
}

impl Target for SagaId {
    async fn read(parts: &mut Parts, caller: &Caller) -> Result<Self, Problem> {
        let (tenant, id) = tenant_and_id(parts, caller).await?;
        Ok(Self { tenant, id })
    }
}

/// A user, as calls name it.
pub struct UserId {
    pub tenant: String,
    pub id: String,
}

impl Target for UserId {
    async fn read(parts: &mut Parts, caller: &Caller) -> Result<Self, Problem> {
        let (tenant, id) = tenant_and_id(parts, caller).await?;
        Ok(Self { tenant, id })
    }
}

async fn tenant_and_id(parts: &mut Parts, caller: &Caller) -> Result<(String, String), Problem> {
    let unreadable = || Problem::invalid_request("the id cannot be read");
    let id = in_path(parts).await.ok_or_else(unreadable)?;
    let tenant = query_of::<TenantQuery>(&parts.uri)?.tenant_for(caller)?;
    Ok((tenant, identity("the id", id)?))
}

/// The variable parts of a path. `None`: they are not text, or not of this type.
pub async fn in_path<T: DeserializeOwned + Send + 'static>(parts: &mut Parts) -> Option<T> {
    parts.extract().await.ok().map(|Path(name)| name)
}

/// Reads a whole body, within the bounds on its size and its time.
pub async fn read_body(body: Body, max_body: MaxBody) -> Result<Bytes, Problem> {
    let read = timeout(max_body.time, body::to_bytes(body, max_body.bytes)).await;
    let read = read.map_err(|_| Problem::body_too_slow())?;
    read.map_err(|error| {
        if is_caused_by::<LengthLimitError>(&error) {
            Problem::body_too_large(max_body.bytes)
        } else if is_caused_by::<Exhausted>(&error) {
            ErrorKind::NoMemory.into()
        } else {
            Problem::invalid_request("the request's body could not be read")
        }
    })
}

fn is_caused_by<E: std::error::Error + 'static>(error: &axum::Error) -> bool {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<E>())
}

/// Reads a JSON object with these members.
pub fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let bounded = json::bound_message(bytes);
    bounded.map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    let read: Result<Members<T>, _> = serde_json::from_slice(bytes);
    let read = read.map_err(|error| Problem::invalid_request(&format!("the body: {error}")))?;
    Ok(read.0)
}

/// A type that is read from a JSON object only.
///
/// A derived `Deserialize` would also take a list, as the members in their order.
pub struct Members<T>(pub T);

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

/// Reads the variant of an enum from a JSON string only.
///
/// A derived `Deserialize` would also take the object `{"word": null}`.
pub fn word<'a, D: Deserializer<'a>, T: Deserialize<'a>>(value: D) -> Result<T, D::Error> {
    let word = String::deserialize(value)?;
    T::deserialize(word.into_deserializer())
}

/// Reads a member, and tells null (`Some`) from an absent member (`None`, by `default`).
pub fn given<'a, D: Deserializer<'a>, T: Deserialize<'a>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// Reads a body that is a JSON object with these members.
pub async fn read_object<T: DeserializeOwned>(body: Body, max_body: MaxBody) -> Result<T, Problem> {
    object(&read_body(body, max_body).await?)
}

/// Reads the same, or an empty body as an object without members.
pub async fn read_optional_object<T: DeserializeOwned + Default>(
    body: Body,
    max_body: MaxBody,
) -> Result<T, Problem> {
    let bytes = read_body(body, max_body).await?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    object(&bytes)
}

/// Reads the reason of an act that needs none. Without one the text is empty.
pub async fn read_optional_reason(body: Body, max_body: MaxBody) -> Result<String, Problem> {
    let read: OptionalReason = read_optional_object(body, max_body).await?;
    read.reason.map_or_else(|| Ok(String::new()), reason)
}

/// Checks a reason, because it is stored, logged and shown.
pub fn reason(reason: String) -> Result<String, Problem> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON || reason.chars().any(char::is_control)
    {
        return Err(Problem::invalid_request(
            "reason must be a sentence of at most 1000 bytes in one line",
        ));
    }
    Ok(reason)
}

/// Checks an id, because it is stored, logged and sent as a header.
pub fn identity(name: &str, id: String) -> Result<String, Problem> {
    if id.len() > MAX_ID || id.chars().any(char::is_control) {
        let why = format!("{name} must be at most {MAX_ID} bytes without control characters");
        return Err(Problem::invalid_request(&why));
    }
    Ok(id)
}

/// Checks the tenant of a list, if one is named.
pub fn named_tenant(tenant: Option<String>) -> Result<Option<String>, Problem> {
    tenant.map(|tenant| identity("tenant", tenant)).transpose()
}

/// Reads a parameter if it is given; refuses a bad one by saying what it must be.
pub fn parameter<T>(
    name: &str,
    must_be: &str,
    text: Option<String>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    let refuse = || Problem::invalid_request(&format!("{name} must be {must_be}"));
    text.map(|text| read(&text).ok_or_else(refuse)).transpose()
}

/// Reads a parameter that must be one of these words.
pub fn one_of<T: Copy>(
    name: &str,
    all: &[T],
    word: impl Fn(T) -> &'static str,
    text: Option<String>,
) -> Result<Option<T>, Problem> {
    let words: Vec<&str> = all.iter().map(|one| word(*one)).collect();
    let must_be = format!("one of {}", words.join(", "));
    parameter(name, &must_be, text, |text| {
        all.iter().copied().find(|one| word(*one) == text)
    })
}

/// Reads a parameter that is a time.
pub fn moment(name: &str, text: Option<String>) -> Result<Option<Timestamp>, Problem> {
    let must_be = "a time of RFC 3339, such as 2026-01-31T12:00:00Z";
    parameter(name, must_be, text, |text| text.parse().ok())
}

/// Reads the limit of a list; without one, the default.
pub fn limit(text: Option<String>, or: u32) -> Result<u32, Problem> {
    let must_be = format!("a number from 1 to {}", LIMITS.1);
    let limit = parameter("limit", &must_be, text, |text| {
        text.parse()
            .ok()
            .filter(|limit| (1..=LIMITS.1).contains(limit))
    });
    Ok(limit?.unwrap_or(or))
}

/// Reads which page of a list is asked for.
pub fn page_query<F>(
    tenant: Option<String>,
    filter: F,
    before: Option<String>,
    most: Option<String>,
) -> Result<gateway::Query<F>, Problem> {
    let before = cursor(before, Position::from_cursor)?;
    let query = gateway::Query::newest(tenant, filter, limit(most, LIMITS.0)?);
    Ok(gateway::Query { before, ..query })
}

/// Reads the cursor of a list.
pub fn cursor<T>(
    text: Option<String>,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    parameter("cursor", "the next_cursor of an earlier answer", text, read)
}
