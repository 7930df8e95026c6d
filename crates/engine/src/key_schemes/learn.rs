//! Learns key schemes: writes those of this gateway, then reads all others.

use std::sync::Arc;

use futures_util::future::FutureExt;
use futures_util::stream::{self, StreamExt};
use jiff::Timestamp;
use tokio::join;
use tokio::time::Instant;

use super::known::{KeySchemes, KnownKeySchemes};
use crate::base::lock::lock;
use crate::error::ErrorKind;
use crate::tools::ToolAt;
use crate::transition::ROUNDS;
use oncegate_rules::document::{Document, Kind};
use oncegate_rules::key_scheme::stored::{Remembered, name_of, tool_of};
use oncegate_rules::key_scheme::{KeySchemeId, MAX_KEY_SCHEMES};
use oncegate_rules::tool::Effect;
use oncegate_store::{self as store, DocumentQuery, Put};

/// Documents that one page has.
const PAGE: u32 = 500;
/// Key schemes that are written at once.
const AT_ONCE: usize = 32;

/// Why a gateway cannot use its key schemes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(
        "tool {0}: calls of {MAX_KEY_SCHEMES} earlier settings of its key are still remembered; another change of key, \
         redact.args or of the schema's member idempotency_key has to wait until the oldest of them are forgotten"
    )]
    TooMany(String),
}

impl KeySchemes {
    /// Makes sure that stored calls of a tool are recognised. Returns whether new calls may be claimed.
    ///
    /// # Errors
    /// No key schemes were ever read, so not even a repetition would be recognised.
    pub(crate) async fn know_key_schemes(&self, at: &ToolAt) -> Result<bool, ErrorKind> {
        let serves = || {
            let known = self.known.load();
            let is_served = known.served.contains(&at.key_scheme_id);
            let is_closed = known.is_unreadable(&at.tool.name);
            is_served && !is_closed && self.secrets.trouble_with_secret().is_none()
        };
        if self.learn_until(at, serves).await {
            return Ok(true);
        }
        if self.known.load().read_at.is_some() || at.tool.effect == Effect::Read {
            Ok(false)
        } else {
            Err(ErrorKind::StoreUnavailable)
        }
    }

    /// Reads the key schemes again unless enough are known. Returns whether enough are known then.
    async fn learn_until(&self, at: &ToolAt, is_known: impl Fn() -> bool) -> bool {
        if is_known() {
            return true;
        }
        let asked = Instant::now();
        let mut failed_at = self.learning.lock().await;
        // A request that waited while another read the key schemes, in vain, does not read them again.
        let has_just_failed = failed_at.is_some_and(|failed_at| failed_at >= asked);
        if !is_known() && !has_just_failed && !self.is_just_read(at, asked) {
            let tools = self.base.tools();
            if let Err(error) = self.learn(tools.values().map(Arc::as_ref)).await {
                // A failure of the store is logged there.
                if let Error::TooMany(tool) = &error {
                    tracing::error!(tool, %error, "the key schemes are not known");
                }
                *failed_at = Some(Instant::now());
            }
        }
        is_known()
    }

    /// Whether another request has read this tool's key schemes since this request asked.
    ///
    /// For a tool that is closed by an unreadable key scheme: whether they were read a moment ago.
    fn is_just_read(&self, at: &ToolAt, asked: Instant) -> bool {
        let known = self.known.load();
        let is_closed = known.is_unreadable(&at.tool.name);
        // A tool that was configured meanwhile is not among those that the other request has learned.
        let is_among_them = is_closed || known.served.contains(&at.key_scheme_id);
        let pause = self.base.limits.timings.ask_store_every;
        known.read_at.is_some_and(|read_at| {
            is_among_them && read_at >= asked || is_closed && read_at.elapsed() < pause
        })
    }

    /// Whether the list of key schemes is young enough to claim by. Other gateways may have added to it.
    pub(crate) async fn has_recent_key_schemes(&self, at: &ToolAt) -> bool {
        let max_age = self.base.limits.timings.key_schemes_max_age;
        let is_young = || {
            let read_at = self.known.load().read_at;
            read_at.is_some_and(|read_at| read_at.elapsed() <= max_age)
        };
        !self.base.store.is_shared() || self.learn_until(at, is_young).await
    }

    /// Adds to the readiness which tools take no new calls because of their key schemes.
    pub(crate) async fn look_at_key_schemes(&self, readiness: &mut store::Readiness) {
        let (mut is_unwritten, mut closed) = (false, Vec::new());
        for at in self.base.tools().values() {
            if self.know_key_schemes(at).await.unwrap_or(false) {
                continue;
            }
            if self.known.load().is_unreadable(&at.tool.name) {
                closed.push(at.tool.name.clone());
            } else {
                is_unwritten = true;
            }
        }
        if let Some(reason) = self.secrets.trouble_with_secret() {
            readiness.reasons.push(reason);
            return;
        }
        if is_unwritten {
            let why = "the settings of the tools' keys are not written down yet";
            readiness.reasons.push(store::Reason::new("recipes", why));
        }
        if closed.is_empty() {
            return;
        }
        let text = format!(
            "a stored key scheme cannot be read, so that earlier calls may not be recognised; no new call is \
             taken of: {}",
            closed.join(", ")
        );
        let is_every_tool = closed.len() == self.base.tools().len();
        let reasons = if is_every_tool {
            &mut readiness.reasons
        } else {
            &mut readiness.warnings
        };
        reasons.push(store::Reason::new("recipe_unreadable", text));
    }

    /// Writes the key schemes of the tools, and reads all others.
    ///
    /// # Errors
    /// The store failed, or there are too many; what was known stays so.
    pub async fn learn_key_schemes(&self) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        let tools = self.base.tools();
        self.learn(tools.values().map(Arc::as_ref)).await
    }

    /// Learns the key schemes of tools that are about to be served.
    ///
    /// # Errors
    /// The tools must not be served.
    pub async fn adopt_key_schemes(&self, tools: &[ToolAt]) -> Result<(), Error> {
        let _learning = self.learning.lock().await;
        self.learn(tools.iter()).await
    }

    /// Learns the key schemes of these tools. The caller holds `learning`.
    async fn learn(&self, tools: impl Iterator<Item = &ToolAt> + Clone) -> Result<(), Error> {
        let now = self.base.now();
        self.read_key_schemes(now).await?;
        let known = self.known.load_full();
        // A tool that is closed does not keep others from being served.
        let open = tools.filter(|at| !known.is_unreadable(&at.tool.name));
        let mut writing = Vec::new();
        for at in open.clone() {
            writing.push(self.write_key_scheme(at, now).boxed());
        }
        let writing = stream::iter(writing).buffer_unordered(AT_ONCE);
        let written: Vec<_> = writing.collect().await;
        let mut has_written = false;
        for written in written {
            has_written |= written?;
        }
        if has_written {
            self.read_key_schemes(now).await?;
        }
        let ids: Vec<KeySchemeId> = open.map(|at| at.key_scheme_id).collect();
        self.change(|known| known.served.extend(&ids));
        Ok(())
    }

    /// Writes that a tool uses its key scheme. Returns whether anything was written.
    async fn write_key_scheme(&self, at: &ToolAt, now: Timestamp) -> Result<bool, Error> {
        let known = self.known.load_full();
        let (tool, keep) = (&at.tool.name, at.tool.retention);
        let is_unconfirmed = lock(&self.unconfirmed).contains(&at.key_scheme_id);
        let (key_scheme, is_new) = match known.find(tool, at.key_scheme_id) {
            Some(known) if is_unconfirmed => {
                let version = known.version + 1;
                let known = known.clone();
                (Remembered { version, ..known }, true)
            }
            Some(known) => match known.renewed(keep, now) {
                Some(renewed) => (renewed, false),
                None => return Ok(false),
            },
            None if known.all.get(tool).map_or(0, Vec::len) >= MAX_KEY_SCHEMES => {
                return Err(Error::TooMany(tool.clone()));
            }
            None => (
                Remembered::new(at.key_scheme_id, at.key_scheme.clone(), keep, now),
                true,
            ),
        };
        self.put_key_scheme(&key_scheme, is_new).await?;
        // Even after a renewal others are read again: they may have been written, or forgotten, meanwhile.
        Ok(true)
    }

    /// Writes a key scheme over any version of its document. `is_new`: gateways find it only from now on.
    async fn put_key_scheme(&self, key_scheme: &Remembered, mut is_new: bool) -> Result<(), Error> {
        let mut key_scheme = key_scheme.clone();
        // Noted before the write: it stays noted if this future is dropped, or if no answer comes. What is found after that may be
        // an earlier write of this gateway.
        let may_be_ours = is_new && !lock(&self.unconfirmed).insert(key_scheme.id);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            if is_new {
                key_scheme.known_since = self.base.now();
            }
            let put = self
                .base
                .store
                .put_document(&key_scheme.to_document())
                .await?;
            let stored = match put {
                // The write took so long that `known_since` lies too far before it: write a newer one.
                Put::Done
                    if is_new
                        && began.elapsed() > self.base.limits.timings.key_schemes_max_age / 2 =>
                {
                    key_scheme.version += 1;
                    continue;
                }
                Put::Done => {
                    lock(&self.unconfirmed).remove(&key_scheme.id);
                    self.change(|known| known.put(key_scheme.clone()));
                    return Ok(());
                }
                Put::Lost(stored) => stored,
            };
            key_scheme.version = stored.as_ref().map_or(0, |document| document.version) + 1;
            let is_in_use = stored.as_ref().is_some_and(Remembered::is_in_use);
            if let Some(stored) = stored.as_ref().and_then(Remembered::from_document) {
                if is_in_use && !may_be_ours {
                    is_new = false;
                    key_scheme.known_since = stored.known_since;
                }
                key_scheme.used_at = key_scheme.used_at.max(stored.used_at);
                key_scheme.keep = key_scheme.keep.max(stored.keep);
                key_scheme.created_at = stored.created_at;
            }
        }
        Err(store::Error::Refused("a key scheme is written by many at once".into()).into())
    }

    /// The documents of all key schemes, and the names of those that cannot be read.
    async fn stored_key_schemes(&self) -> Result<(Vec<Document>, Vec<String>), Error> {
        let (mut stored, mut unreadable) = (Vec::new(), Vec::new());
        let mut query = DocumentQuery::newest(Kind::KeyScheme, PAGE);
        loop {
            let (page, next) = self.base.store.documents(&query).await?;
            stored.extend(page.calls);
            unreadable.extend(page.unreadable.into_iter().map(|(id, _)| id));
            query.before = next;
            if next.is_none() {
                return Ok((stored, unreadable));
            }
        }
    }

    /// Reads the store's secret, and the stored key schemes: lookup keys and fingerprints are made with both.
    ///
    /// A key scheme that this gateway knows and the store has lost is written again.
    async fn read_key_schemes(&self, now: Timestamp) -> Result<(), Error> {
        let began = Instant::now();
        let (learned, stored) = join!(self.secrets.learn_secret(), self.stored_key_schemes());
        learned?;
        let (stored, mut unreadable) = stored?;
        let known = self.known.load_full();
        let mut read = KnownKeySchemes {
            read_at: Some(began),
            served: known.served.clone(),
            ..KnownKeySchemes::default()
        };
        for document in stored.iter().filter(|one| Remembered::is_in_use(one)) {
            match Remembered::from_document(document) {
                Some(one) => read.put(one),
                None => unreadable.push(document.id.clone()),
            }
        }
        for id in &unreadable {
            if self.base.is_not_logged_yet(id) {
                tracing::error!(
                    key_scheme = id,
                    "a stored key scheme cannot be read: its tool takes no new calls"
                );
            }
            match tool_of(id) {
                Some(tool) => _ = read.unreadable.insert(tool.to_owned()),
                None => read.is_any_unreadable = true,
            }
        }
        let mut lost = Vec::new();
        for one in known.iter() {
            let name = name_of(&one.key_scheme.tool, one.id);
            if unreadable.contains(&name) {
                read.put(one.clone());
            } else if !stored.iter().any(|document| document.id == name) && !one.is_overdue(now) {
                // A lost key scheme is not served until it is written again, but calls are recognised by it.
                read.served.remove(&one.id);
                read.put(one.clone());
                lost.push(one);
            }
        }
        self.known.store(Arc::new(read));
        let mut all = Ok(());
        for one in lost {
            let version = 1;
            let again = Remembered {
                version,
                ..one.clone()
            };
            // A key scheme that cannot be written does not keep the others from being written.
            all = self.put_key_scheme(&again, true).await.and(all);
        }
        all
    }
}
