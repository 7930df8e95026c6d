//! Approval that a store's answer to a claim asks for: similar calls, and calls beyond a budget.

use super::approve::{BOUND, approves, ask, asked, begun};
use super::*;
use crate::approval::{Ask, Found, Policy, When};
use crate::key::GroupKey;
use crate::session::{Admission, BudgetRule, NearDuplicateRule};
use crate::tool::{Budget, OnSimilar, Per, Similar};

const WINDOW: Duration = Duration::from_secs(60);
const GROUP: GroupKey = GroupKey([5; 32]);

/// A tool of which one call a session is free, and whose similar calls are only flagged; with this rule.
fn bounded(when: &[When]) -> Tool {
    Tool {
        budget: Some(Budget {
            per: Per::Session,
            max: 1,
            window: WINDOW,
        }),
        similar: Some(Similar {
            fields: Vec::new(),
            window: WINDOW,
            action: OnSimilar::Flag,
        }),
        approval: Some(Policy {
            when: when.to_vec(),
            expires: Duration::from_secs(3_600),
            good_for: Duration::from_secs(300),
            approvals: 1,
            from: Vec::new(),
            show: Vec::new(),
        }),
        ..tool("t")
    }
}

fn both() -> Tool {
    bounded(&[When::Similar, When::OverBudget])
}

/// What is asked about a claim that finds this.
fn of(found: &[Found]) -> Ask {
    let rule = both().approval.expect("a rule");
    let ask = found.iter().fold(None, |ask: Option<Ask>, found| {
        Some(rule.ask_about(*found, ask.as_ref()).expect("an ask"))
    });
    ask.expect("an ask")
}

fn of_both() -> Ask {
    of(&[Found::Similar, Found::OverBudget])
}

/// The same request, as a call of the near-duplicate group.
fn in_group(event: Event, confirmed: Option<CallId>) -> Event {
    let put = |mut arrival: Arrival| {
        Arc::make_mut(&mut arrival.intent).similar = Some(GROUP);
        arrival.preconditions.confirmed = confirmed;
        arrival
    };
    match event {
        Event::Arrived(arrival) => Event::Arrived(put(arrival)),
        Event::Asked { arrival, ask } => Event::Asked {
            arrival: put(arrival),
            ask,
        },
        other => other,
    }
}

fn plain(confirmed: Option<CallId>) -> Event {
    in_group(arrived(key::Source::Derived, 1, 1), confirmed)
}

fn conditions(tool: &Tool, record: Option<&Record>, event: &Event) -> Admission {
    let next = next(tool, record, event, at(20)).expect("legal");
    let change = next.change.expect("a change");
    change.admission.expect("conditions")
}

fn similar_of(admission: &Admission) -> NearDuplicateRule {
    admission.similar.expect("a group")
}

fn budget_of(admission: &Admission) -> BudgetRule {
    admission.budget.expect("a budget")
}

#[test]
fn a_similar_call_is_refused_for_the_approver_whatever_its_caller_names() {
    let named = Some(CallId(Uuid::from_u128(9)));
    let claimed = similar_of(&conditions(&both(), None, &plain(named)));
    assert!(claimed.refuses && claimed.confirmed.is_none());
    let unasked = similar_of(&conditions(&bounded(&[When::Always]), None, &plain(named)));
    assert!(!unasked.refuses && unasked.confirmed == named);
}

#[test]
fn a_proposal_takes_its_places_and_only_what_is_not_asked_refuses_it() {
    let proposal = |ask| {
        let event = in_group(asked(1, ask), None);
        conditions(&both(), None, &event)
    };
    let free = proposal(of_both());
    assert_eq!(budget_of(&free).max, u32::MAX);
    assert!(!similar_of(&free).refuses);
    let bound = proposal(ask(1, &[]));
    assert_eq!(
        (budget_of(&bound).max, budget_of(&bound).window),
        (1, WINDOW)
    );
    assert!(similar_of(&bound).refuses);
    assert_eq!(budget_of(&free).group, budget_of(&bound).group);
}

#[test]
fn an_approved_call_passes_a_spent_budget_only_if_it_was_asked_about_and_no_similar_call_that_was_not_shown()
 {
    for (ask, most) in [(of_both(), u32::MAX), (of(&[Found::Similar]), 1)] {
        let event = in_group(asked(1, ask), None);
        let waits = moved(&both(), None, &event, 0).expect("a proposal");
        let shown = CallId(Uuid::from_u128(9));
        let waits = Record {
            similar_to: Some(shown),
            ..waits
        };
        let approved = moved(&both(), Some(&waits), &approves("ann", 1, 1, BOUND), 10);
        let approved = approved.expect("approved");
        let begins = conditions(&both(), Some(&approved), &begun(BOUND));
        assert_eq!(budget_of(&begins).max, most);
        let similar = similar_of(&begins);
        assert!(similar.refuses && similar.confirmed == Some(shown));
    }
}

/// Whether a claim asks is not known before it.
#[test]
fn a_lapsed_call_is_asked_about_again_as_long_as_a_claim_may_ask() {
    let event = in_group(asked(1, of_both()), None);
    let waits = moved(&both(), None, &event, 0).expect("a proposal");
    let lapsed = moved(&both(), Some(&waits), &Event::ProposalDue { by: ME }, 3_600);
    let lapsed = lapsed.expect("lapsed");
    let again = moved(&both(), Some(&lapsed), &plain(None), 3_601).expect("asked again");
    let proposal = again.proposal.as_deref().expect("one");
    assert_eq!((&again.state, proposal.requested), (&State::Proposed, 2));
    assert_eq!(proposal.why, of_both().why);
    assert!(proposal.is_over_budget());
    for rule in [bounded(&[When::Always]), tool("t")] {
        let next = cell(&rule, Some(&lapsed), &plain(None), 3_601);
        assert_eq!(next, "Answer", "nothing is released");
    }
    let late = cell(&both(), Some(&waits), &plain(None), 3_601);
    assert_eq!(late, "Propose -> proposed", "no worker has looked yet");
}
