//! The routes of sessions: show, unlock, freeze and thaw.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Http;
use super::ledger::{EventView, time};
use super::problem::Problem;
use super::read::{Act, Named};
use crate::core::session::{Lock, Session, SessionId};

/// `GET /v1/sessions/{id}`
pub(super) async fn show(State(http): State<Http>, named: Named) -> Result<Response, Problem> {
    let id = id(&named);
    let session = http
        .gateway
        .sessions
        .find_session(&named.caller, &id)
        .await?;
    Ok(Json(SessionView::of(&id, &session)).into_response())
}

/// `POST /v1/sessions/{id}/unlock`
pub(super) async fn unlock(State(http): State<Http>, act: Act) -> Result<Response, Problem> {
    let lock = http
        .gateway
        .sessions
        .unlock_session(&act.on.caller, &id(&act.on), &act.reason)
        .await?;
    Ok(Json(Unlocked {
        unlocked: true,
        call_id: lock.call_id.to_string(),
    })
    .into_response())
}

/// `POST /v1/sessions/{id}/freeze`
pub(super) async fn freeze(State(http): State<Http>, act: Act) -> Result<Response, Problem> {
    let id = id(&act.on);
    http.gateway
        .sessions
        .freeze_session(&act.on.caller, &id, &act.reason)
        .await?;
    Ok(Json(Frozen::of(&id, true)).into_response())
}

/// `POST /v1/sessions/{id}/thaw`
pub(super) async fn thaw(State(http): State<Http>, act: Act) -> Result<Response, Problem> {
    let id = id(&act.on);
    http.gateway
        .sessions
        .thaw_session(&act.on.caller, &id, &act.reason)
        .await?;
    Ok(Json(Frozen::of(&id, false)).into_response())
}

fn id(named: &Named) -> SessionId {
    SessionId {
        tenant: named.tenant.clone(),
        id: named.id.clone(),
    }
}

/// The lock of a session was taken from this call.
#[derive(Serialize, ToSchema)]
pub(super) struct Unlocked {
    unlocked: bool,
    #[schema(format = Uuid)]
    call_id: String,
}

/// Whether nothing of a session runs until a person thaws it.
#[derive(Serialize, ToSchema)]
pub(super) struct Frozen<'a> {
    session_id: &'a str,
    /// Whose session that is: who names no tenant means its own.
    tenant: &'a str,
    frozen: bool,
}

impl<'a> Frozen<'a> {
    fn of(id: &'a SessionId, frozen: bool) -> Self {
        Self {
            session_id: &id.id,
            tenant: &id.tenant,
            frozen,
        }
    }
}

/// The state of a session: its token, its lock and its line.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
pub(super) struct SessionView<'a> {
    session_id: &'a str,
    tenant: &'a str,
    /// The newest token.
    #[schema(required)]
    fencing: Option<u64>,
    frozen: bool,
    #[schema(required)]
    lock: Option<LockView>,
    /// First in line first.
    waiting: Vec<WaitingView>,
    events: Vec<EventView<'a>>,
}

/// The call that holds a session's lock.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionLock)]
struct LockView {
    #[schema(format = Uuid)]
    call_id: String,
    fencing: u64,
    #[schema(format = DateTime)]
    lease_until: String,
    /// Set when the outcome of the call is unknown.
    #[schema(required, format = DateTime)]
    free_from: Option<String>,
}

/// A call that waits for a session.
#[derive(Serialize, ToSchema)]
#[schema(as = SessionWaiting)]
struct WaitingView {
    #[schema(format = Uuid)]
    call_id: String,
    #[schema(format = DateTime)]
    since: String,
}

impl<'a> SessionView<'a> {
    fn of(id: &'a SessionId, session: &'a Session) -> Self {
        let waiting = session.waiting.iter();
        Self {
            session_id: &id.id,
            tenant: &id.tenant,
            fencing: session.token,
            frozen: session.frozen,
            lock: session.lock.as_ref().map(LockView::of),
            waiting: waiting
                .map(|(call_id, since)| WaitingView {
                    call_id: call_id.to_string(),
                    since: time(*since),
                })
                .collect(),
            events: session.events.iter().map(EventView::of).collect(),
        }
    }
}

impl LockView {
    fn of(lock: &Lock) -> Self {
        Self {
            call_id: lock.call_id.to_string(),
            fencing: lock.token,
            lease_until: time(lock.lease_until),
            free_from: lock.free_from.map(time),
        }
    }
}
