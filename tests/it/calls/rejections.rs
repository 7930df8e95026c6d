//! What a tool's refusal proves: by default its word is taken; with `outcomes = "strict"` it is not.

use serde_json::json;

use crate::proxies::requests::{api as proxy, post};
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream};
use crate::support::{Act, Gateway, Tool};

on_both_stores!(
    with_strict_outcomes_no_refusal_lets_a_call_run_again,
    what_may_come_after_an_effect_is_not_repeated_by_the_gateway,
);

const CALM: &str = "retry = { attempts = 3, base = \"1ms\" }\nbreaker = { failures = 1000 }";

/// Statuses that a tool may give after its effect.
const REFUSALS: [u16; 16] = [
    303, 307, 400, 401, 402, 403, 404, 409, 412, 422, 425, 428, 429, 451, 501, 505,
];

async fn with_strict_outcomes_no_refusal_lets_a_call_run_again(stores: &Stores) {
    let tool = Tool::start().await;
    for (config, listed) in [
        (
            one_tool(&tool, &format!("outcomes = \"strict\"\n{CALM}")),
            false,
        ),
        (
            format!("outcomes = \"strict\"\n{}", one_tool(&tool, CALM)),
            false,
        ),
        (
            one_tool(
                &tool,
                &format!(
                    "outcomes = {{ others = \"strict\", 422 = \"rejected\", 429 = \"not_executed\" }}\n{CALM}"
                ),
            ),
            true,
        ),
    ] {
        let store_key = tool.requests();
        let gateway = stores.gateway(&config).await;
        for status in REFUSALS {
            if listed && matches!(status, 422 | 429) {
                continue;
            }
            let before = tool.requests();
            tool.then(Act::ExecuteThenAnswer(status));
            for _ in 0..2 {
                let said = gateway
                    .call_with_key(&format!("{store_key}k{status}"), json!({}))
                    .await;
                let said = said.expect_problem("outcome-unknown");
                assert_eq!(said.at("/effect"), "unknown");
            }
            assert_eq!(tool.requests() - before, 1, "{status}");
        }
        gateway
            .call_with_key(&format!("{store_key}ok"), json!({}))
            .await
            .expect_ok();
        if listed {
            tool.then(Act::Answer(422, "", b"{\"why\":\"sku\"}"));
            let said = gateway.call_with_key("l", json!({})).await;
            assert_eq!(
                said.expect_problem("tool-rejected").at("/tool_body/why"),
                "sku"
            );
            tool.then(Act::Answer(429, "", b"{}"));
            gateway.call_with_key("m", json!({})).await.expect_ok();
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn one_tool_may_keep_the_table_and_a_read_always_does() {
    let tool = Tool::start().await;
    let config = format!(
        "outcomes = \"strict\"\n{}[tools.look]\nurl = \"{}\"\neffect = \"read\"\n",
        one_tool(&tool, "outcomes = \"usual\""),
        tool.url()
    );
    let gateway = Gateway::start(&config).await;
    tool.then(Act::Answer(404, "", b"{}"));
    gateway
        .call(json!({}))
        .await
        .expect_problem("tool-rejected");
    tool.then(Act::Answer(404, "", b"{\"no\":1}"));
    let said = gateway.post("look", &json!({ "args": {} }), &[]).await;
    assert_eq!(said.expect_problem("tool-rejected").at("/tool_body/no"), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn strict_outcomes_hold_for_proxies_and_may_differ_by_rule() {
    let tool = Tool::start().await;
    let rule = "[[proxies.api.rules]]\npath = \"/v1/charges\"\nas = \"write\"\noutcomes = { others = \"strict\", 402 = \"rejected\" }";
    for (config, status, is_unknown) in [
        (proxy(&tool, "outcomes = \"strict\""), 409, true),
        (
            format!("outcomes = \"strict\"\n{}", proxy(&tool, "")),
            409,
            true,
        ),
        (
            format!(
                "outcomes = \"strict\"\n{}",
                proxy(&tool, "outcomes = \"usual\"")
            ),
            409,
            false,
        ),
        (proxy(&tool, rule), 409, true),
        (proxy(&tool, rule), 402, false),
    ] {
        let gateway = Gateway::start(&config).await;
        let before = tool.requests();
        tool.then(Act::ExecuteThenAnswer(status));
        let first = post(&gateway, "k", "{}").await;
        assert_eq!(
            first.problem() == "outcome-unknown",
            is_unknown,
            "{config} {}",
            first.text
        );
        if is_unknown {
            post(&gateway, "k", "{}")
                .await
                .expect_problem("outcome-unknown");
            assert_eq!(tool.requests() - before, 1);
        } else {
            assert_eq!(first.status, status);
        }
        gateway.stop().await;
    }
}

#[tokio::test]
async fn strict_outcomes_of_an_upstream_take_no_refusal_for_proof() {
    for (place, is_unknown) in [("", false), ("root", true), ("upstream", true)] {
        let upstream = Upstream::modern().await;
        let strict = "outcomes = \"strict\"\n";
        let config = upstream.config(CALM);
        let config = match place {
            "root" => format!("{strict}{config}"),
            "upstream" => config.replace("[upstreams.up]\n", &format!("[upstreams.up]\n{strict}")),
            _ => config,
        };
        let gateway = Gateway::start(&config).await;
        for (status, code) in [(403, -32_000), (401, -32_001)] {
            upstream.then(Does::Nameless(status, code));
            let body = json!({ "args": { "n": status } });
            let said = gateway.post("act", &body, &[]).await;
            assert_eq!(
                said.problem() == "outcome-unknown",
                is_unknown,
                "{place} {status} {}",
                said.text
            );
        }
        gateway.stop().await;
    }
}

async fn what_may_come_after_an_effect_is_not_repeated_by_the_gateway(stores: &Stores) {
    for status in [425, 429] {
        for (more, requests) in [
            ("", 1),
            ("dedup = \"key\"\ndedup_window = \"24h\"", 2),
            ("effect = \"read\"", 2),
            (
                "outcomes = { 425 = \"not_executed\", 429 = \"not_executed\" }",
                2,
            ),
            ("outcomes = { 503 = \"not_executed\" }", 1),
        ] {
            let tool = Tool::start().await;
            tool.then(Act::ExecuteThenAnswer(status));
            let gateway = stores
                .gateway(&one_tool(&tool, &format!("{CALM}\n{more}")))
                .await;
            let args = json!({ "status": status, "more": more });
            let said = gateway.call(args).await;
            assert_eq!(tool.requests(), requests, "{status} {more}");
            if requests == 1 {
                let said = said.expect_problem("tool-unavailable");
                assert_eq!(said.at("/tool_status"), status);
            } else {
                said.expect_ok();
            }
            gateway.stop().await;
        }
    }
}

#[tokio::test]
async fn a_compensation_that_may_have_taken_effect_is_not_sent_again_by_its_saga() {
    let tool = Tool::start().await;
    let url = tool.url();
    let config = format!(
        "[tools.act]\nurl = \"{url}\"\n{CALM}\ncompensation = {{ tool = \"undo\", args = {{ id = \"/call/call_id\" }} }}\n[tools.undo]\nurl = \"{url}\"\n{CALM}\n[sagas.retry]\nbase = \"10ms\"\nmax = \"20ms\"\n"
    );
    let gateway = Gateway::start(&config).await;
    let body = json!({ "args": {}, "saga_id": "s" });
    gateway.post("act", &body, &[]).await.expect_ok();
    tool.then(Act::ExecuteThenAnswer(429));
    let reason = json!({ "reason": "a test" });
    gateway.post_to("/v1/sagas/s/abort", &reason).await;
    crate::support::until("an operator is needed", async || {
        gateway.get("/v1/sagas/s").await.at("/state") == "stuck"
    })
    .await;
    assert_eq!(tool.effects(), 2, "the call, and one compensation");
    gateway.stop().await;
}

#[tokio::test]
async fn a_rejection_is_told_as_what_the_tool_says() {
    let tool = Tool::start().await;
    tool.always(Act::Answer(
        402,
        "",
        b"{\"error\":\"order made, card declined\"}",
    ));
    let gateway = Gateway::with_tool(&tool, "").await;
    let said = gateway
        .call(json!({}))
        .await
        .expect_problem("tool-rejected");
    let detail = said.at("/detail").as_str().expect("a text").to_owned();
    assert!(
        detail.starts_with("The tool says that it rejected the call (status 402)"),
        "{detail}"
    );
    assert_eq!(said.at("/tool_body/error"), "order made, card declined");
    let said = gateway.mcp_call(json!({ "n": 1 })).await;
    let told = said.told();
    assert!(
        told.starts_with("The tool says that it rejected the call (status 402)"),
        "{told}"
    );
    assert!(said.text.contains("card declined"), "{}", said.text);
    for text in [&detail, &told] {
        assert!(!text.to_lowercase().contains("nothing was"), "{text}");
    }
    gateway.stop().await;
}
