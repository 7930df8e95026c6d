//! The table from evidence to outcome, status by status.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::evidence::McpAnswer;
use crate::key::Source;
use crate::record::Intent;
use crate::testing::succeeded;
use crate::testing::tool;
use crate::tool::{Mcp, Protocol, Proxy, ToolError};
use proptest::prelude::*;

fn answer(status: u16, body: &'static str) -> Evidence {
    Evidence::Answer {
        status,
        body: Body::Whole(body.into()),
        retry_after: None,
        newest_token: None,
    }
}

/// The outcome in one word, a failure by its kind.
fn word(tool: &Tool, evidence: &Evidence, doubted: bool) -> &'static str {
    match classify(
        tool,
        evidence,
        Sent {
            earlier_attempt_may_have_run: doubted,
            fencing: None,
            must_be_sure: false,
            undoes: false,
        },
    )
    .0
    {
        Outcome::NotExecuted(failure) => failure.kind.as_str(),
        outcome => outcome.as_str(),
    }
}

#[test]
fn the_default_table() {
    let tool = tool("t");
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    for status in 200..=599 {
        let word = word(&tool, &answer(status, "{}"), false);
        match rows.last_mut() {
            Some((last, range)) if *last == word => range.push(status.to_string()),
            _ => rows.push((word, vec![status.to_string()])),
        }
    }
    let table: String = rows
        .iter()
        .map(|(word, range)| match range.as_slice() {
            [one] => format!("{one} {word}\n"),
            [first, .., last] => format!("{first}-{last} {word}\n"),
            [] => String::new(),
        })
        .collect();
    insta::assert_snapshot!(table, @r"
    200-299 executed
    300-302 unknown
    303 executed
    304-399 unknown
    400-406 rejected
    407-408 unknown
    409-417 rejected
    418-420 unknown
    421-422 rejected
    423 unknown
    424 rejected
    425 unavailable
    426 rejected
    427 unknown
    428 rejected
    429 unavailable
    430 unknown
    431 rejected
    432-450 unknown
    451 rejected
    452-500 unknown
    501 rejected
    502-504 unknown
    505 rejected
    506-599 unknown
    ");
}

#[test]
fn only_what_was_surely_not_sent_is_not_executed_without_an_answer() {
    let tool = tool("t");
    assert_eq!(
        word(
            &tool,
            &Evidence::NotSent {
                why: "refused".into()
            },
            false
        ),
        "unreachable"
    );
    assert_eq!(
        word(
            &tool,
            &Evidence::NoAnswer {
                why: "reset".into()
            },
            false
        ),
        "unknown"
    );
    assert_eq!(
        word(
            &tool,
            &Evidence::Lost {
                why: "killed".into()
            },
            false
        ),
        "unknown"
    );
}

#[test]
fn a_tool_may_declare_single_statuses() {
    let mut tool = tool("t");
    tool.outcomes = BTreeMap::from([
        (503, Declared::NotExecuted),
        (404, Declared::Unknown),
        (500, Declared::Executed),
        (200, Declared::Rejected),
    ]);
    let words = [503, 404, 500, 200, 502].map(|status| word(&tool, &answer(status, "{}"), false));
    assert_eq!(
        words,
        ["unavailable", "unknown", "executed", "rejected", "unknown"]
    );
}

#[test]
fn a_stale_token_is_told_from_other_conflicts() {
    let tool = tool("t");
    let refused = |status, ours, newest_token, doubted| {
        let body = Body::Whole("{}".into());
        let evidence = Evidence::Answer {
            status,
            body,
            retry_after: None,
            newest_token,
        };
        match classify(
            &tool,
            &evidence,
            Sent {
                earlier_attempt_may_have_run: doubted,
                fencing: ours,
                must_be_sure: false,
                undoes: false,
            },
        )
        .0
        {
            Outcome::NotExecuted(failure) => failure.kind.as_str(),
            outcome => outcome.as_str(),
        }
    };
    assert_eq!(refused(409, Some(7), Some(8), false), "fenced");
    assert_eq!(
        refused(409, Some(7), Some(7), false),
        "rejected",
        "it has seen nothing newer"
    );
    assert_eq!(
        refused(409, Some(7), None, false),
        "rejected",
        "any conflict may be meant"
    );
    assert_eq!(
        refused(409, None, Some(8), false),
        "rejected",
        "none was sent"
    );
    assert_eq!(
        refused(412, Some(7), None, false),
        "fenced",
        "no other precondition was sent"
    );
    assert_eq!(refused(422, Some(7), Some(8), false), "rejected");
    assert_eq!(refused(200, Some(7), Some(8), false), "executed");
    assert_eq!(
        refused(412, Some(7), Some(8), true),
        "unknown",
        "the first attempt may have been executed"
    );
}

#[test]
fn a_2xx_that_fails_the_success_test_is_what_the_tool_declares() {
    let mut tool = tool("t");
    let test = SuccessTest {
        pointer: "/status".parse().expect("a pointer"),
        equals: json!("ok"),
        otherwise: Declared::Rejected,
    };
    tool.success = Some(test.clone());
    let cut = Evidence::Answer {
        status: 200,
        body: Body::Broken("cut".into()),
        retry_after: None,
        newest_token: None,
    };
    assert_eq!(
        word(&tool, &answer(200, r#"{"status":"ok"}"#), false),
        "executed"
    );
    assert_eq!(
        word(&tool, &answer(200, r#"{"status":"failed"}"#), false),
        "rejected"
    );
    assert_eq!(
        word(&tool, &cut, false),
        "unknown",
        "what cannot be read cannot be told"
    );
    for body in ["{}", "no JSON", "", "{\"status\":"] {
        assert_eq!(word(&tool, &answer(200, body), false), "unknown", "{body}");
    }
    tool.success = Some(SuccessTest {
        otherwise: Declared::Unknown,
        ..test.clone()
    });
    assert_eq!(
        word(&tool, &answer(200, r#"{"status":"failed"}"#), false),
        "unknown"
    );
    tool.success = Some(SuccessTest {
        equals: json!(0),
        ..test
    });
    assert_eq!(
        word(&tool, &answer(200, r#"{"status":0.0}"#), false),
        "executed",
        "numbers are compared by value"
    );
}

#[test]
fn results_are_kept_byte_for_byte_and_what_is_no_json_is_wrapped() {
    let stored = |bytes: &'static [u8]| match keep(&Body::Whole(bytes.into())) {
        Content::Stored(json) => json,
        Content::Unavailable(unread) => panic!("{unread:?}"),
    };
    assert_eq!(
        stored(b" {\"b\":1.0, \"a\":2,\"a\":3}\n"),
        " {\"b\":1.0, \"a\":2,\"a\":3}\n"
    );
    assert_eq!(stored(b"null"), "null");
    assert_eq!(stored(b"thank \"you\""), r#"{"text":"thank \"you\""}"#);
    assert_eq!(stored(b""), r#"{"text":""}"#);
    assert_eq!(stored(b"\xff\x00"), r#"{"base64":"/wA="}"#);
    assert_eq!(stored(b"\"\xff\""), r#"{"base64":"Iv8i"}"#);
    assert_eq!(
        keep(&Body::Broken("cut".into())),
        Content::Unavailable("cut".into())
    );
}

proptest! {
    #[test]
    fn after_a_doubt_nothing_proves_that_it_was_not_executed(status in 100..700_u16, sent: bool) {
        let evidence = if sent { answer(status, "{}") } else { Evidence::NotSent { why: "refused".into() } };
        let word = word(&tool("t"), &evidence, true);
        prop_assert!(word == "executed" || word == "unknown", "{word}");
    }

    #[test]
    fn what_is_kept_is_always_one_json_text(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let Content::Stored(json) = keep(&Body::Whole(bytes.into())) else { panic!("must be stored") };
        prop_assert!(serde_json::from_slice::<Value>(&json).is_ok());
    }
}

#[test]
fn an_error_as_the_result_leaves_in_doubt_what_others_rely_on() {
    let body = r#"{"id":"1","result":{"content":[],"isError":true}}"#;
    let evidence = Evidence::Mcp(McpAnswer {
        status: 200,
        body: Body::Whole(body.into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    });
    let judged = |tool: &Tool, must_be_sure| {
        let sent = Sent {
            must_be_sure,
            ..Sent::default()
        };
        classify(tool, &evidence, sent).0.as_str()
    };
    let mut tool = tool("t");
    assert_eq!(judged(&tool, false), "executed");
    assert_eq!(judged(&tool, true), "unknown");
    let errors = |tool_error| {
        let errors = Errors {
            tool_error,
            ..Errors::default()
        };
        Protocol::Mcp(Mcp { errors, asks: None })
    };
    tool.protocol = errors(ToolError::Rejected);
    assert_eq!(judged(&tool, true), "not_executed", "the operator says so");
    tool.protocol = errors(ToolError::Remember);
    tool.effect = Effect::Read;
    assert_eq!(judged(&tool, true), "executed", "a read has no effect");
}

#[test]
fn others_rely_on_calls_of_a_saga_and_on_those_that_undo() {
    let sure = |change: fn(&mut Intent)| {
        let mut record = succeeded("{}");
        change(Arc::make_mut(&mut record.intent));
        Sent::of(&record).must_be_sure
    };
    assert!(!sure(|_| {}));
    assert!(sure(|intent| intent.saga_id = "s".into()));
    assert!(sure(|intent| intent.key_source = Source::Compensation));
}

#[test]
fn questions_prove_nothing_after_an_attempt_that_may_have_run_and_never_undo() {
    let body = r#"{"id":"1","result":{"resultType":"input_required","requestState":"s"}}"#;
    let evidence = Evidence::Mcp(McpAnswer {
        status: 200,
        body: Body::Whole(body.into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    });
    let tool = Tool {
        protocol: Protocol::Mcp(Mcp::default()),
        ..tool("t")
    };
    for (earlier_attempt_may_have_run, undoes, expected) in [
        (false, false, "executed"),
        (true, false, "unknown"),
        (false, true, "unknown"),
    ] {
        let sent = Sent {
            earlier_attempt_may_have_run,
            undoes,
            ..Sent::default()
        };
        assert_eq!(classify(&tool, &evidence, sent).0.as_str(), expected);
    }
}

#[test]
fn an_unclear_answer_is_described() {
    let tool = tool("t");
    let said = |status, body: Body| {
        let evidence = Evidence::Answer {
            status,
            body,
            retry_after: None,
            newest_token: None,
        };
        classify(&tool, &evidence, Sent::default()).1
    };
    assert_eq!(
        said(302, Body::Whole("moved".into())),
        "the tool answered 302 with 5 bytes; redirects are never followed"
    );
    assert_eq!(
        said(500, Body::Broken("cut off".into())),
        "the tool answered 500 with a body that could not be read (cut off); that does not prove that it was not executed"
    );
}

#[test]
fn only_a_proxy_keeps_the_body_of_an_answer_that_asks_to_come_again() {
    let plain = tool("t");
    let proxied = Tool {
        protocol: Protocol::Proxy(Proxy::default()),
        ..tool("t")
    };
    let whole = || Body::Whole(r#"{"busy":true}"#.into());
    for (tool, body, stored) in [
        (&proxied, whole(), Some(r#"{"busy":true}"#)),
        (&proxied, Body::Broken("cut off".into()), None),
        (&plain, whole(), None),
    ] {
        let evidence = Evidence::Answer {
            status: 429,
            body,
            retry_after: None,
            newest_token: None,
        };
        let failure = Failure {
            kind: FailureKind::Unavailable,
            status: Some(429),
            body: stored.map(Into::into),
            sealed: None,
            retry_after: None,
            why: "the tool answered 429".into(),
        };
        let (outcome, _) = classify(tool, &evidence, Sent::default());
        assert_eq!(outcome, Outcome::NotExecuted(failure));
    }
}
