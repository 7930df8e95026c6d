//! The answers of a record about itself.

use super::*;
use crate::testing::{at, succeeded};

fn result() -> Content {
    Content::Stored("{\"id\":7}".into())
}

fn failure(body: Option<&'static str>) -> State {
    State::Failed(Failure {
        body: body.map(Into::into),
        ..Failure::new(FailureKind::Rejected, "it is full")
    })
}

/// Every state, with its result and the kept answer of the tool.
fn states() -> Vec<(State, Option<Content>, Option<&'static str>)> {
    let json = "{\"id\":7}";
    let gone = || Content::Unavailable("cut off".into());
    let some = || Some(result());
    vec![
        (State::Running, None, None),
        (State::Unknown("timed out".into()), None, None),
        (failure(None), None, None),
        (failure(Some("\"full\"")), None, Some("\"full\"")),
        (State::Succeeded(result()), some(), Some(json)),
        (State::Succeeded(gone()), Some(gone()), None),
        (State::Compensating(some()), some(), Some(json)),
        (State::Compensating(None), None, None),
        (State::Compensated(some()), some(), Some(json)),
        (State::Stuck(some()), some(), Some(json)),
        (State::Stuck(None), None, None),
    ]
}

#[test]
fn an_encrypted_answer_takes_as_many_bytes_as_it_has() {
    for (state, _, stored) in states() {
        assert_eq!(
            state.answer_bytes(),
            stored.map_or(0, str::len),
            "{state:?}"
        );
    }
    let sealed = || Some("sealed".into());
    let unread = Unread {
        why: "no key decrypts it".into(),
        sealed: sealed(),
    };
    let failure = Failure {
        sealed: sealed(),
        ..Failure::new(FailureKind::Rejected, "it is full")
    };
    for state in [
        State::Stuck(Some(Content::Unavailable(unread))),
        State::Failed(failure),
    ] {
        assert_eq!(state.answer_bytes(), 6);
        assert_eq!(state.stored(), None);
    }
}

#[test]
fn the_result_and_the_kept_text_of_every_state_can_be_read_and_replaced() {
    for (mut state, content, stored) in states() {
        let before = state.clone();
        assert_eq!(state.content(), content.as_ref(), "{before:?}");
        assert_eq!(state.content_mut().cloned(), content, "{before:?}");
        let text = state.stored_mut().map(|text| text.clone());
        assert_eq!(text.as_deref(), stored.map(str::as_bytes), "{before:?}");
        if let Some(text) = state.stored_mut() {
            *text = "0".into();
        }
        let text = state.stored_mut().map(|text| text.clone());
        assert_eq!(text.is_some(), stored.is_some());
        assert!(text.is_none_or(|text| text == "0"), "{before:?}");
    }
}

#[test]
fn without_texts_a_record_says_nothing_of_caller_or_tool_and_everything_else() {
    for (state, content, _) in states() {
        let mut record = Record {
            state: state.clone(),
            ..succeeded("{}")
        };
        Arc::make_mut(&mut record.intent).args = "{\"card\":1}".into();
        let mut expected = record.clone();
        Arc::make_mut(&mut expected.intent).args = Bytes::new();
        let none = Content::Unavailable("".into());
        expected.state = match (state, content) {
            (State::Failed(_), _) => failure(None),
            (State::Succeeded(_), _) => State::Succeeded(none),
            (State::Compensating(_), Some(_)) => State::Compensating(Some(none)),
            (State::Compensated(_), Some(_)) => State::Compensated(Some(none)),
            (State::Stuck(_), Some(_)) => State::Stuck(Some(none)),
            (state, _) => state,
        };
        assert_eq!(record.without_texts(), expected);
    }
}

#[test]
fn a_call_is_kept_until_its_key_is_free_or_it_may_be_forgotten() {
    for (expires_at, retain_until, is_remembered) in [
        (None, None, true),
        (Some(10), None, false),
        (Some(11), None, true),
        (None, Some(10), false),
        (None, Some(11), true),
        (Some(11), Some(11), true),
        (Some(11), Some(10), false),
        (Some(9), Some(11), false),
    ] {
        let record = Record {
            expires_at: expires_at.map(at),
            retain_until: retain_until.map(at),
            ..succeeded("{}")
        };
        let found = record.is_remembered_at(at(10));
        assert_eq!(found, is_remembered, "{expires_at:?} {retain_until:?}");
    }
}

#[test]
fn the_id_of_a_call_says_when_it_was_made() {
    let time = uuid::Timestamp::from_unix(uuid::NoContext, 1_800_000_007, 250_000_000);
    let made = CallId::new(Uuid::new_v7(time), &key::Lookup::new("shop", "t", "k"));
    let at = Timestamp::new(1_800_000_007, 250_000_000).expect("a time");
    assert_eq!(made.made_at(), Some(at));
    let random = CallId(Uuid::from_u128(0xca11));
    assert_eq!(random.made_at(), None, "it holds no time");
}
