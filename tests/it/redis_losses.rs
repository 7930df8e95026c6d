//! A Redis that has lost data: nothing runs again by itself, and a person opens the store again.

use std::time::Duration;

use futures_util::future::join_all;
use oncegate::core::caller::Caller;
use oncegate::core::document::{Document, Kind};
use oncegate::core::record::CallId;
use oncegate::core::saga::{Policy, Saga, SagaId};
use oncegate::gateway::new_instance;
use oncegate::store::redis::Redis as RedisStore;
use oncegate::store::{self, Calls as _, Documents as _, Health as _, LossRecovery as _, Put};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::contract::{
    ME, arrival, at, claimed, ended, open_redis, open_redis_as_it_is, replaced, rerun,
};
use crate::redis::{call, gateway, notices};
#[cfg(feature = "crash-points")]
use crate::support::binary::Process;
use crate::support::binary::{free_port, run};
use crate::support::faulty::FaultStore;
use crate::support::gateway::{Bare, OPS_TOKEN, one_tool, ops_token_sha256};
use crate::support::line::Line;
use crate::support::redis::Redis;
use crate::support::{Act, Answer, Gateway, Tool, client, until};

/// Does something to a Redis and sees the gateway close, without an effect, and open again with the
/// operator's acceptance; tokens go on rising.
async fn loses(
    redis: &mut Redis,
    gateway: &Gateway,
    tool: &Tool,
    lose: impl AsyncFnOnce(&mut Redis),
) {
    let session = |n: usize| json!({ "args": { "n": n }, "session_id": "S" });
    let before = gateway.post("act", &session(1), &[]).await.expect_ok();
    lose(redis).await;
    let effects = tool.effects();
    // Not even before anybody has looked.
    gateway
        .post("act", &session(2), &[])
        .await
        .expect_problem("store-unavailable");
    let again = gateway.post("act", &session(1), &[]).await;
    assert!(
        again.status == 503 || again.at("/replayed") == true,
        "{}",
        again.text
    );
    notices(gateway, "accept-loss").await;
    gateway
        .post("act", &session(3), &[])
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), effects, "no effect meanwhile");
    assert_eq!(gateway.metric("oncegate_store_ready").await, 0.0);
    assert!(gateway.metric("oncegate_store_lost_claims_total").await > 0.0);
    gateway
        .accept_loss(" ")
        .await
        .expect_problem("invalid-request");
    gateway.accept_loss("it was flushed").await.expect_ok();
    gateway.until_ready().await;
    gateway
        .accept_loss("again")
        .await
        .expect_problem("wrong-state");
    // What the session had given out before is explained by the loss; nothing far above it is.
    let brings = |n: usize, token: u64| json!({ "args": { "n": n }, "session_id": "S", "fencing_token": token });
    let given = before.at("/fencing").as_u64().expect("a token");
    let made_up = brings(4, given + 7_190_000_000);
    gateway
        .post("act", &made_up, &[])
        .await
        .expect_problem("invalid-request");
    assert_eq!(
        gateway
            .post("act", &brings(5, given), &[])
            .await
            .expect_ok()
            .at("/fencing"),
        given
    );
    let after = gateway.post("act", &session(2), &[]).await.expect_ok();
    let token = |answer: &Answer| answer.at("/fencing").as_u64().expect("a token");
    assert!(
        token(&after) > token(&before),
        "{} after {}",
        token(&after),
        token(&before)
    );
}

#[tokio::test]
async fn a_flushed_redis_is_noticed_before_anything_runs_again() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    loses(&mut redis, &gateway, &tool, async |redis| {
        redis.ask(&["FLUSHALL"]).await;
    })
    .await;
    // What was remembered was put back first, so the call is known all the same.
    let replay = gateway
        .post(
            "act",
            &json!({ "args": { "n": 1 }, "session_id": "S" }),
            &[],
        )
        .await;
    assert_eq!(replay.expect_ok().at("/replayed"), true);
    assert_eq!(tool.effects(), 3);
}

#[tokio::test]
async fn an_older_snapshot_is_noticed_before_anything_runs_again() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 99).await.expect_ok();
    let snapshot = redis.snapshot();
    loses(&mut redis, &gateway, &tool, async |redis| {
        redis.restore(snapshot.path()).await
    })
    .await;
}

#[tokio::test]
async fn what_one_gateway_has_lost_does_not_run_again_at_another() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let line = Line::to(redis.port).await;
    let one = gateway(&redis, &tool, "").await;
    let other = Gateway::sharing(&line.url(), &one_tool(&tool, "")).await;
    other.until_ready().await;
    call(&other, 0).await.expect_ok();
    let snapshot = redis.snapshot();
    for n in 1..=5 {
        call(&other, n).await.expect_ok();
    }
    // Only the other one knows what is missing, and it comes late to say so.
    line.block(true);
    redis.restore(snapshot.path()).await;
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        for n in 1..=5 {
            call(&one, n).await.expect_problem("store-unavailable");
        }
    }
    line.block(false);
    notices(&one, "accept-loss").await;
    assert_eq!(
        tool.effects(),
        6,
        "this one has lost nothing, and waited for the other"
    );
}

#[tokio::test]
async fn a_newcomer_does_not_take_an_emptied_redis_for_a_new_one() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let start = async || Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    let gateway = start().await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    let newcomer = start().await;
    // As long as it is not decided, and that is not for ever.
    let patience = Instant::now() + Duration::from_secs(20);
    while !newcomer.reasons().await.contains("accept-loss") {
        assert!(Instant::now() < patience, "{}", newcomer.reasons().await);
        let again = call(&newcomer, 1).await;
        assert!(
            again.status == 503 || again.at("/replayed") == true,
            "{}",
            again.text
        );
        call(&newcomer, 2).await.expect_problem("store-unavailable");
        sleep(Duration::from_millis(50)).await;
    }
    opens_for_both(&newcomer, &gateway, "it was emptied").await;
    assert_eq!(tool.effects(), 1);
}

/// A newcomer, which knows nothing of what was, accepts a loss: the other gateway follows, and its call 1 is back.
async fn opens_for_both(newcomer: &Gateway, other: &Gateway, reason: &str) {
    newcomer.accept_loss(reason).await.expect_ok();
    newcomer.until_ready().await;
    other.until_ready().await;
    assert_eq!(
        call(newcomer, 1).await.expect_ok().at("/replayed"),
        true,
        "it was put back"
    );
}

#[tokio::test]
async fn a_newcomer_accepts_for_all_a_loss_that_was_found_before_it_came() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    notices(&gateway, "accept-loss").await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    notices(&newcomer, "accept-loss").await;
    opens_for_both(&newcomer, &gateway, "it was emptied").await;
    assert_eq!(tool.effects(), 1);
}

#[tokio::test]
async fn a_redis_that_is_emptied_again_before_the_loss_is_accepted_stays_closed_for_a_newcomer() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    call(&gateway, 1).await.expect_ok();
    redis.ask(&["FLUSHALL"]).await;
    notices(&gateway, "accept-loss").await;
    redis.ask(&["FLUSHALL"]).await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    notices(&newcomer, "accept-loss").await;
    call(&newcomer, 2).await.expect_problem("store-unavailable");
    opens_for_both(&newcomer, &gateway, "it was emptied twice").await;
    assert_eq!(tool.effects(), 1);
}

/// The gateway has looked when nothing was there, and the newcomer's manifest came just after that.
#[tokio::test]
async fn a_gateway_whose_warning_met_a_newcomers_manifest_follows_what_that_one_accepts() {
    let redis = Redis::strict().await;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let one = open_redis(&redis.url(), folders[0].path()).await;
    until("it was whole", async || {
        one.readiness().await.reasons.is_empty()
    })
    .await;
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:manifest"]).await).expect("keys");
    let manifest = async || -> serde_json::Value {
        let text: String =
            ::redis::from_redis_value(redis.ask(&["GET", &keys[0]]).await).expect("a text");
        serde_json::from_str(&text).expect("a manifest")
    };
    let mut newcomers = manifest().await;
    let epoch = newcomers["epoch"].take();
    newcomers["epoch"] = json!("newcomer");
    redis.ask(&["FLUSHALL"]).await;
    let is_closed = async |store: &RedisStore| {
        let reasons = store.readiness().await.reasons;
        reasons.iter().any(|reason| reason.code == store::LOST_DATA)
    };
    until("it has noticed", async || is_closed(&one).await).await;
    redis.ask(&["SET", &keys[0], &newcomers.to_string()]).await;
    let newcomer = open_redis_as_it_is(&redis.url(), folders[1].path()).await;
    until("its epoch is named", async || {
        manifest().await["follows"] == json!([epoch])
    })
    .await;
    until("the newcomer is closed", async || {
        is_closed(&newcomer).await
    })
    .await;
    until("it is accepted", async || {
        newcomer.accept_loss("it was emptied").await.is_ok()
    })
    .await;
    until("both are open", async || {
        one.readiness().await.reasons.is_empty() && newcomer.readiness().await.reasons.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_gateway_that_starts_again_notices_what_was_lost_while_it_was_away() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "").await;
    let newcomer = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    call(&gateway, 1).await.expect_ok();
    let config = one_tool(&tool, "");
    let folder = gateway.stop().await;
    redis.ask(&["FLUSHALL"]).await;
    notices(&newcomer, "accept-loss").await;
    let gateway = Gateway::again(folder, &redis.url(), &config).await;
    notices(&gateway, "accept-loss").await;
    call(&gateway, 1).await.expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 1);

    // The command line does the same as the door, and every gateway that remembers follows.
    let text = format!(
        "[store]\nurl = \"{}\"\nwatermarks = \"watermarks\"\n{config}",
        redis.url()
    );
    std::fs::write(gateway.folder().join("oncegate.toml"), text).expect("a file");
    let arguments = [
        "store",
        "accept-loss",
        "--config",
        "oncegate.toml",
        "--reason",
        "flushed by accident",
    ];
    let accepted = run(gateway.folder(), &arguments);
    let said = String::from_utf8_lossy(&accepted.stdout).into_owned();
    assert!(
        said.starts_with("the loss is accepted; 0 calls became unknown; "),
        "{said}"
    );
    assert!(said.contains("frozen"), "{said}");
    gateway.until_ready().await;
    newcomer.until_ready().await;
    let refused = run(gateway.folder(), &arguments);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("has not lost any data"),
        "{said}"
    );
}

#[tokio::test]
async fn what_may_have_run_again_before_the_loss_is_unknown_after_it() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = gateway(&redis, &tool, "retry = { attempts = 1 }").await;
    tool.then(Act::Answer(429, "", b"{}"));
    call(&gateway, 1).await.expect_problem("tool-unavailable");
    let snapshot = redis.snapshot();
    call(&gateway, 1).await.expect_ok();
    // Another gateway, which remembers nothing of it, is all that is left.
    let config = one_tool(&tool, "");
    let other = Gateway::sharing(&redis.url(), &config).await;
    other.until_ready().await;
    call(&other, 2).await.expect_ok();
    drop(gateway.stop().await);
    redis.restore(snapshot.path()).await;
    notices(&other, "accept-loss").await;
    let accepted = other
        .accept_loss("an older snapshot was restored")
        .await
        .expect_ok();
    assert_eq!(accepted.at("/calls_now_unknown"), 1);
    let doubtful = call(&other, 1).await.expect_problem("outcome-unknown");
    let record = other.record(&doubtful).await;
    assert_eq!(record.at("/events/2/event"), "store_lost");
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn an_outcome_that_meets_an_older_version_of_its_call_goes_back_as_a_whole() {
    let redis = Redis::strict().await;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_redis(&redis.url(), folder.path()).await;
    let first = claimed(&store, &arrival("k", "S", 0, ME)).await;
    let failed = replaced(&store, &ended(&first, 429, 1), &first).await;
    let keys: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:call:*"]).await).expect("keys");
    redis.ask(&["COPY", &keys[0], "before"]).await;
    let second = replaced(&store, &rerun(&failed, 2), &failed).await;
    redis.ask(&["COPY", "before", &keys[0], "REPLACE"]).await;

    // What would be begun on it is refused, and what is known of it is not lost.
    let retry = store.replace(&rerun(&failed, 2), &second).await;
    assert!(matches!(retry, Err(store::Error::Refused(_))), "{retry:?}");
    let done = replaced(&store, &ended(&second, 200, 3), &second).await;
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        Some(done.clone())
    );
    assert_eq!(
        store
            .holders(&[done.intent.lookup])
            .await
            .expect("an answer")[0]
            .record,
        done
    );

    // The same if nothing at all is left of the call.
    until("it has been looked at", async || {
        store.readiness().await.reasons.is_empty()
    })
    .await;
    let running = claimed(&store, &arrival("gone", "S", 4, ME)).await;
    let all: Vec<String> =
        ::redis::from_redis_value(redis.ask(&["KEYS", "oncegate:*:call:*"]).await).expect("keys");
    let gone = all
        .iter()
        .find(|key| key.ends_with(&running.intent.call_id.to_string()))
        .expect("its key");
    redis.ask(&["DEL", gone]).await;
    let done = replaced(&store, &ended(&running, 200, 5), &running).await;
    assert_eq!(
        store.load(done.intent.call_id).await.expect("an answer"),
        Some(done)
    );
}

/// Until a loss is accepted to the end, nobody but who accepts it changes anything, also if that one ends.
#[tokio::test]
async fn what_is_about_to_be_accepted_is_closed_for_all_but_the_documents_of_who_accepts_it() {
    let mut redis = Redis::strict().await;
    let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let one = open_redis(&redis.url(), folders[0].path()).await;
    let other = open_redis(&redis.url(), folders[1].path()).await;
    let id = SagaId {
        tenant: "shop".into(),
        id: "G".into(),
    };
    let saga = Saga::begin(id, &Policy::default(), at(0)).to_document();
    assert_eq!(one.put_document(&saga).await.expect("an answer"), Put::Done);
    let snapshot = redis.snapshot();
    claimed(&one, &arrival("a", "S", 0, ME)).await;
    redis.restore(snapshot.path()).await;
    let is_closed = async |store: &RedisStore| {
        let reasons = store.readiness().await.reasons;
        reasons.iter().any(|reason| reason.code == store::LOST_DATA)
    };
    let next = |document: &Document| Document {
        version: document.version + 1,
        ..document.clone()
    };
    until("both have noticed", async || {
        is_closed(&one).await && is_closed(&other).await
    })
    .await;
    assert!(one.put_document(&next(&saga)).await.is_err());

    one.prepare_acceptance("restored").await.expect("prepared");
    assert!(is_closed(&one).await && one.claim(&arrival("b", "S", 1, ME), &[]).await.is_err());
    assert_eq!(
        other
            .due_documents(Kind::Saga, at(9_999), 9)
            .await
            .expect("an answer")
            .calls,
        []
    );
    assert!(other.put_document(&next(&saga)).await.is_err());
    let saga = next(&saga);
    assert_eq!(one.put_document(&saga).await.expect("an answer"), Put::Done);

    // It ends before it has accepted it. Who comes next finds it as it was.
    drop(one);
    let third = open_redis_as_it_is(&redis.url(), folders[2].path()).await;
    until("it is closed", async || is_closed(&third).await).await;
    assert!(is_closed(&other).await && other.put_document(&next(&saga)).await.is_err());
    until("it is accepted", async || {
        third.accept_loss("restored, and tried again").await.is_ok()
    })
    .await;
    until("all are open", async || {
        other.readiness().await.reasons.is_empty()
    })
    .await;
    assert_eq!(
        other.put_document(&next(&saga)).await.expect("an answer"),
        Put::Done
    );
}

/// Its tool takes no cancellation before the loss, and does after it.
#[cfg(feature = "crash-points")]
#[tokio::test]
async fn a_saga_that_was_being_undone_when_data_was_lost_waits_for_a_person_also_if_the_gateway_ends()
 {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    tool.then(Act::Ok("{\"made\":7}"))
        .always(Act::Answer(422, "", b"{}"));
    let config = format!(
        "[sagas]\nretry = {{ attempts = 999, base = \"50ms\", max = \"50ms\" }}\n\
         [tools.act]\nurl = \"{0}\"\ncompensation = {{ tool = \"undo\" }}\n[tools.undo]\nurl = \"{0}\"\n",
        tool.url()
    );
    let (folder, port, url) = (
        tempfile::tempdir().expect("a folder"),
        free_port(),
        redis.url(),
    );
    let begin = async |points: &str| {
        let environment = [
            ("ONCEGATE_STORE__URL", &*url),
            ("ONCEGATE_STORE__WATERMARKS", "marks"),
            ("ONCEGATE_SERVER__OPS_TOKEN", &*ops_token_sha256()),
            ("FAILPOINTS", points),
        ];
        Process::start_in(folder.path(), port, &config, &environment).await
    };
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let post = async |path: &str, body: serde_json::Value| {
        let sent = client().post(at(path)).body(body.to_string()).send().await;
        Some(Answer::read(sent.ok()?).await)
    };
    let get = async |path: &str| {
        let sent = client().get(at(path)).bearer_auth(OPS_TOKEN).send().await;
        Answer::read(sent.expect("an answer")).await
    };
    let reason = || json!({ "reason": "restored" });
    let call =
        |key: &str, saga: &str| json!({ "args": {}, "saga_id": saga, "idempotency_key": key });
    let dying = begin("loss_prepared=return").await;
    until("it is ready", async || get("/readyz").await.status == 200).await;
    post("/v1/tools/act/calls", call("a", "G"))
        .await
        .expect("an answer")
        .expect_ok();
    post("/v1/sagas/G/abort", reason())
        .await
        .expect("an answer")
        .expect_ok();
    until("it is tried to be undone", async || tool.requests() > 2).await;
    let snapshot = redis.snapshot();
    post("/v1/tools/act/calls", call("b", ""))
        .await
        .expect("an answer")
        .expect_problem("tool-rejected");
    redis.restore(snapshot.path()).await;
    until("the loss is noticed", async || {
        get("/readyz").await.text.contains("accept-loss")
    })
    .await;
    tool.always(Act::Ok("{\"made\":7}"));
    assert!(
        post("/v1/store/accept-loss", reason()).await.is_none(),
        "it ends in the middle"
    );
    dying.ended().await;

    let _gateway = begin("").await;
    until("it says so", async || {
        get("/readyz").await.text.contains("interrupted")
    })
    .await;
    post("/v1/store/accept-loss", reason())
        .await
        .expect("an answer")
        .expect_ok();
    until("it is ready", async || get("/readyz").await.status == 200).await;
    let saga = get("/v1/sagas/G").await.expect_ok();
    assert_eq!(saga.at("/state"), "stuck");
    assert!(
        saga.at("/trouble/why")
            .as_str()
            .is_some_and(|why| why.contains("lost data")),
        "{}",
        saga.text
    );
    assert_eq!(tool.effects(), 1, "nothing was undone");
}

/// They may be millions: neither the store nor the gateway has all of them at once.
#[tokio::test]
async fn calls_in_doubt_are_asked_for_in_pages_and_all_of_them_are_met() {
    let (redis, folder) = (
        Redis::strict().await,
        tempfile::tempdir().expect("a folder"),
    );
    let store = open_redis(&redis.url(), folder.path()).await;
    let running = claimed(&store, &arrival("running", "S", 0, ME)).await;
    let mut all = vec![running.intent.call_id];
    for some in 0..30_u128 {
        let ids: Vec<CallId> = (0..100)
            .map(|n| CallId(uuid::Uuid::from_u128(some * 100 + n + 1)))
            .collect();
        let key = format!(
            "oncegate:{{p{:03}}}:{}",
            some % 3,
            ["failed", "unknown"][some as usize % 2]
        );
        let mut add = vec!["ZADD".to_owned(), key];
        add.extend(ids.iter().flat_map(|id| ["1".to_owned(), id.to_string()]));
        redis
            .ask(&add.iter().map(String::as_str).collect::<Vec<_>>())
            .await;
        all.extend(ids);
    }
    let (mut met, mut from) = (Vec::new(), Some(String::new()));
    while let Some(here) = from {
        let (page, next) = store
            .calls_at_risk_after_loss(&here, 100)
            .await
            .expect("a page");
        assert!(page.len() <= 200, "{} at once", page.len());
        met.extend(page);
        from = next;
    }
    met.sort();
    met.dedup();
    all.sort();
    assert!(met == all, "{} of {}", met.len(), all.len());
}

/// What a person has done to a session is a write like any other.
#[tokio::test]
async fn a_freeze_that_the_store_has_lost_is_noticed_before_the_session_writes() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let one = gateway(&redis, &tool, "").await;
    one.act("a", json!({})).await.expect_ok();
    for (what, undone) in [("freeze", "thaw"), ("thaw", "freeze")] {
        let snapshot = redis.snapshot();
        one.person(what).await.expect_ok();
        redis.restore(snapshot.path()).await;
        notices(&one, "accept-loss").await;
        one.accept_loss("restored").await.expect_ok();
        one.until_ready().await;
        one.person(undone).await.expect_problem("wrong-state");
        one.person(what).await.expect_ok();
    }
    one.act("b", json!({})).await.expect_ok();

    // The same if all that is left of it is in the file of watermarks.
    let snapshot = redis.snapshot();
    one.person("freeze").await.expect_ok();
    let folder = one.stop().await;
    redis.restore(snapshot.path()).await;
    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    notices(&one, "accept-loss").await;
    one.act("c", json!({}))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 2, "the session was frozen");
    let accepted = one.accept_loss("restored").await.expect_ok();
    assert!(
        accepted
            .at("/notice")
            .as_str()
            .is_some_and(|notice| notice.contains("frozen")),
        "{}",
        accepted.text
    );
}

/// As long as a loss is being accepted no saga may change. An acceptance that ended in a panic is none.
#[tokio::test(flavor = "multi_thread")]
async fn sagas_go_on_after_an_acceptance_that_ended_in_a_panic() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let folder = tempfile::tempdir().expect("a folder");
    let store = FaultStore::over(open_redis(&redis.url(), folder.path()).await);
    let Bare { gateway, url, .. } = Bare::over(store.clone(), new_instance(), &tool, "").await;
    let ready = async || gateway.status.readiness().await.reasons.is_empty();
    until("it is ready", ready).await;
    redis.ask(&["FLUSHALL"]).await;
    until("the loss is noticed", async || {
        gateway
            .status
            .readiness()
            .await
            .reasons
            .iter()
            .any(|reason| reason.code == store::LOST_DATA)
    })
    .await;
    store.panic_at(crate::support::faulty::Verb::CallsAtRiskAfterLoss);
    assert!(
        gateway
            .loss
            .accept_loss(Caller::operator(), "flushed".into())
            .await
            .is_err()
    );
    // As a person would, if the Redis is slow.
    until("it is accepted", async || {
        drop(
            gateway
                .loss
                .accept_loss(Caller::operator(), "flushed".into())
                .await,
        );
        ready().await
    })
    .await;
    let body = json!({ "args": {}, "saga_id": "G" }).to_string();
    Answer::read(
        client()
            .post(url)
            .body(body)
            .send()
            .await
            .expect("an answer"),
    )
    .await
    .expect_ok();
}

/// Each look at the store may take a while: one that began before the acceptance must not close what is open again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_of_redis_that_was_accepted_stays_accepted_while_gateways_look() {
    let redis = Redis::strict().await;
    let folders: Vec<_> = (0..6)
        .map(|_| tempfile::tempdir().expect("a folder"))
        .collect();
    let url = redis.url();
    let stores = join_all(folders.iter().map(|folder| open_redis(&url, folder.path()))).await;
    let is_ready = async |store: &RedisStore| store.readiness().await.reasons.is_empty();
    for _ in 0..5 {
        for store in &stores {
            until("it is ready", async || is_ready(store).await).await;
        }
        redis.ask(&["FLUSHALL"]).await;
        let reasons = async || stores[0].readiness().await.reasons;
        until("the loss is noticed", async || {
            reasons()
                .await
                .iter()
                .any(|reason| reason.code == store::LOST_DATA)
        })
        .await;
        // It is refused if another gateway warns at the same time.
        until("it is accepted", async || {
            stores[0].accept_loss("flushed").await.is_ok()
        })
        .await;
    }
    for store in &stores {
        until("it is ready", async || is_ready(store).await).await;
    }
}

/// A server with `config/redis.conf` as it is, killed when dropped.
struct Shipped(std::process::Child);

impl Shipped {
    fn start(folder: &std::path::Path, port: u16) -> Self {
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config/redis.conf");
        let mut command = std::process::Command::new("redis-server");
        command
            .args([config, "--port", &port.to_string()])
            .current_dir(folder);
        let quiet = command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        Self(quiet.spawn().expect("redis-server starts"))
    }
}

impl Drop for Shipped {
    fn drop(&mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("it ends");
    }
}

/// Redis reads its own file as the default user: if that one had no rights, nothing that a script has written
/// would be there again.
#[tokio::test]
async fn the_redis_that_operators_are_told_to_copy_has_all_its_data_after_a_kill() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let (redis, tool) = (Shipped::start(folder.path(), port), Tool::start().await);
    let url = format!("redis://gate:change-this-password@127.0.0.1:{port}");
    let gateway = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    call(&gateway, 1).await.expect_ok();
    drop(redis);
    until("it is gone", async || {
        gateway.get("/readyz").await.status == 503
    })
    .await;
    let _redis = Shipped::start(folder.path(), port);
    gateway.until_ready().await;
    assert_eq!(call(&gateway, 1).await.expect_ok().at("/replayed"), true);
    assert_eq!(tool.effects(), 1);
}
