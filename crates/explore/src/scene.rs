//! The subject of an exploration: the tool's rules, which faults may happen how often, and which rule is broken.

use std::time::Duration;

use oncegate_rules::approval::Ask;
use oncegate_rules::compensation::{Part, Policy, Template};
use oncegate_rules::key::{Pointer, Source};
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

/// The approvers.
pub(super) const NAMES: [&str; 2] = ["ann", "bob"];

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
    /// Calls whose data an operator has erased.
    pub(super) erasures: u8,
    /// Looks of approvers at a call that waits.
    pub(super) looks: u8,
    /// Calls that an approver declines.
    pub(super) declines: u8,
    /// Reloads by which the request for the tool becomes another one.
    pub(super) reloads: u8,
    /// Requests that a server answers with a task.
    pub(super) tasks: u8,
    /// Tasks that a server cancels or forgets.
    pub(super) gone: u8,
    /// Calls that a client asks to cancel.
    pub(super) cancels: u8,
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
        erasures: 0,
        looks: 0,
        declines: 0,
        reloads: 0,
        tasks: 0,
        gone: 0,
        cancels: 0,
    };

    pub(super) fn bytes(&self) -> [u8; 19] {
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
            self.erasures,
            self.looks,
            self.declines,
            self.reloads,
            self.tasks,
            self.gone,
            self.cancels,
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
    OperatorsNeedNotWait,
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
    /// The key of an erased call is free.
    ErasureFreesKey,
    /// A call is erased although its outcome is unknown, as if it had failed.
    ErasesUnknown,
    /// The key of an erased call runs again with what is left of its arguments.
    SendsWhatWasErased,
    /// An erased call still has its result.
    ErasureLeavesResult,
    /// An approver may approve when the time to decide is over.
    ApprovesAfterItsTime,
    /// An approved call begins whatever would be sent now.
    BeginsWithoutComparing,
    /// A call that has begun lapses when the time to decide is over.
    LapsesBegunCall,
    /// After a loss a call that waited may still be approved.
    LossKeepsProposals,
    /// A server's task that is gone counts as not executed.
    TakesGoneForNotExecuted,
    /// After a task is gone, "not found" counts from the end of the lease, which may be over for long.
    CountsGoneFromLease,
    /// A task is followed, and not written down.
    FollowsWithoutWriting,
    /// A call is sent again while its server works on it as a task.
    SendsBesideTask,
    /// An operator may say "failed" while the server is still asked for its task.
    OperatorsForgetTasks,
    /// A call that is to be cancelled is sent again.
    SendsAfterCancel,
    /// The last look for a wish to cancel is left out for a call that is sent again by its check.
    ChecksPassOverCancels,
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
    /// How many approvers have to approve; 0: no call waits for approval.
    pub(super) approvals: u8,
    /// How many ticks after its lease a request may still reach the tool.
    pub(super) late: i64,
    /// For how many ticks a server may work on a task; 0: servers give no tasks.
    pub(super) task_life: i64,
    /// Whether it may do so with a task that no gateway has written down. Otherwise such a request is executed before the
    /// time that its operator has declared, like any other.
    pub(super) works_on_unwritten: bool,
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
            approvals: 0,
            left,
            late: 0,
            task_life: 0,
            works_on_unwritten: true,
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
            // Something that an erased call does not have.
            args: vec![("of".into(), Part::Taken(Pointer::to(&["call", "user_id"])))],
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

    /// A call of no saga, which an operator may have undone alone.
    pub(super) fn alone(left: Left) -> Self {
        Self {
            name: "alone",
            keys: 1,
            group: Group::None,
            ..Self::saga(left, false)
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

    /// The same scene with a tool whose calls wait for approval.
    pub(super) fn approved_by(self, approvals: u8) -> Self {
        Self { approvals, ..self }
    }

    /// The same scene with servers that give tasks, which outlive the lease.
    pub(super) fn with_tasks(self) -> Self {
        Self {
            task_life: 4,
            late: 1,
            ..self
        }
    }

    /// The same scene, in which only tasks that are written down outlive the time that the operator has declared.
    pub(super) fn which_are_written(self) -> Self {
        Self {
            works_on_unwritten: false,
            ..self
        }
    }

    /// What a request for the tool asks of approvers.
    pub(super) fn ask(&self) -> Option<Ask> {
        (self.approvals > 0).then(|| Ask {
            why: Vec::new(),
            expires: 2 * TICK,
            good_for: TICK,
            needed: self.approvals,
            from: Vec::new(),
            similar: false,
            over_budget: false,
        })
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
