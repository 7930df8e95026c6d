//! Which effects a reconciliation leaves alone, and how an anomaly ends.

use oncegate::store::sqlite::Sqlite;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::reconcile::runs::{MENDS, by_kind, config, report};
use crate::stores::contract::{ME, arrival, claimed};
use crate::support::books::Books;
use crate::support::gateway::store_is_free;
use crate::support::stores::{FAR_AHEAD, LONG_AGO, Stores, on_both_stores};
use crate::support::{Gateway, until};

on_both_stores! {
    scheduled_runs_go_on_where_the_last_one_ended,
    an_effect_that_the_ledger_may_never_have_known_is_only_reported,
    an_effect_of_another_tool_that_writes_to_the_same_system_is_no_orphan,
    a_call_is_not_undone_if_the_tool_has_its_effect_and_only_the_source_lacks_it,
    anomalies_that_were_reported_or_given_up_are_worked_on_again,
    the_compensation_of_an_effect_is_decided_once_and_is_no_tenants_call,
    an_open_anomaly_ends_when_it_is_only_to_be_reported_or_the_store_has_lost_data_since,
}

async fn an_effect_that_the_ledger_may_never_have_known_is_only_reported(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores.gateway(&config(&books, MENDS, "")).await;
    // Another gateway may have made the effect, with a store that no longer exists.
    books.make_beside(Some("beside"));
    let report = report(&gateway).await;
    assert_eq!(report.at("/counts"), json!({ "orphan": 1 }));
    assert_eq!(report.at("/anomalies/0/action"), "report");
    let detail = report.at("/anomalies/0/detail");
    let why = "the ledger does not know every call of that time, so nothing is undone";
    assert!(
        detail.as_str().is_some_and(|detail| detail.ends_with(why)),
        "{detail}"
    );
    assert_eq!(books.undone().len(), 0);
}

async fn an_effect_of_another_tool_that_writes_to_the_same_system_is_no_orphan(stores: &Stores) {
    let books = Books::open().await;
    let other = format!("[tools.other]\nurl = \"{}\"\n", books.url("/do"));
    let gateway = stores
        .gateway_of_old(&(other + &config(&books, MENDS, "")))
        .await;
    let body = json!({ "args": { "amount": 1, "plan": "" }, "idempotency_key": "k" });
    gateway.post("other", &body, &[]).await.expect_ok();
    let report = report(&gateway).await;
    assert_eq!(
        (report.at("/counts"), report.at("/undecided")),
        (json!({}), json!(1)),
        "{}",
        report.text
    );
}

async fn a_call_is_not_undone_if_the_tool_has_its_effect_and_only_the_source_lacks_it(
    stores: &Stores,
) {
    let books = Books::open().await;
    let gateway = stores.gateway(&config(&books, MENDS, "")).await;
    let made = gateway.plan(1, "hidden").await.expect_ok();
    let report = report(&gateway).await;
    assert_eq!(report.at("/counts"), json!({ "missing": 1 }));
    let kept = gateway.get("/v1/reconciliations/books").await.expect_ok();
    assert_eq!(kept.at("/anomalies/0/state"), "given_up");
    assert_eq!(
        kept.at("/anomalies/0/error"),
        "the tool has it: the source is not whole"
    );
    let call_id = made.id();
    assert_eq!(gateway.state_of(&call_id).await, "succeeded");
    assert_eq!(books.undone().len(), 0);
}

async fn anomalies_that_were_reported_or_given_up_are_worked_on_again(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, "", "")).await;
    let made = gateway.plan(3, "hidden").await.expect_ok();
    gateway.plan(2, "").await.expect_ok();
    let id = books.make_beside(Some("beside"));
    let first = report(&gateway).await;
    assert_eq!(first.at("/counts"), json!({ "missing": 1, "orphan": 1 }));
    assert_eq!(
        by_kind(&first, "state"),
        by_kind(&report(&gateway).await, "state"),
        "both are reported"
    );
    let gateway = stores.again(gateway, &config(&books, MENDS, "")).await;
    let second = report(&gateway).await;
    assert_eq!(second.at("/new"), json!({}), "they are not new");
    let states = async || {
        by_kind(
            &gateway.get("/v1/reconciliations/books").await.expect_ok(),
            "state",
        )
    };
    let now = states().await;
    assert!(now["missing"].contains("given_up"), "the tool has it");
    assert!(
        now["orphan"].contains("reported"),
        "the call may have made it"
    );
    assert_eq!(books.undone().len(), 0);

    books.forget(3);
    report(&gateway).await;
    until("what was given up is undone", async || {
        states().await["missing"].contains("done")
    })
    .await;
    let call_id = made.id();
    until("it is compensated", async || {
        gateway.state_of(&call_id).await == "compensated"
    })
    .await;
    report(&gateway).await;
    until("what was reported is undone", async || {
        states().await["orphan"].contains("done")
    })
    .await;
    assert_eq!(books.undone().get(&id), Some(&1));
}

async fn the_compensation_of_an_effect_is_decided_once_and_is_no_tenants_call(stores: &Stores) {
    let books = Books::open().await;
    let before = config(&books, MENDS, "");
    let gateway = stores.gateway_of_old(&before).await;
    let calls = async |gateway: &Gateway| {
        let calls = gateway
            .get("/v1/calls?tenant=oncegate&tool=undo")
            .await
            .expect_ok();
        calls.at("/calls").as_array().expect("a list").clone()
    };
    gateway
        .call_with_key("k", json!({ "amount": 1, "plan": "duplicate" }))
        .await
        .expect_ok();
    report(&gateway).await;
    until("it is undone", async || books.undone().len() == 1).await;
    let undoing = calls(&gateway).await;
    assert_eq!(
        (undoing.len(), &undoing[0]["session_id"]),
        (1, &undoing[0]["key"])
    );
    let own = gateway
        .get("/v1/calls?tenant=default&tool=undo")
        .await
        .expect_ok();
    assert_eq!(own.at("/calls"), json!([]), "the tenant does not see it");

    gateway.set_undo("pause").await;
    books.make_beside(Some("beside"));
    report(&gateway).await;
    let after = before.replace(
        "{ id = \"/result/id\" }",
        "{ id = \"/result/id\", why = \"too much\" }",
    );
    assert_ne!(before, after);
    let gateway = stores.again(gateway, &after).await;
    gateway.set_undo("resume").await;
    until("it is given up", async || {
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        report.at("/anomalies/0/error") == "it would be undone in another way than was decided on"
    })
    .await;
    assert_eq!((calls(&gateway).await.len(), books.undone().len()), (1, 1));
}

async fn an_open_anomaly_ends_when_it_is_only_to_be_reported_or_the_store_has_lost_data_since(
    stores: &Stores,
) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, MENDS, "")).await;
    gateway.set_undo("pause").await;
    books.make_beside(Some("beside"));
    let first = report(&gateway).await;
    assert_eq!(first.at("/anomalies/0/action"), "compensate");
    let state = async |gateway: &Gateway| {
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        (
            report.at("/anomalies/0/state").as_str().map(str::to_owned),
            report.at("/anomalies/0/error"),
        )
    };
    assert_eq!(state(&gateway).await.0.as_deref(), Some("open"));
    stores.know_all_since(&gateway, FAR_AHEAD).await;
    until("it is given up", async || {
        state(&gateway).await.0.as_deref() == Some("given_up")
    })
    .await;
    let error = state(&gateway).await.1;
    let why = "the store has lost data since it was found: run the reconciliation again";
    assert_eq!(error, why);

    stores.know_all_since(&gateway, LONG_AGO).await;
    let gateway = stores.again(gateway, &config(&books, MENDS, "")).await;
    books.make_beside(Some("another"));
    report(&gateway).await;
    let gateway = stores.again(gateway, &config(&books, "", "")).await;
    until("it is only reported", async || {
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        let anomalies = report.at("/anomalies");
        anomalies
            .as_array()
            .expect("a list")
            .iter()
            .all(|anomaly| anomaly["state"] != "open")
    })
    .await;
    gateway.set_undo("resume").await;
    assert_eq!(books.undone().len(), 0);
}

async fn scheduled_runs_go_on_where_the_last_one_ended(stores: &Stores) {
    let books = Books::open().await;
    let gateways = stores
        .gateways(&config(&books, "every = \"1s\"\nwindow = \"2s\"", ""))
        .await;
    gateways[0].plan(1, "missing").await.expect_ok();
    let looked_until = async || {
        let all = gateways[0].get("/v1/reconciliations").await.expect_ok();
        all.at("/reconciliations/0/looked_until")
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    until("it was found", async || {
        let totals = futures_util::future::join_all(
            gateways.iter().map(|one| one.anomalies_total("missing")),
        );
        totals.await.into_iter().sum::<f64>() == 1.0
    })
    .await;
    let found = looked_until().await;
    until("it has gone on", async || looked_until().await > found).await;
    let totals =
        futures_util::future::join_all(gateways.iter().map(|one| one.anomalies_total("missing")));
    assert_eq!(
        totals.await.into_iter().sum::<f64>(),
        1.0,
        "one of the gateways found it, once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_that_cannot_be_read_is_not_begun_anew() {
    let books = Books::open().await;
    let config = config(&books, "every = \"1s\"", "");
    let (_, books_alone) = config.split_once("[reconciliations").expect("it");
    let others = format!("[reconciliations{books_alone}").replace("ons.books", "ons.others");
    let config = format!("{config}{others}");
    let until_runs = async |gateway: &Gateway, name: &str, least: f64| {
        let done = format!(
            "oncegate_reconciliation_runs_total{{reconciliation=\"{name}\",result=\"done\"}}"
        );
        until("it runs", async || gateway.metric(&done).await >= least).await;
    };
    let gateway = Gateway::start(&config).await;
    until_runs(&gateway, "books", 1.0).await;
    until_runs(&gateway, "others", 1.0).await;
    let (url, database) = (
        format!("sqlite:{}", gateway.database().display()),
        gateway.database(),
    );
    let folder = gateway.stop().await;
    let file = rusqlite::Connection::open(&database).expect("a store");
    let damage = "UPDATE documents SET body = CAST('{' AS BLOB) WHERE kind = 'reconciliation' AND id = 'books'";
    assert_eq!(file.execute(damage, []), Ok(1));
    // A run that was under way may have left the reconciliation taken, so it is made due.
    let make_due = "UPDATE documents SET due_at = 0 WHERE kind = 'reconciliation'";
    assert_eq!(file.execute(make_due, []), Ok(2));
    drop(file);
    let gateway = Gateway::again(folder, &url, &config).await;
    until_runs(&gateway, "others", 2.0).await;
    let _folder = gateway.stop().await;
    let file = rusqlite::Connection::open(&database).expect("a store");
    let body =
        "SELECT CAST(body AS TEXT) FROM documents WHERE kind = 'reconciliation' AND id = 'books'";
    let body: String = file.query_row(body, [], |row| row.get(0)).expect("it");
    assert_eq!(body, "{", "the unreadable progress was not overwritten");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_a_call_of_long_ago_is_no_orphan() {
    let (books, folder) = (Books::open().await, tempfile::tempdir().expect("a folder"));
    let file = folder.path().join("oncegate.db");
    let store = Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store");
    // The gateway of this call was killed years ago, while the call ran.
    let old = claimed(&store, &arrival("old", "S", 0, ME)).await;
    drop(store);
    store_is_free(folder.path()).await;
    let config = config(&books, "", "")
        .replace("tools.act", "tools.t")
        .replace("\"act\"", "\"t\"");
    let gateway = Gateway::again(folder, &format!("sqlite:{}", file.display()), &config).await;
    let amount = books.make_beside(Some(&old.intent.lookup.for_tool()));
    let report = report(&gateway).await;
    assert_eq!(
        report.at("/counts"),
        json!({ "settled": 1 }),
        "{amount}: {}",
        report.text
    );
    assert_eq!(
        report.at("/anomalies/0/call_id"),
        old.intent.call_id.to_string()
    );
}
