//! The store: opens its parts together.

use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use redis::TlsCertificates;

use super::checks::Watch;
use super::link::Link;
use super::server::Server;
use super::target::Settings;
use crate::calls::at_risk::calls_at_risk;
use crate::link::tracker::Tracker;
use crate::loss::abilities;
use crate::loss::format::AUDITED_RELOADS;
use crate::loss::memory::Memory;
use crate::loss::move_on::Standing;
use oncegate_rules::record::CallId;
use oncegate_store::shared::OpenError;
use oncegate_store::shared::inspection;
use oncegate_store::watermarks::Need;
use oncegate_store::{Health, Listener, LossRecovery, Readiness, ReplayCache, Result, Secrets};

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
    /// The store's format, and the gateways that share it. A gateway that was killed is among them for an hour.
    ///
    /// # Errors
    /// The store does not answer, or is empty.
    pub async fn standing(&self) -> Result<Standing> {
        self.watch.epochs.standing().await
    }

    /// Moves the store to the newest format. Answers where it stood before.
    ///
    /// # Errors
    /// The store is not ready, or a gateway that shares it does not know the format. Nothing has changed.
    pub async fn move_on(&self) -> Result<Standing> {
        self.watch.epochs.move_on().await
    }

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
            Err(error) => Err(OpenError::Ca(path.clone(), error.to_string())),
        };
        let tls = settings.ca.as_ref().map(read).transpose()?;
        let link = Link::new(settings.target.clone(), tls);
        let server = Arc::new(Server::new(link, memory, &settings));
        let watch = Arc::new(Watch::new(server.clone(), settings));
        inspection::begin(&watch).await;
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
        Ok(self.watch.epochs.seen.whole_until())
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<()> {
        inspection::prepare(&*self.watch, self.watch.epochs.prepare(reason)).await
    }

    async fn accept_loss(&self, reason: &str) -> Result<()> {
        inspection::accept(&*self.watch, self.watch.epochs.accept(reason)).await
    }
}

impl Secrets for Redis {
    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        self.server.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.server.memory.remember_secret(secret);
    }
}

#[async_trait]
impl Health for Redis {
    async fn readiness(&self) -> Readiness {
        self.server.status.get()
    }

    fn clock_offset(&self) -> SignedDuration {
        self.server.clock.offset()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.watch.subscriber.endings.listen(call_id))
    }

    fn track(&self, replay_cache: &Arc<ReplayCache>) -> bool {
        let tracker = Tracker::begin(&self.server, replay_cache);
        tracker.is_some_and(|tracker| self.tracker.set(tracker).is_ok())
    }

    fn cancel_acceptance(&self) {
        self.watch.epochs.forget_acceptance();
    }

    fn takes_new_acts(&self) -> bool {
        self.server.may_write(AUDITED_RELOADS)
    }

    async fn close(&self) {
        if self.server.status.is_reached() && !self.server.memory.is_visitor() {
            drop(abilities::say_stopped(&self.server).await);
        }
        self.server.memory.keep(Need::Last).await;
    }
}
