//! `GET /v1/export`: everything about a user, a session, a time or a tenant, as lines that can be resumed.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, Tool};

on_both_stores! {
    an_export_has_each_call_of_a_user_once_and_says_that_it_is_whole,
    an_export_goes_on_after_the_line_where_it_broke_off,
    a_cursor_of_another_export_is_refused,
    an_export_stands_in_the_audit_with_its_filter_and_its_token,
}

/// A configuration with one token for each tenant, and an administrator.
pub(crate) fn config(tool: &Tool) -> String {
    let mut config = one_tool(tool, "");
    for (name, scopes) in [
        ("shop", "\"call\", \"read\""),
        ("bank", "\"call\", \"read\""),
        ("ops", "\"admin\""),
        ("chief", "\"admin\""),
    ] {
        let digest = hex::encode(Sha256::digest(name));
        let tenant = if name == "chief" { "shop" } else { name };
        config += &format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
        );
    }
    config
}

async fn acted(gateway: &Gateway, token: &str, key: &str, user: &str) {
    let body = json!({ "args": {}, "idempotency_key": key, "user_id": user, "session_id": key });
    let request = gateway.client.post(gateway.url("/v1/tools/act/calls"));
    let request = request.bearer_auth(token).body(body.to_string());
    Answer::to(request).await.expect_ok();
}

async fn get(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth(token);
    Answer::to(request).await
}

/// The lines with calls, and the last line.
fn parts(answer: &Answer) -> (Vec<Value>, Value) {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "application/x-ndjson"),
        "{}",
        answer.text
    );
    let lines = answer.text.lines();
    let mut lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    let end = lines.pop().expect("a last line");
    (lines, end)
}

fn keys(lines: &[Value]) -> Vec<&str> {
    let keys = lines.iter().map(|line| line["call"]["key"].as_str());
    keys.map(|key| key.expect("a key")).collect()
}

async fn an_export_has_each_call_of_a_user_once_and_says_that_it_is_whole(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    for n in 0..130 {
        acted(
            &gateway,
            "shop",
            &format!("k{n}"),
            if n % 13 == 0 { "bob" } else { "eve" },
        )
        .await;
    }
    acted(&gateway, "bank", "elsewhere", "bob").await;
    let answer = get(&gateway, "shop", "/v1/export?user_id=bob").await;
    let (lines, end) = parts(&answer);
    assert_eq!(
        end,
        json!({ "end": true, "calls": 10, "unreadable": 0 }),
        "as many as there are, and the end"
    );
    let expected: Vec<String> = (0..10).rev().map(|n| format!("k{}", n * 13)).collect();
    assert_eq!(
        keys(&lines),
        expected,
        "newest first, and none of another tenant"
    );
    // A line has what the call's own page has, but for its events.
    let path = format!(
        "/v1/calls/{}",
        lines[0]["call"]["call_id"].as_str().expect("an id")
    );
    let mut shown = get(&gateway, "shop", &path).await.expect_ok().json();
    shown.as_object_mut().expect("a call").remove("events");
    assert_eq!(lines[0]["call"], shown);

    let (all, end) = parts(&get(&gateway, "shop", "/v1/export").await);
    assert_eq!(
        (all.len(), &end["calls"]),
        (130, &json!(130)),
        "more than a page"
    );
    let (one, _) = parts(&get(&gateway, "shop", "/v1/export?session_id=k7").await);
    assert_eq!(keys(&one), ["k7"]);
    let middle = all[60]["call"]["created_at"].as_str().expect("a time");
    let (later, _) = parts(&get(&gateway, "shop", &format!("/v1/export?since={middle}")).await);
    let (earlier, _) = parts(&get(&gateway, "shop", &format!("/v1/export?until={middle}")).await);
    assert_eq!(later.len() + earlier.len(), 130);
    let (every, _) = parts(&get(&gateway, "ops", "/v1/export?user_id=bob").await);
    assert_eq!(
        every.len(),
        11,
        "an administrator gets those of all tenants"
    );
    let (bank, _) = parts(&get(&gateway, "ops", "/v1/export?user_id=bob&tenant=bank").await);
    assert_eq!(keys(&bank), ["elsewhere"]);
    let (none, end) = parts(&get(&gateway, "shop", "/v1/export?user_id=zoe").await);
    assert_eq!((none.len(), &end["calls"]), (0, &json!(0)));
}

async fn an_export_goes_on_after_the_line_where_it_broke_off(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    for n in 0..7 {
        acted(&gateway, "shop", &format!("k{n}"), "bob").await;
    }
    let (whole, _) = parts(&get(&gateway, "shop", "/v1/export?user_id=bob").await);
    // What is new meanwhile stands before the place where it goes on.
    acted(&gateway, "shop", "new", "bob").await;
    for (at, line) in whole.iter().enumerate() {
        let cursor = line["cursor"].as_str().expect("a cursor");
        let path = format!("/v1/export?user_id=bob&after={cursor}");
        let (rest, end) = parts(&get(&gateway, "shop", &path).await);
        assert_eq!(keys(&rest), keys(&whole[at + 1..]));
        assert_eq!(end["calls"], json!(whole.len() - at - 1));
    }
}

async fn a_cursor_of_another_export_is_refused(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    for token in ["shop", "bank"] {
        acted(&gateway, token, "k", "bob").await;
    }
    let (lines, _) = parts(&get(&gateway, "shop", "/v1/export?user_id=bob").await);
    let cursor = lines[0]["cursor"].as_str().expect("a cursor");
    let half = cursor.split('.').next().expect("a position");
    for (token, query) in [
        ("bank", format!("user_id=bob&after={cursor}")),
        ("ops", format!("user_id=bob&after={cursor}")),
        // An administrator of the same tenant exports all tenants.
        ("chief", format!("user_id=bob&after={cursor}")),
        ("shop", format!("user_id=eve&after={cursor}")),
        ("shop", format!("after={cursor}")),
        ("shop", format!("user_id=bob&after={half}")),
        ("shop", "user_id=bob&after=".to_owned()),
    ] {
        let refused = get(&gateway, token, &format!("/v1/export?{query}")).await;
        let refused = refused.expect_problem("invalid-request");
        let why = refused.at("/detail").to_string();
        assert!(
            why.contains("not a cursor of this export"),
            "{query}: {why}"
        );
    }
    let own = get(
        &gateway,
        "shop",
        &format!("/v1/export?user_id=bob&after={cursor}"),
    )
    .await;
    assert_eq!(parts(&own).0.len(), 0);
    // An administrator may name the tenant, and goes on where that tenant's own export broke off only with its own cursor.
    get(&gateway, "shop", "/v1/export?tenant=bank")
        .await
        .expect_problem("forbidden");
    get(&gateway, "shop", "/v1/export?colour=red")
        .await
        .expect_problem("invalid-request");
    get(&gateway, "shop", "/v1/export?since=yesterday")
        .await
        .expect_problem("invalid-request");
}

async fn an_export_stands_in_the_audit_with_its_filter_and_its_token(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&config(&tool)).await;
    acted(&gateway, "shop", "k", "bob").await;
    parts(&get(&gateway, "shop", "/v1/export?user_id=bob").await);
    get(&gateway, "shop", "/v1/export?user_id=bob&after=x")
        .await
        .expect_problem("invalid-request");
    let acts = get(&gateway, "shop", "/v1/audit?act=export")
        .await
        .expect_ok()
        .json();
    let acts = acts["acts"].as_array().expect("acts");
    assert_eq!(acts.len(), 1, "{acts:?}");
    assert_eq!(acts[0]["by"], "shop");
    assert!(acts[0].to_string().contains("bob"), "{}", acts[0]);
}
