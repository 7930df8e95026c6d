//! Near-duplicate calls: counted and found by the commands of the runbook. Over both stores and a Redis cluster.

use serde_json::{Value, json};

use crate::operators::desk::{each, get, post, with_tokens};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Tool, until};

on_both_stores! {
    calls_that_look_alike_are_counted_summed_and_named,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_look_alike_are_counted_summed_and_named_on_a_redis_cluster() {
    let cluster = crate::support::redis::Cluster::start().await;
    calls_that_look_alike_are_counted_summed_and_named(&Stores::Redis(cluster.url())).await;
}

/// The commands of the runbook that count, sum and name doubles, as printed.
fn lines_of_the_runbook() -> Vec<String> {
    let book = include_str!("../../../docs/runbook.md");
    let page = book
        .split("\n## ")
        .find(|page| page.starts_with("OncegateSimilarCalls"));
    let lines = page.expect("a page").lines();
    let lines: Vec<String> = lines
        .filter(|line| line.starts_with("jq "))
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    lines
}

/// What the shell prints for a line, in a folder; `None`: jq is not installed.
fn shell(line: &str, folder: &std::path::Path) -> Option<String> {
    let run = |line: &str| {
        let shell = std::process::Command::new("sh")
            .args(["-c", line])
            .current_dir(folder)
            .output();
        shell.expect("a shell")
    };
    run("command -v jq").status.success().then(|| {
        let done = run(line);
        assert!(
            done.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout)
            .expect("text")
            .trim()
            .to_owned()
    })
}

async fn calls_that_look_alike_are_counted_summed_and_named(stores: &Stores) {
    let tool = Tool::start().await;
    let similar = "similar = { fields = [\"/sku\", \"/amount_cents\"], window = \"10m\", action = \"flag\" }\n";
    let gateways = stores.gateways(&with_tokens(&tool, similar)).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let ask = async |user: &str, key: &str, amount: u32, confirmed: &Value| {
        let args = json!({ "sku": "gizmo", "amount_cents": amount });
        let body = json!({ "args": args, "user_id": user, "idempotency_key": key, "confirm_duplicate_of": confirmed });
        post(one, "shop-a", "/v1/tools/act/calls", &body)
            .await
            .expect_ok()
    };
    // Ann is charged twice, Bob three times, Cleo once for each of two things; Dan's agent repeats itself.
    for (user, key, amount) in [
        ("ann", "a1", 4_900),
        ("ann", "a2", 4_900),
        ("bob", "b1", 100),
        ("bob", "b2", 100),
        ("bob", "b3", 100),
        ("cleo", "c1", 700),
        ("cleo", "c2", 800),
        ("dan", "d1", 50),
        ("dan", "d1", 50),
        ("dan", "d1", 50),
    ] {
        ask(user, key, amount, &Value::Null).await;
    }
    // Erin confirms that she means both calls. Fay's confirmation names the call of another user.
    let meant = ask("erin", "e1", 60, &Value::Null).await.at("/call_id");
    let second = ask("erin", "e2", 60, &meant).await;
    assert_eq!(second.at("/similar_to"), meant);
    ask("fay", "f1", 1, &Value::Null).await;
    ask("fay", "f2", 1, &meant).await;
    let list = async |token: &str, query: &str| {
        let path = format!("/v1/calls?tool=act&{query}");
        each(&get(other, token, &path).await.expect_ok(), "/calls", "key")
    };
    assert_eq!(
        list("shop-reads", "similar=true").await,
        ["f2", "e2", "b3", "b2", "a2"]
    );
    let first = ["f1", "e1", "d1", "c2", "c1", "b1", "a1"];
    assert_eq!(list("shop-reads", "similar=false").await, first);
    assert_eq!(list("bank-reads", "similar=true").await, [""; 0]);
    assert_eq!(
        list("ops", "similar=true&by=shop-a&user_id=ann").await,
        ["a2"]
    );
    until("duplicates are counted", async || {
        list("shop-reads", "duplicates_min=2").await == ["d1"]
    })
    .await;
    assert_eq!(list("shop-reads", "duplicates_min=1").await, ["d1"]);
    assert_eq!(list("shop-reads", "duplicates_min=3").await, [""; 0]);
    assert_eq!(list("bank-reads", "duplicates_min=1").await, [""; 0]);
    let metrics = get(one, "ops", "/metrics").await;
    let counted = "oncegate_similar_total{tool=\"act\"} 4\n";
    assert!(metrics.text.contains(counted), "{}", metrics.text);

    let path = "/v1/calls?tool=act&similar=true&state=succeeded";
    let lines = other.client.get(other.url(path)).bearer_auth("ops");
    let lines = Answer::to(lines.header("accept", "application/x-ndjson")).await;
    let mut whole = Vec::new();
    for line in lines.text.lines() {
        let call: Value = serde_json::from_str(line).expect("a call");
        let path = format!("/v1/calls/{}", call["call_id"].as_str().expect("an id"));
        whole.push(get(other, "ops", &path).await.expect_ok().text);
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("whole.ndjson"), whole.concat()).expect("written");
    let printed: Vec<_> = lines_of_the_runbook()
        .iter()
        .filter_map(|line| shell(line, folder.path()))
        .collect();
    if !printed.is_empty() {
        assert_eq!(printed, ["", "4", "5101", "[\"ann\",\"bob\",\"fay\"]"]);
    }
    let meant_as_well = format!("; meant as well as call {}", meant.as_str().expect("an id"));
    let confirmed = whole.iter().filter(|call| call.contains(&meant_as_well));
    assert_eq!((whole.len(), confirmed.count()), (5, 2), "{whole:?}");
}
