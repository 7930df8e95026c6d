//! Approval of the exact call.

use super::*;
use crate::approval::{self, Ask, Digest, MAX_ASKS, Shown};
use crate::session::{Admission, Token};

const HOUR: i64 = 3_600;
pub(super) const BOUND: Digest = [7; 32];

pub(super) fn ask(needed: u8, from: &[&str]) -> Ask {
    Ask {
        why: vec!["every call of this tool needs approval".into()],
        expires: Duration::from_secs(3_600),
        good_for: Duration::from_secs(300),
        needed,
        from: from.iter().map(|name| (*name).to_owned()).collect(),
        similar: false,
        over_budget: false,
    }
}

pub(super) fn asked(fingerprint: u8, ask: Ask) -> Event {
    let Event::Arrived(arrival) = arrived(key::Source::Derived, fingerprint, 1) else {
        unreachable!()
    };
    Event::Asked { arrival, ask }
}

pub(super) fn proposed() -> Record {
    moved(&tool("t"), None, &asked(1, ask(1, &[])), 0).expect("a proposal")
}

pub(super) fn approves(by: &str, seen: u8, shown: u8, bound: Digest) -> Event {
    let seen = [seen; 32];
    let shown = Shown {
        bound,
        seen: [shown; 32],
    };
    Event::Approved(Approved {
        by: by.into(),
        reason: String::new(),
        seen,
        shown,
    })
}

pub(super) fn approved() -> Record {
    moved(
        &tool("t"),
        Some(&proposed()),
        &approves("ann", 1, 1, BOUND),
        10,
    )
    .expect("approved")
}

pub(super) fn begun(bound: Digest) -> Event {
    Event::Begun(Begun {
        by: ME,
        attempt: attempt(2),
        bound,
    })
}

pub(super) fn declined(by: &str) -> Event {
    Event::Declined(Declined {
        by: by.into(),
        reason: "too much".into(),
        tell: "ask for less".into(),
    })
}

fn is(record: &Record, event: &Event, seconds: i64) -> String {
    cell(&tool("t"), Some(record), event, seconds)
}

#[test]
fn a_proposal_is_not_sent_and_draws_no_token() {
    let next = next(&tool("t"), None, &asked(1, ask(1, &[])), at(0)).expect("legal");
    let change = next.change.expect("a change");
    assert_eq!(next.action, Action::Propose);
    let admission = change.admission.expect("its places are taken now");
    assert_eq!((admission.token, admission.lock), (Token::Undrawn, None));
    assert_eq!(change.record.attempts, 0);
    assert_eq!(change.record.expires_at, None, "no time frees its key");
}

#[test]
fn the_same_request_waits_whether_or_not_its_gateway_has_the_rule_and_another_is_refused() {
    for record in [proposed(), approved()] {
        let (with, without) = (asked(1, ask(1, &[])), arrived(key::Source::Derived, 1, 3));
        for seconds in [11, HOUR - 1] {
            assert_eq!(is(&record, &with, seconds), "Wait");
        }
        for seconds in [11, 2 * HOUR, 99 * HOUR] {
            assert_eq!(is(&record, &without, seconds), "Wait");
        }
        for other in [asked(2, ask(1, &[])), arrived(key::Source::Derived, 2, 3)] {
            assert_eq!(is(&record, &other, 11), "RefuseReused");
        }
    }
}

#[test]
fn an_approved_call_begins_once_with_what_was_approved() {
    let running = moved(&tool("t"), Some(&approved()), &begun(BOUND), 20).expect("it begins");
    assert_eq!((&running.state, running.attempts), (&State::Running, 1));
    assert_eq!(is(&running, &begun(BOUND), 20), "(NotApproved)");
    assert_eq!(is(&proposed(), &begun(BOUND), 20), "(NotApproved)");
    let change = next(&tool("t"), Some(&approved()), &begun(BOUND), at(20));
    assert!(
        change
            .expect("legal")
            .change
            .expect("one")
            .admission
            .is_some()
    );
}

#[test]
fn what_differs_from_what_was_approved_is_not_sent_and_all_approvals_are_void() {
    let voided = moved(&tool("t"), Some(&approved()), &begun([8; 32]), 20).expect("void");
    let proposal = voided.proposal.as_deref().expect("a proposal");
    assert_eq!((&voided.state, proposal.ask), (&State::Proposed, 2));
    assert!(proposal.approvals.is_empty() && proposal.bound.is_none());
    let read = Tool {
        effect: Effect::Read,
        ..tool("t")
    };
    assert_eq!(
        cell(&read, Some(&approved()), &begun(BOUND), 20),
        "Finish -> proposed"
    );
}

#[test]
fn only_another_token_that_may_and_that_has_seen_it_approves_in_time() {
    let proposed = proposed();
    for (event, seconds, expected) in [
        (approves("ann", 1, 1, BOUND), HOUR - 1, "Begin -> approved"),
        (approves("ann", 1, 1, BOUND), HOUR, "(ApprovalOver)"),
        (approves("agent", 1, 1, BOUND), 1, "(OwnCall)"),
        (approves("", 1, 1, BOUND), 1, "(OwnCall)"),
        (approves("ann", 1, 2, BOUND), 1, "(NotConfirmed)"),
        (declined("agent"), 1, "(OwnCall)"),
        (declined("ann"), 1, "Finish -> failed"),
    ] {
        assert_eq!(is(&proposed, &event, seconds), expected, "{event:?}");
    }
    let of_bob = moved(&tool("t"), None, &asked(1, ask(1, &["bob"])), 0).expect("one");
    assert_eq!(
        is(&of_bob, &approves("ann", 1, 1, BOUND), 1),
        "(NotAnApprover)"
    );
    assert_eq!(is(&of_bob, &declined("ann"), 1), "(NotAnApprover)");
    assert_eq!(
        is(&of_bob, &approves("bob", 1, 1, BOUND), 1),
        "Begin -> approved"
    );
}

#[test]
fn a_repeated_approval_changes_nothing_and_one_too_late_is_refused_by_name() {
    let again = approves("ann", 1, 9, BOUND);
    assert_eq!(is(&approved(), &again, 11), "Answer");
    let running = moved(&tool("t"), Some(&approved()), &begun(BOUND), 20).expect("it begins");
    assert_eq!(is(&running, &again, 21), "Answer");
    assert_eq!(
        is(&approved(), &approves("bob", 1, 1, BOUND), 11),
        "(NotProposed)"
    );
    let declined = moved(&tool("t"), Some(&proposed()), &declined("bob"), 5).expect("declined");
    assert_eq!(is(&declined, &again, 11), "(NotProposed)");
}

#[test]
fn two_approvals_are_of_two_names_and_of_the_same_request() {
    let tool = tool("t");
    let there = moved(&tool, None, &asked(1, ask(2, &[])), 0).expect("one");
    let first = moved(&tool, Some(&there), &approves("ann", 1, 1, BOUND), 1).expect("counted");
    assert_eq!(first.state, State::Proposed);
    assert_eq!(
        is(&first, &approves("ann", 2, 2, BOUND), 2),
        "Finish -> proposed"
    );
    assert_eq!(
        is(&first, &approves("bob", 2, 2, [8; 32]), 2),
        "Finish -> proposed"
    );
    assert_eq!(
        is(&first, &approves("bob", 2, 2, BOUND), 2),
        "Begin -> approved"
    );
}

#[test]
fn a_proposal_lapses_and_an_unbegun_approval_asks_again_or_lapses() {
    let due = Event::ProposalDue { by: ME };
    assert_eq!(is(&proposed(), &due, HOUR - 1), "(NotDue)");
    assert_eq!(is(&proposed(), &due, HOUR), "Finish -> failed");
    assert_eq!(is(&approved(), &due, 309), "(NotDue)");
    assert_eq!(is(&approved(), &due, 310), "Finish -> proposed");
    assert_eq!(is(&approved(), &due, HOUR), "Finish -> failed");
    assert_eq!(
        is(&approved(), &begun(BOUND), 310),
        "Finish -> proposed",
        "nothing is sent"
    );
    assert_eq!(
        is(&approved(), &begun(BOUND), HOUR),
        "Finish -> failed",
        "nothing is sent"
    );
}

#[test]
fn a_declined_call_is_not_asked_about_again_and_a_lapsed_one_only_by_a_gateway_with_the_rule() {
    let tool = tool("t");
    let due = Event::ProposalDue { by: ME };
    let no = moved(&tool, Some(&proposed()), &declined("ann"), 5).expect("declined");
    let lapsed = moved(&tool, Some(&proposed()), &due, HOUR).expect("lapsed");
    let withdrawn = Event::Withdrawn(By::token("agent", "not needed"));
    let withdrawn = moved(&tool, Some(&approved()), &withdrawn, 11).expect("withdrawn");
    let plain = arrived(key::Source::Derived, 1, 3);
    let again = asked(1, ask(1, &[]));
    for (record, event, expected) in [
        (&no, &again, "Answer"),
        (&no, &plain, "Answer"),
        (&lapsed, &again, "Propose -> proposed"),
        (&lapsed, &plain, "Answer"),
        (&withdrawn, &again, "Propose -> proposed"),
        (&withdrawn, &plain, "Answer"),
    ] {
        assert_eq!(is(record, event, HOUR + 1), expected);
    }
    let mut often = lapsed;
    often.proposal.as_mut().expect("one").requested = MAX_ASKS;
    assert_eq!(is(&often, &again, HOUR + 1), "Answer");
}

#[test]
fn a_request_after_the_time_to_decide_asks_again_before_a_worker_has_looked() {
    let again = asked(1, ask(1, &[]));
    assert_eq!(is(&proposed(), &again, HOUR - 1), "Wait");
    assert_eq!(is(&proposed(), &again, HOUR), "Propose -> proposed");
    let anew = moved(&tool("t"), Some(&proposed()), &again, HOUR).expect("asked again");
    let proposal = anew.proposal.as_deref().expect("one");
    assert_eq!((proposal.ask, proposal.requested), (2, 2));
    let old = approves("ann", 1, 1, BOUND);
    assert_eq!(is(&anew, &old, 2 * HOUR - 1), "Begin -> approved");
}

#[test]
fn approvals_that_are_void_use_up_no_ask_of_a_request() {
    let mut waits = proposed();
    for n in 0..30 {
        let seconds = 10 + n;
        waits = moved(
            &tool("t"),
            Some(&waits),
            &approves("ann", 1, 1, BOUND),
            seconds,
        )
        .expect("approved");
        waits = moved(&tool("t"), Some(&waits), &begun([8; 32]), seconds).expect("void");
    }
    let proposal = waits.proposal.as_deref().expect("one");
    assert_eq!((proposal.ask, proposal.requested), (31, 1));
    let again = asked(1, ask(1, &[]));
    assert_eq!(is(&waits, &again, HOUR), "Propose -> proposed");
}

#[test]
fn a_similar_call_that_was_not_shown_and_a_stale_token_keep_an_approved_call_from_its_begin() {
    let other = CallId(Uuid::from_u128(9));
    let voided = Event::Voided {
        by: ME,
        similar: other,
    };
    let there = moved(&tool("t"), Some(&approved()), &voided, 20).expect("void");
    assert_eq!(
        (&there.state, there.similar_to),
        (&State::Proposed, Some(other))
    );
    assert_eq!(is(&proposed(), &voided, 20), "(NotApproved)");
    let stale = Event::Outdated { by: ME };
    let there = moved(&tool("t"), Some(&approved()), &stale, 20).expect("stale");
    assert!(matches!(&there.state, State::Failed(failure) if failure.kind == FailureKind::Fenced));
    assert_eq!(is(&proposed(), &stale, 20), "(NotApproved)");
    // What its approvers have seen, it may look like.
    let mut shown = approved();
    shown.similar_to = Some(other);
    let next = next(&tool("t"), Some(&shown), &begun(BOUND), at(20)).expect("legal");
    let Admission { similar, .. } = next
        .change
        .expect("a change")
        .admission
        .expect("conditions");
    assert_eq!(similar, None, "this tool compares none");
}

#[test]
fn a_run_that_surely_failed_begins_again_by_its_approval_and_one_in_doubt_never() {
    let tool = tool("t");
    let running = moved(&tool, Some(&approved()), &begun(BOUND), 20).expect("it begins");
    let failed =
        moved(&tool, Some(&running), &ended_with(2, not_sent(), None), 21).expect("failed");
    let plain = arrived(key::Source::Derived, 1, 3);
    assert_eq!(is(&failed, &plain, 22), "Begin -> approved");
    assert_eq!(
        is(&failed, &plain, 400),
        "Answer",
        "the approval is not good any more"
    );
    let unknown = moved(&tool, Some(&running), &ended_with(2, no_answer(), None), 21).expect("one");
    let settled = moved(&tool, Some(&unknown), &resolved(Resolution::Failed), 60).expect("one");
    assert_eq!(is(&settled, &plain, 61), "Answer");
    assert_eq!(
        is(&settled, &asked(1, ask(1, &[])), 61),
        "Propose -> proposed"
    );
}

#[test]
fn a_loss_makes_what_waits_unknown_and_a_saga_takes_it_back() {
    for record in [proposed(), approved()] {
        let lost = moved(&tool("t"), Some(&record), &store_lost(), 30).expect("unknown");
        assert_eq!(lost.state.as_str(), "unknown");
        assert_eq!(
            is(&lost, &approves("bob", 1, 1, BOUND), 31),
            "(NotProposed)"
        );
        assert_eq!(is(&lost, &begun(BOUND), 31), "(NotApproved)");
        let undone = moved(&tool("t"), Some(&record), &to_compensate(), 30).expect("undone");
        assert_eq!(undone.state, State::Compensated(None));
        assert_eq!(
            is(&undone, &approves("bob", 1, 1, BOUND), 31),
            "(NotProposed)"
        );
        assert_eq!(is(&undone, &begun(BOUND), 31), "(NotApproved)");
    }
}

#[test]
fn a_late_answer_to_an_earlier_run_settles_a_call_that_asks_again() {
    let tool = tool("t");
    let running = moved(&tool, Some(&approved()), &begun(BOUND), 20).expect("it begins");
    let failed =
        moved(&tool, Some(&running), &ended_with(2, not_sent(), None), 21).expect("failed");
    let asks = moved(&tool, Some(&failed), &asked(1, ask(1, &[])), 400).expect("asks again");
    assert_eq!(asks.state, State::Proposed);
    assert_eq!(
        is(&asks, &ended_with(2, answer(200), None), 401),
        "Alarm -> succeeded"
    );
    assert_eq!(
        is(&proposed(), &ended_with(2, answer(200), None), 9),
        "(NotOwner)"
    );
}

/// After a loss it is not known whether it was approved and begun. A tool that deduplicates does not approve.
#[test]
fn a_call_that_may_have_begun_by_a_lost_approval_is_not_sent_again_by_a_worker() {
    let retries = Tool {
        unknown: OnUnknown::Retry,
        dedup: Dedup::Key,
        ..tool("t")
    };
    let due = Event::CheckDue {
        by: ME,
        attempt: Some(attempt(3)),
    };
    let checked = |there: &Record, seconds| {
        let lost = moved(&retries, Some(there), &store_lost(), seconds).expect("in doubt");
        assert!(matches!(lost.state, State::Unknown(_)), "{:?}", lost.state);
        let later = lost.check.and_then(|check| check.at).expect("planned");
        let next = next(&retries, Some(&lost), &due, later).expect("due");
        (next.action, next.change.expect("a change").record)
    };
    let declined = moved(&retries, Some(&approved()), &declined("ann"), 20).expect("declined");
    let lapsed = moved(
        &retries,
        Some(&proposed()),
        &Event::ProposalDue { by: ME },
        4_000,
    )
    .expect("lapsed");
    for (there, seconds) in [
        (proposed(), 20),
        (approved(), 20),
        (declined, 21),
        (lapsed, 4_001),
    ] {
        let (action, given_up) = checked(&there, seconds);
        assert_eq!(action, Action::Finish, "{:?}", there.state);
        assert!(matches!(given_up.state, State::Unknown(_)));
        assert_eq!(given_up.check.and_then(|check| check.at), None);
    }
    let running = moved(&retries, Some(&approved()), &begun(BOUND), 20).expect("it begins");
    assert_eq!(
        checked(&running, 21).0,
        Action::Run,
        "it was approved, and is the same intent"
    );
}

/// The rule may have changed since the call was asked about.
#[test]
fn an_approval_must_do_by_the_ask_and_by_the_rule_of_today() {
    let rule = |approvals, from: &[&str]| Tool {
        approval: Some(approval::Policy {
            when: Vec::new(),
            expires: Duration::from_secs(3_600),
            good_for: Duration::from_secs(300),
            approvals,
            from: from.iter().map(|name| (*name).to_owned()).collect(),
            show: Vec::new(),
        }),
        ..tool("t")
    };
    let by = |name: &str| approves(name, 1, 1, BOUND);
    let (two, bob) = (rule(2, &[]), rule(1, &["bob"]));
    let one_of_two = moved(&two, Some(&proposed()), &by("ann"), 10).expect("one of two");
    assert_eq!(one_of_two.state, State::Proposed);
    let both = moved(&two, Some(&one_of_two), &by("bob"), 11).expect("two of two");
    assert_eq!(both.state, State::Approved);
    assert_eq!(
        cell(&bob, Some(&proposed()), &by("ann"), 10),
        "(NotAnApprover)"
    );
    for stricter in [&two, &bob] {
        let voided = moved(stricter, Some(&approved()), &begun(BOUND), 20).expect("void");
        assert_eq!(voided.state, State::Proposed);
        let proposal = voided.proposal.expect("a proposal");
        assert!(proposal.approvals.is_empty());
    }
    let asked_of_two = asked(1, ask(2, &[]));
    let waits = moved(&tool("t"), None, &asked_of_two, 0).expect("a proposal");
    let one = moved(&rule(1, &[]), Some(&waits), &by("ann"), 10).expect("one of two");
    assert_eq!(one.state, State::Proposed, "a looser rule releases nothing");
}
