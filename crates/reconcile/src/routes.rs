//! The routes of reconciliations, and of operators' acts on the anomalies that they find.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::report::Report;
use super::run::Period;
use super::service::Reconciler;
use crate::rules::anomaly::{Listed, Request};
use oncegate_engine::ErrorKind;
use oncegate_http::Http;
use oncegate_http::ledger::{millis, time};
use oncegate_http::openapi::Route;
use oncegate_http::problem::{Problem, Slug};
use oncegate_http::read::{
    Act, On, QueryOf, Target, cursor, in_path, limit, moment, read_optional_object,
};
use oncegate_rules::caller::Caller;
use oncegate_rules::ledger::LIMITS;

/// The routes of reconciliations.
pub(super) fn routes(many: Route, reconciler: &Arc<Reconciler>) -> Vec<Route> {
    let on_reconciliation = |route: Route| {
        let route = route.path("name", "The reconciliation's name.");
        route
            .problems(&[Slug::InvalidRequest, Slug::UnknownReconciliation])
            .of_one()
    };
    let on_anomaly = |route: Route| {
        on_reconciliation(route.path("id", "The anomaly's id."))
            .json::<AnomalyView<'_>>("The anomaly, as it is now.")
    };
    let report = "What a run has found, and what is done about it.";
    let routes = [
        Route::get(
            "/v1/reconciliations",
            "list_reconciliations",
            "What is reconciled, and the last run of each",
            list,
        )
        .problems(&[Slug::StoreUnavailable])
        .json::<ListView<'_>>("All that are configured."),
        on_reconciliation(
            Route::get(
                "/v1/reconciliations/{name}",
                "show_reconciliation",
                "A report: the last one, or that of one run",
                show,
            )
            .params::<Wanted>(),
        )
        .json::<ReportView<'_>>(report),
        on_reconciliation(
            Route::post(
                "/v1/reconciliations/{name}/run",
                "run_reconciliation",
                "Compare the ledger with its sources now",
                run,
            )
            .optional_body::<RunBody>()
            .problems(&[Slug::ShuttingDown]),
        )
        .json::<ReportView<'_>>(report),
        on_anomaly(Route::act(
            "/v1/reconciliations/{name}/anomalies/{id}/compensate",
            "compensate_anomaly",
            "Undo the call of an anomaly, or its surplus effect",
            undo,
        )),
        on_anomaly(Route::act(
            "/v1/reconciliations/{name}/anomalies/{id}/ignore",
            "ignore_anomaly",
            "Do nothing about an anomaly",
            ignore,
        )),
        on_anomaly(Route::act(
            "/v1/reconciliations/{name}/anomalies/{id}/adopt",
            "adopt_anomaly",
            "Write an effect that the ledger has forgotten back as a call",
            adopt,
        )),
    ];
    let routes = routes.into_iter().chain([many]);
    let with_service = |route: Route| route.with(reconciler.clone());
    routes.map(with_service).collect()
}

/// An anomaly in a path.
struct AnomalyName {
    reconciliation: String,
    id: String,
}

impl Target for AnomalyName {
    async fn read(parts: &mut Parts, _: &Caller) -> Result<Self, Problem> {
        let (reconciliation, id) = in_path(parts)
            .await
            .ok_or(ErrorKind::UnknownReconciliation)?;
        Ok(Self { reconciliation, id })
    }
}

/// The service of these routes.
type Service = Extension<Arc<Reconciler>>;

/// The name of a reconciliation in a path.
pub(super) struct Name(pub(super) String);

impl FromRequestParts<Http> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Http) -> Result<Self, Problem> {
        let name = in_path(parts).await;
        Ok(Self(name.ok_or(ErrorKind::UnknownReconciliation)?))
    }
}

/// The time that the run looks at; by default one window that ends now, less the lag.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReconciliationRequest)]
struct RunBody {
    #[schema(format = DateTime)]
    since: Option<String>,
    /// Never later than now, less the lag.
    #[schema(format = DateTime)]
    until: Option<String>,
}

/// `GET /v1/reconciliations`
async fn list(on: On<()>, Extension(reconciler): Service) -> Result<Response, Problem> {
    let all = reconciler.list_reconciliations(&on.caller).await?;
    let reconciliations = all.iter().map(|overview| OverviewView {
        name: &overview.name,
        every_ms: overview.every.map(millis),
        next_run_at: overview.next_run_at.map(time),
        looked_until: overview.looked_until.map(time),
        last_run: overview.last.as_ref().map(|report| RunView {
            run: &report.run,
            state: report.state.as_str(),
            error: report.error.as_deref(),
            since: at(report.since),
            until: at(report.until),
            started_at: at(report.started_at),
            counts: &report.counts,
        }),
    });
    Ok(Json(ListView {
        reconciliations: reconciliations.collect(),
    })
    .into_response())
}

/// `POST /v1/reconciliations/{name}/run`
async fn run(
    on: On<()>,
    Name(name): Name,
    Extension(reconciler): Service,
    body: Body,
) -> Result<Response, Problem> {
    let body: RunBody = read_optional_object(body, on.http.max_body).await?;
    let period = Period {
        since: moment("since", body.since)?,
        until: moment("until", body.until)?,
    };
    let report = reconciler.reconcile_now(&on.caller, &name, period).await?;
    shown(&reconciler, &report, 0, LIMITS.1 as usize).await
}

/// `GET /v1/reconciliations/{name}`
async fn show(
    on: On<QueryOf<Wanted>>,
    Name(name): Name,
    Extension(reconciler): Service,
) -> Result<Response, Problem> {
    let QueryOf(wanted) = on.target;
    let limit = limit(wanted.limit, LIMITS.1)?;
    let from: usize = cursor(wanted.cursor, |text| text.parse().ok())?.unwrap_or_default();
    let run = wanted.run.as_deref();
    let report = reconciler.find_report(&on.caller, &name, run).await?;
    shown(&reconciler, &report, from, limit as usize).await
}

/// Which report, and which part of its anomalies.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// The id of the run; by default the last one.
    run: Option<String>,
    /// The `next_cursor` of an earlier answer about the same run.
    #[param(pattern = "^[0-9]{1,5}$")]
    cursor: Option<String>,
    /// The largest number of anomalies in one answer.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

async fn shown(
    reconciler: &Reconciler,
    report: &Report,
    from: usize,
    limit: usize,
) -> Result<Response, Problem> {
    let (anomalies, next) = reconciler.anomalies_of(report, from, limit).await?;
    Ok(Json(ReportView {
        name: &report.name,
        run: &report.run,
        state: report.state.as_str(),
        error: report.error.as_deref(),
        by: &report.by,
        since: at(report.since),
        until: at(report.until),
        started_at: at(report.started_at),
        finished_at: report.finished_at.map(at),
        calls: report.calls,
        items: report.items,
        matched: report.matched,
        undecided: report.undecided,
        suspect: &report.suspect,
        counts: &report.counts,
        new: &report.new,
        anomalies: anomalies.iter().map(AnomalyView::of).collect(),
        next_cursor: next.map(|next| next.to_string()),
    })
    .into_response())
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/compensate`
async fn undo(Extension(reconciler): Service, act: Act<AnomalyName>) -> Result<Response, Problem> {
    on_anomaly(&reconciler, act, Request::Compensate).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/ignore`
async fn ignore(
    Extension(reconciler): Service,
    act: Act<AnomalyName>,
) -> Result<Response, Problem> {
    on_anomaly(&reconciler, act, Request::Ignore).await
}

/// `POST /v1/reconciliations/{name}/anomalies/{id}/adopt`
async fn adopt(Extension(reconciler): Service, act: Act<AnomalyName>) -> Result<Response, Problem> {
    on_anomaly(&reconciler, act, Request::Adopt).await
}

async fn on_anomaly(
    reconciler: &Arc<Reconciler>,
    act: Act<AnomalyName>,
    request: Request,
) -> Result<Response, Problem> {
    let Act { on, reason } = act;
    let AnomalyName { reconciliation, id } = &on.target;
    let acting = reconciler.act_on_anomaly(&on.caller, reconciliation, id, request, &reason);
    Ok(Json(AnomalyView::of(&acting.await?)).into_response())
}

/// Every reconciliation that is configured.
#[derive(Serialize, ToSchema)]
#[schema(as = ReconciliationList)]
struct ListView<'a> {
    reconciliations: Vec<OverviewView<'a>>,
}

/// A reconciliation, and its last run.
#[derive(Serialize, ToSchema)]
#[schema(as = Reconciliation)]
struct OverviewView<'a> {
    name: &'a str,
    /// `null`: the reconciliation runs by request only.
    #[schema(required)]
    every_ms: Option<u64>,
    #[schema(required, format = DateTime)]
    next_run_at: Option<String>,
    /// The end of the time that scheduled runs have looked at.
    #[schema(required, format = DateTime)]
    looked_until: Option<String>,
    #[schema(required)]
    last_run: Option<RunView<'a>>,
}

/// A run, without its anomalies.
#[derive(Serialize, ToSchema)]
#[schema(as = ReconciliationRun)]
struct RunView<'a> {
    run: &'a str,
    #[schema(pattern = "^(running|done|failed)$")]
    state: &'static str,
    #[schema(required)]
    error: Option<&'a str>,
    #[schema(format = DateTime)]
    since: String,
    #[schema(format = DateTime)]
    until: String,
    #[schema(format = DateTime)]
    started_at: String,
    counts: &'a BTreeMap<String, u64>,
}

/// The findings of one run.
#[derive(Serialize, ToSchema)]
#[schema(as = ReconciliationReport)]
struct ReportView<'a> {
    name: &'a str,
    run: &'a str,
    /// A run whose gateway has ended midway stays `running`.
    #[schema(pattern = "^(running|done|failed)$")]
    state: &'static str,
    /// Why the run could not look at everything. It has then acted on nothing.
    #[schema(required)]
    error: Option<&'a str>,
    by: &'a str,
    /// The run judges calls that ended in this time. It asks the source for a little more.
    #[schema(format = DateTime)]
    since: String,
    #[schema(format = DateTime)]
    until: String,
    #[schema(format = DateTime)]
    started_at: String,
    #[schema(required, format = DateTime)]
    finished_at: Option<String>,
    /// How many calls the run has looked at. `items`: how many items of the sources.
    calls: u64,
    items: u64,
    /// How many calls have an effect at the source.
    matched: u64,
    /// How many calls cannot be judged: it is unclear whether the source should have an effect of them.
    undecided: u64,
    /// The sources that differ from too many calls to be believed, each with the reason. Then the run undoes nothing.
    suspect: &'a [String],
    /// How many anomalies there are of each kind.
    counts: &'a BTreeMap<String, u64>,
    /// How many of these anomalies no earlier run had found.
    new: &'a BTreeMap<String, u64>,
    anomalies: Vec<AnomalyView<'a>>,
    /// The cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// One disagreement between ledger and source.
#[derive(Serialize, ToSchema)]
#[schema(as = Anomaly)]
pub(super) struct AnomalyView<'a> {
    /// The id of the anomaly, the same in every run.
    id: &'a str,
    #[schema(pattern = "^(missing|orphan|duplicate|mismatch|settled)$")]
    kind: &'a str,
    source: &'a str,
    /// The value that joins item and call; empty if the item has none.
    key: &'a str,
    #[schema(required)]
    call_id: Option<&'a str>,
    /// The id of the effect at the source, or of the call.
    effect: &'a str,
    #[schema(pattern = "^(report|compensate|webhook|settle|adopt)$")]
    action: &'static str,
    /// How far the action is.
    #[schema(pattern = "^(reported|open|done|given_up|ignored)$")]
    state: &'a str,
    /// Why the action is not done.
    #[schema(required)]
    error: Option<&'a str>,
    /// Whether no earlier run had found the anomaly.
    new: bool,
    detail: &'a str,
    /// When the effect was made, as its source says.
    #[schema(required, format = DateTime)]
    made_at: Option<String>,
    /// Values of the item at the pointers of `show`.
    shown: &'a BTreeMap<String, serde_json::Value>,
    /// The last act of an operator on it.
    #[schema(required)]
    acted: Option<ActedView<'a>>,
}

/// What an operator asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = AnomalyAct)]
struct ActedView<'a> {
    #[schema(pattern = "^(compensate|ignore|adopt)$")]
    act: &'static str,
    /// The name of the token.
    by: &'a str,
    reason: &'a str,
    #[schema(format = DateTime)]
    at: String,
}

impl<'a> AnomalyView<'a> {
    pub(super) fn of(listed: &'a Listed) -> Self {
        Self {
            id: &listed.id,
            kind: listed.kind.as_str(),
            source: &listed.source,
            key: &listed.key,
            call_id: listed.call_id.as_deref(),
            effect: &listed.effect,
            action: listed.action.as_str(),
            state: listed.state.as_str(),
            error: listed.error.as_deref(),
            new: listed.new,
            detail: &listed.detail,
            made_at: listed.made_at.map(at),
            shown: &listed.shown,
            acted: listed.acted.as_ref().map(|acted| ActedView {
                act: acted.act.as_str(),
                by: &acted.by,
                reason: &acted.reason,
                at: at(acted.at),
            }),
        }
    }
}

/// A time in microseconds, as it is stored, in RFC 3339.
fn at(microseconds: i64) -> String {
    Timestamp::from_microsecond(microseconds).map_or_else(|_| String::new(), time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use oncegate_fuzz::{attack, corpus};
    use oncegate_http::read::object;

    #[test]
    fn the_body_of_a_run_is_an_object_or_refused() {
        attack(&corpus("calls"), |bytes| {
            if object::<RunBody>(bytes).is_ok() {
                let body = serde_json::from_slice::<Value>(bytes);
                prop_assert!(body.is_ok_and(|body| body.is_object()));
            }
            Ok(())
        });
    }
}
