//! Which calls a saga waits for while it is undone.

use super::*;

#[test]
fn a_call_that_needs_no_undoing_is_waited_for_while_it_may_be_sent_again() {
    let planned = Planned {
        kind: 2,
        fails: 0,
        sends: false,
    };
    let mut record = call_of(1, &planned);
    let needless = Tool {
        compensation: compensation::Policy::Needless,
        unknown: OnUnknown::Retry,
        ..tool_of(&planned)
    };
    record.check = Some(Check {
        since: at(0),
        at: Some(at(1)),
        number: 0,
    });
    assert!(matches!(
        plan(&undoing(), &[(&record, &needless)], at(99)),
        Step::Wait(_, Blocker::Unknown, _)
    ));
    record.check = Some(Check {
        since: at(0),
        at: None,
        number: 0,
    });
    assert_eq!(
        plan(&undoing(), &[(&record, &needless)], at(99)),
        Step::Done,
        "it is given up"
    );
}

#[test]
fn nothing_is_undone_while_a_call_may_still_have_its_effect() {
    let lease = at(50);
    let call = |state: &CallState| {
        let planned = Planned {
            kind: 0,
            fails: 0,
            sends: false,
        };
        let mut record = call_of(1, &planned);
        record.attempt.lease_until = lease;
        record.state = state.clone();
        record
    };
    let tool = |sends: bool, change: fn(&mut Tool)| {
        let mut tool = tool_of(&Planned {
            kind: 0,
            fails: 0,
            sends,
        });
        change(&mut tool);
        tool
    };
    let step = |state: &CallState, tool: &Tool, now: i64| {
        let record = call(state);
        match plan(&undoing(), &[(&record, tool)], at(now)) {
            Step::Wait(_, blocker, why) => format!("{blocker:?}: {why}"),
            Step::ToCompensate(_) => "mark".into(),
            Step::Undo(_) => "undo".into(),
            Step::Stuck(_) => "stuck".into(),
            Step::Rest => "rest".into(),
            Step::Done => "done".into(),
        }
    };
    let unknown = CallState::Unknown("lost".into());
    let succeeded = CallState::Succeeded(Content::Stored("{}".into()));
    let (plain, sending) = (tool(false, |_| {}), tool(true, |_| {}));
    let reading = tool(false, |tool| tool.effect = Effect::Read);
    let needless = tool(false, |tool| {
        tool.compensation = compensation::Policy::Needless;
    });
    let foreign = tool(true, |tool| tool.unknown = OnUnknown::Elsewhere);
    let late = "Busy: its request may still reach the tool";
    for (state, tool, now, expected) in [
        (&CallState::Running, &sending, 99, "Busy: it still runs"),
        (&CallState::Running, &reading, 99, "Busy: it still runs"),
        (&unknown, &plain, 49, late),
        (&unknown, &sending, 49, late),
        (&unknown, &needless, 49, late),
        (&unknown, &reading, 49, "done"),
        (&unknown, &sending, 50, "mark"),
        (&unknown, &needless, 50, "done"),
        (
            &unknown,
            &plain,
            50,
            "Unknown: it is not known whether it was executed",
        ),
        (&succeeded, &plain, 49, "mark"),
        (
            &succeeded,
            &foreign,
            99,
            "Unknown: its tool is not configured here",
        ),
        (&CallState::Compensated(None), &foreign, 99, "done"),
        (&CallState::Compensated(None), &plain, 99, "done"),
        (&CallState::Compensating(None), &plain, 99, "undo"),
        // An undoing that has begun is brought to its end.
        (&CallState::Compensating(None), &needless, 99, "undo"),
        (&CallState::Compensating(None), &reading, 99, "undo"),
        (&CallState::Stuck(None), &plain, 99, "stuck"),
        (&CallState::Stuck(None), &needless, 99, "stuck"),
    ] {
        assert_eq!(step(state, tool, now), expected, "{state:?} {tool:?}");
    }
    // The saga writes that all calls are at rest before it marks the first.
    let aborted = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 1);
    for state in [&succeeded, &CallState::Compensating(None)] {
        let record = call(state);
        assert_eq!(plan(&aborted, &[(&record, &plain)], at(99)), Step::Rest);
    }
}

#[test]
fn a_skipped_call_is_waited_for_while_it_may_be_sent_again() {
    let planned = Planned {
        kind: 2,
        fails: 0,
        sends: true,
    };
    let mut record = call_of(1, &planned);
    record.check = Some(Check {
        since: at(0),
        at: Some(at(1)),
        number: 0,
    });
    let undo = |skipped| {
        Some(Undo {
            compensation: None,
            skipped,
        })
    };
    let waits = |record: &Record, unknown| {
        let tool = Tool {
            unknown,
            ..tool_of(&planned)
        };
        let step = plan(&undoing(), &[(record, &tool)], at(99));
        matches!(
            step,
            Step::Wait(_, Blocker::Unknown, "it may be sent again")
        )
    };
    record.undo = undo(true);
    assert!(waits(&record, OnUnknown::Retry) && !waits(&record, OnUnknown::Hold));
    record.undo = undo(false);
    assert!(!waits(&record, OnUnknown::Retry), "it is undone instead");
    record.undo = undo(true);
    record.state = CallState::Succeeded(Content::Stored("{}".into()));
    assert!(!waits(&record, OnUnknown::Retry));
}
