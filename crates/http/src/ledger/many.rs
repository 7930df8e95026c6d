//! Acts on many calls or sagas: a dry run first, then, confirmed, one line for each target as it is done.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::listing;
use super::{As, CallView, resolution};
use crate::headers::NDJSON;
use crate::openapi::Route;
use crate::problem::Problem;
use crate::read::{Members, On, Sentence};
use crate::read::{checked_tell, given, moment, named_tenant, query, read_object, word};
use crate::sagas::SagaView;
use oncegate_engine::{CallAct, Line, LineOf, Many, Report, Reports, SagaAct};
use oncegate_rules::ledger::Filter;
use oncegate_rules::many::Summary;

/// The routes of acts on many.
pub(crate) fn routes() -> Vec<Route> {
    let resolved = "Settle many calls whose outcome is unknown";
    let declined = "Decline many calls that wait for approval";
    let probed = "Ask the tools of many unknown calls whether they know the keys";
    let retried = "Try again what is stuck of many sagas";
    let skipped = "Go on with many sagas without undoing the calls that are stuck";
    vec![
        Route::post("/v1/calls/resolve", "resolve_calls", resolved, resolve)
            .on_many::<ResolveBody, CallsDryRun<'_>>(),
        Route::post("/v1/calls/decline", "decline_calls", declined, decline)
            .on_many::<DeclineBody, CallsDryRun<'_>>(),
        Route::post("/v1/calls/probe", "probe_calls", probed, probe)
            .on_many::<CallsBody, CallsDryRun<'_>>(),
        Route::post("/v1/sagas/retry", "retry_sagas", retried, retry)
            .on_many::<SagasBody, SagasDryRun<'_>>(),
        Route::post("/v1/sagas/skip", "skip_sagas", skipped, skip)
            .on_many::<SagasBody, SagasDryRun<'_>>(),
    ]
}

/// The calls of an act: the filters of `GET /v1/calls`. An absent member filters nothing.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CallFilter)]
pub(crate) struct CallFilter {
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
    /// `unknown` is the default; to resolve calls, `stuck` may be named instead. To decline calls `proposed` is the default, and
    /// `approved` may be named instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^(unknown|stuck|proposed|approved)$")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    until: Option<String>,
}

impl CallFilter {
    /// The act on the calls that the filter finds.
    ///
    /// # Errors
    /// The filter names a state to which the act does not apply, or a value that cannot be read.
    fn read(self, act: CallAct, reason: String) -> Result<Many<CallAct>, Problem> {
        let filter_json = serde_json::to_string(&self).unwrap_or_default();
        let states: &[&str] = match act {
            CallAct::Resolve(_) => &["unknown", "stuck"],
            CallAct::Probe => &["unknown"],
            CallAct::Decline { .. } => &["proposed", "approved"],
        };
        let state = self.state.unwrap_or_else(|| states[0].to_owned());
        if !states.contains(&state.as_str()) {
            let why = format!("filter.state must be {}", states.join(" or "));
            return Err(Problem::invalid_request(&why));
        }
        Ok(Many {
            act,
            tenant: named_tenant(self.tenant)?,
            filter: Filter {
                trace_id: self.trace_id,
                session_id: self.session_id,
                user_id: self.user_id,
                user: None,
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
                ..Filter::default()
            },
            filter_json,
            reason,
        })
    }
}

/// An act on the calls that a query filters, for the console.
///
/// # Errors
/// As the act of a request.
pub fn on_calls_of(filters: &str, act: CallAct, reason: String) -> Result<Many<CallAct>, Problem> {
    query::<CallFilter>(filters)?.read(act, reason)
}

/// An act on the stuck sagas of one tenant or of all, for the console.
///
/// # Errors
/// The tenant's name is too long, or has control characters.
pub fn on_sagas_of(
    tenant: Option<String>,
    act: SagaAct,
    reason: String,
) -> Result<Many<SagaAct>, Problem> {
    let stuck = SagaFilter {
        tenant,
        state: None,
    };
    stuck.read(act, reason)
}

/// The sagas of an act: those that are stuck.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SagaFilter)]
pub(crate) struct SagaFilter {
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
            tenant: named_tenant(self.tenant)?,
            filter: Filter::default(),
            filter_json,
            reason,
        })
    }
}

/// The answer of a dry run. The act is done only if that answer still holds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Confirmation)]
struct Confirm {
    #[schema(minimum = 0, maximum = 10000)]
    count: usize,
    digest: String,
}

/// Declares the body of an act on many: the filter, what else the act needs, a reason, and perhaps a confirmation.
macro_rules! body_of_act {
    ($(#[$about:meta])* $name:ident as $schema:ident: $filter:ident, { $($needs:tt)* }) => {
        $(#[$about])*
        #[derive(Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        #[schema(as = $schema)]
        pub(crate) struct $name {
            #[schema(value_type = $filter)]
            filter: Members<$filter>,
            $($needs)*
            #[schema(inline)]
            reason: Sentence,
            /// Without `confirm` nothing is changed.
            #[schema(value_type = Option<Confirm>)]
            confirm: Option<Members<Confirm>>,
        }
    };
}

body_of_act! {
    /// An operator's decision about many unknown calls.
    ResolveBody as ResolveMany: CallFilter, {
        #[serde(deserialize_with = "word")]
        r#as: As,
        /// The result that duplicates of each call get. `succeeded` needs it; `null` if the tool answers nothing.
        #[serde(default, deserialize_with = "given")]
        #[schema(value_type = Option<serde_json::Value>)]
        result: Option<Box<RawValue>>,
    }
}

body_of_act! {
    /// An approver's decision that many calls are never sent.
    DeclineBody as DeclineMany: CallFilter, {
        /// What the agents are told.
        #[schema(max_length = 500, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
        tell: Option<String>,
    }
}

body_of_act! {
    /// An act on many calls.
    CallsBody as ActOnCalls: CallFilter, {}
}

body_of_act! {
    /// An act on many sagas.
    SagasBody as ActOnSagas: SagaFilter, {}
}

/// `POST /v1/calls/resolve`
async fn resolve(on: On<()>, body: Body) -> Result<Response, Problem> {
    let body: ResolveBody = read_object(body, on.http.max_body).await?;
    let act = CallAct::Resolve(resolution(body.r#as, body.result)?);
    let many = body.filter.0.read(act, body.reason.checked()?)?;
    on_calls(&on, many, body.confirm).await
}

/// `POST /v1/calls/decline`
async fn decline(on: On<()>, body: Body) -> Result<Response, Problem> {
    let body: DeclineBody = read_object(body, on.http.max_body).await?;
    let tell = checked_tell(body.tell.unwrap_or_default())?;
    let reason = body.reason.checked()?;
    let many = body.filter.0.read(CallAct::Decline { tell }, reason)?;
    on_calls(&on, many, body.confirm).await
}

/// `POST /v1/calls/probe`
async fn probe(on: On<()>, body: Body) -> Result<Response, Problem> {
    let body: CallsBody = read_object(body, on.http.max_body).await?;
    let many = body.filter.0.read(CallAct::Probe, body.reason.checked()?)?;
    on_calls(&on, many, body.confirm).await
}

async fn on_calls(
    on: &On<()>,
    many: Many<CallAct>,
    confirm: Option<Members<Confirm>>,
) -> Result<Response, Problem> {
    let (acts, caller) = (&on.http.gateway.operator, &on.caller);
    if let Some(Members(Confirm { count, digest })) = confirm {
        let confirmed = Summary { count, digest };
        return Ok(lines(acts.act_on_calls(caller, many, confirmed).await?));
    }
    let found = acts.try_on_calls(caller, &many).await?;
    Ok(Json(CallsDryRun {
        count: found.summary.count,
        digest: &found.summary.digest,
        refused: found.refused,
        unreadable: found.unreadable,
        sample: found.sample.iter().map(listing::view).collect(),
    })
    .into_response())
}

/// `POST /v1/sagas/retry`
async fn retry(on: On<()>, body: Body) -> Result<Response, Problem> {
    on_sagas(&on, body, SagaAct::Retry).await
}

/// `POST /v1/sagas/skip`
async fn skip(on: On<()>, body: Body) -> Result<Response, Problem> {
    on_sagas(&on, body, SagaAct::Skip).await
}

async fn on_sagas(on: &On<()>, body: Body, act: SagaAct) -> Result<Response, Problem> {
    let body: SagasBody = read_object(body, on.http.max_body).await?;
    let many = body.filter.0.read(act, body.reason.checked()?)?;
    let (acts, caller) = (&on.http.gateway.operator, &on.caller);
    if let Some(Members(Confirm { count, digest })) = body.confirm {
        let confirmed = Summary { count, digest };
        return Ok(lines(acts.act_on_sagas(caller, many, confirmed).await?));
    }
    let found = acts.try_on_sagas(caller, &many).await?;
    Ok(Json(SagasDryRun {
        count: found.summary.count,
        digest: &found.summary.digest,
        refused: found.refused,
        sample: found.sample.iter().map(SagaView::of).collect(),
    })
    .into_response())
}

/// The targets of an act, found by a dry run. Nothing was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = CallsDryRun)]
pub(crate) struct CallsDryRun<'a> {
    count: usize,
    /// A digest of the act, the calls, and their states and attempts. `count` and `digest` confirm the act.
    digest: &'a str,
    /// How many targets would refuse the act in their present state.
    refused: usize,
    /// How many further calls cannot be read; the act leaves them alone.
    unreadable: u64,
    /// The newest of the calls, without arguments and results.
    sample: Vec<CallView<'a>>,
}

/// The targets of an act, found by a dry run. Nothing was changed.
#[derive(Serialize, ToSchema)]
#[schema(as = SagasDryRun)]
pub(crate) struct SagasDryRun<'a> {
    count: usize,
    /// A digest of the act, the sagas, and their states and troubles. `count` and `digest` confirm the act.
    digest: &'a str,
    /// How many targets would refuse the act in their present state.
    refused: usize,
    /// The newest of the sagas.
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
    states: &'a BTreeMap<&'static str, usize>,
}

/// The reports of an act as they come, one line each.
fn lines(reports: Reports) -> Response {
    let lines = stream::unfold(reports, async |mut reports| {
        let report = reports.recv().await?;
        // A view always serializes.
        let line = match &report {
            Report::Line(line) => serde_json::to_vec(&LineView::of(line)),
            Report::End(totals) => serde_json::to_vec(&TotalsView {
                total: totals.total,
                done: totals.done,
                changed: totals.changed,
                refused: totals.refused,
                unclear: totals.unclear,
                left: totals.left(),
                states: &totals.states,
            }),
        };
        let mut line = line.unwrap_or_default();
        line.push(b'\n');
        Some((Ok::<_, Infallible>(Bytes::from(line)), reports))
    });
    ([(CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}
