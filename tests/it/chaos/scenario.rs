//! What may happen in a world: a plan for its store, one for its tool, and what its agents do.

use jiff::SignedDuration;
use oncegate::core::key::Lookup;
use proptest::prelude::*;
use serde_json::json;

use crate::support::Act;
use crate::support::faulty::{Plan, Rates};

/// The worlds of one case. They live side by side, because most of it is waiting.
pub(super) const WORLDS: usize = 12;

pub(super) const KEYS: usize = 4;
/// Small times: what is slow here is slower than an attempt, but ends before the lease.
pub(super) const POLICY: &str =
    "timeout = \"150ms\"\ndeadline = \"400ms\"\nretry = { attempts = 2, base = \"2ms\" }";
pub(super) const SLOW_MS: u64 = 220;
/// The lease of every call is over by then.
pub(super) const LATER: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) plan: Plan,
    /// What the tool does with its first requests; with all others it does what it should.
    pub(super) acts: Vec<Act>,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Begins, and nobody waits for it; so does the next.
    Ask(Ask),
    /// On both gateways at once.
    AskBoth(Ask),
    /// Likewise.
    Recover {
        at: usize,
    },
    PauseMs(u64),
    /// Until every agent is answered.
    Settle,
    /// The store refuses everything for so long.
    DownMs(u64),
    /// The store loses its newest writes while a call is under way. From then on nothing begins,
    /// until the loss is accepted.
    Lose {
        during: Ask,
        writes: usize,
    },
    AcceptLoss,
}

/// One request of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) at: usize,
    pub(super) key: usize,
    /// With other arguments than usual under this key.
    pub(super) other: bool,
    pub(super) patient: bool,
    pub(super) hangs_up_after_ms: Option<u64>,
}

pub(super) fn scenarios() -> impl Strategy<Value = Vec<Scenario>> {
    let step = prop_oneof![
        20 => ask().prop_map(Step::Ask),
        6 => ask().prop_map(Step::AskBoth),
        3 => (0..2_usize).prop_map(|at| Step::Recover { at }),
        10 => prop_oneof![0..10_u64, 20..120_u64].prop_map(Step::PauseMs),
        4 => Just(Step::Settle),
        1 => (0..200_u64).prop_map(Step::DownMs),
        1 => (ask(), 1..4_usize).prop_map(|(during, writes)| Step::Lose { during, writes }),
        1 => Just(Step::AcceptLoss),
    ];
    let scenario = (plan(), prop::collection::vec(act(), 0..20), prop::collection::vec(step, 8..40));
    let scenario = scenario.prop_map(|(plan, acts, steps)| Scenario { plan, acts, steps });
    prop::collection::vec(scenario, 1..=WORLDS)
}

pub(super) fn ask() -> impl Strategy<Value = Ask> {
    let hangs_up = prop_oneof![5 => Just(None), 1 => (0..60_u64).prop_map(Some)];
    (0..2_usize, 0..KEYS, prop::bool::weighted(0.1), any::<bool>(), hangs_up).prop_map(
        |(at, key, other, patient, hangs_up_after_ms)| Ask { at, key, other, patient, hangs_up_after_ms },
    )
}

pub(super) fn plan() -> impl Strategy<Value = Plan> {
    let rate = || prop_oneof![4 => Just(0_u8), 3 => 1..15_u8, 1 => 30..70_u8];
    let rates = move || {
        (rate(), rate(), rate(), rate()).prop_map(
            |(err_before, execute_then_timeout, execute_late, duplicate)| Rates {
                err_before,
                execute_then_timeout,
                execute_late,
                duplicate,
            },
        )
    };
    let ways = prop_oneof![Just(0_u64), 1..5_u64];
    (any::<u64>(), rates(), rates(), rates(), 1..300_u64, ways).prop_map(
        |(seed, claim, replace, others, late_ms, way_ms)| Plan {
            seed,
            claim,
            replace,
            others,
            late_ms,
            way_ms,
        },
    )
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    let rejects = Act::Answer(422, "", b"{\"no\":1}");
    prop_oneof![
        3 => Just(Act::Numbered),
        4 => Just(rejects.clone()),
        4 => Just(Act::Answer(429, "", b"{}")),
        1 => Just(Act::ExecuteThenDrop),
        1 => Just(Act::ExecuteThenReset),
        1 => Just(Act::ExecuteThenAnswer(500)),
        1 => Just(Act::HalfBody(200)),
        1 => Just(Act::Drop),
        1 => Just(Act::Answer(500, "", b"{}")),
        2 => Just(Act::after_ms(20, Act::Numbered)),
        2 => Just(Act::after_ms(SLOW_MS, Act::Numbered)),
        1 => Just(Act::after_ms(20, rejects.clone())),
        1 => Just(Act::after_ms(SLOW_MS, rejects)),
    ]
}

pub(super) fn name_of(key: usize) -> String {
    format!("k{key}")
}

pub(super) fn lookup_of(key: usize) -> Lookup {
    Lookup::new("default", "act", &name_of(key))
}

pub(super) fn args_of(ask: &Ask) -> String {
    json!({ "key": ask.key, "other": ask.other }).to_string()
}

pub(super) fn usual(key: usize) -> Ask {
    Ask { at: 0, key, other: false, patient: true, hangs_up_after_ms: None }
}
