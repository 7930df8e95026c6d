//! What the gateway keeps of an answer, and when an answer ends the agreement with a server.

use super::*;

#[test]
fn a_refusal_is_kept_with_status_and_error() {
    let nameless = |status, code, has_session| McpAnswer {
        has_session,
        names_request: false,
        is_forgotten: true,
        ..answer(status, &error(code))
    };
    let stored = |answer: &McpAnswer| match classify(answer, Errors::default(), None) {
        (Outcome::NotExecuted(failure), why) => {
            assert_eq!(failure.why, why);
            let body = failure
                .body
                .map(|body| String::from_utf8(body.to_vec()).expect("text"));
            (failure.kind, failure.status, body)
        }
        other => panic!("{other:?}"),
    };
    let said = r#"{"code":-32600,"message":"m"}"#.to_owned();
    assert_eq!(
        stored(&nameless(400, -32_600, false)),
        (FailureKind::Rejected, Some(400), Some(said))
    );
    for (status, code, has_session) in [
        (404, -32_001, true),
        (400, -32_000, true),
        (400, -32_020, false),
        (400, -32_022, false),
    ] {
        assert_eq!(
            stored(&nameless(status, code, has_session)),
            (FailureKind::Unavailable, Some(status), None),
            "{status} {code}"
        );
    }
}

#[test]
fn an_agreement_ends_with_its_session_its_revision_or_its_token() {
    for (status, code, has_session, ends) in [
        (200, Some(-32_000), true, false),
        (401, None, false, true),
        (403, Some(1), false, true),
        (404, None, true, true),
        (404, None, false, false),
        (400, Some(-32_000), true, true),
        (400, Some(-32_000), false, false),
        (400, Some(-32_020), false, true),
        (400, Some(-32_022), false, true),
        (400, Some(-32_021), true, false),
        (400, None, true, false),
        (500, Some(-32_022), true, false),
    ] {
        let message = code.map_or(Value::Null, error);
        let answer = McpAnswer {
            has_session,
            ..answer(status, &message)
        };
        assert_eq!(ends_agreement(&answer), ends, "{status} {code:?}");
        let cut_off = McpAnswer {
            body: Body::Broken("cut off".into()),
            ..answer
        };
        let by_status = matches!((status, has_session), (401 | 403, _) | (404, true));
        assert_eq!(ends_agreement(&cut_off), by_status, "{status} cut off");
    }
}

#[test]
fn an_answer_to_a_question_is_an_object_or_an_error_or_none() {
    let read = |message: Value| match reply(&answer(200, &message)) {
        Ok(Reply::Result(said)) => format!("result {}", String::from_utf8_lossy(&said)),
        Ok(Reply::Error(said)) => format!("error {}", String::from_utf8_lossy(&said)),
        Err(why) => why,
    };
    assert_eq!(
        read(result(&json!({ "tools": [] }))),
        "result {\"tools\":[]}"
    );
    assert_eq!(
        read(error(-32_601)),
        "error {\"code\":-32601,\"message\":\"m\"}"
    );
    for other in [
        result(&json!([])),
        result(&json!("text")),
        result(&Value::Null),
        json!({ "id": "1" }),
        json!([]),
    ] {
        assert_eq!(read(other), "it answered 200 without a result");
    }
    let broken = McpAnswer {
        body: Body::Broken("cut off".into()),
        ..answer(200, &Value::Null)
    };
    assert_eq!(reply(&broken).map(|_| ()), Err("cut off".to_owned()));
}

#[test]
fn a_declared_status_counts_for_an_answer_without_a_result() {
    let judged = |answer: &McpAnswer, declared| {
        let (outcome, _) = classify(answer, Errors::default(), Some(declared));
        match outcome {
            Outcome::NotExecuted(failure) => failure.kind.as_str().to_owned(),
            outcome => outcome.as_str().to_owned(),
        }
    };
    for (declared, expected) in [
        (Declared::Executed, "executed"),
        (Declared::NotExecuted, "unavailable"),
        (Declared::Rejected, "rejected"),
        (Declared::Fenced, "fenced"),
        (Declared::Unknown, "unknown"),
    ] {
        assert_eq!(judged(&answer(503, &error(-32_603)), declared), expected);
        assert_eq!(judged(&answer(400, &Value::Null), declared), expected);
    }
    let result = result(&json!({ "content": [] }));
    assert_eq!(
        judged(&answer(200, &result), Declared::Rejected),
        "executed"
    );
    assert_eq!(judged(&answer(500, &result), Declared::Rejected), "unknown");
    let empty = answer(200, &Value::Null);
    assert_eq!(
        judged(&empty, Declared::Rejected),
        "unknown",
        "2xx is said first"
    );
    let another = McpAnswer {
        body: Body::Broken(ANOTHER.into()),
        ..answer(404, &Value::Null)
    };
    assert_eq!(judged(&another, Declared::Rejected), "unknown");
}

#[test]
fn only_the_same_refusal_of_a_question_confirms_that_a_session_is_lost() {
    let nameless = |status, code| McpAnswer {
        has_session: true,
        names_request: false,
        ..answer(status, &error(code))
    };
    let lost = nameless(404, -32_001);
    assert!(is_same_refusal(&nameless(404, -32_601), &lost));
    let method = McpAnswer {
        names_request: true,
        ..nameless(404, -32_601)
    };
    assert!(
        !is_same_refusal(&method, &lost),
        "it does not know the method"
    );
    for other in [(200, -32_601), (400, -32_000), (401, 1), (500, -32_001)] {
        assert!(
            !is_same_refusal(&nameless(other.0, other.1), &lost),
            "{other:?}"
        );
    }
    let bad = nameless(400, -32_000);
    assert!(is_same_refusal(&bad, &bad));
    assert!(!is_same_refusal(&nameless(400, -32_020), &bad));
}
