//! The route of an act on many anomalies.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::many::{AskedFor, Found, ManyAnomalies};
use super::routes::{AnomalyView, Name};
use super::service::Reconciler;
use crate::rules::Kind;
use oncegate_http::openapi::Route;
use oncegate_http::problem::{Problem, Slug};
use oncegate_http::read::{Members, On, Sentence, moment, read_object, word};
use oncegate_rules::many::Summary;

pub(super) fn route() -> Route {
    Route::post(
        "/v1/reconciliations/{name}/anomalies/compensate",
        "compensate_anomalies",
        "Undo all anomalies of a kind that are only reported, after a dry run",
        compensate,
    )
    .path("name", "The reconciliation's name.")
    .problems(&[
        Slug::InvalidRequest,
        Slug::UnknownReconciliation,
        Slug::NotConfirmed,
        Slug::ShuttingDown,
    ])
    .of_one()
    .body::<ManyBody>()
    .json::<ManyView<'_>>(
        "Without `confirm` the anomalies of the act; with it what became of them.",
    )
}

/// An act on many anomalies.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompensateAnomalies)]
struct ManyBody {
    #[schema(value_type = AnomalyFilter)]
    filter: Members<AnomalyFilter>,
    #[schema(inline)]
    reason: Sentence,
    /// Without `confirm` nothing is changed.
    #[schema(value_type = Option<Confirm>)]
    confirm: Option<Members<Confirm>>,
}

/// Anomalies that are `reported` or `given_up`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnomalyFilter)]
struct AnomalyFilter {
    #[serde(deserialize_with = "word")]
    #[schema(value_type = String, pattern = "^(missing|orphan|duplicate|mismatch)$")]
    kind: Kind,
    /// The run that has found them first.
    run: Option<String>,
    /// The time in which the source says that the effect was made. An anomaly without such a time is not among them.
    #[schema(format = DateTime)]
    since: Option<String>,
    #[schema(format = DateTime)]
    until: Option<String>,
}

/// `count` and `digest` of the dry run.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnomalyConfirmation)]
struct Confirm {
    #[schema(minimum = 0, maximum = 10000)]
    count: usize,
    digest: String,
}

/// The anomalies of an act.
#[derive(Serialize, ToSchema)]
#[schema(as = ManyAnomalies)]
struct ManyView<'a> {
    count: usize,
    /// A digest of the act, the anomalies and their versions. `count` and `digest` confirm the act.
    digest: &'a str,
    /// How many would refuse the act in their present state.
    refused: usize,
    /// The sum of each value of `show` that is a number, by its pointer.
    sums: BTreeMap<&'a str, SumView>,
    /// The newest of them.
    sample: Vec<AnomalyView<'a>>,
    /// null: this was a dry run.
    #[schema(required)]
    done: Option<AskedView>,
}

/// A sum, in decimal digits.
#[derive(Serialize, ToSchema)]
#[schema(as = AnomalySum)]
struct SumView {
    sum: String,
    /// How many of the anomalies have no number there.
    without: usize,
}

/// How many anomalies had which result.
#[derive(Serialize, ToSchema)]
#[schema(as = AskedAnomalies)]
struct AskedView {
    /// Written down: workers undo these from now on.
    asked: usize,
    /// Changed since the dry run, and not touched.
    changed: usize,
    refused: usize,
    /// Written down or not: the store did not answer.
    unclear: usize,
}

/// `POST /v1/reconciliations/{name}/anomalies/compensate`
async fn compensate(
    on: On<()>,
    Name(name): Name,
    Extension(reconciler): Extension<Arc<Reconciler>>,
    body: Body,
) -> Result<Response, Problem> {
    let body: ManyBody = read_object(body, on.http.max_body).await?;
    let reason = body.reason.checked()?;
    let filter = body.filter.0;
    let many = ManyAnomalies {
        kind: filter.kind,
        run: filter.run,
        since: moment("filter.since", filter.since)?,
        until: moment("filter.until", filter.until)?,
    };
    if many.kind == Kind::Settled {
        let why = "filter.kind: what was settled has nothing to undo";
        return Err(Problem::invalid_request(why));
    }
    let (found, done) = match body.confirm {
        None => (
            reconciler
                .try_to_compensate(&on.caller, &name, &many)
                .await?,
            None,
        ),
        Some(Members(Confirm { count, digest })) => {
            let confirmed = Summary { count, digest };
            let asking = reconciler.compensate_many(&on.caller, &name, many, &reason, confirmed);
            let (found, done) = asking.await?;
            (found, Some(done))
        }
    };
    Ok(Json(view(&found, done)).into_response())
}

fn view(found: &Found, done: Option<AskedFor>) -> ManyView<'_> {
    let sums = found.sums.iter();
    let sums = sums.map(|(pointer, sum)| {
        let (sum, without) = (sum.text(), sum.without);
        (pointer.as_str(), SumView { sum, without })
    });
    ManyView {
        count: found.summary.count,
        digest: &found.summary.digest,
        refused: found.refused,
        sums: sums.collect(),
        sample: found.sample.iter().map(AnomalyView::of).collect(),
        done: done.map(|done| AskedView {
            asked: done.asked,
            changed: done.changed,
            refused: done.refused,
            unclear: done.unclear,
        }),
    }
}
