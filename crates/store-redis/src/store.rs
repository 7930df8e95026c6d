//! The store: opens its parts together.

use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use redis::TlsCertificates;
use tokio::time::timeout;

use super::at_risk::calls_at_risk;
use super::checks::{Watch, keep_inspecting};
use super::link::Link;
use super::memory::{Memory, Need, WatermarksError};
use super::server::Server;
use super::target::Settings;
use super::tracker::Tracker;
use oncegate_rules::record::CallId;
use oncegate_store::{Finished, Health, Listener, LossRecovery, Readiness, Result, Secrets};

/// How long a start waits for the first inspection.
const FIRST_INSPECTION: Duration = Duration::from_secs(3);

/// Why a Redis store cannot be opened. An unreachable Redis is not a reason: it may become reachable.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Watermarks(#[from] WatermarksError),
    #[error("{0}: the certificate authority cannot be read: {1}")]
    Ca(PathBuf, std::io::Error),
}

/// A Redis store. Clones share it.
#[derive(Clone)]
pub struct Redis {
    pub(super) server: Arc<Server>,
    pub(super) watch: Arc<Watch>,
    pub(super) tracker: Arc<OnceLock<Arc<Tracker>>>,
    /// Up to which time the last search for due rechecks got; 0: to the end.
    pub(super) checked_until: Arc<AtomicI64>,
}

impl Redis {
    /// Opens a store and inspects it.
    ///
    /// If it is not reached, or is not as it should be, nothing can be claimed until it is.
    ///
    /// # Errors
    /// The file of watermarks or the certificate authority cannot be used.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, false)?;
        Self::over(settings, memory).await
    }

    /// Opens a store for one act of an operator, beside the gateway with the same watermarks.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn visit(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, true)?;
        Self::over(settings, memory).await
    }

    async fn over(settings: Settings, memory: Memory) -> Result<Self, OpenError> {
        let read = |path: &PathBuf| match std::fs::read(path) {
            Ok(pem) => Ok(TlsCertificates {
                client_tls: None,
                root_cert: Some(pem),
            }),
            Err(error) => Err(OpenError::Ca(path.clone(), error)),
        };
        let tls = settings.ca.as_ref().map(read).transpose()?;
        let link = Link::new(settings.target.clone(), tls);
        let server = Arc::new(Server::new(link, memory, settings.stream));
        let watch = Arc::new(Watch::new(server.clone(), settings));
        // If it takes longer, the loop repeats it.
        drop(timeout(FIRST_INSPECTION, Box::pin(watch.inspect())).await);
        tokio::spawn(keep_inspecting(Arc::downgrade(&watch)));
        Ok(Self {
            server,
            watch,
            tracker: Arc::default(),
            checked_until: Arc::default(),
        })
    }
}

#[async_trait]
impl LossRecovery for Redis {
    async fn calls_at_risk_after_loss(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>)> {
        calls_at_risk(&self.server, from, limit).await
    }

    async fn whole_until(&self) -> Result<Option<Timestamp>> {
        Ok(self.watch.epochs.whole_until())
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<()> {
        self.watch.epochs.prepare(reason).await.map(drop)
    }

    async fn accept_loss(&self, reason: &str) -> Result<()> {
        self.watch.epochs.accept(reason).await?;
        self.watch.inspect().await;
        Ok(())
    }
}

impl Secrets for Redis {
    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        self.server.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        if let Err(error) = self.server.memory.remember_secret(secret) {
            tracing::error!(%error, "the copy of the store's secret cannot be stored");
        }
    }
}

#[async_trait]
impl Health for Redis {
    async fn readiness(&self) -> Readiness {
        self.server.status.get()
    }

    fn clock_offset(&self) -> SignedDuration {
        self.server.clock_offset()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.watch.subscriber.endings.listen(call_id))
    }

    fn track(&self, finished: &Arc<Finished>) -> bool {
        let tracker = Tracker::begin(&self.server, finished);
        tracker.is_some_and(|tracker| self.tracker.set(tracker).is_ok())
    }

    fn cancel_acceptance(&self) {
        self.watch.epochs.forget_acceptance();
    }

    async fn close(&self) {
        self.server.save_watermarks(Need::Last).await;
    }
}
