//! The embedded store: one SQLite file, one gateway process.
//!
//! WAL with `synchronous=FULL`: a commit survives the loss of the process and, if the disk honours fsync, of power. One
//! thread makes all writes and commits them in groups. Reads of calls have connections of their own, so that a long
//! question to the ledger never holds up a call.
//!
//! ```
//! use oncegate_rules::record::{CallId, InstanceId};
//! use oncegate_store::{Calls as _, Health as _};
//! use oncegate_store_sqlite::Sqlite;
//! use tokio_util::sync::CancellationToken;
//! use uuid::Uuid;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("oncegate.db");
//! // Cancelled by the store when the process must end at once.
//! let fatal = CancellationToken::new();
//! let store = Sqlite::open(&file, InstanceId(Uuid::new_v4()), &fatal)?;
//! assert!(store.load(CallId(Uuid::new_v4())).await?.is_none());
//! // One process has the file.
//! assert!(Sqlite::open(&file, InstanceId(Uuid::new_v4()), &fatal).is_err());
//! store.close().await;
//! # Ok(())
//! # }
//! ```

mod calls; // claims, changes, and searches for calls that need work
mod check; // whether the whole file is whole, while it is served
mod document; // documents as rows
mod error; // why a file is not opened
mod feed; // events in the order in which they were written
mod files; // locks, and whether the files are still those that were opened
mod gate; // which writes are refused now
mod inspect; // what a file is and has, for operators
mod ledger; // listing and deleting calls
mod lists; // calls with a common property
mod offline; // an upgrade, and a shorter file, while no gateway serves
mod open; // start-up checks: file system, lock, schema, integrity
mod operators; // sessions and pauses as operators see them, and the acts of operators
mod query; // statements, prepared once
mod upgrade; // from the layouts of earlier releases to today's
mod worker; // the threads, and the group commit

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, InterruptHandle};

pub use self::error::OpenError;
use self::files::Files;
pub use self::files::files_of;
use self::files::space;
use self::gate::Gate;
pub use self::inspect::{Inspection, backup, inspect};
pub use self::offline::{compact, upgrade_file};
pub use self::open::Opening;
pub use self::upgrade::{Backup, Upgraded};
use self::worker::{Need, Worker};
use oncegate_rules::record::{CallId, InstanceId};
use oncegate_store::{
    Durability, Endings, Error, Feed, Health, LOST_DATA, Listener, LossRecovery, Readiness, Reason,
    Result, Secrets, Space,
};

/// Why a loss cannot be accepted.
const NOTHING_LOST: &str = "the store has not lost any data";
/// How long closing the files may take.
const CLOSING: Duration = Duration::from_secs(5);

/// Clones share one store.
#[derive(Clone)]
pub struct Sqlite {
    writer: Worker,
    readers: Arc<Readers>,
    /// This run of the gateway.
    ///
    /// No other process uses the file, so the owner of any other running call has ended.
    instance: InstanceId,
    gate: Gate,
    files: Weak<Files>,
    /// Waiters for calls of this process.
    endings: Arc<Endings>,
}

/// Workers that read. None waits for another.
///
/// If there is only one connection, all of them are the writer.
struct Readers {
    /// Reads for calls that callers wait for.
    calls: Worker,
    /// Searches for due calls.
    due: Worker,
    /// Questions of operators, and exports.
    ledger: Worker,
    interrupts: Vec<InterruptHandle>,
}

#[async_trait]
impl LossRecovery for Sqlite {
    async fn calls_at_risk_after_loss(
        &self,
        from: &str,
        limit: u32,
    ) -> Result<(Vec<CallId>, Option<String>)> {
        let after = from.parse().unwrap_or(0);
        let page =
            move |connection: &Connection| calls::at_risk_after_loss(connection, after, limit);
        let page = self.readers.ledger.read(page).await?;
        let next = page.last().map(|(number, _)| number.to_string());
        let ids = page.into_iter().map(|(_, id)| id).collect::<Result<_, _>>();
        let ids = ids.map_err(|why| {
            Error::Unreadable(format!(
                "{why}; the loss cannot be accepted: restore a backup, or start with another file"
            ))
        })?;
        Ok((ids, next))
    }

    /// When the newest call was made. Only this gateway writes to the file, in order.
    async fn whole_until(&self) -> Result<Option<Timestamp>> {
        self.readers.ledger.read(calls::newest).await
    }

    async fn prepare_acceptance(&self, _reason: &str) -> Result<()> {
        if self.gate.watermarks.prepare() {
            Ok(())
        } else {
            Err(Error::Refused(NOTHING_LOST.into()))
        }
    }

    async fn accept_loss(&self, reason: &str) -> Result<()> {
        self.prepare_acceptance(reason).await?;
        let watermarks = self.gate.watermarks.clone();
        let accept = move |connection: &Connection| watermarks.begin_epoch(connection);
        self.writer.run(Need::Plain, accept).await?;
        self.gate.watermarks.accepted();
        Ok(())
    }
}

impl Secrets for Sqlite {
    fn remembered_secret(&self) -> Result<Option<Bytes>> {
        self.gate.watermarks.secret()
    }

    fn remember_secret(&self, secret: &Bytes) {
        self.gate.watermarks.remember_secret(secret);
    }
}

#[async_trait]
impl Health for Sqlite {
    async fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        let lost = self.gate.watermarks.lost().clone();
        if let Some(lost) = &lost {
            let text = format!(
                "{}; nothing is claimed until an operator accepts that: POST /v1/store/accept-loss, or, while no gateway \
                 runs, `oncegate store accept-loss`",
                lost.what
            );
            reasons.push(Reason::new(LOST_DATA, text));
        }
        reasons.extend(self.gate.check.reason());
        if self.gate.is_short_of_space() {
            reasons.push(Reason::new("disk_full", "the disk is full"));
        }
        if let Err(error) = self.writer.read(|_| Ok(())).await {
            reasons.push(Reason::new("failed", error.to_string()));
        }
        let since = |connection: &Connection| {
            let sql = "SELECT whole_since FROM ledger";
            query::first(connection, sql, [], |row| calls::row::time(row, 0))
        };
        let whole_since = self.readers.calls.read(since).await.ok().flatten();
        let exposed = self.files.upgrade().and_then(|files| files.exposed());
        Readiness {
            durability: Some(Durability::Strict),
            reasons,
            warnings: exposed.into_iter().collect(),
            lost_writes: lost.map_or(0, |lost| lost.commits),
            whole_since,
        }
    }

    fn clock_offset(&self) -> SignedDuration {
        SignedDuration::ZERO
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, call_id: CallId) -> Option<Listener> {
        Some(self.endings.listen(call_id))
    }

    async fn feed(
        &self,
        after: u64,
        between: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Option<Feed>> {
        let read = move |connection: &Connection| feed::read(connection, after, between, limit);
        self.readers.ledger.read(read).await.map(Some)
    }

    async fn space(&self) -> Option<Space> {
        let path = self.files.upgrade()?.path().to_owned();
        let space = move |connection: &Connection| space::of(connection, &path);
        let space = self.readers.ledger.read(space).await.ok()?;
        Some(Space {
            checked: self.gate.check.progress(),
            checked_at: self.gate.check.checked_at(),
            ..space
        })
    }

    fn cancel_acceptance(&self) {
        self.gate.watermarks.break_off();
    }

    /// Leaves the database as one file without a log, and the watermarks beside it.
    async fn close(&self) {
        let readers = &*self.readers;
        readers
            .interrupts
            .iter()
            .for_each(InterruptHandle::interrupt);
        let all = async {
            if !readers.interrupts.is_empty() {
                tokio::join!(
                    readers.calls.stop(),
                    readers.due.stop(),
                    readers.ledger.stop()
                );
            }
            self.writer.stop().await;
        };
        if tokio::time::timeout(CLOSING, all).await.is_err() {
            tracing::warn!(
                "the database could not be closed in time; the next start reads its log"
            );
        }
    }
}

#[cfg(test)]
mod tests;
