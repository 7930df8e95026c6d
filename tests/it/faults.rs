//! A store that fails on request, behind the real gateway and the real router.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use oncegate::config::StoreAt;
use oncegate::core::call::Change;
use oncegate::core::key::Lookup;
use oncegate::core::record::{CallId, Entry, Record};
use oncegate::downstream::Downstream;
use oncegate::gateway::{self, Gateway};
use oncegate::http::{self, Http};
use oncegate::metrics::Metrics;
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Census, Claimed, Due, Error, Readiness, Replaced, Store};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::support::gateway::{one_tool, read};
use crate::support::{Act, Answer, Tool, client, until};

/// How many of the next operations go wrong, and in which way.
#[derive(Default)]
struct Faults {
    claims_refused: AtomicUsize,
    /// Carried out, but the answer is lost.
    claims_unanswered: AtomicUsize,
    replacements_refused: AtomicUsize,
    replacements_unanswered: AtomicUsize,
    replacements: AtomicUsize,
}

fn takes(fault: &AtomicUsize) -> bool {
    fault.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

struct Faulty {
    store: Sqlite,
    faults: Arc<Faults>,
}

#[async_trait]
impl Store for Faulty {
    async fn claim(&self, change: &Change, instead_of: Option<&Record>) -> Result<Claimed, Error> {
        if takes(&self.faults.claims_refused) {
            return Err(Error::Refused("on request".into()));
        }
        let claimed = self.store.claim(change, instead_of).await;
        if takes(&self.faults.claims_unanswered) {
            Err(Error::Ambiguous("on request".into()))
        } else {
            claimed
        }
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        self.faults.replacements.fetch_add(1, Ordering::SeqCst);
        if takes(&self.faults.replacements_refused) {
            return Err(Error::Refused("on request".into()));
        }
        let replaced = self.store.replace(change, expected).await;
        if takes(&self.faults.replacements_unanswered) {
            Err(Error::Ambiguous("on request".into()))
        } else {
            replaced
        }
    }

    async fn holder(&self, lookup: Lookup) -> Result<Option<Record>, Error> {
        self.store.holder(lookup).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        self.store.load(call_id).await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<(Record, Vec<Entry>)>, Error> {
        self.store.history(call_id, limit).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<Due>, Error> {
        self.store.due(now, limit).await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        self.store.census().await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.store.prune(now, limit).await
    }

    async fn readiness(&self) -> Readiness {
        self.store.readiness().await
    }
}

/// A gateway over a store that fails on request.
struct Shaky {
    faults: Arc<Faults>,
    store: Sqlite,
    gateway: Arc<Gateway>,
    url: String,
    _folder: tempfile::TempDir,
}

impl Shaky {
    async fn with_tool(tool: &Tool) -> Self {
        drop(client());
        let folder = tempfile::tempdir().expect("a folder");
        let config = read(folder.path(), &one_tool(tool, ""));
        let instance = gateway::new_instance();
        let StoreAt::Sqlite(path) = &config.store else { panic!("another store") };
        let store = Sqlite::open(path, instance, &CancellationToken::new()).expect("a store");
        let faults = Arc::<Faults>::default();
        let faulty = Faulty { store: store.clone(), faults: faults.clone() };
        let downstream =
            Downstream::new(config.tools.iter().map(|at| &at.endpoint), 1 << 20).expect("a client");
        let metrics = Arc::new(Metrics::new(vec!["act".into()]));
        let gateway =
            Gateway::new(Arc::new(faulty), downstream, config.tools, metrics, instance, config.limits);
        let gateway = Arc::new(gateway);
        let http = Http { gateway: gateway.clone(), tokens: Arc::default(), max_body: 1 << 20 };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1/tools/act/calls", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, http::router(http)).await });
        Self { faults, store, gateway, url, _folder: folder }
    }

    async fn call(&self, n: usize) -> Answer {
        let body = json!({ "args": { "n": n } }).to_string();
        Answer::read(client().post(&self.url).body(body).send().await.expect("an answer")).await
    }
}

#[tokio::test]
async fn a_success_that_cannot_be_written_is_not_told_until_it_is() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Shaky::with_tool(&tool).await;
    gateway.faults.replacements_refused.store(usize::MAX, Ordering::SeqCst);
    let first = gateway.call(1).await.expect_problem("outcome-unknown");
    let duplicate = gateway.call(1).await.expect_problem("outcome-unknown");
    assert_eq!(first.at("/call_id"), duplicate.at("/call_id"));
    gateway.faults.replacements_refused.store(0, Ordering::SeqCst);
    until("it is told", async || gateway.call(1).await.status == 200).await;
    assert_eq!(gateway.call(1).await.expect_ok().at("/replayed"), true);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_hiccup_of_the_store_is_nobodys_business() {
    let tool = Tool::start().await;
    tool.then(Act::Answer(429, "", b"{}")).then(Act::after_ms(1_500, Act::Numbered));
    let gateway = Shaky::with_tool(&tool).await;
    // The first attempt's end is written a moment late; the second one then takes its time.
    gateway.faults.replacements_refused.store(1, Ordering::SeqCst);
    let duplicate = async {
        until("the second attempt is under way", async || tool.requests() == 2).await;
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
    gateway.faults.claims_unanswered.store(2, Ordering::SeqCst);
    assert_eq!(gateway.call(1).await.expect_ok().at("/replayed"), false);
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn a_claim_that_is_never_confirmed_is_never_run() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway.faults.claims_unanswered.store(100, Ordering::SeqCst);
    let answer = gateway.call(1).await.expect_problem("store-unavailable");
    assert_eq!(
        (answer.status, answer.at("/effect"), answer.at("/key_action")),
        (503, "unknown".into(), "reuse".into())
    );
    gateway.faults.claims_unanswered.store(0, Ordering::SeqCst);
    // The store holds a claim that nobody runs. It is not free, and when its lease is over it is unknown.
    let body = json!({ "args": { "n": 1 } }).to_string();
    let request = client().post(&gateway.url).header("prefer", "wait=0").body(body);
    Answer::read(request.send().await.expect("an answer")).await.expect_problem("call-in-progress");
    let later = gateway.gateway.now() + jiff::SignedDuration::from_mins(5);
    assert_eq!(gateway.gateway.recover_all(later).await.expect("recovered"), 1);
    assert_eq!(gateway.gateway.recover_all(later).await.expect("recovered"), 0, "twice is once");
    until("it is unknown", async || gateway.call(1).await.problem() == "outcome-unknown").await;
    assert_eq!(tool.requests(), 0);
}

#[tokio::test]
async fn a_store_that_is_down_means_no_effect() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway.faults.claims_refused.store(1, Ordering::SeqCst);
    gateway.call(1).await.expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 0);
    gateway.call(1).await.expect_ok();
}

#[tokio::test]
async fn a_completion_whose_answer_is_lost_is_written_once() {
    let tool = Tool::start().await;
    let gateway = Shaky::with_tool(&tool).await;
    gateway.faults.replacements_unanswered.store(1, Ordering::SeqCst);
    // The caller may hear it late, but hears the truth.
    let heard = gateway.call(1).await;
    assert!(matches!(heard.problem().as_str(), "" | "outcome-unknown"), "{}", heard.text);
    until("it is told", async || gateway.call(1).await.status == 200).await;
    let id = gateway.call(1).await.at("/call_id");
    let id = id.as_str().and_then(|id| id.parse().ok()).map(CallId).expect("an id");
    let (_, history) = gateway.store.history(id, 10).await.expect("an answer").expect("a call");
    let events: Vec<&str> = history.iter().map(|entry| entry.event.as_ref()).collect();
    assert_eq!(events, ["claimed", "ended"]);
}

#[tokio::test]
async fn a_zombie_is_refused_and_its_late_answer_counts_all_the_same() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(300, Act::Numbered));
    let gateway = Shaky::with_tool(&tool).await;
    let call = gateway.call(1);
    let lost = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        let later = gateway.gateway.now() + jiff::SignedDuration::from_mins(5);
        gateway.gateway.recover_all(later).await.expect("recovered")
    };
    let (answer, settled) = tokio::join!(call, lost);
    assert_eq!(settled, 1, "recovery took the call for lost");
    answer.expect_ok();
    let scraped = gateway.gateway.scrape().await;
    assert!(
        scraped.contains("oncegate_stale_owners_total 1"),
        "the owner's own completion was refused and counted"
    );
    let id = gateway.call(1).await.at("/call_id");
    let id = id.as_str().and_then(|id| id.parse().ok()).map(CallId).expect("an id");
    let (_, history) = gateway.store.history(id, 10).await.expect("an answer").expect("a call");
    let events: Vec<&str> = history.iter().map(|entry| entry.event.as_ref()).collect();
    assert_eq!(events, ["claimed", "lease_over", "ended_late"]);
    assert_eq!(tool.requests(), 1);
}
