//! The tools as they are configured now. They are swapped as a whole: a request takes them once and keeps
//! them, so a call that runs goes on as it began.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::health::Health;
use crate::core::recipe::{Recipe, RecipeId};
use crate::core::record::Record;
use crate::core::time::elapsed_ms;
use crate::core::tool::Tool;
use crate::downstream::Endpoint;

/// A tool's policy with its place, and what is seen of it.
pub struct ToolAt {
    pub tool: Tool,
    pub endpoint: Endpoint,
    /// How names and fingerprints of its calls are made.
    pub(super) recipe: Arc<Recipe>,
    pub(super) recipe_id: RecipeId,
    pub(super) health: Arc<Health>,
}

impl ToolAt {
    pub fn new(mut tool: Tool, endpoint: Endpoint) -> Self {
        tool.may_ask = endpoint.mcp.is_some();
        let health = Arc::new(Health::new(tool.breaker));
        let recipe = Arc::new(Recipe::of(&tool));
        let recipe_id = recipe.id();
        Self {
            tool,
            endpoint,
            recipe,
            recipe_id,
            health,
        }
    }

    /// Whether an MCP server has it.
    pub fn is_of_upstream(&self) -> bool {
        self.endpoint.mcp.is_some()
    }

    /// Whether no section of the configuration names the tool.
    pub fn is_unlisted(&self) -> bool {
        self.endpoint
            .mcp
            .as_ref()
            .is_some_and(|mcp| mcp.is_unlisted)
    }

    pub(super) fn is_unlisted_of(&self, upstream: &str) -> bool {
        self.is_unlisted()
            && self
                .endpoint
                .mcp
                .as_ref()
                .is_some_and(|mcp| mcp.upstream == upstream)
    }

    /// Whether the tool can be asked about a key.
    pub fn has_probe(&self) -> bool {
        self.endpoint.probe.is_some() || self.endpoint.asked.is_some()
    }

    /// How soon to ask again for a call that is running.
    pub(super) fn retry_after_of(&self, record: &Record, now: Timestamp) -> Duration {
        let runs_for = elapsed_ms(record.attempt.run_started_at, now);
        self.health.retry_after(Duration::from_millis(runs_for))
    }

    /// What was seen of a tool counts on if it is still in the same place and judged in the same way.
    pub(super) fn seen_before(self, before: &Tools) -> Self {
        let same = before.get(&self.tool.name).filter(|old| {
            old.endpoint.url == self.endpoint.url && old.tool.breaker == self.tool.breaker
        });
        match same {
            Some(old) => Self {
                health: old.health.clone(),
                ..self
            },
            None => self,
        }
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

/// As configured, knowing what was seen of those before.
pub(super) fn tools_after(before: &Tools, tools: Vec<ToolAt>) -> Tools {
    tools
        .into_iter()
        .map(|at| (at.tool.name.clone(), Arc::new(at.seen_before(before))))
        .collect()
}
