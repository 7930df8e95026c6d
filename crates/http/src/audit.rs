//! `GET /v1/audit`: the acts of operators.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::ledger::{named, time};
use super::openapi::Route;
use super::problem::Problem;
use super::read::{On, QueryOf, named_tenant, one_of, page_query};
use oncegate_rules::audit::{Action, Audited, Target};
use oncegate_rules::position::Position;

/// The route of the audit.
pub(super) fn routes() -> Vec<Route> {
    let about = "What operators have done, newest first";
    vec![
        Route::get("/v1/audit", "list_acts", about, list)
            .page::<Parameters, PageView<'_>>("A page."),
    ]
}

/// Which acts.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// Tenant of the targets; an administrator who names none gets all.
    tenant: Option<String>,
    #[param(
        pattern = "^(pause|resume|freeze|thaw|unlock|resolve|probe|verify|compensate|complete|abort|retry|skip|reconcile|ignore|adopt|accept-loss|reload|export|erase|approve|decline)$"
    )]
    act: Option<String>,
    /// The `next_cursor` of an earlier answer.
    cursor: Option<String>,
    #[param(value_type = Option<u32>, minimum = 1, maximum = 500)]
    limit: Option<String>,
}

/// Acts of operators, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditPage)]
pub(super) struct PageView<'a> {
    acts: Vec<ActView<'a>>,
    /// The cursor of the next page; null on the last page.
    #[schema(required)]
    next_cursor: Option<String>,
}

/// `GET /v1/audit`
async fn list(on: On<QueryOf<Parameters>>) -> Result<Response, Problem> {
    let QueryOf(asked) = on.target;
    let tenant = named_tenant(asked.tenant)?;
    let action = one_of("act", &Action::ALL, Action::as_str, asked.act)?;
    let query = page_query(tenant, action, asked.cursor, asked.limit)?;
    let ledger = &on.http.gateway.ledger;
    let (acts, next) = ledger.list_acts(&on.caller, &query).await?;
    let page = PageView {
        acts: acts.iter().map(ActView::of).collect(),
        next_cursor: next.map(Position::to_cursor),
    };
    Ok(Json(page).into_response())
}

/// One act of an operator.
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
        pattern = "^(pause|resume|freeze|thaw|unlock|resolve|probe|verify|compensate|complete|abort|retry|skip|reconcile|ignore|adopt|accept-loss|reload|export|erase|approve|decline)$"
    )]
    act: &'static str,
    target: TargetView<'a>,
    /// Empty if the act needs no reason and none was given.
    reason: &'a str,
    /// `refused`: the act was answered with an error, or the reconciliation failed. `unknown`: the gateway ended, the store
    /// did not answer, or the act ended half-way; the target's own history tells more.
    #[schema(pattern = "^(done|refused|unknown)$")]
    outcome: &'static str,
}

/// What an act was done to.
#[derive(Serialize, ToSchema)]
#[schema(as = ActTarget)]
struct TargetView<'a> {
    #[schema(
        pattern = "^(tool|session|saga|call|reconciliation|anomaly|store|configuration|calls|sagas|user)$"
    )]
    kind: &'static str,
    /// Its name or its id, of a user a digest; null for the store and the configuration, and for acts on many.
    #[schema(required)]
    id: Option<String>,
    /// Null if the target belongs to no tenant.
    #[schema(required)]
    tenant: Option<&'a str>,
    /// The tool, or the tool of the call.
    #[schema(required)]
    tool: Option<&'a str>,
    /// Of acts on many: the filter that found the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Object)]
    filter: Option<&'a RawValue>,
    /// Of acts on many: how many targets were confirmed.
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
            act: act.action.as_str(),
            target: TargetView::of(&act.target, &act.tenant),
            reason: &act.reason,
            outcome: audited.outcome.as_str(),
        }
    }
}

impl<'a> TargetView<'a> {
    fn of(target: &'a Target, tenant: &'a str) -> Self {
        let named = |kind, id: Option<String>| Self {
            kind,
            id,
            tenant: named(tenant),
            tool: None,
            filter: None,
            count: None,
            reconciliation: None,
        };
        let many = |kind, filter: &'a str, count| Self {
            filter: serde_json::from_str(filter).ok(),
            count: Some(count),
            ..named(kind, None)
        };
        match target {
            Target::Tool(tool) => Self {
                tool: Some(tool),
                ..named("tool", Some(tool.clone()))
            },
            Target::Session(id) => named("session", Some(id.clone())),
            Target::Saga(id) => named("saga", Some(id.clone())),
            Target::Call { call_id, tool } => Self {
                tool: Some(tool),
                ..named("call", Some(call_id.to_string()))
            },
            Target::Reconciliation(name) => named("reconciliation", Some(name.clone())),
            Target::Anomaly { reconciliation, id } => Self {
                reconciliation: Some(reconciliation),
                ..named("anomaly", Some(id.clone()))
            },
            Target::Store => named("store", None),
            Target::Configuration => named("configuration", None),
            Target::User(digest) => named("user", Some(digest.clone())),
            Target::Calls { filter, count } => many("calls", filter, *count),
            Target::Sagas { filter, count } => many("sagas", filter, *count),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use utoipa::PartialSchema as _;

    use super::*;

    #[test]
    fn the_document_names_each_act_that_the_audit_may_hold() {
        let words = json!(format!("^({})$", Action::ALL.map(Action::as_str).join("|")));
        let act = json!(ActView::schema());
        assert_eq!(act["properties"]["act"]["pattern"], words);
        let parameters = json!(Parameters::into_params(|| None));
        let parameters = parameters.as_array().expect("parameters");
        let is_act = |parameter: &&Value| parameter["name"] == "act";
        let asked = parameters.iter().find(is_act).expect("the filter");
        assert_eq!(asked["schema"]["pattern"], words);
    }
}
