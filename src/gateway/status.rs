//! The answers of the ops routes.
//!
//! However often they are asked, the store is asked once a second at most.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::base::Base;
use super::pauses::Pauses;
use super::recipes::Recipes;
use super::secret::KnownSecrets;
use crate::core::document::Kind;
use crate::core::frozen::FROZEN;
use crate::core::saga;
use crate::store::{Readiness, Reason};

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
        self.base.metrics.take_readiness(&readiness);
        readiness
    }

    /// A warning, if sessions are frozen. Counts them.
    async fn frozen_warning(&self) -> Option<Reason> {
        let counts = self.base.store.count_documents(Kind::Session).await.ok()?;
        let frozen = counts.iter().find(|(state, _)| state == FROZEN);
        let frozen = frozen.map_or(0, |(_, count)| *count);
        let gauge = &self.base.metrics.frozen_sessions;
        gauge.set(i64::try_from(frozen).unwrap_or(i64::MAX));
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
        self.recent_readiness().await;
        let census = self.base.store.census().await;
        if let Ok(sagas) = self.base.store.count_documents(Kind::Saga).await {
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
        self.base
            .metrics
            .scrape(tools.keys(), census.ok().as_deref())
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
                    found.warnings.extend(self.frozen_warning().await);
                    *recent = Some((at, found.clone()));
                    found
                }
            }
        };
        self.readiness_with(found).await
    }
}
