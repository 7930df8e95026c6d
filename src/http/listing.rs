//! `GET /v1/calls`: calls that pass a filter, as pages or as one long stream of lines.

use std::str::FromStr;

use axum::body::{Body, Bytes};
use axum::extract::{Query as QueryParameters, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Http;
use super::auth::Known;
use super::ledger::CallView;
use super::problem::Problem;
use super::read::{QueryOf, accepts, cursor, limit, moment};
use crate::core::caller::Caller;
use crate::core::ledger::{Filter, LIMITS, Listed, Page, STATES};
use crate::core::position::Position;
use crate::gateway::{Error, Query};

/// One call per line.
pub(super) const NDJSON: &str = "application/x-ndjson";
/// Calls that a stream reads at once.
const STREAMED_AT_ONCE: u32 = 100;

/// `GET /v1/calls`
pub(super) async fn list(
    State(http): State<Http>,
    Known(caller): Known,
    QueryOf(asked): QueryOf<Parameters>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let query = read(asked)?;
    if accepts(&headers, NDJSON) {
        return stream_lines(http, caller, query).await;
    }
    let page = http.gateway.ledger.list_calls(&caller, &query).await?;
    Ok(axum::Json(PageView::of(&page)).into_response())
}

/// The parameters of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
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
    /// At least so many requests asked for the call again.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 4294967295_u64)]
    duplicates_min: Option<String>,
    #[param(pattern = "^(running|succeeded|failed|unknown|compensating|compensated|stuck)$")]
    state: Option<String>,
    /// Created at this time or later.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Created before this time.
    #[param(format = DateTime)]
    until: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Reads the query of an address.
///
/// # Errors
/// It has a member that is none, or a value that cannot be read.
pub(super) fn read_query(query: &str) -> Result<Query, Problem> {
    let refuse = || Problem::invalid_request("the query cannot be read");
    let uri: Uri = format!("/?{query}").parse().map_err(|_| refuse())?;
    let asked = QueryParameters::<Parameters>::try_from_uri(&uri);
    let asked = asked.map_err(|error| Problem::invalid_request(&error.body_text()))?;
    read(asked.0)
}

fn read(asked: Parameters) -> Result<Query, Problem> {
    if let Some(state) = &asked.state
        && !STATES.contains(&state.as_str())
    {
        return Err(Problem::invalid_request(&format!(
            "state must be one of {}",
            STATES.join(", ")
        )));
    }
    Ok(Query {
        tenant: asked.tenant,
        filter: Filter {
            trace_id: asked.trace_id,
            session_id: asked.session_id,
            user_id: asked.user_id,
            tool: asked.tool,
            key: asked.key,
            saga_id: asked.saga_id,
            by: asked.by,
            similar: parsed("similar", "true or false", asked.similar)?,
            duplicates_min: parsed::<u32>(
                "duplicates_min",
                "a whole number",
                asked.duplicates_min,
            )?
            .map(u64::from),
            state: asked.state,
            since: moment("since", asked.since)?,
            until: moment("until", asked.until)?,
            is_brief: false,
            looks: None,
        },
        before: cursor(asked.cursor, Position::from_cursor)?,
        limit: limit(asked.limit, LIMITS.0)?,
    })
}

/// Reads a parameter as a value of Rust.
fn parsed<T: FromStr>(name: &str, what: &str, text: Option<String>) -> Result<Option<T>, Problem> {
    let refuse = |_| Problem::invalid_request(&format!("{name} must be {what}"));
    text.map(|text| text.parse().map_err(refuse)).transpose()
}

/// Calls without their histories, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = CallPage)]
pub(super) struct PageView<'a> {
    calls: Vec<CallView<'a>>,
    /// Where to go on, unless this was all.
    #[schema(required)]
    next_cursor: Option<String>,
}

impl<'a> PageView<'a> {
    fn of(page: &'a Page<Listed>) -> Self {
        Self {
            calls: page.found.iter().map(view).collect(),
            next_cursor: page.next.map(Position::to_cursor),
        }
    }
}

fn view(listed: &Listed) -> CallView<'_> {
    CallView::of(&listed.record, &listed.duplicates)
}

/// Every call from here on, a line each.
///
/// A page is read when the one before it is sent, so no more than one is ever in memory. If the
/// store fails on the way, the answer breaks off: it is not whole then.
async fn stream_lines(http: Http, caller: Caller, query: Query) -> Result<Response, Problem> {
    let place = http.gateway.ledger.place_to_export(&caller)?;
    let query = Query {
        limit: STREAMED_AT_ONCE,
        ..query
    };
    // The first page now, so that a refusal or a store that is away is told by its status.
    let first = http.gateway.ledger.list_calls(&caller, &query).await?;
    let begin = (Some(first), query, place);
    let pages = stream::try_unfold(begin, move |(page, query, place)| {
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
            Ok::<_, Error>(Some((lines(&page), (None, query, place))))
        }
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(([kind], Body::from_stream(pages)).into_response())
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
