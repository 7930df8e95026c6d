//! `GET /v1/calls`: the calls that pass a filter, as pages or as one stream of lines.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::CallView;
use crate::Http;
use crate::headers::{NDJSON, accepts};
use crate::openapi::Route;
use crate::problem::{Problem, Slug};
use crate::read::{On, QueryOf, moment, one_of, page_query, parameter, query};
use oncegate_engine::{Error, Query};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::{Filter, Listed, Page, STATES};
use oncegate_rules::position::Position;

/// The route of the list.
pub(crate) fn routes() -> Vec<Route> {
    let about = "Calls that pass a filter, newest first";
    vec![
        Route::get("/v1/calls", "list_calls", about, list)
            .params::<Parameters>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::RateLimited,
                Slug::StoreUnavailable,
            ])
            .json_or_lines::<PageView<'_>>(
                "A page; or, if lines are accepted, all calls, one a line.",
            ),
    ]
}

/// How many calls a stream reads at once.
pub(super) const STREAMED_AT_ONCE: u32 = 100;

/// `GET /v1/calls`
async fn list(on: On<QueryOf<Parameters>>, headers: HeaderMap) -> Result<Response, Problem> {
    let (http, caller, query) = (on.http, on.caller, read(on.target.0)?);
    if accepts(&headers, NDJSON) {
        return stream_lines(http, caller, query).await;
    }
    let page = http.gateway.ledger.list_calls(&caller, &query).await?;
    Ok(Json(PageView {
        calls: page.found.iter().map(view).collect(),
        next_cursor: page.next.map(Position::to_cursor),
    })
    .into_response())
}

/// The parameters of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    /// Tenant of the calls; an administrator who names none gets all.
    tenant: Option<String>,
    trace_id: Option<String>,
    session_id: Option<String>,
    user_id: Option<String>,
    tool: Option<String>,
    key: Option<String>,
    saga_id: Option<String>,
    /// The name of the token that made the calls; empty: calls of the gateway itself.
    by: Option<String>,
    /// Whether an earlier call looked the same when the call began (`similar` of its tool).
    #[param(value_type = Option<bool>)]
    similar: Option<String>,
    /// At least this many requests have repeated the call.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 4294967295_u64)]
    duplicates_min: Option<String>,
    #[param(
        pattern = "^(running|succeeded|failed|unknown|compensating|compensated|stuck|proposed|approved)$"
    )]
    state: Option<String>,
    /// Created at this time or later.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Created before this time.
    #[param(format = DateTime)]
    until: Option<String>,
    /// Changed at this time or later.
    #[param(format = DateTime)]
    updated_since: Option<String>,
    /// The outcome was unknown at some time from this one on, even if it is known now.
    #[param(format = DateTime)]
    unknown_since: Option<String>,
    /// The outcome was unknown at some time before this one.
    #[param(format = DateTime)]
    unknown_until: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Reads the parameters of the list from a query, for the console.
///
/// # Errors
/// A parameter is unknown, or its value cannot be read.
pub fn read_query(parameters: &str) -> Result<Query<Filter>, Problem> {
    read(query(parameters)?)
}

fn read(asked: Parameters) -> Result<Query<Filter>, Problem> {
    let state = one_of("state", &STATES, |word| word, asked.state)?;
    let at_least = |text: &str| text.parse::<u32>().ok();
    let filter = Filter {
        trace_id: asked.trace_id,
        session_id: asked.session_id,
        user_id: asked.user_id,
        user: None,
        tool: asked.tool,
        key: asked.key,
        saga_id: asked.saga_id,
        by: asked.by,
        similar: parameter("similar", "true or false", asked.similar, |text| {
            text.parse().ok()
        })?,
        duplicates_min: parameter(
            "duplicates_min",
            "a whole number",
            asked.duplicates_min,
            at_least,
        )?
        .map(u64::from),
        state: state.map(str::to_owned),
        since: moment("since", asked.since)?,
        until: moment("until", asked.until)?,
        updated_since: moment("updated_since", asked.updated_since)?,
        unknown_in: match (asked.unknown_since, asked.unknown_until) {
            (None, None) => None,
            (since, until) => {
                let since = moment("unknown_since", since)?.unwrap_or(Timestamp::MIN);
                let until = moment("unknown_until", until)?.unwrap_or(Timestamp::MAX);
                Some((since, until))
            }
        },
        is_brief: false,
        looks: None,
    };
    page_query(asked.tenant, filter, asked.cursor, asked.limit)
}

/// Calls without their histories, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = CallPage)]
pub(crate) struct PageView<'a> {
    calls: Vec<CallView<'a>>,
    /// The cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

pub(crate) fn view(listed: &Listed) -> CallView<'_> {
    CallView::of(&listed.record, &listed.duplicates)
}

/// Every call from the query's position on, one line each.
///
/// Each page is read once the page before it is sent, so at most one page is in memory. If the store
/// fails midway, the response breaks off, and the client sees that it is incomplete.
async fn stream_lines(
    http: Http,
    caller: Caller,
    query: Query<Filter>,
) -> Result<Response, Problem> {
    let permit = http.gateway.ledger.permit_to_export(&caller)?;
    let query = Query {
        limit: STREAMED_AT_ONCE,
        ..query
    };
    // The first page is read before the response begins, so that a failure still has its status.
    let first = http.gateway.ledger.list_calls(&caller, &query).await?;
    let begin = (Some(first), query, permit);
    let pages = stream::try_unfold(begin, move |(page, query, permit)| {
        let (http, caller) = (http.clone(), caller.clone());
        async move {
            let page = match (page, query.before) {
                (Some(page), _) => page,
                (None, None) => return Ok(None),
                (None, Some(_)) => http.gateway.ledger.list_calls(&caller, &query).await?,
            };
            let query = Query {
                before: page.next,
                ..query
            };
            Ok::<_, Error>(Some((lines(&page), (None, query, permit))))
        }
    });
    Ok(([(CONTENT_TYPE, NDJSON)], Body::from_stream(pages)).into_response())
}

fn lines(page: &Page<Listed>) -> Bytes {
    let mut lines = Vec::new();
    for listed in &page.found {
        // A view always serializes.
        lines.extend(serde_json::to_vec(&view(listed)).unwrap_or_default());
        lines.push(b'\n');
    }
    lines.into()
}
