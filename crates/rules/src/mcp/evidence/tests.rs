//! The table from an MCP server's answer to an outcome, row by row.

mod stored;

use serde_json::{Value, json};

use super::*;

fn answer(status: u16, message: &Value) -> McpAnswer {
    McpAnswer {
        status,
        body: Body::Whole(message.to_string().into()),
        has_session: false,
        names_request: message.get("id").is_some(),
        is_forgotten: false,
    }
}

fn word(answer: &McpAnswer, tool_error: ToolError) -> String {
    let errors = Errors {
        tool_error,
        ..Errors::default()
    };
    match classify(answer, errors, None).0 {
        Outcome::NotExecuted(failure) => failure.kind.as_str().to_owned(),
        outcome => outcome.as_str().to_owned(),
    }
}

fn result(result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": "1", "result": result })
}

fn error(code: i64) -> Value {
    json!({ "jsonrpc": "2.0", "id": "1", "error": { "code": code, "message": "m" } })
}

#[test]
fn the_table() {
    let text = json!([{ "type": "text", "text": "t" }]);
    let mut table = String::new();
    let mut row = |what: &str, word: String| table.push_str(&format!("{what}: {word}\n"));
    let remember = ToolError::Remember;
    for kind in [
        None,
        Some("complete"),
        Some("task"),
        Some("input_required"),
        Some("new"),
    ] {
        let mut said = json!({ "content": text });
        if let Some(kind) = kind {
            said["resultType"] = kind.into();
        }
        row(
            &format!("result {kind:?}"),
            word(&answer(200, &result(&said)), remember),
        );
    }
    for member in ["requestState", "inputRequests"] {
        let value = if member == "requestState" {
            json!("s")
        } else {
            json!({})
        };
        let said = json!({ "resultType": "input_required", (member): value });
        row(member, word(&answer(200, &result(&said)), remember));
    }
    for tool_error in [remember, ToolError::Rejected, ToolError::Unknown] {
        let said = json!({ "content": text, "isError": true });
        row(
            &format!("isError {tool_error:?}"),
            word(&answer(200, &result(&said)), tool_error),
        );
    }
    for code in [
        -32_700, -32_600, -32_601, -32_602, -32_603, -32_000, -32_001, -32_020, -32_021, -32_022,
        -32_042, 1,
    ] {
        row(
            &format!("error {code}"),
            word(&answer(200, &error(code)), remember),
        );
    }
    for (status, code) in [
        (400, -32_000),
        (400, -32_603),
        (404, -32_601),
        (404, -32_001),
        (500, -32_000),
        (500, -32_602),
    ] {
        let what = format!("{status} with error {code}");
        row(&what, word(&answer(status, &error(code)), remember));
    }
    row(
        "500 with a result",
        word(&answer(500, &result(&json!({ "content": [] }))), remember),
    );
    for status in [
        200, 202, 204, 301, 307, 400, 401, 402, 403, 404, 405, 406, 408, 409, 413, 415, 422, 425,
        429, 500, 502, 503,
    ] {
        let answer = McpAnswer {
            status,
            body: Body::Whole("<html>".into()),
            has_session: false,
            names_request: false,
            is_forgotten: false,
        };
        row(
            &format!("{status} without a message"),
            word(&answer, remember),
        );
    }
    let in_session = |status, message: &Value| McpAnswer {
        has_session: true,
        ..answer(status, message)
    };
    let nameless = |status, code| McpAnswer {
        names_request: false,
        ..answer(status, &error(code))
    };
    for (status, code) in [
        (400, -32_700),
        (400, -32_600),
        (400, -32_602),
        (400, -32_603),
        (400, -32_000),
        (400, -32_020),
        (400, -32_021),
        (400, -32_022),
        (404, -32_001),
        (200, -32_600),
        (500, -32_600),
    ] {
        let what = format!("{status} with error {code} that names no request");
        row(&what, word(&nameless(status, code), remember));
    }
    for (what, said) in [
        (
            "400 of a session with -32000",
            McpAnswer {
                names_request: false,
                ..in_session(400, &error(-32_000))
            },
        ),
        (
            "404 of a session with -32001 that names the request",
            in_session(404, &error(-32_001)),
        ),
        (
            "404 of a session with -32603",
            in_session(404, &error(-32_603)),
        ),
        (
            "404 of a session with a result",
            in_session(404, &result(&json!({ "content": [] }))),
        ),
        (
            "400 with a result",
            answer(400, &result(&json!({ "content": [] }))),
        ),
    ] {
        row(what, word(&said, remember));
    }
    for status in [200, 400, 404] {
        let answer = McpAnswer {
            status,
            body: Body::Broken("cut off".into()),
            has_session: true,
            names_request: false,
            is_forgotten: false,
        };
        row(&format!("{status} cut off"), word(&answer, remember));
    }
    let forgotten = McpAnswer {
        has_session: true,
        names_request: false,
        ..answer(404, &error(-32_001))
    };
    row("404 of a session", word(&forgotten, remember));
    for (what, said) in [
        ("404 of a session that a ping confirms", forgotten.clone()),
        (
            "400 with -32000 of a session that a ping confirms",
            McpAnswer {
                has_session: true,
                ..nameless(400, -32_000)
            },
        ),
        ("400 with -32000 without a session", nameless(400, -32_000)),
        (
            "400 with -32020 that a question confirms",
            nameless(400, -32_020),
        ),
        (
            "404 of a session that names the request and a ping confirms",
            in_session(404, &error(-32_001)),
        ),
    ] {
        let said = McpAnswer {
            is_forgotten: true,
            ..said
        };
        row(what, word(&said, remember));
    }
    for said in [json!(1), json!([]), json!("text"), Value::Null] {
        row(
            &format!("result {said}"),
            word(&answer(200, &result(&said)), remember),
        );
    }
    insta::assert_snapshot!(table, @r#"
    result None: executed
    result Some("complete"): executed
    result Some("task"): unknown
    result Some("input_required"): unknown
    result Some("new"): unknown
    requestState: executed
    inputRequests: executed
    isError Remember: executed
    isError Rejected: rejected
    isError Unknown: unknown
    error -32700: unknown
    error -32600: unknown
    error -32601: unknown
    error -32602: unknown
    error -32603: unknown
    error -32000: unknown
    error -32001: unknown
    error -32020: unknown
    error -32021: unknown
    error -32022: unknown
    error -32042: unknown
    error 1: unknown
    400 with error -32000: unknown
    400 with error -32603: unknown
    404 with error -32601: unknown
    404 with error -32001: unknown
    500 with error -32000: unknown
    500 with error -32602: unknown
    500 with a result: unknown
    200 without a message: unknown
    202 without a message: unknown
    204 without a message: unknown
    301 without a message: unknown
    307 without a message: unknown
    400 without a message: rejected
    401 without a message: rejected
    402 without a message: unknown
    403 without a message: rejected
    404 without a message: unknown
    405 without a message: rejected
    406 without a message: rejected
    408 without a message: unknown
    409 without a message: unknown
    413 without a message: rejected
    415 without a message: rejected
    422 without a message: unknown
    425 without a message: unknown
    429 without a message: unknown
    500 without a message: unknown
    502 without a message: unknown
    503 without a message: unknown
    400 with error -32700 that names no request: rejected
    400 with error -32600 that names no request: rejected
    400 with error -32602 that names no request: rejected
    400 with error -32603 that names no request: unknown
    400 with error -32000 that names no request: unknown
    400 with error -32020 that names no request: unknown
    400 with error -32021 that names no request: rejected
    400 with error -32022 that names no request: unknown
    404 with error -32001 that names no request: unknown
    200 with error -32600 that names no request: unknown
    500 with error -32600 that names no request: unknown
    400 of a session with -32000: unknown
    404 of a session with -32001 that names the request: unknown
    404 of a session with -32603: unknown
    404 of a session with a result: unknown
    400 with a result: unknown
    200 cut off: unknown
    400 cut off: unknown
    404 cut off: unknown
    404 of a session: unknown
    404 of a session that a ping confirms: unavailable
    400 with -32000 of a session that a ping confirms: unavailable
    400 with -32000 without a session: unknown
    400 with -32020 that a question confirms: unavailable
    404 of a session that names the request and a ping confirms: unknown
    result 1: unknown
    result []: unknown
    result "text": unknown
    result null: unknown
    "#);
}

#[test]
fn a_result_is_kept_byte_for_byte_without_its_envelope() {
    let stored = r#"{"content" : [],  "n":1.50,"isError":true}"#;
    let message = format!(r#"{{"result":{stored},"id":"1","jsonrpc":"2.0"}}"#);
    let answer = McpAnswer {
        status: 200,
        body: Body::Whole(message.into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    };
    let (outcome, _) = classify(&answer, Errors::default(), None);
    assert_eq!(outcome, Outcome::Executed(Content::Stored(stored.into())));
    let rejected = Errors {
        tool_error: ToolError::Rejected,
        ..Errors::default()
    };
    let (outcome, _) = classify(&answer, rejected, None);
    let Outcome::NotExecuted(failure) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(failure.body, Some(stored.into()), "callers read why");
}

#[test]
fn only_the_response_to_our_request_is_ours() {
    let said = |message: Value| matches(message.to_string().as_bytes(), "1");
    assert_eq!(said(result(&json!({}))), Match::Ours);
    assert_eq!(said(error(-32_603)), Match::Ours);
    for nameless in [
        json!({ "id": null, "error": { "code": -32_700 } }),
        json!({ "error": { "code": -32_700 } }),
        json!({ "id": "server-error", "error": { "code": -32_600 } }),
    ] {
        assert_eq!(said(nameless.clone()), Match::Nameless, "{nameless}");
    }
    for another in [
        json!({ "id": "2", "result": {} }),
        json!({ "id": 1, "result": {} }),
        json!({ "id": "oncegate-2", "error": { "code": -32_600 } }),
        json!({ "id": null, "result": {} }),
        json!({ "result": {} }),
    ] {
        assert_eq!(said(another.clone()), Match::Another, "{another}");
    }
    for none in [
        json!({ "id": "1" }),
        json!({ "id": "1", "method": "ping" }),
        json!({ "id": "1", "result": {}, "error": { "code": 1 } }),
        json!({ "method": "notifications/progress", "params": {} }),
        json!([{ "id": "1", "result": {} }]),
        json!("1"),
    ] {
        assert_eq!(said(none.clone()), Match::None, "{none}");
    }
    for none in [&b"{\"id\":\"1\",\"result\":{}"[..], b"\xff", b""] {
        assert_eq!(matches(none, "1"), Match::None);
    }
}

#[test]
fn errors_about_the_request_prove_only_what_the_operator_declares() {
    let declared = Errors {
        request_errors: RequestErrors::Rejected,
        ..Errors::default()
    };
    let said = answer(200, &error(-32_602));
    let is_rejected = |errors| matches!(classify(&said, errors, None).0, Outcome::NotExecuted(_));
    assert!(is_rejected(declared));
    assert!(
        !is_rejected(Errors::default()),
        "a result that is wrong is found after the effect"
    );
    for (status, code, is_rejected) in [
        (200, -32_700, true),
        (200, -32_600, true),
        (200, -32_601, true),
        (200, -32_602, true),
        (200, -32_020, true),
        (200, -32_021, true),
        (200, -32_022, true),
        (499, -32_602, true),
        // The declaration covers errors about the request, and no others.
        (500, -32_602, false),
        (200, -32_603, false),
        (200, -32_000, false),
        (200, -32_019, false),
        (200, -32_023, false),
        (200, -32_599, false),
        (200, -32_701, false),
        (200, 1, false),
        (500, 1, false),
    ] {
        let (outcome, _) = classify(&answer(status, &error(code)), declared, None);
        let is = matches!(outcome, Outcome::NotExecuted(_));
        assert_eq!(is, is_rejected, "{status} {code}");
    }
}

#[test]
fn a_value_is_found_in_structured_content_or_in_a_json_text() {
    let has = |result: Value| has(result.to_string().as_bytes(), "/order/id");
    let order = json!({ "order": { "id": 7 } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    for found in [
        json!({ "content": [], "structuredContent": order }),
        json!({ "content": [text(&order.to_string())] }),
        json!({ "content": [text("Here it is:"), text(&order.to_string())] }),
        json!({ "content": [text(&order.to_string())], "structuredContent": null }),
        json!({ "content": [], "structuredContent": order, "resultType": "complete" }),
    ] {
        assert_eq!(has(found.clone()), Some(true), "{found}");
    }
    let beside = json!({ "order": { "id": 7 }, "errors": ["a part is missing"] });
    let beside = json!({ "content": [], "structuredContent": beside });
    assert_eq!(has(beside), Some(true));
    for id in [json!(null), json!(false), json!(""), json!([]), json!({})] {
        let said = json!({ "content": [], "structuredContent": { "order": { "id": id } } });
        assert_eq!(has(said.clone()), Some(false), "{said}");
    }
    let none =
        json!({ "content": [text(&order.to_string())], "structuredContent": { "order": null } });
    assert_eq!(has(none), Some(false), "the text only repeats it");
    for unclear in [
        json!({ "content": [text("database is locked")] }),
        json!({ "content": [text("null")] }),
        json!({ "content": [text("404")] }),
        json!({ "content": [text("\"timeout\"")] }),
        json!({ "content": [text("{}"), text("timeout")] }),
        json!({ "content": [text("{}"), { "type": "image", "data": "", "mimeType": "image/png" }] }),
        json!({ "content": [] }),
        json!({ "content": [], "structuredContent": null }),
        json!({ "content": [], "structuredContent": { "error": "a shard timed out" } }),
        json!({ "content": [], "structuredContent": { "order": {}, "errors": [1] } }),
        json!({ "content": [text("{}"), text("{\"error\":true}")] }),
        json!({ "content": [], "structuredContent": order, "resultType": "task" }),
        json!({}),
    ] {
        assert_eq!(has(unclear.clone()), None, "{unclear}");
    }
}

#[test]
fn a_result_of_a_server_is_told_from_others() {
    for one in [
        r#"{"content":[],"isError":false}"#,
        r#"{"resultType":"task"}"#,
        r#"{"resultType":"input_required","requestState":"s"}"#,
    ] {
        assert!(is_tool_result(one.as_bytes()), "{one}");
    }
    for other in [
        &br#"{"content":"text"}"#[..],
        b"{}",
        b"[]",
        b"1",
        b"{\"content\":{}}",
    ] {
        assert!(!is_tool_result(other));
    }
    assert!(is_error(br#"{"content":[],"isError":true}"#));
    assert!(!is_error(br#"{"content":[],"isError":false}"#));
    assert!(!is_error(br#"{"content":[]}"#));
}
