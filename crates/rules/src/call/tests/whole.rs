//! Changes of a call, compared as whole records, so that a field that must not change is checked, too.

use super::rest::{change, check_due, probing, retrying, unknown};
use super::*;
use crate::key_scheme::KeySchemeId;
use crate::record::{Attempt, Check, Failure, Undo};
use crate::redact::MASK;
use crate::session::Release;

const HOUR: i64 = 3_600;
const MONTH: i64 = 30 * 24 * HOUR;

/// The next version of a call, written at this second.
fn next_of(before: &Record, seconds: i64) -> Record {
    Record {
        version: before.version + 1,
        updated_at: at(seconds),
        ..before.clone()
    }
}

/// The event of a change and its detail.
fn said(change: &Change) -> (&str, &str) {
    (&change.entry.event, &change.entry.detail)
}

fn exclusive(tool: Tool) -> Tool {
    let session = SessionPolicy {
        mode: Mode::Exclusive,
        ..tool.session
    };
    Tool { session, ..tool }
}

/// An answer with this body.
fn answer_of(body: &'static str) -> Evidence {
    Evidence::Answer {
        status: 200,
        body: outcome::Body::Whole(body.into()),
        retry_after: None,
        newest_token: None,
    }
}

/// A result that asks a question.
const ASKS: &str = r#"{"resultType":"input_required","requestState":"s"}"#;

fn asking() -> Tool {
    Tool {
        protocol: Protocol::Mcp(Mcp::default()),
        compensation: cancel(true),
        ..tool("t")
    }
}

fn compensation() -> Compensation {
    Compensation {
        tool: "cancel".into(),
        call_id: CallId(Uuid::from_u128(0xcace1)),
    }
}

#[test]
fn a_retry_is_the_next_attempt_of_the_same_run() {
    let tool = retrying();
    let first = record(&tool, key::Source::Derived, &[]);
    let second = change(&tool, &first, &ended_with(1, answer(429), Some(2)), 1).record;
    let of_second = Attempt {
        id: attempt(2),
        number: 2,
        ..first.attempt.clone()
    };
    let expected = Record {
        attempt: of_second.clone(),
        attempts: 2,
        ..next_of(&first, 1)
    };
    assert_eq!(second, expected);
    let third = change(&tool, &second, &ended_with(2, no_answer(), Some(3)), 2).record;
    let expected = Record {
        attempt: Attempt {
            id: attempt(3),
            number: 3,
            ..of_second
        },
        attempts: 3,
        earlier_attempt_may_have_run: true,
        ..next_of(&second, 2)
    };
    assert_eq!(third, expected);
}

#[test]
fn a_read_without_a_clear_answer_has_failed_with_the_status_of_its_tool() {
    let read = Tool {
        effect: Effect::Read,
        ..tool("t")
    };
    let busy = Evidence::Answer {
        status: 503,
        body: outcome::Body::Whole("{}".into()),
        retry_after: Some(Duration::from_secs(99)),
        newest_token: None,
    };
    let running = record(&read, key::Source::Derived, &[]);
    let ended = change(&read, &running, &ended_with(1, busy, None), 1).record;
    let why = "the tool answered 503 with 2 bytes; that does not prove that it was not executed";
    let failure = Failure {
        kind: FailureKind::Unavailable,
        status: Some(503),
        body: None,
        sealed: None,
        retry_after: Some(read.deadline),
        why: why.into(),
    };
    assert_eq!(ended.state, State::Failed(failure));
}

#[test]
fn a_call_that_never_ran_needs_no_compensation_and_its_key_is_remembered_anew() {
    let tool = tool("t");
    let failed = record(
        &tool,
        key::Source::Derived,
        &[(ended_with(1, not_sent(), None), 1)],
    );
    let undone = change(&tool, &failed, &to_compensate(), 100).record;
    let expected = Record {
        state: State::Compensated(None),
        undo: Some(Undo::default()),
        expires_at: Some(at(100 + HOUR)),
        ..next_of(&failed, 100)
    };
    assert_eq!(undone, expected);
}

#[test]
fn only_a_question_of_a_tool_that_may_ask_needs_no_compensation() {
    let plain = Tool {
        protocol: Protocol::default(),
        ..asking()
    };
    for (tool, answer, state) in [
        (&asking(), ASKS, State::Compensated(None)),
        (&asking(), "{}", State::Compensating(Some(stored()))),
        (
            &plain,
            ASKS,
            State::Compensating(Some(Content::Stored(ASKS.into()))),
        ),
    ] {
        let ended = ended_with(1, answer_of(answer), None);
        let done = record(tool, key::Source::Derived, &[(ended, 1)]);
        let undone = change(tool, &done, &to_compensate(), 2).record;
        assert_eq!(undone.state, state, "{answer}");
    }
}

#[test]
fn a_skipped_call_keeps_its_result_and_still_names_its_compensation() {
    let tool = Tool {
        compensation: cancel(true),
        ..tool("t")
    };
    let skipped_undo = |compensation| {
        Some(Undo {
            compensation,
            skipped: true,
        })
    };
    let skipped_at =
        |before: &Record, seconds| change(&tool, before, &skipped(None), seconds).record;

    let done = succeeded("{}");
    let stands = Record {
        undo: skipped_undo(None),
        expires_at: Some(at(50 + HOUR)),
        retain_until: Some(at(50 + MONTH)),
        ..next_of(&done, 50)
    };
    assert_eq!(skipped_at(&done, 50), stands);

    let undoing = change(&tool, &done, &to_compensate(), 2).record;
    let stuck = change(&tool, &undoing, &is_stuck(), 3).record;
    for before in [&undoing, &stuck] {
        let stands = Record {
            state: State::Succeeded(stored()),
            undo: skipped_undo(Some(compensation())),
            expires_at: Some(at(50 + HOUR)),
            retain_until: Some(at(50 + MONTH)),
            ..next_of(before, 50)
        };
        assert_eq!(skipped_at(before, 50), stands);
    }
    for (said, counts) in [("1", Content::Stored("1".into())), ("null", stored())] {
        let resolution = Resolution::Succeeded(Content::Stored(said.into()));
        let settled = change(&tool, &stuck, &resolved(resolution), 50).record;
        let expected = Record {
            state: State::Succeeded(counts),
            ..skipped_at(&stuck, 50)
        };
        assert_eq!(settled, expected, "null leaves what the tool has said");
    }
}

#[test]
fn a_skipped_call_whose_outcome_was_never_known_is_not_asked_about_any_more() {
    let tool = Tool {
        compensation: cancel(true),
        ..probing(None)
    };
    let unknown = unknown(&tool);
    let left = change(&tool, &unknown, &skipped(None), 50).record;
    let expected = Record {
        undo: Some(Undo {
            compensation: None,
            skipped: true,
        }),
        ..next_of(&unknown, 50)
    };
    assert_eq!(left, expected, "what is done about unknown calls goes on");

    let undoing = change(&tool, &unknown, &to_compensate(), 50).record;
    let left = change(&tool, &undoing, &skipped(None), 60).record;
    let why = "its outcome is not known, and an operator has decided not to undo it";
    let expected = Record {
        state: State::Unknown(why.into()),
        check: Some(Check {
            since: at(60),
            at: None,
            number: 0,
        }),
        undo: Some(Undo {
            compensation: Some(compensation()),
            skipped: true,
        }),
        ..next_of(&undoing, 60)
    };
    assert_eq!(left, expected);
}

#[test]
fn an_operator_says_of_a_stuck_call_that_it_is_undone() {
    let tool = Tool {
        compensation: cancel(true),
        ..tool("t")
    };
    let undoing = change(&tool, &succeeded("{}"), &to_compensate(), 2).record;
    let stuck = change(&tool, &undoing, &is_stuck(), 3).record;
    let expected = Record {
        state: State::Compensated(Some(stored())),
        expires_at: Some(at(50 + HOUR)),
        retain_until: Some(at(50 + MONTH)),
        ..next_of(&stuck, 50)
    };
    let undone = change(&tool, &stuck, &resolved(Resolution::Failed), 50).record;
    assert_eq!(undone, expected);
}

#[test]
fn after_a_loss_an_unknown_call_keeps_its_session_for_another_lease() {
    for (tool, is_exclusive) in [(exclusive(probing(None)), true), (probing(None), false)] {
        let unknown = unknown(&tool);
        let lost = change(&tool, &unknown, &store_lost(), 100);
        let lease_until = at(100) + tool.lease();
        let expected = Record {
            attempt: Attempt {
                lease_until,
                ..unknown.attempt.clone()
            },
            earlier_attempt_may_have_run: true,
            ..next_of(&unknown, 100)
        };
        assert_eq!(lost.record, expected);
        let release = Release {
            lock_from: is_exclusive.then_some(lease_until),
            retakes_lock: false,
            similar: None,
        };
        assert_eq!(lost.release, release);
    }
}

#[test]
fn an_unknown_call_that_is_sent_again_is_a_run_of_its_own_with_its_next_check_planned() {
    let tool = retrying();
    let unknown = unknown(&tool);
    let again = change(&tool, &unknown, &check_due(2), 9).record;
    let before = unknown.check.expect("a check");
    let check = again.check.expect("a check");
    let expected = Record {
        state: State::Running,
        attempt: Attempt {
            remote_task: None,
            id: attempt(2),
            owner: ME,
            number: 1,
            run_started_at: at(9),
            lease_until: at(9) + tool.lease(),
        },
        attempts: 2,
        earlier_attempt_may_have_run: true,
        check: Some(Check {
            number: before.number + 1,
            at: check.at,
            ..before
        }),
        ..next_of(&unknown, 9)
    };
    assert_eq!(again, expected);
    assert!(check.at > before.at && check.at > Some(at(9)));
}

#[test]
fn a_call_whose_arguments_are_not_kept_whole_is_never_sent_again() {
    let tool = retrying();
    let mut unknown = unknown(&tool);
    let masked = format!("{{\"card\":\"{MASK}\"}}");
    Arc::make_mut(&mut unknown.intent).args = masked.into();
    let given_up = change(&tool, &unknown, &check_due(2), 9);
    let check = unknown.check.map(|check| Check { at: None, ..check });
    let expected = Record {
        check,
        ..next_of(&unknown, 9)
    };
    assert_eq!(given_up.record, expected);
    let why = "it cannot be sent again: not all of its arguments are stored, or readable";
    assert_eq!(said(&given_up), ("given_up", why));
}

#[test]
fn an_answer_that_proves_nothing_leaves_the_planned_check() {
    let tool = probing(None);
    let unknown = unknown(&tool);
    let nothing = Finding::Unclear("503".into());
    let probed = change(&tool, &unknown, &probed(nothing), 9);
    assert_eq!(probed.record, next_of(&unknown, 9));
    let why = "the tool did not say whether it knows the key: 503";
    assert_eq!(said(&probed), ("probed", why));

    let held = self::unknown(&Tool {
        unknown: OnUnknown::Hold,
        ..tool.clone()
    });
    let asked = self::probed(Finding::NotFound);
    let probed = change(&tool, &held, &asked, 9);
    let why = "the tool does not know the key, which proves nothing yet";
    assert_eq!(said(&probed), ("probed", why), "none was planned");
}

#[test]
fn a_late_question_settles_nothing_if_another_attempt_may_have_run() {
    let tool = asking();
    let question = ended_with(1, answer_of(ASKS), None);
    // The first run counts as not executed; the second is in doubt.
    let failed = record(
        &tool,
        key::Source::Derived,
        &[
            (ended_with(1, no_answer(), None), 1),
            (resolved(Resolution::Failed), 50),
        ],
    );
    let again = arrived(key::Source::Derived, 1, 2);
    let again = change(&tool, &failed, &again, 51).record;
    let in_doubt = change(&tool, &again, &ended_with(2, no_answer(), None), 52).record;
    assert!(!in_doubt.earlier_attempt_may_have_run);
    for there in [&in_doubt, &again] {
        assert_eq!(cell(&tool, Some(there), &question, 53), "(NotOwner)");
    }
    let executed = ended_with(1, answer(200), None);
    let settled = "Finish -> succeeded";
    assert_eq!(cell(&tool, Some(&in_doubt), &executed, 53), settled);
    assert_eq!(cell(&tool, Some(&again), &executed, 53), "Alarm -> running");
}

#[test]
fn a_verified_replay_says_where_it_differs() {
    let places = |count: usize| -> Vec<String> { (0..count).map(|n| format!("/{n}")).collect() };
    let ten = "/0, /1, /2, /3, /4, /5, /6, /7, /8, /9";
    for (fresh, why) in [
        (
            Fresh::Compared(Vec::new()),
            "the tool answers the same".to_owned(),
        ),
        (
            Fresh::Compared(places(1)),
            "the tool answers differently at /0".to_owned(),
        ),
        (
            Fresh::Compared(places(10)),
            format!("the tool answers differently at {ten}"),
        ),
        (
            Fresh::Compared(places(11)),
            format!("the tool answers differently at {ten}, and more"),
        ),
        (
            Fresh::Unclear("timed out".into()),
            "the tool gave nothing to compare: timed out".to_owned(),
        ),
    ] {
        let done = succeeded("{}");
        let by = "ops".to_owned();
        let verified = change(&tool("t"), &done, &Event::Verified { by, fresh }, 9);
        assert_eq!(verified.record, next_of(&done, 9));
        assert_eq!(said(&verified), ("verified", &*why));
    }
}

#[test]
fn a_write_is_sent_once_more_only_while_its_tool_surely_remembers_its_key() {
    let tool = Tool {
        dedup: Dedup::Key,
        ..tool("t")
    };
    let done = succeeded("{}");
    let verify = |seconds| cell(&tool, Some(&done), &to_verify(), seconds);
    assert_eq!(verify(HOUR - 1), "Verify -> succeeded");
    let why =
        "the call is older than recheck.give_up_after, so the tool may have forgotten its key";
    assert_eq!(verify(HOUR), format!("(ReplayUnsafe({why:?}))"));
    let read = Tool {
        effect: Effect::Read,
        ..self::tool("t")
    };
    let later = cell(&read, Some(&done), &to_verify(), 9 * HOUR);
    assert_eq!(later, "Verify -> succeeded");
}

#[test]
fn a_rejected_compensation_runs_again_with_corrected_arguments_even_if_rejections_are_remembered() {
    let tool = Tool {
        remember_rejections: true,
        ..tool("t")
    };
    let refused = (ended_with(1, answer(422), None), 1);
    let failed = record(&tool, key::Source::Compensation, &[refused]);
    let mended = Arc::new(Intent {
        args: "{\"mended\":1}".into(),
        key_scheme: KeySchemeId([7; 16]),
        ..(*intent(key::Source::Compensation, 2)).clone()
    });
    let again = change(&tool, &failed, &arrived_with(mended.clone(), 2), 3);
    let expected = Record {
        intent: mended,
        state: State::Running,
        attempt: Attempt {
            remote_task: None,
            id: attempt(2),
            owner: ME,
            number: 1,
            run_started_at: at(3),
            lease_until: at(3) + tool.lease(),
        },
        attempts: 2,
        latency_ms: None,
        expires_at: None,
        retain_until: None,
        ..next_of(&failed, 3)
    };
    assert_eq!(again.record, expected);
}

#[test]
fn a_key_that_looks_like_a_call_is_its_name_only_if_the_same_key_asked_before() {
    let tool = tool("t");
    let like = |key: &str, fingerprint: u8| {
        Event::Resembled(Resembled {
            intent: Arc::new(Intent {
                lookup: Lookup::new("shop", "t", key),
                ..(*intent(key::Source::Derived, fingerprint)).clone()
            }),
            replaced: Vec::new(),
            by: ME,
        })
    };
    let named = change(&tool, &succeeded("{}"), &like("k2", 2), 9).record;
    for (key, fingerprint, expected) in [
        ("k2", 2, "Answer"),
        ("k2", 3, "RefuseReused"),
        ("k3", 2, "TakeLookups -> succeeded"),
        ("k3", 3, "TakeLookups -> succeeded"),
    ] {
        let next = cell(&tool, Some(&named), &like(key, fingerprint), 9);
        assert_eq!(next, expected, "{key} {fingerprint}");
    }
}
