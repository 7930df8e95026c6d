//! A store around the store: how long each verb takes is measured. It must not know what a verb is for.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::core::call::Change;
use crate::core::document::{Document, Kind, Place};
use crate::core::key;
use crate::core::ledger::{Duplicates, Filter, History, Listed, Page, Position};
use crate::core::record::{CallId, Entry, Holder, Record};
use crate::core::session::{Lock, Session, SessionId};
use crate::metrics::Metrics;
use crate::store::{Census, Claimed, Due, Error, Found, Listener, Put, Readiness, Replaced, Store};

/// All that is timed: each is there at zero before it is asked for, so that its first error is an increase.
const VERBS: [&str; 28] = [
    "claim",
    "replace",
    "holders",
    "load",
    "history",
    "tenants",
    "list",
    "count_duplicates",
    "due",
    "to_check",
    "unchecked",
    "census",
    "prune",
    "session",
    "unlock",
    "set_frozen",
    "leave_line",
    "paused",
    "set_paused",
    "tool_events",
    "document",
    "put_document",
    "due_documents",
    "documents",
    "count_documents",
    "doubtful",
    "prepare_acceptance",
    "accept_loss",
];

/// A store that is timed from outside, with all that stands around it: encryption, too.
pub(super) struct Timed {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
}

impl Timed {
    pub(super) fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        VERBS.into_iter().for_each(|verb| metrics.expect_verb(verb));
        Self { store, metrics }
    }

    async fn timed<T>(&self, operation: &'static str, verb: impl Future<Output = T>) -> T {
        debug_assert!(
            VERBS.contains(&operation),
            "{operation} is no verb that is there from the beginning"
        );
        let began = Instant::now();
        let done = verb.await;
        self.metrics.took(operation, began.elapsed().as_secs_f64());
        done
    }
}

// What is not timed is no verb: it tells how the store is.
#[async_trait]
impl Store for Timed {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        self.timed("claim", self.store.claim(change, instead_of))
            .await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        self.timed("replace", self.store.replace(change, expected))
            .await
    }

    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        self.timed("holders", self.store.holders(names)).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        self.timed("load", self.store.load(call_id)).await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>, Error> {
        self.timed("history", self.store.history(call_id, limit))
            .await
    }

    async fn tenants(&self) -> Result<Vec<String>, Error> {
        self.timed("tenants", self.store.tenants()).await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>, Error> {
        self.timed("list", self.store.list(tenant, filter, before, limit))
            .await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<(), Error> {
        self.timed(
            "count_duplicates",
            self.store.count_duplicates(call_id, later),
        )
        .await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        self.timed("due", self.store.due(now, limit)).await
    }

    async fn to_check(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>, Error> {
        self.timed("to_check", self.store.to_check(now, tools, each))
            .await
    }

    async fn unchecked(&self, tools: &[String], limit: u32) -> Result<Found<Record>, Error> {
        self.timed("unchecked", self.store.unchecked(tools, limit))
            .await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        self.timed("census", self.store.census()).await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64, Error> {
        self.timed("prune", self.store.prune(now, limit)).await
    }

    async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        self.timed("session", self.store.session(id)).await
    }

    async fn unlock(&self, id: &SessionId, lock: &Lock, entry: &Entry) -> Result<bool, Error> {
        self.timed("unlock", self.store.unlock(id, lock, entry))
            .await
    }

    async fn set_frozen(&self, id: &SessionId, frozen: bool, entry: &Entry) -> Result<bool, Error> {
        self.timed("set_frozen", self.store.set_frozen(id, frozen, entry))
            .await
    }

    async fn leave_line(&self, id: &SessionId, call_id: CallId) -> Result<(), Error> {
        self.timed("leave_line", self.store.leave_line(id, call_id))
            .await
    }

    async fn paused(&self) -> Result<Vec<(String, Entry)>, Error> {
        self.timed("paused", self.store.paused()).await
    }

    async fn set_paused(&self, tool: &str, paused: bool, entry: &Entry) -> Result<bool, Error> {
        self.timed("set_paused", self.store.set_paused(tool, paused, entry))
            .await
    }

    async fn tool_events(&self, tool: &str) -> Result<Vec<Entry>, Error> {
        self.timed("tool_events", self.store.tool_events(tool))
            .await
    }

    async fn document(
        &self,
        kind: Kind,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Document>, Error> {
        self.timed("document", self.store.document(kind, tenant, id))
            .await
    }

    async fn put_document(&self, document: &Document) -> Result<Put, Error> {
        self.timed("put_document", self.store.put_document(document))
            .await
    }

    async fn put_back_document(&self, document: &Document) -> Result<Put, Error> {
        self.timed("put_document", self.store.put_back_document(document))
            .await
    }

    async fn due_documents(
        &self,
        kind: Kind,
        now: Timestamp,
        limit: u32,
    ) -> Result<Found<Document>, Error> {
        self.timed("due_documents", self.store.due_documents(kind, now, limit))
            .await
    }

    async fn documents(
        &self,
        kind: Kind,
        tenant: Option<&str>,
        state: Option<&str>,
        before: Option<&Place>,
        limit: u32,
    ) -> Result<(Found<Document>, Option<Place>), Error> {
        self.timed(
            "documents",
            self.store.documents(kind, tenant, state, before, limit),
        )
        .await
    }

    async fn count_documents(&self, kind: Kind) -> Result<Vec<(String, u64)>, Error> {
        self.timed("count_documents", self.store.count_documents(kind))
            .await
    }

    async fn readiness(&self) -> Readiness {
        self.store.readiness().await
    }

    fn clock_offset(&self) -> SignedDuration {
        self.store.clock_offset()
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        self.store.listen(call_id)
    }

    async fn doubtful(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>), Error> {
        self.timed("doubtful", self.store.doubtful(from, limit))
            .await
    }

    async fn prepare_acceptance(&self, reason: &str) -> Result<(), Error> {
        self.timed("prepare_acceptance", self.store.prepare_acceptance(reason))
            .await
    }

    fn sealing_key(&self) -> String {
        self.store.sealing_key()
    }

    fn remembered_secret(&self) -> Result<Option<Bytes>, Error> {
        self.store.remembered_secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.store.remember_secret(secret);
    }

    fn break_off_acceptance(&self) {
        self.store.break_off_acceptance();
    }

    async fn accept_loss(&self, reason: &str) -> Result<(), Error> {
        self.timed("accept_loss", self.store.accept_loss(reason))
            .await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
