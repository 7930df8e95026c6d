//! `GET /v1/events`: each event of each call once, in order, for other systems and for the question who was affected.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
#[cfg(feature = "postgres")]
use crate::support::postgres::place;
use crate::support::redis::Redis;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool};

/// All events after a cursor, read in pages of this many; and the last cursor.
async fn read(gateway: &Gateway, limit: u32, mut after: Option<String>) -> (Vec<Value>, String) {
    let mut events = Vec::new();
    loop {
        let from = after.iter().map(|cursor| format!("&after={cursor}"));
        let path = format!("/v1/events?limit={limit}{}", from.collect::<String>());
        let page = gateway.get(&path).await.expect_ok().json();
        events.extend(page["events"].as_array().expect("events").clone());
        let next = page["next_cursor"].as_str().expect("a cursor").to_owned();
        if page["has_more"] == false {
            return (events, next);
        }
        after = Some(next);
    }
}

async fn acted(gateway: &Gateway, key: &str, user: &str) -> Value {
    let request = json!({ "args": {}, "idempotency_key": key, "user_id": user });
    gateway
        .post_to("/v1/tools/act/calls", &request)
        .await
        .json()
}

#[tokio::test]
async fn each_event_of_each_call_comes_once_and_in_order_and_again_only_by_its_cursor() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&one_tool(&tool, "retry = { attempts = 1 }")).await;
    for n in 0..5 {
        if n == 3 {
            tool.then(Act::Answer(500, "", b"{}"));
        }
        acted(&gateway, &format!("k{n}"), "U").await;
    }
    // A replay is no event.
    acted(&gateway, "k1", "U").await;
    let (events, end) = read(&gateway, 2, None).await;
    let mut expected = 0;
    let calls = gateway.get("/v1/calls").await.expect_ok().json();
    for call in calls["calls"].as_array().expect("calls") {
        let path = format!("/v1/calls/{}", call["call_id"].as_str().expect("an id"));
        let shown = gateway.get(&path).await.expect_ok().json();
        let own: Vec<_> = events
            .iter()
            .filter(|event| event["call_id"] == call["call_id"])
            .collect();
        let shown = shown["events"].as_array().expect("events");
        assert_eq!(own.len(), shown.len(), "{call}");
        for (own, shown) in own.iter().zip(shown) {
            for member in ["at", "event", "outcome", "attempt_id", "by"] {
                assert_eq!(own[member], shown[member], "{member}");
            }
        }
        expected += shown.len();
    }
    assert_eq!(events.len(), expected);
    let cursors = events.iter().map(|event| event["cursor"].as_str());
    assert_eq!(cursors.collect::<BTreeSet<_>>().len(), events.len());

    // What comes later is found from the last cursor on, and all of it again from an earlier one.
    assert_eq!(read(&gateway, 50, Some(end.clone())).await.0.len(), 0);
    acted(&gateway, "later", "U").await;
    let (later, _) = read(&gateway, 50, Some(end)).await;
    assert_eq!(later.len(), 2, "{later:?}");
    let third = events[2]["cursor"].as_str().expect("a cursor").to_owned();
    let (again, _) = read(&gateway, 3, Some(third)).await;
    assert_eq!(again[..events.len() - 3], events[3..]);

    let other = "00000000000000000000000000000007-3";
    let lost = gateway.get(&format!("/v1/events?after={other}")).await;
    lost.expect_problem("wrong-state");
    let unreadable = gateway.get("/v1/events?after=next").await;
    unreadable.expect_problem("invalid-request");
}

/// The command of docs/events.md, with the answer of this gateway in the place of curl's.
#[tokio::test]
async fn the_documented_command_names_the_customers_who_were_affected() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&one_tool(&tool, "retry = { attempts = 1 }")).await;
    acted(&gateway, "fine", "U-1").await;
    for (key, user) in [("a", "U-2"), ("b", "U-3"), ("c", "U-2")] {
        tool.then(Act::Answer(500, "", b"{}"));
        acted(&gateway, key, user).await;
    }
    let page = include_str!("../../../docs/events.md");
    let command = page
        .lines()
        .find(|line| line.starts_with("curl") && line.contains("/v1/events?outcome=unknown"))
        .expect("the command");
    let (curl, rest) = command.split_once(" | ").expect("a pipe");
    let (_, query) = curl.split_once("/v1/events?").expect("a query");
    let query = query.trim_end_matches('\'');
    let now = query
        .replace("2026-11-27T10:00:00Z", "2020-01-01T00:00:00Z")
        .replace("2026-11-27T10:17:00Z", "2100-01-01T00:00:00Z");
    let answer = gateway.get(&format!("/v1/events?{now}")).await.expect_ok();
    let mut shell = Command::new("sh")
        .args(["-c", rest])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = shell.stdin.take().expect("standard input");
    input.write_all(answer.text.as_bytes()).expect("written");
    drop(input);
    let printed = shell.wait_with_output().expect("it ends").stdout;
    let printed = String::from_utf8(printed).expect("text");
    let lines: Vec<Vec<&str>> = printed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [["2", "\"user_id\":\"U-2\""], ["1", "\"user_id\":\"U-3\""]];
    assert_eq!(lines, expected);

    let then = query.replace("2026-11-27T10", "2020-11-27T10");
    let before = gateway.get(&format!("/v1/events?{then}")).await.expect_ok();
    assert_eq!(before.json()["events"], json!([]));
}

/// What the shell makes of an answer in curl's place.
fn piped(rest: &str, answer: &str) -> String {
    let mut shell = Command::new("sh")
        .args(["-c", rest])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = shell.stdin.take().expect("standard input");
    input.write_all(answer.as_bytes()).expect("written");
    drop(input);
    let printed = shell.wait_with_output().expect("it ends").stdout;
    String::from_utf8(printed).expect("text")
}

on_both_stores! {
    calls_that_were_unknown_in_a_time_are_found_by_the_documented_command_also_if_they_are_settled,
}

async fn calls_that_were_unknown_in_a_time_are_found_by_the_documented_command_also_if_they_are_settled(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let gateway = stores
        .gateway(&one_tool(&tool, "retry = { attempts = 1 }"))
        .await;
    acted(&gateway, "fine", "U-1").await;
    let mut unknown = Vec::new();
    for (key, user) in [("a", "U-2"), ("b", "U-3"), ("c", "U-2")] {
        tool.then(Act::Answer(500, "", b"{}"));
        let answer = acted(&gateway, key, user).await;
        unknown.push(answer["call_id"].as_str().expect("an id").to_owned());
    }
    let settled = json!({ "as": "succeeded", "result": {}, "reason": "it is there" });
    let path = format!("/v1/calls/{}/resolve", unknown[0]);
    gateway.post_to(&path, &settled).await.expect_ok();

    let page = include_str!("../../../docs/events.md");
    let mut lines = page.lines();
    let command = lines.find(|line| line.starts_with("curl") && line.contains("unknown_since"));
    let (curl, rest) = command
        .expect("the command")
        .split_once(" | ")
        .expect("a pipe");
    let (_, query) = curl.split_once("/v1/calls?").expect("a query");
    let query = query.trim_end_matches('\'');
    let with = |since: &str, until: &str| {
        query
            .replace("2026-11-27T10:00:00Z", since)
            .replace("2026-11-27T10:17:00Z", until)
            .replace("2026-11-26T00:00:00Z", "2020-01-01T00:00:00Z")
    };
    let ask = async |query: String| {
        let request = gateway
            .client
            .get(gateway.url(&format!("/v1/calls?{query}")));
        let answer = Answer::to(request.header("accept", "application/x-ndjson")).await;
        piped(rest, &answer.expect_ok().text)
    };
    let printed = ask(with("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z")).await;
    let lines: Vec<Vec<&str>> = printed
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [["2", "\"user_id\":\"U-2\""], ["1", "\"user_id\":\"U-3\""]];
    assert_eq!(lines, expected);
    let before = ask(with("2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z")).await;
    assert_eq!(before, "", "none was unknown so early");
}

#[tokio::test]
async fn a_store_without_a_feed_says_so_redis() {
    let (redis, tool) = (Redis::strict().await, Tool::start().await);
    let gateway = Gateway::sharing(&redis.url(), &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    let refused = gateway.get("/v1/events").await;
    refused.expect_problem("wrong-state");
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_store_without_a_feed_says_so_postgres() {
    let (place, tool) = (place().await, Tool::start().await);
    let gateway = Gateway::sharing(&place, &one_tool(&tool, "")).await;
    gateway.until_ready().await;
    let refused = gateway.get("/v1/events").await;
    refused.expect_problem("wrong-state");
}

/// A token of `tenant` with this text; its name is the tenant.
fn token(tenant: &str, token: &str, scope: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(token));
    format!(
        "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = {scope}\n"
    )
}

#[tokio::test]
async fn a_token_sees_the_events_of_its_own_tenant_and_an_administrator_sees_all() {
    let tool = Tool::start().await;
    let (shop, bank) = (
        token("shop", "token-shop", r#"["call", "read"]"#),
        token("bank", "token-bank", r#"["call", "read"]"#),
    );
    let (calls, admin) = (
        token("calls", "token-calls", r#"["call"]"#),
        token("audit", "token-admin", r#"["admin"]"#),
    );
    let gateway = Gateway::start(&format!(
        "{shop}{bank}{calls}{admin}{}",
        one_tool(&tool, "")
    ))
    .await;
    let bearer = |token: &str| format!("Bearer {token}");
    for (n, token) in ["token-shop", "token-bank", "token-bank"]
        .iter()
        .enumerate()
    {
        let by = bearer(token);
        gateway
            .post(
                "act",
                &json!({ "args": { "n": n } }),
                &[("authorization", &by)],
            )
            .await
            .expect_ok();
    }
    let events = async |token: &str, more: &str| {
        let url = gateway.url(&format!("/v1/events?limit=500{more}"));
        Answer::to(gateway.client.get(url).bearer_auth(token)).await
    };
    let tenants = |answer: &Answer| {
        let json = answer.json();
        let events = json["events"].as_array().expect("events").iter();
        let tenants = events.map(|event| event["tenant"].as_str().expect("a tenant").to_owned());
        tenants.collect::<Vec<_>>()
    };
    assert_eq!(tenants(&events("token-shop", "").await), ["shop"; 2]);
    assert_eq!(tenants(&events("token-bank", "").await), ["bank"; 4]);
    assert_eq!(tenants(&events("token-admin", "").await).len(), 6);
    assert_eq!(
        tenants(&events("token-admin", "&tenant=shop").await),
        ["shop"; 2]
    );
    events("token-shop", "&tenant=bank")
        .await
        .expect_problem("forbidden");
    events("token-calls", "").await.expect_problem("forbidden");
}

#[tokio::test]
async fn the_end_of_a_time_counts_to_the_microsecond() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&one_tool(&tool, "")).await;
    acted(&gateway, "k", "U").await;
    let (events, _) = read(&gateway, 50, None).await;
    let at: jiff::Timestamp = events[0]["at"]
        .as_str()
        .expect("a time")
        .parse()
        .expect("a time");
    // Shown to the millisecond.
    let after = at + jiff::SignedDuration::from_millis(1);
    let until = async |until: jiff::Timestamp| {
        let path = format!("/v1/events?until={until}&limit=1");
        gateway.get(&path).await.expect_ok().json()["events"].clone()
    };
    assert_eq!(until(after).await[0]["event"], "claimed");
    assert_eq!(until(at).await, json!([]));
}

#[tokio::test]
async fn a_call_that_cannot_be_read_does_not_end_the_feed() {
    let (folder, tool) = (tempfile::tempdir().expect("a folder"), Tool::start().await);
    let file = folder.path().join("oncegate.db");
    let url = format!("sqlite://{}", file.display());
    let gateway = Gateway::sharing(&url, &one_tool(&tool, "")).await;
    acted(&gateway, "damaged", "U").await;
    acted(&gateway, "whole", "U").await;
    let damage = "UPDATE calls SET progress = x'ff' WHERE seq = (SELECT min(seq) FROM calls)";
    let other = rusqlite::Connection::open(&file).expect("opened");
    assert_eq!(other.execute(damage, []), Ok(1));
    let page = gateway.get("/v1/events").await.expect_ok().json();
    assert_eq!(
        (&page["unreadable"], page["events"].as_array().map(Vec::len)),
        (&json!(2), Some(2))
    );
}
