//! `GET /v1/audit`: what persons have done.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Http;
use super::auth::Known;
use super::ledger::{named, time};
use super::problem::Problem;
use super::read::{QueryOf, cursor, identity, limit};
use crate::core::audit::{Audited, Deed, Target};
use crate::core::ledger::LIMITS;
use crate::core::position::Position;
use crate::gateway::AuditQuery;

/// `GET /v1/audit`
pub(super) async fn list(
    State(http): State<Http>,
    Known(caller): Known,
    QueryOf(asked): QueryOf<Parameters>,
) -> Result<Response, Problem> {
    let deed = asked.act.map(|word| {
        let deed = Deed::ALL.into_iter().find(|deed| deed.as_str() == word);
        deed.ok_or_else(|| {
            let words = Deed::ALL.map(Deed::as_str).join(", ");
            Problem::invalid_request(&format!("act must be one of {words}"))
        })
    });
    let tenant = asked.tenant.map(|tenant| identity("tenant", tenant));
    let query = AuditQuery {
        tenant: tenant.transpose()?,
        deed: deed.transpose()?,
        before: cursor(asked.cursor, Position::from_cursor)?,
        limit: limit(asked.limit, LIMITS.0)?,
    };
    let (acts, next) = http.gateway.ledger.list_acts(&caller, &query).await?;
    let page = PageView {
        acts: acts.iter().map(ActView::of).collect(),
        next_cursor: next.map(|place| place.to_cursor()),
    };
    Ok(Json(page).into_response())
}

/// Which acts.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// Tenant of the targets; an administrator who names none gets all.
    tenant: Option<String>,
    #[param(
        pattern = "^(pause|resume|freeze|thaw|unlock|resolve|probe|verify|compensate|complete|abort|retry|skip|reconcile|ignore|adopt|accept-loss)$"
    )]
    act: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Acts of persons, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditPage)]
pub(super) struct PageView<'a> {
    acts: Vec<ActView<'a>>,
    /// Where to go on, unless this was all.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// One act of a person.
#[derive(Serialize, ToSchema)]
#[schema(as = Act)]
struct ActView<'a> {
    #[schema(format = Uuid)]
    act_id: &'a str,
    #[schema(format = DateTime)]
    at: String,
    /// The name of the token.
    by: &'a str,
    #[schema(
        pattern = "^(pause|resume|freeze|thaw|unlock|resolve|probe|verify|compensate|complete|abort|retry|skip|reconcile|ignore|adopt|accept-loss)$"
    )]
    act: &'static str,
    target: TargetView<'a>,
    /// Empty where the act needs none.
    reason: &'a str,
    /// `refused`: it was answered with an error, or a reconciliation failed. `unknown`: its gateway ended, its store did
    /// not answer, or it ended half-way; the target's own history says.
    #[schema(pattern = "^(done|refused|unknown)$")]
    outcome: &'static str,
}

/// What an act was done to.
#[derive(Serialize, ToSchema)]
#[schema(as = ActTarget)]
struct TargetView<'a> {
    #[schema(pattern = "^(tool|session|saga|call|reconciliation|anomaly|store|calls|sagas)$")]
    kind: &'static str,
    /// Its name or its id; null for the store, and for many.
    #[schema(required)]
    id: Option<String>,
    /// Null for what belongs to no tenant.
    #[schema(required)]
    tenant: Option<&'a str>,
    /// The tool, or the tool of the call.
    #[schema(required)]
    tool: Option<&'a str>,
    /// Of many: the filter that found them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Object)]
    filter: Option<&'a RawValue>,
    /// Of many: how many were confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<usize>,
    /// The reconciliation of the anomaly.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reconciliation: Option<&'a str>,
}

impl<'a> ActView<'a> {
    fn of(audited: &'a Audited) -> Self {
        let act = &audited.act;
        Self {
            act_id: &audited.id,
            at: time(audited.at),
            by: &act.by,
            act: act.deed.as_str(),
            target: TargetView::of(&act.target, &act.tenant),
            reason: &act.reason,
            outcome: audited.outcome.as_str(),
        }
    }
}

impl<'a> TargetView<'a> {
    fn of(target: &'a Target, tenant: &'a str) -> Self {
        let (kind, id, tool) = match target {
            Target::Tool(name) => ("tool", Some(name.clone()), Some(name.as_str())),
            Target::Session(id) => ("session", Some(id.clone()), None),
            Target::Saga(id) => ("saga", Some(id.clone()), None),
            Target::Call { call_id, tool } => ("call", Some(call_id.to_string()), Some(&tool[..])),
            Target::Reconciliation(name) => ("reconciliation", Some(name.clone()), None),
            Target::Anomaly { id, .. } => ("anomaly", Some(id.clone()), None),
            Target::Store => ("store", None, None),
            Target::Calls { .. } => ("calls", None, None),
            Target::Sagas { .. } => ("sagas", None, None),
        };
        let many = match target {
            Target::Calls { filter, count } | Target::Sagas { filter, count } => {
                Some((filter, *count))
            }
            _ => None,
        };
        Self {
            kind,
            id,
            tenant: named(tenant),
            tool,
            filter: many.and_then(|(filter, _)| serde_json::from_str(filter).ok()),
            count: many.map(|(_, count)| count),
            reconciliation: match target {
                Target::Anomaly { reconciliation, .. } => Some(reconciliation),
                _ => None,
            },
        }
    }
}
