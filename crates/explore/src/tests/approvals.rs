//! Explorations of calls that wait for approval, and the breaks that they must find.

use super::*;

/// One request, whose approver looks twice and may decline, and a reload.
const ASKED: Left = Left {
    looks: 2,
    declines: 1,
    reloads: 1,
    ..ONE
};

#[test]
fn what_waits_for_approval_is_sent_once_and_only_as_it_was_approved() {
    let full = Left {
        arrivals: [1, 1],
        crashes: 1,
        unanswered: 1,
        refusals: 1,
        ..ASKED
    };
    begins_well(
        Scene::held(bounds(ASKED, full))
            .approved_by(1)
            .called("approved"),
    );
}

#[test]
fn two_approvers_have_seen_the_same() {
    let full = Left {
        crashes: 1,
        ..ASKED
    };
    begins_well(
        Scene::held(bounds(ASKED, full))
            .approved_by(2)
            .called("approved by two"),
    );
}

#[test]
fn a_store_that_has_lost_an_approved_call_lets_nothing_run_twice() {
    let full = Left {
        losses: 1,
        looks: 2,
        ..TWO
    };
    begins_well(
        Scene::held(bounds(full, full))
            .approved_by(1)
            .called("approved, and the store loses writes"),
    );
}

#[test]
fn a_saga_that_is_aborted_sends_nothing_that_waits() {
    let full = Left {
        ends: 1,
        looks: 1,
        ..ONE
    };
    begins_well(
        Scene::saga(bounds(full, full), false)
            .without_stalls()
            .approved_by(1)
            .called("approved, in a saga"),
    );
}

#[test]
fn an_approval_after_its_time_is_found() {
    finds(
        Break::ApprovesAfterItsTime,
        Scene::held(ASKED).approved_by(1),
        "is approved after its time",
    );
}

#[test]
fn a_begin_that_does_not_compare_is_found() {
    finds(
        Break::BeginsWithoutComparing,
        Scene::held(ASKED).approved_by(1),
        "begins with a request that was not approved",
    );
}

#[test]
fn a_begun_call_that_lapses_is_found() {
    finds(
        Break::LapsesBegunCall,
        Scene::held(ASKED).approved_by(1),
        "has begun, and counts as never sent",
    );
}

#[test]
fn a_loss_that_keeps_a_proposal_approvable_is_found() {
    let loss = Left {
        losses: 1,
        looks: 2,
        ..ONE
    };
    finds(
        Break::LossKeepsProposals,
        Scene::held(loss).approved_by(1),
        "key 1",
    );
}
