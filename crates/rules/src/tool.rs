//! The policy of one tool. `downstream` has its address.

mod ecma; // patterns of schemas that look around
pub mod pause; // whether a paused tool was resumed
mod protocol; // how it is spoken to
pub mod schema; // what a tool's arguments must be like
pub mod schema_export; // what a model sees of a tool

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

pub use self::protocol::{Asks, Http, Mcp, Probe, Protocol, Proxy};
use crate::key::{self, Pointer};
use crate::schema::Schema;
use crate::timings::Timings;
use crate::words::words;
use crate::{approval, breaker, compensation, redact, retry};

words! {
    /// Whether a tool changes anything. A tool that declares nothing is taken to write.
    pub enum Effect { Read = "read", Write = "write" }
}

words! {
    /// The meaning of an answer.
    pub enum Declared {
        Executed = "executed",
        /// Surely not executed; the call may be tried again.
        NotExecuted = "not_executed",
        /// Surely not executed, because of the request itself.
        Rejected = "rejected",
        /// Surely not executed: the tool has seen a newer fencing token of the session.
        Fenced = "fenced",
        Unknown = "unknown",
    }
}

/// A test of 2xx bodies, for tools that answer "failed" with status 200.
#[derive(Debug, Clone, PartialEq)]
pub struct SuccessTest {
    pub pointer: Pointer,
    /// The value that the body must have at the pointer.
    pub equals: Value,
    /// The meaning of any other value: `Rejected` or `Unknown`.
    pub otherwise: Declared,
}

words! {
    /// The meaning of a result with `isError`, for a tool that writes.
    #[derive(Default)]
    pub enum ToolError {
        /// The error is the call's result, and duplicates get it: frameworks wrap timeouts in such errors, too.
        #[default]
        Remember = "remember",
        /// The operator says that the tool did nothing.
        Rejected = "rejected",
        Unknown = "unknown",
    }
}

words! {
    /// The meaning of JSON-RPC errors about the request, for a tool that writes.
    ///
    /// These are -32700, -32600 to -32602, and -32020 to -32022.
    #[derive(Default)]
    pub enum RequestErrors {
        /// The operator says that the server finds all such errors before it executes anything.
        Rejected = "rejected",
        #[default]
        Unknown = "unknown",
    }
}

/// The meaning of an MCP server's errors for a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Errors {
    pub tool_error: ToolError,
    pub request_errors: RequestErrors,
    /// Whether a refusal by its HTTP status proves nothing; see [`Tool::is_strict`].
    pub strict: bool,
}

words! {
    /// How the write calls of one session run together.
    pub enum Mode {
        /// One call runs at a time, over all gateways; the others wait in the order in which they came.
        Exclusive = "exclusive",
        /// Calls run in parallel, and fencing tokens order them: a caller with an old token is refused.
        Fenced = "fenced",
        /// Calls run in parallel, whatever token the caller has.
        Shared = "shared",
    }
}

/// A tool's rules about the session of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionPolicy {
    pub mode: Mode,
    /// How long a call waits for an exclusive session.
    pub wait: Duration,
}

impl Default for SessionPolicy {
    fn default() -> Self {
        Self {
            mode: Mode::Fenced,
            wait: Duration::from_secs(5),
        }
    }
}

words! {
    /// When a call becomes a task, for a client of MCP that knows tasks.
    #[derive(Default)]
    pub enum AsTask {
        /// If it still runs after `task_after`.
        #[default]
        Auto = "auto",
        Never = "never",
        /// As soon as it is claimed.
        Always = "always",
    }
}

words! {
    /// What a client's wish to cancel a call does to the task of the call's MCP server.
    #[derive(Default)]
    pub enum OnCancel {
        #[default]
        Keep = "keep",
        /// The server is asked to cancel its task.
        Forward = "forward",
    }
}

words! {
    /// Which calls a budget counts together.
    ///
    /// Calls without a session, or without a user, count together.
    pub enum Per { Session = "session", User = "user" }
}

/// A budget: how many calls of a tool may begin within a window.
///
/// A replay costs nothing, nor does a failed call that runs again within the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub per: Per,
    pub max: u32,
    pub window: Duration,
}

words! {
    /// The action for a call that looks like an earlier one.
    pub enum OnSimilar {
        /// The call runs, and its answer names the earlier call.
        Flag = "flag",
        /// The call is refused until the caller names the earlier call.
        Refuse = "refuse",
        /// The request gets the result of the earlier call if that has succeeded; otherwise it is refused.
        Replay = "replay",
    }
}

/// When a call with another key looks like an earlier one of the same user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Similar {
    /// The arguments that are the same in both calls. An argument that both lack is the same.
    pub fields: Vec<Pointer>,
    pub window: Duration,
    pub action: OnSimilar,
}

words! {
    /// Whether the tool itself executes the same `Idempotency-Key` at most once.
    pub enum Dedup { None = "none", Key = "key" }
}

words! {
    /// What a runtime's key stands for after its window. A call that is unknown is never past its window.
    #[derive(Default)]
    pub enum Expired {
        /// Nothing, until its call is deleted: a late repetition may have been executed.
        #[default]
        Refuse = "refuse",
        /// A new call.
        New = "new",
    }
}

/// The action for a call whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// The call is held until a late answer or an operator settles it.
    Hold,
    /// The tool is asked whether it knows the key.
    Probe,
    /// The same key and the same bytes are sent again. Only for [`Dedup::Key`].
    Retry,
    /// The tool is not in the configuration of this gateway. A gateway that has the tool decides.
    Elsewhere,
}

/// The intervals between checks of an unknown call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recheck {
    /// The wait before the first check, doubled with each further check.
    pub base: Duration,
    /// The upper bound of every wait.
    pub max: Duration,
    /// How long a call is checked. After that it stays unknown until an operator settles it.
    pub give_up_after: Duration,
}

impl Default for Recheck {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            max: Duration::from_secs(300),
            give_up_after: Duration::from_secs(3_600),
        }
    }
}

/// The rules of a tool. The configuration has checked that they fit together.
#[derive(Debug, Clone)]
pub struct Tool {
    pub name: String,
    pub description: String,
    pub effect: Effect,
    /// The time limit of one attempt, up to the tool's status line.
    pub timeout: Duration,
    /// The time limit of the call with all its attempts. Nothing is dispatched after it.
    pub deadline: Duration,
    /// How long after the deadline a call holds its key: the time to write down the outcome.
    pub lease_margin: Duration,
    /// How long a finished call's key is remembered; `None`: the default of the key's source.
    pub dedup_window: Option<Duration>,
    /// How long a finished call's derived key is remembered.
    ///
    /// Only for a proxy it goes before `dedup_window`.
    pub derived_window: Option<Duration>,
    /// How long a finished call stays in the ledger.
    pub retention: Duration,
    /// How long after its end a call's arguments are stored; `None`: as long as the call.
    pub args_for: Option<Duration>,
    /// How long after its end a call's result is stored; `None`: as long as the call.
    pub results_for: Option<Duration>,
    pub key: key::Policy,
    pub retry: retry::Policy,
    pub breaker: breaker::Policy,
    pub dedup: Dedup,
    pub unknown: OnUnknown,
    pub recheck: Recheck,
    pub session: SessionPolicy,
    pub budget: Option<Budget>,
    pub similar: Option<Similar>,
    pub outcomes: BTreeMap<u16, Declared>,
    /// Whether a status that is not among `outcomes` proves anything only if it is 2xx: `outcomes = "strict"`.
    pub strict: bool,
    pub success: Option<SuccessTest>,
    pub protocol: Protocol,
    /// How long after the lease "not found" proves that the call was not executed; `None`: it never does.
    pub negative_final_after: Option<Duration>,
    /// Whether a rejection is kept and replayed. Otherwise the key may run again.
    pub remember_rejections: bool,
    /// Statuses of rejections that are not kept all the same.
    pub never_keep: Vec<u16>,
    /// What a runtime's key stands for after its window.
    pub expired: Expired,
    /// Parts of a result that a verified replay does not compare.
    pub replay_ignore: Vec<Pointer>,
    pub redact: redact::Policy,
    /// When its calls wait for approval; `None`: never.
    pub approval: Option<approval::Policy>,
    /// How its calls are undone.
    pub compensation: compensation::Policy,
    pub schema: Option<Schema>,
    /// When a call becomes a task, for clients of MCP that know tasks.
    pub task: AsTask,
    pub on_cancel: OnCancel,
    /// Whether an argument named like a key is the tool's own. Then the model is asked for no key.
    pub keeps_key_member: bool,
    /// Whether an argument named like a confirmation is the tool's own.
    pub keeps_confirm_member: bool,
}

impl Tool {
    /// A tool with every default.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            effect: Effect::Write,
            timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(30),
            lease_margin: Timings::default().lease_margin,
            dedup_window: None,
            derived_window: None,
            retention: Duration::from_hours(30 * 24),
            args_for: None,
            results_for: None,
            key: key::Policy::default(),
            retry: retry::Policy::default(),
            breaker: breaker::Policy::default(),
            dedup: Dedup::None,
            unknown: OnUnknown::Hold,
            recheck: Recheck::default(),
            session: SessionPolicy::default(),
            budget: None,
            similar: None,
            outcomes: BTreeMap::new(),
            strict: false,
            success: None,
            protocol: Protocol::default(),
            negative_final_after: None,
            remember_rejections: false,
            never_keep: Vec::new(),
            expired: Expired::Refuse,
            replay_ignore: Vec::new(),
            redact: redact::Policy::default(),
            approval: None,
            compensation: compensation::Policy::default(),
            schema: None,
            task: AsTask::Auto,
            on_cancel: OnCancel::Keep,
            keeps_key_member: false,
            keeps_confirm_member: false,
        }
    }

    /// How long the owner of a running call holds it, which is longer than the deadline.
    pub fn lease(&self) -> Duration {
        self.deadline + self.lease_margin
    }

    /// The longest time of a call, with its wait for the session.
    pub fn longest(&self) -> Duration {
        self.session.wait + self.lease() + self.lease_margin
    }

    /// How long the key of a finished call is remembered.
    ///
    /// A read has no effect that could be doubled, and an agent that reads again wants the present state: no key of a read
    /// is remembered.
    pub fn window(&self, source: key::Source) -> Duration {
        if self.effect == Effect::Read {
            return Duration::ZERO;
        }
        let day = Duration::from_hours(24);
        let default = match source {
            // Only the first request shows where the key came from, so the longest window counts.
            key::Source::Adopted => {
                let others = key::Source::ALL.into_iter();
                let others = others.filter(|other| *other != key::Source::Adopted);
                let longest = others.map(|other| self.window(other)).max();
                return longest.unwrap_or_default();
            }
            key::Source::Runtime | key::Source::Compensation | key::Source::Elicitation => day,
            key::Source::Derived => self.derived_window.unwrap_or(Duration::from_hours(1)),
            key::Source::Business | key::Source::Model => day,
        };
        // Two equal requests to a proxied API may be two intents: only `derived_window` says how long they count as one.
        let is_apart = self.is_proxy() && source == key::Source::Derived;
        self.dedup_window.filter(|_| !is_apart).unwrap_or(default)
    }

    /// Whether the tool's calls take their session's lock.
    pub fn is_exclusive(&self) -> bool {
        self.effect == Effect::Write && self.session.mode == Mode::Exclusive
    }

    /// Whether a model's keys name its calls: such a key proves sameness, never difference.
    pub fn takes_models_keys(&self) -> bool {
        self.effect == Effect::Write && !self.is_proxy() && self.key.fields.is_empty()
    }

    /// Whether a model may say in the arguments that a call with equal arguments is meant as well.
    ///
    /// Where similar calls are refused, only its runtime may say so.
    pub fn takes_confirmation(&self) -> bool {
        let only_flags = |similar: &Similar| similar.action == OnSimilar::Flag;
        self.takes_models_keys()
            && self.similar.as_ref().is_none_or(only_flags)
            && !self.keeps_confirm_member
            && !self.has_property(key::CONFIRM_MEMBER)
    }

    /// Whether only 2xx and what `outcomes` lists prove anything of a call.
    ///
    /// A read has no effect that a refusal could hide.
    pub fn is_strict(&self) -> bool {
        self.strict && self.effect == Effect::Write
    }

    /// Whether the tool's own schema names this member of `args`.
    pub fn has_property(&self, name: &str) -> bool {
        self.schema
            .as_ref()
            .is_some_and(|schema| schema.has_property(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tool;

    #[test]
    fn windows_follow_the_keys_source() {
        let hours =
            |tool: &Tool| key::Source::ALL.map(|source| tool.window(source).as_secs() / 3600);
        let mut tool = tool("t");
        assert_eq!(hours(&tool), [24, 24, 24, 1, 24, 24, 24]);
        tool.effect = Effect::Read;
        assert_eq!(
            hours(&tool),
            [0; 7],
            "a read is never answered from the store"
        );
        tool.dedup_window = Some(Duration::from_hours(2));
        assert_eq!(hours(&tool), [0; 7]);
        tool.effect = Effect::Write;
        assert_eq!(
            hours(&tool),
            [2; 7],
            "a configured window holds for every source"
        );
        tool.protocol = Protocol::Proxy(Proxy::default());
        assert_eq!(hours(&tool), [2, 2, 2, 1, 2, 2, 2]);
        tool.derived_window = Some(Duration::from_hours(3));
        assert_eq!(
            hours(&tool),
            [2, 2, 2, 3, 2, 2, 3],
            "a proxy's derived keys have a window of their own"
        );
    }

    #[test]
    fn a_call_holds_its_key_for_longer_than_it_may_run() {
        let mut tool = tool("t");
        let seconds = |tool: &Tool| (tool.lease().as_secs(), tool.longest().as_secs());
        assert_eq!(seconds(&tool), (30 + 10, 5 + 30 + 10 + 10));
        tool.session.wait = Duration::from_secs(100);
        assert_eq!(seconds(&tool), (40, 150));
    }

    #[test]
    fn effects_and_modes_have_their_words() {
        assert_eq!(
            [Effect::Read, Effect::Write].map(Effect::as_str),
            ["read", "write"]
        );
        let modes = [Mode::Exclusive, Mode::Fenced, Mode::Shared].map(Mode::as_str);
        assert_eq!(modes, ["exclusive", "fenced", "shared"]);
    }
}
