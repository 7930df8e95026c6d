//! Nothing is undone on a guess: a source that spells keys or values in its own way, or that is the wrong one, undoes nothing.

use serde_json::{Value, json};

use crate::reconcile::runs::{MENDS, by_kind, config, report};
use crate::support::books::Books;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway};

on_both_stores! {
    a_key_is_the_same_in_any_spelling_of_its_bytes,
    no_effect_is_undone_while_a_call_of_its_tool_may_have_made_it,
    a_value_of_another_type_or_an_absent_one_is_reported_and_undoes_nothing,
    a_source_in_which_one_call_in_six_differs_undoes_nothing,
    a_source_that_has_each_row_twice_undoes_nothing,
    a_source_that_lacks_one_call_in_six_undoes_nothing,
    a_source_that_has_the_effects_of_another_system_undoes_nothing,
}

fn with(item: &Value, name: &str, value: Value) -> Vec<Value> {
    let mut item = item.clone();
    item[name] = value;
    vec![item]
}

/// The key of an item: 32 hex digits.
fn key(item: &Value) -> &str {
    item["key"].as_str().expect("a key")
}

/// Five groups with dashes between them.
fn dashed(key: &str) -> String {
    let groups = [
        &key[..8],
        &key[8..12],
        &key[12..16],
        &key[16..20],
        &key[20..],
    ];
    groups.join("-")
}

async fn gateway_of(stores: &Stores, books: &Books) -> Gateway {
    stores.gateway_of_old(&config(books, MENDS, "")).await
}

/// The action of every anomaly is to report it, and the reason is told.
fn only_reports(report: &Answer, why: &str) {
    for anomaly in report.at("/anomalies").as_array().expect("a list") {
        let detail = anomaly["detail"].as_str().expect("a text");
        assert_eq!(anomaly["action"], "report", "{}", report.text);
        assert!(detail.contains(why), "{}", report.text);
    }
}

async fn a_key_is_the_same_in_any_spelling_of_its_bytes(stores: &Stores) {
    let books = Books::open().await;
    let gateway = gateway_of(stores, &books).await;
    for n in 0..2 {
        gateway.plan(n, "").await.expect_ok();
    }
    let spellings: [fn(&Value) -> Vec<Value>; 8] = [
        |item| with(item, "key", dashed(key(item)).to_uppercase().into()),
        |item| with(item, "key", dashed(key(item)).into()),
        |item| with(item, "key", key(item).to_uppercase().into()),
        |item| with(item, "key", format!("{{{}}}", dashed(key(item))).into()),
        |item| {
            with(
                item,
                "key",
                format!("urn:uuid:{}", dashed(key(item))).into(),
            )
        },
        |item| with(item, "key", format!("\\x{}", key(item)).into()),
        |item| {
            with(
                item,
                "key",
                format!("0x{}    ", key(item).to_uppercase()).into(),
            )
        },
        |item| {
            use base64::Engine;
            let bytes = hex::decode(key(item)).expect("hex digits");
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            with(item, "key", text.into())
        },
    ];
    for (n, spelling) in spellings.into_iter().enumerate() {
        books.show(spelling);
        let report = report(&gateway).await;
        let found = (report.at("/matched"), report.at("/counts"));
        assert_eq!(found, (json!(2), json!({})), "{n}: {}", report.text);
    }
    assert_eq!(books.undone().len(), 0);
}

async fn no_effect_is_undone_while_a_call_of_its_tool_may_have_made_it(stores: &Stores) {
    let books = Books::open().await;
    let gateway = gateway_of(stores, &books).await;
    // A spelling that nobody knows.
    books.show(|item| {
        with(
            item,
            "key",
            key(item).chars().rev().collect::<String>().into(),
        )
    });
    let made = gateway.plan(1, "").await.expect_ok();
    let report_of_missing = report(&gateway).await;
    let counts = json!({ "missing": 1, "orphan": 1 });
    assert_eq!(report_of_missing.at("/counts"), counts);
    let actions = by_kind(&report_of_missing, "action");
    assert!(actions["orphan"].contains("report"), "{actions:?}");
    assert_eq!(gateway.state_of(&made.id()).await, "succeeded");
    assert_eq!(books.undone().len(), 0);

    // The call of an effect may also be one whose outcome is unknown.
    let books = Books::open().await;
    let gateway = gateway_of(stores, &books).await;
    books.show(|item| {
        with(
            item,
            "key",
            key(item).chars().rev().collect::<String>().into(),
        )
    });
    let silent = gateway.plan(7_001, "silent").await;
    silent.expect_problem("outcome-unknown");
    let report = report(&gateway).await;
    let actions = by_kind(&report, "action");
    assert!(actions["orphan"].contains("report"), "{}", report.text);
    assert_eq!(books.undone().len(), 0);
}

async fn a_value_of_another_type_or_an_absent_one_is_reported_and_undoes_nothing(stores: &Stores) {
    let books = Books::open().await;
    let gateway = gateway_of(stores, &books).await;
    let amounts = [json!(1998), json!({ "value": 1998, "currency": "EUR" })];
    let mut ids = Vec::new();
    for (n, amount) in amounts.into_iter().enumerate() {
        let args = json!({ "amount": amount, "plan": "" });
        let made = gateway.call_with_key(&format!("v{n}"), args).await;
        ids.push(made.expect_ok().id());
    }
    let spellings: [fn(&Value) -> Vec<Value>; 4] = [
        |item| match &item["amount"] {
            Value::Number(number) => with(item, "amount", number.to_string().into()),
            amount => {
                let value = json!({ "value": "1998", "currency": amount["currency"] });
                with(item, "amount", value)
            }
        },
        |item| with(item, "amount", Value::Null),
        |item| {
            let mut item = item.clone();
            item.as_object_mut().expect("an object").remove("amount");
            vec![item]
        },
        |item| match &item["amount"] {
            Value::Number(_) => with(item, "amount", true.into()),
            amount => with(item, "amount", json!({ "value": amount["value"] })),
        },
    ];
    for spelling in spellings {
        books.show(spelling);
        let report = report(&gateway).await;
        let counts = json!({ "mismatch": 2 });
        assert_eq!(report.at("/counts"), counts, "{}", report.text);
        only_reports(&report, "so nothing is undone");
    }
    for id in &ids {
        assert_eq!(gateway.state_of(id).await, "succeeded");
    }
    assert_eq!(books.undone().len(), 0);
}

type Spelling = fn(&Value) -> Vec<Value>;

async fn a_source_in_which_one_call_in_six_differs_undoes_nothing(stores: &Stores) {
    undoes_nothing(stores, "mismatch", |item| match item["amount"].as_i64() {
        Some(3) => with(item, "amount", 300.into()),
        _ => vec![item.clone()],
    })
    .await;
}

/// Each row is there twice, because the query joins two tables.
async fn a_source_that_has_each_row_twice_undoes_nothing(stores: &Stores) {
    undoes_nothing(stores, "duplicate", |item| {
        let twin = with(item, "id", format!("twin of {}", item["id"]).into());
        [vec![item.clone()], twin].concat()
    })
    .await;
}

async fn a_source_that_lacks_one_call_in_six_undoes_nothing(stores: &Stores) {
    undoes_nothing(stores, "missing", |item| match item["amount"].as_i64() {
        Some(3) => Vec::new(),
        _ => vec![item.clone()],
    })
    .await;
}

async fn a_source_that_has_the_effects_of_another_system_undoes_nothing(stores: &Stores) {
    undoes_nothing(stores, "orphan", |item| {
        let key = format!("other {}", item["id"]);
        let mut other = with(item, "key", key.into());
        other[0]["id"] = format!("other {}", item["id"]).into();
        [vec![item.clone()], other].concat()
    })
    .await;
}

async fn undoes_nothing(stores: &Stores, kind: &str, spelling: Spelling) {
    let books = Books::open().await;
    let gateway = gateway_of(stores, &books).await;
    for n in 0..6 {
        gateway.plan(n, "").await.expect_ok();
    }
    books.show(spelling);
    let report = report(&gateway).await;
    assert!(
        !report.at(&format!("/counts/{kind}")).is_null(),
        "{}",
        report.text
    );
    only_reports(&report, "suspect");
    let suspect = report.at("/suspect");
    let says = suspect[0].as_str().unwrap_or_default();
    assert!(says.starts_with("items: "), "{kind}: {}", report.text);
    assert_eq!(books.undone().len(), 0, "{kind}");
    let call = gateway.get("/v1/calls?state=succeeded").await.expect_ok();
    let calls = call.at("/calls").as_array().map_or(0, Vec::len);
    assert_eq!(calls, 6, "{kind}");
}
