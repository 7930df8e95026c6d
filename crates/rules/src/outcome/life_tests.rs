//! Which answers show that a tool works.

use super::*;
use crate::evidence::McpAnswer;

fn answer(status: u16) -> Evidence {
    Evidence::Answer {
        status,
        body: Body::Whole("{}".into()),
        retry_after: None,
        newest_token: None,
    }
}

#[test]
fn a_refusal_is_a_sign_of_life_and_too_many_is_none() {
    for (status, is_one) in [
        (200, true),
        (303, true),
        (404, true),
        (499, true),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        assert_eq!(is_sign_of_life(&answer(status)), is_one, "{status}");
    }
    let why = || "nothing came".to_owned();
    for evidence in [
        Evidence::NotSent { why: why() },
        Evidence::NoAnswer { why: why() },
        Evidence::Lost { why: why() },
    ] {
        assert!(!is_sign_of_life(&evidence), "{evidence:?}");
    }
}

#[test]
fn a_tool_is_healthy_that_has_said_something_definite() {
    let failed = |kind| {
        Outcome::NotExecuted(Failure {
            kind,
            status: None,
            body: None,
            sealed: None,
            retry_after: None,
            why: String::new(),
        })
    };
    for (outcome, is_healthy) in [
        (Outcome::Executed(Content::Stored("{}".into())), true),
        (failed(FailureKind::Rejected), true),
        (failed(FailureKind::Fenced), true),
        (failed(FailureKind::Unavailable), false),
        (failed(FailureKind::Unreachable), false),
        (Outcome::Unknown, false),
    ] {
        assert_eq!(outcome.is_healthy(), is_healthy, "{outcome:?}");
    }
}

#[test]
fn an_mcp_server_that_refuses_a_request_is_there_and_one_that_failed_may_not_be() {
    let error = |code: i32| {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"1","error":{{"code":{code},"message":"m"}}}}"#);
        Evidence::Mcp(McpAnswer {
            status: 200,
            body: Body::Whole(body.into()),
            has_session: false,
            names_request: true,
            is_forgotten: false,
        })
    };
    assert!(is_sign_of_life(&error(-32602)), "invalid params");
    assert!(!is_sign_of_life(&error(-32603)), "internal error");
}
