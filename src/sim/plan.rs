//! What a seed decides at the beginning: who there is, and how much goes wrong.

use std::fmt::Write as _;
use std::time::Duration;

use super::dice::Dice;
use crate::core::timings::Timings;

/// A deliberate break. The simulation must find what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    Nothing,
    /// A claim takes a key that another call holds.
    ClaimTakesHeldKey,
    /// A change is written whatever the stored record is by now.
    ReplacesWithoutComparing,
    /// The store acknowledges outcomes that it has not written.
    AcknowledgesUnwritten,
    /// Cleanup forgets calls whose outcome is unknown.
    ForgetsUnknown,
    /// No gateway takes up a call whose owner is gone.
    RecoversNothing,
    /// A request leaves although the gate was not asked, so an answer that was dropped counts as "nothing was sent".
    LeavesWithoutGate,
    /// "Not found" counts at once, although a request may come later.
    BelievesEarlyNotFound,
    /// A tool is said to deduplicate, and does not.
    DeduplicatesNothing,
    /// A request reaches its tool later than was declared.
    ArrivesTooLate,
    /// Calls of a session that must not run at the same time do.
    SharesSession,
    /// Results are not those of the effects.
    GarblesResults,
    /// What is to undo a call is answered, and undoes nothing.
    UndoesNothing,
    /// A gateway takes a finished saga for an open one.
    ReopensSagas,
}

/// How often each fault of the store comes, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub(super) refused: u64,
    /// Carried out, and the answer is lost.
    pub(super) unanswered: u64,
    /// The answer is lost at once, and it is carried out later.
    pub(super) late: u64,
    /// Carried out twice.
    pub(super) twice: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) broken: Break,
    pub(super) gateways: usize,
    pub(super) agents: usize,
    /// How many more carry out sagas.
    pub(super) planners: usize,
    /// How many more make calls as tasks.
    pub(super) takers: usize,
    pub(super) steps: u64,
    pub(super) keys: u64,
    /// The tools that calls without a saga are for.
    pub(super) tools_alone: Vec<&'static str>,
    /// When trouble begins and ends, in milliseconds.
    pub(super) trouble_from: u64,
    pub(super) trouble_until: u64,
    pub(super) store: Rates,
    /// The most that the way to the store takes.
    pub(super) way_ms: u64,
    /// When the store refuses everything.
    pub(super) outages: Vec<(u64, u64)>,
    /// How often the tools misbehave, in percent.
    pub(super) tools: u64,
    /// How many times gateways end, or stall.
    pub(super) crashes: u64,
    pub(super) stalls: u64,
}

impl Plan {
    pub(super) fn of(seed: u64, broken: Break) -> Self {
        let mut dice = Dice::of(seed, "plan", 0);
        let trouble_until = dice.between(1_500, 5_000);
        let rate = |dice: &mut Dice, most: u64| {
            if dice.chance(50) {
                0
            } else {
                dice.between(1, most)
            }
        };
        let store = Rates {
            refused: rate(&mut dice, 12),
            unanswered: rate(&mut dice, 12),
            late: rate(&mut dice, 8),
            twice: rate(&mut dice, 8),
        };
        let outages = (0..dice.pick(&[0, 0, 0, 1, 1, 2]))
            .map(|_| {
                let from = dice.below(trouble_until);
                (from, from + dice.between(50, 1_500))
            })
            .collect();
        let tools_alone = match dice.below(3) {
            0 => vec![dice.pick(&ALONE)],
            1 => vec![dice.pick(&ALONE), dice.pick(&ALONE)],
            _ => ALONE.to_vec(),
        };
        Self {
            seed,
            broken,
            tools_alone,
            // A gateway that learns nothing at its start claims nothing.
            trouble_from: dice.pick(&[0, 200, 200, 200]),
            gateways: dice.pick(&[1, 2, 2]),
            agents: dice.between(1, 4) as usize,
            planners: dice.below(4) as usize,
            steps: dice.between(2, 7),
            keys: dice.between(1, 4),
            trouble_until,
            store,
            way_ms: dice.pick(&[2, 2, 10, 40, 120]),
            outages,
            tools: dice.pick(&[0, 20, 40, 60]),
            crashes: dice.pick(&[0, 0, 1, 1, 2, 4]),
            stalls: dice.pick(&[0, 0, 1, 2]),
            takers: dice.pick(&[0, 0, 1, 2]),
        }
    }

    /// Whether anything may go wrong at this time.
    pub(super) fn is_trouble(&self, now: u64) -> bool {
        (self.trouble_from..self.trouble_until).contains(&now)
    }

    pub(super) fn is_down(&self, now: u64) -> bool {
        self.outages
            .iter()
            .any(|(from, until)| (*from..*until).contains(&now))
    }
}

/// The tools of calls without a saga.
const ALONE: [&str; 5] = ["held", "asked", "dedup", "turns", "short"];

/// How long after its lease a request may still reach a tool that is asked.
pub(super) const DECLARED_LATE: Duration = Duration::from_secs(1);

/// What every tool has: an attempt is short, and a lease ends soon.
const RULES: &str = "timeout = \"400ms\"\ndeadline = \"900ms\"\nsession_wait = \"600ms\"\n\
     retry = { attempts = 2, base = \"10ms\", max = \"30ms\" }\nbreaker = { failures = 100000 }\n\
     recheck = { base = \"200ms\", max = \"800ms\" }\n";
const DEDUPLICATES: &str = "dedup = \"key\"\nunknown = \"retry\"\n";
const ASKED: &str = "unknown = \"probe\"\n";
/// Its keys are forgotten while the world goes on, and its calls are deleted.
const SHORT: &str = "dedup_window = \"1500ms\"\nretention = \"2500ms\"\n";

/// A tool: its name, its rules, and the tool that undoes it.
pub(super) struct Kind {
    pub(super) name: &'static str,
    rules: &'static str,
    pub(super) undo: &'static str,
}

const fn kind(name: &'static str, rules: &'static str, undo: &'static str) -> Kind {
    Kind { name, rules, undo }
}

/// All tools. Those with an undoing are what sagas are made of.
pub(super) const KINDS: [Kind; 13] = [
    kind("held", "", ""),
    kind("asked", ASKED, ""),
    kind("dedup", DEDUPLICATES, ""),
    kind("turns", "session = \"exclusive\"\n", ""),
    kind("short", SHORT, ""),
    kind("order", "", "undo_order"),
    kind("pay", DEDUPLICATES, "undo_pay"),
    kind("ship", ASKED, "undo_ship"),
    kind("send", "compensate_unknown = \"send\"\n", "undo_send"),
    kind("undo_order", "", ""),
    kind("undo_pay", DEDUPLICATES, ""),
    kind("undo_ship", ASKED, ""),
    kind("undo_send", "", ""),
];

impl Kind {
    /// The tool of this name.
    pub(super) fn named(name: &str) -> &'static Self {
        let found = KINDS.iter().find(|kind| kind.name == name);
        found.expect("a tool of the simulation")
    }

    pub(super) fn deduplicates(&self) -> bool {
        self.rules == DEDUPLICATES
    }

    pub(super) fn is_asked(&self) -> bool {
        self.rules == ASKED
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.rules.contains("exclusive")
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.rules == SHORT
    }

    pub(super) fn undoes_unknown(&self) -> bool {
        self.rules.contains("send")
    }
}

/// The configuration of every gateway.
pub(super) fn config(broken: Break) -> String {
    let mut config = "[server]\nmax_memory = \"64MiB\"\nshutdown_grace = \"500ms\"\n\
         [store]\nurl = \"sqlite:nowhere.db\"\n\
         [mcp]\ntask_after = \"100ms\"\n\
         [sagas]\ndeadline = \"6s\"\non_timeout = \"abort\"\n\
         retry = { attempts = 3, base = \"50ms\", max = \"300ms\" }\n"
        .to_owned();
    for Kind { name, rules, undo } in &KINDS {
        let mut rules = (*rules).to_owned();
        if broken == Break::SharesSession {
            rules = rules.replace("exclusive", "shared");
        }
        if broken == Break::DeduplicatesNothing && matches!(*name, "held" | "undo_order") {
            rules = DEDUPLICATES.to_owned();
        }
        write!(
            config,
            "[tools.{name}]\nurl = \"http://tool/{name}\"\n{RULES}{rules}"
        )
        .ok();
        if rules == ASKED {
            let late = match broken {
                Break::BelievesEarlyNotFound => Duration::ZERO,
                _ => DECLARED_LATE,
            };
            let late = late.as_millis();
            writeln!(
                config,
                "probe = {{ url = \"http://tool/known/{{key}}\", negative_final_after = \"{late}ms\" }}"
            )
            .ok();
        }
        match *undo {
            "" => config.push_str("compensation = \"none\"\n"),
            undo => {
                writeln!(
                    config,
                    "compensation = {{ tool = \"{undo}\", args = {{ of = \"/call/call_id\" }} }}"
                )
                .ok();
            }
        }
    }
    config
}

/// How fast gateways look at things: as fast as their short leases need it.
pub(super) fn timings() -> Timings {
    Timings {
        lease_margin: Duration::from_secs(1),
        recover_every: Duration::from_millis(700),
        look_every: Duration::from_millis(400),
        count_every: Duration::from_secs(1),
        poll: (Duration::from_millis(50), Duration::from_millis(300)),
        look_for_claim: Duration::from_millis(300),
        work_margin: Duration::from_secs(1),
        saga_looks_again: Duration::from_millis(500),
        key_schemes_max_age: Duration::from_secs(4),
        ..Timings::default()
    }
}
