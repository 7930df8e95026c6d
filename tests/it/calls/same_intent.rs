//! One intent, whatever key a model made up for it: one effect at every endpoint, until the caller says that both are
//! meant.

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::mcp::{MODERN, meta};
use crate::support::stores::{Stores, on_both_stores};
use crate::support::upstream::{Does, Upstream, result};
use crate::support::{Act, Answer, Gateway, Tool};

on_both_stores![
    a_models_key_makes_no_second_effect_at_a_server,
    a_models_key_makes_no_second_effect_at_a_tool,
    a_confirmation_that_confirms_nothing_changes_nothing,
    a_call_id_of_the_client_finds_its_call_under_another_key,
    a_call_through_one_door_is_met_at_the_other,
];

const SCHEMA: &str = "input_schema = { type = \"object\", properties = { idempotency_key = { type = \"string\" }, n = {} } }";

/// A request for a call at an endpoint.
struct Asked<'a> {
    /// `/mcp`, `/mcp/up` or `/v1`.
    door: &'a str,
    args: Value,
    /// Members of `_meta`, or of the body.
    more: Value,
}

async fn ask(gateway: &Gateway, asked: Asked<'_>) -> Answer {
    if asked.door == "/v1" {
        let mut body = asked.more;
        body["args"] = asked.args;
        return gateway.post("act", &body, &[]).await;
    }
    let params = json!({ "name": "act", "arguments": asked.args, "_meta": meta(asked.more) });
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
    let request = gateway.client.post(gateway.url(asked.door));
    let request = request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "act");
    Answer::to(request.body(body.to_string())).await
}

/// Equal arguments, under this key of the model's, if it brings one.
fn args(n: usize, key: Option<&str>) -> Value {
    let mut args = json!({ "n": n });
    if let Some(key) = key {
        args["idempotency_key"] = key.into();
    }
    args
}

/// The id of the call that an answer is about.
fn call_id(answer: &Answer) -> Value {
    match answer.at("/call_id") {
        Value::Null => answer.meta("call-id"),
        id => id,
    }
}

fn is_replayed(answer: &Answer) -> bool {
    answer.at("/replayed") == true || answer.meta("replayed") == true
}

/// A key of the first request, and one of the second.
const KEYS: [(Option<&str>, Option<&str>); 3] = [
    (Some("fresh-1"), Some("fresh-2")),
    (Some("fresh-1"), None),
    (None, Some("fresh-2")),
];

/// Asks twice, and expects one effect; confirms that both are meant, and expects two, however often that is repeated.
async fn check_cell(
    gateways: &[Gateway],
    door: &str,
    n: usize,
    (first, second): (Option<&str>, Option<&str>),
    effects: &dyn Fn() -> usize,
) {
    let (here, there) = (&gateways[0], &gateways[gateways.len() - 1]);
    // A key of its own in each cell.
    let of_cell = |key: Option<&str>| key.map(|key| format!("{key}-{n}"));
    let (first, second) = (of_cell(first), of_cell(second));
    let about = format!("{door}, {first:?} and then {second:?}, cell {n}");
    let before = effects();
    let asked = |key: &Option<String>, more| Asked {
        door,
        args: args(n, key.as_deref()),
        more,
    };
    let one = ask(here, asked(&first, json!({}))).await;
    assert_eq!(effects(), before + 1, "{about}: {}", one.text);
    for gateway in [there, here] {
        let again = ask(gateway, asked(&second, json!({}))).await;
        assert_eq!(effects(), before + 1, "{about}: {}", again.text);
        assert_eq!(call_id(&again), call_id(&one), "{about}: {}", again.text);
    }
    let is_known = one.status == 200 && one.meta("problem") == Value::Null;
    let again = ask(there, asked(&second, json!({}))).await;
    assert_eq!(is_replayed(&again), is_known, "{about}: {}", again.text);
    let confirms = match door {
        "/v1" => json!({ "confirm_duplicate_of": call_id(&one) }),
        _ => json!({ "dev.oncegate/confirm-duplicate-of": call_id(&one) }),
    };
    let wanted = if is_known { before + 2 } else { before + 1 };
    let mut confirmed = Vec::new();
    for gateway in [there, here, there] {
        let answer = ask(gateway, asked(&second, confirms.clone())).await;
        assert_eq!(effects(), wanted, "{about}: {}", answer.text);
        confirmed.push(call_id(&answer));
    }
    confirmed.dedup();
    assert_eq!(confirmed.len(), 1, "{about}");
    assert_eq!(confirmed[0] != call_id(&one), is_known, "{about}");
}

async fn a_models_key_makes_no_second_effect_at_a_server(stores: &Stores) {
    let of_act =
        "[tools.act]\nupstream = \"up\"\nretry = { attempts = 1 }\nbreaker = { failures = 1000 }\n";
    // All gateways on Redis share a store, so no cell has the arguments of another.
    let mut n = 0;
    for (door, more) in [
        ("/mcp/up", String::new()),
        ("/mcp/up", of_act.to_owned()),
        ("/mcp", of_act.to_owned()),
        ("/mcp/up", format!("{of_act}{SCHEMA}\n")),
        (
            "/mcp",
            format!("{of_act}{SCHEMA}\nkey = {{ ignore = [\"/idempotency_key\"] }}\n"),
        ),
        ("/v1", format!("{of_act}{SCHEMA}\n")),
    ] {
        let upstream = Upstream::modern().await;
        upstream.list(&[json!({ "name": "act", "inputSchema": { "type": "object",
            "properties": { "idempotency_key": { "type": "string" }, "n": {} } } })]);
        let config = format!("[upstreams.up]\nurl = \"{}\"\n{more}", upstream.url());
        let gateways = stores.gateways(&config).await;
        let failed =
            json!({ "content": [{ "type": "text", "text": "timed out" }], "isError": true });
        for keys in KEYS {
            for does in [
                Does::Json(result("done")),
                Does::StreamThenEnd(b""),
                Does::Json(failed.clone()),
            ] {
                n += 1;
                upstream.then(does);
                let effects = || upstream.effects();
                check_cell(&gateways, door, n, keys, &effects).await;
            }
        }
        for gateway in gateways {
            gateway.stop().await;
        }
    }
}

async fn a_models_key_makes_no_second_effect_at_a_tool(stores: &Stores) {
    let mut n = 0;
    for more in [
        "",
        SCHEMA,
        "key = { ignore = [\"/idempotency_key\"] }",
        "redact = { args = [\"/n\"] }",
    ] {
        let tool = Tool::start().await;
        tool.always(Act::Numbered);
        let more = format!("{more}\nretry = {{ attempts = 1 }}\nbreaker = {{ failures = 1000 }}");
        let gateways = stores.gateways(&one_tool(&tool, &more)).await;
        for door in ["/v1", "/mcp"] {
            for keys in KEYS {
                for act in [Act::Numbered, Act::ExecuteThenDrop] {
                    n += 1;
                    tool.then(act);
                    let effects = || tool.effects();
                    check_cell(&gateways, door, n, keys, &effects).await;
                }
            }
        }
        // The same key with other arguments is not a repetition.
        let twice = format!("twice-{n}");
        let asked = |n| Asked {
            door: "/v1",
            args: args(n, Some(&twice)),
            more: json!({}),
        };
        ask(&gateways[0], asked(n + 1000)).await.expect_ok();
        let reused = ask(&gateways[0], asked(n + 2000)).await;
        reused.expect_problem("key-reused");
        // A key of the runtime's still tells two intents apart.
        let before = tool.effects();
        for key in ["r1", "r2"] {
            let key = format!("{key}-{n}");
            let answer = gateways[0]
                .call_with_key(&key, json!({ "n": n + 3000 }))
                .await;
            assert_eq!(answer.expect_ok().at("/replayed"), false);
        }
        assert_eq!(tool.effects(), before + 2);
        for gateway in gateways {
            gateway.stop().await;
        }
    }
}

async fn a_confirmation_that_confirms_nothing_changes_nothing(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateways = stores.gateways(&one_tool(&tool, "")).await;
    let gateway = &gateways[0];
    let asked = |n, key, confirmed: &Value| Asked {
        door: "/v1",
        args: args(n, key),
        more: json!({ "confirm_duplicate_of": confirmed }),
    };
    let one = ask(gateway, asked(1, Some("a"), &Value::Null))
        .await
        .expect_ok();
    let other = ask(gateway, asked(2, Some("b"), &Value::Null))
        .await
        .expect_ok();
    // Of a call with other arguments, or of none.
    for confirmed in [
        call_id(&other),
        "01a1ff51-36fe-743b-9a8e-1980cb45fb03".into(),
    ] {
        let again = ask(gateway, asked(1, Some("c"), &confirmed))
            .await
            .expect_ok();
        assert_eq!(
            (call_id(&again), is_replayed(&again)),
            (call_id(&one), true)
        );
    }
    assert_eq!(tool.effects(), 2);
    // Of a running one: it is waited for.
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let headers = [("prefer", "respond-async")];
    let begun = gateway
        .post("act", &json!({ "args": args(3, Some("d")) }), &headers)
        .await;
    let body = json!({ "args": args(3, Some("e")), "confirm_duplicate_of": call_id(&begun) });
    let headers = [("prefer", "wait=0")];
    let running = gateway.post("act", &body, &headers).await;
    assert_eq!(
        call_id(&running.expect_problem("call-in-progress")),
        call_id(&begun)
    );
    drop(hold);
    // The model confirms by an argument that the tool does not get.
    let by_argument = |confirmed: Value| {
        let mut args = args(1, Some("f"));
        args["confirm_duplicate_of"] = confirmed;
        json!({ "args": args })
    };
    for nothing in [Value::Null, "".into()] {
        let again = gateway.post("act", &by_argument(nothing), &[]).await;
        assert_eq!(call_id(&again.expect_ok()), call_id(&one));
    }
    for no_id in [json!("the first"), json!(7), json!({})] {
        let refused = gateway.post("act", &by_argument(no_id), &[]).await;
        refused.expect_problem("invalid-request");
    }
    for is_replay in [false, true] {
        let meant = gateway.post("act", &by_argument(call_id(&one)), &[]).await;
        let meant = meant.expect_ok();
        assert_eq!(is_replayed(&meant), is_replay);
        assert_ne!(call_id(&meant), call_id(&one));
    }
    assert!(
        tool.seen()
            .iter()
            .all(|seen| !seen.body.contains("confirm_duplicate_of"))
    );
    // By a runtime's key nothing is confirmed: it stands for its call.
    for _ in 0..2 {
        let body = json!({ "args": args(4, None), "idempotency_key": "r", "confirm_duplicate_of": call_id(&one) });
        gateway.post("act", &body, &[]).await.expect_ok();
    }
    assert_eq!(tool.requests(), 5);
}

async fn a_call_id_of_the_client_finds_its_call_under_another_key(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = one_tool(
        &tool,
        "dedup_window = \"2s\"\ntimeout = \"1s\"\ndeadline = \"2s\"\nretry = { attempts = 1 }",
    );
    let gateways = stores.gateways(&config).await;
    let (here, there) = (&gateways[0], &gateways[gateways.len() - 1]);
    let asked = |door, n, key, id: &str| Asked {
        door,
        args: args(n, key),
        more: match door {
            "/v1" => json!({ "client_call_id": id }),
            _ => json!({ "dev.oncegate/client-call-id": id }),
        },
    };
    let one = ask(here, asked("/v1", 1, Some("a"), "thread-1:call-1"))
        .await
        .expect_ok();
    let again = ask(there, asked("/v1", 1, Some("b"), "thread-1:call-1"))
        .await
        .expect_ok();
    assert_eq!(
        (call_id(&again), is_replayed(&again)),
        (call_id(&one), true)
    );
    let over_mcp = ask(there, asked("/mcp", 1, None, "thread-1:call-1")).await;
    assert_eq!(call_id(&over_mcp), call_id(&one), "{}", over_mcp.text);
    // It makes no call new: a re-planned call has another one.
    let planned = ask(here, asked("/v1", 1, None, "thread-1:call-2"))
        .await
        .expect_ok();
    assert_eq!(call_id(&planned), call_id(&one));
    // It stands for one call.
    ask(here, asked("/v1", 2, None, "thread-1:call-1"))
        .await
        .expect_problem("key-reused");
    assert_eq!(tool.effects(), 1);
    // When the window is over, too.
    let since = oncegate::gateway::local_time();
    crate::support::until("the window is over", async || {
        oncegate::gateway::local_time() > since + jiff::SignedDuration::from_millis(2_500)
    })
    .await;
    for key in [None, Some("c")] {
        let late = ask(there, asked("/v1", 1, key, "thread-1:call-1")).await;
        late.expect_problem("key-expired");
    }
    let late = ask(there, asked("/mcp", 1, None, "thread-1:call-1")).await;
    assert_eq!(
        late.meta("problem")["type"],
        "/problems/key-expired",
        "{}",
        late.text
    );
    assert_eq!(tool.effects(), 1);
    let new = ask(there, asked("/v1", 1, None, "thread-1:call-3"))
        .await
        .expect_ok();
    assert_eq!((is_replayed(&new), tool.effects()), (false, 2));
}

async fn a_call_through_one_door_is_met_at_the_other(stores: &Stores) {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let config = one_tool(&tool, "");
    let gateways = stores.gateways(&config).await;
    let asked = |door, n| Asked {
        door,
        args: args(n, None),
        more: json!({}),
    };
    for (n, doors) in [["/v1", "/mcp"], ["/mcp", "/v1"]].into_iter().enumerate() {
        let one = ask(&gateways[0], asked(doors[0], n)).await;
        let again = ask(&gateways[gateways.len() - 1], asked(doors[1], n)).await;
        assert_eq!(call_id(&again), call_id(&one), "{}", again.text);
    }
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn an_empty_field_is_no_key() {
    let tool = Tool::start().await;
    let more =
        "key = { fields = [\"/id\"] }\ninput_schema = { type = \"object\", required = [\"id\"] }";
    let gateway = Gateway::with_tool(&tool, more).await;
    for empty in [json!(""), json!(" "), Value::Null, json!([]), json!({})] {
        let refused = gateway.call(json!({ "id": empty })).await;
        let refused = refused.expect_problem("invalid-arguments");
        assert!(refused.text.contains("/id"), "{}", refused.text);
    }
    assert_eq!(tool.requests(), 0);
    gateway.call(json!({ "id": 0 })).await.expect_ok();
    gateway.call(json!({ "id": false })).await.expect_ok();
    assert_eq!(tool.requests(), 2);
}
