//! One seed, from the beginning to the end.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};

use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::agents::Agent;
use super::dice::Dice;
use super::gateway::Gateways;
use super::operators::Operator;
use super::plan::Plan;
use super::world::{Asked, World};
use crate::core::record::State;
use crate::store::{DocumentQuery, Documents};
use oncegate_hooks::seed;

/// How long everything may take to come to rest, in rounds of a second.
const ROUNDS: u64 = 60;
const ROUND_MS: u64 = 1_000;

/// What has become of a seed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) broken: Vec<String>,
    pub(super) history: Vec<String>,
    pub(super) tally: BTreeMap<&'static str, u64>,
    /// In milliseconds of the simulated time.
    pub(super) ended_at: u64,
}

/// Lives through a seed on this thread.
pub(super) fn run(plan: Plan) -> Outcome {
    run_and_note(plan).0
}

/// The same, and what agents and tools have seen: lines of a history for `crates/judge`.
pub(super) fn run_and_note(plan: Plan) -> (Outcome, Vec<String>) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime");
    notice_panics();
    let (mut outcome, events) = runtime.block_on(async {
        seed::begin(plan.seed);
        let world = World::of(plan);
        let turns = world.clone();
        let handing_out = tokio::spawn(async move { turns.turns.hand_out().await });
        live(&world).await;
        handing_out.abort();
        let events = world.events().lines();
        (outcome_of(&world), events)
    });
    seed::end();
    if PANICKED.take() {
        outcome.broken.push("a task has panicked".to_owned());
    }
    (outcome, events)
}

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// A runtime hides that a task has panicked.
fn notice_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.set(true);
            usual(panic);
        }));
    });
    PANICKED.set(false);
}

fn outcome_of(world: &World) -> Outcome {
    let ended_at = world.now();
    let mut written = world.written();
    // What happens in one millisecond has no order.
    let mut history = std::mem::take(&mut written.history);
    history.sort();
    Outcome {
        broken: std::mem::take(&mut written.broken),
        history: history
            .into_iter()
            .map(|(at, what)| format!("{at:6} {what}"))
            .collect(),
        tally: std::mem::take(&mut written.tally),
        ended_at,
    }
}

async fn live(world: &Arc<World>) {
    let gateways = Gateways::begin(world);
    let mut living = JoinSet::new();
    let plan = &world.plan;
    for number in 1..=plan.agents as u64 {
        living.spawn(Agent::of(number, &gateways).call_again_and_again());
    }
    for number in 1..=plan.planners as u64 {
        let number = number + plan.agents as u64;
        living.spawn(Agent::of(number, &gateways).carry_out());
    }
    for number in 1..=plan.takers as u64 {
        let number = number + (plan.agents + plan.planners) as u64;
        living.spawn(Agent::of(number, &gateways).take_tasks());
    }
    living.spawn(Operator::of(&gateways).help());
    for n in 0..plan.crashes {
        living.spawn(crash(gateways.clone(), n));
    }
    for n in 0..plan.stalls {
        living.spawn(stall(gateways.clone(), n));
    }
    let trouble = world.turns.wait("trouble".to_owned(), plan.trouble_until);
    trouble.await;
    world.heal();
    living.join_all().await;
    if come_to_rest(&gateways).await {
        world.judge_rest();
        world.judge_sagas().await;
        ask_again(&gateways).await;
    }
}

/// Waits until an accident happens. Its dice, and the gateway that it happens to.
async fn strike(gateways: &Gateways, accident: String) -> (Dice, usize) {
    let world = &gateways.world;
    let mut dice = world.dice(&accident);
    let at = dice.below(world.plan.trouble_until);
    world.turns.wait(accident, at).await;
    let slot = dice.below(world.plan.gateways as u64) as usize;
    (dice, slot)
}

async fn crash(gateways: Arc<Gateways>, n: u64) {
    let (mut dice, slot) = strike(&gateways, format!("crash {n}")).await;
    let (in_order, pause_ms) = (dice.chance(25), dice.below(1_200));
    gateways.restart(slot, in_order, pause_ms).await;
}

async fn stall(gateways: Arc<Gateways>, n: u64) {
    let (mut dice, slot) = strike(&gateways, format!("stall {n}")).await;
    gateways.stall(slot, dice.pick(&[100, 500, 1_200, 2_500]));
}

/// Time goes on, and operators do what only they can, until nothing is under way. Whether that was so in time.
async fn come_to_rest(gateways: &Arc<Gateways>) -> bool {
    let world = &gateways.world;
    let mut operator = Operator::of(gateways);
    let mut left = Vec::new();
    for round in 0..ROUNDS {
        world.turns.wait("rest".to_owned(), ROUND_MS).await;
        if !gateways.are_there() {
            left = vec!["a gateway does not serve".to_owned()];
            continue;
        }
        if round == 0 {
            operator.resume_all().await;
        }
        operator.settle(true).await;
        operator.help_sagas().await;
        left = under_way(world).await;
        if left.is_empty() {
            world.say("all is at rest".to_owned());
            return true;
        }
    }
    world.breaks(format!("it does not come to rest: {}", left.join(", ")));
    false
}

async fn under_way(world: &World) -> Vec<String> {
    let mut left: Vec<String> = world
        .memory
        .records()
        .into_iter()
        .filter(|(record, _)| {
            matches!(
                record.state,
                State::Running | State::Unknown(_) | State::Compensating(_)
            )
        })
        .map(|(record, _)| format!("{} is {}", record.intent.key, record.state.as_str()))
        .collect();
    for state in ["open", "compensating", "stuck"] {
        let sagas = world
            .memory
            .documents(&DocumentQuery::in_state(
                crate::core::document::Kind::Saga,
                state,
                100,
            ))
            .await;
        let sagas = sagas.map(|(found, _)| found.calls).unwrap_or_default();
        left.extend(sagas.iter().map(|saga| format!("{} is {state}", saga.id)));
    }
    left
}

/// All is well: who asks again for what has succeeded gets the same result, and nothing is executed again. Every task has ended.
async fn ask_again(gateways: &Arc<Gateways>) {
    let world = &gateways.world;
    let (asked, tasks, answered): (Vec<Asked>, _, Vec<String>) = {
        let written = world.written();
        (
            written.asked.values().cloned().collect(),
            written.tasks.clone(),
            written
                .answers
                .keys()
                .filter(|key| !key.starts_with("short"))
                .cloned()
                .collect(),
        )
    };
    let mut agent = Agent::of(99, gateways);
    for asked in asked.iter().filter(|asked| answered.contains(&asked.key)) {
        let before = world.books().effects();
        let answer = agent.call_once(asked).await;
        let is_answered = answer.is_some_and(|answer| {
            answer.status == 200 || !asked.saga.is_empty() && answer.problem() == "wrong-state"
        });
        if !is_answered {
            world.breaks(format!("{} has succeeded, and is not answered", asked.key));
        }
        if world.books().effects() != before {
            world.breaks(format!(
                "{} has succeeded, and is executed again",
                asked.key
            ));
        }
    }
    for asked in &asked {
        if let Some(id) = tasks.get(&asked.key)
            && agent.look(asked, id).await != Some(true)
        {
            world.breaks(format!("the task of {} has not ended", asked.key));
        }
    }
}
