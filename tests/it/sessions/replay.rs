//! An operator asks whether a stored result is still what the tool answers.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores! {
    a_fresh_result_of_a_tool_is_compared_with_the_stored_one,
    two_verifications_at_once_are_not_both_sent,
}

async fn replay(gateway: &Gateway, call: &Answer, mode: &str) -> Answer {
    let path = format!("/v1/calls/{}/replay", call.id());
    gateway.post_to(&path, &json!({ "mode": mode })).await
}

async fn two_verifications_at_once_are_not_both_sent(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "dedup = \"key\"")).await;
    let call = gateway.act("k", json!({ "args": {} })).await.expect_ok();
    let mut refused = 0;
    for _ in 0..50 {
        let at_once: Vec<_> = (0..8).map(|_| replay(&gateway, &call, "verify")).collect();
        for answer in futures_util::future::join_all(at_once).await {
            if answer.status == 200 {
                continue;
            }
            refused += 1;
            let answer = answer.expect_problem("call-in-progress");
            let told = (
                answer.at("/effect"),
                answer.at("/key_action"),
                answer.at("/retry_after_ms"),
            );
            assert_eq!(told, ("none".into(), "reuse".into(), 1_000.into()));
        }
        if refused > 0 {
            return;
        }
    }
    panic!("none was in the way of another");
}

async fn a_fresh_result_of_a_tool_is_compared_with_the_stored_one(stores: &Stores) {
    let tool = Tool::start().await;
    let said = "{\"order\":{\"id\":7,\"at\":\"noon\"},\"total\":1.0}";
    tool.always(Act::Ok(said));
    let rules = "dedup = \"key\"\nreplay = { ignore = [\"/order/at\"] }";
    let gateway = stores.gateway(&one_tool(&tool, rules)).await;
    let call = gateway
        .act("k", json!({ "args": { "n": 1 } }))
        .await
        .expect_ok();

    let stored = replay(&gateway, &call, "stored").await.expect_ok();
    assert_eq!(
        (stored.at("/stable"), stored.at("/fresh")),
        (true.into(), Value::Null)
    );
    assert!(stored.text.contains(said), "byte for byte: {}", stored.text);
    assert_eq!(tool.requests(), 1, "nothing is sent");

    tool.always(Act::Ok(
        "{\"total\":1.0, \"order\":{\"id\":7,\"at\":\"night\"}}",
    ));
    let same = replay(&gateway, &call, "verify").await.expect_ok();
    assert_eq!(
        (same.at("/stable"), same.at("/differences")),
        (true.into(), json!([]))
    );
    assert_eq!(same.at("/fresh/order/at"), "night");
    let seen = tool.seen();
    let key = |n: usize| {
        (
            seen[n].header("idempotency-key").to_owned(),
            seen[n].body.clone(),
        )
    };
    assert_eq!(
        (tool.requests(), key(1)),
        (2, key(0)),
        "the same request once more"
    );

    tool.always(Act::Ok(
        "{\"order\":{\"id\":8,\"at\":\"noon\"},\"total\":1.0,\"fee\":2}",
    ));
    let differs = replay(&gateway, &call, "verify").await.expect_ok();
    assert_eq!(
        (differs.at("/stable"), differs.at("/differences")),
        (false.into(), json!(["/fee", "/order/id"]))
    );
    let duplicate = gateway
        .act("k", json!({ "args": { "n": 1 } }))
        .await
        .expect_ok();
    assert_eq!(
        duplicate.result(),
        said,
        "what was answered stays the result"
    );

    tool.always(Act::Drop);
    let unclear = replay(&gateway, &call, "verify")
        .await
        .expect_problem("wrong-state");
    assert!(
        unclear
            .at("/detail")
            .to_string()
            .contains("nothing to compare"),
        "{}",
        unclear.text
    );
    let record = gateway.record(&call).await;
    let events = record.at("/events");
    let events: Vec<&str> = events
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| event["event"].as_str().expect("a word"))
        .collect();
    assert_eq!(events[2..], ["verifying", "verified"].repeat(3));
    assert_eq!(
        (record.at("/state"), record.at("/events/2/by")),
        ("succeeded".into(), "token open".into())
    );
}

#[tokio::test]
async fn a_call_that_may_have_an_effect_is_not_sent_for_a_comparison() {
    let tool = Tool::start().await;
    let times = "timeout = \"200ms\"\ndeadline = \"600ms\"\n";
    let read = format!(
        "[tools.look]\nurl = \"{}\"\neffect = \"read\"\n",
        tool.url()
    );
    let brief = format!(
        "[tools.brief]\nurl = \"{}\"\n{times}dedup = \"key\"\nrecheck = {{ base = \"100ms\", max = \"100ms\", give_up_after = \"3s\" }}\n",
        tool.url()
    );
    let gateway = Gateway::start(&format!("{}{read}{brief}", one_tool(&tool, times))).await;
    let post = async |name: &str| {
        let body = json!({ "args": {}, "idempotency_key": name });
        gateway.post(name, &body, &[]).await
    };
    let plain = post("act").await.expect_ok();
    let unsafe_ = replay(&gateway, &plain, "verify")
        .await
        .expect_problem("replay-unsafe");
    assert_eq!(
        (unsafe_.status, unsafe_.at("/effect")),
        (409, "none".into())
    );
    replay(&gateway, &plain, "stored").await.expect_ok();

    let looked = post("look").await.expect_ok();
    replay(&gateway, &looked, "verify").await.expect_ok();

    let brief = post("brief").await.expect_ok();
    replay(&gateway, &brief, "verify").await.expect_ok();
    crate::support::until("the tool may have forgotten the key", async || {
        replay(&gateway, &brief, "verify").await.problem() == "replay-unsafe"
    })
    .await;

    tool.then(Act::ExecuteThenDrop);
    let unknown = gateway
        .act("other", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let requests = tool.requests();
    for mode in ["stored", "verify"] {
        replay(&gateway, &unknown, mode)
            .await
            .expect_problem("wrong-state");
    }
    replay(&gateway, &plain, "again")
        .await
        .expect_problem("invalid-request");
    assert_eq!(tool.requests(), requests);
}

#[tokio::test]
async fn a_result_that_an_operator_gave_is_not_verified_with_a_tool_that_may_not_know_the_key() {
    let tool = Tool::start().await;
    tool.deduplicate().then(Act::Drop);
    let gateway = Gateway::with_tool(&tool, "dedup = \"key\"\nretry = { attempts = 1 }").await;
    let unknown = gateway
        .act("k", json!({}))
        .await
        .expect_problem("outcome-unknown");
    let body = json!({ "as": "succeeded", "result": null, "reason": "done by hand" });
    gateway.resolve(&unknown, &body).await.expect_ok();
    replay(&gateway, &unknown, "verify")
        .await
        .expect_problem("replay-unsafe");
    assert_eq!(
        (tool.requests(), tool.effects()),
        (1, 0),
        "it would have been the first effect"
    );
    // Nothing of a frozen session is sent.
    let done = gateway.act("other", json!({})).await.expect_ok();
    gateway.person("freeze").await.expect_ok();
    replay(&gateway, &done, "verify")
        .await
        .expect_problem("session-frozen");
    assert_eq!(tool.requests(), 2);
}

#[tokio::test]
async fn a_fresh_result_of_a_server_is_compared_with_the_stored_one() {
    for upstream in [Upstream::modern().await, Upstream::legacy().await] {
        upstream.then(Does::Json(result("then")));
        let rules = "dedup = \"key\"\nreplay = { ignore = [\"/content\"] }";
        let gateway = Gateway::start(&upstream.config(rules)).await;
        let call = gateway.act("k", json!({ "args": {} })).await.expect_ok();
        for (says, differs) in [
            (Does::Stream(result("then")), json!([])),
            (
                Does::Json(result("now")),
                json!(["/structuredContent/said"]),
            ),
        ] {
            upstream.then(says);
            let compared = replay(&gateway, &call, "verify").await.expect_ok();
            assert_eq!(compared.at("/differences"), differs, "{}", compared.text);
        }
        // An error is not a result, so nothing is compared.
        upstream.then(Does::ExecuteThenError(-32_603));
        let unclear = replay(&gateway, &call, "verify").await;
        unclear.expect_problem("wrong-state");
        let again = gateway.act("k", json!({ "args": {} })).await.expect_ok();
        assert_eq!(again.result(), call.result(), "the stored result stays");
        gateway.stop().await;
    }
    let upstream = Upstream::modern().await;
    let gateway = Gateway::start(&upstream.config("")).await;
    let call = gateway.act("k", json!({ "args": {} })).await.expect_ok();
    let unsafe_one = replay(&gateway, &call, "verify").await;
    unsafe_one.expect_problem("replay-unsafe");
    assert_eq!(upstream.effects(), 1);
    gateway.stop().await;
}
