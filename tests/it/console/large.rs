//! A large ledger at the console and at its JSON door: a page looks at a bounded part, says how far, and goes on.
//!
//! With `ONCEGATE_CONSOLE_CALLS=1000000` the ledger is as large as that, and the time of each screen is printed.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use oncegate::core::key::Lookup;
use oncegate::core::record::CallId;
use oncegate::store::sqlite::Sqlite;
use oncegate::store::{Health, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::console::pages::with_tokens;
use crate::stores::contract::{ME, arrival, at, claimed, ended, replaced};
use crate::support::browser::Browser;
use crate::support::gateway::one_tool;
use crate::support::{Answer, Gateway, Tool};

/// Calls, unless it is said how many.
const CALLS: usize = 4_000;
/// A few old ones were made by another token.
const RARE: usize = 7;

#[expect(clippy::disallowed_methods, reason = "calls of long ago are deleted")]
fn now() -> i64 {
    Timestamp::now().as_second() - at(0).as_second()
}

#[expect(clippy::disallowed_methods, reason = "how large it is to be")]
fn asked() -> Option<usize> {
    let calls = std::env::var("ONCEGATE_CONSOLE_CALLS").ok()?;
    Some(calls.parse().expect("a number"))
}

async fn make(store: &dyn Store, n: usize, all: usize, now: i64) {
    let mut change = arrival("", "", now, ME);
    let tenant = if n.is_multiple_of(10) { "bank" } else { "shop" };
    let tool = ["act", "pay", "ship"][n % 3];
    let intent = Arc::make_mut(&mut change.record.intent);
    intent.key = format!("key{n:07}");
    intent.lookup = Lookup::new(tenant, tool, &intent.key);
    intent.call_id = CallId::new(Uuid::new_v4(), &intent.lookup);
    (intent.tenant, intent.tool) = (tenant.into(), tool.into());
    intent.user_id = format!("user{}", n % 200);
    intent.session_id = format!("session{}", n / 50);
    intent.trace_id = format!("trace{}", n / 8);
    intent.made_by = if n < RARE { "rare" } else { "agents" }.into();
    let age = SignedDuration::from_millis((all - n) as i64);
    intent.created_at = at(now - 10) - age;
    change.admission = None;
    let running = claimed(store, &change).await;
    let status = match n % 1_000 {
        0..=4 => 500,
        5..=24 => 422,
        _ => 200,
    };
    replaced(store, &ended(&running, status, now), &running).await;
}

/// The keys on a page, and the address of the next one.
fn read(page: &str) -> (Vec<String>, Option<String>) {
    let cells = page.split("<td class=\"less\">key").skip(1);
    let keys = cells.map(|rest| format!("key{}", &rest[..7])).collect();
    let mut links = page.split("href=\"");
    let older = links.find(|rest| rest.contains("rel=\"next\""));
    let older = older.and_then(|rest| rest.split('"').next());
    (keys, older.map(|path| path.replace("&amp;", "&")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stderr, reason = "a measurement")]
async fn a_filter_without_an_index_ends_a_page_early_says_how_far_and_skips_nothing() {
    let asked = asked();
    let calls = asked.unwrap_or(CALLS);
    let tool = Tool::start().await;
    let config = with_tokens(&one_tool(&tool, ""));
    let gateway = Gateway::start(&config).await;
    gateway.until_ready().await;
    let folder = gateway.stop().await;
    let file = folder.path().join("oncegate.db");
    let store = Sqlite::open(&file, ME, &CancellationToken::new()).expect("a store");
    let now = now();
    stream::iter(0..calls)
        .for_each_concurrent(512, |n| make(&store, n, calls, now))
        .await;
    store.close().await;
    drop(store);
    let url = format!("sqlite:{}", file.display());
    let gateway = Gateway::again(folder, &url, &config).await;
    gateway.until_ready().await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let rare: BTreeSet<String> = (0..RARE).map(|n| format!("key{n:07}")).collect();

    let (mut found, mut pages, mut next) =
        (Vec::new(), 0, Some("/console/calls?by=rare".to_owned()));
    while let Some(path) = next {
        let began = Instant::now();
        let page = ops.see(&path).await.expect_ok().text;
        if asked.is_some() && pages < 5 {
            eprintln!("{:?} for {path}", began.elapsed());
        }
        let (keys, older) = read(&page);
        let says = page.contains("This page has looked at the calls made since");
        assert_eq!(says, older.is_some(), "{page}");
        assert_eq!(
            page.contains("None so far"),
            older.is_some() && keys.is_empty()
        );
        found.extend(keys);
        (next, pages) = (older, pages + 1);
        // A million calls are not gone through here.
        if pages > 20 {
            break;
        }
    }
    assert!(pages > 1, "all of them at once");
    if calls <= 20_000 {
        assert_eq!(found.len(), RARE);
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), rare);
        let (mut found, mut cursor) = (BTreeSet::new(), String::new());
        loop {
            let path = format!("/v1/calls?by=rare&limit=3{cursor}");
            let request = gateway.client.get(gateway.url(&path)).bearer_auth("ops");
            let page = Answer::to(request).await.expect_ok();
            for call in page.at("/calls").as_array().expect("a list") {
                assert!(found.insert(call["key"].as_str().expect("a key").to_owned()));
            }
            match page.at("/next_cursor").as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(found, rare, "the JSON endpoint finds the same");
    }
    // A page asked for again ends at the same call: else it would never be at rest.
    let twice = [
        ops.see("/console/calls?similar=true").await,
        ops.see("/console/calls?similar=true").await,
    ];
    let [one, other] = twice.map(|page| read(&page.expect_ok().text));
    assert_eq!(one, other);
    if asked.is_some() {
        measure(&ops).await;
    }
    gateway.stop().await;
}

#[expect(clippy::print_stderr, reason = "a measurement")]
async fn measure(ops: &Browser) {
    for path in [
        "",
        "/calls",
        "/calls?state=failed",
        "/calls?state=unknown",
        "/calls?state=succeeded",
        "/calls?state=stuck",
        "/calls?state=compensating",
        "/calls?state=compensated",
        "/calls?similar=true",
        "/calls?duplicates_min=2",
        "/calls?by=none",
        "/calls?tool=pay",
        "/calls?tool=pay&similar=true",
        "/calls?tenant=shop&similar=true",
        "/calls?user_id=user7&by=none",
        "/calls?limit=200",
        "/calls?find=session3",
        "/sessions",
        "/session?id=session3&tenant=shop",
        "/sagas",
        "/reconciliations",
        "/tools",
        "/tool?name=act",
        "/store",
        "/audit",
    ] {
        let path = format!("/console{path}");
        let mut times = Vec::new();
        for _ in 0..3 {
            let began = Instant::now();
            ops.see(&path).await.expect_ok();
            times.push(began.elapsed());
        }
        times.sort();
        eprintln!(
            "{:>6.1} to {:>6.1} ms  {path}",
            times[0].as_secs_f64() * 1e3,
            times[2].as_secs_f64() * 1e3
        );
    }
}
