//! Paused tools.
//!
//! The store keeps them for all gateways that share it. Gateways read them at intervals and not
//! with each call, so a pause holds everywhere a moment later.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::audit;
use super::base::Base;
use super::error::{Error, ErrorKind, must_be_admin, unavailable};
use super::tools::ToolAt;
use super::transition::CLAIM_TRIES;
use crate::core::actor::Actor;
use crate::core::audit::{Act, Deed};
use crate::core::caller::Caller;
use crate::core::pause::is_resumed;
use crate::core::record::Entry;
use crate::store;

/// The greatest age of the list of pauses, when a shared store is claimed.
///
/// The loop reads it more often.
const FRESH: Duration = Duration::from_secs(2);

/// The paused tools, as this gateway last read them.
pub struct Pauses {
    base: Arc<Base>,
    seen: RwLock<PausedTools>,
    /// Held by a look or a change, so that a look never overtakes a change.
    looking: Mutex<()>,
}

#[derive(Default)]
struct PausedTools {
    /// Each tool with the entry that says since when, by whom and why.
    tools: BTreeMap<String, Entry>,
    looked_at: Option<Instant>,
    failed_at: Option<Instant>,
}

/// A tool's pause, and the acts of persons on it.
pub struct ToolState {
    /// Since when it is paused; `None`: it is not.
    pub since: Option<Timestamp>,
    /// By whom and why it is paused; for administrators only.
    pub paused: Option<Entry>,
    /// Oldest first; for administrators only.
    pub events: Vec<Entry>,
}

/// A configured tool, as this gateway sees it now.
pub struct ToolNow {
    pub at: Arc<ToolAt>,
    /// Since when it is paused; `None`: it is not.
    pub since: Option<Timestamp>,
    /// By whom and why it is paused; for administrators only.
    pub paused: Option<Entry>,
    /// Whether its breaker is open or half-open.
    pub is_failing: bool,
    /// How long an attempt usually takes; `None`: there was none.
    pub usual_latency: Option<Duration>,
}

impl ToolNow {
    pub fn name(&self) -> &str {
        &self.at.tool.name
    }
}

impl ToolState {
    fn of(paused: Option<Entry>, events: Vec<Entry>) -> Self {
        let since = paused.as_ref().map(|entry| entry.at);
        Self {
            since,
            paused,
            events,
        }
    }
}

impl Pauses {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            seen: RwLock::default(),
            looking: Mutex::default(),
        }
    }

    fn is_fresh(&self, is_shared: bool) -> bool {
        let looked_at = self.read(|seen| seen.looked_at);
        looked_at.is_some_and(|at| !is_shared || at.elapsed() < FRESH)
    }

    fn read<T>(&self, read: impl FnOnce(&PausedTools) -> T) -> T {
        read(&self.seen.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, write: impl FnOnce(&mut PausedTools)) {
        write(&mut self.seen.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Pauses {
    /// Reads which tools are paused.
    ///
    /// # Errors
    /// The store failed; what was known stays so.
    pub async fn look_at_pauses(&self) -> Result<(), store::Error> {
        let _looking = self.looking.lock().await;
        self.look().await
    }

    /// Reads which tools are paused. The caller has the lock.
    async fn look(&self) -> Result<(), store::Error> {
        let looked_at = Instant::now();
        let found = self.base.store.paused().await;
        let found = match found {
            Ok(found) => self.put_back_lost(found.into_iter().collect()).await,
            Err(error) => Err(error),
        };
        let tools =
            found.inspect_err(|_| self.write(|seen| seen.failed_at = Some(Instant::now())))?;
        self.write(|seen| {
            for (tool, entry) in tools
                .iter()
                .filter(|(tool, _)| !seen.tools.contains_key(*tool))
            {
                tracing::warn!(
                    tool,
                    by = entry.by,
                    reason = entry.detail,
                    "a tool is paused"
                );
            }
            for tool in seen.tools.keys().filter(|tool| !tools.contains_key(*tool)) {
                tracing::warn!(tool, "a tool is not paused any more");
                // No call has shown meanwhile whether it works.
                if let Some(at) = self.base.tool_at(tool) {
                    at.health.end_cooldown();
                }
            }
            *seen = PausedTools {
                tools,
                looked_at: Some(looked_at),
                failed_at: None,
            };
        });
        Ok(())
    }

    /// Pauses again each tool whose pause the store has lost: no person has resumed it.
    async fn put_back_lost(
        &self,
        mut found: BTreeMap<String, Entry>,
    ) -> Result<BTreeMap<String, Entry>, store::Error> {
        let known = self.read(|seen| seen.tools.clone());
        for (tool, entry) in known
            .into_iter()
            .filter(|(tool, _)| !found.contains_key(tool))
            .collect::<Vec<_>>()
        {
            let events = self.base.store.tool_events(&tool).await?;
            if is_resumed(&entry, &events) {
                continue;
            }
            self.base.store.set_paused(&tool, true, &entry).await?;
            tracing::error!(
                tool,
                by = entry.by,
                "the store had lost that a tool is paused; it is paused again"
            );
            found.insert(tool, entry);
        }
        Ok(found)
    }

    /// Makes sure that the list of pauses is young enough to claim by.
    pub(super) async fn know_pauses(&self) -> Result<(), store::Error> {
        let is_shared = self.base.store.is_shared();
        if self.is_fresh(is_shared) {
            return Ok(());
        }
        let asked = Instant::now();
        let _looking = self.looking.lock().await;
        if self.is_fresh(is_shared) {
            return Ok(());
        }
        // Who waited for a look that failed need not fail as slowly once more.
        if self.read(|seen| seen.failed_at.is_some_and(|failed| failed >= asked)) {
            return Err(store::Error::Refused(
                "which tools are paused could not be looked up".into(),
            ));
        }
        let mut looked = self.look().await;
        // As often as a claim: a store that hesitates once must not refuse a call for that.
        for _ in 1..CLAIM_TRIES {
            if looked.is_err() {
                looked = self.look().await;
            }
        }
        looked
    }

    pub(super) fn is_paused(&self, tool: &str) -> bool {
        self.read(|seen| seen.tools.contains_key(tool))
    }

    /// Warnings about paused tools, with the reasons.
    pub(super) fn pause_warnings(&self) -> Vec<store::Reason> {
        let text = |(tool, entry): (&String, &Entry)| {
            let by = entry.by.strip_prefix("token ").unwrap_or(&entry.by);
            store::Reason::new(
                "tool_paused",
                format!("tool {tool} is paused by {by}: {}", entry.detail),
            )
        };
        let tools = self.base.tools();
        self.read(|seen| {
            seen.tools
                .iter()
                .filter(|(tool, _)| tools.contains_key(*tool))
                .map(text)
                .collect()
        })
    }

    /// Pauses a tool on every gateway that shares the store, until it is resumed.
    ///
    /// No call of it begins. Running calls go on, and stored answers are replayed.
    ///
    /// # Errors
    /// The caller is no administrator, there is no such tool, or it is paused already.
    pub async fn pause_tool(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        reason: &str,
    ) -> Result<ToolState, Error> {
        self.act(caller, name, true, reason).await
    }

    /// # Errors
    /// The caller is no administrator, there is no such tool, or it is not paused.
    pub async fn resume_tool(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        reason: &str,
    ) -> Result<ToolState, Error> {
        self.act(caller, name, false, reason).await
    }

    /// The configured tools that a caller may see, by name. Pauses are as this gateway last read them.
    ///
    /// # Errors
    /// The caller may not read calls.
    pub fn list_tools(&self, caller: &Caller) -> Result<Vec<ToolNow>, Error> {
        if !caller.may_read(&caller.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let paused = self.read(|seen| seen.tools.clone());
        let tools = self.base.tools();
        let seen = tools.values().filter(|at| may_see(caller, &at.tool.name));
        let now = seen.map(|at| {
            let entry = paused.get(&at.tool.name);
            ToolNow {
                at: at.clone(),
                since: entry.map(|entry| entry.at),
                paused: entry.filter(|_| caller.is_admin()).cloned(),
                is_failing: !at.health.is_closed(),
                usual_latency: at.health.usual_latency(),
            }
        });
        Ok(now.collect())
    }

    /// Whether a tool is paused; for an administrator also what persons have done to it.
    ///
    /// # Errors
    /// There is no such tool, the caller may not call it, or the store does not answer.
    pub async fn show_tool(&self, caller: &Caller, name: &str) -> Result<ToolState, Error> {
        // A tool that a caller may not call is told as one that is not there.
        if !may_see(caller, name) || self.base.tool_at(name).is_none() {
            return Err(ErrorKind::UnknownTool.alone());
        }
        let paused = self.base.store.paused().await.map_err(unavailable)?;
        let paused = paused
            .into_iter()
            .find_map(|(tool, entry)| (tool == name).then_some(entry));
        if caller.is_admin() {
            let events = self.base.store.tool_events(name).await;
            Ok(ToolState::of(paused, events.map_err(unavailable)?))
        } else {
            // Tenants share tools; the names and reasons of operators are not theirs.
            Ok(ToolState {
                since: paused.map(|entry| entry.at),
                paused: None,
                events: Vec::new(),
            })
        }
    }

    /// An act of a person, which goes on when its caller hangs up.
    async fn act(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        paused: bool,
        reason: &str,
    ) -> Result<ToolState, Error> {
        must_be_admin(caller)?;
        if self.base.tool_at(name).is_none() {
            return Err(ErrorKind::UnknownTool.alone());
        }
        if !paused {
            self.base.must_know_all_data().await?;
        }
        let (pauses, caller) = (self.clone(), caller.clone());
        let (name, reason) = (name.to_owned(), reason.to_owned());
        let acting = async move {
            let deed = if paused { Deed::Pause } else { Deed::Resume };
            let act = Act::on_tool(&caller, deed, &name, &reason);
            let doing = pauses.set_paused(&caller, &name, paused, &reason);
            audit::kept(&pauses.base, act, doing).await
        };
        self.base.to_its_end(acting).await
    }

    async fn set_paused(
        &self,
        caller: &Caller,
        name: &str,
        paused: bool,
        reason: &str,
    ) -> Result<ToolState, Error> {
        let event = if paused { "paused" } else { "resumed" }.into();
        let (at, by) = (self.base.now(), Actor::Token(&caller.name).to_string());
        let entry = Entry {
            at,
            event,
            attempt: None,
            outcome: None,
            by,
            detail: reason.to_owned(),
        };
        let _looking = self.looking.lock().await;
        // A pause that the store has lost is put back first: a resume must find it, or the loss of it would
        // stay open and the tool be paused once more.
        self.look().await.map_err(unavailable)?;
        // No call claims on what was known until it is read back, also when the caller hangs up meanwhile.
        self.write(|seen| seen.looked_at = None);
        let changed = self.base.store.set_paused(name, paused, &entry).await;
        let changed = changed.map_err(unavailable)?;
        let seen = self.look().await;
        if !changed {
            let why = if paused {
                "the tool is paused already"
            } else {
                "the tool is not paused"
            };
            return Err(ErrorKind::WrongState(why.into()).alone());
        }
        tracing::warn!(
            tool = name,
            by = caller.name,
            reason,
            paused,
            "a person paused or resumed a tool"
        );
        let events = self.base.store.tool_events(name).await;
        let paused = match seen {
            Ok(()) => self.read(|seen| seen.tools.get(name).cloned()),
            Err(_) => paused.then(|| entry.clone()),
        };
        let events = events.unwrap_or_else(|_| vec![entry]);
        Ok(ToolState::of(paused, events))
    }
}

/// Whether a caller is told of a tool: tenants share tools, and not each may call all of them.
fn may_see(caller: &Caller, tool: &str) -> bool {
    caller.is_admin() || caller.may_call(tool)
}
