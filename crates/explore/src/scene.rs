//! The subject of an exploration: the tool's rules, which faults may happen how often, and which rule is broken.

use std::time::Duration;

use oncegate_rules::compensation::{Policy, Template};
use oncegate_rules::key::Source;
use oncegate_rules::retry;
use oncegate_rules::saga;
use oncegate_rules::tool::{Declared, Dedup, Mode, OnUnknown, Recheck, SessionPolicy, Tool};

/// One tick of the model's clock. All times of the rules are whole ticks.
pub(super) const TICK: Duration = Duration::from_secs(10);
/// A run may send for this long, and holds its call for as long again.
pub(super) const DEADLINE: i64 = 1;
pub(super) const LEASE: i64 = 2;
/// How long unknown calls are checked, from the beginning of the run on: longer than a lease.
pub(super) const GIVE_UP: i64 = 5;

/// How often each fault and each act may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// Arrivals at each gateway.
    pub(super) arrivals: [u8; 2],
    /// Crashes of gateways.
    pub(super) crashes: u8,
    /// Writes that the store makes and does not confirm.
    pub(super) unanswered: u8,
    /// Requests that the network sends twice.
    pub(super) repeats: u8,
    /// Pauses of the tool by an operator.
    pub(super) pauses: u8,
    /// Losses of the store's newest writes.
    pub(super) losses: u8,
    /// Ends of the saga by its caller.
    pub(super) ends: u8,
    /// Single calls that an operator may have undone.
    pub(super) undos: u8,
    /// Locks that an operator takes away.
    pub(super) unlocks: u8,
    /// Requests that do not reach the tool, or that it refuses.
    pub(super) refusals: u8,
    /// How often a gateway takes a saga on which another gateway still works.
    pub(super) takeovers: u8,
}

impl Left {
    pub(super) const NOTHING: Self = Self {
        arrivals: [0, 0],
        crashes: 0,
        unanswered: 0,
        repeats: 0,
        pauses: 0,
        losses: 0,
        ends: 0,
        undos: 0,
        unlocks: 0,
        refusals: 0,
        takeovers: 0,
    };

    pub(super) fn bytes(&self) -> [u8; 12] {
        let [a, b] = self.arrivals;
        [
            a,
            b,
            self.crashes,
            self.unanswered,
            self.repeats,
            self.pauses,
            self.losses,
            self.ends,
            self.undos,
            self.unlocks,
            self.refusals,
            self.takeovers,
        ]
    }
}

/// A deliberate break of one rule. The explorer must find what it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Break {
    Nothing,
    /// A claim takes a key that another call holds.
    ClaimTakesHeldKey,
    /// A change is written without comparing the stored record.
    ReplacesWithoutComparing,
    /// The end of a lease counts as "not executed".
    LeaseFreesKey,
    /// A success is answered before it is written.
    TellsBeforeWriting,
    /// "Not found" counts before the first request's time is over.
    BelievesEarlyNotFound,
    /// A call is sent again to a tool that executes it again.
    SendsAgainWithoutDedup,
    /// An operator may say "failed" while the request is under way.
    PersonsNeedNotWait,
    /// Cleanup deletes unknown calls, too.
    CleansUpUnknown,
    /// An unknown call becomes failed when its key's window is over.
    UnknownExpires,
    /// No gateway takes up a call whose owner is gone.
    RecoversNothing,
    /// A gateway that was stalled sends after its deadline.
    SendsAfterDeadline,
    /// The store does not notice that it has lost writes.
    NoticesNoLoss,
    /// A loss is accepted, and no call is marked as unknown.
    AcceptsWithoutMarks,
    /// A loss is accepted as if the store had every write up to then.
    TakesTheStoreForWhole,
    /// A compensation is sent again while its outcome is unknown.
    SendsUndoingAgain,
    /// A saga undoes its calls while one of them may still run.
    UndoesWithoutWaiting,
    /// A finished saga may be aborted.
    AbortsFinishedSaga,
    /// A call is sent although its saga is closed.
    JoinsClosedSaga,
    /// A session's lock is free as soon as its call is unknown.
    FreesLockAtOnce,
    /// Another key of a model makes another call, although all other arguments are equal.
    TakesArgumentsFromLivingCall,
}

/// What groups the calls of all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    None,
    /// The calls of all keys are one saga.
    Saga,
    /// The calls of all keys take turns in one session.
    Session,
}

/// One exploration.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) tool: Tool,
    /// The tool that undoes.
    pub(super) cancel: Tool,
    pub(super) sagas: saga::Policy,
    pub(super) keys: u8,
    pub(super) source: Source,
    /// Whether all keys are a model's for one intent: the calls have a second name, made of their equal arguments.
    pub(super) are_alike: bool,
    pub(super) group: Group,
    pub(super) left: Left,
    /// How many ticks after its lease a request may still reach the tool.
    pub(super) late: i64,
    /// Whether time may pass while a gateway has something to do.
    pub(super) stalls: bool,
    /// For how many ticks the key of a finished call is remembered.
    pub(super) window: i64,
    /// Whether gateways go on when the store loses data. A file has one gateway, which ends with it.
    pub(super) is_shared: bool,
    /// After so many states the exploration ends; `None`: it visits all of them.
    pub(super) most_states: Option<usize>,
}

impl Scene {
    fn new(name: &'static str, tool: Tool, left: Left) -> Self {
        Self {
            name,
            cancel: plain("cancel"),
            tool,
            sagas: saga::Policy {
                deadline: 2 * TICK,
                on_timeout: saga::OnTimeout::Abort,
                retry: retry::Policy {
                    attempts: 1,
                    base: TICK,
                    max: TICK,
                },
                retention: TICK,
                look_again: TICK,
            },
            keys: 1,
            source: Source::Runtime,
            are_alike: false,
            group: Group::None,
            left,
            late: 0,
            stalls: true,
            window: 3,
            is_shared: true,
            most_states: None,
        }
    }

    /// A tool that does not deduplicate. Its unknown calls are held for an operator.
    pub(super) fn held(left: Left) -> Self {
        Self {
            source: Source::Business,
            ..Self::new("held", plain("act"), left)
        }
    }

    /// A tool with a probe. A request may arrive for a tick after its lease, as its operator has declared.
    pub(super) fn probed(left: Left) -> Self {
        let tool = Tool {
            unknown: OnUnknown::Probe,
            negative_final_after: Some(TICK),
            ..plain("act")
        };
        Self {
            late: 1,
            ..Self::new("probed", tool, left)
        }
    }

    /// A tool that deduplicates. Its unknown calls are sent again.
    pub(super) fn deduplicating(left: Left) -> Self {
        let tool = Tool {
            unknown: OnUnknown::Retry,
            dedup: Dedup::Key,
            ..plain("act")
        };
        Self {
            late: 1,
            ..Self::new("deduplicating", tool, left)
        }
    }

    /// One intent under two keys that a model made up. Its unknown calls are held for an operator.
    pub(super) fn alike(left: Left) -> Self {
        Self {
            name: "alike",
            source: Source::Model,
            are_alike: true,
            keys: 2,
            ..Self::held(left)
        }
    }

    /// Two calls of one saga.
    pub(super) fn saga(left: Left, undoes_unknown: bool) -> Self {
        let template = Template {
            tool: "cancel".into(),
            args: Vec::new(),
            undoes_unknown,
        };
        let tool = Tool {
            compensation: Policy::By(template),
            retry: once(),
            dedup_window: Some(TICK),
            retention: TICK,
            ..plain("act")
        };
        Self {
            cancel: Tool {
                retry: once(),
                retention: TICK,
                ..plain("cancel")
            },
            keys: 2,
            window: 1,
            group: Group::Saga,
            ..Self::new("saga", tool, left)
        }
    }

    /// Two calls that take turns in one session.
    pub(super) fn session(left: Left) -> Self {
        let session = SessionPolicy {
            mode: Mode::Exclusive,
            wait: Duration::ZERO,
        };
        let tool = Tool {
            session,
            retry: once(),
            ..plain("act")
        };
        Self {
            keys: 2,
            group: Group::Session,
            ..Self::new("session", tool, left)
        }
    }

    /// The same scene over a file, whose gateways end when the file is replaced.
    pub(super) fn over_a_file(self) -> Self {
        Self {
            is_shared: false,
            ..self
        }
    }

    /// The same scene with gateways that never stall.
    pub(super) fn without_stalls(self) -> Self {
        Self {
            stalls: false,
            ..self
        }
    }

    /// The same scene under another name.
    pub(super) fn called(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    pub(super) fn deduplicates(&self) -> bool {
        self.tool.dedup == Dedup::Key
    }
}

fn once() -> retry::Policy {
    retry::Policy {
        attempts: 1,
        base: Duration::ZERO,
        max: Duration::ZERO,
    }
}

fn plain(name: &str) -> Tool {
    Tool {
        timeout: TICK,
        deadline: TICK,
        lease_margin: TICK,
        dedup_window: Some(3 * TICK),
        retention: 4 * TICK,
        // A refusal of this tool is proof, as its operator has declared.
        outcomes: [(429, Declared::NotExecuted)].into(),
        retry: retry::Policy {
            attempts: 2,
            ..once()
        },
        recheck: Recheck {
            base: TICK,
            max: TICK,
            give_up_after: 5 * TICK,
        },
        ..Tool::new(name)
    }
}
