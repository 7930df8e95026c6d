//! The explorations, and the deliberate breaks that they must find.

mod approvals; // calls that wait for approval
mod remote; // calls that servers work on as tasks

use super::model::Model;
use super::scene::{Break, Left, Scene};
use super::search::{Found, explore};

fn found(scene: Scene, broken: Break) -> Found {
    explore(&mut Model::new(scene, broken))
}

/// The bounds of an exploration: small ones, or those of `make explore` if `EXPLORE` is set.
///
/// `EXPLORE="arrivals=2,2 crashes=1"` sets single bounds by hand.
fn bounds(small: Left, full: Left) -> Left {
    let Some(given) = std::env::var_os("EXPLORE") else {
        return small;
    };
    let given = given.to_str().expect("EXPLORE is text").to_owned();
    let mut left = full;
    for (name, value) in given
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
    {
        let number = |text: &str| text.parse::<u8>().expect("EXPLORE has numbers");
        let place = match name {
            "arrivals" => {
                let (a, b) = value.split_once(',').expect("two numbers of arrivals");
                left.arrivals = [number(a), number(b)];
                continue;
            }
            "crashes" => &mut left.crashes,
            "unanswered" => &mut left.unanswered,
            "repeats" => &mut left.repeats,
            "pauses" => &mut left.pauses,
            "losses" => &mut left.losses,
            "ends" => &mut left.ends,
            "undos" => &mut left.undos,
            "unlocks" => &mut left.unlocks,
            "refusals" => &mut left.refusals,
            "takeovers" => &mut left.takeovers,
            "erasures" => &mut left.erasures,
            "looks" => &mut left.looks,
            "declines" => &mut left.declines,
            "reloads" => &mut left.reloads,
            "tasks" => &mut left.tasks,
            "gone" => &mut left.gone,
            "cancels" => &mut left.cancels,
            other => panic!("EXPLORE knows no {other}"),
        };
        *place = number(value);
    }
    left
}

/// How many states of a large exploration `make test` visits.
const FIRST: usize = 20_000;

fn is_full() -> bool {
    std::env::var_os("EXPLORE").is_some()
}

#[expect(clippy::print_stderr, reason = "the figures are what is asked for")]
fn holds(scene: Scene) {
    let found = found(scene, Break::Nothing);
    eprintln!("{found}");
    assert!(found.broken.is_none(), "the promise is broken");
}

/// An exploration of which `make test` visits the first states only.
fn begins_well(scene: Scene) {
    let most_states = (!is_full()).then_some(FIRST);
    holds(Scene {
        most_states,
        ..scene
    });
}

/// The explorer finds how a broken rule breaks the promise, and its story ends with that.
#[expect(clippy::print_stderr, reason = "the story is what is asked for")]
fn finds(broken: Break, scene: Scene, expected: &str) {
    let found = found(scene, broken);
    eprintln!("{broken:?}: {found}");
    let (why, story) = found.broken.expect("it is found");
    assert!(why.contains(expected), "{why}");
    assert!(!story.is_empty() && story.len() < 40, "{story:?}");
}

const ONE: Left = Left {
    arrivals: [1, 0],
    ..Left::NOTHING
};
const TWO: Left = Left {
    arrivals: [1, 1],
    ..Left::NOTHING
};

#[test]
fn a_tool_whose_unknown_calls_are_held_executes_once() {
    let full = Left {
        arrivals: [2, 1],
        crashes: 1,
        unanswered: 1,
        refusals: 1,
        ..TWO
    };
    holds(Scene::held(bounds(TWO, full)));
}

#[test]
fn one_intent_under_two_keys_of_a_model_is_executed_once() {
    let full = Left {
        arrivals: [2, 1],
        crashes: 1,
        unanswered: 1,
        refusals: 1,
        ..TWO
    };
    holds(Scene::alike(bounds(Left { refusals: 1, ..TWO }, full)));
}

#[test]
fn another_key_of_a_model_that_makes_another_call_is_found() {
    finds(
        Break::TakesArgumentsFromLivingCall,
        Scene::alike(TWO),
        "may still be executed",
    );
}

#[test]
fn a_tool_that_is_asked_executes_once() {
    let full = Left {
        crashes: 1,
        unanswered: 1,
        pauses: 1,
        refusals: 1,
        ..TWO
    };
    holds(Scene::probed(bounds(ONE, full)));
}

#[test]
fn a_tool_that_deduplicates_executes_once() {
    holds(Scene::deduplicating(bounds(ONE, TWO)));
}

#[test]
fn a_request_that_is_sent_twice_on_its_way_is_executed_once() {
    let full = Left {
        pauses: 1,
        repeats: 1,
        crashes: 1,
        ..ONE
    };
    let scene = Scene::deduplicating(bounds(full, full));
    begins_well(scene.called("deduplicating, and requests are repeated"));
}

#[test]
fn two_calls_of_a_session_take_turns() {
    let small = Left { unlocks: 1, ..TWO };
    let full = Left {
        arrivals: [2, 1],
        crashes: 1,
        refusals: 1,
        ..small
    };
    holds(Scene::session(bounds(small, full)));
}

#[test]
fn a_store_that_has_lost_writes_lets_nothing_run_twice() {
    let full = Left {
        losses: 1,
        refusals: 1,
        ..TWO
    };
    begins_well(Scene::held(bounds(full, full)).called("held, and the store loses writes"));
}

#[test]
fn a_file_that_has_lost_writes_lets_nothing_run_twice() {
    let full = Left {
        losses: 1,
        refusals: 1,
        ..TWO
    };
    begins_well(
        Scene::held(bounds(full, full))
            .over_a_file()
            .called("held, and its file is put back"),
    );
}

#[test]
fn a_saga_undoes_its_call_once() {
    let full = Left { ends: 1, ..ONE };
    begins_well(Scene::saga(bounds(full, full), false));
}

#[test]
fn a_saga_that_undoes_unknown_calls_undoes_each_once() {
    let full = Left { crashes: 1, ..ONE };
    let scene = Scene::saga(bounds(full, full), true).without_stalls();
    begins_well(scene.called("saga, undoes unknown calls"));
}

/// Erased as it has succeeded or failed, whatever comes after that.
#[test]
fn a_call_that_is_erased_is_executed_once() {
    let small = Left {
        erasures: 1,
        refusals: 1,
        ..TWO
    };
    let full = Left {
        arrivals: [2, 1],
        crashes: 1,
        ..small
    };
    holds(Scene::held(bounds(small, full)).called("held, and calls are erased"));
}

/// After a loss an erased failure may count as unknown again.
#[test]
fn a_call_that_is_erased_and_lost_is_executed_once() {
    let full = Left {
        arrivals: [2, 0],
        losses: 1,
        erasures: 1,
        ..ONE
    };
    let scene = Scene::held(bounds(full, full));
    begins_well(scene.called("held, and calls are erased and lost"));
}

#[test]
fn an_erased_call_is_undone_once_or_not_at_all() {
    let full = Left {
        undos: 1,
        erasures: 1,
        ..ONE
    };
    begins_well(
        Scene::alone(bounds(full, full))
            .without_stalls()
            .called("alone, and calls are erased"),
    );
}

#[test]
fn an_erasure_that_frees_the_key_is_found() {
    let erased = Left { erasures: 1, ..TWO };
    finds(
        Break::ErasureFreesKey,
        Scene::held(erased),
        "was answered as succeeded, and is running now",
    );
}

#[test]
fn an_erasure_of_an_unknown_call_is_found() {
    let erased = Left { erasures: 1, ..TWO };
    finds(
        Break::ErasesUnknown,
        Scene::held(erased),
        "counts as not executed, although it",
    );
}

#[test]
fn a_call_that_is_sent_of_what_was_erased_is_found() {
    finds(
        Break::SendsWhatWasErased,
        Scene::held(Left { erasures: 1, ..TWO }),
        "is sent of what was erased",
    );
}

#[test]
fn an_erasure_that_leaves_the_result_is_found() {
    finds(
        Break::ErasureLeavesResult,
        Scene::held(Left { erasures: 1, ..ONE }),
        "was erased, and has a result",
    );
}

#[test]
fn a_claim_that_takes_a_held_key_is_found() {
    finds(
        Break::ClaimTakesHeldKey,
        Scene::held(TWO),
        "may still be executed",
    );
}

#[test]
fn a_change_without_comparing_is_found() {
    finds(
        Break::ReplacesWithoutComparing,
        Scene::held(ONE),
        "has succeeded, and is unknown now",
    );
}

#[test]
fn a_lease_whose_end_frees_the_key_is_found() {
    finds(
        Break::LeaseFreesKey,
        Scene::held(TWO),
        "counts as not executed",
    );
}

#[test]
fn a_success_that_is_told_before_it_is_written_is_found() {
    finds(
        Break::TellsBeforeWriting,
        Scene::held(ONE),
        "was answered as succeeded",
    );
}

#[test]
fn an_early_not_found_that_is_believed_is_found() {
    finds(
        Break::BelievesEarlyNotFound,
        Scene::probed(ONE),
        "although it still may be",
    );
}

#[test]
fn an_unknown_call_that_is_sent_again_is_found() {
    finds(
        Break::SendsAgainWithoutDedup,
        Scene::held(ONE),
        "is unknown and runs again",
    );
}

#[test]
fn an_operator_who_does_not_wait_is_found() {
    finds(
        Break::OperatorsNeedNotWait,
        Scene::held(ONE),
        "although it still may be",
    );
}

#[test]
fn cleanup_of_unknown_calls_is_found() {
    finds(
        Break::CleansUpUnknown,
        Scene::held(ONE),
        "is deleted while it is unknown",
    );
}

#[test]
fn an_unknown_call_that_expires_is_found() {
    finds(
        Break::UnknownExpires,
        Scene::held(ONE),
        "counts as not executed, although it was",
    );
}

#[test]
fn a_lost_call_that_no_gateway_takes_up_is_found() {
    let crash = Left { crashes: 1, ..ONE };
    finds(
        Break::RecoversNothing,
        Scene::held(crash),
        "brings all to its end",
    );
}

#[test]
fn a_stalled_gateway_that_sends_is_found() {
    finds(
        Break::SendsAfterDeadline,
        Scene::held(ONE),
        "counts as not executed",
    );
}

#[test]
fn a_loss_that_is_not_noticed_is_found() {
    let loss = Left { losses: 1, ..TWO };
    finds(
        Break::NoticesNoLoss,
        Scene::held(loss),
        "was answered as succeeded",
    );
}

#[test]
fn a_loss_that_is_accepted_without_marks_is_found() {
    let loss = Left { losses: 1, ..TWO };
    finds(
        Break::AcceptsWithoutMarks,
        Scene::held(loss),
        "was answered as succeeded",
    );
}

#[test]
fn a_later_run_that_is_taken_for_impossible_after_a_loss_is_found() {
    let loss = Left { losses: 1, ..TWO };
    finds(
        Break::TakesTheStoreForWhole,
        Scene::held(loss).over_a_file(),
        "was answered as succeeded",
    );
}

#[test]
fn an_undoing_that_is_sent_again_is_found() {
    let scene = Scene::saga(ONE, false).without_stalls();
    finds(Break::SendsUndoingAgain, scene, "the undoing of call 1");
}

#[test]
fn a_saga_that_does_not_wait_for_its_calls_is_found() {
    let scene = Scene::saga(Left { ends: 1, ..ONE }, true).without_stalls();
    finds(Break::UndoesWithoutWaiting, scene, "key 1");
}

#[test]
fn a_finished_saga_that_moves_is_found() {
    let scene = Scene::saga(Left { ends: 2, ..ONE }, false);
    finds(
        Break::AbortsFinishedSaga,
        scene,
        "a finished saga has moved",
    );
}

#[test]
fn a_call_that_joins_a_closed_saga_is_found() {
    let scene = Scene::saga(TWO, false).without_stalls();
    finds(
        Break::JoinsClosedSaga,
        scene,
        "although its saga is being undone",
    );
}

#[test]
fn a_session_whose_lock_is_free_too_soon_is_found() {
    finds(
        Break::FreesLockAtOnce,
        Scene::session(TWO),
        "while another call of its session may be",
    );
}
