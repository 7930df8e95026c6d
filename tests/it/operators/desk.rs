//! Routes that an operator needs during an incident: who made a call, what operators did, which sessions stand still.
//! Over both stores and a Redis cluster.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_call_names_the_token_that_made_it_and_is_found_by_it,
    acts_of_operators_stand_in_the_audit,
    frozen_and_locked_sessions_are_found,
}

mod redis_cluster {
    use crate::support::redis::Cluster;
    use crate::support::stores::Stores;

    macro_rules! over_a_cluster {
        ($($claim:ident),* $(,)?) => {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let cluster = Cluster::start().await;
                super::$claim(&Stores::Redis(cluster.url())).await;
            })*
        };
    }

    over_a_cluster! {
        a_call_names_the_token_that_made_it_and_is_found_by_it,
        acts_of_operators_stand_in_the_audit,
        frozen_and_locked_sessions_are_found,
    }
}

/// The names of tokens, with tenants and scopes. Each name is also the token's secret.
const TOKENS: [(&str, &str, &str); 5] = [
    ("shop-a", "shop", "\"call\""),
    ("shop-b", "shop", "\"call\""),
    ("shop-reads", "shop", "\"read\""),
    ("bank-reads", "bank", "\"call\", \"read\""),
    ("ops", "ops", "\"admin\""),
];

/// A configuration with these tokens.
pub fn with_tokens(tool: &Tool, more: &str) -> String {
    let tokens = TOKENS.map(|(name, tenant, scopes)| {
        let digest = hex::encode(Sha256::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    });
    format!("{}{}", one_tool(tool, more), tokens.concat())
}

pub async fn get(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth(token);
    Answer::to(request).await
}

pub async fn post(gateway: &Gateway, token: &str, path: &str, body: &Value) -> Answer {
    let request = gateway.client.post(gateway.url(path)).bearer_auth(token);
    Answer::to(request.body(body.to_string())).await
}

pub async fn call(gateway: &Gateway, token: &str, key: &str) -> Answer {
    let body = json!({ "args": {}, "idempotency_key": key, "session_id": "S" });
    post(gateway, token, "/v1/tools/act/calls", &body).await
}

/// A member of each item of a list.
pub fn each(page: &Answer, list: &str, member: &str) -> Vec<String> {
    let items = page.at(list);
    let items = items.as_array().unwrap_or_else(|| panic!("{}", page.text));
    let text = |item: &Value| item[member].as_str().unwrap_or_default().to_owned();
    items.iter().map(text).collect()
}

async fn a_call_names_the_token_that_made_it_and_is_found_by_it(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Numbered)
        .then(Act::Numbered)
        .then(Act::Answer(422, "", b"{\"no\":1}"));
    let gateways = stores.gateways(&with_tokens(&tool, "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    call(one, "shop-a", "k1").await.expect_ok();
    call(one, "shop-b", "k2").await.expect_ok();
    let third = call(one, "shop-a", "k3").await;
    let third = third.expect_problem("tool-rejected").id();
    call(other, "shop-b", "k3").await.expect_ok();
    call(one, "bank-reads", "k1").await.expect_ok();

    let by = async |token: &str, query: &str| {
        let found = get(other, token, &format!("/v1/calls?by={query}")).await;
        each(&found.expect_ok(), "/calls", "key")
    };
    assert_eq!(by("shop-reads", "shop-a").await, ["k3", "k1"]);
    assert_eq!(
        by("shop-reads", "shop-b").await,
        ["k2"],
        "not the call that shop-b only repeated"
    );
    assert_eq!(by("shop-reads", "shop-a&key=k1").await, ["k1"]);
    assert_eq!(by("shop-reads", "bank-reads").await, [""; 0]);
    assert_eq!(
        by("bank-reads", "shop-a").await,
        [""; 0],
        "another tenant's"
    );
    assert_eq!(by("ops", "shop-a").await, ["k3", "k1"]);
    assert_eq!(by("ops", "bank-reads").await, ["k1"]);
    assert_eq!(by("ops", "").await, [""; 0], "the gateway itself made none");
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/calls?by=shop-a&limit=1{cursor}");
        let page = get(other, "shop-reads", &path).await.expect_ok();
        paged.extend(each(&page, "/calls", "key"));
        let Some(next) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, ["k3", "k1"]);

    let record = get(other, "shop-reads", &format!("/v1/calls/{third}")).await;
    let record = record.expect_ok();
    assert_eq!(record.at("/made_by"), "shop-a");
    let events = each(&record, "/events", "event");
    assert_eq!(events, ["claimed", "ended", "run_again", "ended"]);
    let tokens = each(&record, "/events", "token");
    assert_eq!(tokens, ["shop-a", "", "shop-b", ""], "{}", record.text);
    assert_eq!(record.at("/events/1/token"), Value::Null);
}

/// The acts of a page of the audit: act, kind of target, and outcome.
pub fn acts(page: &Answer) -> Vec<String> {
    let page = page.at("/acts");
    let acts = page.as_array().expect("a list").iter();
    let text = |act: &Value| {
        let parts = [&act["act"], &act["target"]["kind"], &act["outcome"]];
        parts.map(|part| part.as_str().expect("a word")).join(" ")
    };
    acts.map(text).collect()
}

async fn acts_of_operators_stand_in_the_audit(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop).then(Act::ExecuteThenDrop);
    let more = "compensation = { tool = \"back\", args = {} }\n[tools.back]\nurl = \"http://127.0.0.1:9/\"\n";
    let gateways = stores.gateways(&with_tokens(&tool, more)).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let why = |reason: &str| json!({ "reason": reason });
    let unknown = call(one, "shop-a", "k1").await;
    let unknown = unknown.expect_problem("outcome-unknown").id();
    let banks = call(one, "bank-reads", "k1").await;
    let banks = banks.expect_problem("outcome-unknown").id();
    let saga = json!({ "args": { "card": "SECRET" }, "idempotency_key": "k2", "saga_id": "G" });
    let bought = post(one, "shop-a", "/v1/tools/act/calls", &saga).await;
    let bought = bought.expect_ok().id();

    let act = async |path: &str, body: Value| post(one, "ops", path, &body).await;
    act("/v1/tools/act/pause", why("R1")).await.expect_ok();
    let again = act("/v1/tools/act/pause", why("R2")).await;
    again.expect_problem("wrong-state");
    act("/v1/tools/act/resume", why("R3")).await.expect_ok();
    let frozen = "/v1/sessions/S/freeze?tenant=shop";
    act(frozen, why("R4")).await.expect_ok();
    act("/v1/sessions/S/thaw?tenant=shop", why("R5"))
        .await
        .expect_ok();
    let free = act("/v1/sessions/S/unlock?tenant=shop", why("R6")).await;
    free.expect_problem("wrong-state");
    let settled =
        |reason| json!({ "as": "succeeded", "result": { "card": "SECRET" }, "reason": reason });
    for (id, reason) in [(&unknown, "R7"), (&banks, "R8")] {
        let resolve = format!("/v1/calls/{id}/resolve");
        act(&resolve, settled(reason)).await.expect_ok();
    }
    let compensate = format!("/v1/calls/{bought}/compensate");
    act(&compensate, why("R9")).await.expect_ok();
    let aborted = post(one, "shop-a", "/v1/sagas/G/abort", &why("R10")).await;
    aborted.expect_ok();
    // The audit keeps neither acts that a token may not do, nor acts on targets that do not exist.
    let refused = post(one, "shop-a", frozen, &why("no")).await;
    refused.expect_problem("forbidden");
    let nothing = act("/v1/tools/none/pause", why("no")).await;
    nothing.expect_problem("unknown-tool");

    let all = get(other, "ops", "/v1/audit").await.expect_ok();
    assert_eq!(
        acts(&all),
        [
            "abort saga done",
            "compensate call done",
            "resolve call done",
            "resolve call done",
            "unlock session refused",
            "thaw session done",
            "freeze session done",
            "resume tool done",
            "pause tool refused",
            "pause tool done",
        ]
    );
    let reasons = each(&all, "/acts", "reason");
    let expected: Vec<String> = (1..=10).rev().map(|n| format!("R{n}")).collect();
    assert_eq!(reasons, expected, "newest first");
    assert!(!all.text.contains("SECRET"), "{}", all.text);
    let target = json!({ "kind": "call", "id": unknown, "tenant": "shop", "tool": "act" });
    assert_eq!(
        (all.at("/acts/3/target"), all.at("/acts/3/by")),
        (target, "ops".into())
    );
    assert_eq!(all.at("/acts/0/by"), "shop-a");
    let target = json!({ "kind": "tool", "id": "act", "tenant": null, "tool": "act" });
    assert_eq!(all.at("/acts/9/target"), target);

    let shops = ["abort", "compensate", "resolve", "unlock", "thaw", "freeze"];
    let found = get(other, "shop-reads", "/v1/audit").await.expect_ok();
    assert_eq!(each(&found, "/acts", "act"), shops);
    let found = get(other, "ops", "/v1/audit?tenant=shop").await.expect_ok();
    assert_eq!(each(&found, "/acts", "act"), shops);
    let found = get(other, "bank-reads", "/v1/audit").await.expect_ok();
    assert_eq!(each(&found, "/acts", "reason"), ["R8"]);
    let found = get(other, "shop-reads", "/v1/audit?act=freeze").await;
    assert_eq!(each(&found.expect_ok(), "/acts", "reason"), ["R4"]);
    let found = get(other, "ops", "/v1/audit?act=pause").await.expect_ok();
    assert_eq!(each(&found, "/acts", "reason"), ["R2", "R1"]);
    for (token, query) in [("shop-a", ""), ("shop-reads", "?tenant=bank")] {
        let refused = get(one, token, &format!("/v1/audit{query}")).await;
        refused.expect_problem("forbidden");
    }
    for query in ["act=dance", "limit=0", "cursor=x", "colour=red"] {
        let refused = get(one, "ops", &format!("/v1/audit?{query}")).await;
        refused.expect_problem("invalid-request");
    }
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(other, "ops", &format!("/v1/audit?limit=3{cursor}")).await;
        let page = page.expect_ok();
        paged.extend(each(&page, "/acts", "reason"));
        let Some(next) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, expected, "page after page, each once");

    let shown = get(other, "ops", "/v1/tools/act").await.expect_ok();
    assert_eq!(each(&shown, "/events", "event"), ["paused", "resumed"]);
    assert_eq!(each(&shown, "/events", "token"), ["ops", "ops"]);
    assert_eq!(shown.at("/paused"), false);
    act("/v1/tools/act/pause", why("R11")).await.expect_ok();
    let shown = get(other, "ops", "/v1/tools/act").await.expect_ok();
    assert_eq!(
        (shown.at("/paused"), shown.at("/reason")),
        (true.into(), "R11".into())
    );
    let nothing = get(one, "ops", "/v1/tools/none").await;
    nothing.expect_problem("unknown-tool");
}

async fn frozen_and_locked_sessions_are_found(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores
        .gateways(&with_tokens(&tool, "session = \"exclusive\"\n"))
        .await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let found = async |token: &str, query: &str| {
        let page = get(other, token, &format!("/v1/sessions?{query}")).await;
        each(&page.expect_ok(), "/sessions", "session_id")
    };
    let none = [""; 0];
    assert_eq!(found("ops", "frozen=true").await, none);
    assert_eq!(found("ops", "locked=true").await, none);
    let act = async |id: &str, tenant: &str, what: &str| {
        let path = format!("/v1/sessions/{id}/{what}?tenant={tenant}");
        post(one, "ops", &path, &json!({ "reason": "it hangs" })).await
    };
    for (id, tenant) in [("A", "shop"), ("S", "shop"), ("B", "bank"), ("C", "shop")] {
        act(id, tenant, "freeze").await.expect_ok();
    }
    act("A", "shop", "freeze")
        .await
        .expect_problem("wrong-state");
    act("C", "shop", "thaw").await.expect_ok();
    assert_eq!(found("ops", "frozen=true").await, ["B", "S", "A"]);
    assert_eq!(found("ops", "frozen=true&tenant=shop").await, ["S", "A"]);
    assert_eq!(found("shop-reads", "frozen=true").await, ["S", "A"]);
    assert_eq!(found("bank-reads", "frozen=true").await, ["B"]);
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/sessions?frozen=true&limit=1{cursor}");
        let page = get(other, "ops", &path).await.expect_ok();
        paged.extend(each(&page, "/sessions", "session_id"));
        let Some(next) = page.at("/next_cursor").as_str().map(str::to_owned) else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, ["B", "S", "A"], "page after page, each once");
    until("readiness warns", async || {
        other
            .get("/readyz")
            .await
            .at("/warnings")
            .to_string()
            .contains("an operator has frozen: 3")
    })
    .await;
    until("they are counted", async || {
        let metrics = get(other, "ops", "/metrics").await;
        metrics.text.contains("oncegate_frozen_sessions 3\n")
    })
    .await;

    // S is thawed, a call of it hangs, and S is frozen again.
    act("S", "shop", "thaw").await.expect_ok();
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let body = json!({ "args": {}, "idempotency_key": "k", "session_id": "S" });
    let request = one.client.post(one.url("/v1/tools/act/calls"));
    let request = request
        .bearer_auth("shop-a")
        .header("prefer", "respond-async");
    let running = Answer::to(request.body(body.to_string())).await;
    assert_eq!(running.status, 202, "{}", running.text);
    until("it runs", async || tool.requests() == 1).await;
    assert_eq!(found("ops", "locked=true").await, ["S"]);
    assert_eq!(found("shop-reads", "locked=true").await, ["S"]);
    assert_eq!(found("bank-reads", "locked=true").await, none);
    assert_eq!(found("ops", "frozen=true&locked=true").await, none);
    act("S", "shop", "freeze").await.expect_ok();
    assert_eq!(found("ops", "frozen=true&locked=true").await, ["S"]);
    let page = get(other, "shop-reads", "/v1/sessions?locked=true").await;
    assert_eq!(page.at("/sessions/0/lock/call_id"), running.id());
    assert_eq!(page.at("/sessions/0/frozen"), true);
    act("S", "shop", "unlock").await.expect_ok();
    assert_eq!(found("ops", "locked=true").await, none);
    drop(hold);
    for (id, tenant) in [("A", "shop"), ("S", "shop"), ("B", "bank")] {
        act(id, tenant, "thaw").await.expect_ok();
    }
    assert_eq!(found("ops", "frozen=true").await, none);
    until("readiness warns no more", async || {
        !other
            .get("/readyz")
            .await
            .text
            .contains("operator has frozen")
    })
    .await;

    for query in [
        "",
        "frozen=false",
        "frozen=true&limit=0",
        "locked=true&cursor=x",
        "frozen=true&colour=red",
    ] {
        let refused = get(one, "ops", &format!("/v1/sessions?{query}")).await;
        refused.expect_problem("invalid-request");
    }
    for (token, query) in [("shop-a", ""), ("shop-reads", "&tenant=bank")] {
        let refused = get(one, token, &format!("/v1/sessions?frozen=true{query}")).await;
        refused.expect_problem("forbidden");
    }
}
