use serde_json::{Value, json};

use super::*;
use crate::mcp::evidence::classify;
use crate::outcome::Outcome;
use crate::record::Content;
use crate::tool::Errors;

fn answer(body: Value) -> McpAnswer {
    McpAnswer {
        status: 200,
        body: Body::Whole(body.to_string().into()),
        has_session: false,
        names_request: true,
        is_forgotten: false,
    }
}

fn result(result: Value) -> McpAnswer {
    answer(json!({ "jsonrpc": "2.0", "id": "1", "result": result }))
}

fn task(status: &str, more: Value) -> McpAnswer {
    let mut task = json!({ "taskId": "t1", "status": status, "pollIntervalMs": 500 });
    let members = task.as_object_mut().expect("an object");
    members.extend(more.as_object().cloned().expect("an object"));
    result(task)
}

#[test]
fn a_task_is_given_by_a_result_of_its_kind_that_names_the_request() {
    let kind = json!({ "resultType": "task" });
    let given_one = given(&task("working", kind.clone())).expect("a task");
    assert_eq!(
        given_one,
        Given {
            id: "t1".into(),
            poll: Duration::from_millis(500)
        }
    );
    let long = json!({ "resultType": "task", "taskId": "x".repeat(MAX_ID + 1) });
    for none in [
        task("working", json!({})),
        task("working", json!({ "resultType": "complete" })),
        task("working", long),
        task("working", json!({ "resultType": "task", "taskId": "" })),
        task("working", json!({ "resultType": "task", "taskId": "a\nb" })),
        task("working", json!({ "resultType": "task", "taskId": 7 })),
        McpAnswer {
            names_request: false,
            ..task("working", kind.clone())
        },
        McpAnswer {
            status: 500,
            ..task("working", kind)
        },
        answer(json!({ "jsonrpc": "2.0", "id": "1", "error": { "code": 1 } })),
    ] {
        assert_eq!(given(&none), None, "{none:?}");
    }
}

#[test]
fn the_time_between_two_questions_has_bounds() {
    let poll = |ms: Value| {
        let more = json!({ "resultType": "task", "pollIntervalMs": ms });
        given(&task("working", more)).expect("a task").poll
    };
    assert_eq!(poll(json!(0)), POLL.0);
    assert_eq!(poll(json!(1e300)), POLL.1);
    assert_eq!(poll(json!(-5)), USUAL_POLL);
    assert_eq!(poll(Value::Null), USUAL_POLL);
    assert_eq!(poll(json!(1234.5)), Duration::from_micros(1_234_500));
}

#[test]
fn a_completed_task_proves_what_its_result_would_have_proved_at_once() {
    let inner = json!({ "content": [], "structuredContent": { "order": 7 } });
    let Seen::Ended(ended) = seen(&task("completed", json!({ "result": inner })), "t1") else {
        panic!("it has ended");
    };
    let (outcome, _) = classify(&ended, Errors::default(), None);
    let Outcome::Executed(Content::Stored(stored)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(
        serde_json::from_slice::<Value>(&stored).expect("JSON"),
        inner
    );
    let error = json!({ "code": -32_603, "message": "it broke" });
    let Seen::Ended(failed) = seen(&task("failed", json!({ "error": error })), "t1") else {
        panic!("it has ended");
    };
    assert_eq!(
        classify(&failed, Errors::default(), None).0,
        Outcome::Unknown
    );
    // A second task as the result of the first is not followed.
    let another =
        json!({ "result": { "resultType": "task", "taskId": "t2", "status": "working" } });
    let Seen::Ended(another) = seen(&task("completed", another), "t1") else {
        panic!("it has ended");
    };
    assert_eq!(
        classify(&another, Errors::default(), None).0,
        Outcome::Unknown
    );
}

#[test]
fn only_the_word_of_the_server_ends_a_task() {
    let error = |code: i64| {
        answer(json!({ "jsonrpc": "2.0", "id": "1", "error": { "code": code, "message": "m" } }))
    };
    assert!(matches!(seen(&error(-32_602), "t1"), Seen::Gone(_)));
    assert!(matches!(
        seen(&task("cancelled", json!({})), "t1"),
        Seen::Gone(_)
    ));
    let questions = json!({ "inputRequests": { "sure": { "method": "elicitation/create" } } });
    for (status, asks) in [
        ("working", None),
        (
            "input_required",
            Some(r#"{"sure":{"method":"elicitation/create"}}"#.to_owned()),
        ),
    ] {
        let poll = Duration::from_millis(500);
        let runs = seen(&task(status, questions.clone()), "t1");
        assert_eq!(runs, Seen::Runs { poll, asks });
    }
    for unclear in [
        error(-32_603),
        error(-32_021),
        task("completed", json!({})),
        task("failed", json!({})),
        task("exploded", json!({})),
        result(json!({ "content": [] })),
        McpAnswer {
            names_request: false,
            ..error(-32_602)
        },
        McpAnswer {
            body: Body::Broken("cut off".into()),
            ..error(-32_602)
        },
    ] {
        assert!(
            matches!(seen(&unclear, "t1"), Seen::Unclear(_)),
            "{unclear:?}"
        );
    }
    let other = seen(&task("cancelled", json!({})), "t2");
    assert!(matches!(other, Seen::Unclear(_)), "of another task");
}
