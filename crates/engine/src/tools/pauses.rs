//! Paused tools.
//!
//! The store keeps the pauses for all gateways that share it. A gateway reads them at intervals and not with each call,
//! so a pause takes effect everywhere a moment later.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::ToolAt;
use crate::audit;
use crate::base::Base;
use crate::error::{Error, ErrorKind, must_be_admin, unavailable};
use crate::transition::CLAIM_TRIES;
use oncegate_rules::actor::Actor;
use oncegate_rules::audit::{Act, Action, Target};
use oncegate_rules::caller::Caller;
use oncegate_rules::pause::is_resumed;
use oncegate_rules::record::Entry;
use oncegate_store as store;

/// The greatest age of the list of pauses when a call is claimed in a shared store.
///
/// A background loop reads the list more often.
const FRESH: Duration = Duration::from_secs(2);

/// The paused tools, as this gateway last read them.
pub struct Pauses {
    base: Arc<Base>,
    seen: RwLock<PausedTools>,
    /// Held by each read and each change, so that a slow read never undoes what a change has written to `seen`.
    looking: Mutex<()>,
}

#[derive(Default)]
struct PausedTools {
    /// Each paused tool, with the entry that says since when, by whom and why.
    tools: BTreeMap<String, Entry>,
    looked_at: Option<Instant>,
    failed_at: Option<Instant>,
}

/// A tool's pause, and the acts of operators on it.
pub struct ToolState {
    /// Since when the tool is paused; `None`: it is not paused.
    pub since: Option<Timestamp>,
    /// By whom and why it is paused; for administrators only.
    pub paused: Option<Entry>,
    /// Oldest first; for administrators only.
    pub events: Vec<Entry>,
}

/// A configured tool, as this gateway sees it now.
pub struct ToolNow {
    pub at: Arc<ToolAt>,
    /// Since when the tool is paused; `None`: it is not paused.
    pub since: Option<Timestamp>,
    /// By whom and why it is paused; for administrators only.
    pub paused: Option<Entry>,
    /// Whether its breaker is open or half-open.
    pub is_failing: bool,
    /// How long an attempt usually takes; `None`: no attempt was made yet.
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
    pub(crate) fn new(base: Arc<Base>) -> Self {
        Self {
            base,
            seen: RwLock::default(),
            looking: Mutex::default(),
        }
    }

    fn is_fresh(&self) -> bool {
        let is_shared = self.base.store.is_shared();
        let looked_at = self.read(|seen| seen.looked_at);
        looked_at.is_some_and(|at| !is_shared || at.elapsed() < FRESH)
    }

    fn read<T>(&self, read: impl FnOnce(&PausedTools) -> T) -> T {
        read(&self.seen.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, write: impl FnOnce(&mut PausedTools)) {
        write(&mut self.seen.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads which tools are paused.
    ///
    /// # Errors
    /// The store failed; what was known stays so.
    pub async fn look_at_pauses(&self) -> Result<(), store::Error> {
        let _looking = self.looking.lock().await;
        self.look().await
    }

    /// Reads which tools are paused. The caller holds `looking`.
    async fn look(&self) -> Result<(), store::Error> {
        let looked_at = Instant::now();
        let reading = async {
            let mut found = self.base.store.paused().await?.into_iter().collect();
            self.put_back_lost(&mut found).await?;
            Ok(found)
        };
        let failed = |seen: &mut PausedTools| seen.failed_at = Some(Instant::now());
        let tools = reading.await.inspect_err(|_| self.write(failed))?;
        self.write(|seen| {
            let is_new = |(tool, _): &(&String, _)| !seen.tools.contains_key(*tool);
            for (tool, entry) in tools.iter().filter(is_new) {
                let (by, reason) = (&entry.by, &entry.detail);
                tracing::warn!(tool, by, reason, "a tool is paused");
            }
            for tool in seen.tools.keys().filter(|tool| !tools.contains_key(*tool)) {
                tracing::warn!(tool, "a tool is not paused any more");
                // No call has tried the tool meanwhile, so the next one may try at once.
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

    /// Pauses again each tool whose pause the store has lost: no operator has resumed it.
    async fn put_back_lost(&self, found: &mut BTreeMap<String, Entry>) -> Result<(), store::Error> {
        for (tool, entry) in self.read(|seen| seen.tools.clone()) {
            if found.contains_key(&tool) {
                continue;
            }
            let events = self.base.store.tool_events(&tool).await?;
            if is_resumed(&entry, &events) {
                continue;
            }
            self.base.store.set_paused(&tool, true, &entry).await?;
            let by = &entry.by;
            tracing::error!(
                tool,
                by,
                "the store had lost that a tool is paused; it is paused again"
            );
            found.insert(tool, entry);
        }
        Ok(())
    }

    /// Makes sure that the list of pauses is young enough to claim by.
    pub(crate) async fn know_pauses(&self) -> Result<(), store::Error> {
        if self.is_fresh() {
            return Ok(());
        }
        let asked = Instant::now();
        let _looking = self.looking.lock().await;
        if self.is_fresh() {
            return Ok(());
        }
        // A request that waited while another read the list, in vain, does not read it again.
        if self.read(|seen| seen.failed_at.is_some_and(|failed| failed >= asked)) {
            return Err(store::Error::Refused(
                "which tools are paused could not be looked up".into(),
            ));
        }
        // As often as a claim is tried: one answer that the store does not give must not refuse the call.
        for _ in 1..CLAIM_TRIES {
            if self.look().await.is_ok() {
                return Ok(());
            }
        }
        self.look().await
    }

    pub fn is_paused(&self, tool: &str) -> bool {
        self.read(|seen| seen.tools.contains_key(tool))
    }

    /// Warnings about paused tools, with the reasons.
    pub(crate) fn pause_warnings(&self) -> Vec<store::Reason> {
        let tools = self.base.tools();
        let warning = |(tool, entry): (&String, &Entry)| {
            let by = entry.token().unwrap_or(&entry.by);
            let text = format!("tool {tool} is paused by {by}: {}", entry.detail);
            tools
                .contains_key(tool)
                .then(|| store::Reason::new("tool_paused", text))
        };
        self.read(|seen| seen.tools.iter().filter_map(warning).collect())
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

    /// Whether a tool is paused; for an administrator also what operators have done to it.
    ///
    /// # Errors
    /// The tool does not exist, the caller may not call it, or the store does not answer.
    pub async fn show_tool(&self, caller: &Caller, name: &str) -> Result<ToolState, Error> {
        // The answer about a tool that the caller may not call is that of a tool that does not exist.
        if !may_see(caller, name) || self.base.tool_at(name).is_none() {
            return Err(ErrorKind::UnknownTool.alone());
        }
        let paused = self.base.store.paused().await.map_err(unavailable)?;
        let mut paused = paused.into_iter();
        let paused = paused.find_map(|(tool, entry)| (tool == name).then_some(entry));
        if caller.is_admin() {
            let events = self.base.store.tool_events(name).await;
            Ok(ToolState::of(paused, events.map_err(unavailable)?))
        } else {
            // Tenants share tools, and must not learn the names and reasons of operators.
            Ok(ToolState {
                since: paused.map(|entry| entry.at),
                paused: None,
                events: Vec::new(),
            })
        }
    }

    /// Pauses a tool on every gateway that shares the store, or resumes it.
    ///
    /// No call of a paused tool begins. Running calls go on, and stored answers are replayed.
    ///
    /// # Errors
    /// The caller is not an administrator, the tool does not exist, or it is paused or resumed already.
    pub async fn set_paused(
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
        // A pause is allowed also while data is lost: it stops calls, and stands when the store opens again.
        if !paused {
            self.base.must_know_all_data().await?;
        }
        let action = if paused {
            Action::Pause
        } else {
            Action::Resume
        };
        let act = Act::new(caller, action, "", Target::Tool(name.to_owned()), reason);
        let (pauses, name, by) = (self.clone(), name.to_owned(), act.clone());
        let acting = async move { pauses.write_paused(&by, &name, paused).await };
        audit::recorded_to_its_end(&self.base, act, acting).await
    }

    async fn write_paused(&self, act: &Act, name: &str, paused: bool) -> Result<ToolState, Error> {
        let (event, refusal) = if paused {
            ("paused", "the tool is paused already")
        } else {
            ("resumed", "the tool is not paused")
        };
        let by = Actor::Token(&act.by);
        let entry = Entry::new(self.base.now(), event, by, &*act.reason);
        let _looking = self.looking.lock().await;
        // A pause that the store has lost is put back first. Otherwise a resume would not find it, and the next look
        // would pause the tool again.
        self.look().await.map_err(unavailable)?;
        // Until the list is read again no call claims by it, even if this act breaks off.
        self.write(|seen| seen.looked_at = None);
        let changed = self.base.store.set_paused(name, paused, &entry).await;
        let changed = changed.map_err(unavailable)?;
        let seen = self.look().await;
        if !changed {
            return Err(ErrorKind::WrongState(refusal.into()).alone());
        }
        let (by, reason) = (&act.by, &act.reason);
        tracing::warn!(
            tool = name,
            by,
            reason,
            paused,
            "an operator paused or resumed a tool"
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

/// Whether a caller may know of a tool. Tenants share tools, but each may call only some of them.
fn may_see(caller: &Caller, tool: &str) -> bool {
    caller.is_admin() || caller.may_call(tool)
}
