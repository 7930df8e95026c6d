//! Routes of acts on many calls or sagas: a dry run, or lines that tell how the act goes on.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Http;
use super::auth::Known;
use super::ledger::{As, CallView, given, resolution};
use super::listing::NDJSON;
use super::problem::Problem;
use super::read::{self, Members, Sentence, identity, moment, read_body};
use super::sagas::SagaView;
use crate::core::caller::Caller;
use crate::core::ledger::Filter;
use crate::core::many::Summary;
use crate::gateway::{CallAct, DryRun, Line, LineOf, Many, Report, Reports, SagaAct, Totals};

/// The calls of an act: the filters of `GET /v1/calls`. An absent member filters nothing.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CallFilter)]
pub(super) struct CallFilter {
    /// The tenant of the calls; without it all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saga_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    similar: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 4294967295_u64)]
    duplicates_min: Option<u32>,
    /// `unknown`, which is also meant without it; to resolve calls, `stuck` may be named instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(unknown|stuck)$")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    until: Option<String>,
}

impl CallFilter {
    /// The act on what the filter finds. Calls in other states cannot be acted on.
    fn read(self, act: CallAct, reason: String, states: &[&str]) -> Result<Many<CallAct>, Problem> {
        let filter_json = serde_json::to_string(&self).unwrap_or_default();
        let state = self.state.unwrap_or_else(|| states[0].to_owned());
        if !states.contains(&state.as_str()) {
            let why = format!("filter.state must be {}", states.join(" or "));
            return Err(Problem::invalid_request(&why));
        }
        Ok(Many {
            act,
            tenant: self.tenant.map(|id| identity("tenant", id)).transpose()?,
            filter: Filter {
                trace_id: self.trace_id,
                session_id: self.session_id,
                user_id: self.user_id,
                tool: self.tool,
                key: self.key,
                saga_id: self.saga_id,
                by: self.by,
                similar: self.similar,
                duplicates_min: self.duplicates_min.map(u64::from),
                state: Some(state),
                since: moment("filter.since", self.since)?,
                until: moment("filter.until", self.until)?,
                is_brief: true,
                looks: None,
            },
            filter_json,
            reason,
        })
    }
}

/// An act on the calls that the filters in an address find.
///
/// # Errors
/// It has something else than filters, or a state in which there is nothing to do so to.
pub(super) fn on_calls_of(
    query: &str,
    act: CallAct,
    reason: String,
) -> Result<Many<CallAct>, Problem> {
    let refuse = || Problem::invalid_request("the query cannot be read");
    let uri: Uri = format!("/?{query}").parse().map_err(|_| refuse())?;
    let filter = Query::<CallFilter>::try_from_uri(&uri);
    let Query(filter) = filter.map_err(|error| Problem::invalid_request(&error.body_text()))?;
    let states: &[&str] = match act {
        CallAct::Resolve(_) => &["unknown", "stuck"],
        CallAct::Probe => &["unknown"],
    };
    filter.read(act, reason, states)
}

/// An act on the stuck sagas of a tenant, or of all.
///
/// # Errors
/// It is no name of a tenant.
pub(super) fn on_sagas_of(
    tenant: Option<String>,
    act: SagaAct,
    reason: String,
) -> Result<Many<SagaAct>, Problem> {
    let state = None;
    SagaFilter { tenant, state }.read(act, reason)
}

/// The sagas of an act: those that are stuck.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SagaFilter)]
pub(super) struct SagaFilter {
    /// The tenant of the sagas; without it all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^stuck$")]
    state: Option<String>,
}

impl SagaFilter {
    fn read(self, act: SagaAct, reason: String) -> Result<Many<SagaAct>, Problem> {
        let filter_json = serde_json::to_string(&self).unwrap_or_default();
        if self.state.is_some_and(|state| state != "stuck") {
            return Err(Problem::invalid_request("filter.state must be stuck"));
        }
        Ok(Many {
            act,
            tenant: self.tenant.map(|id| identity("tenant", id)).transpose()?,
            filter: Filter::default(),
            filter_json,
            reason,
        })
    }
}

/// What a dry run has answered. An act is done only if it still holds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Confirmation)]
struct Confirm {
    #[schema(minimum = 0, maximum = 10000)]
    count: usize,
    digest: String,
}

impl From<Confirm> for Summary {
    fn from(confirm: Confirm) -> Self {
        let Confirm { count, digest } = confirm;
        Self { count, digest }
    }
}

/// A person's decision about many unknown calls.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResolveMany)]
pub(super) struct ResolveBody<'a> {
    #[schema(value_type = CallFilter)]
    filter: Members<CallFilter>,
    #[serde(deserialize_with = "read::word")]
    r#as: As,
    /// The result for the duplicates of each; needed if they succeeded, and `null` where the tool answers nothing.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<&'a RawValue>,
    #[schema(inline)]
    reason: Sentence,
    /// Without it nothing is changed.
    #[schema(value_type = Option<Confirm>)]
    confirm: Option<Members<Confirm>>,
}

/// An act on many calls.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActOnCalls)]
pub(super) struct CallsBody {
    #[schema(value_type = CallFilter)]
    filter: Members<CallFilter>,
    #[schema(inline)]
    reason: Sentence,
    /// Without it nothing is changed.
    #[schema(value_type = Option<Confirm>)]
    confirm: Option<Members<Confirm>>,
}

/// An act on many sagas.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActOnSagas)]
pub(super) struct SagasBody {
    #[schema(value_type = SagaFilter)]
    filter: Members<SagaFilter>,
    #[schema(inline)]
    reason: Sentence,
    /// Without it nothing is changed.
    #[schema(value_type = Option<Confirm>)]
    confirm: Option<Members<Confirm>>,
}

/// `POST /v1/calls/resolve`
pub(super) async fn resolve(
    State(http): State<Http>,
    Known(caller): Known,
    body: Body,
) -> Result<Response, Problem> {
    let bytes = read_body(body, http.max_body).await?;
    let body: ResolveBody<'_> = read::object(&bytes)?;
    let act = CallAct::Resolve(resolution(body.r#as, body.result)?);
    let reason = body.reason.checked()?;
    let many = body.filter.0.read(act, reason, &["unknown", "stuck"])?;
    on_calls(&http, &caller, many, body.confirm).await
}

/// `POST /v1/calls/probe`
pub(super) async fn probe(
    State(http): State<Http>,
    Known(caller): Known,
    body: Body,
) -> Result<Response, Problem> {
    let body: CallsBody = read::object(&read_body(body, http.max_body).await?)?;
    let reason = body.reason.checked()?;
    let many = body.filter.0.read(CallAct::Probe, reason, &["unknown"])?;
    on_calls(&http, &caller, many, body.confirm).await
}

async fn on_calls(
    http: &Http,
    caller: &Caller,
    many: Many<CallAct>,
    confirm: Option<Members<Confirm>>,
) -> Result<Response, Problem> {
    let acts = &http.gateway.operator;
    match confirm {
        Some(Members(confirm)) => {
            let reports = acts.act_on_calls(caller, many, confirm.into()).await?;
            Ok(lines(reports))
        }
        None => {
            let found = acts.try_on_calls(caller, &many).await?;
            let sample = found.sample.iter();
            let sample = sample.map(|listed| CallView::of(&listed.record, &listed.duplicates));
            let view = CallsDryRun {
                count: found.summary.count,
                digest: &found.summary.digest,
                refused: found.refused,
                unreadable: found.unreadable,
                sample: sample.collect(),
            };
            Ok(Json(view).into_response())
        }
    }
}

/// `POST /v1/sagas/retry`
pub(super) async fn retry(
    state: State<Http>,
    known: Known,
    body: Body,
) -> Result<Response, Problem> {
    on_sagas(state, known, body, SagaAct::Retry).await
}

/// `POST /v1/sagas/skip`
pub(super) async fn skip(
    state: State<Http>,
    known: Known,
    body: Body,
) -> Result<Response, Problem> {
    on_sagas(state, known, body, SagaAct::Skip).await
}

async fn on_sagas(
    State(http): State<Http>,
    Known(caller): Known,
    body: Body,
    act: SagaAct,
) -> Result<Response, Problem> {
    let body: SagasBody = read::object(&read_body(body, http.max_body).await?)?;
    let reason = body.reason.checked()?;
    let (many, acts) = (body.filter.0.read(act, reason)?, &http.gateway.operator);
    match body.confirm {
        Some(Members(confirm)) => {
            let reports = acts.act_on_sagas(&caller, many, confirm.into()).await?;
            Ok(lines(reports))
        }
        None => {
            let found: DryRun<_> = acts.try_on_sagas(&caller, &many).await?;
            let view = SagasDryRun {
                count: found.summary.count,
                digest: &found.summary.digest,
                refused: found.refused,
                sample: found.sample.iter().map(SagaView::of).collect(),
            };
            Ok(Json(view).into_response())
        }
    }
}

/// What an act would be done to. Nothing was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = CallsDryRun)]
pub(super) struct CallsDryRun<'a> {
    count: usize,
    /// Of the act, the calls, and their states and attempts. The act is confirmed with count and digest.
    digest: &'a str,
    /// How many of them would refuse the act as they are now.
    refused: usize,
    /// Further calls that cannot be read, and are not acted on.
    unreadable: u64,
    /// The newest of them, without arguments and results.
    sample: Vec<CallView<'a>>,
}

/// What an act would be done to. Nothing was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = SagasDryRun)]
pub(super) struct SagasDryRun<'a> {
    count: usize,
    /// Of the act, the sagas, and their states and troubles. The act is confirmed with count and digest.
    digest: &'a str,
    /// How many of them would refuse the act as they are now.
    refused: usize,
    /// The newest of them.
    sample: Vec<SagaView<'a>>,
}

/// What became of one target.
#[derive(Serialize)]
struct LineView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saga_id: Option<&'a str>,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    result: &'static str,
    state: Option<&'static str>,
    why: Option<&'a str>,
}

impl<'a> LineView<'a> {
    fn of(line: &'a Line) -> Self {
        let (call_id, saga_id, tool) = match &line.of {
            LineOf::Call { call_id, tool } => (Some(call_id.to_string()), None, Some(&tool[..])),
            LineOf::Saga(id) => (None, Some(&id[..]), None),
        };
        Self {
            call_id,
            saga_id,
            tenant: &line.tenant,
            tool,
            result: line.result.as_str(),
            state: line.state,
            why: line.why.as_deref(),
        }
    }
}

/// The last line.
#[derive(Serialize)]
struct TotalsView<'a> {
    total: usize,
    done: usize,
    changed: usize,
    refused: usize,
    unclear: usize,
    left: usize,
    states: &'a std::collections::BTreeMap<&'static str, usize>,
}

impl<'a> TotalsView<'a> {
    fn of(totals: &'a Totals) -> Self {
        Self {
            total: totals.total,
            done: totals.done,
            changed: totals.changed,
            refused: totals.refused,
            unclear: totals.unclear,
            left: totals.left(),
            states: &totals.states,
        }
    }
}

/// The reports of an act, a line each, as they come.
fn lines(reports: Reports) -> Response {
    let lines = stream::unfold(reports, async |mut reports| {
        let report = reports.recv().await?;
        // A view always serializes.
        let line = match &report {
            Report::Line(line) => serde_json::to_vec(&LineView::of(line)),
            Report::End(totals) => serde_json::to_vec(&TotalsView::of(totals)),
        };
        let mut line = line.unwrap_or_default();
        line.push(b'\n');
        Some((
            Ok::<_, std::convert::Infallible>(Bytes::from(line)),
            reports,
        ))
    });
    let kind = (CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    ([kind], Body::from_stream(lines)).into_response()
}
