//! `GET /v1/events`: what happened to calls, in the order in which it was written, for other systems.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::ledger::{EventView, named};
use super::openapi::Route;
use super::problem::{Problem, Slug};
use super::read::{On, QueryOf, limit, moment, named_tenant, one_of};
use oncegate_engine::{FeedEvent, FeedQuery};
use oncegate_rules::outcome::Outcome;

/// How many events a page has if nothing else is asked for.
const USUAL: u32 = 100;

/// The route of events.
pub(super) fn routes() -> Vec<Route> {
    let about = "What happened to calls, in the order in which it was written";
    vec![
        Route::get("/v1/events", "list_events", about, list)
            .problems(&[Slug::WrongState])
            .page::<Parameters, PageView<'_>>("A page."),
    ]
}

/// Which events.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// The `next_cursor` of an earlier answer, or the `cursor` of an event; without it from the oldest event on.
    after: Option<String>,
    /// Tenant of the calls; an administrator who names none gets all.
    tenant: Option<String>,
    /// At this time or later.
    #[param(format = DateTime)]
    since: Option<String>,
    /// Before this time.
    #[param(format = DateTime)]
    until: Option<String>,
    #[param(pattern = "^(executed|not_executed|unknown)$")]
    outcome: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Events, oldest first.
#[derive(Serialize, ToSchema)]
#[schema(as = EventPage)]
pub(super) struct PageView<'a> {
    events: Vec<FedView<'a>>,
    /// Ask for what comes after it, now or later: it is never null.
    next_cursor: &'a str,
    /// Whether there may be more events already.
    has_more: bool,
    /// Events that are left out because their call cannot be read.
    unreadable: u64,
}

/// An event of a call.
#[derive(Serialize, ToSchema)]
#[schema(as = FedEvent)]
struct FedView<'a> {
    cursor: &'a str,
    call_id: String,
    tenant: &'a str,
    tool: &'a str,
    #[schema(required)]
    user_id: Option<&'a str>,
    #[schema(required)]
    session_id: Option<&'a str>,
    #[serde(flatten)]
    event: EventView<'a>,
}

impl<'a> FedView<'a> {
    fn of(fed: &'a FeedEvent) -> Self {
        Self {
            cursor: &fed.cursor,
            call_id: fed.call_id.to_string(),
            tenant: &fed.tenant,
            tool: &fed.tool,
            user_id: named(&fed.user_id),
            session_id: named(&fed.session_id),
            event: EventView::of(&fed.entry),
        }
    }
}

/// `GET /v1/events`
async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let QueryOf(asked) = on.target;
    let words = Outcome::WORDS;
    let query = FeedQuery {
        after: asked.after,
        tenant: named_tenant(asked.tenant)?,
        since: moment("since", asked.since)?,
        until: moment("until", asked.until)?,
        outcome: one_of("outcome", &words, |word| word, asked.outcome)?.map(str::to_owned),
        limit: limit(asked.limit, USUAL)?,
    };
    let page = on
        .http
        .gateway
        .ledger
        .list_events(&on.caller, &query)
        .await?;
    let view = PageView {
        events: page.events.iter().map(FedView::of).collect(),
        next_cursor: &page.next,
        has_more: page.has_more,
        unreadable: page.unreadable,
    };
    Ok(Json(view).into_response())
}
