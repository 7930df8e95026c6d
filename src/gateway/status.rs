//! The answers of the ops routes.
//!
//! However often they are asked, the store is asked once a second at most.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::base::Base;
use super::pauses::Pauses;
use super::recipes::Recipes;
use super::secret::KnownSecrets;
use crate::core::document::Kind;
use crate::core::frozen::FROZEN;
use crate::core::ledger::Filter;
use crate::core::saga;
use crate::store::{self, Census, Readiness, Reason};

/// The newest answers, each with the time at which the store was asked.
///
/// Requests that come meanwhile wait for the lock and share the answer.
pub struct Status {
    base: Arc<Base>,
    recipes: Arc<Recipes>,
    secrets: Arc<KnownSecrets>,
    pauses: Arc<Pauses>,
    scrape: Mutex<Option<(Instant, Bytes)>>,
    readiness: Mutex<Option<(Instant, Readiness)>>,
    counts: Mutex<Counts>,
    loss: Mutex<Option<Loss>>,
}

/// The time of a loss of data, as far as it is known here.
struct Loss {
    noticed: Timestamp,
    /// What is told of it, once the newest call that is left is known.
    told: Option<String>,
}

/// How long readiness waits for the newest call that is left after a loss. Later it is looked for again.
const LOOKS_FOR: Duration = Duration::from_millis(500);

/// What the store had when it was last asked.
#[derive(Default)]
struct Counts {
    unknown: Vec<Census>,
    sagas: Vec<(String, u64)>,
}

/// A count, and what it counts.
trait Counted: Clone {
    fn is_same(&self, other: &Self) -> bool;
    fn number_mut(&mut self) -> &mut u64;
}

impl Counted for Census {
    fn is_same(&self, other: &Self) -> bool {
        (&self.tool, &self.state) == (&other.tool, &other.state)
    }

    fn number_mut(&mut self) -> &mut u64 {
        &mut self.calls
    }
}

impl Counted for (String, u64) {
    fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn number_mut(&mut self) -> &mut u64 {
        &mut self.1
    }
}

/// Raises each count to what it was before.
fn keep_at_least<T: Counted>(found: &mut Vec<T>, before: &[T]) {
    for known in before {
        let mut known = known.clone();
        match found.iter_mut().find(|count| count.is_same(&known)) {
            Some(count) => *count.number_mut() = (*count.number_mut()).max(*known.number_mut()),
            None => found.push(known),
        }
    }
}

fn has_lost_data(readiness: &Readiness) -> bool {
    let mut reasons = readiness.reasons.iter();
    reasons.any(|reason| reason.code == store::LOST_DATA)
}

impl Status {
    pub(super) fn new(
        base: Arc<Base>,
        recipes: Arc<Recipes>,
        secrets: Arc<KnownSecrets>,
        pauses: Arc<Pauses>,
    ) -> Self {
        Self {
            base,
            recipes,
            secrets,
            pauses,
            scrape: Mutex::default(),
            readiness: Mutex::default(),
            counts: Mutex::default(),
            loss: Mutex::default(),
        }
    }

    /// Whether calls may be claimed, and if not, why.
    pub async fn readiness(&self) -> Readiness {
        let found = self.base.store.readiness().await;
        self.readiness_with(found).await
    }

    /// The store's readiness, with reasons of this gateway.
    async fn readiness_with(&self, mut readiness: Readiness) -> Readiness {
        if self.base.is_out_of_time() {
            let why = "its clock was set forward since this gateway started: restart it";
            readiness.reasons.push(Reason::new("clock", why));
        }
        if readiness.reasons.is_empty() {
            self.recipes.look_at_recipes(&mut readiness).await;
        } else if self.secrets.has_lost_secret() {
            readiness.reasons.extend(self.secrets.trouble_with_secret());
        }
        if self.base.leaving.is_cancelled() {
            let reason = Reason::new("shutting_down", "the gateway is shutting down");
            readiness.reasons.push(reason);
        }
        readiness.warnings.extend(self.pauses.pause_warnings());
        readiness.warnings.extend(self.frozen_warning());
        self.base.metrics.take_readiness(&readiness);
        readiness
    }

    /// Says of a loss of data when it was noticed here, and of when the newest call is that is left.
    async fn date_loss(&self, readiness: &mut Readiness) {
        let mut loss = self.loss.lock().await;
        let reasons = readiness.reasons.iter_mut();
        let lost: Vec<_> = reasons
            .filter(|reason| reason.code == store::LOST_DATA)
            .collect();
        if lost.is_empty() {
            *loss = None;
            return;
        }
        let loss = loss.get_or_insert_with(|| Loss {
            noticed: self.base.now(),
            told: None,
        });
        // Nothing is claimed meanwhile, so it stays as it is.
        if loss.told.is_none() {
            let noticed = loss.noticed;
            loss.told = match timeout(LOOKS_FOR, self.newest_left()).await {
                Ok(Ok(Some(left))) => Some(format!(
                    "the newest call that is left was made at {left:.3}, and this was noticed here at {noticed:.3}: look for what was done in between"
                )),
                Ok(Ok(None)) => Some(format!(
                    "no call is left; this was noticed here at {noticed:.3}"
                )),
                Ok(Err(_)) | Err(_) => None,
            };
        }
        if let Some(told) = &loss.told {
            for reason in lost {
                reason.text = format!("{}; {told}", reason.text);
            }
        }
    }

    /// When the newest of the calls was made that the store has.
    async fn newest_left(&self) -> Result<Option<Timestamp>, store::Error> {
        let filter = Filter {
            is_brief: true,
            ..Filter::default()
        };
        let mut newest = None;
        for tenant in self.base.store.tenants().await? {
            let page = self.base.store.list(&tenant, &filter, None, 1).await?;
            let made = page.found.first().map(|one| one.record.intent.created_at);
            newest = newest.max(made);
        }
        Ok(newest)
    }

    /// Counts the frozen sessions, for the warning of them.
    ///
    /// Readiness does not: it must not wait for what the ledger is asked.
    pub async fn count_frozen(&self) {
        // If the store does not say, the last number stays.
        if let Ok(counts) = self.base.store.count_documents(Kind::Session).await {
            let frozen = counts.iter().find(|(state, _)| state == FROZEN);
            let frozen = frozen.map_or(0, |(_, count)| *count);
            let gauge = &self.base.metrics.frozen_sessions;
            gauge.set(i64::try_from(frozen).unwrap_or(i64::MAX));
        }
    }

    /// A warning, if sessions were frozen when they were last counted.
    fn frozen_warning(&self) -> Option<Reason> {
        let frozen = self.base.metrics.frozen_sessions.get();
        let text =
            format!("sessions that a person has frozen: {frozen} (GET /v1/sessions?frozen=true)");
        (frozen > 0).then(|| Reason::new("session_frozen", text))
    }

    /// The metrics as text, with counts of the store: one shared buffer, made anew after a second.
    pub async fn scrape(&self) -> Bytes {
        let mut recent = self.scrape.lock().await;
        match &*recent {
            Some((at, text)) if at.elapsed() < self.base.limits.pace.ask_store_every => {
                text.clone()
            }
            _ => {
                let at = Instant::now();
                let text = Bytes::from(self.scrape_now().await);
                *recent = Some((at, text.clone()));
                text
            }
        }
    }

    async fn scrape_now(&self) -> String {
        let is_lost = has_lost_data(&self.recent_readiness().await);
        let mut census = self.base.store.census().await.ok();
        let mut sagas = self.base.store.count_documents(Kind::Saga).await.ok();
        // What a store has forgotten still needs a person: until the loss is accepted no count falls.
        {
            let mut counts = self.counts.lock().await;
            if let Some(found) = &mut census {
                if is_lost {
                    keep_at_least(found, &counts.unknown);
                }
                let unknown = found.iter().filter(|count| count.state == "unknown");
                counts.unknown = unknown.cloned().collect();
            }
            if let Some(found) = &mut sagas {
                if is_lost {
                    keep_at_least(found, &counts.sagas);
                }
                counts.sagas.clone_from(found);
            }
        }
        if let Some(sagas) = sagas {
            let count = |state: saga::State| {
                let found = sagas.iter().find(|(name, _)| name == state.as_str());
                found.map_or(0, |(_, count)| *count)
            };
            let counts = saga::State::ALL
                .into_iter()
                .map(|state| (state.as_str(), count(state)));
            self.base
                .metrics
                .take_sagas(counts, count(saga::State::Stuck));
        }
        let memory = &self.base.limits.memory;
        self.base
            .metrics
            .take_memory(memory.total(), memory.held(), memory.refused());
        let tools = self.base.tools();
        self.base.metrics.take_open_breakers(
            tools
                .iter()
                .map(|(tool, at)| (tool.as_str(), !at.health.is_closed())),
        );
        self.base.metrics.take_paused(
            tools
                .keys()
                .map(|tool| (tool.as_str(), self.pauses.is_paused(tool))),
        );
        self.base.metrics.scrape(tools.keys(), census.as_deref())
    }

    /// The same as [`readiness`](Self::readiness), at most a second old.
    pub async fn recent_readiness(&self) -> Readiness {
        let found = {
            let mut recent = self.readiness.lock().await;
            match &*recent {
                Some((at, found)) if at.elapsed() < self.base.limits.pace.ask_store_every => {
                    found.clone()
                }
                _ => {
                    let at = Instant::now();
                    let mut found = self.base.store.readiness().await;
                    self.date_loss(&mut found).await;
                    *recent = Some((at, found.clone()));
                    found
                }
            }
        };
        self.readiness_with(found).await
    }
}
