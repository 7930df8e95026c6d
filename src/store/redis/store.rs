//! The store: its parts, opened together.

use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use super::checks::{Watch, keep_looking};
use super::ears::Ears;
use super::epoch::Epochs;
use super::gateways::Gateways;
use super::link::Link;
use super::memory::{Memory, Need, WatermarksError};
use super::put_back::Restorer;
use super::server::Server;
use super::session::Admissions;
use super::target::Settings;
use super::tracker::Tracker;
use super::write::Writer;
use crate::core::record::CallId;
use crate::store::{Error, Finished, Health, Listener, LossRecovery, Readiness, Secrets};

/// How long a start waits for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// Why a Redis store cannot be opened. An unreachable Redis is no reason: it may come.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Watermarks(#[from] WatermarksError),
    #[error("{0}: the certificate authority cannot be read: {1}")]
    Ca(PathBuf, std::io::Error),
}

/// Clones share one store.
#[derive(Clone)]
pub struct Redis {
    pub(super) server: Arc<Server>,
    pub(super) writer: Writer,
    pub(super) epochs: Arc<Epochs>,
    ears: Arc<Ears>,
    watch: Arc<Watch>,
    pub(super) tracker: Arc<OnceLock<Arc<Tracker>>>,
    /// Up to which time unknown calls were searched, if one round did not suffice.
    pub(super) checked_until: Arc<AtomicI64>,
}

impl Redis {
    /// Opens a store and looks at it.
    ///
    /// If it is not reached, or is not as it should be, nothing can be claimed until it is.
    ///
    /// # Errors
    /// The file of watermarks or the certificate authority cannot be had.
    pub async fn open(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, false)?;
        Self::over(settings, memory).await
    }

    /// Opens a store for one act of an operator, beside the gateway of the same watermarks.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn visit(settings: Settings) -> Result<Self, OpenError> {
        let memory = Memory::open(&settings.watermarks, true)?;
        Self::over(settings, memory).await
    }

    async fn over(settings: Settings, memory: Memory) -> Result<Self, OpenError> {
        let ca = match &settings.ca {
            Some(path) => {
                Some(std::fs::read(path).map_err(|error| OpenError::Ca(path.clone(), error))?)
            }
            None => None,
        };
        let link = Link::new(settings.target.clone(), ca);
        let server = Arc::new(Server::new(link, memory, settings.stream));
        let ears = Arc::new(Ears::new(&server.link));
        let restorer = Restorer {
            server: server.clone(),
        };
        let gateways = Gateways::new(server.clone(), settings.pace.redis_watch_gone);
        let epochs = Arc::new(Epochs::new(server.clone(), restorer.clone(), gateways));
        let watch = Arc::new(Watch::new(
            server.clone(),
            epochs.clone(),
            ears.clone(),
            settings,
        ));
        // The loop goes on with it if it takes longer.
        drop(timeout(FIRST_LOOK, Box::pin(watch.look_after())).await);
        tokio::spawn(keep_looking(Arc::downgrade(&watch)));
        Ok(Self {
            writer: Writer {
                server: server.clone(),
                admissions: Admissions {
                    server: server.clone(),
                },
                restorer,
            },
            server,
            epochs,
            ears,
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
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        self.writer.restorer.calls_at_risk(from, limit).await
    }

    async fn whole_until(&self) -> Result<Option<Timestamp>, Error> {
        Ok(self.epochs.whole_until())
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.epochs.prepare(reason).await.map(drop)
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.epochs.accept(reason).await?;
        self.watch.look_after().await;
        Ok(())
    }
}

impl Secrets for Redis {
    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        self.server.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        if let Err(error) = self.server.memory.remember_secret(secret) {
            tracing::error!(%error, "no copy of the store's secret is kept");
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
        Some(self.ears.endings.listen(call_id))
    }

    fn track(&self, finished: &Arc<Finished>) -> bool {
        let tracker = Tracker::begin(&self.server, finished);
        tracker.is_some_and(|tracker| self.tracker.set(tracker).is_ok())
    }

    fn cancel_acceptance(&self) {
        self.epochs.forget_acceptance();
    }

    async fn close(&self) {
        self.server.save_watermarks(Need::Last).await;
    }
}
