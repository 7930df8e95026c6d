//! A loop of an agent whose runtime sends no keys.

use serde_json::json;

use crate::calls::agent::{Agent, by_business_id};
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Gateway, Tool};

on_both_stores! {
    a_loop_with_the_models_keys_has_one_effect,
    a_loop_that_crashes_without_a_key_of_its_own_and_resumes_has_one_effect,
    a_loop_that_resumes_with_new_keys_and_no_fields_gets_the_result_where_similar_calls_are_replayed,
    a_loop_that_resumes_with_new_keys_and_no_fields_is_told_of_its_earlier_call_where_they_are_refused,
    a_loop_that_resumes_while_nobody_knows_the_outcome_is_told_whom_to_ask,
}

async fn a_loop_with_the_models_keys_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held).always(Act::Numbered);
    let gateway = stores.gateway(&one_tool(&tool, LIKE)).await;
    let args = |key: &str, note: &str| json!({ "sku": "w", "note": note, "idempotency_key": key });
    let mut agent = Agent::without_key(&gateway, args("model-1", "please"));
    for _ in 0..2 {
        agent.hang_up(&tool).await;
    }
    drop(hold);
    let first = agent.follow().await.result();
    // The model plans again with other words, and makes up another key.
    let again = Agent::without_key(&gateway, args("model-2", "as discussed"))
        .follow()
        .await
        .result();
    assert_eq!(
        (again.at("/call_id"), again.at("/replayed_as_similar")),
        (first.at("/call_id"), true.into())
    );
    assert_eq!((tool.effects(), agent.keys), (1, 0));
    // If business fields name the intent, keys of the model are ignored.
    let gateway = stores.gateway(&by_business_id(&tool)).await;
    let args = |key: &str| json!({ "invoice": "I-1", "note": key, "idempotency_key": key });
    let first = Agent::without_key(&gateway, args("model-1"))
        .follow()
        .await
        .result();
    let again = Agent::without_key(&gateway, args("model-2"))
        .follow()
        .await
        .result();
    assert_eq!(
        (again.at("/call_id"), tool.effects()),
        (first.at("/call_id"), 2)
    );
}

async fn a_loop_that_crashes_without_a_key_of_its_own_and_resumes_has_one_effect(stores: &Stores) {
    let tool = Tool::start().await;
    let gateway = stores.gateway(&one_tool(&tool, "")).await;
    let args = json!({ "sku": "w", "amount": 5 });
    let first = Agent::without_key(&gateway, args.clone())
        .follow()
        .await
        .result();
    let gateway = stores.again(gateway, &one_tool(&tool, "")).await;
    let again = Agent::without_key(&gateway, args).follow().await.result();
    assert_eq!(
        (again.at("/call_id"), again.at("/replayed")),
        (first.at("/call_id"), true.into())
    );
    assert_eq!(tool.effects(), 1);
}

/// Calls with the same `sku` are similar, and a similar call gets the result of the first.
const LIKE: &str = "retry = { attempts = 1 }\nsimilar = { fields = [\"/sku\"], window = \"10m\", action = \"replay\" }";

async fn a_loop_that_resumes_with_new_keys_and_no_fields_gets_the_result_where_similar_calls_are_replayed(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(1_000, Act::Numbered));
    let gateway = stores.gateway(&one_tool(&tool, LIKE)).await;
    let args = |note: &str| json!({ "sku": "w", "note": note });
    // The agent crashes while the call runs; its successor has to wait, and waits.
    Agent::new(&gateway, "plan-1", args("as asked"))
        .hang_up(&tool)
        .await;
    let mut resumed = Agent::new(&gateway, "plan-2", args("in other words"));
    let second = resumed.follow().await.result();
    let third = Agent::new(&gateway, "plan-3", args("once more"))
        .follow()
        .await
        .result();
    assert_eq!(
        (second.at("/call_id"), second.at("/replayed_as_similar")),
        (third.at("/call_id"), true.into())
    );
    assert_eq!((tool.effects(), resumed.keys), (1, 0));
}

/// An agent that buys the same article, with this note.
fn plan<'a>(gateway: &'a Gateway, name: &'a str, note: &str) -> Agent<'a> {
    Agent::new(gateway, name, json!({ "sku": "w", "note": note }))
}

async fn a_loop_that_resumes_with_new_keys_and_no_fields_is_told_of_its_earlier_call_where_they_are_refused(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let gateway = stores
        .gateway(&one_tool(&tool, &LIKE.replace("replay", "refuse")))
        .await;
    let first = plan(&gateway, "plan-1", "as asked").follow().await.result();
    let mut resumed = plan(&gateway, "plan-2", "in other words");
    let told = resumed.follow().await.told();
    let told = told.expect_problem("possible-duplicate");
    assert_eq!(
        (told.at("/similar_to"), told.at("/key_action")),
        (first.at("/call_id"), "stop".into())
    );
    // The detail names the path of the result.
    let (detail, id) = (told.at("/detail").to_string(), first.at("/call_id"));
    let place = format!("/v1/calls/{}", id.as_str().expect("an id"));
    assert!(detail.contains(&format!("GET {place}")), "{detail}");
    assert_eq!(
        gateway.get(&place).await.expect_ok().at("/result"),
        first.at("/result")
    );
    assert_eq!((tool.effects(), resumed.keys), (1, 0));
}

async fn a_loop_that_resumes_while_nobody_knows_the_outcome_is_told_whom_to_ask(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrop);
    let gateway = stores.gateway(&one_tool(&tool, LIKE)).await;
    let first = plan(&gateway, "plan-1", "a").follow().await.told();
    let mut resumed = plan(&gateway, "plan-2", "b");
    let told = resumed.follow().await.told();
    let told = told.expect_problem("possible-duplicate");
    assert_eq!(
        (told.at("/similar_to"), told.at("/effect")),
        (first.at("/call_id"), "unknown".into())
    );
    assert!(
        told.at("/detail").to_string().contains("ask an operator"),
        "{}",
        told.text
    );
    assert_eq!((tool.requests(), resumed.keys), (1, 0));
}
