//! What the ops doors show. However often they are asked, the store is asked once a second at most.

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Gateway;
use crate::core::document::Kind;
use crate::core::saga;
use crate::store::Readiness;

/// The newest answers, each with the time at which the store was asked. Those who ask meanwhile wait for the lock
/// and share the answer.
#[derive(Default)]
pub(super) struct Recent {
    scrape: Mutex<Option<(Instant, Bytes)>>,
    readiness: Mutex<Option<(Instant, Readiness)>>,
}

impl Gateway {
    /// The metrics as text, with counts of the store: one shared buffer, made anew after a second.
    pub async fn scrape(&self) -> Bytes {
        let mut recent = self.recent.scrape.lock().await;
        match &*recent {
            Some((at, text)) if at.elapsed() < self.limits.pace.ask_store_every => text.clone(),
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
        let census = self.counted("census", self.store.census().await);
        if let Ok(sagas) = self.counted(
            "count_documents",
            self.store.count_documents(Kind::Saga).await,
        ) {
            let count = |state: saga::State| {
                let found = sagas.iter().find(|(name, _)| name == state.as_str());
                found.map_or(0, |(_, count)| *count)
            };
            let counts = saga::State::ALL
                .into_iter()
                .map(|state| (state.as_str(), count(state)));
            self.metrics.take_sagas(counts, count(saga::State::Stuck));
        }
        let memory = self.memory();
        self.metrics
            .take_memory(memory.total(), memory.held(), memory.refused());
        let tools = self.tools();
        self.metrics.take_resting(
            tools
                .iter()
                .map(|(tool, at)| (tool.as_str(), !at.health.is_closed())),
        );
        self.metrics.take_paused(
            tools
                .keys()
                .map(|tool| (tool.as_str(), self.is_paused(tool))),
        );
        self.metrics.scrape(tools.keys(), census.ok().as_deref())
    }

    /// The same as [`readiness`](Self::readiness), with what the store has said within the last second.
    pub async fn recent_readiness(&self) -> Readiness {
        let found = {
            let mut recent = self.recent.readiness.lock().await;
            match &*recent {
                Some((at, found)) if at.elapsed() < self.limits.pace.ask_store_every => {
                    found.clone()
                }
                _ => {
                    let at = Instant::now();
                    let found = self.store.readiness().await;
                    *recent = Some((at, found.clone()));
                    found
                }
            }
        };
        self.readiness_with(found).await
    }
}
