//! Adoptions in hard cases: adopted calls that are lost again, several effects of one key, and tools that deduplicate.

use oncegate::core::key::Lookup;
use serde_json::{Value, json};

use crate::reconcile::adopting::{RESULT, accept, charge, forgotten, on_lossy_stores, open};
use crate::reconcile::anomalies::{ask, only};
use crate::reconcile::runs::{config, report};
use crate::sagas::losses::Place;
use crate::support::books::Books;
use crate::support::gateway::store_is_free;
use crate::support::{Answer, Gateway, until};

on_lossy_stores! {
    an_adopted_charge_whose_call_is_lost_again_is_adopted_again_and_charged_once,
    an_effect_that_a_deduplicating_tool_has_told_a_call_is_not_taken_for_its_duplicate,
    a_forgotten_effect_that_is_undone_is_not_told_as_done_by_a_tool_that_knows_its_key,
    of_two_forgotten_effects_of_a_key_an_operator_adopts_the_newer_one,
    of_two_forgotten_effects_of_a_key_the_configuration_adopts_the_newer_one,
    an_effect_that_is_older_than_an_unknown_call_of_its_key_does_not_settle_it,
}

const TIMES: &str = "adopt = { result = \"/id\" }\ntime = \"/made_at\"";

/// The key that the tool gets for `k{n}`.
fn key(n: usize) -> String {
    Lookup::new("default", "act", &format!("k{n}")).for_tool()
}

/// The same gateways over the same store, which has lost its calls and nothing else.
async fn without_calls(place: &Place, gateways: Vec<Gateway>, config: &str) -> Vec<Gateway> {
    let mut folders = Vec::new();
    for gateway in gateways {
        folders.push(gateway.stop().await);
    }
    match place {
        Place::Sqlite => {
            store_is_free(folders[0].path()).await;
            let file = rusqlite::Connection::open(folders[0].path().join("oncegate.db"));
            let tables = [
                "names",
                "ids",
                "calls",
                "intents",
                "lists",
                "tools",
                "duplicates",
            ];
            let forget = tables.map(|table| format!("DELETE FROM {table};")).concat();
            file.expect("a store")
                .execute_batch(&forget)
                .expect("deleted");
        }
        Place::Redis(redis) => {
            // The partition of the tenant; anomalies are in another.
            let partition = Lookup::partition_of("default") % 64;
            assert_ne!(partition, 0);
            let pattern = format!("oncegate:{{p{partition:03}}}:*");
            let all = redis.ask(&["KEYS", &pattern]).await;
            let all: Vec<String> = ::redis::from_redis_value(all).expect("keys");
            for key in &all {
                redis.ask(&["DEL", key]).await;
            }
        }
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => {
            let sql = "DELETE FROM names; DELETE FROM calls; DELETE FROM states; DELETE FROM tools; DELETE FROM duplicates; \
                       UPDATE gateways SET beat = 0";
            crate::support::postgres::run_in(&server.main(), sql).await;
        }
    }
    let mut opened = Vec::new();
    for folder in folders {
        opened.push(open(place, folder, config).await);
    }
    if !matches!(place, Place::Sqlite) {
        until("the loss is noticed", async || {
            opened[0].reasons().await.contains("accept-loss")
        })
        .await;
        accept(&opened).await;
    }
    for gateway in &opened {
        gateway.until_ready().await;
    }
    opened
}

async fn an_adopted_charge_whose_call_is_lost_again_is_adopted_again_and_charged_once(
    mut place: Place,
) {
    let books = Books::open().await;
    let rules = config(&books, "", RESULT);
    let gateways = forgotten(&mut place, &rules, [7]).await;
    let found = only(&report(&gateways[0]).await);
    let first = ask(&gateways[0], &found["id"], "adopt", "r")
        .await
        .expect_ok();
    assert_eq!(first.at("/state"), "done", "{}", first.text);
    let gateways = without_calls(&place, gateways, &rules).await;
    let gateway = &gateways[0];
    let early = ask(gateway, &found["id"], "adopt", "r").await;
    let early = early.expect_problem("wrong-state");
    assert!(
        early.text.contains("is not in the ledger any more"),
        "{}",
        early.text
    );
    let again = only(&report(gateway).await);
    assert_eq!(
        (&again["id"], &again["state"], &again["call_id"]),
        (&found["id"], &json!("reported"), &Value::Null)
    );
    let adopted = ask(gateway, &found["id"], "adopt", "r").await.expect_ok();
    assert_eq!(adopted.at("/state"), "done", "{}", adopted.text);
    assert_ne!(adopted.at("/call_id"), first.at("/call_id"));
    for gateway in &gateways {
        let answer = charge(gateway, 7).await.expect_ok();
        assert_eq!(
            (answer.at("/replayed"), answer.at("/call_id")),
            (json!(true), adopted.at("/call_id"))
        );
    }
    assert_eq!(books.live().len(), 1, "charged once");
}

/// A tool that executes a key once, and does not name what it has made.
fn deduplicating(books: &Books, source: &str) -> String {
    let url = format!("url = \"{}\"\n", books.url("/once"));
    let plain = format!("url = \"{}\"\n", books.url("/do"));
    config(books, "", source).replace(&plain, &format!("{url}dedup = \"key\"\n"))
}

async fn an_effect_that_a_deduplicating_tool_has_told_a_call_is_not_taken_for_its_duplicate(
    mut place: Place,
) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &deduplicating(&books, RESULT), [7]).await;
    let gateway = &gateways[0];
    let found = only(&report(gateway).await);
    // The tool answers this call with the one effect.
    let told = charge(gateway, 7).await.expect_ok();
    assert_eq!(
        (told.at("/replayed"), books.live().len()),
        (json!(false), 1)
    );
    let held = ask(gateway, &found["id"], "adopt", "r").await.expect_ok();
    assert_eq!(
        (held.at("/kind"), held.at("/state"), held.at("/call_id")),
        (json!("orphan"), json!("reported"), told.at("/call_id"))
    );
    assert!(
        held.text.contains("its tool executes a key once"),
        "{}",
        held.text
    );
    let refused = ask(gateway, &found["id"], "compensate", "r")
        .await
        .expect_ok();
    assert_eq!(refused.at("/state"), "given_up", "{}", refused.text);
    assert!(books.undone().is_empty(), "the only effect stays");
    let next = report(gateway).await;
    assert_eq!(
        (next.at("/anomalies"), next.at("/matched")),
        (json!([]), json!(1))
    );
}

async fn a_forgotten_effect_that_is_undone_is_not_told_as_done_by_a_tool_that_knows_its_key(
    mut place: Place,
) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &deduplicating(&books, RESULT), [7]).await;
    let (gateway, last) = (&gateways[0], gateways.last().expect("one"));
    let found = only(&report(gateway).await);
    let undone = ask(gateway, &found["id"], "compensate", "r")
        .await
        .expect_ok();
    assert_eq!(
        (undone.at("/state"), undone.at("/action")),
        (json!("done"), json!("compensate")),
        "{}",
        undone.text
    );
    assert_eq!(
        (books.undone().get("i0"), books.live().len()),
        (Some(&1), 0)
    );
    for gateway in [last, gateway] {
        let told = charge(gateway, 7).await.expect_ok();
        assert_eq!(
            (
                told.at("/replayed"),
                told.at("/compensated"),
                told.at("/call_id")
            ),
            (json!(true), json!(true), undone.at("/call_id")),
            "{}",
            told.text
        );
    }
    let path = format!(
        "/v1/calls/{}",
        undone.at("/call_id").as_str().expect("an id")
    );
    let record = gateway.get(&path).await.expect_ok();
    assert_eq!(record.at("/state"), "compensated");
    let events = record.events();
    assert_eq!(
        events,
        ["adopted", "compensating", "compensated", "recognised"]
    );
    // The effect is undone once, even if that is asked for again.
    let again = ask(last, &found["id"], "compensate", "r").await.expect_ok();
    assert_eq!(again.at("/state"), "done");
    assert_eq!(books.undone().get("i0"), Some(&1));
}

/// A gateway over the store.
async fn gateway_over(place: &Place, rules: &str) -> Gateway {
    let gateway = open(place, tempfile::tempdir().expect("a folder"), rules).await;
    gateway.until_ready().await;
    gateway
}

async fn of_two_forgotten_effects_of_a_key_an_operator_adopts_the_newer_one(place: Place) {
    the_newer_one_is_adopted(place, "", async |gateway, newer, older| {
        let found = report(gateway).await;
        let refused = ask(gateway, &of(&found, older)["id"], "adopt", "r").await;
        let refused = refused.expect_problem("wrong-state");
        assert!(refused.text.contains("and is newer"), "{}", refused.text);
        let adopted = ask(gateway, &of(&found, newer)["id"], "adopt", "r").await;
        assert_eq!(adopted.expect_ok().at("/state"), "done");
    })
    .await;
}

async fn of_two_forgotten_effects_of_a_key_the_configuration_adopts_the_newer_one(place: Place) {
    let adopts = "on = { orphan = \"adopt\" }";
    the_newer_one_is_adopted(place, adopts, async |gateway, newer, older| {
        let mut found = report(gateway).await;
        // What the run itself cannot adopt at once, the worker for anomalies does.
        until("the newer one is adopted", async || {
            found = gateway.get("/v1/reconciliations/books").await.expect_ok();
            of(&found, newer)["state"] != "open"
        })
        .await;
        let states = [newer, older].map(|effect| of(&found, effect)["state"].clone());
        assert_eq!(states, [json!("done"), json!("reported")], "{}", found.text);
    })
    .await;
}

/// The anomaly of an effect.
fn of(report: &Answer, effect: &str) -> Value {
    let all = report.at("/anomalies");
    let all = all.as_array().expect("a list").iter();
    let mut found = all.filter(|one| one["effect"] == effect);
    let found = found.next().unwrap_or_else(|| panic!("{}", report.text));
    found.clone()
}

async fn the_newer_one_is_adopted(
    place: Place,
    on: &str,
    adopt: impl AsyncFnOnce(&Gateway, &str, &str),
) {
    let books = Books::open().await;
    let gateway = gateway_over(&place, &config(&books, on, TIMES)).await;
    // Two calls of one key, whose window was over between them. The source lists the later one first.
    let newer = books.make_beside(Some(&key(7)));
    let older = books.make_beside_ago(Some(&key(7)), 40);
    adopt(&gateway, &newer, &older).await;
    let answer = charge(&gateway, 7).await.expect_ok();
    assert_eq!(
        (answer.at("/replayed"), answer.at("/result")),
        (json!(true), json!(newer))
    );
    // The other effect may be a double, or of an earlier intent: an operator decides.
    let left = only(&report(&gateway).await);
    assert_eq!(
        (&left["kind"], &left["effect"], &left["state"]),
        (&json!("duplicate"), &json!(older), &json!("reported"))
    );
    let detail = left["detail"].as_str().expect("a text");
    assert!(
        detail.contains("which the ledger has forgotten"),
        "{detail}"
    );
    let undone = ask(&gateway, &left["id"], "compensate", "a double").await;
    assert_eq!(undone.expect_ok().at("/state"), "done");
    assert_eq!(books.undone().get(&older), Some(&1));
    assert_eq!(books.live().len(), 1);
}

async fn an_effect_that_is_older_than_an_unknown_call_of_its_key_does_not_settle_it(place: Place) {
    let books = Books::open().await;
    let rules = config(&books, "", TIMES);
    // Without a probe: the tool would answer that it knows the key.
    let probe = rules
        .lines()
        .find(|line| line.starts_with("probe = "))
        .expect("a probe");
    let gateway = gateway_over(&place, &rules.replace(probe, "")).await;
    books.make_beside_ago(Some(&key(7)), 40);
    let unknown = charge_that_breaks(&gateway).await;
    let first = report(&gateway).await;
    assert_eq!(
        (first.at("/anomalies"), first.at("/undecided")),
        (json!([]), json!(1)),
        "{}",
        first.text
    );
    assert_eq!(gateway.state_of(&unknown).await, "unknown");
    // An effect of the call itself settles it.
    books.make_beside(Some(&key(7)));
    let second = report(&gateway).await;
    let settled = second.at("/anomalies");
    let settled = settled.as_array().expect("a list").iter();
    let settled: Vec<_> = settled.filter(|one| one["kind"] == "settled").collect();
    assert_eq!((settled.len(), &settled[0]["state"]), (1, &json!("done")));
    assert_eq!(gateway.state_of(&unknown).await, "succeeded");
}

/// A charge that is not executed, and whose outcome is unknown.
async fn charge_that_breaks(gateway: &Gateway) -> String {
    let answer = gateway.plan(7, "broken").await;
    let unknown = answer.expect_problem("outcome-unknown");
    unknown.at("/call_id").as_str().expect("an id").to_owned()
}
