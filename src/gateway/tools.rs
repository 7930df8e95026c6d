//! The tools as they are configured now. They are swapped as a whole: whoever asks takes them once and keeps
//! what they got, so a call that runs goes on as it began.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Gateway;
use super::health::Health;
use crate::core::recipe::{Recipe, RecipeId};
use crate::core::record::Record;
use crate::core::tool::{OnUnknown, Tool};
use crate::downstream::{Endpoint, NoClient};

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
    pub fn new(tool: Tool, endpoint: Endpoint) -> Self {
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

    /// What was seen of a tool counts on if it is still in the same place and judged in the same way.
    fn seen_before(self, before: &Tools) -> Self {
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

impl Gateway {
    /// The tools as they are now. Take them once: a moment later they may be others.
    pub fn tools(&self) -> Arc<Tools> {
        self.tools.load_full()
    }

    /// One tool as it is now.
    pub(super) fn tool_at(&self, name: &str) -> Option<Arc<ToolAt>> {
        self.tools.load().get(name).cloned()
    }

    /// From now on these are the tools. Calls that run go on with what they began with; those of a tool that
    /// is gone are held as they are.
    ///
    /// # Errors
    /// The connections to them cannot be had; then nothing has changed.
    pub fn set_tools(&self, tools: Vec<ToolAt>) -> Result<(), NoClient> {
        self.downstream.serve(tools.iter().map(|at| &at.endpoint))?;
        let tools = tools_after(&self.tools(), tools);
        self.tools.store(Arc::new(tools));
        Ok(())
    }

    /// A tool's rules. One that is not configured here is treated as undeclared, it writes; what is done
    /// about its unknown calls is decided where it is configured.
    pub(super) fn policy_of(&self, record: &Record) -> Tool {
        let name = &record.intent.tool;
        let undeclared = || Tool {
            unknown: OnUnknown::Elsewhere,
            ..Tool::new(name)
        };
        self.tool_at(name)
            .map_or_else(undeclared, |at| at.tool.clone())
    }
}
