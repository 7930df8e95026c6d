//! Properties that hold on every path of a call.

use proptest::prelude::*;

use super::*;

/// A call after these events and the time then. Each event comes so many seconds after the one before; illegal ones change nothing.
pub(super) fn led_through(tool: &Tool, steps: &[(Event, i64)]) -> (Record, i64) {
    let (mut there, mut seconds) = (record(tool, key::Source::Derived, &[]), 0);
    for (event, pause) in steps {
        seconds += pause;
        there = moved(tool, Some(&there), event, seconds).unwrap_or(there);
    }
    (there, seconds)
}

/// Any event that may reach a call; attempts 1..4, so that owners and zombies both occur.
pub(super) fn any_event() -> impl Strategy<Value = Event> {
    let evidence = prop_oneof![
        Just(not_sent()),
        Just(no_answer()),
        Just(remote::task()),
        prop_oneof![Just(200_u16), Just(422), Just(429), Just(409), 200..600_u16].prop_map(answer),
    ];
    let source = prop_oneof![Just(key::Source::Runtime), Just(key::Source::Derived)];
    prop_oneof![
        3 => (source, 1..3_u8, 1..4_u128).prop_map(|(source, print, id)| arrived(source, print, id)),
        4 => (1..4_u128, evidence, prop::option::of(1..4_u128)).prop_map(|(id, evidence, retry)| ended_with(id, evidence, retry)),
        1 => Just(Event::LeaseOver { by: ME }),
        1 => Just(Event::OwnerLost { by: ME }),
        1 => Just(store_lost()),
        1 => Just(unlocked()),
        2 => Just(to_compensate()),
        1 => Just(undo_ended(UndoEnd::Undone)),
        1 => Just(is_stuck()),
        1 => Just(skipped(None)),
        1 => Just(Event::SagaEnded { by: ME }),
        2 => Just(erased()),
        2 => (1..3_u8).prop_map(|print| approve::asked(print, approve::ask(1, &[]))),
        2 => (1..3_u8, 1..3_u8).prop_map(|(seen, shown)| approve::approves("ann", seen, shown, approve::BOUND)),
        1 => Just(approve::declined("ann")),
        1 => Just(Event::Withdrawn(By::token("agent", "r"))),
        1 => Just(Event::ProposalDue { by: ME }),
        2 => prop_oneof![Just(approve::BOUND), Just([8; 32])].prop_map(approve::begun),
        1 => Just(Event::Outdated { by: ME }),
        2 => (1..4_u128).prop_map(|id| Event::CheckDue { by: ME, attempt: Some(attempt(id)) }),
        1 => Just(Event::CheckDue { by: ME, attempt: None }),
        1 => prop_oneof![Just(CheckBlocker::Frozen), Just(CheckBlocker::KeyGone)].prop_map(postponed),
        1 => Just(Event::CheckMissing { by: ME }),
        1 => prop_oneof![Just(found()), Just(Finding::NotFound), Just(Finding::Unclear("?".into()))].prop_map(probed),
        1 => prop_oneof![Just(Resolution::Succeeded(stored())), Just(Resolution::Failed)].prop_map(resolved),
        1 => prop_oneof![Just(to_verify()), Just(verified())],
        1 => Just(remote::given()),
        1 => prop_oneof![Just(remote::runs()), Just(remote::ended(200)), Just(remote::ended(500)), Just(Seen::Gone("gone"))].prop_map(remote::saw),
        1 => Just(remote::cancel_asked()),
        1 => (1..3_u8).prop_map(resembled),
        1 => (1..4_u128).prop_map(adopt::adopts),
    ]
}

/// The policies that a configuration allows.
fn any_policy() -> impl Strategy<Value = (OnUnknown, Dedup)> {
    let probe = OnUnknown::Probe;
    prop_oneof![
        Just((OnUnknown::Hold, Dedup::None)),
        Just((probe, Dedup::None)),
        Just((probe, Dedup::Key)),
        Just((OnUnknown::Retry, Dedup::Key)),
    ]
}

proptest! {
    // 1,024 cases, unless `PROPTEST_CASES` sets another number.
    #![proptest_config(ProptestConfig::with_cases(4 * ProptestConfig::default().cases))]

    /// Random lives of a call, with the promise checked at each step.
    #[test]
    fn whatever_happens_the_promise_holds(
        // Some events come at once, so that a retry has time; some after hours, so that windows end.
        steps in prop::collection::vec((any_event(), prop_oneof![0..4_i64, 0..50_000_i64]), 1..60),
        read: bool,
        remember_rejections: bool,
        policy in any_policy(),
        undoes_unknown: bool,
    ) {
        let effect = if read { Effect::Read } else { Effect::Write };
        let (unknown, dedup) = policy;
        let compensation = cancel(undoes_unknown);
        let tool = Tool { effect, remember_rejections, unknown, dedup, compensation, ..tool("t") };
        let sends_again = unknown == OnUnknown::Retry;
        let mut record: Option<Record> = None;
        let mut seconds = 0;
        for (event, pause) in steps {
            seconds += pause;
            let Ok(Next { change, action }) = next(&tool, record.as_ref(), &event, at(seconds)) else { continue };
            let dispatches = matches!(action, Action::Claim | Action::Run | Action::Retry { .. });
            let before = record.as_ref();
            let writes = dispatches || matches!(action, Action::Finish | Action::Propose | Action::Begin | Action::Probe | Action::AskTask | Action::Follow | Action::Verify | Action::Alarm | Action::TakeLookups | Action::TakeFingerprint);
            prop_assert_eq!(change.is_some(), writes);
            if action == Action::Verify {
                prop_assert!(read || dedup == Dedup::Key, "sent again to a tool that executes it again");
            }
            if let (Action::Alarm, Some(before), Some(change)) = (&action, before, &change) {
                let waits = before.state.waits_for_approval();
                prop_assert!(waits || before.state == change.record.state, "too late to change anything");
                prop_assert!(!read && !matches!(before.state, State::Unknown(_)));
            }
            if dispatches {
                // No attempt runs beside a running one, and no call runs again that may have been executed.
                match before.map(|record| &record.state) {
                    None | Some(State::Failed(_)) => {
                        let was_asked = before.is_some_and(|before| before.proposal.is_some());
                        let anew = action == Action::Claim;
                        prop_assert!(!was_asked || anew, "a request alone began a call that was asked about");
                    }
                    Some(State::Running) => {
                        let surely_not = matches!(
                            &event,
                            Event::Ended(Ended { evidence: Evidence::NotSent { .. } | Evidence::Answer { status: 425 | 429, .. }, .. })
                        );
                        prop_assert!(surely_not || read || sends_again, "retried after {:?}", event);
                    }
                    Some(State::Proposed) => prop_assert!(false, "sent without approval"),
                    Some(State::Approved) => {
                        let is_its = matches!(&event, Event::Begun(begun) if begun.bound == approve::BOUND);
                        prop_assert!(is_its, "sent otherwise than approved: {:?}", event);
                    }
                    Some(State::Compensating(_) | State::Stuck(_)) => {
                        prop_assert!(false, "what is being undone was dispatched");
                    }
                    Some(State::Succeeded(_) | State::Compensated(_)) => {
                        let anew = action == Action::Claim;
                        prop_assert!(anew, "a success was dispatched again");
                    }
                    Some(State::Unknown(_)) => prop_assert!(sends_again, "an unknown call was dispatched"),
                }
            }
            if let (Some(before), Some(change)) = (before, &change) {
                let is_first = change.record.version == 1;
                let anew = action == Action::Claim || action == Action::Propose && is_first;
                prop_assert_eq!(change.record.version, if anew { 1 } else { before.version + 1 });
                if matches!(before.state, State::Unknown(_)) && before.state != change.record.state {
                    // A call ceases to be unknown only by an answer to the attempt that is in doubt.
                    let is_proof = match &event {
                        Event::Ended(Ended { attempt, .. }) => {
                            let is_done = matches!(change.record.state, State::Succeeded(_));
                            *attempt == before.attempt.id || is_done
                        }
                        Event::Probed(Probed { finding: Finding::Found(_), .. }) | Event::Resolved { .. } | Event::Reconciled { .. } => true,
                        Event::Probed(Probed { finding: Finding::NotFound, .. }) => dedup == Dedup::Key,
                        Event::TaskSeen { seen: Seen::Ended(answer), .. } => answer.status == 200,
                        Event::CheckDue { .. } => sends_again && change.record.state == State::Running,
                        Event::ToCompensate { .. } => undoes_unknown && before.attempt.lease_until <= at(seconds),
                        _ => false,
                    };
                    let is_held = matches!(change.record.state, State::Unknown(_));
                    prop_assert!(is_proof || is_held, "left unknown by {:?}", event);
                }
                if action == Action::Claim {
                    // A failed call may run again; if it is erased, only by a call of its own.
                    let may_run_again = before.is_erased() && matches!(before.state, State::Failed(_));
                    let is_past = before.expires_at.is_some_and(|end| end <= at(seconds));
                    prop_assert!(may_run_again || is_past, "a key was freed early");
                }
            }
            if dispatches && let Some(change) = &change {
                prop_assert!(!change.record.is_erased(), "sent without its arguments");
            }
            if let Some(change) = change {
                let done = matches!(
                    change.record.state,
                    State::Succeeded(_) | State::Failed(_) | State::Compensated(_)
                );
                prop_assert_eq!(change.record.expires_at.is_some(), done, "only what is done expires");
                prop_assert_eq!(change.record.retain_until.is_some(), done, "only what is done is deleted");
                prop_assert!(!(read && matches!(change.record.state, State::Unknown(_))));
                let has_check = change.record.check.is_some_and(|check| check.at.is_some());
                let has_policy = unknown != OnUnknown::Hold || change.record.attempt.remote_task.is_some();
                prop_assert!(!has_check || (has_policy && !done), "worked on for nothing");
                prop_assert!(change.record.attempt.number <= tool.retry.attempts);
                prop_assert!(change.record.attempt.lease_until >= at(seconds) || !dispatches);
                record = Some(change.record);
            }
        }
    }
}
