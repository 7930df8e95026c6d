//! Unknown calls come to rest, also when something goes wrong on the way. Time is passed, not waited for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::core::key::Lookup;
use oncegate::gateway::{self, recovery::Rested};
use serde_json::json;
use tokio::time::timeout;

use crate::support::gateway::{Bare, one_tool, read};
use crate::support::memory::Memory;
use crate::support::redis::Redis;
use crate::support::stores::Stores;
use crate::support::{Act, Answer, Gateway, Tool, client, until};

/// A gateway over this store, with one tool and what is said of it.
async fn over(memory: &Memory, tool: &Tool, rules: &str) -> Bare {
    Bare::over(memory.clone(), gateway::new_instance(), tool, rules).await
}

fn probing(tool: &Tool, more: &str) -> String {
    let url = format!("http://127.0.0.1:{}/by-key/{{key}}", tool.port);
    format!(
        "retry = {{ attempts = 1 }}\nunknown = \"probe\"\nprobe = {{ url = \"{url}\"{more} }}\n"
    )
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Bare {
    async fn ask(&self, key: &str) -> Answer {
        self.ask_for("act", key).await
    }

    async fn ask_for(&self, tool: &str, key: &str) -> Answer {
        let url = self.url.replace("/act/", &format!("/{tool}/"));
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key }).to_string();
        Answer::read(
            client()
                .post(url)
                .body(body)
                .send()
                .await
                .expect("an answer"),
        )
        .await
    }

    /// What a person does to a session.
    async fn person(&self, session: &str, what: &str) {
        let url = self.url.replace(
            "/v1/tools/act/calls",
            &format!("/v1/sessions/{session}/{what}"),
        );
        let request = client()
            .post(url)
            .body(json!({ "reason": "it goes in circles" }).to_string());
        Answer::read(request.send().await.expect("an answer"))
            .await
            .expect_ok();
    }

    async fn freeze(&self, session: &str) {
        self.person(session, "freeze").await;
    }

    /// The ledger's view of a call.
    async fn record(&self, call: &Answer) -> Answer {
        let id = call.at("/call_id");
        let path = format!("/v1/calls/{}", id.as_str().expect("an id"));
        let url = self.url.replace("/v1/tools/act/calls", &path);
        Answer::read(client().get(url).send().await.expect("an answer")).await
    }

    async fn state(&self, call: &Answer) -> String {
        self.record(call)
            .await
            .at("/state")
            .as_str()
            .expect("a word")
            .to_owned()
    }

    async fn events(&self, call: &Answer) -> Vec<String> {
        let events = self.record(call).await.at("/events");
        let events = events
            .as_array()
            .expect("a list")
            .iter()
            .map(|event| event["event"].as_str());
        events
            .map(|event| event.expect("a word").to_owned())
            .collect()
    }

    async fn metrics(&self) -> String {
        let url = self.url.replace("/v1/tools/act/calls", "/metrics");
        Answer::read(client().get(url).send().await.expect("an answer"))
            .await
            .expect_ok()
            .text
    }

    /// Works on what is due in so many seconds.
    async fn rest_in(&self, seconds: u64) -> Rested {
        let now = self.gateway.now() + Duration::from_secs(seconds);
        self.gateway
            .rechecks
            .recheck_once(now)
            .await
            .expect("an answer")
    }
}

#[tokio::test]
async fn a_finding_is_not_lost_because_another_gateway_asks_too() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let (first, second) = (
        over(&memory, &tool, &probing(&tool, "")).await,
        over(&memory, &tool, &probing(&tool, "")).await,
    );
    let (hold, found) = Act::held(Act::Ok("{\"order\":1}"));
    tool.then(Act::ExecuteThenDrop)
        .then(found)
        .always(Act::Answer(503, "", b"{}"));
    let unknown = first.ask("k").await.expect_problem("outcome-unknown");
    let gateway = Arc::clone(&first.gateway);
    let now = gateway.now() + Duration::from_secs(3);
    let asks = tokio::spawn(async move { gateway.rechecks.recheck_once(now).await });
    until("it is asked", async || tool.requests() == 2).await;
    // The tool is slow to say it, and the next check is due meanwhile.
    assert_eq!(second.rest_in(60).await, Rested { due: 1, settled: 0 });
    drop(hold);
    assert_eq!(
        asks.await.expect("no panic").expect("an answer"),
        Rested { due: 1, settled: 1 }
    );
    assert_eq!(second.state(&unknown).await, "succeeded");
    assert_eq!(second.ask("k").await.expect_ok().at("/result/order"), 1);
}

#[tokio::test]
async fn a_late_answer_that_meets_a_recheck_is_no_stale_owner() {
    let tool = Tool::start().await;
    let (hold, late) = Act::held(Act::Ok("{\"order\":1}"));
    tool.then(late).always(Act::Answer(503, "", b"{}"));
    let rules = format!(
        "timeout = \"200ms\"\ndeadline = \"200ms\"\n{}",
        probing(&tool, "")
    );
    let bare = over(&Memory::default(), &tool, &rules).await;
    let unknown = bare.ask("k").await.expect_problem("outcome-unknown");
    assert_eq!(bare.rest_in(60).await, Rested { due: 1, settled: 0 });
    drop(hold);
    until("the late answer is in", async || {
        bare.state(&unknown).await == "succeeded"
    })
    .await;
    assert!(
        bare.metrics()
            .await
            .contains("\noncegate_stale_owners_total 0\n"),
        "it had nothing to lose"
    );
}

#[tokio::test]
async fn rules_that_changed_while_a_recheck_waited_for_its_turn_hold_for_it() {
    let tool = Tool::start().await;
    let retry = "dedup = \"key\"\nunknown = \"retry\"\nretry = { attempts = 1 }\n";
    let bare = over(&Memory::default(), &tool, retry).await;
    for key in ["1", "2", "3", "4", "5"] {
        tool.then(Act::ExecuteThenDrop);
        bare.ask(key).await.expect_problem("outcome-unknown");
    }
    let holds: Vec<_> = (0..4)
        .map(|_| {
            let (hold, held) = Act::held(Act::Ok("{}"));
            tool.then(held);
            hold
        })
        .collect();
    let gateway = Arc::clone(&bare.gateway);
    let now = gateway.now() + Duration::from_secs(60);
    let rests = tokio::spawn(async move { gateway.rechecks.recheck_once(now).await });
    until("as many are sent as may be at once", async || {
        tool.requests() == 9
    })
    .await;
    let held = read(Path::new("nowhere"), &one_tool(&tool, "unknown = \"hold\"")).tools;
    bare.gateway.set_tools(held).expect("a client");
    drop(holds);
    assert_eq!(
        rests.await.expect("no panic").expect("an answer"),
        Rested { due: 5, settled: 4 }
    );
    assert_eq!(
        tool.requests(),
        9,
        "the fifth is not sent by the rules of before"
    );
}

#[tokio::test]
async fn a_gateway_that_stops_does_not_wait_for_the_calls_of_others() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let (runs, follows) = (
        over(&memory, &tool, "").await,
        over(&memory, &tool, "").await,
    );
    let (hold, held) = Act::held(Act::Ok("{\"order\":1}"));
    tool.then(held);
    let url = runs.url.clone();
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" }).to_string();
    let asked = client().post(url).body(body.clone()).send();
    let asked = tokio::spawn(async move { Answer::read(asked.await.expect("an answer")).await });
    until("the tool has it", async || tool.requests() == 1).await;
    let waits = client()
        .post(&follows.url)
        .header("prefer", "wait=60")
        .body(body)
        .send();
    let waits = tokio::spawn(async move { Answer::read(waits.await.expect("an answer")).await });
    let joined = "oncegate_store_operation_duration_seconds_count{operation=\"claim\"} ";
    until("it is known there", async || {
        !follows.metrics().await.contains(&format!("\n{joined}0\n"))
    })
    .await;
    follows.gateway.drain();
    let told = timeout(Duration::from_secs(10), waits)
        .await
        .expect("at once")
        .expect("no panic");
    told.expect_problem("call-in-progress");
    drop(hold);
    asked.await.expect("no panic").expect_ok();
}

#[tokio::test]
async fn a_slow_not_found_says_what_was_so_when_the_tool_was_asked() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let final_after = ", negative_final_after = \"100ms\"";
    // Longer than the answer takes.
    let rules = format!(
        "timeout = \"4s\"\ndeadline = \"4s\"\n{}",
        probing(&tool, final_after)
    );
    let not_found = || Act::Answer(404, "", b"{}");
    tool.then(Act::Drop)
        .then(Act::after_ms(3_400, not_found()))
        .always(not_found());
    // The lease is a second longer than the deadline; by this clock it is over in three.
    memory.set_ahead(SignedDuration::from_secs(-2));
    let before = over(&memory, &tool, &rules).await;
    let unknown = before.ask("k").await.expect_problem("outcome-unknown");
    memory.set_ahead(SignedDuration::ZERO);
    let bare = over(&memory, &tool, &rules).await;
    assert_eq!(
        bare.rest_in(0).await,
        Rested { due: 1, settled: 0 },
        "it was asked before that counts"
    );
    assert_eq!(bare.state(&unknown).await, "unknown");
    assert_eq!(bare.rest_in(60).await, Rested { due: 1, settled: 1 });
}

#[tokio::test]
async fn what_cannot_be_asked_for_hours_is_asked_before_it_is_given_up() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"order\":1}"));
    let bare = over(&Memory::default(), &tool, &probing(&tool, "")).await;
    let found = bare.ask("found").await.expect_problem("outcome-unknown");
    assert_eq!(bare.rest_in(7_200).await, Rested { due: 1, settled: 1 });
    assert_eq!(bare.state(&found).await, "succeeded");
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Answer(503, "", b"{}"));
    let lost = bare.ask("lost").await.expect_problem("outcome-unknown");
    assert_eq!(bare.rest_in(7_200).await, Rested { due: 1, settled: 0 });
    assert_eq!(
        bare.events(&lost).await,
        ["claimed", "ended", "probing", "given_up"]
    );
    assert_eq!(bare.rest_in(99_000).await.due, 0);
}

#[tokio::test]
async fn a_gateway_without_the_tool_leaves_its_calls_to_one_that_has_it() {
    let (act, tool) = (Tool::start().await, Tool::start().await);
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"order\":1}"));
    let memory = Memory::default();
    let other = |rules: &str| format!("[tools.other]\nurl = \"{}\"\n{rules}", tool.url());
    let has_it = over(&memory, &act, &other(&probing(&tool, ""))).await;
    let has_not = over(&memory, &act, "").await;
    let unknown = has_it
        .ask_for("other", "k")
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(has_not.rest_in(9_000).await, Rested::default());
    assert_eq!(has_it.rest_in(9_000).await, Rested { due: 1, settled: 1 });
    assert_eq!(has_it.state(&unknown).await, "succeeded");

    // The owner of a running call is gone, and who finds it does not have the tool.
    let (_hold, held) = Act::held(Act::Drop);
    tool.then(held);
    let running = tokio::spawn(async move { has_it.ask_for("other", "lost").await });
    until("it is at the tool", async || tool.requests() == 3).await;
    let later = has_not.gateway.now() + Duration::from_secs(60);
    assert_eq!(
        has_not
            .gateway
            .lost
            .recover_all(later)
            .await
            .expect("an answer"),
        1
    );
    running.abort();
    let has_it = over(&memory, &act, &other(&probing(&tool, ""))).await;
    assert_eq!(has_it.rest_in(9_000).await, Rested { due: 1, settled: 1 });
}

#[tokio::test]
async fn what_was_held_is_taken_up_when_the_configuration_says_more() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::ExecuteThenDrop)
        .always(Act::Answer(503, "", b"{}"));
    let memory = Memory::default();
    let holds = over(&memory, &tool, "retry = { attempts = 1 }").await;
    let unknown = holds.ask("k").await.expect_problem("outcome-unknown");
    assert_eq!(
        holds
            .gateway
            .rechecks
            .take_up_once()
            .await
            .expect("an answer"),
        0
    );
    let probes = over(&memory, &tool, &probing(&tool, "")).await;
    let given_up = probes.ask("gone").await.expect_problem("outcome-unknown");
    probes.rest_in(7_200).await;
    assert_eq!(
        probes.events(&given_up).await.last().expect("an event"),
        "given_up"
    );
    assert_eq!(
        probes
            .gateway
            .rechecks
            .take_up_once()
            .await
            .expect("an answer"),
        1,
        "not what was given up"
    );
    assert_eq!(
        probes
            .gateway
            .rechecks
            .take_up_once()
            .await
            .expect("an answer"),
        0
    );
    tool.always(Act::Ok("{\"order\":1}"));
    assert_eq!(probes.rest_in(60).await, Rested { due: 1, settled: 1 });
    assert_eq!(
        probes.events(&unknown).await,
        ["claimed", "ended", "taken_up", "probing", "probed"]
    );
}

#[tokio::test]
async fn a_tool_that_hangs_keeps_no_other_waiting() {
    let (tool, slow) = (Tool::start().await, Tool::start().await);
    let config = format!(
        "{}[tools.slow]\nurl = \"{}\"\n{}",
        probing(&tool, ""),
        slow.url(),
        probing(&slow, "").replace("{key}", "{key}?slow")
    );
    let bare = over(&Memory::default(), &tool, &config).await;
    slow.always(Act::ExecuteThenDrop);
    for n in 0..6 {
        bare.ask_for("slow", &format!("s{n}"))
            .await
            .expect_problem("outcome-unknown");
    }
    let (hold, held) = Act::held(Act::Ok("{\"order\":1}"));
    slow.always(held);
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"order\":1}"));
    let unknown = bare.ask("k").await.expect_problem("outcome-unknown");
    let now = bare.gateway.now() + Duration::from_secs(60);
    let begun = bare
        .gateway
        .rechecks
        .begin_rechecks(now)
        .await
        .expect("begun");
    assert_eq!(begun.len(), 7);
    until("the other tool's call is settled", async || {
        bare.state(&unknown).await == "succeeded"
    })
    .await;
    until("as many are asked as may be", async || {
        slow.requests() == 6 + 4
    })
    .await;
    let more = bare
        .gateway
        .rechecks
        .begin_rechecks(now)
        .await
        .expect("begun");
    assert_eq!(more.len(), 0, "those that wait are not taken up again");
    drop(hold);
    for work in begun {
        assert!(work.await.expect("no panic"));
    }
    assert_eq!(slow.requests(), 6 + 6);
}

const RETRYING: &str = "unknown = \"retry\"\ndedup = \"key\"\nretry = { attempts = 1 }\n";

#[tokio::test]
async fn what_is_rechecked_does_not_keep_its_tool_left_alone() {
    let tool = Tool::start().await;
    let rules = format!("{RETRYING}breaker = {{ failures = 2, cooldown = \"400ms\" }}\n");
    let bare = over(&Memory::default(), &tool, &rules).await;
    tool.always(Act::Answer(500, "", b"{}"));
    for key in ["a", "b"] {
        bare.ask(key).await.expect_problem("outcome-unknown");
    }
    let due = bare.rest_in(3).await;
    assert_eq!(
        (due, tool.requests()),
        (Rested { due: 2, settled: 0 }, 2),
        "the breaker is asked first"
    );
    tool.always(Act::Numbered);
    until("a fresh call is let through to try", async || {
        bare.ask("c").await.status == 200
    })
    .await;
    assert_eq!(
        bare.rest_in(600).await,
        Rested { due: 2, settled: 2 },
        "they were only put off"
    );
    assert_eq!(tool.requests(), 5);
}

#[tokio::test]
async fn a_call_that_its_session_stops_leaves_its_place_to_one_that_tries() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(500, "", b"{}"));
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 1, cooldown = \"300ms\" }\n";
    let bare = over(&Memory::default(), &tool, rules).await;
    bare.ask("bad").await.expect_problem("outcome-unknown");
    bare.freeze("S").await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    bare.ask("frozen").await.expect_problem("session-frozen");
    let body = json!({ "args": {}, "session_id": "other", "idempotency_key": "good" }).to_string();
    let good = Answer::read(
        client()
            .post(&bare.url)
            .body(body)
            .send()
            .await
            .expect("an answer"),
    )
    .await;
    good.expect_ok();
}

#[tokio::test]
async fn a_conflict_that_proves_nothing_is_a_sign_of_life_all_the_same() {
    let tool = Tool::start().await;
    let rules = format!("{RETRYING}breaker = {{ failures = 2, cooldown = \"1m\" }}\n");
    let bare = over(&Memory::default(), &tool, &rules).await;
    tool.then(Act::Drop).always(Act::Answer(409, "", b"{}"));
    bare.ask("k").await.expect_problem("outcome-unknown");
    for seconds in [3, 30, 300] {
        assert_eq!(bare.rest_in(seconds).await, Rested { due: 1, settled: 0 });
    }
    tool.always(Act::Numbered);
    bare.ask("other").await.expect_ok();
}

#[tokio::test]
async fn a_session_that_a_person_has_stopped_sends_nothing_again() {
    let tool = Tool::start().await;
    tool.then(Act::Drop).always(Act::Numbered);
    let bare = over(&Memory::default(), &tool, RETRYING).await;
    let unknown = bare.ask("k").await.expect_problem("outcome-unknown");
    bare.freeze("S").await;
    assert_eq!(bare.rest_in(9).await, Rested { due: 1, settled: 0 });
    assert_eq!(
        (bare.events(&unknown).await, tool.requests()),
        (words(&["claimed", "ended", "put_off"]), 1)
    );
    bare.person("S", "thaw").await;
    assert_eq!(bare.rest_in(600).await, Rested { due: 1, settled: 1 });
}

#[tokio::test]
async fn nobody_settles_a_call_that_is_sent_again_just_now() {
    let tool = Tool::start().await;
    tool.deduplicate().then(Act::ExecuteThenDrop);
    let bare = over(&Memory::default(), &tool, RETRYING).await;
    let unknown = bare.ask("k").await.expect_problem("outcome-unknown");
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let begun = bare
        .gateway
        .rechecks
        .begin_rechecks(bare.gateway.now() + Duration::from_secs(3))
        .await
        .expect("begun");
    until("it is at the tool", async || tool.requests() == 2).await;
    let resolve = async |what: &str| {
        let mut body = json!({ "as": what, "reason": "looked it up" });
        if what == "succeeded" {
            body["result"] = json!({});
        }
        let body = body.to_string();
        let id = unknown.at("/call_id");
        let path = format!("/v1/calls/{}/resolve", id.as_str().expect("an id"));
        let url = bare.url.replace("/v1/tools/act/calls", &path);
        Answer::read(
            client()
                .post(url)
                .body(body)
                .send()
                .await
                .expect("an answer"),
        )
        .await
    };
    for what in ["succeeded", "failed"] {
        assert_eq!(
            resolve(what).await.expect_problem("wrong-state").status,
            409
        );
    }
    drop(hold);
    for work in begun {
        assert!(work.await.expect("no panic"));
    }
    bare.ask("k").await.expect_ok();
    assert_eq!((tool.requests(), tool.effects()), (2, 1));
}

#[tokio::test]
async fn retries_are_bounded_also_when_many_fail_at_once() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Answer(429, "", b"{}"));
    tool.always(held);
    let rules = "timeout = \"30s\"\ndeadline = \"60s\"\nretry = { attempts = 2, base = \"1ms\", max = \"1ms\" }\nbreaker = { failures = 100000 }\n";
    let bare = Arc::new(
        over(
            &Memory::default(),
            &tool,
            &format!("{rules}session = \"shared\"\n"),
        )
        .await,
    );
    let calls: Vec<_> = (0..70)
        .map(|n| {
            let bare = bare.clone();
            tokio::spawn(async move { bare.ask(&format!("k{n}")).await })
        })
        .collect();
    until("all are at the tool", async || tool.requests() == 70).await;
    drop(hold);
    for call in calls {
        call.await
            .expect("no panic")
            .expect_problem("tool-unavailable");
    }
    assert!(
        (110..=121).contains(&tool.requests()),
        "{}: fifty were in hand",
        tool.requests()
    );
}

/// Worked on every 100 ms.
const OFTEN: &str = "recheck = { base = \"100ms\", max = \"100ms\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_send_an_unknown_call_again_once_per_check_on_redis() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    tool.deduplicate().always(Act::ExecuteThenDrop);
    let config = one_tool(
        &tool,
        &format!("{RETRYING}{OFTEN}breaker = {{ failures = 1000 }}\n"),
    );
    let stores = Stores::Redis(redis.url());
    let gateways = stores.gateways(&config).await;
    let unknown = gateways[0]
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    until("it was sent often", async || tool.requests() >= 6).await;
    tool.always(Act::Numbered);
    until("it is settled", async || {
        gateways[1].record(&unknown).await.at("/state") == "succeeded"
    })
    .await;
    let events = gateways[0].record(&unknown).await.at("/events");
    let again = events
        .as_array()
        .expect("a list")
        .iter()
        .filter(|event| event["event"] == "sent_again");
    assert_eq!(tool.requests(), 1 + again.count(), "as often as is written");
    assert_eq!(tool.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis_what_cannot_be_read_or_has_lost_its_key_is_in_nobodys_way() {
    let redis = Redis::strict().await;
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let slow = "recheck = { base = \"4s\", max = \"4s\" }\n";
    let config = one_tool(
        &tool,
        &format!("{RETRYING}{slow}breaker = {{ failures = 1000 }}\n"),
    );
    let gateway = Stores::Redis(redis.url()).gateway(&config).await;
    let mut calls = Vec::new();
    for key in ["unreadable", "keyless", "good"] {
        calls.push(
            gateway
                .act(key, json!({}))
                .await
                .expect_problem("outcome-unknown"),
        );
    }
    let id = |call: &Answer| call.at("/call_id").as_str().expect("an id").to_owned();
    let key = async |pattern: String| -> String {
        let keys: Vec<String> =
            ::redis::from_redis_value(redis.ask(&["KEYS", &pattern]).await).expect("keys");
        keys.into_iter().next().expect("a key")
    };
    let record = key(format!("oncegate:*:call:{}", id(&calls[0]))).await;
    redis
        .ask(&["HSET", &record, "progress", "{\"of\":\"a later version\"}"])
        .await;
    let lookup = Lookup::new("default", "act", "keyless");
    let holder = key(format!("oncegate:*:key:{}", hex::encode(lookup.0))).await;
    redis.ask(&["SET", &holder, &id(&calls[2])]).await;
    let nobody = uuid::Uuid::nil().to_string();
    let index = "oncegate:{p000}:unknown";
    redis.ask(&["ZADD", index, "1", &nobody]).await;
    tool.always(Act::Numbered);
    until("the good one is settled", async || {
        gateway.record(&calls[2]).await.at("/state") == "succeeded"
    })
    .await;
    until("the keyless one is given up", async || {
        gateway.record(&calls[1]).await.at("/events/2/event") == "given_up"
    })
    .await;
    let left = redis.ask(&["ZSCORE", index, &nobody]).await;
    assert_eq!(
        left,
        ::redis::Value::Nil,
        "what points to no call is taken away"
    );
    let unreadable = "oncegate_store_errors_total{kind=\"unreadable\",operation=\"to_check\"}";
    until("the unreadable one is said", async || {
        gateway.metric(unreadable).await > 0.0
    })
    .await;
}

#[tokio::test]
async fn in_a_file_what_cannot_be_read_is_in_nobodys_way() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .then(Act::ExecuteThenDrop)
        .always(Act::Ok("{\"found\":1}"));
    let slow = "recheck = { base = \"1s\", max = \"1s\" }\n";
    let gateway = Gateway::with_tool(&tool, &format!("{}{slow}", probing(&tool, ""))).await;
    let bad = gateway
        .act("bad", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let good = gateway
        .act("good", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let connection = rusqlite::Connection::open(gateway.database()).expect("a store");
    let sql = "UPDATE calls SET key_source = 'of a later version', check_at = 1 WHERE call_id = ?1";
    assert_eq!(
        connection
            .execute(sql, [bad.at("/call_id").as_str()])
            .expect("written"),
        1
    );
    until("the other is settled", async || {
        gateway.record(&good).await.at("/state") == "succeeded"
    })
    .await;
    let unreadable = "oncegate_store_errors_total{kind=\"unreadable\",operation=\"to_check\"}";
    assert!(gateway.metric(unreadable).await > 0.0);
}

/// A person has settled a call as failed, the tool's late answer proves the opposite, and meanwhile the key may
/// have run again.
#[tokio::test]
async fn a_proof_of_execution_that_comes_after_a_person_said_failed_is_noted_and_counted() {
    for runs_again in [false, true] {
        let tool = Tool::start().await;
        let memory = Memory::default();
        let rules = "timeout = \"200ms\"\ndeadline = \"300ms\"\nretry = { attempts = 1 }\n";
        let first = over(&memory, &tool, rules).await;
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held);
        let unknown = first.ask("k").await.expect_problem("outcome-unknown");
        // Another gateway, at which the lease is over.
        memory.set_ahead(SignedDuration::from_hours(1));
        let second = over(&memory, &tool, rules).await;
        let id = unknown.at("/call_id");
        let path = format!("/v1/calls/{}/resolve", id.as_str().expect("an id"));
        let url = second.url.replace("/v1/tools/act/calls", &path);
        let body = json!({ "as": "failed", "reason": "not in the books" }).to_string();
        let resolved = client()
            .post(url)
            .body(body)
            .send()
            .await
            .expect("an answer");
        Answer::read(resolved).await.expect_ok();
        let state = if runs_again {
            second.ask("k").await.expect_ok();
            "succeeded"
        } else {
            "failed"
        };
        memory.set_ahead(SignedDuration::ZERO);
        let before = second.record(&unknown).await;
        drop(hold);
        until("it is noted", async || {
            first.events(&unknown).await.last().map(String::as_str) == Some("late_proof")
        })
        .await;
        let record = first.record(&unknown).await;
        assert_eq!(record.at("/state"), state, "it is no change of state");
        assert_eq!(record.at("/result"), before.at("/result"));
        let event = record.at(&format!(
            "/events/{}",
            record.at("/events").as_array().expect("a list").len() - 1
        ));
        assert_eq!(
            (event["outcome"].as_str(), &event["attempt_id"]),
            (Some("executed"), &record.at("/events/0/attempt_id"))
        );
        until("it is counted", async || {
            first
                .metrics()
                .await
                .contains("oncegate_late_executions_total{tool=\"act\"} 1\n")
        })
        .await;
        assert_eq!(tool.effects(), if runs_again { 2 } else { 1 });
    }
}
