//! The configured tools.
//!
//! They are swapped as a whole. A request takes them once and keeps them, so a running call goes on as it began.

pub(crate) mod followed; // the tasks of MCP servers
pub(crate) mod health; // the breaker, retries and latency of a tool
pub(crate) mod pauses; // tools that an operator has paused

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use self::health::Health;
use oncegate_rules::key::Pointer;
use oncegate_rules::key_scheme::{KeyScheme, KeySchemeId};
use oncegate_rules::mcp::payment;
use oncegate_rules::proxy::stored_form;
use oncegate_rules::record::Record;
use oncegate_rules::redact;
use oncegate_rules::time::elapsed_ms;
use oncegate_rules::tool::Tool;
use oncegate_tools::Endpoint;

/// A guess at the headers of an answer, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A tool's policy, endpoint and health.
#[derive(Clone)]
pub struct ToolAt {
    pub tool: Tool,
    pub endpoint: Endpoint,
    /// The key scheme of its calls' lookup keys and fingerprints.
    pub(super) key_scheme: Arc<KeyScheme>,
    pub key_scheme_id: KeySchemeId,
    pub(super) health: Arc<Health>,
    /// Of a proxy: the tool under each rule that has outcomes or a probe of its own.
    by_rule: Vec<Option<Arc<ToolAt>>>,
}

impl ToolAt {
    pub fn new(tool: Tool, endpoint: Endpoint) -> Self {
        let health = Arc::new(Health::new(tool.breaker));
        let key_scheme = Arc::new(KeyScheme::of(&tool));
        let key_scheme_id = key_scheme.id();
        Self {
            tool,
            endpoint,
            key_scheme,
            key_scheme_id,
            health,
            by_rule: Vec::new(),
        }
    }

    /// A proxy, with the settings of its rules.
    ///
    /// All rules share its keys and its health.
    #[must_use]
    pub fn with_rules(self, rules: Vec<Option<(Tool, Endpoint)>>) -> Self {
        let of_rule = |(tool, endpoint)| Self {
            tool,
            endpoint,
            ..self.clone()
        };
        let rules = rules.into_iter();
        let by_rule = rules.map(|rule| rule.map(of_rule).map(Arc::new));
        Self {
            by_rule: by_rule.collect(),
            ..self
        }
    }

    /// The tool under the rule for a request to a proxy.
    #[must_use]
    pub fn for_request(self: Arc<Self>, method: &str, path: &str) -> Arc<Self> {
        let policy = self.tool.proxy();
        let rule = policy.and_then(|policy| policy.decide(method, path).0);
        let of_rule = rule.and_then(|rule| self.by_rule.get(rule)?.clone());
        of_rule.unwrap_or(self)
    }

    /// The tool under the rule for a stored call. `None`: the stored request does not say which rule.
    pub(super) fn for_record(self: Arc<Self>, record: &Record) -> Option<Arc<Self>> {
        if self.by_rule.iter().all(Option::is_none) {
            return Some(self);
        }
        let target = stored_form::target(&record.intent.args)?;
        Some(self.for_request(&target.method, &target.path))
    }

    /// A result as the ledger shows it.
    pub(super) fn shown(&self, json: &Bytes) -> Bytes {
        let json = match self.tool.proxy() {
            Some(policy) => policy.shown(json),
            None if self.is_of_upstream() => {
                let receipts = payment::RECEIPTS.map(|name| Pointer::to(&["_meta", name]));
                redact::mask(json, &receipts)
            }
            None => json.clone(),
        };
        redact::mask(&json, &self.tool.redact.result)
    }

    /// Whether the ledger hides a part of its calls.
    pub(super) fn hides(&self) -> bool {
        !self.tool.redact.is_empty()
    }

    /// Whether it is the tool of an MCP server.
    pub fn is_of_upstream(&self) -> bool {
        self.endpoint.mcp.is_some()
    }

    /// Whether no section of the configuration names the tool.
    pub fn is_unlisted(&self) -> bool {
        let mcp = self.endpoint.mcp.as_ref();
        mcp.is_some_and(|mcp| mcp.is_unlisted)
    }

    pub(super) fn is_unlisted_of(&self, upstream: &str) -> bool {
        let mcp = self.endpoint.mcp.as_ref();
        mcp.is_some_and(|mcp| mcp.is_unlisted && mcp.upstream == upstream)
    }

    /// The longest kept answer, in bytes, if the tool has a bound of its own.
    ///
    /// The body may be kept in base64, together with the headers.
    pub(super) fn longest_answer(&self) -> Option<usize> {
        let longest = self.endpoint.max_answer?;
        Some(longest + longest / 3 + MAX_HEAD)
    }

    /// Whether the tool can be asked about a key.
    pub fn has_probe(&self) -> bool {
        self.endpoint.probe.is_some() || self.endpoint.asked.is_some()
    }

    /// Whether the tool, or one of its rules, can be asked about a key.
    pub fn may_have_probe(&self) -> bool {
        let mut rules = self.by_rule.iter().flatten();
        self.has_probe() || rules.any(|at| at.has_probe())
    }

    /// How soon to ask again for a call that is running, or waits for approval.
    pub(super) fn retry_after_of(&self, record: &Record, now: Timestamp) -> Duration {
        if let (true, Some(proposal)) = (record.state.waits_for_approval(), &record.proposal) {
            return proposal.ask_again_after(now);
        }
        let runs_for = elapsed_ms(record.attempt.run_started_at, now);
        self.health.retry_after(Duration::from_millis(runs_for))
    }

    /// The tool, with the health of the earlier tool of this name.
    ///
    /// Only if the endpoint is the same, and answers are judged alike.
    pub(super) fn seen_before(mut self, before: &Tools) -> Self {
        let old = before.get(&self.tool.name).filter(|old| {
            old.endpoint.url == self.endpoint.url && old.tool.breaker == self.tool.breaker
        });
        if let Some(old) = old {
            self.health = old.health.clone();
            for at in self.by_rule.iter_mut().flatten() {
                Arc::make_mut(at).health = old.health.clone();
            }
        }
        self
    }
}

impl std::fmt::Debug for ToolAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { tool, endpoint, .. } = self;
        f.debug_struct("ToolAt")
            .field("tool", tool)
            .field("endpoint", endpoint)
            .finish_non_exhaustive()
    }
}

/// Every tool by its name.
pub type Tools = BTreeMap<String, Arc<ToolAt>>;

/// The tools as configured, with the health of those before.
pub(super) fn tools_after(before: &Tools, tools: Vec<ToolAt>) -> Tools {
    tools
        .into_iter()
        .map(|at| (at.tool.name.clone(), Arc::new(at.seen_before(before))))
        .collect()
}
