//! Many anomalies in an incident: they are reported, undone in one act, and keep no later run from going on.

use serde_json::{Value, json};

use crate::reconcile::runs::{MENDS, config, report};
use crate::support::books::Books;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, until};

on_both_stores! {
    more_anomalies_than_a_run_may_act_on_are_reported_and_a_reload_lets_them_be_undone,
    all_anomalies_of_a_kind_are_undone_once_after_a_dry_run_with_their_sum,
    a_run_comes_by_itself_when_unknown_calls_have_grown,
}

/// Enough calls that agree: without them the source would not be believed.
async fn make_good(gateway: &Gateway) {
    for n in 100..140 {
        gateway.plan(n, "").await.expect_ok();
    }
}

async fn more_anomalies_than_a_run_may_act_on_are_reported_and_a_reload_lets_them_be_undone(
    stores: &Stores,
) {
    let books = Books::open().await;
    let few = config(&books, &format!("max_anomalies = 2\n{MENDS}"), "");
    let gateway = stores.gateway_of_old(&few).await;
    make_good(&gateway).await;
    for n in 0..3 {
        gateway.plan(n, "duplicate").await.expect_ok();
    }
    let found = report(&gateway).await;
    assert_eq!(
        (found.at("/state"), found.at("/counts"), found.at("/error")),
        (json!("done"), json!({ "duplicate": 3 }), Value::Null)
    );
    let suspect = found.at("/suspect").to_string();
    assert!(
        suspect.contains("3 anomalies are more than max_anomalies = 2"),
        "{suspect}"
    );
    for listed in found.at("/anomalies").as_array().expect("a list") {
        assert_eq!(
            (&listed["action"], &listed["state"]),
            (&json!("report"), &json!("reported"))
        );
    }
    assert_eq!(gateway.anomalies_total("duplicate").await, 3.0);
    assert!(books.undone().is_empty(), "nothing is undone by itself");

    let more = few.replace("max_anomalies = 2", "max_anomalies = 3");
    assert!(gateway.reload(&more).await);
    report(&gateway).await;
    until("they are undone", async || books.undone().len() == 3).await;
}

async fn all_anomalies_of_a_kind_are_undone_once_after_a_dry_run_with_their_sum(stores: &Stores) {
    let books = Books::open().await;
    let shows = "show = [\"/amount\", \"/status\"]";
    let gateway = stores.gateway(&config(&books, shows, "")).await;
    make_good(&gateway).await;
    for n in [3, 5, 7] {
        gateway.plan(n, "duplicate").await.expect_ok();
    }
    report(&gateway).await;
    let ask = async |filter: Value, confirm: Value| -> Answer {
        let mut body = json!({ "filter": filter, "reason": "ticket 4711" });
        if !confirm.is_null() {
            body["confirm"] = confirm;
        }
        let path = "/v1/reconciliations/books/anomalies/compensate";
        gateway.post_to(path, &body).await
    };
    let duplicates = || json!({ "kind": "duplicate" });
    let confirming =
        |dry: &Answer| json!({ "count": dry.at("/count"), "digest": dry.at("/digest") });
    let dry = ask(duplicates(), Value::Null).await.expect_ok();
    assert_eq!(
        (
            dry.at("/count"),
            dry.at("/refused"),
            dry.at("/sums"),
            dry.at("/done")
        ),
        (
            json!(3),
            json!(0),
            json!({ "/amount": { "sum": "15", "without": 0 } }),
            Value::Null
        )
    );
    assert_eq!(dry.at("/sample").as_array().map(Vec::len), Some(3));

    // What was not confirmed is not done: another kind, another digest, or one more.
    let none = ask(json!({ "kind": "orphan" }), confirming(&dry)).await;
    none.expect_problem("not-confirmed");
    let made_up = json!({ "count": 3, "digest": "a-b-c" });
    ask(duplicates(), made_up)
        .await
        .expect_problem("not-confirmed");
    gateway.plan(9, "duplicate").await.expect_ok();
    report(&gateway).await;
    let refused = ask(duplicates(), confirming(&dry)).await;
    let refused = refused.expect_problem("not-confirmed");
    assert!(
        refused
            .text
            .contains("3 were confirmed, and now the filter finds 4"),
        "{}",
        refused.text
    );
    assert!(books.undone().is_empty());
    for (filter, slug) in [
        (json!({ "kind": "settled" }), "invalid-request"),
        (json!({}), "invalid-request"),
    ] {
        ask(filter, Value::Null).await.expect_problem(slug);
    }

    let dry = ask(duplicates(), Value::Null).await.expect_ok();
    assert_eq!(dry.at("/sums/~1amount/sum"), "24");
    let done = ask(duplicates(), confirming(&dry)).await.expect_ok();
    assert_eq!(
        done.at("/done"),
        json!({ "asked": 4, "changed": 0, "refused": 0, "unclear": 0 })
    );
    until("they are undone", async || books.undone().len() == 4).await;
    report(&gateway).await;
    assert!(
        books.undone().values().all(|times| *times == 1),
        "{:?}",
        books.undone()
    );
    let dry = ask(duplicates(), Value::Null).await.expect_ok();
    assert_eq!(dry.at("/count"), 0);
    let acts = gateway.get("/v1/audit?act=compensate").await.expect_ok();
    assert_eq!(
        (acts.at("/acts/0/outcome"), acts.at("/acts/0/reason")),
        (json!("done"), json!("ticket 4711 (4 anomalies: duplicate)"))
    );
}

async fn a_run_comes_by_itself_when_unknown_calls_have_grown(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores
        .gateway(&config(&books, "when_unknown = 3", ""))
        .await;
    let silent = async |n: usize| {
        let call = gateway.plan(n, "silent").await;
        call.expect_problem("outcome-unknown").id()
    };
    let mut calls = Vec::new();
    for n in 0..3 {
        calls.push(silent(n).await);
    }
    for call in &calls {
        until("the source has settled it", async || {
            gateway.state_of(call).await == "succeeded"
        })
        .await;
    }
    let all = gateway.get("/v1/reconciliations/books").await.expect_ok();
    assert_eq!(all.at("/by"), "schedule", "nobody has asked for it");
    let runs = "oncegate_reconciliation_runs_total{reconciliation=\"books\",result=\"done\"}";
    until("the run has ended", async || {
        gateway.metric(runs).await == 1.0
    })
    .await;
    // Fewer bring no run.
    let one = silent(10).await;
    assert_eq!(gateway.state_of(&one).await, "unknown");
    assert_eq!(gateway.metric(runs).await, 1.0);
}
