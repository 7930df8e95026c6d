//! Acts of operators on anomalies: undo, ignore, and what reports show of them.

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::reconcile::runs::{config, report};
use crate::support::books::Books;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, PATIENCE, PAUSE, until};

on_both_stores! {
    a_reported_effect_is_undone_when_an_operator_asks_for_it_and_the_report_says_who,
    an_ignored_anomaly_stays_ignored_and_may_still_be_undone,
    a_contrary_act_is_refused_with_the_state_and_the_same_act_is_answered_as_before,
    reports_show_few_values_of_the_item_and_nothing_secret,
    a_reload_changes_the_acts_on_anomalies_and_nothing_else_of_a_reconciliation,
}

/// Asks once for an act on an anomaly.
pub(crate) async fn ask_once(gateway: &Gateway, id: &Value, act: &str, reason: &str) -> Answer {
    let id = id.as_str().expect("an id");
    let path = format!("/v1/reconciliations/books/anomalies/{id}/{act}");
    gateway.post_to(&path, &json!({ "reason": reason })).await
}

/// Asks for an act, and says what the anomaly has come to when it is no longer open.
///
/// On a busy machine the store may not answer in time, or a background loop may have taken the anomaly first. The anomaly
/// then stays open for a while. If it is closed meanwhile, another request for the same act may be refused.
pub(crate) async fn ask(gateway: &Gateway, id: &Value, act: &str, reason: &str) -> Answer {
    let is_open = |answer: &Answer| answer.status == 200 && answer.at("/state") == "open";
    let mut answer = ask_once(gateway, id, act, reason).await;
    let patience = Instant::now() + PATIENCE;
    while is_open(&answer) && Instant::now() < patience {
        sleep(PAUSE).await;
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        let all = report.at("/anomalies");
        let closed = all.as_array().and_then(|all| {
            all.iter()
                .find(|one| one["id"] == *id && one["state"] != "open")
        });
        match closed {
            Some(closed) => answer.text = closed.to_string(),
            None => answer = ask_once(gateway, id, act, reason).await,
        }
    }
    answer
}

/// The one anomaly of a report.
pub(crate) fn only(report: &Answer) -> Value {
    let anomalies = report.at("/anomalies");
    assert_eq!(
        anomalies.as_array().map(Vec::len),
        Some(1),
        "{}",
        report.text
    );
    anomalies[0].clone()
}

async fn a_reported_effect_is_undone_when_an_operator_asks_for_it_and_the_report_says_who(
    stores: &Stores,
) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, "", "")).await;
    let effect = books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    assert_eq!(
        (&found["kind"], &found["action"], &found["state"]),
        (&json!("orphan"), &json!("report"), &json!("reported"))
    );
    assert_eq!(found["acted"], Value::Null);

    let asked = ask(&gateway, &found["id"], "compensate", "ticket 4711")
        .await
        .expect_ok();
    assert_eq!(
        (asked.at("/action"), asked.at("/state"), asked.at("/error")),
        (json!("compensate"), json!("done"), Value::Null)
    );
    assert_eq!(books.undone()[&effect], 1);
    let acted = asked.at("/acted");
    assert_eq!(
        (&acted["act"], &acted["by"], &acted["reason"]),
        (&json!("compensate"), &json!("open"), &json!("ticket 4711"))
    );
    let listed = gateway.get("/v1/reconciliations/books").await.expect_ok();
    let listed = only(&listed);
    assert_eq!(
        (&listed["state"], &listed["acted"]),
        (&json!("done"), &acted)
    );
    let audit = gateway.get("/v1/audit?act=compensate").await.expect_ok();
    let act = &audit.at("/acts")[0];
    assert_eq!(
        (&act["by"], &act["reason"], &act["outcome"]),
        (&json!("open"), &json!("ticket 4711"), &json!("done"))
    );
    let target = json!({
        "kind": "anomaly", "id": found["id"], "tenant": null, "tool": null, "reconciliation": "books",
    });
    assert_eq!(act["target"], target);
}

async fn an_ignored_anomaly_stays_ignored_and_may_still_be_undone(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, "", "")).await;
    let effect = books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    let ignored = ask(&gateway, &found["id"], "ignore", "sold by hand").await;
    assert_eq!(ignored.expect_ok().at("/state"), "ignored");
    let on = "on = { orphan = \"compensate\" }";
    assert!(gateway.reload(&config(&books, on, "")).await);
    let again = only(&report(&gateway).await);
    assert_eq!(
        (&again["id"], &again["state"]),
        (&found["id"], &json!("ignored"))
    );
    assert!(books.undone().is_empty(), "an operator has ignored it");
    let asked = ask(&gateway, &found["id"], "compensate", "not sold").await;
    assert_eq!(asked.expect_ok().at("/state"), "done");
    assert_eq!(books.undone()[&effect], 1);
}

/// While a run can find the effect again, the gateway knows that an operator has ignored it.
#[tokio::test]
async fn an_ignored_anomaly_is_kept_as_long_as_the_calls() {
    let books = Books::open().await;
    let config = config(&books, "retention = \"1h\"", "");
    let gateway = Stores::Sqlite.gateway_of_old(&config).await;
    books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    let ignored = ask(&gateway, &found["id"], "ignore", "sold by hand").await;
    assert_eq!(ignored.expect_ok().at("/state"), "ignored");
    let file = rusqlite::Connection::open(gateway.database()).expect("a store");
    let sql = "SELECT (retain_until - created_at) / 3600000000 FROM documents WHERE kind = ?1";
    let kept = |kind: &str| file.query_row(sql, [kind], |row| row.get::<_, i64>(0));
    assert_eq!(kept("anomaly"), Ok(30 * 24));
    assert_eq!(kept("report"), Ok(1));
}

/// The arguments that undo a call do not undo its second effect: the customer's order stays.
#[tokio::test]
async fn a_second_effect_is_not_undone_by_what_undoes_the_call() {
    let books = Books::open().await;
    let by_call = config(&books, "", "").replace("\"/result/id\"", "\"/call/tool_key\"");
    let gateway = Stores::Sqlite.gateway_of_old(&by_call).await;
    gateway.plan(1, "duplicate").await.expect_ok();
    let found = only(&report(&gateway).await);
    assert_eq!(found["kind"], "duplicate");
    let asked = ask(&gateway, &found["id"], "compensate", "ticket 4711").await;
    let error = asked.expect_ok().at("/error").to_string();
    assert!(
        error.contains("may undo another one of the call"),
        "{error}"
    );
    assert!(books.undone().is_empty());
}

async fn a_contrary_act_is_refused_with_the_state_and_the_same_act_is_answered_as_before(
    stores: &Stores,
) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, "", "")).await;
    let effect = books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    let id = &found["id"];
    let first = ask(&gateway, id, "compensate", "first").await.expect_ok();
    let second = ask(&gateway, id, "compensate", "second").await.expect_ok();
    assert_eq!(first.json(), second.json(), "the first reason stays");
    assert_eq!(books.undone()[&effect], 1);
    let refused = ask(&gateway, id, "ignore", "too late").await;
    let refused = refused.expect_problem("wrong-state");
    assert!(
        refused
            .text
            .contains("it is done, and its action is compensate"),
        "{}",
        refused.text
    );
    let audit = gateway.get("/v1/audit?act=ignore").await.expect_ok();
    assert_eq!(audit.at("/acts/0/outcome"), "refused");
    // The anomaly must exist, and the act needs a reason.
    for (id, reason, slug) in [
        (&json!("0000"), "r", "unknown-reconciliation"),
        (id, "", "invalid-request"),
    ] {
        ask(&gateway, id, "compensate", reason)
            .await
            .expect_problem(slug);
    }
    let elsewhere = format!(
        "/v1/reconciliations/others/anomalies/{}/ignore",
        id.as_str().expect("an id")
    );
    gateway
        .post_to(&elsewhere, &json!({ "reason": "r" }))
        .await
        .expect_problem("unknown-reconciliation");
}

async fn reports_show_few_values_of_the_item_and_nothing_secret(stores: &Stores) {
    let books = Books::open().await;
    let shows = "show = [\"/amount\", \"/status\", \"/none\"]";
    let before = config(&books, shows, "time = \"/made_at\"");
    let gateway = stores.gateway_of_old(&before).await;
    books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    assert_eq!(found["shown"], json!({ "/amount": 1, "/status": "made" }));
    let made_at = found["made_at"].as_str().expect("a time").to_owned();
    assert!(made_at.parse::<jiff::Timestamp>().is_ok(), "{made_at}");

    let secret = before.replace(
        "compensation = ",
        "redact = { result = [\"/amount\"] }\ncompensation = ",
    );
    let secret = secret.replace(shows, "show = [\"/amount\", \"/id\"]");
    assert!(gateway.reload(&secret).await);
    let found = only(&report(&gateway).await);
    assert_eq!(
        found["shown"],
        json!({ "/amount": "[redacted]", "/id": "i0" })
    );
}

async fn a_reload_changes_the_acts_on_anomalies_and_nothing_else_of_a_reconciliation(
    stores: &Stores,
) {
    let books = Books::open().await;
    let mends = "on = { orphan = \"compensate\" }";
    let gateway = stores.gateway_of_old(&config(&books, mends, "")).await;
    assert!(gateway.reload(&config(&books, "", "")).await);
    let effect = books.make_beside(Some("beside"));
    let found = only(&report(&gateway).await);
    assert_eq!(
        found["state"], "reported",
        "the reload takes effect at once"
    );
    // A reload that also changes the source takes over nothing of the reconciliation.
    let other = config(&books, mends, "without_key = \"ignore\"");
    assert!(gateway.reload(&other).await);
    let found = only(&report(&gateway).await);
    assert_eq!(found["state"], "reported");
    assert!(books.undone().is_empty());
    assert!(gateway.reload(&config(&books, mends, "")).await);
    report(&gateway).await;
    until("it is undone", async || {
        books.undone().get(&effect) == Some(&1)
    })
    .await;
}
