//! A charge that the ledger has forgotten is adopted from its effect: its repetition is a replay, and no second charge.

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::future::join;
use oncegate::core::key::Lookup;
use oncegate::core::tenant::RESERVED_TENANT;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::reconcile::anomalies::{ask, ask_once, only};
use crate::reconcile::runs::{config, report};
use crate::sagas::losses::Place;
use crate::support::books::Books;
use crate::support::gateway::store_is_free;
use crate::support::{Answer, Gateway, client, until};

/// Runs a test over each store that can lose data.
macro_rules! on_lossy_stores {
    ($($claim:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() { super::$claim(super::Place::Sqlite).await; })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let redis = crate::support::redis::Redis::strict().await;
                super::$claim(super::Place::Redis(Box::new(redis))).await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let server = crate::support::postgres::Postgres::with(&[]).await;
                super::$claim(super::Place::Postgres(Box::new(server))).await;
            })*
        }
    };
}

pub(crate) use on_lossy_stores;

on_lossy_stores! {
    the_repetition_of_a_forgotten_and_adopted_charge_is_a_replay,
    without_a_result_a_repetition_is_told_so_and_charges_nothing,
    a_forgotten_effect_whose_key_has_a_call_since_is_not_adopted,
    a_store_that_may_have_lost_data_adopts_nothing_until_that_is_accepted_and_looked_at_again,
    of_two_first_requests_at_two_gateways_one_says_what_the_call_asked_for,
    an_adoption_and_a_repetition_at_once_make_one_call,
    the_configuration_adopts_forgotten_effects_and_leaves_those_of_others_alone,
}

pub(crate) const RESULT: &str = "adopt = { result = \"/id\" }";

pub(crate) async fn open(place: &Place, folder: TempDir, config: &str) -> Gateway {
    let url = match place {
        Place::Sqlite => format!("sqlite:{}", folder.path().join("oncegate.db").display()),
        Place::Redis(redis) => redis.url(),
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => server.main(),
    };
    Gateway::again(folder, &url, config).await
}

/// The gateways of a store that has lost what `between` did. The loss is not accepted yet. A shared store has two gateways.
pub(crate) async fn lost(
    place: &mut Place,
    config: &str,
    before: impl AsyncFnOnce(&Gateway),
    between: impl AsyncFnOnce(&Gateway),
) -> Vec<Gateway> {
    let gateway = open(place, tempfile::tempdir().expect("a folder"), config).await;
    gateway.until_ready().await;
    before(&gateway).await;
    let folder = gateway.stop().await;
    let copy = place.copy(folder.path());
    let gateway = open(place, folder, config).await;
    gateway.until_ready().await;
    between(&gateway).await;
    let folder = gateway.stop().await;
    put_back(place, copy.path(), folder.path()).await;
    let mut gateways = vec![open(place, folder, config).await];
    if !matches!(place, Place::Sqlite) {
        gateways.push(open(place, tempfile::tempdir().expect("a folder"), config).await);
    }
    let first = &gateways[0];
    until("the loss is noticed", async || {
        first.reasons().await.contains("accept-loss")
    })
    .await;
    gateways
}

async fn put_back(place: &mut Place, copy: &Path, folder: &Path) {
    match place {
        Place::Sqlite => {
            store_is_free(folder).await;
            std::fs::copy(copy.join("oncegate.db"), folder.join("oncegate.db")).expect("put back");
        }
        Place::Redis(redis) => redis.restore(copy).await,
        #[cfg(feature = "postgres")]
        Place::Postgres(server) => server.restore(copy).await,
    }
}

pub(crate) async fn accept(gateways: &[Gateway]) {
    gateways[0].accept_loss("a test").await.expect_ok();
    for gateway in gateways {
        gateway.until_ready().await;
    }
}

/// The gateways of a store that has lost these charges. The loss is accepted.
pub(crate) async fn forgotten(
    place: &mut Place,
    config: &str,
    charged: impl IntoIterator<Item = usize>,
) -> Vec<Gateway> {
    let charge_all = async |gateway: &Gateway| {
        for n in charged {
            charge(gateway, n).await.expect_ok();
        }
    };
    let gateways = lost(place, config, async |_| {}, charge_all).await;
    accept(&gateways).await;
    gateways
}

/// A charge of this amount, with a key of its own.
pub(crate) async fn charge(gateway: &Gateway, n: usize) -> Answer {
    gateway.plan(n, "").await
}

async fn the_repetition_of_a_forgotten_and_adopted_charge_is_a_replay(mut place: Place) {
    let books = Books::open().await;
    let shows = "show = [\"/amount\"]";
    let rules = config(&books, shows, &format!("{RESULT}\ntime = \"/made_at\""));
    let gateways = forgotten(&mut place, &rules, [7]).await;
    let (first, last) = (&gateways[0], gateways.last().expect("one"));
    let found = only(&report(first).await);
    assert_eq!(
        (&found["kind"], &found["state"], &found["shown"]),
        (
            &json!("orphan"),
            &json!("reported"),
            &json!({ "/amount": 7 })
        )
    );
    let adopted = ask(last, &found["id"], "adopt", "the loss of 14:02").await;
    let adopted = adopted.expect_ok();
    assert_eq!(
        (adopted.at("/action"), adopted.at("/state")),
        (json!("adopt"), json!("done")),
        "{}",
        adopted.text
    );
    // A second adoption gives the same call.
    let again = ask(first, &found["id"], "adopt", "again").await.expect_ok();
    assert_eq!(again.json(), adopted.json());
    let call_id = adopted.at("/call_id");
    let path = format!("/v1/calls/{}", call_id.as_str().expect("an id"));
    let record = first.get(&path).await.expect_ok();
    assert_eq!(
        (
            record.at("/state"),
            record.at("/key_source"),
            record.at("/tenant")
        ),
        (json!("succeeded"), json!("adopted"), json!("default"))
    );
    assert_eq!(record.at("/tool_key"), found["key"]);

    for gateway in [last, first, last] {
        let answer = charge(gateway, 7).await.expect_ok();
        assert_eq!(
            (
                answer.at("/replayed"),
                answer.at("/call_id"),
                answer.at("/result")
            ),
            (json!(true), call_id.clone(), json!("i0"))
        );
        assert_eq!(
            answer.at("/idempotency_key"),
            "k7",
            "as the caller knows it"
        );
    }
    let other = last.call_with_key("k7", json!({ "amount": 8, "plan": "" }));
    other.await.expect_problem("key-reused");
    assert_eq!(books.live().len(), 1, "charged once");
    let events = first.get(&path).await.expect_ok().events();
    assert_eq!(events, ["adopted", "recognised"]);
    let next = report(first).await;
    assert_eq!(
        (next.at("/anomalies"), next.at("/matched")),
        (json!([]), json!(1))
    );
    let audit = first.get("/v1/audit?act=adopt").await.expect_ok();
    let acts = audit.at("/acts");
    let acts = acts.as_array().expect("a list").iter();
    let reasons: Vec<&Value> = acts.map(|act| &act["reason"]).collect();
    assert_eq!(*reasons[reasons.len() - 1], "the loss of 14:02");
    assert_eq!(*reasons[0], "again");
    // A verification is refused: the arguments are not known.
    let refused = first
        .post_to(&format!("{path}/replay"), &json!({ "mode": "verify" }))
        .await;
    assert!(refused.status == 409, "{}", refused.text);
}

async fn without_a_result_a_repetition_is_told_so_and_charges_nothing(mut place: Place) {
    let books = Books::open().await;
    let keys = format!("[store]\nencryption_keys = [\"{}\"]\n", "ab".repeat(32));
    let rules = format!("{keys}{}", config(&books, "", ""));
    let gateways = forgotten(&mut place, &rules, [7]).await;
    let gateway = &gateways[0];
    let found = only(&report(gateway).await);
    ask(gateway, &found["id"], "adopt", "r").await.expect_ok();
    for _ in 0..2 {
        let told = charge(gateway, 7).await;
        let told = told.expect_problem("result-unavailable");
        assert_eq!(told.at("/effect"), "done");
    }
    assert_eq!(books.live().len(), 1);
    // After the adoption the effect has a call, so it cannot be undone as an orphan.
    let refused = ask(gateway, &found["id"], "compensate", "r").await;
    let refused = refused.expect_problem("wrong-state");
    assert!(refused.text.contains("its action is adopt"));
}

async fn a_forgotten_effect_whose_key_has_a_call_since_is_not_adopted(mut place: Place) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &config(&books, "", RESULT), [7]).await;
    let gateway = &gateways[0];
    let found = only(&report(gateway).await);
    let since = charge(gateway, 7).await.expect_ok();
    assert_eq!(
        (since.at("/replayed"), books.live().len()),
        (json!(false), 2)
    );
    let before = gateway.record(&since).await;
    let refused = ask(gateway, &found["id"], "adopt", "too late").await;
    let refused = refused.expect_ok();
    assert_eq!(
        (
            refused.at("/kind"),
            refused.at("/state"),
            refused.at("/call_id")
        ),
        (json!("duplicate"), json!("reported"), since.at("/call_id"))
    );
    assert!(
        refused
            .at("/detail")
            .as_str()
            .is_some_and(|detail| detail.ends_with("has its key"))
    );
    assert_eq!(gateway.record(&since).await.json(), before.json());
    let again = ask(gateway, &found["id"], "adopt", "r").await;
    again.expect_problem("wrong-state");
    // The first effect, which no call was answered with, is one too many.
    let undone = ask(gateway, &found["id"], "compensate", "paid twice").await;
    assert_eq!(undone.expect_ok().at("/state"), "done");
    assert_eq!(books.undone().get("i0"), Some(&1));
    assert_eq!(books.live().len(), 1);
}

async fn a_store_that_may_have_lost_data_adopts_nothing_until_that_is_accepted_and_looked_at_again(
    mut place: Place,
) {
    let books = Books::open().await;
    let key = Lookup::new("default", "act", "k9").for_tool();
    let rules = config(&books, "", RESULT);
    let mut found = Value::Null;
    let gateways = lost(
        &mut place,
        &rules,
        async |gateway| {
            books.make_beside(Some(&key));
            found = only(&report(gateway).await);
        },
        async |gateway| drop(charge(gateway, 1).await.expect_ok()),
    )
    .await;
    let gateway = &gateways[0];
    let refused = ask(gateway, &found["id"], "adopt", "r").await;
    refused.expect_problem("store-unavailable");
    accept(&gateways).await;
    let early = ask(gateway, &found["id"], "adopt", "r").await.expect_ok();
    assert_eq!(early.at("/state"), "given_up");
    assert_eq!(
        early.at("/error"),
        "the store has lost data since it was found: run the reconciliation again"
    );
    report(gateway).await;
    let adopted = ask(gateway, &found["id"], "adopt", "r").await.expect_ok();
    assert_eq!(adopted.at("/state"), "done", "{}", adopted.text);
    let answer = gateway.call_with_key("k9", json!({ "amount": 1, "plan": "" }));
    assert_eq!(answer.await.expect_ok().at("/replayed"), true);
}

async fn of_two_first_requests_at_two_gateways_one_says_what_the_call_asked_for(mut place: Place) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &config(&books, "", RESULT), 0..8).await;
    let (one, other) = (&gateways[0], gateways.last().expect("one"));
    let found = report(one).await.at("/anomalies");
    for anomaly in found.as_array().expect("a list") {
        let adopted = ask(one, &anomaly["id"], "adopt", "r").await;
        assert_eq!(adopted.expect_ok().at("/state"), "done");
    }
    for n in 0..8 {
        let key = format!("k{n}");
        let asked = |gateway: &Gateway, amount: usize| {
            let (gateway, key) = (gateway.url("/v1/tools/act/calls"), key.clone());
            let body = json!({ "args": { "amount": amount, "plan": "" }, "idempotency_key": key });
            Answer::to(client().post(gateway).body(body.to_string()))
        };
        let (a, b) = join(asked(one, 100), asked(other, 200)).await;
        let mut statuses = [a.status, b.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 422], "{} {}", a.text, b.text);
        let amount = if a.status == 200 { 100 } else { 200 };
        for gateway in [one, other] {
            let again = asked(gateway, amount).await.expect_ok();
            assert_eq!(again.at("/replayed"), true);
            let wrong = asked(gateway, 300 - amount).await;
            wrong.expect_problem("key-reused");
        }
    }
    assert_eq!(books.live().len(), 8, "nothing was charged again");
}

async fn an_adoption_and_a_repetition_at_once_make_one_call(mut place: Place) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &config(&books, "", RESULT), 0..8).await;
    let (one, other) = (&gateways[0], gateways.last().expect("one"));
    let found = report(one).await.at("/anomalies");
    let mut anomalies: Vec<&Value> = found.as_array().expect("a list").iter().collect();
    let number = |id: &Value| id.as_str().and_then(|id| id[1..].parse::<usize>().ok());
    anomalies.sort_by_key(|anomaly| number(&anomaly["effect"]));
    let mut charged = 8;
    for (n, anomaly) in anomalies.into_iter().enumerate() {
        let (adopted, repeated) = join(
            ask_once(one, &anomaly["id"], "adopt", "r"),
            charge(other, n),
        )
        .await;
        let (adopted, repeated) = (adopted.expect_ok(), repeated.expect_ok());
        if adopted.at("/state") == "open" {
            // The store did not say in time which of the two has the key. The act is repeated until it does.
            let call_id = repeated.at("/call_id");
            let call_id = call_id.as_str().expect("an id");
            until("it is settled", async || {
                let again = ask_once(one, &anomaly["id"], "adopt", "r").await;
                let is_done = again.status == 200 && again.at("/state") != "open";
                is_done || again.status == 409 && again.text.contains(call_id)
            })
            .await;
            charged += usize::from(repeated.at("/replayed") == false);
            assert_eq!(charge(one, n).await.expect_ok().at("/replayed"), true);
            continue;
        }
        let one_call = adopted.at("/call_id") == repeated.at("/call_id");
        assert!(one_call, "{} {}", adopted.text, repeated.text);
        let was_first = repeated.at("/replayed") == false;
        charged += usize::from(was_first);
        let expected = if was_first {
            json!(["duplicate", "reported"])
        } else {
            json!(["orphan", "done"])
        };
        let outcome = json!([adopted.at("/kind"), adopted.at("/state")]);
        assert_eq!(outcome, expected);
        assert_eq!(charge(one, n).await.expect_ok().at("/replayed"), true);
    }
    assert_eq!(books.live().len(), charged);
}

/// An anomaly by the effect that it is about.
fn by_effect(anomaly: &Value) -> (String, Value) {
    (anomaly["effect"].to_string(), anomaly.clone())
}

async fn the_configuration_adopts_forgotten_effects_and_leaves_those_of_others_alone(
    mut place: Place,
) {
    let books = Books::open().await;
    let gateways = forgotten(&mut place, &config(&books, "", RESULT), [7]).await;
    let gateway = &gateways[0];
    books.make_beside(Some("beside"));
    // This key belongs to a tenant that no token of this gateway has.
    let stranger = (0..)
        .map(|n| format!("tenant {n}"))
        .find(|tenant| Lookup::partition_of(tenant) != Lookup::partition_of("default"))
        .expect("one");
    assert_ne!(stranger, RESERVED_TENANT);
    books.make_beside(Some(&Lookup::new(&stranger, "act", "k").for_tool()));
    let adopts = config(&books, "on = { orphan = \"adopt\" }", RESULT);
    for gateway in &gateways {
        assert!(gateway.reload(&adopts).await);
    }
    // Of one run: an anomaly that was adopted is in no later one.
    let run = report(gateway).await.at("/run");
    let path = format!(
        "/v1/reconciliations/books?run={}",
        run.as_str().expect("a run")
    );
    let mut last = BTreeMap::new();
    until("what is adopted is settled", async || {
        let found = gateway.get(&path).await.at("/anomalies");
        last = found
            .as_array()
            .into_iter()
            .flatten()
            .map(by_effect)
            .collect();
        !last.is_empty() && last.values().all(|anomaly| anomaly["state"] != "open")
    })
    .await;
    let states: Vec<&Value> = last.values().collect();
    let of = |n: usize, member: &str| states[n][member].clone();
    assert_eq!(
        (of(0, "action"), of(0, "state")),
        (json!("adopt"), json!("done"))
    );
    assert_eq!(
        (of(1, "action"), of(1, "state")),
        (json!("report"), json!("reported")),
        "the gateway did not make this key"
    );
    assert_eq!(
        (of(2, "action"), of(2, "state"), of(2, "error")),
        (
            json!("adopt"),
            json!("given_up"),
            json!("no tenant that this gateway knows has such a key")
        )
    );
    let refused = ask(gateway, &of(1, "id"), "adopt", "r").await;
    let refused = refused.expect_problem("wrong-state");
    assert!(
        refused.text.contains("not one that this gateway gives"),
        "{}",
        refused.text
    );
    assert_eq!(charge(gateway, 7).await.expect_ok().at("/replayed"), true);
    assert_eq!(books.live().len(), 3);
}
