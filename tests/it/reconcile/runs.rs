//! Reconciliation finds planted anomalies, remedies them, and does not find them again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::support::books::{Books, Instead};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, client, times, until};

on_both_stores! {
    a_planted_set_is_found_exactly_and_mended_and_not_found_again,
    an_anomaly_that_is_only_reported_stays_and_is_new_once,
    an_unknown_call_that_the_source_has_becomes_succeeded_and_its_duplicates_get_that,
    a_source_that_fails_makes_the_run_fail_and_nothing_is_done,
}

/// The configuration of a tool that keeps books, its compensation, and a reconciliation.
pub fn config(books: &Books, rules: &str, source: &str) -> String {
    let at = |path: &str| books.url(path);
    format!(
        "[tools.act]\nurl = \"{}\"\ntimeout = \"10s\"\ndeadline = \"10s\"\nretry = {{ attempts = 1 }}\n\
         breaker = {{ failures = 100000 }}\n\
         probe = {{ url = \"{}\" }}\n\
         compensation = {{ tool = \"undo\", args = {{ id = \"/result/id\" }} }}\n\
         [tools.undo]\nurl = \"{}\"\ntimeout = \"1s\"\ndeadline = \"1s\"\nretry = {{ attempts = 1 }}\n\
         dedup = \"key\"\nunknown = \"retry\"\nrecheck = {{ base = \"200ms\", max = \"1s\", give_up_after = \"1h\" }}\n\
         [webhook]\nurl = \"{}\"\n\
         [reconciliations.books]\ntools = [\"act\"]\nlag = \"0s\"\n{rules}\n\
         [[reconciliations.books.sources]]\nname = \"items\"\nitems = \"/items\"\nnext = \"/next\"\n\
         url = \"{}?since={{since}}&until={{until}}&after={{cursor}}\"\n\
         key = \"/key\"\nid = \"/id\"\ncompare = [\"/amount\"]\nstatus = \"/status\"\nignore = [\"cancelled\"]\n{source}\n",
        at("/do"),
        at("/by-key/{key}"),
        at("/undo"),
        at("/told"),
        at("/items"),
    )
}

pub(crate) const MENDS: &str = "on = { missing = \"compensate\", orphan = \"compensate\", duplicate = \"compensate\", mismatch = \"compensate\" }";

/// Runs the reconciliation now, up to now.
pub(crate) async fn run(url: &str) -> Answer {
    let request = client().post(format!("{url}/v1/reconciliations/books/run"));
    Answer::to(request).await
}

pub async fn report(gateway: &Gateway) -> Answer {
    run(&gateway.url("")).await.expect_ok()
}

/// The values of a member of the anomalies, by kind.
pub fn by_kind(report: &Answer, member: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut kinds = BTreeMap::<String, BTreeSet<String>>::new();
    for anomaly in report.at("/anomalies").as_array().expect("a list") {
        let word = |name: &str| anomaly[name].as_str().unwrap_or_default().to_owned();
        assert!(
            kinds.entry(word("kind")).or_default().insert(word(member)),
            "twice: {anomaly}"
        );
    }
    kinds
}

impl Gateway {
    pub async fn plan(&self, n: usize, plan: &str) -> Answer {
        self.call_with_key(&format!("k{n}"), json!({ "amount": n, "plan": plan }))
            .await
    }

    pub async fn anomalies_total(&self, kind: &str) -> f64 {
        let text = self.get("/metrics").await.text;
        let line = format!("oncegate_anomalies_total{{kind=\"{kind}\",reconciliation=\"books\"}} ");
        let count = text
            .lines()
            .find_map(|have| have.strip_prefix(&line)?.parse().ok());
        count.unwrap_or_else(|| panic!("no {line}"))
    }

    pub async fn state_of(&self, call_id: &str) -> Value {
        self.get(&format!("/v1/calls/{call_id}")).await.at("/state")
    }
}

/// How many calls a test makes. One in a hundred becomes an anomaly.
const CALLS: usize = 1_000;

/// The plan of each call: one in a hundred is a planted anomaly, and some more go wrong without being one.
fn plan_of(n: usize) -> &'static str {
    const PLANTED: [&str; 5] = [
        "missing",
        "rejected but there",
        "duplicate",
        "mismatch",
        "silent",
    ];
    match n % 100 {
        0 => PLANTED[(n / 100) % 5],
        1 if n % 500 == 1 => "broken",
        2 if n % 500 == 2 => "rejected",
        _ => "",
    }
}

/// Makes the calls. Returns their ids by plan.
async fn make_calls(gateway: &Gateway, calls: usize) -> HashMap<&'static str, BTreeSet<String>> {
    let made = stream::iter(0..calls).map(|n| async move {
        let plan = plan_of(n);
        let answer = gateway.plan(n, plan).await;
        let id = answer.at("/call_id");
        (
            plan,
            id.as_str()
                .unwrap_or_else(|| panic!("{}", answer.text))
                .to_owned(),
        )
    });
    let mut ids = HashMap::<_, BTreeSet<_>>::new();
    for (plan, id) in made.buffer_unordered(32).collect::<Vec<_>>().await {
        ids.entry(plan).or_default().insert(id);
    }
    ids
}

async fn a_planted_set_is_found_exactly_and_mended_and_not_found_again(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores.gateway_of_old(&config(&books, MENDS, "")).await;
    let all = times(CALLS);
    let ids = make_calls(&gateway, all).await;
    let of_call =
        |item: &Value, ids: &BTreeSet<String>| ids.contains(item["call_id"].as_str().unwrap_or(""));
    let mut orphans: BTreeSet<String> = ["beside", "other"]
        .map(|key| books.make_beside(Some(key)))
        .into();
    orphans.insert(books.make_beside(None));
    // An order that an operator has cancelled is not an anomaly.
    let is_plain = |item: &&Value| of_call(item, &ids[""]);
    let taken_back = books.live().iter().find(is_plain).expect("an order")["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    books.cancel(&taken_back);
    let live = books.live();
    orphans.extend(
        live.iter()
            .filter(|item| of_call(item, &ids["rejected but there"]))
            .map(|item| item["id"].as_str().expect("an id").to_owned()),
    );
    // Of two effects of a call the first is surplus: the call's result names the second.
    let mut doubled = HashMap::<&str, BTreeSet<usize>>::new();
    for item in live.iter().filter(|item| of_call(item, &ids["duplicate"])) {
        let number = item["id"].as_str().expect("an id")[1..]
            .parse()
            .expect("a number");
        doubled
            .entry(item["call_id"].as_str().expect("an id"))
            .or_default()
            .insert(number);
    }
    let surplus = doubled
        .values()
        .map(|two| format!("i{}", two.first().expect("two")))
        .collect();

    let first = report(&gateway).await;
    let expected = BTreeMap::from([
        ("missing".to_owned(), ids["missing"].clone()),
        ("orphan".to_owned(), orphans),
        ("duplicate".to_owned(), surplus),
        ("mismatch".to_owned(), ids["mismatch"].clone()),
        ("settled".to_owned(), ids["silent"].clone()),
    ]);
    assert_eq!(by_kind(&first, "effect"), expected);
    assert_eq!(
        expected.values().map(BTreeSet::len).sum::<usize>(),
        all / 100 + 3
    );
    assert_eq!(first.at("/state"), "done");
    assert_eq!(first.at("/undecided"), 0);
    assert_eq!(first.at("/counts"), first.at("/new"));
    let calls = all
        - [
            "missing",
            "rejected but there",
            "silent",
            "broken",
            "rejected",
        ]
        .iter()
        .map(|plan| ids[plan].len())
        .sum::<usize>();
    assert_eq!(first.at("/matched"), calls);

    // No effect is undone while a call is missing that might have made it.
    let held = first.at("/anomalies");
    let held = held.as_array().expect("a list").iter();
    for anomaly in held.filter(|one| one["kind"] == "orphan" || one["kind"] == "duplicate") {
        assert_eq!(anomaly["action"], "report", "{anomaly}");
    }
    until("missing calls are undone", async || {
        let mut undone = true;
        for id in &ids["missing"] {
            undone &= gateway.state_of(id).await == "compensated";
        }
        undone
    })
    .await;
    report(&gateway).await;
    // The saga worker undoes calls in the background.
    until("everything is mended", async || {
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        let anomalies = report.at("/anomalies");
        let is_done = anomalies
            .as_array()
            .expect("a list")
            .iter()
            .all(|anomaly| anomaly["state"] == "done");
        let open = gateway.get("/v1/sagas?state=compensating&limit=1").await;
        is_done && open.at("/sagas").as_array().is_some_and(Vec::is_empty)
    })
    .await;
    let second = report(&gateway).await;
    assert_eq!(second.at("/anomalies"), json!([]), "it is mended");
    assert_eq!(
        second.at("/matched"),
        calls + ids["silent"].len() - ids["mismatch"].len()
    );
    for (kind, found) in &expected {
        assert_eq!(
            gateway.anomalies_total(kind).await,
            found.len() as f64,
            "{kind}"
        );
    }
    for plan in ["missing", "mismatch"] {
        for id in &ids[plan] {
            assert_eq!(gateway.state_of(id).await, "compensated");
        }
    }
    for id in &ids["broken"] {
        assert_eq!(
            gateway.state_of(id).await,
            "unknown",
            "nothing proves how it ended"
        );
    }
    let undone = books.undone();
    assert!(
        undone
            .iter()
            .all(|(id, times)| *times == 1 || id == "nothing"),
        "{undone:?}"
    );
    assert_eq!(
        undone["nothing"],
        ids["missing"].len(),
        "once for each call"
    );
    assert_eq!(
        books.live().len(),
        calls - 1 + ids["silent"].len() - ids["mismatch"].len()
    );
}

async fn an_anomaly_that_is_only_reported_stays_and_is_new_once(stores: &Stores) {
    let books = Books::open().await;
    let on = "on = { orphan = \"webhook\" }";
    let gateway = stores.gateway(&config(&books, on, "")).await;
    gateway.plan(1, "").await.expect_ok();
    gateway.plan(2, "missing").await.expect_ok();
    let id = books.make_beside(Some("beside"));
    let first = report(&gateway).await;
    assert_eq!(first.at("/counts"), json!({ "missing": 1, "orphan": 1 }));
    assert_eq!(
        (first.at("/new"), first.at("/matched")),
        (first.at("/counts"), json!(1))
    );
    let again = report(&gateway).await;
    assert_eq!(again.at("/counts"), first.at("/counts"));
    assert_eq!(
        again.at("/new"),
        json!({}),
        "the anomaly is found again, and not new"
    );
    assert_eq!(
        by_kind(&again, "id"),
        by_kind(&first, "id"),
        "under the same name"
    );
    assert_eq!(gateway.anomalies_total("orphan").await, 1.0);
    // The webhook fails at first, and gets the same event again.
    until("it was told", async || books.told().len() >= 2).await;
    let told = books.told();
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0].1["event"], "anomaly");
    assert_eq!(told[0].1["data"]["anomaly"]["effect"], id.as_str());
    assert_eq!(
        told[0].0,
        format!("anomaly:{}", told[0].1["id"].as_str().expect("a name"))
    );
    until("that is written down", async || {
        let report = gateway.get("/v1/reconciliations/books").await.expect_ok();
        by_kind(&report, "state")["orphan"].contains("done")
    })
    .await;
    let run = first.at("/run").as_str().expect("a run").to_owned();
    let older = gateway
        .get(&format!("/v1/reconciliations/books?run={run}"))
        .await;
    assert_eq!(
        older.expect_ok().at("/new"),
        first.at("/new"),
        "each report is stored"
    );
    let page = gateway
        .get("/v1/reconciliations/books?limit=1")
        .await
        .expect_ok();
    assert_eq!(page.at("/anomalies").as_array().map(Vec::len), Some(1));
    let rest = gateway
        .get("/v1/reconciliations/books?limit=1&cursor=1")
        .await
        .expect_ok();
    assert_eq!(
        (rest.at("/anomalies/0/kind"), rest.at("/next_cursor")),
        (json!("orphan"), Value::Null)
    );
    let all = gateway.get("/v1/reconciliations").await.expect_ok();
    assert_eq!(
        all.at("/reconciliations/0/last_run/counts"),
        first.at("/counts")
    );
    for wrong in [
        "/v1/reconciliations/nothing",
        "/v1/reconciliations/books?run=nothing",
    ] {
        gateway
            .get(wrong)
            .await
            .expect_problem("unknown-reconciliation");
    }
    let body = json!({ "since": "2020-01-01T00:00:00Z" }).to_string();
    let long_ago = gateway
        .client
        .post(gateway.url("/v1/reconciliations/books/run"))
        .body(body);
    Answer::to(long_ago).await.expect_problem("invalid-request");
}

async fn an_unknown_call_that_the_source_has_becomes_succeeded_and_its_duplicates_get_that(
    stores: &Stores,
) {
    let books = Books::open().await;
    let gateway = stores
        .gateway(&config(&books, "", "result = \"/amount\""))
        .await;
    let unknown = gateway
        .plan(5, "silent")
        .await
        .expect_problem("outcome-unknown");
    gateway
        .plan(6, "broken")
        .await
        .expect_problem("outcome-unknown");
    let report = report(&gateway).await;
    assert_eq!(report.at("/counts"), json!({ "settled": 1 }));
    assert_eq!(report.at("/anomalies/0/action"), "settle");
    let replay = gateway.plan(5, "silent").await.expect_ok();
    assert_eq!(
        (replay.result(), replay.at("/replayed")),
        ("5".to_owned(), json!(true))
    );
    gateway
        .plan(6, "broken")
        .await
        .expect_problem("outcome-unknown");
    let call = gateway.get(&format!("/v1/calls/{}", unknown.id())).await;
    let events = call.at("/events");
    let last = events
        .as_array()
        .and_then(|events| events.last())
        .expect("an event");
    assert_eq!(
        (&last["event"], &last["by"]),
        (&json!("reconciled"), &json!("reconciliation books"))
    );
}

async fn a_source_that_fails_makes_the_run_fail_and_nothing_is_done(stores: &Stores) {
    let books = Books::open().await;
    let gateway = stores.gateway(&config(&books, MENDS, "")).await;
    gateway.plan(0, "missing").await.expect_ok();
    for (instead, why) in [
        (Instead::Status(503), "it answered 503"),
        (Instead::Status(206), "it answered 206"),
        (
            Instead::Endless,
            "a page has nothing at /next, where null would end it",
        ),
    ] {
        books.answer(instead);
        let failed = report(&gateway).await;
        assert_eq!(
            (failed.at("/state"), failed.at("/anomalies")),
            (json!("failed"), json!([]))
        );
        assert_eq!(failed.at("/error"), format!("source items: {why}"));
    }
    let failed = "source items: a page has nothing at /next, where null would end it";
    assert_eq!(gateway.anomalies_total("missing").await, 0.0);
    assert_eq!(books.undone().len(), 0);
    let kept = gateway.get("/v1/reconciliations/books").await.expect_ok();
    assert_eq!(kept.at("/error"), failed, "it stays readable");
    let acts = gateway.get("/v1/audit?act=reconcile").await.expect_ok();
    let outcomes = acts.at("/acts");
    let outcomes = outcomes.as_array().expect("a list").iter();
    let outcomes: Vec<_> = outcomes.map(|act| act["outcome"].clone()).collect();
    assert_eq!(outcomes, ["refused"; 3], "{}", acts.text);
}

impl Gateway {
    pub async fn set_undo(&self, what: &str) {
        let request = self
            .client
            .post(self.url(&format!("/v1/tools/undo/{what}")));
        let request = request.body("{\"reason\":\"it is closed\"}");
        Answer::to(request).await.expect_ok();
    }
}
