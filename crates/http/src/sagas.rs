//! The routes of sagas: list, show, complete, abort, and act on stuck ones.

use axum::Json;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::ledger::{EventView, time};
use super::openapi::Route;
use super::problem::{Problem, Slug};
use super::read::{Act, On, OptionalReason, QueryOf, TenantQuery};
use super::read::{named_tenant, one_of, page_query, read_optional_reason};
use oncegate_engine::{SagaAct, SagaAt};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Record, State as CallState};
use oncegate_rules::saga::{Saga, SagaId, State as SagaState, Trouble};

/// The routes of sagas, and of the call that becomes one by being undone.
pub(super) fn routes() -> Vec<Route> {
    let of_saga = |route: Route| {
        route
            .params::<TenantQuery>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::UnknownSaga,
                Slug::StoreUnavailable,
            ])
            .json::<SagaView<'_>>("The saga with its calls, as it is now.")
    };
    let on_saga =
        |route: Route| of_saga(route.path("id", "The saga's id.")).problems(&[Slug::UnknownPath]);
    let named = "A saga that has this name";
    let completed = "Complete a saga whose plan has come to its end";
    let aborted = "Undo what the saga's calls have done";
    let skipped = "Go on without undoing the call that is stuck";
    vec![
        Route::act(
            "/v1/calls/{id}/compensate",
            "compensate_call",
            "Undo one call",
            compensate,
        )
        .path("id", "The call's id.")
        .problems(&[Slug::UnknownCall])
        .of_one()
        .json::<SagaView<'_>>("The undoing of the call, which is a saga of its own."),
        Route::get("/v1/sagas", "list_sagas", "Sagas, newest first", list)
            .page::<Parameters, PageView<'_>>("A page, without the calls of the sagas."),
        of_saga(Route::get(
            "/v1/sagas/retry",
            "show_saga_named_retry",
            named,
            show_named,
        )),
        of_saga(Route::get(
            "/v1/sagas/skip",
            "show_saga_named_skip",
            named,
            show_named,
        )),
        on_saga(Route::get(
            "/v1/sagas/{id}",
            "show_saga",
            "A saga with its calls",
            show,
        )),
        on_saga(
            Route::post(
                "/v1/sagas/{id}/complete",
                "complete_saga",
                completed,
                complete,
            )
            .optional_body::<OptionalReason>()
            .problems(&[Slug::WrongState]),
        ),
        on_saga(Route::act(
            "/v1/sagas/{id}/abort",
            "abort_saga",
            aborted,
            abort,
        )),
        on_saga(Route::act(
            "/v1/sagas/{id}/retry",
            "retry_saga",
            "Try again what is stuck",
            retry,
        )),
        on_saga(Route::act(
            "/v1/sagas/{id}/skip",
            "skip_saga",
            skipped,
            skip,
        )),
    ]
}

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
async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
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
async fn show(on: On<SagaId>) -> Result<Response, Problem> {
    let sagas = &on.http.gateway.sagas;
    Ok(shown(&sagas.find_saga(&on.caller, &on.target).await?))
}

/// `GET /v1/sagas/retry` and `GET /v1/sagas/skip`: the sagas named "retry" and "skip".
///
/// Their paths would otherwise be those of the acts on many sagas, which take only POST.
async fn show_named(on: On<QueryOf<TenantQuery>>, path: MatchedPath) -> Result<Response, Problem> {
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    let id = SagaId::new(on.target.0.tenant_for(&on.caller)?, name);
    let sagas = &on.http.gateway.sagas;
    Ok(shown(&sagas.find_saga(&on.caller, &id).await?))
}

/// `POST /v1/sagas/{id}/complete`
async fn complete(on: On<SagaId>, body: Body) -> Result<Response, Problem> {
    let reason = read_optional_reason(body, on.http.max_body).await?;
    let sagas = &on.http.gateway.sagas;
    let completing = sagas.complete_saga(&on.caller, &on.target, &reason);
    Ok(shown(&completing.await?))
}

/// `POST /v1/sagas/{id}/abort`
async fn abort(Act { on, reason }: Act<SagaId>) -> Result<Response, Problem> {
    let sagas = &on.http.gateway.sagas;
    let aborting = sagas.abort_saga(&on.caller, &on.target, &reason);
    Ok(shown(&aborting.await?))
}

/// `POST /v1/sagas/{id}/retry`
async fn retry(act: Act<SagaId>) -> Result<Response, Problem> {
    on_stuck(act, SagaAct::Retry).await
}

/// `POST /v1/sagas/{id}/skip`
async fn skip(act: Act<SagaId>) -> Result<Response, Problem> {
    on_stuck(act, SagaAct::Skip).await
}

async fn on_stuck(request: Act<SagaId>, act: SagaAct) -> Result<Response, Problem> {
    let Act { on, reason } = request;
    let sagas = &on.http.gateway.sagas;
    let acting = sagas.act_on_stuck(&on.caller, act, &on.target, &reason, None);
    Ok(shown(&acting.await?))
}

/// `POST /v1/calls/{id}/compensate`
async fn compensate(Act { on, reason }: Act<CallId>) -> Result<Response, Problem> {
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
pub fn compensation(record: &Record, undoing: Option<&Record>) -> &'static str {
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
