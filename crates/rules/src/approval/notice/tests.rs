use serde_json::json;

use super::*;
use crate::approval::{Approval, Ask};
use crate::record::Failure;
use crate::testing::{at, succeeded};

/// A call that was asked about at 0, with an hour to decide.
fn asked(expires: u64) -> Record {
    let ask = Ask {
        why: Vec::new(),
        expires: Duration::from_secs(expires),
        good_for: Duration::from_secs(60),
        needed: 1,
        from: Vec::new(),
        similar: false,
        over_budget: false,
    };
    let mut record = succeeded("1");
    record.state = State::Proposed;
    record.attempts = 0;
    record.proposal = Some(Box::new(Proposal::new(&ask, None, None, None, at(0))));
    record
}

fn proposal(record: &mut Record) -> &mut Proposal {
    record.proposal.as_deref_mut().expect("a proposal")
}

fn approved(mut record: Record) -> Record {
    record.state = State::Approved;
    proposal(&mut record).approvals.push(Approval {
        by: "ann".into(),
        at: at(5),
        reason: String::new(),
        seen: [0; 32],
    });
    record
}

fn failed(record: &Record, kind: FailureKind) -> Record {
    let state = State::Failed(Failure::new(kind, "why"));
    Record {
        state,
        ..record.clone()
    }
}

/// Tells all that there is to tell of a call now, and what follows.
fn tell(notice: Notice, record: &Record, seconds: i64) -> (Notice, Vec<(Message, u32)>, Step) {
    let (mut notice, mut sent) = (notice, Vec::new());
    loop {
        match notice.step(Some(record), at(seconds)) {
            Step::Tell { message, ask } => {
                sent.push((message, ask));
                let requested = record.proposal.as_ref().expect("a proposal").requested;
                notice = notice.delivered(message, (ask, requested), at(seconds));
            }
            step => return (notice, sent, step),
        }
    }
}

fn expected() -> Notice {
    Notice::expected(succeeded("1").intent.call_id, None, at(0))
}

const ASKED: (Message, u32) = (Message::Asked, 1);

fn ended(outcome: Outcome, ask: u32) -> (Message, u32) {
    (Message::Ended(outcome), ask)
}

#[test]
fn a_call_is_told_of_when_it_is_asked_about_when_little_time_is_left_and_when_it_ends() {
    let record = asked(3_600);
    let (notice, sent, step) = tell(expected(), &record, 1);
    assert_eq!((sent, step), (vec![ASKED], Step::Wait(at(301))));
    let (notice, sent, step) = tell(notice, &record, 2_879);
    assert_eq!((sent, step), (vec![], Step::Wait(at(2_880))));
    let (notice, sent, _) = tell(notice, &record, 2_880);
    assert_eq!(sent, [(Message::Expiring, 1)]);
    let (notice, sent, _) = tell(notice, &record, 3_000);
    assert_eq!(sent, [], "once");
    let lapsed = failed(&record, FailureKind::Lapsed);
    let (notice, sent, step) = tell(notice, &lapsed, 3_600);
    assert_eq!((sent, step), (vec![ended(Outcome::Lapsed, 1)], Step::Over));
    let over = notice.over(at(3_600)).to_document();
    assert!(over.due_at.is_none() && over.retain_until.is_some());
}

#[test]
fn at_least_a_minute_is_left_when_a_call_is_about_to_expire_if_there_are_two() {
    for (expires, expected) in [(60, 30), (120, 60), (200, 140), (600, 480), (3_600, 2_880)] {
        let mut record = asked(expires);
        let found = expiring_at(proposal(&mut record));
        assert_eq!(found, at(expected), "{expires}");
    }
}

#[test]
fn each_end_has_a_word_and_a_call_that_was_decided_first_is_told_of_once() {
    let waits = asked(3_600);
    let (notice, _, _) = tell(expected(), &waits, 1);
    let begun = |state| Record {
        state,
        attempts: 1,
        ..approved(asked(3_600))
    };
    for (record, outcome) in [
        (failed(&waits, FailureKind::Declined), Outcome::Declined),
        (failed(&waits, FailureKind::Lapsed), Outcome::Lapsed),
        (failed(&waits, FailureKind::Withdrawn), Outcome::Withdrawn),
        (failed(&waits, FailureKind::SagaClosed), Outcome::Withdrawn),
        (approved(waits.clone()), Outcome::Approved),
        (begun(State::Running), Outcome::Approved),
        (begun(succeeded("1").state), Outcome::Approved),
        (
            failed(&begun(State::Running), FailureKind::Rejected),
            Outcome::Approved,
        ),
        (
            Record {
                state: State::Unknown("lost".into()),
                ..waits.clone()
            },
            Outcome::Unknown,
        ),
    ] {
        let expected_end = vec![ended(outcome, 1)];
        let (_, sent, _) = tell(notice.clone(), &record, 200);
        assert_eq!(sent, expected_end, "{:?}", record.state);
        // Nothing was sent before.
        let (_, sent, _) = tell(expected(), &record, 200);
        assert_eq!(sent, expected_end, "{:?}", record.state);
    }
}

#[test]
fn what_is_void_is_told_and_asked_again() {
    let (notice, _, _) = tell(expected(), &asked(3_600), 1);
    let approved = approved(asked(3_600));
    let (notice, sent, step) = tell(notice, &approved, 10);
    assert_eq!(sent, [ended(Outcome::Approved, 1)]);
    assert_eq!(step, Step::Wait(at(310)), "it may be void yet");
    let mut voided = approved.clone();
    voided.state = State::Proposed;
    proposal(&mut voided).void();
    let (notice, sent, _) = tell(notice, &voided, 20);
    assert_eq!(sent, [ended(Outcome::Voided, 1), (Message::Asked, 2)]);
    // It had lapsed, which no message said, when the same request came again.
    let mut again = voided.clone();
    (proposal(&mut again).ask, proposal(&mut again).requested) = (3, 2);
    let (_, sent, _) = tell(notice, &again, 30);
    assert_eq!(sent, [ended(Outcome::Lapsed, 2), (Message::Asked, 3)]);
}

#[test]
fn a_run_that_failed_after_its_approval_and_is_asked_about_again_was_not_void() {
    let (notice, _, _) = tell(expected(), &asked(3_600), 1);
    let (notice, _, _) = tell(notice, &approved(asked(3_600)), 10);
    let mut again = asked(3_600);
    (proposal(&mut again).ask, proposal(&mut again).requested) = (2, 2);
    let (_, sent, _) = tell(notice, &again, 400);
    assert_eq!(sent, [(Message::Asked, 2)]);
}

#[test]
fn a_notice_outlives_a_claim_that_is_under_way_and_none_that_was_refused() {
    let step = |seconds| expected().step(None, at(seconds));
    assert_eq!(step(1), Step::Wait(at(120)));
    assert_eq!(step(120), Step::Over);
    let lapsed = failed(&asked(3_600), FailureKind::Lapsed);
    let (notice, _, _) = tell(expected(), &lapsed, 200);
    let again = Notice::expected(notice.call_id, Some(notice.over(at(200))), at(300));
    assert_eq!(again.step(Some(&lapsed), at(301)), Step::Wait(at(420)));
    assert_eq!(again.to_document().retain_until, None);
}

#[test]
fn a_message_is_tried_with_longer_pauses_and_given_up_in_the_end() {
    let mut notice = expected();
    let mut pauses = Vec::new();
    while let Some(next) = notice.failed(1.0, at(0)) {
        let pause = next.due_at.expect("due").duration_since(at(0));
        pauses.push(pause.as_secs());
        assert!(!next.may_hurry(at(0)));
        notice = next;
    }
    assert_eq!(pauses[..7], [5, 10, 20, 40, 80, 160, 300]);
    assert_eq!(pauses.len(), 299);
}

#[test]
fn a_notice_that_a_gateway_has_taken_is_left_to_it_until_its_time_is_over() {
    assert!(expected().may_hurry(at(0)));
    let taken = expected().taken(at(60));
    assert!(!taken.may_hurry(at(59)));
    assert!(taken.may_hurry(at(60)));
}

#[test]
fn a_notice_comes_back_from_its_document() {
    let (notice, _, _) = tell(expected(), &approved(asked(3_600)), 10);
    for notice in [expected(), notice.clone().taken(at(9)), notice] {
        let back = Notice::from_document(&notice.to_document());
        assert_eq!(back, Ok(notice));
    }
}

#[test]
fn a_repetition_has_the_same_id_and_everything_else_another() {
    let call_id = succeeded("1").intent.call_id;
    let messages = [
        Message::Asked,
        Message::Expiring,
        Message::Ended(Outcome::Approved),
        Message::Ended(Outcome::Voided),
    ];
    let mut ids: Vec<String> = messages
        .iter()
        .flat_map(|message| [1, 2].map(|ask| message.id(call_id, ask)))
        .collect();
    assert_eq!(ids[0], Message::Asked.id(call_id, 1));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8);
}

#[test]
fn only_short_values_at_the_pointers_are_shown() {
    let to = |name: &str| Pointer::to(&[name]);
    let args = json!({ "amount": 5, "note": "x".repeat(1_000), "card": "4242" });
    let (shown, left_out) = shown_values(&args, &[to("amount"), to("note"), to("none")]);
    assert_eq!(Value::Object(shown), json!({ "/amount": 5 }));
    assert_eq!(left_out, ["/note", "/none"]);
    let many: Vec<Pointer> = (0..20).map(|_| to("amount")).collect();
    assert!(shown_values(&args, &many).1.is_empty());
    assert_eq!(shown_values(&args, &[]), (Map::new(), Vec::new()));
}
