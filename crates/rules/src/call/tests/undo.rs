//! Calls that are undone, skipped, or kept for their saga.

use super::*;

#[test]
fn a_call_that_is_being_undone_is_kept_and_its_key_is_not_free() {
    let tool = Tool {
        compensation: cancel(false),
        ..tool("t")
    };
    let done = (ended_with(1, answer(200), None), 1);
    let undoing = record(
        &tool,
        key::Source::Derived,
        &[done.clone(), (to_compensate(), 2)],
    );
    assert_eq!((undoing.expires_at, undoing.retain_until), (None, None));
    let again = |record: &Record, seconds| {
        cell(
            &tool,
            Some(record),
            &arrived(key::Source::Derived, 1, 2),
            seconds,
        )
    };
    assert_eq!(again(&undoing, 99 * 24 * 3_600), "Answer");
    let undone = moved(&tool, Some(&undoing), &undo_ended(UndoEnd::Undone), 3).expect("undone");
    assert!(undone.expires_at.is_some() && undone.retain_until.is_some());
    assert_eq!(again(&undone, 4), "Answer", "and not run again");
    let mut in_saga = record(&tool, key::Source::Derived, &[]);
    Arc::make_mut(&mut in_saga.intent).saga_id = "G".into();
    let done = moved(&tool, Some(&in_saga), &done.0, 1).expect("done");
    assert_eq!(
        done.retain_until, None,
        "its saga may still have to undo it"
    );
    let ended = moved(&tool, Some(&done), &Event::SagaEnded { by: ME }, 2).expect("let go");
    assert!(ended.retain_until.is_some());
    let mut compensation = record(&tool, key::Source::Compensation, &[]);
    Arc::make_mut(&mut compensation.intent).saga_id = "G".into();
    let done = moved(
        &tool,
        Some(&compensation),
        &ended_with(1, answer(200), None),
        1,
    )
    .expect("done");
    assert_eq!((done.expires_at, done.retain_until), (None, None));
}

#[test]
fn a_compensation_takes_other_arguments_as_long_as_it_was_surely_not_executed() {
    let tool = tool("t");
    let source = key::Source::Compensation;
    let mended = |id: u128| {
        let intent = Arc::new(Intent {
            args: "{\"mended\":1}".into(),
            ..(*intent(source, 2)).clone()
        });
        arrived_with(intent, id)
    };
    let running = record(&tool, source, &[]);
    let failed =
        moved(&tool, Some(&running), &ended_with(1, answer(422), None), 1).expect("failed");
    let again = moved(&tool, Some(&failed), &mended(2), 2).expect("it runs again");
    assert_eq!(
        (again.state.as_str(), &again.intent.args[..]),
        ("running", &b"{\"mended\":1}"[..])
    );
    assert_eq!(
        (again.intent.fingerprint, again.intent.call_id),
        ([2; 32], failed.intent.call_id)
    );
    assert_eq!(Position::of(&again), Position::of(&failed));
    for ended in [answer(200), no_answer()] {
        let ended = moved(&tool, Some(&running), &ended_with(1, ended, None), 1).expect("ended");
        for there in [&running, &ended] {
            let next =
                next(&tool, Some(there), &mended(2), at(2)).expect("an arrival is never illegal");
            assert_eq!(
                (next.change, next.action),
                (None, Action::RefuseReused),
                "{}",
                there.state.as_str()
            );
        }
    }
    let of_a_caller = record(
        &tool,
        key::Source::Runtime,
        &[(ended_with(1, answer(422), None), 1)],
    );
    let next =
        next(&tool, Some(&of_a_caller), &mended(2), at(2)).expect("an arrival is never illegal");
    assert_eq!(next.action, Action::RefuseReused);
}

#[test]
fn a_call_is_not_skipped_while_its_compensation_may_still_run() {
    let (tool, source) = (tool("t"), key::Source::Compensation);
    let undone = moved(&tool, Some(&succeeded("{}")), &to_compensate(), 2).expect("to be undone");
    let stuck = moved(&tool, Some(&undone), &is_stuck(), 3).expect("stuck");
    let made = record(&tool, source, &[]);
    let ended =
        |evidence| moved(&tool, Some(&made), &ended_with(1, evidence, None), 4).expect("ended");
    let (unknown, failed, done) = (ended(no_answer()), ended(answer(422)), ended(answer(200)));
    let lease_s = i64::try_from(tool.lease().as_secs()).expect("small");
    for (record, made, seconds, expected) in [
        (&undone, None, 5, "Finish -> succeeded"),
        (&undone, Some(&failed), 5, "Finish -> succeeded"),
        (&undone, Some(&made), lease_s + 1, "(BeingUndone)"),
        (&stuck, Some(&made), 5, "(BeingUndone)"),
        (&undone, Some(&unknown), lease_s - 1, "(BeingUndone)"),
        (&undone, Some(&unknown), lease_s, "Finish -> succeeded"),
        (&undone, Some(&done), 5, "(NothingToUndo)"),
    ] {
        assert_eq!(
            cell(&tool, Some(record), &skipped(made), seconds),
            expected,
            "{made:?}"
        );
    }
}

#[test]
fn an_unknown_call_is_undone_only_if_that_is_safe_and_its_request_cannot_come_any_more() {
    for (undoes_unknown, seconds, expected) in [
        (false, 99, "(StillUnknown)"),
        (true, 39, "(MayStillRun)"),
        (true, 40, "Finish -> compensating"),
    ] {
        let tool = Tool {
            compensation: cancel(undoes_unknown),
            ..tool("t")
        };
        let unknown = record(
            &tool,
            key::Source::Derived,
            &[(ended_with(1, no_answer(), None), 1)],
        );
        assert_eq!(
            cell(&tool, Some(&unknown), &to_compensate(), seconds),
            expected
        );
    }
}

#[test]
fn a_call_of_a_closed_saga_never_runs_again() {
    let tool = tool("t");
    let running = record(&tool, key::Source::Runtime, &[]);
    let closed = moved(
        &tool,
        Some(&running),
        &not_joined(FailureKind::SagaClosed),
        1,
    )
    .expect("closed");
    assert_eq!(
        cell(
            &tool,
            Some(&closed),
            &arrived(key::Source::Runtime, 1, 2),
            2
        ),
        "Answer"
    );
    assert!(closed.retain_until.is_some(), "nothing lets it go later");
}
