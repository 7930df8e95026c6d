//! The order of calls in a session while something goes wrong: clocks, losses, left-over locks, tools whose
//! configuration changes.

use serde_json::{Value, json};

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, client, until};

async fn say(http: &reqwest::Client, url: &str, session: &str, key: &str) -> Answer {
    let body = json!({ "args": { "key": key }, "session_id": session, "idempotency_key": key });
    Answer::to(http.post(url).body(body.to_string())).await
}

fn begin(url: &str, session: &str, key: &str) -> tokio::task::JoinHandle<Answer> {
    let (http, url, session, key) = (client(), url.to_owned(), session.to_owned(), key.to_owned());
    tokio::spawn(async move { say(&http, &url, &session, &key).await })
}

fn overlaps(tool: &Tool, one: usize, other: usize) -> bool {
    let seen = tool.seen();
    seen[other].at.expect("come") < seen[one].until.unwrap_or_else(tokio::time::Instant::now)
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_forward_lets_no_second_call_in() {
    let (clock, tool) = (crate::support::clock::Clock::new(), Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let rules = one_tool(&tool, "session = \"exclusive\"\nsession_wait = \"30s\"");
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start_in(folder.path(), free_port(), &rules, &clock.environment()).await;
    let url = gateway.url("/v1/tools/act/calls");
    let first = begin(&url, "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    clock.set_ahead(3_600);
    let next = begin(&url, "S", "next");
    // The second call asks the store while it waits; the first call ends only afterwards.
    let claims = "\noncegate_store_operation_duration_seconds_count{operation=\"claim\"} ";
    let http = client();
    until("the second call has asked the store twice", async || {
        let metrics = http
            .get(gateway.url("/metrics"))
            .send()
            .await
            .expect("an answer");
        let metrics = metrics.text().await.expect("a text");
        let count = metrics
            .split(claims)
            .nth(1)
            .and_then(|rest| rest.lines().next());
        count.is_some_and(|count| count.parse::<u64>().expect("a number") >= 4)
    })
    .await;
    drop(hold);
    next.await.expect("no panic").expect_ok();
    first.await.expect("no panic").expect_ok();
    assert!(
        !overlaps(&tool, 0, 1),
        "two exclusive calls of one session at the tool at once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_became_unknown_by_an_accepted_loss_holds_its_session_until_its_lease_ends_on_redis()
 {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let times =
        "timeout = \"1m\"\ndeadline = \"1m\"\nretry = { attempts = 1 }\nsession_wait = \"0s\"\n";
    let rules = one_tool(&tool, &format!("{times}session = \"exclusive\""));
    let gateway = Gateway::sharing(&redis.url(), &rules).await;
    gateway.until_ready().await;
    let url = gateway.url("/v1/tools/act/calls");
    let first = begin(&url, "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    redis.ask(&["FLUSHALL"]).await;
    // The loss is accepted at the first possible moment.
    until("it is accepted", async || {
        gateway.accept_loss("a test").await.status == 200
    })
    .await;
    gateway.until_ready().await;
    say(&client(), &url, "S", "next")
        .await
        .expect_problem("session-busy");
    drop(hold);
    first.await.expect("no panic").expect_ok();
    say(&client(), &url, "S", "next").await.expect_ok();
    assert!(!overlaps(&tool, 0, 1), "two at the tool at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_call_that_is_put_back_after_a_loss_has_its_sessions_lock_again_on_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "session = \"exclusive\"")).await;
    gateway.until_ready().await;
    let first = begin(&gateway.url("/v1/tools/act/calls"), "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    let before = gateway.get("/v1/sessions/S").await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    crate::redis::shared::notices(&gateway, "accept-loss").await;
    let is_back = async || {
        let session = gateway.get("/v1/sessions/S").await;
        session.at("/lock") == before.at("/lock") && session.at("/fencing") == before.at("/fencing")
    };
    until("lock and token are back", is_back).await;
    drop(hold);
    first.await.expect("no panic").expect_ok();
    until("it is given free", async || {
        gateway.get("/v1/sessions/S").await.at("/lock").is_null()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_left_over_lock_is_freed_also_if_no_call_waits_for_it() {
    let tool = Tool::start().await;
    tool.then(Act::Hang);
    let folder = tempfile::tempdir().expect("a folder");
    // The lease has to outlast the restart, also on a busy machine.
    let times =
        "timeout = \"9s\"\ndeadline = \"9s\"\nretry = { attempts = 1 }\nsession_wait = \"0s\"\n";
    let before = one_tool(&tool, &format!("{times}session = \"exclusive\""));
    let gateway = Process::start(folder.path(), free_port(), &before).await;
    let first = begin(&gateway.url("/v1/tools/act/calls"), "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    gateway.kill();
    first.abort();
    // From now on the tool is fenced, and another tool is exclusive.
    let after = one_tool(&tool, &format!("{times}session = \"fenced\""));
    let after = format!(
        "{after}[tools.pay]\nurl = \"{}\"\n{times}session = \"exclusive\"\n",
        tool.url()
    );
    let gateway = Process::start(folder.path(), free_port(), &after).await;
    let http = client();
    let url = gateway.url("/v1/tools/pay/calls");
    say(&http, &url, "S", "pay")
        .await
        .expect_problem("session-busy");
    until("its lease is over", async || {
        say(&http, &url, "S", "pay").await.status == 200
    })
    .await;
}

/// As above, after an older snapshot: the call ended after the snapshot, which brings its lock back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_an_older_snapshot_brings_back_is_freed_on_redis() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let times =
        "timeout = \"2s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }\nsession_wait = \"0s\"\n";
    let gateway = Gateway::sharing(
        &redis.url(),
        &one_tool(&tool, &format!("{times}session = \"exclusive\"")),
    )
    .await;
    gateway.until_ready().await;
    let url = gateway.url("/v1/tools/act/calls");
    let first = begin(&url, "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    let snapshot = redis.snapshot();
    drop(hold);
    first.await.expect("no panic").expect_ok();
    redis.restore(snapshot.path()).await;
    crate::redis::shared::notices(&gateway, "accept-loss").await;
    gateway.accept_loss("a test").await.expect_ok();
    gateway.until_ready().await;
    let http = client();
    until("its lease is over", async || {
        say(&http, &url, "S", "next").await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_call_gets_no_newer_token_by_being_repeated() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(
        409,
        "Fencing-Token: 9000000000000000\r\n",
        b"{}",
    ));
    let gateway = Gateway::with_tool(&tool, "").await;
    let body = json!({ "args": {}, "session_id": "S", "idempotency_key": "k" });
    gateway
        .post("act", &body, &[])
        .await
        .expect_problem("stale-fencing-token");
    gateway
        .post("act", &body, &[])
        .await
        .expect_problem("stale-fencing-token");
    assert_eq!(
        (tool.requests(), tool.effects()),
        (1, 0),
        "an SDK that repeats a 409 does not overrule it"
    );
    let mut newer = body.clone();
    newer["fencing_token"] = gateway.get("/v1/sessions/S").await.at("/fencing");
    gateway.post("act", &newer, &[]).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_joins_a_waiting_call_is_judged_by_its_own_token() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway =
        Gateway::with_tool(&tool, "session = \"exclusive\"\nsession_wait = \"20s\"").await;
    let url = gateway.url("/v1/tools/act/calls");
    let first = begin(&url, "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    let waiting = async || {
        gateway
            .get("/v1/sessions/S")
            .await
            .at("/waiting")
            .as_array()
            .expect("a list")
            .len()
    };
    let token = gateway
        .get("/v1/sessions/S")
        .await
        .at("/fencing")
        .as_u64()
        .expect("a token");
    let second = begin(&url, "S", "second");
    until("it waits", async || waiting().await == 1).await;
    let with = |token: Option<u64>| {
        let mut body = json!({ "args": { "n": 1 }, "session_id": "S", "idempotency_key": "third" });
        if let Some(token) = token {
            body["fencing_token"] = Value::from(token);
        }
        let request = client().post(&url).body(body.to_string());
        tokio::spawn(async move { Answer::to(request).await })
    };
    let old = with(Some(token));
    until("it waits", async || waiting().await == 2).await;
    let own = with(None);
    drop(hold);
    for call in [first, second, own] {
        call.await.expect("no panic").expect_ok();
    }
    // The request with the old token came first and was refused, or came last and got the other run's result.
    let old = old.await.expect("no panic");
    assert!(
        old.status == 200 || old.problem() == "stale-fencing-token",
        "{}",
        old.text
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_call_is_replayed_also_after_its_tool_became_exclusive() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let http = client();
    let body = json!({ "args": {}, "idempotency_key": "k" }).to_string();
    let ask = async |gateway: &Process| {
        let request = http
            .post(gateway.url("/v1/tools/act/calls"))
            .body(body.clone());
        Answer::to(request).await
    };
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    ask(&gateway).await.expect_ok();
    gateway.kill();
    let gateway = Process::start(
        folder.path(),
        free_port(),
        &one_tool(&tool, "session = \"exclusive\""),
    )
    .await;
    assert_eq!(ask(&gateway).await.expect_ok().at("/replayed"), true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_a_store_that_is_away_for_a_moment_on_redis() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::sharing(
        &redis.url(),
        &one_tool(&tool, "session = \"exclusive\"\nsession_wait = \"30s\""),
    )
    .await;
    gateway.until_ready().await;
    let url = gateway.url("/v1/tools/act/calls");
    let first = begin(&url, "S", "first");
    until("it runs", async || tool.requests() == 1).await;
    let second = begin(&url, "S", "second");
    until("it waits", async || {
        gateway
            .get("/v1/sessions/S")
            .await
            .at("/waiting")
            .as_array()
            .is_some_and(|line| line.len() == 1)
    })
    .await;
    redis.kill();
    redis.start_again().await;
    drop(hold);
    first.await.expect("no panic").expect_ok();
    second.await.expect("no panic").expect_ok();
}
