//! Questions to the ledger: which calls ran, how often they were asked for, and with which result.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_trace_leads_to_its_calls_and_each_says_how_often_it_was_asked_for,
    pages_and_lines_show_the_same_calls,
    an_identity_that_was_not_named_is_null,
    a_token_reads_the_calls_and_sagas_that_it_made_itself,
    a_token_sees_the_calls_of_its_own_tenant_and_an_administrator_sees_all,
}

async fn a_token_reads_the_calls_and_sagas_that_it_made_itself(stores: &Stores) {
    let tool = Tool::start().await;
    let mut config = one_tool(&tool, "");
    for (name, tenant, scopes) in [
        ("mine", "shop", "\"call\""),
        ("theirs", "shop", "\"call\""),
        ("reader", "shop", "\"read\""),
        ("bank", "bank", "\"call\""),
    ] {
        let digest = hex::encode(Sha256::digest(name));
        config += &format!(
            "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
        );
    }
    let gateway = stores.gateway(&config).await;
    let request = gateway
        .client
        .post(gateway.url("/v1/tools/act/calls"))
        .bearer_auth("mine");
    let body = json!({ "args": {}, "idempotency_key": "k", "saga_id": "G" }).to_string();
    let request = request.header("prefer", "respond-async").body(body);
    let accepted = Answer::to(request).await;
    let place = format!("/v1/calls/{}", accepted.id());
    assert!(
        accepted.status == 200 || accepted.header("location") == format!("{place}/answer"),
        "{}",
        accepted.text
    );
    assert_eq!(
        get(&gateway, "mine", &place).await.expect_ok().at("/key"),
        "k"
    );
    assert_eq!(
        get(&gateway, "mine", "/v1/sagas/G")
            .await
            .expect_ok()
            .at("/saga_id"),
        "G"
    );
    get(&gateway, "reader", &place).await.expect_ok();
    for other in ["theirs", "bank"] {
        get(&gateway, other, &place)
            .await
            .expect_problem("unknown-call");
    }
    get(&gateway, "bank", "/v1/sagas/G")
        .await
        .expect_problem("unknown-saga");
    // The token may end the saga, because it may call all its tools, but it may read no call of it.
    assert_eq!(
        get(&gateway, "theirs", "/v1/sagas/G")
            .await
            .expect_ok()
            .at("/calls"),
        json!([])
    );
    // A token that repeats the call gets the result, but has not made the call, and cannot read it.
    let again = json!({ "args": {}, "idempotency_key": "k" });
    call(&gateway, "theirs", &again).await.expect_ok();
    get(&gateway, "theirs", &place)
        .await
        .expect_problem("unknown-call");
    get(&gateway, "mine", "/v1/calls")
        .await
        .expect_problem("forbidden");
}

async fn an_identity_that_was_not_named_is_null(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let call = gateway.call(json!({})).await.expect_ok();
    let record = gateway.record(&call).await;
    let page = gateway.get("/v1/calls").await.expect_ok();
    let lines = gateway
        .client
        .get(gateway.url("/v1/calls"))
        .header("accept", "application/x-ndjson");
    let lines = Answer::to(lines).await.expect_ok();
    let resolved = json!([record.json(), page.at("/calls/0"), lines.json()]);
    for view in resolved.as_array().expect("three") {
        for name in ["user_id", "session_id", "saga_id"] {
            assert_eq!(view.get(name), Some(&Value::Null), "{name} in {view}");
        }
    }
}

/// A configuration with these tokens and their scopes. Each token's name is also its tenant and its text.
fn with_tokens(tool: &Tool, more: &str, tokens: &[(&str, &str)]) -> String {
    let mut config = one_tool(tool, more);
    for (tenant, scopes) in tokens {
        let digest = hex::encode(Sha256::digest(tenant));
        config += &format!(
            "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n"
        );
    }
    config
}

async fn get(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth(token);
    Answer::to(request).await
}

async fn call(gateway: &Gateway, token: &str, body: &Value) -> Answer {
    let request = gateway
        .client
        .post(gateway.url("/v1/tools/act/calls"))
        .bearer_auth(token);
    Answer::to(request.body(body.to_string())).await
}

fn ids(page: &Answer) -> Vec<String> {
    let calls = page.at("/calls");
    let calls = calls.as_array().expect("a list").iter();
    calls
        .map(|call| call["call_id"].as_str().expect("an id").to_owned())
        .collect()
}

async fn a_trace_leads_to_its_calls_and_each_says_how_often_it_was_asked_for(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held)
        .then(Act::Numbered)
        .then(Act::Answer(422, "", b"{\"no\":1}"));
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let body = |key: &str| json!({ "args": {}, "idempotency_key": key, "trace_id": "T", "user_id": "ann" });
    let first = one
        .post("act", &body("first"), &[("prefer", "respond-async")])
        .await;
    let again = other
        .post("act", &body("first"), &[("prefer", "wait=0")])
        .await;
    again.expect_problem("call-in-progress");
    drop(hold);
    for gateway in [one, other, other] {
        gateway.post("act", &body("first"), &[]).await.expect_ok();
    }
    one.post("act", &body("second"), &[]).await.expect_ok();
    let third = one
        .post("act", &body("third"), &[])
        .await
        .expect_problem("tool-rejected");
    one.post("act", &json!({ "args": {}, "trace_id": "U" }), &[])
        .await
        .expect_ok();

    let of_trace = async || one.get("/v1/calls?trace_id=T").await.expect_ok();
    let found = of_trace().await;
    let states: Vec<Value> = (0..3)
        .map(|n| found.at(&format!("/calls/{n}/state")))
        .collect();
    assert_eq!(states, ["failed", "succeeded", "succeeded"], "newest first");
    assert_eq!(
        (ids(&found).len(), found.at("/next_cursor")),
        (3, Value::Null)
    );
    assert_eq!(
        found.at("/calls/0/events"),
        Value::Null,
        "a list is without events"
    );
    until("duplicates are counted", async || {
        of_trace().await.at("/calls/2/duplicates") == 4
    })
    .await;
    let whole = other.get(&format!("/v1/calls/{}", first.id())).await;
    assert_eq!((whole.at("/duplicates"), tool.effects()), (4.into(), 3));
    let last = whole.at("/last_duplicates");
    let last = last.as_array().expect("a list");
    // The clocks of two gateways may differ by more than the time between two requests.
    let suppressed = last
        .iter()
        .filter(|duplicate| duplicate["kind"] == "suppressed")
        .count();
    assert_eq!(
        (last.len(), suppressed, &last[0]["by"]),
        (4, 1, &json!("open"))
    );
    // The one that joined was counted by the other gateway.
    let rest = last.iter().filter(|one| one["kind"] != "joined");
    let times: Vec<_> = rest.map(|one| one["at"].as_str()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "newest first: {last:?}");
    assert_eq!(whole.at("/events/0/event"), "claimed");
    let state = one
        .get("/v1/calls?state=failed&user_id=ann")
        .await
        .expect_ok();
    assert_eq!(ids(&state), [third.id()]);
}

async fn pages_and_lines_show_the_same_calls(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    for n in 0..23 {
        let user = ["ann", "bob"][n % 2];
        gateway
            .act(&format!("k{n}"), json!({ "user_id": user }))
            .await
            .expect_ok();
    }
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway
            .get(&format!("/v1/calls?user_id=bob&limit=4{cursor}"))
            .await
            .expect_ok();
        assert!(ids(&page).len() <= 4);
        paged.extend(ids(&page));
        let Some(next) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    let request = gateway
        .client
        .get(gateway.url("/v1/calls?user_id=bob"))
        .header("accept", "application/x-ndjson");
    let lines = Answer::to(request).await;
    assert_eq!(
        (lines.status, lines.header("content-type")),
        (200, "application/x-ndjson")
    );
    let streamed = lines.text.lines().map(|line| {
        let call: Value = serde_json::from_str(line).expect("a call");
        assert_eq!(call["user_id"], "bob");
        call["call_id"].as_str().expect("an id").to_owned()
    });
    let streamed: Vec<String> = streamed.collect();
    assert_eq!((paged.len(), &streamed), (11, &paged));
    let middle = gateway
        .get(&format!("/v1/calls/{}", paged[5]))
        .await
        .at("/created_at");
    let middle = middle.as_str().expect("a time");
    let since = gateway
        .get(&format!("/v1/calls?since={middle}"))
        .await
        .expect_ok();
    let until = gateway
        .get(&format!("/v1/calls?until={middle}"))
        .await
        .expect_ok();
    assert_eq!(ids(&since).len() + ids(&until).len(), 23);
}

async fn a_token_sees_the_calls_of_its_own_tenant_and_an_administrator_sees_all(stores: &Stores) {
    let tool = Tool::start().await;
    let tokens = [
        ("shop", "\"call\", \"read\""),
        ("bank", "\"call\", \"read\""),
        ("ops", "\"admin\""),
        ("mute", "\"call\""),
    ];
    let gateway = stores.gateway(&with_tokens(&tool, "", &tokens)).await;
    let body = json!({ "args": {}, "idempotency_key": "k", "trace_id": "T", "session_id": "S" });
    let mut own = Vec::new();
    for tenant in ["shop", "bank"] {
        let answer = call(&gateway, tenant, &body).await.expect_ok();
        own.push(answer.id());
    }
    assert_eq!(
        tool.effects(),
        2,
        "the same key of two tenants is two calls"
    );
    for filter in [
        "",
        "&trace_id=T",
        "&session_id=S",
        "&key=k",
        "&tool=act",
        "&state=succeeded",
        "&tenant=shop",
    ] {
        let found = get(&gateway, "shop", &format!("/v1/calls?limit=10{filter}"))
            .await
            .expect_ok();
        assert_eq!(ids(&found), [own[0].as_str()], "{filter}");
        let found = get(&gateway, "ops", &format!("/v1/calls?limit=10{filter}"))
            .await
            .expect_ok();
        let all = if filter == "&tenant=shop" { 1 } else { 2 };
        assert_eq!(ids(&found).len(), all, "{filter}");
    }
    let one = get(&gateway, "ops", "/v1/calls?limit=1").await.expect_ok();
    let next = one.at("/next_cursor");
    let next = next.as_str().expect("there is more");
    let rest = get(&gateway, "ops", &format!("/v1/calls?limit=1&cursor={next}"))
        .await
        .expect_ok();
    assert_eq!(
        [ids(&one), ids(&rest)].concat(),
        [own[1].as_str(), own[0].as_str()]
    );
    // A cursor is a place in time only: another tenant's cursor shows no calls of that tenant.
    let found = get(&gateway, "shop", &format!("/v1/calls?cursor={next}"))
        .await
        .expect_ok();
    assert_eq!(ids(&found), [own[0].as_str()]);
    get(&gateway, "shop", "/v1/calls?tenant=bank")
        .await
        .expect_problem("forbidden");
    get(&gateway, "mute", "/v1/calls")
        .await
        .expect_problem("forbidden");
    get(&gateway, "nobody", "/v1/calls")
        .await
        .expect_problem("unauthenticated");
}

#[tokio::test]
async fn a_query_that_cannot_be_read_is_refused_with_a_reason() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    for (query, words) in [
        ("limit=0", "from 1 to 500"),
        ("limit=501", "from 1 to 500"),
        ("limit=ten", "from 1 to 500"),
        ("cursor=x", "next_cursor of an earlier answer"),
        ("since=yesterday", "since must be a time"),
        ("until=2026-01-01", "until must be a time"),
        ("state=done", "running, succeeded, failed, unknown"),
        ("similar=maybe", "similar must be true or false"),
        ("duplicates_min=-1", "duplicates_min must be a whole number"),
        ("colour=red", "colour"),
        ("tool=a&tool=b", "tool"),
    ] {
        let refused = gateway
            .get(&format!("/v1/calls?{query}"))
            .await
            .expect_problem("invalid-request");
        assert!(
            refused.at("/detail").to_string().contains(words),
            "{query}: {}",
            refused.text
        );
    }
}
