//! Gateways that are gone for long leave no trace, which hides no loss.

use std::path::Path;

use oncegate::core::timings::Timings;
#[cfg(target_os = "linux")]
use oncegate::store::Health as _;
use oncegate::store::redis::{FORMAT, Redis as RedisStore};
use serde_json::{Value, json};

use crate::redis::shared::{call, gateway, notices};
#[cfg(target_os = "linux")]
use crate::stores::contract::{ME, arrival, claimed, settings};
#[cfg(target_os = "linux")]
use crate::support::clock::Clock;
use crate::support::gateway::one_tool;
use crate::support::redis::{Cluster, Redis};
use crate::support::{Gateway, Tool, until};

const PARTITIONS: usize = 64;
/// The gateways by the time at which each last announced itself.
const SEEN: &str = "oncegate:{p000}:seen";

fn marks(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("watermarks")).expect("watermarks");
    serde_json::from_str(&text).expect("JSON")
}

/// The name under which the gateway's writes are counted.
fn name(folder: &Path) -> String {
    marks(folder)["gateway"]
        .as_str()
        .expect("a name")
        .to_owned()
}

/// The gateways with a counter in a partition.
async fn counted(redis: &Redis, partition: usize) -> Vec<String> {
    redis.counts(partition).await.into_keys().collect()
}

/// Makes the last announcement of a gateway seem old, and waits until the gateway is forgotten.
async fn forget(redis: &Redis, name: &str) {
    redis
        .ask(&["ZADD", "oncegate:{p000}:seen", "1", name])
        .await;
    // Forgetting ends with the deletion of the announcement. A live gateway announces itself again.
    until("the gateway is forgotten", async || {
        let score = redis.ask(&["ZSCORE", "oncegate:{p000}:seen", name]).await;
        ::redis::from_redis_value::<Option<f64>>(score).expect("a time") != Some(1.0)
    })
    .await;
}

/// When a gateway last announced itself, in microseconds.
async fn seen(redis: &Redis, name: &str) -> Option<f64> {
    let score = redis.ask(&["ZSCORE", SEEN, name]).await;
    ::redis::from_redis_value(score).expect("a time")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_says_what_it_can_read_and_one_of_0_2_0_is_known_by_its_silence_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let _gateway = gateway(&redis, &tool, "").await;
    let time = redis.ask(&["TIME"]).await;
    let (now, _): (i64, i64) = ::redis::from_redis_value(time).expect("a time");
    let now = (now * 1_000_000).to_string();
    redis.ask(&["ZADD", SEEN, &now, "of-0.2.0"]).await;
    let entries = async || {
        let entries = redis.ask(&["HKEYS", "oncegate:{p000}:abilities"]).await;
        ::redis::from_redis_value::<Vec<String>>(entries).expect("names")
    };
    until("it has said it", async || !entries().await.is_empty()).await;
    let own = entries().await.remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let store = RedisStore::visit(settings(&redis.url(), folder.path())).await;
    let standing = store.expect("a store").standing().await;
    let sharing = standing.expect("an answer").gateways;
    for (name, newest) in [(&*own, FORMAT), ("of-0.2.0", 5)] {
        let one = sharing.iter().find(|one| one.gateway == name);
        let one = one.unwrap_or_else(|| panic!("{name}: {sharing:?}"));
        assert_eq!(
            (one.can.formats, one.can.calls),
            ([5, newest], [1, 1]),
            "{name}"
        );
    }
    // What it could read is forgotten with it.
    redis
        .ask(&["HSET", "oncegate:{p000}:abilities", "of-0.2.0", "{}"])
        .await;
    forget(&redis, "of-0.2.0").await;
    until("its entry is gone", async || {
        !entries().await.contains(&"of-0.2.0".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_gone_once_it_has_been_silent_for_an_hour() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let _live = gateway(&redis, &tool, "").await;
    let time = redis.ask(&["TIME"]).await;
    let (now, _): (i64, i64) = ::redis::from_redis_value(time).expect("a time");
    let ago = |minutes: i64| ((now - minutes * 60) * 1_000_000).to_string();
    redis
        .ask(&["ZADD", SEEN, &ago(50), "silent", &ago(70), "gone"])
        .await;
    until("the one that is gone is forgotten", async || {
        seen(&redis, "gone").await.is_none()
    })
    .await;
    assert!(seen(&redis, "silent").await.is_some());
}

/// The highest token of forgotten gateways is not a gateway's: if it were forgotten, too, it would be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_marks_that_was_never_announced_is_announced_by_another() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    drop(gateway(&redis, &tool, "").await.stop().await);
    let mut counts = redis.counts(5).await;
    counts.insert("older".into(), 7);
    redis.set_counts(5, &counts).await;
    redis
        .ask(&["HSET", "oncegate:{p000}:tokens", "forgotten", "99"])
        .await;
    let _other = gateway(&redis, &tool, "").await;
    until("it is announced", async || {
        seen(&redis, "older").await.is_some()
    })
    .await;
    assert_eq!(seen(&redis, "forgotten").await, None);
}

/// Each step must keep to the keys of one partition, for their masters differ.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_gone_is_forgotten_in_all_of_a_redis_cluster() {
    let (cluster, tool) = (Cluster::start().await, Tool::start().await);
    let config = one_tool(&tool, "");
    let one = Gateway::sharing(&cluster.url(), &config).await;
    one.until_ready().await;
    call(&one, 1).await.expect_ok();
    let own = name(one.folder());
    drop(one.stop().await);
    let other = Gateway::sharing(&cluster.url(), &config).await;
    other.until_ready().await;
    let counted = async || {
        let mut counted = 0;
        for node in &cluster.nodes {
            let keys = node.ask(&["KEYS", "oncegate:*:marks"]).await;
            let keys: Vec<String> = ::redis::from_redis_value(keys).expect("keys");
            for key in keys {
                let marks = node.ask(&["GET", &key]).await;
                let marks: String = ::redis::from_redis_value(marks).expect("marks");
                counted += usize::from(marks.contains(&own));
            }
        }
        counted
    };
    assert!(counted().await > 0);
    for node in &cluster.nodes {
        // Only the master of the first partition takes it.
        drop(node.try_ask(&["ZADD", SEEN, "1", &own]).await);
    }
    until("no partition counts it", async || counted().await == 0).await;
    call(&other, 2).await.expect_ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_gateways_that_are_gone_leave_no_trace_and_hide_no_loss() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    call(&one, 1).await.expect_ok();
    let past: Vec<String> = (0..1_000).map(|n| format!("past{n:028}")).collect();
    for partition in 0..PARTITIONS {
        let mut counts = redis.counts(partition).await;
        counts.extend(past.iter().map(|name| (name.clone(), 7)));
        redis.set_counts(partition, &counts).await;
    }
    for (key, value) in [("tokens", "99"), ("seen", "1")] {
        let mut add = vec![
            if key == "seen" { "ZADD" } else { "HSET" }.to_owned(),
            format!("oncegate:{{p000}}:{key}"),
        ];
        for name in &past {
            let [first, second] = if key == "seen" {
                [value, name]
            } else {
                [name.as_str(), value]
            };
            add.extend([first.to_owned(), second.to_owned()]);
        }
        redis
            .ask(&add.iter().map(String::as_str).collect::<Vec<_>>())
            .await;
    }
    // Each inspection forgets a hundred. It takes longer while so many gateways are counted.
    for left in (0..10).rev() {
        until("a hundred of them are forgotten", async || {
            let there = redis
                .ask(&["ZCOUNT", "oncegate:{p000}:seen", "-inf", "1"])
                .await;
            matches!(there, ::redis::Value::Int(there) if there <= left * 100)
        })
        .await;
    }
    for partition in 0..PARTITIONS {
        let there = counted(&redis, partition).await;
        assert!(there.len() <= 2, "{there:?}");
    }
    for (at, what) in [
        (&one, "the first file is clean"),
        (&other, "the second file is clean"),
    ] {
        until(what, async || {
            !marks(at.folder()).to_string().contains("past0")
        })
        .await;
        assert_eq!(at.reasons().await, "");
    }
    let tokens = redis.ask(&["HLEN", "oncegate:{p000}:tokens"]).await;
    assert!(matches!(tokens, ::redis::Value::Int(..=3)), "{tokens:?}");
    until("their announcements are deleted", async || {
        redis.ask(&["ZCARD", "oncegate:{p000}:seen"]).await == ::redis::Value::Int(2)
    })
    .await;

    // Only the other gateway is left to notice that writes of the first were lost.
    call(&one, 2).await.expect_ok();
    let snapshot = redis.snapshot();
    call(&one, 3).await.expect_ok();
    let own = name(one.folder());
    let mut written = 0;
    for partition in 0..PARTITIONS {
        written += redis.counts(partition).await.get(&own).unwrap_or(&0);
    }
    until("the other has seen the writes", async || {
        let marks = marks(other.folder());
        let known = marks["writes"][&own].as_array().expect("counts").iter();
        known
            .map(|count| count.as_u64().expect("a count"))
            .sum::<u64>()
            == written
    })
    .await;
    drop(one.stop().await);
    redis.restore(snapshot.path()).await;
    notices(&other, "accept-loss").await;
}

/// All gateways seem to have been silent for two hours. Each announces itself again within a minute.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn no_gateway_is_forgotten_when_the_clock_of_redis_is_set() {
    let clock = Clock::new();
    let redis = Redis::strict_by(&clock).await;
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let mut stores = Vec::new();
    for folder in &folders {
        let mut settings = settings(&redis.url(), folder.path());
        settings.timings.redis_watch_gone = Timings::default().redis_watch_gone;
        let store = RedisStore::open(settings).await.expect("a store");
        until("the store is ready", async || {
            store.readiness().await.reasons.is_empty()
        })
        .await;
        for n in 0..10 {
            claimed(
                &store,
                &arrival(&format!("{}{n}", name(folder.path())), "S", 0, ME),
            )
            .await;
        }
        stores.push(store);
    }
    let all_counted = async || {
        let mut all = Vec::new();
        for partition in 0..PARTITIONS {
            all.push(counted(&redis, partition).await);
        }
        all.concat().len()
    };
    let before = all_counted().await;
    let is_off = async |store: &RedisStore| {
        let readiness = store.readiness().await;
        readiness
            .reasons
            .iter()
            .chain(&readiness.warnings)
            .any(|reason| reason.code == "clock")
    };
    clock.set_ahead(2 * 3_600);
    for store in &stores {
        until("the wrong clock is noticed", async || is_off(store).await).await;
    }
    let looks = async || redis.commands().await.get("time").copied().unwrap_or(0);
    let first = looks().await;
    until("both have inspected ten times more", async || {
        looks().await > first + 20
    })
    .await;
    assert_eq!(all_counted().await, before);
    let last_counts = redis.ask(&["KEYS", "oncegate:*:last_counts*"]).await;
    let last_counts: Vec<String> = ::redis::from_redis_value(last_counts).expect("keys");
    assert!(last_counts.is_empty(), "forgotten, and came back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_forgotten_comes_back_and_goes_on() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    for n in 0..20 {
        call(&one, n).await.expect_ok();
    }
    let folder = one.stop().await;
    let own = name(folder.path());
    forget(&redis, &own).await;
    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    one.until_ready().await;
    for n in 0..20 {
        assert_eq!(call(&one, n).await.expect_ok().at("/replayed"), true);
        call(&one, 100 + n).await.expect_ok();
    }
    // Also while the gateway runs, as if it had been cut off for long. It has another name if its stop was cut short.
    let own = name(one.folder());
    forget(&redis, &own).await;
    until("the gateway can go on", async || {
        call(&one, 200).await.status == 200
    })
    .await;
    assert_eq!(
        (one.reasons().await, other.reasons().await),
        (String::new(), String::new())
    );
    assert_eq!(one.metric("oncegate_store_lost_claims_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_forgotten_notices_what_it_has_lost() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let one = gateway(&redis, &tool, "").await;
    call(&one, 1).await.expect_ok();
    let snapshot = redis.snapshot();
    call(&one, 2).await.expect_ok();
    let folder = one.stop().await;
    let own = name(folder.path());
    // A new gateway does not know of the loss, and forgets the first gateway with its count in the older copy.
    redis.restore(snapshot.path()).await;
    let newcomer = gateway(&redis, &tool, "").await;
    call(&newcomer, 3).await.expect_ok();
    forget(&redis, &own).await;
    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    notices(&one, "accept-loss").await;
    one.call(json!({ "n": 2 }))
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.effects(), 3);
}

/// The last count of a gateway is in the partition of its writes. In the first partition it would stand for all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_gateway_notices_that_one_partition_is_older_than_its_writes() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    call(&one, 1).await.expect_ok();
    let own = name(one.folder());
    let mut written = Vec::new();
    for partition in 1..PARTITIONS {
        let counts = redis.counts(partition).await;
        written.extend(counts.contains_key(&own).then_some(partition));
    }
    assert_eq!(written.len(), 1, "the call's tenant has a partition");
    let one = one.stop().await;
    forget(&redis, &own).await;
    drop(other.stop().await);
    let prefix = format!("oncegate:{{p{:03}}}:", written[0]);
    redis.set_counts(written[0], &[].into()).await;
    let epoch = marks(one.path())["epoch"]
        .as_str()
        .expect("an epoch")
        .to_owned();
    let last = format!("{prefix}last_counts:{epoch}");
    assert_eq!(redis.ask(&["DEL", &last]).await, ::redis::Value::Int(1));
    let one = Gateway::again(one, &redis.url(), &one_tool(&tool, "")).await;
    notices(&one, "accept-loss").await;
}

/// The file of a killed gateway is behind. If the gateway counted up to the lost writes, the other would find none missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_does_not_count_up_to_the_writes_that_others_miss() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    call(&one, 1).await.expect_ok();
    let snapshot = redis.snapshot();
    let behind = tempfile::NamedTempFile::new().expect("a file");
    let own = name(one.folder());
    until("the file has the first call", async || {
        std::fs::copy(one.folder().join("watermarks"), behind.path()).expect("copied");
        marks(one.folder())["writes"][&own].is_array()
    })
    .await;
    call(&one, 2).await.expect_ok();
    until("the other has seen the writes", async || {
        marks(other.folder())["writes"][&own] == marks(one.folder())["writes"][&own]
    })
    .await;
    let (one, other) = (one.stop().await, other.stop().await);
    redis.restore(snapshot.path()).await;
    std::fs::copy(behind.path(), one.path().join("watermarks")).expect("as if it was killed");

    let one = Gateway::again(one, &redis.url(), &one_tool(&tool, "")).await;
    one.until_ready().await;
    for n in 3..6 {
        call(&one, n).await.expect_ok();
    }
    let other = Gateway::again(other, &redis.url(), &one_tool(&tool, "")).await;
    notices(&other, "accept-loss").await;
    notices(&one, "accept-loss").await;
}

/// After an accepted loss a gateway goes on from the store's own counts.
#[tokio::test(flavor = "multi_thread")]
async fn last_counts_from_before_an_accepted_loss_hide_no_later_loss() {
    let (mut redis, tool) = (Redis::strict().await, Tool::start().await);
    let (one, other) = (
        gateway(&redis, &tool, "").await,
        gateway(&redis, &tool, "").await,
    );
    call(&one, 1).await.expect_ok();
    let folder = one.stop().await;
    let own = name(folder.path());
    for partition in 0..PARTITIONS {
        let mut counts = redis.counts(partition).await;
        counts.insert(own.clone(), 7);
        redis.set_counts(partition, &counts).await;
    }
    forget(&redis, &own).await;
    let snapshot = redis.snapshot();
    call(&other, 2).await.expect_ok();
    redis.restore(snapshot.path()).await;
    notices(&other, "accept-loss").await;
    other.accept_loss("an older copy").await.expect_ok();
    other.until_ready().await;

    let one = Gateway::again(folder, &redis.url(), &one_tool(&tool, "")).await;
    one.until_ready().await;
    let snapshot = redis.snapshot();
    call(&one, 3).await.expect_ok();
    until("the other has seen the writes", async || {
        let marks = marks(other.folder());
        let counts = marks["writes"][&own].as_array();
        counts.is_some_and(|counts| counts.iter().any(|count| count.as_u64() > Some(0)))
    })
    .await;
    drop(one.stop().await);
    redis.restore(snapshot.path()).await;
    notices(&other, "accept-loss").await;
}
