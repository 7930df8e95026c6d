//! The routes of sagas: list, show, complete, abort, and act on stuck ones.

use axum::Json;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::ledger::{EventView, time};
use super::problem::Problem;
use super::read::{Act, On, QueryOf, TenantQuery};
use super::read::{named_tenant, one_of, page_query, read_optional_reason};
use oncegate_engine::{SagaAct, SagaAt};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record, State as CallState};
use oncegate_rules::saga::{Saga, SagaId, State as SagaState, Trouble};

/// Which sagas.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// Tenant of the sagas; an administrator who names none gets all.
    tenant: Option<String>,
    #[param(pattern = "^(open|completed|compensating|compensated|stuck)$")]
    state: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Sagas without their calls, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = SagaPage)]
pub(super) struct PageView<'a> {
    sagas: Vec<SagaView<'a>>,
    /// The cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// `GET /v1/sagas`
pub(super) async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let QueryOf(asked) = on.target;
    let state = one_of("state", &SagaState::ALL, SagaState::as_str, asked.state)?;
    let tenant = named_tenant(asked.tenant)?;
    let query = page_query(tenant, state, asked.cursor, asked.limit)?;
    let (sagas, next) = on.http.gateway.sagas.list_sagas(&on.caller, &query).await?;
    let page = PageView {
        sagas: sagas.iter().map(SagaView::of).collect(),
        next_cursor: next.map(Position::to_cursor),
    };
    Ok(Json(page).into_response())
}

/// `GET /v1/sagas/{id}`
pub(super) async fn show(on: On<SagaId>) -> Result<Response, Problem> {
    let sagas = &on.http.gateway.sagas;
    Ok(shown(&sagas.find_saga(&on.caller, &on.target).await?))
}

/// `GET /v1/sagas/retry` and `GET /v1/sagas/skip`: the sagas named "retry" and "skip".
///
/// Their paths would otherwise be those of the acts on many sagas, which take only POST.
pub(super) async fn show_named(
    on: On<QueryOf<TenantQuery>>,
    path: MatchedPath,
) -> Result<Response, Problem> {
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    let id = SagaId::new(on.target.0.tenant_for(&on.caller)?, name);
    let sagas = &on.http.gateway.sagas;
    Ok(shown(&sagas.find_saga(&on.caller, &id).await?))
}

/// `POST /v1/sagas/{id}/complete`
pub(super) async fn complete(on: On<SagaId>, body: Body) -> Result<Response, Problem> {
    let reason = read_optional_reason(body, on.http.max_body).await?;
    let sagas = &on.http.gateway.sagas;
    let completing = sagas.complete_saga(&on.caller, &on.target, &reason);
    Ok(shown(&completing.await?))
}

/// `POST /v1/sagas/{id}/abort`
pub(super) async fn abort(Act { on, reason }: Act<SagaId>) -> Result<Response, Problem> {
    let sagas = &on.http.gateway.sagas;
    let aborting = sagas.abort_saga(&on.caller, &on.target, &reason);
    Ok(shown(&aborting.await?))
}

/// `POST /v1/sagas/{id}/retry`
pub(super) async fn retry(act: Act<SagaId>) -> Result<Response, Problem> {
    on_stuck(act, SagaAct::Retry).await
}

/// `POST /v1/sagas/{id}/skip`
pub(super) async fn skip(act: Act<SagaId>) -> Result<Response, Problem> {
    on_stuck(act, SagaAct::Skip).await
}

async fn on_stuck(request: Act<SagaId>, act: SagaAct) -> Result<Response, Problem> {
    let Act { on, reason } = request;
    let sagas = &on.http.gateway.sagas;
    let acting = sagas.act_on_stuck(&on.caller, act, &on.target, &reason, None);
    Ok(shown(&acting.await?))
}

/// `POST /v1/calls/{id}/compensate`
pub(super) async fn compensate(Act { on, reason }: Act<CallId>) -> Result<Response, Problem> {
    let sagas = &on.http.gateway.sagas;
    let undoing = sagas.compensate(&on.caller, on.target, &reason);
    Ok(shown(&undoing.await?))
}

fn shown(at: &SagaAt) -> Response {
    let calls = at.calls().map(|record| MemberView {
        call_id: record.intent.call_id.0,
        tool: &record.intent.tool,
        state: record.state.as_str(),
        compensation_call_id: record.compensation().map(|by| by.call_id.0),
        compensation: compensation(record, at.compensation_of(record)),
    });
    Json(SagaView {
        calls: Some(calls.collect()),
        calls_cut: Some(at.is_cut),
        events: Some(at.saga.events.iter().map(EventView::of).collect()),
        ..SagaView::of(&at.saga)
    })
    .into_response()
}

/// A group of calls that is completed or undone as a whole.
#[derive(Serialize, ToSchema)]
#[schema(as = Saga)]
pub(super) struct SagaView<'a> {
    saga_id: &'a str,
    tenant: &'a str,
    #[schema(pattern = "^(open|completed|compensating|compensated|stuck)$")]
    state: &'static str,
    /// Why the saga was completed or aborted; empty before that.
    reason: &'a str,
    /// What blocks the saga.
    #[schema(required)]
    trouble: Option<TroubleView<'a>>,
    /// How many attempts in a row to undo the next call have failed.
    tries: u32,
    /// Whether the deadline has passed while the saga was open.
    overdue: bool,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
    #[schema(required, format = DateTime)]
    deadline: Option<String>,
    /// When the gateway works on the saga next.
    #[schema(required, format = DateTime)]
    next_at: Option<String>,
    /// The calls in the order in which they were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    calls: Option<Vec<MemberView<'a>>>,
    /// Whether calls are missing here, because they are too many or cannot be read: `/v1/calls?saga_id=` has the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    calls_cut: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    events: Option<Vec<EventView<'a>>>,
}

/// What blocks a saga.
#[derive(Serialize, ToSchema)]
#[schema(as = SagaTrouble)]
struct TroubleView<'a> {
    /// The call that blocks the saga, if a call does.
    #[schema(required)]
    call_id: Option<Uuid>,
    why: &'a str,
}

/// A call of a saga.
#[derive(Serialize, ToSchema)]
#[schema(as = SagaCall)]
struct MemberView<'a> {
    call_id: Uuid,
    tool: &'a str,
    #[schema(pattern = "^(running|succeeded|failed|unknown|compensating|compensated|stuck)$")]
    state: &'static str,
    /// The call that undoes this one, once that is decided.
    #[schema(required)]
    compensation_call_id: Option<Uuid>,
    /// `none`: the call is not undone. `pending`: it will be. `empty`: it never ran, so nothing was sent. `skipped`: an
    /// operator has decided against undoing it. `undone`: an operator has said so, or the call that undid it is no
    /// longer kept. Otherwise the state of the call that undoes it.
    #[schema(pattern = "^(none|pending|empty|skipped|undone|running|succeeded|failed|unknown)$")]
    compensation: &'static str,
}

impl<'a> SagaView<'a> {
    pub(super) fn of(saga: &'a Saga) -> Self {
        let trouble = |trouble: &'a Trouble| TroubleView {
            call_id: trouble.call_id.map(|call_id| call_id.0),
            why: &trouble.why,
        };
        Self {
            saga_id: &saga.id.id,
            tenant: &saga.id.tenant,
            state: saga.state().as_str(),
            reason: &saga.reason,
            trouble: saga.trouble.as_ref().map(trouble),
            tries: saga.work.tries,
            overdue: saga.overdue,
            created_at: time(saga.created_at),
            updated_at: time(saga.updated_at),
            deadline: saga.deadline.map(time),
            next_at: saga.work.due.at().map(time),
            calls: None,
            calls_cut: None,
            events: None,
        }
    }
}

/// How far a call is undone, in one word. `undoing`: the stored call that undoes it.
pub(super) fn compensation(record: &Record, undoing: Option<&Record>) -> &'static str {
    let is_decided = record.compensation().is_some();
    match (record.undo.as_ref(), undoing, &record.state) {
        (None, ..) => "none",
        (Some(undo), ..) if undo.skipped => "skipped",
        (_, _, CallState::Compensated(None)) if !is_decided => "empty",
        (_, Some(undoing), CallState::Compensated(_))
            if !matches!(undoing.state, CallState::Succeeded(_)) =>
        {
            "undone"
        }
        (_, None, CallState::Compensated(_)) => "undone",
        (_, Some(undoing), _) => undoing.state.as_str(),
        (_, None, _) => "pending",
    }
}
