//! A store that fails on request, behind the real gateway and the real router.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use oncegate::core::record::CallId;
use oncegate::gateway::{self, Gateway};
use oncegate::store::Ledger as _;
use oncegate::store::sqlite::Sqlite;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};

use crate::support::faulty::{Fault, FaultStore, Verb};
use crate::support::gateway::Bare;
use crate::support::memory::Memory;
use crate::support::{Act, Answer, Tool, client, until};

/// A gateway over a store that fails on request.
struct Shaky {
    store: FaultStore,
    gateway: Arc<Gateway>,
    url: String,
    _folder: tempfile::TempDir,
}

impl Shaky {
    async fn with_tool(tool: &Tool) -> Self {
        Self::with(tool, "").await
    }

    /// `more`: further settings of the tool, as lines of TOML.
    async fn with(tool: &Tool, more: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("oncegate.db");
        let instance = gateway::new_instance();
        let stored = Sqlite::open(&path, instance, &CancellationToken::new()).expect("a store");
        let store = FaultStore::over(stored);
        let Bare { gateway, url, .. } = Bare::over(store.clone(), instance, tool, more).await;
        Self {
            store,
            gateway,
            url,
            _folder: folder,
        }
    }

    async fn call(&self, n: usize) -> Answer {
        let body = json!({ "args": { "n": n } }).to_string();
        Answer::to(client().post(&self.url).body(body)).await
    }
}

/// A second subscriber, beside the one of [`Lines::take`]. While there is only one, `tracing` decides whether a log line
/// is wanted by the thread that reaches it first. If that thread belongs to another test, the line is never logged again.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// The log lines of this thread, as JSON.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Takes the lines of this thread until the guard is dropped.
    pub fn take() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND);
        let lines = Self::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .json()
            .with_writer(move || writer.clone());
        let guard = tracing::subscriber::set_default(log.finish());
        (lines, guard)
    }

    /// The fields of the lines with this message.
    pub fn with_message(&self, message: &str) -> Vec<Value> {
        let bytes = self.0.lock().expect("not poisoned");
        let lines = serde_json::Deserializer::from_slice(&bytes).into_iter();
        let fields = lines.map(|line: Result<Value, _>| line.expect("a line")["fields"].clone());
        fields
            .filter(|fields| fields["message"] == message)
            .collect()
    }
}

#[tokio::test]
async fn a_success_that_cannot_be_written_is_not_told_until_it_is() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Shaky::with_tool(&tool).await;
    gateway
        .store
        .next(Verb::Replace, Fault::ErrBefore, usize::MAX);
    let first = gateway.call(1).await.expect_problem("outcome-unknown");
    let duplicate = gateway.call(1).await.expect_problem("outcome-unknown");
    assert_eq!(first.at("/call_id"), duplicate.at("/call_id"));
    assert!(
        first.text.contains("does not take the outcome"),
        "{}",
        first.text
    );
    gateway.store.heal();
    until("it is told", async || gateway.call(1).await.status == 200).await;
    assert_eq!(gateway.call(1).await.expect_ok().at("/replayed"), true);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_short_failure_of_the_store_is_not_told_to_callers() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(429, "", b"{}"))
        .then(Act::after_ms(1_500, Act::Numbered));
    let gateway = Shaky::with(&tool, "outcomes = { 429 = \"not_executed\" }").await;
    // The end of the first attempt is written late. The second attempt then takes a while.
    gateway.store.next(Verb::Replace, Fault::ErrBefore, 1);
    let duplicate = async {
        until("the second attempt is under way", async || {
            tool.requests() == 2
        })
        .await;
        gateway.call(1).await
    };
    let (first, duplicate) = tokio::join!(gateway.call(1), duplicate);
    first.expect_ok();
    duplicate.expect_ok();
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_recognised_as_our_own() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    let store = &gateway.store;
    store.next(Verb::Claim, Fault::ExecuteThenTimeout, 2);
    assert_eq!(gateway.call(1).await.expect_ok().at("/replayed"), false);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_claim_that_is_never_confirmed_is_never_run() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway
        .store
        .next(Verb::Claim, Fault::ExecuteThenTimeout, 100);
    let answer = gateway.call(1).await.expect_problem("store-unavailable");
    assert_eq!(
        (
            answer.status,
            answer.at("/effect"),
            answer.at("/key_action")
        ),
        (503, "unknown".into(), "reuse".into())
    );
    gateway.store.heal();
    // The store holds a claim that no gateway runs. Its key is not free, and the call is unknown after its lease.
    let body = json!({ "args": { "n": 1 } }).to_string();
    let request = client()
        .post(&gateway.url)
        .header("prefer", "wait=0")
        .body(body);
    Answer::to(request).await.expect_problem("call-in-progress");
    let later = gateway.gateway.now() + jiff::SignedDuration::from_mins(5);
    let recover = async || gateway.gateway.lost.recover_all(later).await;
    assert_eq!(recover().await.expect("recovered"), 1);
    assert_eq!(recover().await.expect("recovered"), 0, "twice is once");
    until("it is unknown", async || {
        gateway.call(1).await.problem() == "outcome-unknown"
    })
    .await;
    assert_eq!(tool.requests(), 0);
}

#[tokio::test]
async fn a_store_that_is_down_means_no_effect() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway.store.next(Verb::Claim, Fault::ErrBefore, 1);
    gateway.call(1).await.expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 0);
    gateway.call(1).await.expect_ok();
}

#[tokio::test]
async fn a_completion_whose_answer_is_lost_is_written_once() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway
        .store
        .next(Verb::Replace, Fault::ExecuteThenTimeout, 1);
    // The caller may be told late, but is told the truth.
    let heard = gateway.call(1).await;
    assert!(
        matches!(heard.problem().as_str(), "" | "outcome-unknown"),
        "{}",
        heard.text
    );
    until("it is told", async || gateway.call(1).await.status == 200).await;
    assert_eq!(events(&gateway).await, ["claimed", "ended"]);
}

#[tokio::test]
async fn an_outcome_that_can_be_read_is_told_although_its_writing_is_never_confirmed() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    let store = &gateway.store;
    store.next(Verb::Replace, Fault::ExecuteThenTimeout, usize::MAX);
    let first = gateway.call(1).await.expect_ok();
    assert_eq!(first.at("/replayed"), false);
    // Another gateway tells it by now, so that this one must not call it unknown.
    assert_eq!(gateway.call(1).await.expect_ok().at("/replayed"), true);
    store.heal();
    assert_eq!(events(&gateway).await, ["claimed", "ended"]);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_zombie_is_refused_and_its_late_answer_counts_all_the_same() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Shaky::with_tool(&tool).await;
    let other = Bare::over(gateway.store.clone(), gateway::new_instance(), &tool, "").await;
    let (lines, _log) = Lines::take();
    let call = gateway.call(1);
    let lost = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        let later = gateway.gateway.now() + jiff::SignedDuration::from_mins(5);
        let own = gateway
            .gateway
            .lost
            .recover_all(later)
            .await
            .expect("recovered");
        assert_eq!(own, 0, "whatever the clock says: it runs here");
        let settled = other
            .gateway
            .lost
            .recover_all(later)
            .await
            .expect("recovered");
        drop(hold);
        settled
    };
    let (answer, settled) = tokio::join!(call, lost);
    assert_eq!(settled, 1, "another gateway took the call for lost");
    answer.expect_ok();
    let scraped = gateway.gateway.status.scrape().await;
    let scraped = String::from_utf8_lossy(&scraped);
    assert!(
        scraped.contains("oncegate_stale_owners_total 1"),
        "the owner's own completion was refused and counted"
    );
    let refused = lines.with_message("a completion was refused: the call has changed under it");
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0]["state"], "unknown", "which was in the way");
    assert_eq!(
        events(&gateway).await,
        ["claimed", "lease_over", "ended_late"]
    );
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_claim_that_is_carried_out_late_does_not_keep_its_session_until_the_lease_is_over() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held).always(Act::Numbered);
    let store = FaultStore::over(Memory::default());
    let rules = "session = \"exclusive\"\nsession_wait = \"5s\"";
    let at = Bare::over(store.clone(), gateway::new_instance(), &tool, rules).await;
    let (http, url) = (client(), at.url.clone());
    let ask = |key: &'static str| {
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key }).to_string();
        let request = http.post(&url).header("prefer", "wait=1").body(body);
        async move { Answer::to(request).await }
    };
    let first = tokio::spawn(ask("first"));
    until("the tool has it", async || tool.requests() == 1).await;
    // The late claim finds the session free, although the gateway was told that the session is busy.
    store.next(Verb::Claim, LATE, 1);
    ask("late").await.expect_problem("store-unavailable");
    drop(hold);
    assert_eq!(
        store.denied_in_doubt(),
        2,
        "it is not waited for behind a claim that may yet come true"
    );
    first.await.expect("no panic").expect_ok();
    store.is_quiet().await;
    let began = tokio::time::Instant::now();
    until("the session runs the next", async || {
        ask("next").await.status == 200
    })
    .await;
    until("and that one, too", async || {
        ask("late").await.status == 200
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(tool.effects(), 3);
}

/// The store answers too late, but carries the operation out.
const LATE: Fault = Fault::ExecuteLate(Duration::from_millis(1_500));

/// The store may still carry out a claim that it has not answered. A repetition must not wait in line behind that claim: it
/// would be told that nothing was run.
#[tokio::test]
async fn a_call_that_is_denied_after_a_claim_of_unknown_fate_does_not_wait_in_line() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let store = FaultStore::over(Memory::default());
    let rules = "session = \"exclusive\"\nsession_wait = \"20s\"";
    let Bare { url, .. } = Bare::over(store.clone(), gateway::new_instance(), &tool, rules).await;
    let ask = async |key: &str| {
        let body = json!({ "args": {}, "session_id": "S", "idempotency_key": key }).to_string();
        Answer::to(client().post(&url).body(body)).await
    };
    let second = async {
        until("the first runs", async || tool.requests() == 1).await;
        store.next(Verb::Claim, LATE, 1);
        ask("second").await.expect_problem("store-unavailable");
        drop(hold);
    };
    let (first, ()) = tokio::join!(ask("first"), second);
    first.expect_ok();
    store.is_quiet().await;
    ask("third").await.expect_ok();
    assert_eq!(
        (tool.requests(), tool.effects()),
        (2, 2),
        "what turned up late was given up, and its session with it"
    );
}

/// The events of the first call, as the ledger has them.
async fn events(gateway: &Shaky) -> Vec<String> {
    let id = gateway.call(1).await.at("/call_id");
    let id = id.as_str().and_then(|id| id.parse().ok()).map(CallId);
    let history = gateway.store.history(id.expect("an id"), 10).await;
    let history = history.expect("an answer").expect("a call");
    let events = history.entries.iter().map(|entry| entry.event.to_string());
    events.collect()
}

#[tokio::test]
async fn an_error_of_the_store_is_logged_with_the_call_that_met_it() {
    let tool = Tool::start().await;
    let schema = "input_schema = { required = [\"n\"] }";
    let gateway = Shaky::with(&tool, schema).await;
    gateway.call(1).await.expect_ok();
    let (lines, _log) = Lines::take();
    gateway.store.set_down(true);
    // The request is not a call today, but may repeat an earlier call, so its lookup keys are searched. The arguments
    // of `holders` name no call; the log takes it from the task.
    let body = json!({ "args": {}, "trace_id": "t-17" }).to_string();
    let answer = Answer::to(client().post(&gateway.url).body(body)).await;
    answer.expect_problem("store-unavailable");
    let errors = lines.with_message("store operation failed");
    let looked = errors.iter().find(|said| said["operation"] == "holders");
    let looked = looked.unwrap_or_else(|| panic!("nothing of holders in {errors:?}"));
    assert_eq!(looked["trace_id"], "t-17");
    assert!(looked["call_id"].is_string(), "{looked}");
}

#[tokio::test]
async fn what_a_closed_store_refuses_is_not_logged_for_each_request() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway.call(1).await.expect_ok();
    let (lines, _log) = Lines::take();
    gateway.store.set_down(true);
    for n in 2..12 {
        gateway.call(n).await.expect_problem("store-unavailable");
    }
    let errors = lines.with_message("store operation failed");
    let claims = errors.iter().filter(|said| said["operation"] == "claim");
    assert_eq!(claims.count(), 1, "{errors:?}");
}
