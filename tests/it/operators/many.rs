//! Acts of operators on many calls or sagas at once. Over both stores; a Redis has two gateways.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores! {
    a_dry_run_changes_nothing_and_the_act_does_what_was_confirmed,
    an_act_on_other_targets_than_confirmed_is_refused_as_a_whole,
    a_call_that_may_still_run_is_not_settled_as_failed,
    only_administrators_act_on_many,
    a_list_or_an_object_in_the_place_of_another_is_refused,
    an_act_on_too_many_is_refused_before_anything_is_done,
    stuck_sagas_are_retried_or_skipped_together,
}

/// The names of tokens, with tenants and scopes. Each name is also the token's secret.
const TOKENS: [(&str, &str, &str); 5] = [
    ("shop-a", "shop", "\"call\""),
    ("shop-reads", "shop", "\"call\", \"read\""),
    ("bank-a", "bank", "\"call\""),
    ("bank-reads", "bank", "\"read\""),
    ("ops", "ops", "\"admin\""),
];

fn tokens() -> String {
    let tokens = TOKENS.map(|(name, tenant, scopes)| {
        let digest = hex::encode(Sha256::digest(name));
        format!("[[auth.tokens]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [{scopes}]\n")
    });
    tokens.concat()
}

pub fn with_tokens(tool: &Tool, more: &str) -> String {
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";
    format!("{}{}", one_tool(tool, &format!("{rules}{more}")), tokens())
}

/// The setting of a probe that asks the tool itself.
pub fn probe_of(tool: &Tool) -> String {
    let url = format!("http://127.0.0.1:{}/by-key/{{key}}", tool.port);
    format!("probe = {{ url = \"{url}\" }}\n")
}

pub async fn get(gateway: &Gateway, path: &str) -> Answer {
    let request = gateway.client.get(gateway.url(path)).bearer_auth("ops");
    Answer::to(request).await.expect_ok()
}

pub async fn act(gateway: &Gateway, path: &str, body: &Value) -> Answer {
    gateway.post_as("ops", path, body).await
}

/// An act with the confirmation that a dry run has answered.
pub fn confirmed(body: &Value, dry: &Answer) -> Value {
    let mut body = body.clone();
    body["confirm"] = json!({ "count": dry.at("/count"), "digest": dry.at("/digest") });
    body
}

/// The lines of an act, and its totals.
pub fn lines(answer: &Answer) -> (Vec<Value>, Value) {
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let lines = answer.text.lines();
    let mut lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let totals = lines.pop().expect("a last line");
    (lines, totals)
}

/// Makes a call whose outcome is unknown. Returns its id.
pub async fn unknown(gateway: &Gateway, token: &str, tool: &str, key: &str) -> String {
    let body = json!({ "args": {}, "idempotency_key": key });
    let path = format!("/v1/tools/{tool}/calls");
    let call = gateway.post_as(token, &path, &body).await;
    call.expect_problem("outcome-unknown").id()
}

pub async fn record(gateway: &Gateway, id: &str) -> Answer {
    get(gateway, &format!("/v1/calls/{id}")).await
}

pub async fn state(gateway: &Gateway, id: &str) -> String {
    let record = record(gateway, id).await;
    record.at("/state").as_str().expect("a word").to_owned()
}

pub fn succeeded(filter: Value) -> Value {
    json!({ "filter": filter, "as": "succeeded", "result": { "by": "hand" }, "reason": "it is in the books" })
}

async fn a_dry_run_changes_nothing_and_the_act_does_what_was_confirmed(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateways = stores.gateways(&with_tokens(&tool, "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let mut shops = Vec::new();
    for n in 0..12 {
        shops.push(unknown(one, "shop-a", "act", &format!("k{n}")).await);
    }
    let banks = unknown(one, "bank-a", "act", "k0").await;
    let body = succeeded(json!({ "tenant": "shop", "tool": "act" }));
    let before = get(one, "/v1/calls?limit=500").await.text;
    let dry = act(other, "/v1/calls/resolve", &body).await.expect_ok();
    assert_eq!(dry.header("content-type"), "application/json");
    let sample = dry.at("/sample");
    let sample = sample.as_array().expect("a list");
    assert_eq!((dry.at("/count"), sample.len()), (12.into(), 10));
    assert_eq!(sample[0]["call_id"], shops[11], "the newest first");
    assert_eq!(
        (dry.at("/refused"), dry.at("/unreadable")),
        (0.into(), 0.into())
    );
    assert_eq!(get(one, "/v1/calls?limit=500").await.text, before);
    let acts = get(one, "/v1/audit").await;
    assert_eq!(acts.at("/acts"), json!([]), "looking is not an act");
    let again = act(one, "/v1/calls/resolve", &body).await.expect_ok();
    assert_eq!(
        again.at("/digest"),
        dry.at("/digest"),
        "at any gateway the same"
    );

    let done = act(one, "/v1/calls/resolve", &confirmed(&body, &dry)).await;
    let (lines, totals) = lines(&done.expect_ok());
    let expected = json!({ "total": 12, "done": 12, "changed": 0, "refused": 0, "unclear": 0, "left": 0,
                           "states": { "succeeded": 12 } });
    assert_eq!(totals, expected);
    let mut named: Vec<&str> = lines
        .iter()
        .map(|line| line["call_id"].as_str().expect("an id"))
        .collect();
    named.sort_unstable();
    assert_eq!(named, shops, "each once");
    let line = json!({ "call_id": named[0], "tenant": "shop", "tool": "act", "result": "done",
                       "state": "succeeded", "why": null });
    assert!(lines.contains(&line), "{lines:?}");
    for id in &shops {
        let record = record(other, id).await;
        let last = record.at("/events/2");
        assert_eq!(
            (last["event"].as_str(), &last["token"]),
            (Some("resolved"), &json!("ops"))
        );
        let told = last["detail"].as_str().expect("a text");
        assert!(told.contains("it is in the books"), "{told}");
    }
    assert_eq!(state(other, &banks).await, "unknown", "another tenant's");
    let body = json!({ "args": {}, "idempotency_key": "k3" });
    let replay = other.post_as("shop-a", "/v1/tools/act/calls", &body).await;
    assert_eq!(replay.expect_ok().result(), "{\"by\":\"hand\"}");
    assert_eq!(tool.requests(), 13, "nothing was sent again");

    let acts = get(other, "/v1/audit").await;
    let target = json!({ "kind": "calls", "id": null, "tenant": "shop", "tool": null,
                         "filter": { "tenant": "shop", "tool": "act" }, "count": 12 });
    assert_eq!(acts.at("/acts").as_array().expect("a list").len(), 1);
    assert_eq!(acts.at("/acts/0/target"), target);
    assert_eq!(
        (acts.at("/acts/0/act"), acts.at("/acts/0/outcome")),
        ("resolve".into(), "done".into())
    );
    let seen = other.client.get(other.url("/v1/audit"));
    let seen = Answer::to(seen.bearer_auth("shop-reads")).await;
    assert_eq!(seen.at("/acts/0/target"), target);
}

async fn an_act_on_other_targets_than_confirmed_is_refused_as_a_whole(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateways = stores.gateways(&with_tokens(&tool, "")).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        ids.push(unknown(one, "shop-a", "act", key).await);
    }
    let body = succeeded(json!({ "tool": "act" }));
    let path = "/v1/calls/resolve";
    let dry = act(one, path, &body).await.expect_ok();
    let refused = async |body: &Value, why: &str| {
        let refused = act(other, path, body).await.expect_problem("not-confirmed");
        assert_eq!(
            (refused.status, refused.at("/effect")),
            (409, "none".into())
        );
        assert!(refused.text.contains(why), "{}", refused.text);
    };
    // Another result or another decision is another act, which needs a dry run of its own.
    let mut others = body.clone();
    others["result"] = json!({ "by": "mistake" });
    refused(
        &confirmed(&others, &dry),
        "a different action was confirmed",
    )
    .await;
    let failed = json!({ "filter": { "tool": "act" }, "as": "failed", "reason": "never came" });
    refused(
        &confirmed(&failed, &dry),
        "a different action was confirmed",
    )
    .await;
    let mut counted = confirmed(&body, &dry);
    counted["confirm"]["count"] = 2.into();
    refused(&counted, "2 were confirmed, and now the filter finds 3").await;
    let mut invented = confirmed(&body, &dry);
    invented["confirm"]["digest"] = "yes".into();
    refused(&invented, "no dry run has returned this digest").await;
    // After one call more and one call less the filter finds as many calls as before, but not the same.
    let fourth = unknown(one, "shop-a", "act", "d").await;
    refused(
        &confirmed(&body, &dry),
        "3 were confirmed, and now the filter finds 4",
    )
    .await;
    let by_hand = json!({ "as": "succeeded", "result": 1, "reason": "one by one" });
    let single = format!("/v1/calls/{}/resolve", ids[0]);
    act(one, &single, &by_hand).await.expect_ok();
    refused(
        &confirmed(&body, &dry),
        "now the filter finds 3, not all of them the same",
    )
    .await;
    for id in [&ids[1], &ids[2], &fourth] {
        assert_eq!(state(other, id).await, "unknown");
    }
    let acts = get(one, "/v1/audit?act=resolve").await.at("/acts");
    let outcomes = acts.as_array().expect("a list").iter();
    let outcomes: Vec<_> = outcomes.map(|act| act["outcome"].as_str()).collect();
    assert_eq!(
        outcomes
            .iter()
            .filter(|one| **one == Some("refused"))
            .count(),
        6
    );

    let dry = act(one, path, &body).await.expect_ok();
    let done = act(other, path, &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["done"], 3);
    refused(
        &confirmed(&body, &dry),
        "3 were confirmed, and now the filter finds 0",
    )
    .await;
    // An act on no calls is allowed.
    let dry = act(one, path, &body).await.expect_ok();
    let done = act(other, path, &confirmed(&body, &dry)).await;
    assert_eq!(
        lines(&done),
        (
            vec![],
            json!({ "total": 0, "done": 0, "changed": 0, "refused": 0,
        "unclear": 0, "left": 0, "states": {} })
        )
    );

    for wrong in [
        json!({ "filter": { "state": "succeeded" }, "as": "failed", "reason": "r" }),
        json!({ "filter": { "colour": "red" }, "as": "failed", "reason": "r" }),
        json!({ "filter": { "since": "yesterday" }, "as": "failed", "reason": "r" }),
        json!({ "filter": {}, "as": "failed", "result": 1, "reason": "r" }),
        json!({ "filter": {}, "as": "succeeded", "reason": "r" }),
        json!({ "filter": {}, "as": "failed", "reason": " " }),
        json!({ "as": "failed", "reason": "r" }),
    ] {
        act(one, path, &wrong)
            .await
            .expect_problem("invalid-request");
    }
}

async fn a_call_that_may_still_run_is_not_settled_as_failed(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let rules = "timeout = \"3s\"\ndeadline = \"3s\"\n";
    let gateway = stores.gateway(&with_tokens(&tool, rules)).await;
    let id = unknown(&gateway, "shop-a", "act", "k").await;
    let body = json!({ "filter": {}, "as": "failed", "reason": "it is not in the books" });
    let path = "/v1/calls/resolve";
    let dry = act(&gateway, path, &body).await.expect_ok();
    assert_eq!((dry.at("/count"), dry.at("/refused")), (1.into(), 1.into()));
    let (all, totals) = lines(&act(&gateway, path, &confirmed(&body, &dry)).await);
    assert_eq!(
        (&totals["refused"], &totals["done"]),
        (&1.into(), &0.into())
    );
    let why = all[0]["why"].as_str().expect("a sentence");
    assert!(why.contains("may still be executed"), "{why}");
    assert_eq!(state(&gateway, &id).await, "unknown");
    until("its lease is over", async || {
        let dry = act(&gateway, path, &body).await.expect_ok();
        dry.at("/refused") == 0
    })
    .await;
    let done = act(&gateway, path, &confirmed(&body, &dry)).await;
    assert_eq!(
        lines(&done).1["states"],
        json!({ "failed": 1 }),
        "the confirmation still holds"
    );
}

async fn a_list_or_an_object_in_the_place_of_another_is_refused(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&with_tokens(&tool, "")).await;
    let good = json!({ "filter": { "tenant": "shop" }, "as": "failed", "reason": "it is not in the books" });
    act(&gateway, "/v1/calls/resolve", &good).await.expect_ok();
    let wrong = [
        ("filter", json!(["shop"])),
        ("filter", json!(null)),
        ("confirm", json!([0, "0"])),
        ("as", json!({ "failed": null })),
    ];
    for (member, value) in wrong {
        let mut body = good.clone();
        body[member] = value;
        let answer = act(&gateway, "/v1/calls/resolve", &body).await;
        answer.expect_problem("invalid-request");
    }
    let whole = json!([{ "tenant": "shop" }, "failed", null, "it is not in the books"]);
    let answer = act(&gateway, "/v1/calls/resolve", &whole).await;
    let told = answer.expect_problem("invalid-request").text;
    assert!(told.contains("expected an object"), "{told}");
    let stuck = json!({ "filter": [null, null], "reason": "again" });
    let answer = act(&gateway, "/v1/sagas/retry", &stuck).await;
    answer.expect_problem("invalid-request");
}

async fn only_administrators_act_on_many(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&with_tokens(&tool, &probe_of(&tool))).await;
    let id = unknown(&gateway, "shop-a", "act", "k").await;
    let act_on = json!({ "filter": { "tenant": "shop" }, "reason": "r" });
    let alone = format!("/v1/calls/{id}/probe");
    for (path, body) in [
        ("/v1/calls/resolve", succeeded(json!({ "tenant": "shop" }))),
        ("/v1/calls/probe", act_on.clone()),
        ("/v1/sagas/retry", act_on.clone()),
        ("/v1/sagas/skip", act_on.clone()),
        (&alone, json!({ "reason": "r" })),
    ] {
        for token in ["shop-a", "shop-reads", "bank-reads"] {
            let refused = gateway.post_as(token, path, &body).await;
            refused.expect_problem("forbidden");
        }
        let refused = gateway.post_as("none", path, &body).await;
        refused.expect_problem("unauthenticated");
    }
    assert_eq!(
        (tool.requests(), state(&gateway, &id).await.as_str()),
        (1, "unknown")
    );
    assert_eq!(get(&gateway, "/v1/audit").await.at("/acts"), json!([]));
}

/// The bound is 50 targets in tests, and 10,000 otherwise.
async fn an_act_on_too_many_is_refused_before_anything_is_done(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&with_tokens(&tool, "")).await;
    for n in 0..51 {
        unknown(&gateway, "shop-a", "act", &format!("k{n}")).await;
    }
    let (path, body) = ("/v1/calls/resolve", succeeded(json!({})));
    let refused = act(&gateway, path, &body).await;
    let refused = refused.expect_problem("invalid-request");
    assert!(
        refused.text.contains("more than 50, which is the most"),
        "{}",
        refused.text
    );
    let mut blind = body.clone();
    blind["confirm"] = json!({ "count": 51, "digest": "1-2-3" });
    act(&gateway, path, &blind)
        .await
        .expect_problem("invalid-request");
    let left = get(&gateway, "/v1/calls?state=unknown&limit=500").await;
    assert_eq!(left.at("/calls").as_array().expect("a list").len(), 51);

    unknown(&gateway, "bank-a", "act", "k0").await;
    let body = succeeded(json!({ "tenant": "bank" }));
    let dry = act(&gateway, path, &body).await.expect_ok();
    let done = act(&gateway, path, &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["done"], 1);
    let body = succeeded(json!({ "key": "k7" }));
    let dry = act(&gateway, path, &body).await.expect_ok();
    assert_eq!(dry.at("/count"), 1);
    let done = act(&gateway, path, &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["done"], 1);
    let body = succeeded(json!({ "tenant": "shop" }));
    let dry = act(&gateway, path, &body).await.expect_ok();
    assert_eq!(dry.at("/count"), 50, "as many as there may be");
    let done = act(&gateway, path, &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["done"], 50);
}

async fn stuck_sagas_are_retried_or_skipped_together(stores: &Stores) {
    let tool = Tool::start().await;
    tool.choose(|seen, _| match seen.line.contains("/cancel") {
        true => Act::Answer(422, "", b"{}"),
        false => Act::Ok("{\"made\":7}"),
    });
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", tool.port);
    let config = format!(
        "[sagas]\nretry = {{ attempts = 1, base = \"10ms\", max = \"20ms\" }}\n\
         [tools.order]\nurl = \"{}\"\ncompensation = {{ tool = \"cancel\" }}\n\
         [tools.cancel]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\n{}",
        at("order"),
        at("cancel"),
        tokens()
    );
    let gateways = stores.gateways(&config).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let is = async |saga: &str, tenant: &str, state: &str| {
        until(&format!("{saga} is {state}"), async || {
            let path = format!("/v1/sagas/{saga}?tenant={tenant}");
            get(other, &path).await.at("/state") == state
        })
        .await;
    };
    let reason = json!({ "reason": "sold out" });
    // Sagas whose ids are the names of acts are acted on like any other.
    let sagas = [("G", "shop"), ("retry", "shop"), ("skip", "bank")];
    for (saga, tenant) in sagas {
        let body = json!({ "args": {}, "idempotency_key": saga, "saga_id": saga });
        let token = format!("{tenant}-a");
        one.post_as(&token, "/v1/tools/order/calls", &body)
            .await
            .expect_ok();
        let abort = format!("/v1/sagas/{saga}/abort?tenant={tenant}");
        act(one, &abort, &reason).await.expect_ok();
    }
    for (saga, tenant) in sagas {
        is(saga, tenant, "stuck").await;
    }
    let all = json!({ "filter": {}, "reason": "the shop cancels again" });
    let dry = act(other, "/v1/sagas/retry", &all).await.expect_ok();
    assert_eq!((dry.at("/count"), dry.at("/refused")), (3.into(), 0.into()));
    assert_eq!(dry.at("/sample/0/state"), "stuck");
    let skip = act(other, "/v1/sagas/skip", &confirmed(&all, &dry)).await;
    skip.expect_problem("not-confirmed");
    let failing = json!({ "filter": { "tenant": "bank", "state": "stuck" }, "reason": "to see" });
    let of_bank = act(other, "/v1/sagas/retry", &failing).await.expect_ok();
    let done = act(other, "/v1/sagas/retry", &confirmed(&failing, &of_bank)).await;
    assert_eq!(lines(&done).1["done"], 1);
    until("it has failed once more", async || {
        let events = get(one, "/v1/sagas/skip?tenant=bank").await.events();
        events.iter().filter(|event| *event == "stuck").count() == 2
    })
    .await;

    let bank = json!({ "filter": { "tenant": "bank" }, "reason": "cancelled by hand" });
    let dry = act(one, "/v1/sagas/skip", &bank).await.expect_ok();
    assert_eq!(dry.at("/count"), 1);
    let (all_lines, totals) = lines(&act(one, "/v1/sagas/skip", &confirmed(&bank, &dry)).await);
    assert_eq!(
        (&all_lines[0]["saga_id"], &all_lines[0]["result"]),
        (&json!("skip"), &json!("done"))
    );
    assert_eq!(totals["done"], 1);
    is("skip", "bank", "compensated").await;

    tool.choose(|_, _| Act::Ok("{\"made\":7}"));
    let dry = act(one, "/v1/sagas/retry", &all).await.expect_ok();
    assert_eq!(dry.at("/count"), 2, "not those of the bank");
    let done = act(other, "/v1/sagas/retry", &confirmed(&all, &dry)).await;
    assert_eq!(lines(&done).1["done"], 2, "{}", done.text);
    for saga in ["G", "retry"] {
        is(saga, "shop", "compensated").await;
    }
    let acts = get(one, "/v1/audit?act=retry").await.at("/acts");
    assert_eq!(
        (&acts[0]["target"]["kind"], &acts[0]["target"]["count"]),
        (&json!("sagas"), &json!(2))
    );
    for wrong in [
        json!({ "filter": { "state": "open" }, "reason": "r" }),
        json!({ "filter": { "tool": "order" }, "reason": "r" }),
        json!({ "filter": {} }),
    ] {
        let refused = act(one, "/v1/sagas/skip", &wrong).await;
        refused.expect_problem("invalid-request");
    }
}
