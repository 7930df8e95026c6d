//! Planted violations, and what is not one.

use serde_json::{Value, json};

use crate::history::Event;
use crate::verdict::judge;

/// Operations of one object: process, name, when it began and ended, how, and its values.
fn is_right(key: &str, operations: &[(u64, u64, &str, &str, Value, Value)]) -> bool {
    let mut events = Vec::new();
    for (process, (begin, end, f, kind, asked, answer)) in operations.iter().enumerate() {
        let event = |time: u64, kind: &str, value: &Value| json!({"time": time, "process": process.to_string(), "type": kind, "f": f, "key": key, "value": value});
        events.push(event(*begin, "invoke", asked));
        if *kind != "open" {
            events.push(event(*end, kind, answer));
        }
    }
    let events: Result<Vec<Event>, _> = events.into_iter().map(serde_json::from_value).collect();
    let mut events = events.expect("events");
    events.sort_by_key(|event| event.time);
    let verdict = judge(&events).expect("a history");
    assert_eq!(verdict.operations, operations.len());
    verdict.wrong.is_empty()
}

fn effect(begin: u64, end: u64, result: &str) -> (u64, u64, &str, &str, Value, Value) {
    (begin, end, "effect", "ok", Value::Null, json!(result))
}

fn answer(begin: u64, end: u64, result: &str) -> (u64, u64, &str, &str, Value, Value) {
    (begin, end, "ask", "ok", Value::Null, json!(result))
}

fn none(begin: u64, end: u64) -> (u64, u64, &'static str, &'static str, Value, Value) {
    (begin, end, "ask", "fail", Value::Null, Value::Null)
}

fn open(begin: u64) -> (u64, u64, &'static str, &'static str, Value, Value) {
    (begin, 0, "ask", "open", Value::Null, Value::Null)
}

fn unsure(begin: u64, end: u64) -> (u64, u64, &'static str, &'static str, Value, Value) {
    (begin, end, "unsure", "ok", Value::Null, Value::Null)
}

fn forget(at: u64) -> (u64, u64, &'static str, &'static str, Value, Value) {
    (at, at + 1, "forget", "ok", Value::Null, Value::Null)
}

fn set_back(at: u64) -> (u64, u64, &'static str, &'static str, Value, Value) {
    (at, at + 1, "set back", "ok", Value::Null, Value::Null)
}

#[test]
fn a_call_that_is_executed_once_and_replayed_is_right() {
    let history = [
        open(1),
        effect(2, 3, "a"),
        unsure(4, 5),
        answer(6, 9, "a"),
        answer(7, 8, "a"),
        answer(10, 11, "a"),
    ];
    assert!(is_right("call/1", &history));
    assert!(is_right(
        "call/1",
        &[none(1, 2), effect(4, 5, "a"), answer(3, 6, "a")]
    ));
    // "Nothing was executed", beside the effect of another request.
    assert!(is_right("call/1", &[effect(2, 9, "a"), none(1, 8)]));
}

#[test]
fn a_second_effect_is_found() {
    assert!(!is_right(
        "call/1",
        &[open(1), effect(2, 3, "a"), effect(5, 6, "b")]
    ));
}

#[test]
fn a_stale_or_foreign_result_is_found() {
    assert!(!is_right(
        "call/1",
        &[effect(2, 3, "a"), answer(1, 4, "a"), answer(5, 6, "b")]
    ));
    assert!(!is_right("call/1", &[answer(1, 2, "a"), effect(3, 4, "a")]));
}

#[test]
fn a_lost_success_is_found() {
    let begin = [effect(2, 3, "a"), answer(1, 4, "a")];
    assert!(!is_right("call/1", &[&begin[..], &[none(5, 6)]].concat()));
    assert!(!is_right("call/1", &[&begin[..], &[unsure(5, 6)]].concat()));
    assert!(is_right("call/1", &[&begin[..], &[open(5)]].concat()));
}

#[test]
fn only_an_accepted_loss_explains_a_second_effect() {
    let lost = [
        effect(2, 3, "a"),
        answer(1, 4, "a"),
        forget(5),
        effect(7, 8, "b"),
        answer(7, 9, "b"),
    ];
    assert!(is_right("call/1", &lost));
    let early = [effect(2, 3, "a"), effect(7, 8, "b"), forget(10)];
    assert!(!is_right("call/1", &early));
    let twice = [&lost[..], &[effect(10, 11, "c")]].concat();
    assert!(!is_right("call/1", &twice));
}

#[test]
fn a_tool_that_deduplicates_finds_what_the_store_has_lost() {
    let begin = [effect(2, 3, "a"), forget(5), none(7, 8)];
    let with = |rest: &[_]| is_right("call/1", &[&begin[..], rest].concat());
    let find = |at| (at, at + 1, "find", "ok", Value::Null, json!("a"));
    assert!(with(&[find(9), answer(11, 12, "a")]));
    assert!(!with(&[answer(11, 12, "a")]));
    assert!(!is_right("call/1", &[find(1)]));
}

#[test]
fn nothing_runs_over_older_data_before_an_operator_has_accepted_the_loss() {
    let begin = [effect(2, 3, "a"), answer(1, 4, "a"), set_back(5)];
    let with = |rest: &[_]| is_right("call/1", &[&begin[..], rest].concat());
    assert!(with(&[unsure(7, 8), forget(9), effect(11, 12, "b")]));
    assert!(with(&[forget(7), none(9, 10), effect(11, 12, "b")]));
    assert!(with(&[forget(7), answer(11, 12, "a")]));
    assert!(!with(&[effect(7, 8, "b"), forget(9)]));
    assert!(!with(&[forget(9), answer(11, 12, "b")]));
    assert!(!with(&[none(7, 8), forget(9)]));
    // Of a call that was not executed since the loss before.
    assert!(with(&[forget(7), set_back(9), none(11, 12)]));
    assert!(is_right("call/1", &[set_back(1), none(3, 4)]));
}

#[test]
fn a_reused_token_is_found() {
    let draw = |begin, end, token: u64| (begin, end, "draw", "ok", Value::Null, json!(token));
    let bring =
        |begin, end, kind, token: u64| (begin, end, "bring", kind, json!(token), json!(token));
    assert!(is_right("token/s", &[draw(1, 9, 8), draw(2, 3, 7)]));
    assert!(!is_right("token/s", &[draw(1, 3, 8), draw(4, 5, 7)]));
    assert!(!is_right("token/s", &[draw(1, 9, 7), draw(2, 3, 7)]));
    assert!(is_right(
        "token/s",
        &[
            draw(1, 2, 7),
            bring(3, 4, "ok", 7),
            draw(5, 6, 8),
            bring(7, 8, "fail", 7)
        ]
    ));
    assert!(!is_right(
        "token/s",
        &[draw(1, 2, 7), draw(5, 6, 8), bring(7, 8, "ok", 7)]
    ));
    assert!(!is_right(
        "token/s",
        &[draw(1, 2, 7), bring(3, 4, "fail", 7)]
    ));
    // After an accepted loss the store may take an earlier one for the newest, until the next is drawn.
    let lost = (7, 8, "forget", "ok", Value::Null, Value::Null);
    let begin = [draw(1, 2, 7), draw(5, 6, 8), lost];
    let with = |rest: &[_]| is_right("token/s", &[&begin[..], rest].concat());
    assert!(with(&[bring(9, 10, "ok", 7)]));
    assert!(!with(&[draw(9, 10, 8)]));
    assert!(!with(&[draw(9, 10, 9), bring(11, 12, "ok", 8)]));
    // Unless another call may have drawn one that was not seen.
    let unseen = (1, 0, "draw", "open", Value::Null, Value::Null);
    assert!(is_right(
        "token/s",
        &[unseen, draw(1, 2, 7), bring(3, 4, "fail", 7)]
    ));
}

#[test]
fn a_lock_that_is_held_twice_is_found() {
    let take = |begin, end, call: &str| (begin, end, "take", "ok", json!(call), Value::Null);
    let free = |at, call: &str| (at, at + 1, "free", "ok", json!(call), Value::Null);
    assert!(is_right(
        "lock/s",
        &[
            take(1, 2, "a"),
            take(1, 9, "b"),
            free(5, "a"),
            free(10, "b")
        ]
    ));
    assert!(!is_right(
        "lock/s",
        &[
            take(1, 2, "a"),
            take(1, 4, "b"),
            free(5, "a"),
            free(10, "b")
        ]
    ));
}

#[test]
fn a_saga_that_is_undone_in_part_or_out_of_order_is_found() {
    let of = |at, f, kind, asked: Value, answer: Value| (at, at + 1, f, kind, asked, answer);
    let undo = |at, call: &str, after: &[&str]| {
        of(
            at,
            "undo",
            "ok",
            json!({"call": call, "after": after}),
            Value::Null,
        )
    };
    let begin = [
        of(1, "do", "ok", json!("a"), Value::Null),
        of(3, "do", "ok", json!("b"), Value::Null),
        of(5, "abort", "open", Value::Null, Value::Null),
    ];
    let rest = |rest: &[(u64, u64, &'static str, &'static str, Value, Value)]| {
        is_right("saga/s", &[&begin[..], rest].concat())
    };
    let look = |at, state: &str| of(at, "look", "ok", Value::Null, json!(state));
    assert!(rest(&[
        undo(7, "b", &[]),
        undo(9, "a", &["b"]),
        look(11, "compensated")
    ]));
    assert!(!rest(&[undo(7, "b", &[]), look(11, "compensated")]));
    assert!(!rest(&[undo(7, "a", &["b"]), undo(9, "b", &[])]));
    assert!(!rest(&[undo(7, "b", &[]), undo(9, "b", &[])]));
    assert!(!rest(&[
        undo(7, "b", &[]),
        of(9, "do", "ok", json!("c"), Value::Null)
    ]));
    assert!(!rest(&[look(7, "completed"), undo(9, "b", &[])]));
}
