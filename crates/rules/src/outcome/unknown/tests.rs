//! What probes prove, and when an unknown call is checked.

use serde_json::json;

use super::*;
use crate::testing::{probed_by, tool};
use crate::tool::{Declared, SuccessTest};

/// The finding of a probe, in one word.
fn word(tool: &Tool, status: u16, body: &Body) -> &'static str {
    match read_probe(tool, status, body) {
        Finding::Found(Content::Stored(_)) => "found",
        Finding::Found(Content::Unavailable(_)) => "found, unreadable",
        Finding::NotFound => "not found",
        Finding::Unclear(_) => "unclear",
    }
}

#[test]
fn a_probe_is_believed_only_if_it_tells_of_the_call() {
    let (plain, whole) = (tool("t"), |text: &'static str| Body::Whole(text.into()));
    for (status, body, said) in [
        (200, "{}", "found"),
        (201, "text", "found"),
        (200, "", "unclear"),
        (202, "{}", "unclear"),
        (204, "", "unclear"),
        (303, "{}", "unclear"),
        (404, "", "not found"),
        (410, "{}", "unclear"),
        (429, "{}", "unclear"),
        (500, "{}", "unclear"),
    ] {
        assert_eq!(
            word(&plain, status, &whole(body)),
            said,
            "{status} {body:?}"
        );
    }
    let cut = Body::Broken("it is longer than 9 bytes".into());
    assert_eq!(
        word(&plain, 200, &cut),
        "found, unreadable",
        "it is there all the same"
    );
    assert_eq!(word(&plain, 202, &cut), "unclear");
    let search = Tool {
        protocol: probed_by("http://shop/by-key/{key}", Some("/data/0")),
        ..tool("t")
    };
    for (body, said) in [
        (r#"{"data":[{"id":1}]}"#, "found"),
        (r#"{"data":[]}"#, "not found"),
        (r#"{"data":[null]}"#, "not found"),
        (r#"{"data":[[]]}"#, "not found"),
        (r#"{"data":{}}"#, "unclear"),
        (r#"{"data":null}"#, "unclear"),
        (r#"{"error":"busy"}"#, "unclear"),
        ("no JSON", "unclear"),
    ] {
        assert_eq!(word(&search, 200, &whole(body)), said, "{body}");
    }
    assert_eq!(word(&search, 200, &cut), "unclear");
    let search = Tool {
        protocol: probed_by("http://shop/by-key/{key}", Some("/charge")),
        ..tool("t")
    };
    for (body, said) in [
        ("{}", "unclear"),
        ("[]", "not found"),
        (r#"{"charge":null}"#, "not found"),
        (r#"{"charge":null,"errors":[{}]}"#, "unclear"),
        (
            r#"{"charge":[],"errors":[{"message":"a shard timed out"}]}"#,
            "unclear",
        ),
        (r#"{"charge":[],"error":"a shard timed out"}"#, "unclear"),
        (r#"{"charge":[],"error":{}}"#, "unclear"),
        (r#"{"charge":[],"errors":[],"error":null}"#, "not found"),
        (r#"{"charge":["ch_1"],"errors":[{}]}"#, "found"),
        (r#"{"charge":0}"#, "unclear"),
        (r#"{"charge":false}"#, "unclear"),
        (r#"{"charge":""}"#, "unclear"),
        (r#"{"charge":{}}"#, "unclear"),
        (r#"{"charge":"ch_1"}"#, "found"),
    ] {
        assert_eq!(word(&search, 200, &whole(body)), said, "{body}");
    }
    let tested = Tool {
        success: Some(SuccessTest {
            pointer: "/ok".parse().expect("a pointer"),
            equals: json!(true),
            otherwise: Declared::Unknown,
        }),
        ..search.clone()
    };
    let failed = whole(r#"{"ok":false,"charge":null}"#);
    assert_eq!(word(&tested, 200, &failed), "unclear");
    assert_eq!(word(&search, 404, &whole("{}")), "not found");
    let (pointer, equals) = ("/status".parse().expect("a pointer"), json!("done"));
    let success = Some(SuccessTest {
        pointer,
        equals,
        otherwise: Declared::Rejected,
    });
    let tests = Tool {
        success,
        ..tool("t")
    };
    for (body, said) in [
        ("{\"status\":\"done\"}", "found"),
        ("{\"status\":\"declined\"}", "unclear"),
        ("[]", "unclear"),
    ] {
        assert_eq!(word(&tests, 200, &whole(body)), said, "{body}");
    }
    assert_eq!(
        word(&tests, 200, &cut),
        "unclear",
        "what cannot be read cannot be tested"
    );
}

#[test]
fn a_caller_asks_again_when_something_may_have_changed_and_never_at_once() {
    use crate::testing::{at, failed, succeeded};
    let seconds = Duration::from_secs;
    let mut record = succeeded("{}");
    assert_eq!(next_look(&record, at(9)), None);
    record.state = failed();
    assert_eq!(next_look(&record, at(9)), None);
    record.state = State::Running;
    record.attempt.lease_until = at(20);
    assert_eq!(next_look(&record, at(9)), Some(seconds(11)));
    assert_eq!(next_look(&record, at(30)), Some(LEAST_WAIT), "it is over");
    record.state = State::Unknown("timed out".into());
    assert_eq!(next_look(&record, at(9)), None, "it is not worked on");
    let check = |at| Check {
        since: crate::testing::at(0),
        at,
        number: 0,
    };
    record.check = Some(check(Some(at(12))));
    assert_eq!(next_look(&record, at(9)), Some(seconds(3)));
    record.check = Some(check(None));
    assert_eq!(next_look(&record, at(9)), None, "it is given up");
}

#[test]
fn a_blocked_check_is_postponed_for_half_of_its_age() {
    use crate::testing::at;
    let seconds = Duration::from_secs;
    let tool = Tool {
        recheck: Recheck {
            base: seconds(2),
            max: seconds(60),
            give_up_after: seconds(1_000),
        },
        ..tool("t")
    };
    let check = Check {
        since: at(0),
        at: Some(at(1)),
        number: 3,
    };
    let waits = |age, wait| {
        let put_off = put_off(&tool, check, seconds(wait), at(age));
        let next = put_off.at.expect("a time").as_second() - at(age).as_second();
        assert_eq!((put_off.since, put_off.number), (at(0), 3));
        next
    };
    for (age, wait, expected) in [
        (0, 0, 2),
        (40, 0, 20),
        (40, 30, 30),
        (999, 0, 60),
        (1_000, 0, 500),
        (5_000, 0, 1_000),
    ] {
        assert_eq!(waits(age, wait), expected, "{age} {wait}");
    }
}

#[test]
fn a_list_that_is_not_empty_is_the_effect() {
    let search = Tool {
        protocol: probed_by("http://shop/by-key/{key}", Some("/data")),
        ..tool("t")
    };
    for (body, finding) in [
        (
            r#"{"data":[{"id":1}]}"#,
            Finding::Found(Content::Stored(r#"[{"id":1}]"#.into())),
        ),
        (r#"{"data":[]}"#, Finding::NotFound),
    ] {
        let read = read_probe(&search, 200, &Body::Whole(body.into()));
        assert_eq!(read, finding, "{body}");
    }
}

#[test]
fn a_search_that_finds_nothing_proves_nothing_without_a_declared_time() {
    use crate::testing::{at, succeeded};
    let mut record = succeeded("{}");
    record.attempt.lease_until = at(40);
    let asked_by_key = Tool {
        dedup: Dedup::Key,
        unknown: OnUnknown::Probe,
        ..tool("t")
    };
    let search = Tool {
        protocol: probed_by("http://shop/by-key/{key}", Some("/data")),
        ..asked_by_key.clone()
    };
    let declared = Tool {
        negative_final_after: Some(Duration::from_secs(60)),
        ..search.clone()
    };
    for (tool, from) in [
        (&asked_by_key, Some(40)),
        (&search, None),
        (&declared, Some(100)),
    ] {
        let mut seconds = 0..200;
        let first =
            seconds.find(|second| is_negative_final(tool, &record, at(*second), at(*second)));
        assert_eq!(first, from);
    }
}

#[test]
fn an_mcp_tool_that_is_asked_is_believed_only_with_a_complete_result() {
    let found = "/order".parse().expect("a pointer");
    let said = |result: &str| {
        let body = format!(r#"{{"id":"1","result":{result}}}"#);
        let answer = McpAnswer {
            status: 200,
            body: Body::Whole(body.into()),
            has_session: false,
            names_request: true,
            is_forgotten: false,
        };
        read_mcp_probe(&answer, &found)
    };
    let there = r#"{"content":[],"structuredContent":{"order":7}}"#;
    assert_eq!(said(there), Finding::Found(Content::Stored(there.into())));
    let gone = r#"{"content":[],"structuredContent":{"order":null}}"#;
    assert_eq!(said(gone), Finding::NotFound);
    for unclear in [
        r#"{"content":[{"type":"text","text":"not found"}]}"#,
        r#"{"content":[],"isError":true,"structuredContent":{"order":7}}"#,
        r#"{"content":[],"isError":true,"structuredContent":{"order":null}}"#,
    ] {
        let finding = said(unclear);
        assert!(matches!(finding, Finding::Unclear(_)), "{finding:?}");
    }
}
