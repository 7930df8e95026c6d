//! Unknown calls are settled, also when something goes wrong on the way. Tests pass a time instead of waiting.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use oncegate::gateway;
use serde_json::json;

use crate::support::gateway::{Bare, one_tool, read};
use crate::support::memory::Memory;
use crate::support::rounds::{Rested, recheck};
use crate::support::{Act, Answer, Tool, client, until};

/// A gateway over this store, with one tool and its settings.
pub async fn over(memory: &Memory, tool: &Tool, rules: &str) -> Bare {
    Bare::over(memory.clone(), gateway::new_instance(), tool, rules).await
}

pub fn probing(tool: &Tool, more: &str) -> String {
    let url = format!("http://127.0.0.1:{}/by-key/{{key}}", tool.port);
    format!(
        "retry = {{ attempts = 1 }}\nunknown = \"probe\"\nprobe = {{ url = \"{url}\"{more} }}\n"
    )
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Bare {
    pub async fn ask(&self, key: &str) -> Answer {
        self.ask_for("act", key).await
    }

    pub async fn ask_for(&self, tool: &str, key: &str) -> Answer {
        let url = self.url.replace("/act/", &format!("/{tool}/"));
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key }).to_string();
        Answer::to(client().post(url).body(body)).await
    }

    /// An act of an operator on a session.
    pub async fn person(&self, session: &str, what: &str) {
        let url = self.url_of(&format!("/v1/sessions/{session}/{what}"));
        let request = client()
            .post(url)
            .body(json!({ "reason": "it goes in circles" }).to_string());
        Answer::to(request).await.expect_ok();
    }

    pub async fn freeze(&self, session: &str) {
        self.person(session, "freeze").await;
    }

    /// A call as the ledger shows it.
    pub async fn record(&self, call: &Answer) -> Answer {
        let id = call.id();
        let path = format!("/v1/calls/{id}");
        let url = self.url_of(&path);
        Answer::to(client().get(url)).await
    }

    pub async fn state(&self, call: &Answer) -> String {
        self.record(call)
            .await
            .at("/state")
            .as_str()
            .expect("a word")
            .to_owned()
    }

    pub async fn events(&self, call: &Answer) -> Vec<String> {
        self.record(call).await.events()
    }

    pub async fn metrics(&self) -> String {
        let url = self.url_of("/metrics");
        Answer::to(client().get(url)).await.expect_ok().text
    }

    /// Checks the unknown calls that are due in this many seconds.
    pub async fn rest_in(&self, seconds: u64) -> Rested {
        let now = self.gateway.now() + Duration::from_secs(seconds);
        recheck(&self.gateway, now).await
    }
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
    let rests = tokio::spawn(async move { recheck(&gateway, now).await });
    until("as many are sent as may be at once", async || {
        tool.requests() == 9
    })
    .await;
    let held = read(Path::new("nowhere"), &one_tool(&tool, "unknown = \"hold\"")).tools;
    bare.gateway.set_tools(held, &[]).expect("a client");
    drop(holds);
    assert_eq!(
        rests.await.expect("no panic"),
        Rested { due: 5, settled: 4 }
    );
    assert_eq!(
        tool.requests(),
        9,
        "the fifth is not sent by the rules of before"
    );
}

#[tokio::test]
async fn a_slow_not_found_counts_for_the_time_of_the_question() {
    let tool = Tool::start().await;
    let memory = Memory::default();
    let final_after = ", negative_final_after = \"100ms\"";
    // `final_after` is longer than the tool takes to answer.
    let rules = format!(
        "timeout = \"4s\"\ndeadline = \"4s\"\n{}",
        probing(&tool, final_after)
    );
    let not_found = || Act::Answer(404, "", b"{}");
    tool.then(Act::Drop)
        .then(Act::after_ms(3_400, not_found()))
        .always(not_found());
    // The lease lasts a second longer than the deadline. By this clock it is over in three seconds.
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
async fn a_call_that_is_blocked_for_hours_is_checked_before_it_is_given_up() {
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
async fn a_tool_that_hangs_delays_no_check_of_another_tool() {
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

pub const RETRYING: &str = "unknown = \"retry\"\ndedup = \"key\"\nretry = { attempts = 1 }\n";

#[tokio::test]
async fn rechecks_do_not_keep_the_breaker_open() {
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
async fn a_call_that_a_frozen_session_stops_leaves_the_trial_of_the_breaker_to_another() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(500, "", b"{}"));
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 1, cooldown = \"300ms\" }\n";
    let bare = over(&Memory::default(), &tool, rules).await;
    bare.ask("bad").await.expect_problem("outcome-unknown");
    bare.freeze("S").await;
    until("the breaker lets one try", async || {
        bare.ask("frozen").await.problem() == "session-frozen"
    })
    .await;
    let body = json!({ "args": {}, "session_id": "other", "idempotency_key": "good" }).to_string();
    let good = Answer::to(client().post(&bare.url).body(body)).await;
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
async fn a_session_that_an_operator_has_stopped_sends_nothing_again() {
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
async fn no_operator_settles_a_call_that_is_just_being_sent_again() {
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
        let id = unknown.id();
        let path = format!("/v1/calls/{id}/resolve");
        let url = bare.url_of(&path);
        Answer::to(client().post(url).body(body)).await
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
    let rules = "outcomes = { 429 = \"not_executed\" }\ntimeout = \"30s\"\ndeadline = \"60s\"\nretry = { attempts = 2, base = \"1ms\", max = \"1ms\" }\nbreaker = { failures = 100000 }\n";
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

/// Unknown calls are checked every 100 ms.
pub const OFTEN: &str = "recheck = { base = \"100ms\", max = \"100ms\" }\n";
