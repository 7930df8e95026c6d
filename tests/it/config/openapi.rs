//! The OpenAPI document: it names every route, and answers are as it says.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::config::tools::three_tools;
use crate::house::rooms::sources;
use crate::support::{Act, Answer, Gateway, Tool};

/// The paths of routes that a source adds to a router by hand, and not by a `Route`.
fn paths_by_hand() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["crates", "src"].map(|top| sources(&root.join(top)));
    let texts = sources.into_iter().flatten();
    let texts = texts.map(|path| fs::read_to_string(path).expect("a source"));
    let paths = texts.flat_map(|text| {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines();
        let code = lines.filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<String>();
        let calls = code.split(".route(").skip(1);
        let literal =
            calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
        literal.map(str::to_owned).collect::<Vec<_>>()
    });
    paths.collect()
}

#[tokio::test]
async fn the_document_names_every_route_and_no_other() {
    let gateway = Gateway::start("").await;
    let document = gateway.get("/openapi.json").await.expect_ok();
    assert!(
        !document.text.contains(".md"),
        "it names no page that does not come with it"
    );
    let document = document.json();
    assert_eq!(document["openapi"], "3.1.0");
    for place in document.to_string().split("\"$ref\":\"#").skip(1) {
        let place = place.split('"').next().expect("a place");
        assert!(document.pointer(place).is_some(), "{place}");
    }
    let mut documented: Vec<(String, String)> = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            documented.push((method.clone(), path.clone()));
        }
    }
    assert!(documented.len() > 40, "{documented:?}");
    let by_hand = paths_by_hand();
    assert!(by_hand.len() > 5, "the test reads nothing: {by_hand:?}");
    for path in by_hand {
        // Pages, and APIs of others. Some clients write a slash at the end.
        let is_described_elsewhere = ["/console", "/proxy"]
            .iter()
            .any(|top| path.starts_with(top));
        let plain = path.trim_end_matches('/');
        let has_entry = documented.iter().any(|(_, documented)| documented == plain);
        assert!(is_described_elsewhere || has_entry, "{path} has no entry");
    }
    for (method, path) in documented {
        let answer = gateway
            .client
            .patch(gateway.url(&path.replace(['{', '}'], "x")))
            .send()
            .await
            .expect("an answer");
        let allow = answer.headers()["allow"]
            .to_str()
            .expect("ASCII")
            .to_ascii_lowercase();
        assert!(
            allow.split(',').any(|one| one == method),
            "{method} {path}: {allow}"
        );
    }
    gateway.stop().await;
}

/// Checks that the document allows this answer of this route.
#[track_caller]
fn check(document: &Value, door: (&str, &str), answer: &Answer) {
    let operation = &document["paths"][door.1][door.0];
    let response = &operation["responses"][answer.status.to_string()];
    let content_type = answer
        .header("content-type")
        .split(';')
        .next()
        .unwrap_or_default();
    let content = &response["content"][content_type];
    assert!(
        content.is_object(),
        "{door:?} does not answer {} {content_type}",
        answer.status
    );
    let schema = json!({ "allOf": [content["schema"]], "components": document["components"] });
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let body = if content_type.ends_with("json") {
        answer.json()
    } else {
        json!(answer.text)
    };
    let mistakes: Vec<String> = validator
        .iter_errors(&body)
        .map(|mistake| mistake.to_string())
        .collect();
    assert_eq!(mistakes, [""; 0], "{door:?}: {}", answer.text);
}

#[tokio::test]
async fn answers_of_the_routes_are_as_the_document_says() {
    let tool = Tool::start().await;
    tool.then(Act::Numbered)
        .then(Act::Answer(422, "", b"{\"why\":\"no\"}"))
        .then(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&three_tools(&tool.url())).await;
    let document = gateway.get("/openapi.json").await.expect_ok().json();
    let call = ("post", "/v1/tools/{tool}/calls");
    let send = async |key: &str, args: Value| {
        gateway
            .post(
                "ship",
                &json!({ "args": args, "session_id": "S" }),
                &[("idempotency-key", key)],
            )
            .await
    };
    let ok = send("k1", json!({ "order_id": "O" })).await.expect_ok();
    check(&document, call, &ok);
    check(
        &document,
        call,
        &send("k1", json!({ "order_id": "O" })).await.expect_ok(),
    );
    check(
        &document,
        call,
        &send("k1", json!({ "order_id": "P" }))
            .await
            .expect_problem("key-reused"),
    );
    check(
        &document,
        call,
        &send("k2", json!({ "order_id": 7 }))
            .await
            .expect_problem("invalid-arguments"),
    );
    let rejected = send("k3", json!({ "order_id": "O" }))
        .await
        .expect_problem("tool-rejected");
    check(&document, call, &rejected);
    let unknown = send("k4", json!({ "order_id": "O" }))
        .await
        .expect_problem("outcome-unknown");
    check(&document, call, &unknown);
    for answer in [&ok, &rejected, &unknown] {
        check(
            &document,
            ("get", "/v1/calls/{id}"),
            &gateway.record(answer).await,
        );
    }
    let id = unknown.at("/call_id");
    let replay = format!("/v1/calls/{}/replay", ok.id());
    for (mode, slug) in [("stored", ""), ("verify", "replay-unsafe")] {
        let replayed = gateway.post_as("", &replay, &json!({ "mode": mode })).await;
        assert_eq!(replayed.problem(), slug);
        check(&document, ("post", "/v1/calls/{id}/replay"), &replayed);
    }
    let resolve = format!("/v1/calls/{}/resolve", id.as_str().expect("an id"));
    let said = json!({ "as": "succeeded", "result": { "a": 1 }, "reason": "looked it up" });
    let settled = gateway.post_as("", &resolve, &said).await.expect_ok();
    check(&document, ("post", "/v1/calls/{id}/resolve"), &settled);
    let again = gateway
        .post_as("", &resolve, &said)
        .await
        .expect_problem("wrong-state");
    check(&document, ("post", "/v1/calls/{id}/resolve"), &again);
    for format in [
        "",
        "?format=openai",
        "?format=openai-chat",
        "?format=anthropic",
        "?format=mcp",
    ] {
        check(
            &document,
            ("get", "/v1/tools"),
            &gateway.get(&format!("/v1/tools{format}")).await.expect_ok(),
        );
    }
    check(
        &document,
        ("get", "/v1/calls"),
        &gateway.get("/v1/calls").await.expect_ok(),
    );
    check(
        &document,
        ("get", "/v1/calls"),
        &gateway.get("/v1/calls?limit=0").await,
    );
    for path in [
        "/",
        "/.well-known/idempotency",
        "/openapi.json",
        "/metrics",
        "/healthz",
        "/readyz",
        "/problems",
    ] {
        check(
            &document,
            ("get", path),
            &gateway.get(path).await.expect_ok(),
        );
    }
    check(
        &document,
        ("get", "/problems/{slug}"),
        &gateway.get("/problems/forbidden").await.expect_ok(),
    );
    check(
        &document,
        ("get", "/problems/{slug}"),
        &gateway.get("/problems/x").await,
    );
    check(
        &document,
        ("get", "/v1/sessions/{id}"),
        &gateway.get("/v1/sessions/S").await.expect_ok(),
    );
    let unlocked = gateway
        .post_as("", "/v1/sessions/S/unlock", &json!({ "reason": "stuck" }))
        .await;
    check(&document, ("post", "/v1/sessions/{id}/unlock"), &unlocked);
    for act in ["freeze", "thaw"] {
        let done = gateway
            .post_as(
                "",
                &format!("/v1/sessions/S/{act}"),
                &json!({ "reason": "to see" }),
            )
            .await;
        check(
            &document,
            ("post", &format!("/v1/sessions/{{id}}/{act}")),
            &done.expect_ok(),
        );
    }
    for act in ["pause", "pause", "resume"] {
        let done = gateway
            .post_as(
                "",
                &format!("/v1/tools/ship/{act}"),
                &json!({ "reason": "to see" }),
            )
            .await;
        check(
            &document,
            ("post", &format!("/v1/tools/{{tool}}/{act}")),
            &done,
        );
    }
    let whole = gateway
        .accept_loss("there is none")
        .await
        .expect_problem("wrong-state");
    check(&document, ("post", "/v1/store/accept-loss"), &whole);
    gateway.stop().await;
}
