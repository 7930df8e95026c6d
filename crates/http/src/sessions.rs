//! The routes of sessions: list, show, unlock, freeze and thaw.

use axum::Json;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::ledger::{EventView, time};
use super::openapi::Route;
use super::problem::{Problem, Slug};
use super::read::{Act, On, QueryOf, TenantQuery, named_tenant, page_query};
use oncegate_engine::SessionFilter;
use oncegate_rules::position::Position;
use oncegate_rules::record::CallId;
use oncegate_rules::session::{Lock, Session, SessionId};

/// The routes of sessions.
pub(super) fn routes() -> Vec<Route> {
    let on_session = |route: Route| {
        let route = route.path("id", "The session's id.");
        let route = route.params::<TenantQuery>().of_one();
        route.problems(&[Slug::InvalidRequest])
    };
    let listed = "Sessions that are frozen or locked, newest first";
    let shown = "What bounds the branches of a session now";
    let unlocked = "Take the session's lock away from its call";
    let frozen = "Let nothing of the session run";
    vec![
        Route::get("/v1/sessions", "list_sessions", listed, list)
            .page::<Parameters, PageView<'_>>("A page; it may be short, and even empty."),
        on_session(Route::get("/v1/sessions/{id}", "show_session", shown, show))
            .json::<SessionView<'_>>("The session; one that was never seen has nothing in it."),
        on_session(Route::act(
            "/v1/sessions/{id}/unlock",
            "unlock_session",
            unlocked,
            unlock,
        ))
        .json::<Unlocked>("The call that held the lock."),
        on_session(Route::act(
            "/v1/sessions/{id}/freeze",
            "freeze_session",
            frozen,
            freeze,
        ))
        .json::<Frozen<'_>>("Whether the session is frozen now."),
        on_session(Route::act(
            "/v1/sessions/{id}/thaw",
            "thaw_session",
            "Let the session go on",
            thaw,
        ))
        .json::<Frozen<'_>>("Whether the session is frozen now."),
    ]
}

/// Which sessions; all that is named must hold.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// Tenant of the sessions; an administrator who names none gets all.
    tenant: Option<String>,
    /// Only sessions that an operator has frozen.
    #[param(pattern = "^true$")]
    frozen: Option<String>,
    /// Only sessions whose lock a call holds.
    #[param(pattern = "^true$")]
    locked: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Sessions, newest first: by their first freeze, or by the call that has their lock.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionPage)]
pub(super) struct PageView<'a> {
    sessions: Vec<SessionView<'a>>,
    /// The cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// `GET /v1/sessions`
async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let QueryOf(asked) = on.target;
    let only_true = |asked: Option<String>| match asked.as_deref() {
        None => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Problem::invalid_request(
            "frozen and locked can only be true",
        )),
    };
    let (frozen, locked) = (only_true(asked.frozen)?, only_true(asked.locked)?);
    if !frozen && !locked {
        let why = "name frozen=true or locked=true: there is no list of all sessions";
        return Err(Problem::invalid_request(why));
    }
    let tenant = named_tenant(asked.tenant)?;
    let filter = SessionFilter { frozen, locked };
    let query = page_query(tenant, filter, asked.cursor, asked.limit)?;
    let sessions = &on.http.gateway.sessions;
    let (found, next) = sessions.list_sessions(&on.caller, &query).await?;
    let page = PageView {
        sessions: found
            .iter()
            .map(|(id, session)| SessionView::of(id, session))
            .collect(),
        next_cursor: next.map(Position::to_cursor),
    };
    Ok(Json(page).into_response())
}

/// `GET /v1/sessions/{id}`
async fn show(on: On<SessionId>) -> Result<Response, Problem> {
    let (sessions, id) = (&on.http.gateway.sessions, &on.target);
    let session = sessions.find_session(&on.caller, id).await?;
    Ok(Json(SessionView::of(id, &session)).into_response())
}

/// `POST /v1/sessions/{id}/unlock`
async fn unlock(Act { on, reason }: Act<SessionId>) -> Result<Response, Problem> {
    let sessions = &on.http.gateway.sessions;
    let unlocking = sessions.unlock_session(&on.caller, &on.target, &reason, None);
    let call_id = unlocking.await?.call_id.0;
    Ok(Json(Unlocked {
        unlocked: true,
        call_id,
    })
    .into_response())
}

/// `POST /v1/sessions/{id}/freeze`
async fn freeze(act: Act<SessionId>) -> Result<Response, Problem> {
    set_frozen(&act, true).await
}

/// `POST /v1/sessions/{id}/thaw`
async fn thaw(act: Act<SessionId>) -> Result<Response, Problem> {
    set_frozen(&act, false).await
}

async fn set_frozen(act: &Act<SessionId>, frozen: bool) -> Result<Response, Problem> {
    let Act { on, reason } = act;
    let (sessions, id) = (&on.http.gateway.sessions, &on.target);
    sessions.set_frozen(&on.caller, id, frozen, reason).await?;
    Ok(Json(Frozen {
        session_id: &id.id,
        tenant: &id.tenant,
        frozen,
    })
    .into_response())
}

/// The lock of a session was taken from this call.
#[derive(Serialize, ToSchema)]
pub(super) struct Unlocked {
    unlocked: bool,
    call_id: Uuid,
}

/// Whether nothing of a session runs until an operator thaws it.
#[derive(Serialize, ToSchema)]
pub(super) struct Frozen<'a> {
    session_id: &'a str,
    /// The tenant of the session: the caller's own, unless the request names one.
    tenant: &'a str,
    frozen: bool,
}

/// The state of a session: its fencing token, its lock, and the calls that wait for the lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView<'a> {
    session_id: &'a str,
    tenant: &'a str,
    /// The newest fencing token.
    #[schema(required)]
    fencing: Option<u64>,
    frozen: bool,
    #[schema(required)]
    lock: Option<LockView>,
    /// The calls that wait for the lock, first in line first.
    waiting: Vec<WaitingView>,
    events: Vec<EventView<'a>>,
}

/// The call that holds a session's lock.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionLock)]
struct LockView {
    call_id: Uuid,
    fencing: u64,
    #[schema(format = DateTime)]
    lease_until: String,
    /// When the lock becomes free; set once the outcome of the call is unknown.
    #[schema(required, format = DateTime)]
    free_from: Option<String>,
}

/// A call that waits for a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionWaiting)]
struct WaitingView {
    call_id: Uuid,
    #[schema(format = DateTime)]
    since: String,
}

impl<'a> SessionView<'a> {
    fn of(id: &'a SessionId, session: &'a Session) -> Self {
        let lock = |lock: &Lock| LockView {
            call_id: lock.call_id.0,
            fencing: lock.token,
            lease_until: time(lock.lease_until),
            free_from: lock.free_from.map(time),
        };
        let waiting = |(call_id, since): &(CallId, Timestamp)| WaitingView {
            call_id: call_id.0,
            since: time(*since),
        };
        Self {
            session_id: &id.id,
            tenant: &id.tenant,
            fencing: session.token,
            frozen: session.frozen,
            lock: session.lock.as_ref().map(lock),
            waiting: session.waiting.iter().map(waiting).collect(),
            events: session.events.iter().map(EventView::of).collect(),
        }
    }
}
