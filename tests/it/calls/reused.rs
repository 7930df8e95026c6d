//! The same key with other arguments, and the same business id of two users. On both stores, seen from outside.

use jiff::SignedDuration;
use oncegate::gateway::local_time;
use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    where_arguments_differ_is_told_to_those_who_may_read_the_call_and_no_value_is,
    a_second_name_is_refused_when_the_window_is_over_and_the_fields_are_free,
    a_business_key_per_tenant_is_one_call_for_all_users,
];

fn token(name: &str, scopes: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"shop\"\nsha256 = \"{digest}\"\nscopes = {scopes}\n"
    )
}

async fn ask(gateway: &Gateway, token: &str, tool: &str, key: &str, args: Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("idempotency-key", key)];
    gateway.post(tool, &json!({ "args": args }), &headers).await
}

async fn where_arguments_differ_is_told_to_those_who_may_read_the_call_and_no_value_is(
    stores: &Stores,
) {
    let tool = Tool::start().await;
    let tokens: String = [
        ("maker", "[\"call\"]"),
        ("other", "[\"call\"]"),
        ("reader", "[\"call\", \"read\"]"),
    ]
    .map(|(name, scopes)| token(name, scopes))
    .concat();
    let secret = format!(
        "[tools.secret]\nurl = \"{}\"\nredact = {{ args = [\"/card\"] }}\n",
        tool.url()
    );
    let act = one_tool(&tool, "key = { ignore = [\"/note\"] }");
    let gateway = stores.gateway(&format!("{tokens}{act}{secret}")).await;
    let stored = json!({ "sku": "stored-value", "note": "a", "line": { "amount": 1 } });
    let first = ask(&gateway, "maker", "act", "k", stored).await.expect_ok();
    let args = json!({ "sku": "sent-value", "note": "b", "line": { "amount": 1 }, "more": true });
    for (who, told) in [
        ("maker", json!(["/more", "/sku"])),
        ("other", Value::Null),
        ("reader", json!(["/more", "/sku"])),
    ] {
        let reused = ask(&gateway, who, "act", "k", args.clone())
            .await
            .expect_problem("key-reused");
        assert_eq!(
            (reused.at("/differs"), reused.at("/call_id")),
            (told, first.at("/call_id")),
            "{who}"
        );
        assert!(
            !reused.text.contains("stored-value") && !reused.text.contains("sent-value"),
            "{}",
            reused.text
        );
        assert_eq!(
            reused.text.contains("they differ at /more, /sku"),
            who != "other",
            "{}",
            reused.text
        );
    }
    // Of a tool that redacts arguments nothing is told.
    ask(
        &gateway,
        "maker",
        "secret",
        "k",
        json!({ "card": 1, "sku": 1 }),
    )
    .await
    .expect_ok();
    let reused = ask(
        &gateway,
        "maker",
        "secret",
        "k",
        json!({ "card": 2, "sku": 2 }),
    )
    .await;
    assert_eq!(
        reused.expect_problem("key-reused").at("/differs"),
        Value::Null
    );
    assert_eq!(tool.requests(), 2);
}

const BUSINESS: &str =
    r#"input_schema = { type = "object", required = ["id"], properties = { id = {} } }"#;

async fn a_second_name_is_refused_when_the_window_is_over_and_the_fields_are_free(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let times =
        "timeout = \"2s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }\ndedup_window = \"2s\"";
    let config = one_tool(
        &tool,
        &format!("key = {{ fields = [\"/id\"] }}\n{BUSINESS}\n{times}"),
    );
    let gateway = stores.gateway(&config).await;
    let args = |id: u32| json!({ "id": id });
    let first = gateway.call_with_key("first", args(1)).await.expect_ok();
    gateway.call_with_key("second", args(1)).await.expect_ok();
    let since = local_time();
    until("the window is over", async || {
        local_time() > since + SignedDuration::from_millis(2_500)
    })
    .await;
    for (id, key_action) in [(1, "stop"), (2, "rotate")] {
        let expired = gateway
            .call_with_key("first", args(id))
            .await
            .expect_problem("key-expired");
        let told = (
            expired.status,
            expired.at("/key_action"),
            expired.at("/effect"),
            expired.at("/call_id"),
        );
        assert_eq!(
            told,
            (410, key_action.into(), "unknown".into(), Value::Null),
            "{}",
            expired.text
        );
    }
    assert_eq!(tool.effects(), 1);
    // In another process, too.
    let gateway = stores.again(gateway, &config).await;
    gateway
        .call_with_key("first", args(1))
        .await
        .expect_problem("key-expired");
    // The key of a repetition was never a name, and the fields are free.
    let again = gateway.call_with_key("second", args(1)).await.expect_ok();
    assert_eq!((again.at("/replayed"), tool.effects()), (false.into(), 2));
    assert_ne!(again.at("/call_id"), first.at("/call_id"));
}

async fn a_business_key_per_tenant_is_one_call_for_all_users(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = |per: &str| {
        one_tool(
            &tool,
            &format!("key = {{ fields = [\"/id\"]{per} }}\n{BUSINESS}"),
        )
    };
    let gateway = stores.gateway(&config("")).await;
    let ask = async |user: &str, id: u32| {
        let body = json!({ "args": { "id": id }, "user_id": user });
        gateway.post("act", &body, &[]).await.expect_ok()
    };
    let of_user = ask("U1", 1).await;
    assert_ne!(
        ask("U2", 1).await.at("/call_id"),
        of_user.at("/call_id"),
        "each user has their own"
    );
    assert!(gateway.reload(&config(", per = \"tenant\"")).await);
    // Calls of before are found by the key that they were made with.
    assert_eq!(ask("U1", 1).await.at("/call_id"), of_user.at("/call_id"));
    let shared = ask("U1", 2).await;
    for user in ["U1", "U2", ""] {
        let again = ask(user, 2).await;
        assert_eq!(
            (again.at("/call_id"), again.at("/replayed")),
            (shared.at("/call_id"), true.into()),
            "{user}"
        );
    }
    assert!(gateway.reload(&config(", per = \"user\"")).await);
    assert_eq!(ask("U1", 2).await.at("/call_id"), shared.at("/call_id"));
    assert_eq!(tool.effects(), 3);
}
