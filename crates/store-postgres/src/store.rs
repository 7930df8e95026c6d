//! The store: opens its parts together.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::checks::Watch;
use super::link::{Dialer, Slot};
use super::target::Settings;
use crate::link::rows::get;
use crate::loss::memory::Memory;
use crate::server::Server;
use oncegate_rules::record::CallId;
use oncegate_store::shared::OpenError;
use oncegate_store::shared::inspection;
use oncegate_store::watermarks::Need;
use oncegate_store::{Health, Listener, LossRecovery, Readiness, Result, Secrets};

/// How many ended calls one message to the other gateways names at most; it has 8,000 bytes.
const TOLD: usize = 200;

const NOTIFY: &str = "SELECT pg_notify($1, $2)";
const AT_RISK: &str = include_str!("sql/at_risk.sql");

/// A PostgreSQL store. Clones share it.
#[derive(Clone)]
pub struct Postgres {
    pub(crate) server: Arc<Server>,
    pub(crate) watch: Arc<Watch>,
    ended: mpsc::UnboundedSender<CallId>,
}

impl Postgres {
    /// Opens a store and inspects it.
    ///
    /// If it is not reached, or is not as it should be, nothing can be claimed until it is.
    ///
    /// # Errors
    /// The file of watermarks or a certificate authority cannot be used.
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
        let server = Arc::new(Server::new(&settings, memory)?);
        let watch = Arc::new(Watch::new(server.clone(), settings));
        inspection::begin(&watch).await;
        let (ended, endings) = mpsc::unbounded_channel();
        tokio::spawn(tell(server.dialer.clone(), endings));
        Ok(Self {
            server,
            watch,
            ended,
        })
    }

    /// Wakes the waiters for a call, here and at other gateways.
    pub(crate) fn say_ended(&self, call_id: CallId) {
        self.server.dialer.endings.say(call_id);
        // It fails only while the process ends.
        let _sent = self.ended.send(call_id).is_ok();
    }
}

/// Tells the other gateways of ended calls. A message within an outcome's own transaction would hold a lock of the whole server.
async fn tell(dialer: Arc<Dialer>, mut ended: mpsc::UnboundedReceiver<CallId>) {
    let slot = Slot::new(&dialer, false);
    let mut ids = Vec::new();
    while ended.recv_many(&mut ids, TOLD).await > 0 {
        let ended = ids.drain(..).map(|id: CallId| id.0.simple().to_string());
        let text = ended.collect::<Vec<_>>().join(" ");
        // Who waits also polls, which only takes longer.
        drop(slot.ask(NOTIFY, &[&dialer.channel, &text]).await);
    }
}

#[async_trait]
impl LossRecovery for Postgres {
    async fn calls_at_risk_after_loss(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>)> {
        let behind = Uuid::parse_str(from).unwrap_or(Uuid::nil());
        let limit = i64::from(limit);
        let rows = self.server.ledger.ask(AT_RISK, &[&behind, &limit]).await?;
        let ids = rows.iter().map(|row| get(row, 0).map(CallId));
        let ids: Vec<CallId> = ids.collect::<Result<_>>()?;
        let next = ids.last().map(|id| id.0.to_string());
        Ok((ids, next))
    }

    async fn whole_until(&self) -> Result<Option<Timestamp>> {
        Ok(self.watch.epochs.seen.whole_until())
    }

    async fn prepare_acceptance(&self, _reason: &str) -> Result<()> {
        inspection::prepare(&*self.watch, self.watch.epochs.prepare()).await
    }

    async fn accept_loss(&self, reason: &str) -> Result<()> {
        inspection::accept(&*self.watch, self.watch.epochs.accept(reason)).await
    }
}

impl Secrets for Postgres {
    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        self.server.memory.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.server.memory.remember_secret(secret);
    }
}

#[async_trait]
impl Health for Postgres {
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
        Some(self.server.dialer.endings.listen(call_id))
    }

    fn cancel_acceptance(&self) {
        self.watch.epochs.cancel_acceptance();
    }

    async fn close(&self) {
        // What was written since the last beat is proved, so that the next start can tell.
        self.server.prove().await;
        self.server.memory.keep(Need::Last).await;
    }
}
