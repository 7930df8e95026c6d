//! What may happen in a world: a plan for its store, one for its tool, and what its agents do.

use jiff::SignedDuration;
use oncegate::core::key::Lookup;
use proptest::prelude::*;
use serde_json::json;

use crate::support::Act;
use crate::support::faulty::{Plan, Rates};

/// The worlds of one case. They live side by side, because most of it is waiting.
const WORLDS: usize = 20;

/// The keys of a world without bounds, and of one with them. Every other key is of the same session.
const KEYS: usize = 4;
const BRANCHES: usize = 12;
pub(super) const SESSIONS: usize = 2;
/// How many kinds of calls look alike in a world with bounds.
const ALIKE: usize = 4;
/// Small times: what is slow here is slower than an attempt, but ends before the lease. A 429 is declared as proof, so that it
/// is tried again.
const POLICY: &str = "timeout = \"150ms\"\ndeadline = \"400ms\"\nretry = { attempts = 2, base = \"2ms\" }\noutcomes = { 429 = \"not_executed\" }";
const SLOW_MS: u64 = 220;
/// The lease of every call is over by then.
pub(super) const LATER: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) plan: Plan,
    pub(super) bounds: Bounds,
    /// Whether a gateway is told that a call has ended at another.
    pub(super) tells: bool,
    /// What the tool does with its first requests; with all others it does what it should.
    pub(super) acts: Vec<Act>,
    pub(super) steps: Vec<Step>,
}

/// What bounds the branches of a session, beside their keys. Where anything does, nothing is lost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bounds {
    /// How long a call waits for an exclusive session.
    pub(super) exclusive_wait_ms: Option<u64>,
    pub(super) budget: Option<Budget>,
    /// What looks like an earlier call is refused.
    pub(super) similar: bool,
}

/// Of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub(super) max: usize,
    pub(super) window_ms: u32,
}

impl Bounds {
    pub(super) fn any(&self) -> bool {
        self.exclusive_wait_ms.is_some() || self.budget.is_some() || self.similar
    }

    /// The keys that agents use.
    pub(super) fn keys(&self) -> usize {
        if self.any() { BRANCHES } else { KEYS }
    }

    /// The tool's policy.
    pub(super) fn policy(&self) -> String {
        let mut lines = vec![POLICY.to_owned()];
        if let Some(wait) = self.exclusive_wait_ms {
            lines.push(format!(
                "session = \"exclusive\"\nsession_wait = \"{wait}ms\""
            ));
        }
        if let Some(Budget { max, window_ms }) = self.budget {
            lines.push(format!(
                "budget = {{ per = \"session\", max = {max}, window = \"{window_ms}ms\" }}"
            ));
        }
        if self.similar {
            lines.push(
                "similar = { fields = [\"/like\"], window = \"1h\", action = \"refuse\" }".into(),
            );
        }
        lines.join("\n")
    }

    /// What else an agent may hear of a call that did not begin.
    pub(super) fn refusals(&self) -> Vec<&'static str> {
        let refusals = [
            (self.exclusive_wait_ms.is_some(), "session-busy"),
            (self.budget.is_some(), "budget-exceeded"),
            (self.similar, "possible-duplicate"),
        ];
        refusals
            .into_iter()
            .filter(|(may, _)| *may)
            .map(|(_, slug)| slug)
            .collect()
    }
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Begins, and no caller waits for it; so does the next.
    Ask(Ask),
    /// On both gateways at once.
    AskBoth(Ask),
    /// All branches of a session, over both gateways in turn.
    Rush {
        session: usize,
    },
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
    /// The leases of unknown calls end that surely do nothing more.
    EndLeases,
}

/// One request of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) at: usize,
    pub(super) key: usize,
    /// With other arguments than usual under this key.
    pub(super) other: bool,
    /// For how many seconds it wants to wait; `None`: for as long as the gateway lets it.
    pub(super) wait: Option<u8>,
    pub(super) hangs_up_after_ms: Option<u64>,
}

pub(super) fn scenarios() -> impl Strategy<Value = Vec<Scenario>> {
    let step = prop_oneof![
        20 => ask().prop_map(Step::Ask),
        6 => ask().prop_map(Step::AskBoth),
        3 => (0..SESSIONS).prop_map(|session| Step::Rush { session }),
        3 => (0..2_usize).prop_map(|at| Step::Recover { at }),
        10 => prop_oneof![0..10_u64, 20..120_u64].prop_map(Step::PauseMs),
        4 => Just(Step::Settle),
        1 => (0..200_u64).prop_map(Step::DownMs),
        1 => (ask(), 1..4_usize).prop_map(|(during, writes)| Step::Lose { during, writes }),
        1 => Just(Step::AcceptLoss),
        4 => Just(Step::EndLeases),
    ];
    let acts = prop::collection::vec(act(), 0..20);
    let scenario = (
        plan(),
        bounds(),
        prop::bool::weighted(0.8),
        acts,
        prop::collection::vec(step, 8..40),
    );
    let scenario = scenario.prop_map(|(plan, bounds, tells, acts, steps)| Scenario {
        plan,
        bounds,
        tells,
        acts,
        steps,
    });
    prop::collection::vec(scenario, 1..=WORLDS)
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let wait = || prop_oneof![1 => Just(0_u64), 5 => Just(300), 2 => Just(30_000)].prop_map(Some);
    let window_ms = prop_oneof![3 => Just(3_600_000_u32), 1 => 100..500_u32];
    let budget = (1..4_usize, window_ms).prop_map(|(max, window_ms)| Budget { max, window_ms });
    let none = Bounds::default();
    prop_oneof![
        6 => Just(none),
        4 => wait().prop_map(move |exclusive_wait_ms| Bounds { exclusive_wait_ms, ..none }),
        1 => budget.clone().prop_map(move |budget| Bounds { budget: Some(budget), ..none }),
        1 => Just(Bounds { similar: true, ..none }),
        1 => (wait(), prop::option::of(budget), any::<bool>()).prop_map(
            |(exclusive_wait_ms, budget, similar)| Bounds { exclusive_wait_ms, budget, similar }
        ),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let hangs_up = prop_oneof![5 => Just(None), 1 => (0..60_u64).prop_map(Some)];
    (
        0..2_usize,
        0..BRANCHES,
        prop::bool::weighted(0.1),
        0..2_u8,
        hangs_up,
    )
        .prop_map(|(at, key, other, wait, hangs_up_after_ms)| Ask {
            at,
            key,
            other,
            wait: Some(wait),
            hangs_up_after_ms,
        })
}

fn plan() -> impl Strategy<Value = Plan> {
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

fn act() -> impl Strategy<Value = Act> {
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
        1 => Just(Act::after_ms(2 * SLOW_MS, Act::Numbered)),
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
    json!({ "key": ask.key, "other": ask.other, "like": like_of(ask.key) }).to_string()
}

/// What it has in common with the calls that look like it.
pub(super) fn like_of(key: usize) -> usize {
    if key < BRANCHES { key % ALIKE } else { key }
}

/// A key that no agent has used.
pub(super) fn fresh_key(session: usize, n: usize) -> usize {
    BRANCHES + n * SESSIONS + session
}

pub(super) fn session_of(key: usize) -> String {
    format!("S{}", key % SESSIONS)
}

pub(super) fn usual(key: usize) -> Ask {
    Ask {
        at: 0,
        key,
        other: false,
        wait: Some(1),
        hangs_up_after_ms: None,
    }
}
