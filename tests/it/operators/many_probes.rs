//! An operator has tools asked about many unknown calls. Over both stores.

use serde_json::{Value, json};

use crate::operators::many::{
    act, confirmed, get, lines, probe_of, record, state, succeeded, unknown, with_tokens,
};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Tool, client, until};

on_both_stores! {
    a_check_that_proves_nothing_leaves_a_confirmation_as_it_is,
    tools_are_asked_about_calls_that_are_unknown_already_and_nothing_is_sent_again,
    an_act_goes_on_when_its_operator_hangs_up,
}

/// Each check writes to the call. If that voided the confirmation, no act would ever catch up with the checks.
async fn a_check_that_proves_nothing_leaves_a_confirmation_as_it_is(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop)
        .always(Act::Tell(404, "", b"{}"));
    let rules = format!(
        "unknown = \"probe\"\nrecheck = {{ base = \"100ms\", max = \"100ms\" }}\n{}",
        probe_of(&tool)
    );
    let gateways = stores.gateways(&with_tokens(&tool, &rules)).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let id = unknown(one, "shop-a", "act", "k").await;
    let body = succeeded(json!({}));
    let dry = act(one, "/v1/calls/resolve", &body).await.expect_ok();
    let asked = tool.requests();
    until("it is asked again and again", async || {
        tool.requests() > asked + 2
    })
    .await;
    let done = act(other, "/v1/calls/resolve", &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["done"], 1, "{}", done.text);
    assert_eq!(state(one, &id).await, "succeeded");
}

async fn tools_are_asked_about_calls_that_are_unknown_already_and_nothing_is_sent_again(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    // The tool knows the keys of the calls with an odd number.
    tool.choose(|seen, before| {
        let is_probe = seen.line.starts_with("GET");
        let key = seen.line.split("/by-key/").nth(1).unwrap_or_default();
        let key = key.split(' ').next().unwrap_or_default();
        let knows = before
            .iter()
            .any(|one| one.body.contains("odd") && one.header("idempotency-key") == key);
        match (is_probe, knows) {
            (false, _) => Act::ExecuteThenDrop,
            (true, true) => Act::Tell(200, "", b"{\"order\":7}"),
            (true, false) => Act::Tell(404, "", b"{}"),
        }
    });
    // Unknown calls are held, so no check is planned for them.
    let deaf = format!(
        "[tools.deaf]\nurl = \"{}\"\nretry = {{ attempts = 1 }}\n",
        tool.url()
    );
    let rules = format!("{}{deaf}", probe_of(&tool));
    let gateways = stores.gateways(&with_tokens(&tool, &rules)).await;
    let (one, other) = (&gateways[0], &gateways[gateways.len() - 1]);
    let mut ids = Vec::new();
    for n in 0..6 {
        let args = if n % 2 == 1 {
            json!({ "odd": n })
        } else {
            json!({})
        };
        let body = json!({ "args": args, "idempotency_key": format!("k{n}") });
        let call = one.post_as("shop-a", "/v1/tools/act/calls", &body).await;
        ids.push(call.expect_problem("outcome-unknown").id());
    }
    let deaf = unknown(one, "shop-a", "deaf", "k").await;
    assert_eq!(record(one, &ids[1]).await.at("/next_check_at"), Value::Null);
    let posted = || {
        let seen = tool.seen().into_iter();
        seen.filter(|seen| seen.line.starts_with("POST")).count()
    };
    let before = posted();

    // A single call.
    let reason = json!({ "reason": "a customer asks" });
    let path = format!("/v1/calls/{}/probe", ids[1]);
    let found = act(other, &path, &reason).await.expect_ok();
    assert_eq!(
        (found.at("/state"), found.at("/result")),
        ("succeeded".into(), json!({ "order": 7 }))
    );
    let events = record(one, &ids[1]).await;
    assert_eq!(events.events(), ["claimed", "ended", "probing", "probed"]);
    assert_eq!(events.at("/events/2/token"), "ops");
    assert!(
        events
            .at("/events/2/detail")
            .to_string()
            .contains("a customer asks")
    );
    act(other, &path, &reason)
        .await
        .expect_problem("wrong-state");
    let path = format!("/v1/calls/{deaf}/probe");
    let refused = act(other, &path, &reason)
        .await
        .expect_problem("wrong-state");
    assert!(refused.text.contains("no probe"), "{}", refused.text);

    // All calls at once.
    let body = json!({ "filter": {}, "reason": "the shop is back" });
    let dry = act(one, "/v1/calls/probe", &body).await.expect_ok();
    assert_eq!((dry.at("/count"), dry.at("/refused")), (6.into(), 1.into()));
    let resolve = succeeded(json!({}));
    act(one, "/v1/calls/resolve", &confirmed(&resolve, &dry))
        .await
        .expect_problem("not-confirmed");
    let done = act(other, "/v1/calls/probe", &confirmed(&body, &dry)).await;
    let (all, totals) = lines(&done.expect_ok());
    let expected = json!({ "total": 6, "done": 5, "changed": 0, "refused": 1, "unclear": 0, "left": 0,
                           "states": { "succeeded": 2, "unknown": 3 } });
    assert_eq!(totals, expected);
    let of = |id: &str| {
        all.iter()
            .find(|line| line["call_id"] == id)
            .expect("a line")
    };
    assert_eq!(of(&deaf)["result"], "refused");
    let why = of(&ids[0])["why"].as_str().expect("a sentence");
    assert!(
        why.contains("does not know the key, which proves nothing"),
        "{why}"
    );
    for (n, id) in ids.iter().enumerate() {
        let expected = if n % 2 == 1 { "succeeded" } else { "unknown" };
        assert_eq!(state(one, id).await, expected, "{n}");
    }
    assert_eq!(posted(), before, "asking sends no call");
    // The tool can be asked again about calls that are still unknown.
    let dry = act(one, "/v1/calls/probe", &body).await.expect_ok();
    let done = act(one, "/v1/calls/probe", &confirmed(&body, &dry)).await;
    assert_eq!(lines(&done).1["states"], json!({ "unknown": 3 }));
    let acts = get(one, "/v1/audit?act=probe").await.at("/acts");
    assert_eq!(acts.as_array().expect("a list").len(), 5);
}

async fn an_act_goes_on_when_its_operator_hangs_up(stores: &Stores) {
    let tool = Tool::start().await;
    for _ in 0..20 {
        tool.then(Act::ExecuteThenDrop);
    }
    let gateway = stores.gateway(&with_tokens(&tool, &probe_of(&tool))).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(unknown(&gateway, "shop-a", "act", &format!("k{n}")).await);
    }
    let (hold, held) = Act::held(Act::Tell(200, "", b"{}"));
    tool.always(held);
    let body = json!({ "filter": {}, "reason": "the shop is back" });
    let dry = act(&gateway, "/v1/calls/probe", &body).await.expect_ok();
    let other = client();
    let request = other
        .post(gateway.url("/v1/calls/probe"))
        .bearer_auth("ops");
    let request = request.body(confirmed(&body, &dry).to_string());
    let answer = request.send().await.expect("a head");
    assert_eq!(answer.status(), 200);
    until("the tool is asked", async || tool.requests() > 20).await;
    drop((answer, other));
    drop(hold);
    tool.always(Act::Tell(200, "", b"{}"));
    for id in &ids {
        until("it is settled", async || {
            state(&gateway, id).await == "succeeded"
        })
        .await;
    }
    until("the audit has its end", async || {
        get(&gateway, "/v1/audit").await.at("/acts/0/outcome") == "done"
    })
    .await;
}
