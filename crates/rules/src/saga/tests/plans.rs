//! The next step for the calls of a saga that is being undone.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::call::{self, UndoEnd};
use crate::compensation::{self, Template};
use crate::record::{Check, Compensation, Content, InstanceId, Record, State as CallState, Undo};
use crate::saga::plan::{Step, plan};
use crate::testing::tool;
use crate::tool::{Effect, OnUnknown, Tool};

const ME: InstanceId = InstanceId(Uuid::from_u128(0xe));

/// A saga that undoes this call alone, because an operator has asked for it.
fn undo_alone(record: &Record) -> Saga {
    let by = By::token("ops", "after all");
    Saga::undo("shop", record.intent.call_id, &by, at(0))
}

/// A saga whose calls are all at rest.
fn undoing() -> Saga {
    let aborted = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 1);
    moved(&aborted, &Event::Rested, 2)
}

/// A call of a saga, and how undoing it goes.
#[derive(Debug, Clone)]
struct Planned {
    /// 0: succeeded, 1: failed, 2: unknown, 3: running for a while and then succeeded, 4: unknown for a while.
    kind: u8,
    /// How often its compensation fails.
    fails: u8,
    /// Whether its tool's unknown calls are undone, too.
    sends: bool,
}

fn planned() -> impl Strategy<Value = Planned> {
    (0..5_u8, 0..3_u8, any::<bool>()).prop_map(|(kind, fails, sends)| Planned {
        kind,
        fails,
        sends,
    })
}

fn tool_of(planned: &Planned) -> Tool {
    let template = Template {
        tool: "cancel".into(),
        args: Vec::new(),
        undoes_unknown: planned.sends,
    };
    Tool {
        compensation: compensation::Policy::By(template),
        ..tool("t")
    }
}

fn call_of(number: u128, planned: &Planned) -> Record {
    let mut record = crate::testing::succeeded("{}");
    let intent = Arc::make_mut(&mut record.intent);
    (intent.call_id, intent.saga_id) = (CallId(Uuid::from_u128(number)), "G".into());
    record.fencing = Some(u64::try_from(number).expect("small"));
    // The saga has not let the call go.
    record.retain_until = None;
    record.state = match planned.kind {
        0 => CallState::Succeeded(Content::Stored("{}".into())),
        1 => crate::testing::failed(),
        3 => CallState::Running,
        _ => CallState::Unknown("lost".into()),
    };
    record
}

proptest! {
    /// A saga is worked on to its end; each step checks the order of effects.
    #[test]
    fn whatever_its_calls_are_the_newest_is_undone_first_and_nothing_before_all_are_at_rest(
        plans in prop::collection::vec(planned(), 1..8),
        shuffle in any::<u64>(),
    ) {
        let tools: Vec<Tool> = plans.iter().map(tool_of).collect();
        let mut calls: Vec<(usize, Record)> =
            plans.iter().enumerate().map(|(n, plan)| (n, call_of(n as u128 + 1, plan))).collect();
        // The order of a store's list does not count.
        let shift = usize::try_from(shuffle % calls.len() as u64).expect("small");
        calls.rotate_left(shift);
        let mut undone: Vec<u128> = Vec::new();
        let mut tries: BTreeMap<u128, u8> = BTreeMap::new();
        let mut rounds = 0;
        let mut saga = moved(&Saga::begin(id(), &Policy::default(), at(0)), &abort(), 1);
        loop {
            rounds += 1;
            prop_assert!(rounds < 200, "it comes to its end");
            let now = at(1_000 + rounds);
            let members: Vec<(&Record, &Tool)> = calls.iter().map(|(n, record)| (record, &tools[*n])).collect();
            let step = plan(&saga, &members, now);
            let (touched, changed) = match step {
                Step::Done => break,
                Step::Stuck(_) => break,
                Step::Rest => {
                    let at_rest = |(_, one): &(usize, Record)| !matches!(one.state, CallState::Running);
                    prop_assert!(calls.iter().all(at_rest) && undone.is_empty());
                    saga = moved(&saga, &Event::Rested, 1_000);
                    continue;
                }
                Step::Wait(record, ..) => {
                    prop_assert!(undone.is_empty(), "it waits before the first is undone");
                    let mut record = record.clone();
                    // The call comes to rest.
                    record.state = CallState::Succeeded(Content::Stored("{}".into()));
                    (record.intent.call_id, record)
                }
                Step::ToCompensate(record) => {
                    prop_assert!(undone.is_empty(), "all are marked before the first is undone");
                    let call = Compensation { tool: "cancel".into(), call_id: record.intent.call_id };
                    let by = By::new("gateway", "aborted");
                    let event = call::Event::ToCompensate { by, compensation: Some(call) };
                    let (n, _) = calls.iter().find(|(_, one)| one == record).expect("there");
                    let next = call::next(&tools[*n], Some(record), &event, now).expect("it can be marked");
                    let marked = next.change.expect("a change").record;
                    let never_ran = matches!(record.state, CallState::Failed(_));
                    prop_assert_eq!(never_ran, matches!(marked.state, CallState::Compensated(None)));
                    (record.intent.call_id, marked)
                }
                Step::Undo(record) => {
                    let number = record.intent.call_id.0.as_u128();
                    let still_running = calls.iter().any(|(_, one)| matches!(one.state, CallState::Running));
                    prop_assert!(!still_running, "undone while a call runs");
                    let newer_left = calls.iter().any(|(_, one)| {
                        one.fencing > record.fencing && matches!(one.state, CallState::Compensating(_))
                    });
                    prop_assert!(!newer_left, "a newer one is left");
                    let (n, _) = calls.iter().find(|(_, one)| one == record).expect("there");
                    prop_assert!(plans[*n].kind != 1, "a call that never ran is undone");
                    let tried = tries.entry(number).or_default();
                    *tried += 1;
                    if *tried <= plans[*n].fails {
                        continue;
                    }
                    undone.push(number);
                    let event = call::Event::UndoEnded { by: ME, end: UndoEnd::Undone };
                    let next = call::next(&tools[*n], Some(record), &event, now).expect("it can end");
                    (record.intent.call_id, next.change.expect("a change").record)
                }
            };
            for (_, one) in &mut calls {
                if one.intent.call_id == touched {
                    *one = changed.clone();
                }
            }
        }
        let expected: Vec<u128> = (1..=plans.len() as u128).rev()
            .filter(|n| plans[usize::try_from(n - 1).expect("small")].kind != 1).collect();
        prop_assert_eq!(undone, expected, "each once, the newest first");
        for (_, record) in &calls {
            prop_assert!(matches!(record.state, CallState::Compensated(_)), "{:?}", record.state);
        }
    }
}

#[test]
fn skipped_calls_and_calls_that_need_no_undoing_are_passed_over() {
    let plan_of = |record: &Record, tool: &Tool| {
        format!(
            "{:?}",
            plan(&undoing(), &[(record, tool)], at(99)) == Step::Done
        )
    };
    let planned = Planned {
        kind: 0,
        fails: 0,
        sends: false,
    };
    let (mut record, tool) = (call_of(1, &planned), tool_of(&planned));
    assert_eq!(plan_of(&record, &tool), "false");
    let needless = Tool {
        compensation: compensation::Policy::Needless,
        ..tool.clone()
    };
    assert_eq!(plan_of(&record, &needless), "true");
    let reads = Tool {
        effect: Effect::Read,
        ..tool.clone()
    };
    assert_eq!(plan_of(&record, &reads), "true");
    record.undo = Some(Undo {
        compensation: None,
        skipped: true,
    });
    assert_eq!(plan_of(&record, &tool), "true");
}

/// A saga's calls may be kept longer than the saga, if their tool is not configured any more.
#[test]
fn calls_that_an_earlier_saga_of_the_same_name_has_let_go_are_not_undone_with_a_later_one() {
    let planned = Planned {
        kind: 0,
        fails: 0,
        sends: false,
    };
    let (stored, tool) = (call_of(1, &planned), tool_of(&planned));
    let released = Record {
        retain_until: Some(at(9_999)),
        ..stored.clone()
    };
    assert_eq!(
        plan(&undoing(), &[(&stored, &tool)], at(99)),
        Step::ToCompensate(&stored)
    );
    assert_eq!(plan(&undoing(), &[(&released, &tool)], at(99)), Step::Done);
    let gone = Tool {
        unknown: OnUnknown::Elsewhere,
        ..Tool::new("t")
    };
    assert_eq!(plan(&undoing(), &[(&released, &gone)], at(99)), Step::Done);
    let asked_for = undo_alone(&released);
    assert_eq!(
        plan(
            &moved(&asked_for, &Event::Rested, 1),
            &[(&released, &tool)],
            at(99)
        ),
        Step::ToCompensate(&released)
    );
    // A call that surely never ran is marked all the same, because it might run again.
    let failed = Record {
        state: crate::testing::failed(),
        ..released.clone()
    };
    assert_eq!(
        plan(&undoing(), &[(&failed, &tool)], at(99)),
        Step::ToCompensate(&failed)
    );
}

#[test]
fn a_call_that_was_skipped_is_undone_when_it_is_asked_for_by_itself_and_not_if_it_is_skipped_after_that()
 {
    let planned = Planned {
        kind: 0,
        fails: 0,
        sends: false,
    };
    let (mut record, tool) = (call_of(1, &planned), tool_of(&planned));
    record.undo = Some(Undo {
        compensation: None,
        skipped: true,
    });
    let asked_for = undo_alone(&record);
    assert_eq!(
        plan(&asked_for, &[(&record, &tool)], at(99)),
        Step::ToCompensate(&record)
    );
    let marked = Record {
        state: CallState::Compensating(None),
        undo: None,
        ..record.clone()
    };
    assert_eq!(plan(&asked_for, &[(&marked, &tool)], at(99)), Step::Rest);
    let undoing = moved(&asked_for, &Event::Rested, 1);
    assert_eq!(
        plan(&undoing, &[(&marked, &tool)], at(99)),
        Step::Undo(&marked)
    );
    assert_eq!(
        plan(&undoing, &[(&record, &tool)], at(99)),
        Step::Done,
        "it was skipped again"
    );
    // Even if the saga never came to rest, because no gateway knew of the call.
    let trouble = Trouble {
        call_id: Some(record.intent.call_id),
        why: "it is not known".into(),
    };
    let blocked = Event::Blocked {
        by: by(),
        trouble,
        blocker: Blocker::Final,
        jitter: 0.0,
    };
    let settled = Event::Settled(By::token("ops", "it stands"));
    let skipped = moved(&moved(&asked_for, &blocked, 1), &settled, 2);
    assert_eq!(plan(&skipped, &[(&record, &tool)], at(99)), Step::Done);
    let undone = moved(&undoing, &Event::Undone { by: by() }, 2);
    assert_eq!(asked_for.reason, "after all");
    assert!(undone.may_undo_after_all(&record) && !undoing.may_undo_after_all(&record));
    let compensated = Record {
        state: CallState::Compensated(None),
        ..record.clone()
    };
    assert!(!undone.may_undo_after_all(&compensated));
    assert_eq!(
        plan(&moved(&undone, &abort(), 3), &[(&record, &tool)], at(99)),
        Step::ToCompensate(&record)
    );
}

/// After a restart the tokens of one gateway are ahead of another's.
#[test]
fn of_two_sessions_the_call_that_was_begun_last_is_undone_first_whatever_their_tokens() {
    let planned = Planned {
        kind: 0,
        fails: 0,
        sends: false,
    };
    let tool = Tool {
        unknown: OnUnknown::Retry,
        ..tool_of(&planned)
    };
    let call = |number: u128, session: &str, begun_s: i64, token_s: i64| {
        let mut record = call_of(number, &planned);
        let intent = Arc::make_mut(&mut record.intent);
        (intent.session_id, intent.created_at) = (session.into(), at(begun_s));
        record.attempt.run_started_at = at(begun_s);
        record.fencing = Some(at(token_s).as_microsecond().unsigned_abs());
        record.state = CallState::Compensating(None);
        record
    };
    let undone_first_of = |calls: &[Record], tool: &Tool| {
        let members: Vec<(&Record, &Tool)> = calls.iter().map(|record| (record, tool)).collect();
        match plan(&undoing(), &members, at(99)) {
            Step::Undo(record) => record.intent.call_id.0.as_u128(),
            step => panic!("{step:?}"),
        }
    };
    let undone_first = |calls: &[Record]| undone_first_of(calls, &tool);
    assert_eq!(
        undone_first(&[call(1, "A", 1, 20), call(2, "B", 3, 3)]),
        2,
        "a token that runs ahead"
    );
    assert_eq!(
        undone_first(&[call(1, "A", 1, 20), call(2, "A", 3, 21), call(3, "B", 2, 2)]),
        2
    );
    // The clock was set back in between.
    assert_eq!(
        undone_first(&[call(1, "A", 9, 9), call(2, "A", 3, 10)]),
        2,
        "a session's tokens go before clocks"
    );
    let ran_again = |mut record: Record, again_s: i64| {
        record.attempt.run_started_at = at(again_s);
        record.attempts += 1;
        record
    };
    let sent_again = |record: Record, again_s: i64| Record {
        earlier_attempt_may_have_run: true,
        ..ran_again(record, again_s)
    };
    assert_eq!(
        undone_first(&[sent_again(call(1, "A", 1, 1), 9), call(2, "B", 3, 3)]),
        2,
        "it was begun before"
    );
    assert_eq!(
        undone_first(&[ran_again(call(1, "A", 1, 1), 9), call(2, "B", 3, 3)]),
        1,
        "the first time it surely was not executed"
    );
    let mut retried = call(1, "A", 1, 1);
    (
        retried.attempt.run_started_at,
        retried.earlier_attempt_may_have_run,
    ) = (at(4), true);
    assert_eq!(
        undone_first(&[retried, call(2, "B", 3, 3)]),
        1,
        "it has run once, however often it was sent"
    );
    let held = tool_of(&planned);
    assert_eq!(
        undone_first_of(
            &[sent_again(call(1, "A", 1, 1), 9), call(2, "B", 3, 3)],
            &held
        ),
        1,
        "nothing sends it again out of a doubt: the first time it surely was not executed, and then it was doubted"
    );
}

proptest! {
    /// All calls may have one token, and some of them run again after a sure failure.
    #[test]
    fn of_calls_with_one_token_the_one_that_had_its_effect_last_is_undone_first(
        starts in prop::collection::hash_set(1..500_i64, 2..8),
        earlier in prop::collection::vec(prop::option::of(1..500_i64), 8),
    ) {
        let planned = Planned { kind: 0, fails: 0, sends: false };
        let tool = tool_of(&planned);
        let starts: Vec<i64> = starts.into_iter().collect();
        let mut calls: Vec<Record> = starts.iter().zip(&earlier).enumerate().map(|(n, (start, earlier))| {
            let mut record = call_of(n as u128 + 1, &planned);
            let failed = earlier.filter(|earlier| earlier < start);
            Arc::make_mut(&mut record.intent).created_at = at(failed.unwrap_or(*start));
            record.attempt.run_started_at = at(*start);
            record.attempts = if failed.is_some() { 2 } else { 1 };
            record.fencing = Some(7);
            record.state = CallState::Compensating(None);
            record
        }).collect();
        let mut undone = Vec::new();
        loop {
            let members: Vec<(&Record, &Tool)> = calls.iter().map(|record| (record, &tool)).collect();
            let Step::Undo(next) = plan(&undoing(), &members, at(999)) else { break };
            let call_id = next.intent.call_id;
            undone.push(next.attempt.run_started_at);
            for record in calls.iter_mut().filter(|record| record.intent.call_id == call_id) {
                record.state = CallState::Compensated(None);
            }
        }
        let mut expected: Vec<Timestamp> = starts.iter().map(|start| at(*start)).collect();
        expected.sort();
        expected.reverse();
        prop_assert_eq!(undone, expected);
    }
}

mod waits;
