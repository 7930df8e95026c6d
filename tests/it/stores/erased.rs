//! What every store promises about erased calls: no list, no search and no answer has their data any more, and no key is free.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::core::call::{Event, next};
use oncegate::core::erasure::UserDigest;
use oncegate::core::ledger::Filter;
use oncegate::core::record::{ERASED, Record, State};
use oncegate::core::tool::Tool as Policy;
use oncegate::store::{Encrypted, Keys, Replaced, Store};
use serde_json::{Value, json};

use super::contract::{Home, ME, arrival, at, claimed, contract, ended, replaced};
use crate::support::gateway::Bare;
use crate::support::{Act, Answer, Tool, client};

contract! {
    no_list_has_an_erased_call_by_a_name_that_it_had,
    an_erased_user_is_found_nowhere_and_nothing_runs_again,
    the_key_of_an_erased_failure_runs_again_with_the_arguments_of_the_request,
    what_had_not_ended_is_erased_once_it_has,
}

/// Names and values of a user that must be found nowhere after the erasure.
const CANARIES: [&str; 5] = [
    "bob@example.org",
    "talk-canary",
    "aaaabbbbccccddddeeeeffff00001111",
    "args-canary",
    "answer-canary",
];

fn erased(record: &Record, second: i64) -> oncegate::core::call::Change {
    let event = Event::Erased {
        by: oncegate::core::actor::By::token("ops", ""),
    };
    let next = next(&Policy::new("t"), Some(record), &event, at(second)).expect("it has ended");
    next.change.expect("a change")
}

async fn found(store: &dyn Store, filter: Filter) -> Vec<Record> {
    let page = store.list("shop", &filter, None, 10).await;
    let page = page.expect("an answer");
    page.found.into_iter().map(|listed| listed.record).collect()
}

async fn no_list_has_an_erased_call_by_a_name_that_it_had(home: Home) {
    let store = &*home.store;
    let (one, other) = (arrival("k1", "S", 0, ME), arrival("k2", "S", 1, ME));
    let one = claimed(store, &one).await;
    let one = replaced(store, &ended(&one, 200, 2), &one).await;
    let other = claimed(store, &other).await;
    let other = replaced(store, &ended(&other, 200, 3), &other).await;
    let filters = || {
        let by = |set: fn(&mut Filter)| {
            let mut filter = Filter::default();
            set(&mut filter);
            filter
        };
        [
            by(|filter| filter.user_id = Some("U1".into())),
            by(|filter| filter.user = Some(UserDigest::of("shop", "U1"))),
            by(|filter| filter.session_id = Some("S".into())),
            by(|filter| filter.trace_id = Some("trace".into())),
        ]
    };
    for filter in filters() {
        assert_eq!(found(store, filter).await, [other.clone(), one.clone()]);
    }
    let change = erased(&one, 4);
    let gone = replaced(store, &change, &one).await;
    assert!(gone.is_erased() && gone.intent.args == ERASED);
    // The same change again answers the same; another one is too late.
    let again = store.replace(&change, &one).await.expect("an answer");
    assert_eq!(again, Replaced::Done(gone.clone()));
    let stale = store.replace(&erased(&one, 5), &one).await;
    assert!(matches!(stale, Ok(Replaced::Lost(Some(newer))) if newer == gone));
    for filter in filters() {
        assert_eq!(
            found(store, filter).await,
            std::slice::from_ref(&other),
            "the other one stays"
        );
    }
    for filter in [
        Filter::default(),
        Filter {
            tool: Some("t".into()),
            ..Filter::default()
        },
        Filter {
            is_brief: true,
            ..Filter::default()
        },
    ] {
        let all = found(store, filter).await;
        let ids: Vec<_> = all.iter().map(|record| record.intent.call_id).collect();
        assert_eq!(ids, [other.intent.call_id, one.intent.call_id]);
    }
    let by_key = Filter {
        key: Some("k1".into()),
        ..Filter::default()
    };
    assert_eq!(found(store, by_key).await, std::slice::from_ref(&gone));
    assert_eq!(
        store.load(gone.intent.call_id).await.expect("an answer"),
        Some(gone.clone())
    );
    // The names of the session go, and its tokens rise all the same.
    let later = claimed(store, &arrival("k3", "S", 6, ME)).await;
    assert!(later.fencing > other.fencing.max(gone.fencing));
    // The key is held by the call as before, until it is past its window, and is deleted in the end.
    let holders = store
        .holders(&[gone.intent.lookup])
        .await
        .expect("an answer");
    assert_eq!(holders.first().map(|holder| &holder.record), Some(&gone));
    let claims = store.claim(&arrival("k1", "S", 7, ME), &[]).await;
    assert!(matches!(claims, Ok(oncegate::store::Claimed::Existing(held)) if held == gone));
    let over = gone.retain_until.expect("it has ended");
    store.prune(over, 10).await.expect("an answer");
    assert_eq!(
        store.load(gone.intent.call_id).await.expect("an answer"),
        None
    );
}

/// A gateway without loops over the store, and what its callers and operators do.
struct Shop {
    tool: Tool,
    bare: Bare,
}

impl Shop {
    async fn over(home: &Home, is_encrypted: bool) -> Self {
        let store: Arc<dyn Store> = if is_encrypted {
            let keys = Keys::new(&[[7; 32]]).expect("keys");
            Arc::new(Encrypted::new(home.store.clone(), keys))
        } else {
            home.store.clone()
        };
        let tool = Tool::start().await;
        let more = "retry = { attempts = 1 }\ntimeout = \"1s\"\ndeadline = \"1s\"\nbreaker = { failures = 1000 }";
        let bare = Bare::over_shared(store, ME, &tool, more).await;
        Self { tool, bare }
    }

    async fn call(&self, user: &str, key: &str) -> Answer {
        let body = json!({
            "args": { "to": "args-canary" }, "idempotency_key": key, "user_id": user, "session_id": "talk-canary",
            "trace_id": "aaaabbbbccccddddeeeeffff00001111",
        });
        Answer::to(client().post(&self.bare.url).body(body.to_string())).await
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::to(client().get(self.bare.url_of(path)))
            .await
            .expect_ok()
    }

    async fn erase(&self, user: &str) -> Value {
        let path = format!("/v1/users/{user}");
        let erased = Answer::to(client().delete(self.bare.url_of(&path))).await;
        erased.expect_ok().json()
    }

    /// A round of the worker at so many seconds from now.
    async fn round(&self, seconds: i64) -> u64 {
        let now = self.bare.gateway.now() + SignedDuration::from_secs(seconds);
        let erasures = &self.bare.gateway.erasures;
        erasures.erase_due(now).await.expect("an answer")
    }

    async fn ids(&self, path: &str) -> Vec<String> {
        let calls = self.get(path).await.at("/calls");
        let calls = calls.as_array().expect("calls").clone();
        let ids = calls
            .iter()
            .map(|call| call["call_id"].as_str().expect("an id").to_owned());
        ids.collect()
    }
}

const BOB: &str = "bob@example.org";

async fn an_erased_user_is_found_nowhere_and_nothing_runs_again(home: Home) {
    for is_encrypted in [false, true] {
        let shop = Shop::over(&home, is_encrypted).await;
        let key = |n: usize| format!("{is_encrypted}-{n}");
        shop.tool.always(Act::Ok("{\"said\":\"answer-canary\"}"));
        shop.tool
            .then(Act::Answer(422, "", b"{\"said\":\"answer-canary\"}"));
        shop.call(BOB, &key(0))
            .await
            .expect_problem("tool-rejected");
        let mut calls = Vec::new();
        for n in 1..4 {
            calls.push(shop.call(BOB, &key(n)).await.expect_ok());
        }
        shop.call("eve", &key(4)).await.expect_ok();
        let (sent, bobs) = (
            shop.tool.requests(),
            shop.ids(&format!("/v1/calls?user_id={BOB}")).await,
        );
        assert_eq!(bobs.len(), 4);

        let in_all = 4 * (1 + usize::from(is_encrypted));
        let answer = shop.erase(BOB).await;
        assert_eq!(
            (&answer["state"], &answer["erased"]),
            (&json!("done"), &json!(4)),
            "{answer}"
        );
        assert_eq!(
            (&answer["kept"]["calls"], &answer["tenant"]),
            (&json!(in_all), &json!("default"))
        );
        let until = answer["kept"]["until"].as_str().expect("a time");
        let until: jiff::Timestamp = until.parse().expect("a time");
        let month = SignedDuration::from_hours(30 * 24 - 1);
        assert!(until > shop.bare.gateway.now() + month, "{answer}");

        // Nothing that can be asked for has it.
        let mut shown = vec![shop.get("/v1/audit?act=erase").await.text];
        for filter in [
            format!("user_id={BOB}"),
            "session_id=talk-canary".into(),
            "trace_id=aaaabbbbccccddddeeeeffff00001111".into(),
        ] {
            let found = shop.ids(&format!("/v1/calls?{filter}")).await;
            assert!(!found.iter().any(|id| bobs.contains(id)), "{filter}");
        }
        for id in &bobs {
            shown.push(shop.get(&format!("/v1/calls/{id}")).await.text);
        }
        let exported = shop.get(&format!("/v1/export?user_id={BOB}")).await.text;
        assert!(
            exported.starts_with("{\"end\":true,\"calls\":0"),
            "{exported}"
        );
        let all = shop.get("/v1/export").await.text;
        shown.extend(
            all.lines()
                .filter(|line| !line.contains("\"eve\""))
                .map(str::to_owned),
        );
        for text in &shown {
            for canary in CANARIES {
                assert!(!text.contains(canary), "{canary}: {text}");
            }
        }
        assert!(
            all.contains("answer-canary"),
            "the other user's calls are as before"
        );
        let events = shop.get(&format!("/v1/calls/{}", bobs[0])).await.events();
        assert_eq!(events.last().map(String::as_str), Some("erased"));
        let acts = shop.get("/v1/audit?act=erase").await.json();
        let act = &acts["acts"][0];
        assert_eq!(
            (&act["target"]["kind"], &act["outcome"]),
            (&json!("user"), &json!("done"))
        );

        // A repetition is answered as the documents say, and never runs; other arguments are refused as before.
        for (n, call) in calls.iter().enumerate() {
            let again = shop
                .call(BOB, &key(n + 1))
                .await
                .expect_problem("result-unavailable");
            assert_eq!(
                (again.at("/effect"), again.id()),
                ("done".into(), call.id())
            );
        }
        assert_eq!(shop.tool.requests(), sent);
        let again = shop.erase(BOB).await;
        assert_eq!(
            (&again["erased"], &again["kept"]["calls"]),
            (&json!(0), &json!(in_all)),
            "{again}"
        );
        assert_eq!(
            shop.ids("/v1/calls?user_id=eve").await.len(),
            1 + usize::from(is_encrypted)
        );
        shop.bare.stop().await;
    }
}

async fn the_key_of_an_erased_failure_runs_again_with_the_arguments_of_the_request(home: Home) {
    let shop = Shop::over(&home, false).await;
    shop.tool.then(Act::Answer(422, "", b"{}"));
    let refused = shop.call(BOB, "k").await.expect_problem("tool-rejected");
    shop.erase(BOB).await;
    let again = shop.call(BOB, "k").await.expect_ok();
    assert_ne!(again.id(), refused.id(), "a call of its own");
    let sent = shop.tool.seen();
    assert_eq!(sent.len(), 2);
    assert!(sent[1].body.contains("args-canary"), "{}", sent[1].body);
    let replayed = shop.call(BOB, "k").await.expect_ok();
    assert_eq!(
        (replayed.id(), replayed.at("/replayed")),
        (again.id(), true.into())
    );
    assert_eq!(
        shop.ids(&format!("/v1/calls?user_id={BOB}")).await,
        [again.id()]
    );
    // The earlier call is kept beside it, without a key that leads to it.
    assert_eq!(
        shop.ids("/v1/calls?key=k").await,
        [again.id(), refused.id()]
    );
    assert_eq!(shop.erase(BOB).await["erased"], 1);
    assert_eq!(shop.tool.requests(), 2);
    shop.bare.stop().await;
}

async fn what_had_not_ended_is_erased_once_it_has(home: Home) {
    let shop = Shop::over(&home, false).await;
    shop.tool.then(Act::Answer(500, "", b"{}"));
    let unknown = shop.call(BOB, "k1").await.expect_problem("outcome-unknown");
    shop.call(BOB, "k2").await.expect_ok();
    let answer = shop.erase(BOB).await;
    assert_eq!(
        (&answer["state"], &answer["erased"]),
        (&json!("waiting"), &json!(1)),
        "{answer}"
    );
    assert_eq!(answer["waiting"]["unknown"], 1, "{answer}");
    assert_eq!(
        shop.ids(&format!("/v1/calls?user_id={BOB}")).await,
        [unknown.id()]
    );
    assert_eq!(shop.round(31).await, 0, "it is unknown as before");

    let body = json!({ "as": "failed", "reason": "nothing there" }).to_string();
    let path = format!("/v1/calls/{}/resolve", unknown.id());
    let resolve = || client().post(shop.bare.url_of(&path)).body(body.clone());
    // Its request may still reach the tool until its lease is over.
    tokio::time::timeout(Duration::from_secs(60), async {
        while Answer::to(resolve()).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("settled");
    assert_eq!(shop.round(40).await, 0, "it is not looked at all the time");
    assert_eq!(shop.round(70).await, 1);
    assert_eq!(shop.ids(&format!("/v1/calls?user_id={BOB}")).await, [""; 0]);
    let record = home.store.load(oncegate::core::record::CallId(
        unknown.id().parse().expect("an id"),
    ));
    let record = record.await.expect("an answer").expect("it is kept");
    assert!(record.is_erased() && matches!(record.state, State::Failed(_)));
    assert_eq!(
        shop.round(80).await + shop.round(24 * 3_600).await,
        0,
        "done"
    );
    // What the user does afterwards is not meant; over a shared store from ten seconds on, because clocks differ.
    shop.call(BOB, "k3").await.expect_ok();
    let is_meant = u64::from(home.store.is_shared());
    assert_eq!(shop.round(3 * 24 * 3_600).await, is_meant);
    shop.bare.stop().await;
}
