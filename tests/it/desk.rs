//! The doors that a person needs at 3 a.m.: who asked, on both stores and on a cluster.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores! {
    a_call_names_the_token_that_made_it_and_is_found_by_it,
}

mod redis_cluster {
    use crate::support::redis::Cluster;
    use crate::support::stores::Stores;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_door_of_the_desk() {
        let cluster = Cluster::start().await;
        let stores = Stores::Redis(cluster.url());
        super::a_call_names_the_token_that_made_it_and_is_found_by_it(&stores).await;
    }
}

/// The names of tokens, which are their secrets too, with tenants and scopes.
const TOKENS: [(&str, &str, &str); 5] = [
    ("shop-a", "shop", "\"call\""),
    ("shop-b", "shop", "\"call\""),
    ("shop-reads", "shop", "\"read\""),
    ("bank-reads", "bank", "\"call\", \"read\""),
    ("ops", "ops", "\"admin\""),
];

/// A configuration with these tokens.
fn with_tokens(tool: &Tool, more: &str) -> String {
    let tokens = TOKENS.map(|(name, tenant, scopes)| {
        let digest = hex::encode(Sha256::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    });
    format!("{}{}", one_tool(tool, more), tokens.concat())
}

async fn get(gateway: &Gateway, token: &str, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth(token);
    Answer::to(request).await
}

async fn post(gateway: &Gateway, token: &str, path: &str, body: &Value) -> Answer {
    let request = gateway.client.post(gateway.url(path)).bearer_auth(token);
    Answer::to(request.body(body.to_string())).await
}

async fn call(gateway: &Gateway, token: &str, key: &str) -> Answer {
    let body = json!({ "args": {}, "idempotency_key": key, "session_id": "S" });
    post(gateway, token, "/v1/tools/act/calls", &body).await
}

/// A member of each item of a list.
fn each(page: &Answer, list: &str, member: &str) -> Vec<String> {
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
        "not what it repeated"
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
