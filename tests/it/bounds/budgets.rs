//! How many calls may begin, and those that look like an earlier one, seen from outside, on both stores.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, at_once, on_both_stores};
use crate::support::{Act, Answer, Tool, until};

on_both_stores![
    a_budget_is_not_exceeded_by_a_hundred_at_once,
    a_budget_has_room_again_when_its_window_is_over,
    of_a_hundred_that_look_alike_one_runs,
    what_is_only_flagged_runs_and_says_so,
    what_surely_did_not_run_is_no_earlier_call,
];

async fn a_budget_is_not_exceeded_by_a_hundred_at_once(stores: &Stores) {
    let tool = Tool::start().await;
    let config = "budget = { per = \"session\", max = 7, window = \"10m\" }";
    let gateways = stores.gateways(&one_tool(&tool, config)).await;
    let answers = at_once(&gateways, 100, |_| json!({})).await;
    let good: Vec<usize> = (0..100).filter(|i| answers[*i].status == 200).collect();
    assert_eq!((good.len(), tool.effects()), (7, 7));
    for spent in answers.iter().filter(|answer| answer.status != 200) {
        let spent = spent.clone().expect_problem("budget-exceeded");
        assert_eq!(
            (spent.status, spent.at("/effect"), spent.at("/key_action")),
            (429, "none".into(), "reuse".into())
        );
        let wait = spent.at("/retry_after_ms").as_u64().expect("when it frees");
        // A call that came before the claims of the others is told of places that begin after it.
        assert!((500_000..=605_000).contains(&wait), "{wait}");
    }
    let replayed = gateways[0]
        .act(&format!("k{}", good[0]), json!({}))
        .await
        .expect_ok();
    assert_eq!(
        replayed.at("/replayed"),
        true,
        "a replay costs nothing and is not refused"
    );
    gateways[0]
        .act("one-more", json!({}))
        .await
        .expect_problem("budget-exceeded");
    let other = json!({ "args": {}, "session_id": "T", "idempotency_key": "t" });
    gateways[0].post("act", &other, &[]).await.expect_ok();
    let line = "oncegate_barred_total{reason=\"budget\",tool=\"act\"}";
    assert!(gateways[0].metric(line).await > 0.0);
}

async fn a_budget_has_room_again_when_its_window_is_over(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}"));
    let config = "budget = { per = \"user\", max = 2, window = \"1s\" }";
    let gateway = stores.gateway(&one_tool(&tool, config)).await;
    let mine = json!({ "user_id": "U" });
    gateway
        .act("failed", mine.clone())
        .await
        .expect_problem("tool-rejected");
    gateway.act("failed", mine.clone()).await.expect_ok();
    gateway.act("second", mine.clone()).await.expect_ok();
    let spent = gateway
        .act("third", mine.clone())
        .await
        .expect_problem("budget-exceeded");
    assert!(spent.at("/retry_after_ms").as_u64() <= Some(1_000));
    gateway
        .act("other", json!({ "user_id": "V" }))
        .await
        .expect_ok();
    until("there is room again", async || {
        gateway.act("third", mine.clone()).await.status == 200
    })
    .await;
}

const ALIKE: &str = "similar = { fields = [\"/sku\", \"/amount\"], window = \"10m\", action = \"refuse\" }\nretry = { attempts = 1 }";

async fn of_a_hundred_that_look_alike_one_runs(stores: &Stores) {
    let tool = Tool::start().await;
    let gateways = stores.gateways(&one_tool(&tool, ALIKE)).await;
    let order =
        |note: usize| json!({ "user_id": "U", "args": { "sku": "w", "amount": 5, "note": note } });
    let answers = at_once(&gateways, 100, order).await;
    let ran: Vec<&Answer> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .collect();
    assert_eq!((ran.len(), tool.effects()), (1, 1));
    let first = ran[0].at("/call_id");
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        let refused = refused.clone().expect_problem("possible-duplicate");
        assert_eq!(
            (refused.at("/similar_to"), refused.at("/key_action")),
            (first.clone(), "stop".into())
        );
        assert!(
            refused
                .at("/detail")
                .to_string()
                .contains("confirm_duplicate_of")
        );
    }
    let gateway = &gateways[0];
    let another = |what: Value| {
        let mut whole = order(7);
        whole
            .as_object_mut()
            .expect("an object")
            .extend(what.as_object().expect("an object").clone());
        whole
    };
    let confirmed = another(json!({ "confirm_duplicate_of": first }));
    let second = gateway.act("meant", confirmed.clone()).await.expect_ok();
    assert_eq!(second.at("/similar_to"), first);
    let refused = gateway
        .act("meant-too", confirmed)
        .await
        .expect_problem("possible-duplicate");
    assert_eq!(
        refused.at("/similar_to"),
        second.at("/call_id"),
        "there is a newer one that was not confirmed"
    );
    let confirmed = another(json!({ "confirm_duplicate_of": second.at("/call_id") }));
    gateway.act("meant-too", confirmed).await.expect_ok();
    for (key, other) in [
        ("sku", json!({ "args": { "sku": "x", "amount": 5 } })),
        ("amount", json!({ "args": { "sku": "w", "amount": 6 } })),
        ("user", json!({ "user_id": "V" })),
        ("none-of-the-fields", json!({ "args": { "note": 1 } })),
        ("again-none-of-them", json!({ "args": { "note": 2 } })),
    ] {
        gateway.act(key, another(other)).await.expect_ok();
    }
    assert_eq!(tool.effects(), 8);
}

async fn what_is_only_flagged_runs_and_says_so(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores
        .gateway(&one_tool(&tool, &ALIKE.replace("refuse", "flag")))
        .await;
    let order = json!({ "args": { "sku": "w", "amount": 5 } });
    let first = gateway.act("first", order.clone()).await.expect_ok();
    assert_eq!(first.at("/similar_to"), Value::Null);
    let second = gateway.act("second", order.clone()).await.expect_ok();
    assert_eq!(second.at("/similar_to"), first.at("/call_id"));
    assert_eq!(
        gateway.record(&second).await.at("/similar_to"),
        first.at("/call_id")
    );
    let replayed = gateway.act("second", order).await.expect_ok();
    assert_eq!(
        (replayed.at("/replayed"), replayed.at("/similar_to")),
        (true.into(), first.at("/call_id"))
    );
    assert_eq!(tool.effects(), 2);
}

async fn what_surely_did_not_run_is_no_earlier_call(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::Answer(422, "", b"{}"))
        .then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&one_tool(&tool, ALIKE)).await;
    let order = json!({ "args": { "sku": "w", "amount": 5 } });
    gateway
        .act("failed", order.clone())
        .await
        .expect_problem("tool-rejected");
    let unknown = gateway
        .act("second", order.clone())
        .await
        .expect_problem("outcome-unknown");
    for key in ["third", "failed"] {
        let refused = gateway
            .act(key, order.clone())
            .await
            .expect_problem("possible-duplicate");
        assert_eq!(refused.at("/similar_to"), unknown.at("/call_id"), "{key}");
    }
    assert_eq!(tool.requests(), 2);
}
