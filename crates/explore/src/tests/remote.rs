//! Explorations of calls that servers work on as tasks, and the breaks that they must find.

use super::*;
use crate::steps::Step;
use crate::world::World;
use oncegate_rules::record::State;

/// One request, which its server answers with a task that may be gone.
const GIVEN: Left = Left {
    tasks: 1,
    gone: 1,
    ..ONE
};
/// One request that its client asks to cancel, that its server may answer with a task, and that may surely not be executed.
const CANCELLED: Left = Left {
    tasks: 1,
    cancels: 1,
    refusals: 1,
    ..ONE
};

#[test]
fn a_held_call_is_settled_by_its_task() {
    let small = Left {
        crashes: 1,
        unanswered: 1,
        ..GIVEN
    };
    let full = Left {
        arrivals: [1, 1],
        ..small
    };
    holds(
        Scene::held(bounds(small, full))
            .with_tasks()
            .called("held, with tasks"),
    );
}

#[test]
fn a_task_that_is_gone_is_left_to_the_probe() {
    let full = Left {
        crashes: 1,
        unanswered: 1,
        ..GIVEN
    };
    holds(
        Scene::probed(bounds(GIVEN, full))
            .with_tasks()
            .which_are_written()
            .called("probed, with tasks"),
    );
}

#[test]
fn a_task_that_is_gone_is_sent_again_to_a_tool_that_deduplicates() {
    let full = Left {
        crashes: 1,
        ..GIVEN
    };
    begins_well(
        Scene::deduplicating(bounds(full, full))
            .with_tasks()
            .called("deduplicating, with tasks"),
    );
}

#[test]
fn nothing_is_sent_again_after_a_wish_to_cancel() {
    begins_well(
        Scene::deduplicating(bounds(CANCELLED, CANCELLED))
            .with_tasks()
            .called("deduplicating, with tasks and a cancel"),
    );
}

#[test]
fn a_gone_task_that_counts_as_not_executed_is_found() {
    finds(
        Break::TakesGoneForNotExecuted,
        Scene::held(GIVEN).with_tasks(),
        "counts as not executed, although it",
    );
}

#[test]
fn a_not_found_that_is_believed_as_soon_as_a_task_is_gone_is_found() {
    finds(
        Break::CountsGoneFromLease,
        Scene::probed(GIVEN).with_tasks().which_are_written(),
        "although it still may be",
    );
}

#[test]
fn a_task_that_is_not_written_down_is_found() {
    let crash = Left {
        crashes: 1,
        ..GIVEN
    };
    finds(
        Break::FollowsWithoutWriting,
        Scene::held(crash).with_tasks(),
        "is unknown, and nothing asks for its task",
    );
}

#[test]
fn a_request_beside_a_task_is_found() {
    finds(
        Break::SendsBesideTask,
        Scene::deduplicating(GIVEN).with_tasks(),
        "beside its task",
    );
}

#[test]
fn an_operator_who_forgets_a_task_is_found() {
    finds(
        Break::OperatorsForgetTasks,
        Scene::held(GIVEN).with_tasks(),
        "beside its task",
    );
}

#[test]
fn a_request_after_a_wish_to_cancel_is_found() {
    finds(
        Break::SendsAfterCancel,
        Scene::deduplicating(CANCELLED).with_tasks(),
        "has a further attempt, although it was to be cancelled",
    );
}

#[test]
fn a_check_that_passes_over_a_wish_to_cancel_is_found() {
    finds(
        Break::ChecksPassOverCancels,
        Scene::deduplicating(CANCELLED).with_tasks(),
        "is sent again, although it was to be cancelled",
    );
}

/// A time that the operator has declared must be longer than a server works on a task: nothing asks for the task of a gateway
/// that ended before it had written the task down.
#[test]
fn a_declared_time_that_leaves_out_tasks_is_found() {
    finds(
        Break::Nothing,
        Scene::probed(GIVEN).with_tasks(),
        "although it still may be",
    );
}

/// The state after these steps.
fn after(model: &mut Model, steps: &[Step]) -> World {
    let mut world = World::first(&model.scene);
    for step in steps {
        let next = model.after(&world, *step).expect("the promise holds");
        world = next.expect("a state");
    }
    world
}

/// The gateway ends while it follows the task, and the server executes the call then.
#[test]
fn after_a_crash_the_task_settles_the_call_if_it_is_written_down() {
    let crash = Left {
        crashes: 1,
        ..GIVEN
    };
    let until_lost = [
        Step::Arrive(0, 0),
        Step::Go(0),        // sends
        Step::GiveTask(0),  // the server answers with a task
        Step::Go(0),        // writes the task down
        Step::Crash(0),     // while it follows the task
        Step::Execute(0),   // the server executes the call
        Step::TakeUp(0, 0), // the call is unknown
        Step::Tick,
    ];
    let asks = [
        Step::TakeUp(0, 0), // begins the check
        Step::Go(0),        // asks the server
        Step::Go(0),        // writes what it has said
    ];
    let scene = Scene::held(crash).with_tasks();
    let mut right = Model::new(scene.clone(), Break::Nothing);
    let unknown = after(&mut right, &until_lost);
    assert!(matches!(unknown.store.calls[0].state, State::Unknown(_)));
    let all: Vec<Step> = until_lost.into_iter().chain(asks).collect();
    let settled = after(&mut right, &all);
    assert!(matches!(settled.store.calls[0].state, State::Succeeded(_)));
    // Without the write nothing is due: only an operator could settle it.
    let mut wrong = Model::new(scene, Break::FollowsWithoutWriting);
    let followed = after(&mut wrong, &until_lost[..6]);
    let lost = wrong.after(&followed, Step::TakeUp(0, 0));
    let why = lost.err().expect("it is found");
    assert!(why.contains("nothing asks for its task"), "{why}");
}
