//! Puts writes back that a Redis has lost and this gateway remembers.

use std::sync::Arc;

use super::keys::{self, Partition};
use super::memory::Remembered;
use super::record::{self, retain_until, score};
use super::server::{Server, givers};
use crate::core::ledger::Index;
use crate::core::record::{CallId, Entry, Record, State};
use crate::store::{Error, codec};

/// Puts back writes that a Redis has lost.
#[derive(Clone)]
pub(super) struct Restorer {
    pub(super) server: Arc<Server>,
}

impl Restorer {
    /// Puts back every remembered write that the store lacks.
    pub(super) async fn put_all_back(&self) -> Result<(), Error> {
        let mut all = Ok(());
        let recent = self.server.memory.recent();
        for of_one in recent.chunk_by(|one, next| one.call_id() == next.call_id()) {
            for Remembered {
                record,
                entry,
                is_locked,
                ..
            } in of_one
            {
                let put = self.put_names_back(record, entry, *is_locked).await;
                // Which call a name belongs to can be decided only from the newest version.
                let is_newest = of_one
                    .last()
                    .is_some_and(|newest| newest.record.version == record.version);
                let told = match put {
                    Ok(holders) if is_newest => self.tell_holders(record, holders).await,
                    put => put.map(drop),
                };
                // A call that cannot be put back must not block the others.
                all = told.and(all);
            }
        }
        all
    }

    /// Puts a lost record back, and logs other calls that hold its names by now.
    pub(super) async fn put_back(
        &self,
        record: &Record,
        entry: &Entry,
        is_locked: bool,
    ) -> Result<(), Error> {
        let holders = self.put_names_back(record, entry, is_locked).await?;
        self.tell_holders(record, holders).await
    }

    /// Puts a record back with its names. Returns the calls that hold a name of it instead.
    ///
    /// A name goes back to this call if its holder's window was over when this call's run began. May be repeated: the
    /// result is the same as after one run.
    async fn put_names_back(
        &self,
        record: &Record,
        entry: &Entry,
        is_locked: bool,
    ) -> Result<Vec<CallId>, Error> {
        let holders = self.try_put_back(record, entry, is_locked, &[]).await?;
        let mut over = Vec::new();
        for holder in &holders {
            over.extend(
                self.server
                    .fields_of(*holder)
                    .await?
                    .filter(|holder| is_over(holder, record)),
            );
        }
        if over.is_empty() {
            return Ok(holders);
        }
        self.try_put_back(record, entry, is_locked, &over).await
    }

    /// Logs the holders of a call's names, except calls that began after its window.
    async fn tell_holders(&self, record: &Record, holders: Vec<CallId>) -> Result<(), Error> {
        let intent = &record.intent;
        for holder in holders {
            let newest = self.server.fields_of(intent.call_id).await?;
            let later = self.server.fields_of(holder).await?;
            if newest
                .zip(later)
                .is_some_and(|(newest, later)| is_over(&newest, &later))
            {
                continue;
            }
            tracing::error!(
                call_id = %intent.call_id,
                tool = intent.tool,
                %holder,
                "a call that the store had lost was put back, but a name of it is held by another call by now: \
                 the same intent may have run twice",
            );
        }
        Ok(())
    }

    /// Runs the script once. Returns the calls that hold a name instead.
    async fn try_put_back(
        &self,
        record: &Record,
        entry: &Entry,
        is_locked: bool,
        instead_of: &[Record],
    ) -> Result<Vec<CallId>, Error> {
        let intent = &record.intent;
        let mut lists = keys::lists(intent);
        // If it does not get its key back, it must be found by this list.
        if !matches!(lists[..], [Index::Key(_), ..]) {
            lists.insert(0, Index::Key(&intent.key));
        }
        let counts = [lists.len(), instead_of.len()];
        let script = &self.server.scripts.assert;
        let mut run = self
            .server
            .about_call(script, record, String::new(), counts);
        let rooms = is_locked.then(|| super::session::rooms_of(intent));
        run.key(Partition::of(&intent.lookup).of_script(record, rooms, &lists, instead_of));
        run.arg((record.version, &record::cas(record)[..]));
        run.arg((codec::intent(intent), &intent.args[..]));
        run.arg((codec::progress(record), record::fencing(record)));
        run.arg((record::result(record), record.state.as_str()));
        run.arg((record::letter(record), score(record), retain_until(record)));
        run.arg((codec::entry(entry, intent), self.server.told_of(entry)));
        run.arg(record::similar_to(record));
        let lease = record.attempt.lease_until.as_microsecond().to_string();
        let lock = match (&record.state, is_locked) {
            (State::Running, true) => [lease.as_str(), ""],
            // Its request may be under way until the lease ends.
            (State::Unknown(_), true) => [lease.as_str(), lease.as_str()],
            _ => ["", ""],
        };
        run.arg((&lock[..], &intent.tenant));
        givers(&mut run, instead_of);
        let answer = self.server.run(&run).await?;
        Ok(match answer.word.as_str() {
            "conflict" => answer
                .texts()
                .filter_map(|id| keys::call_id(id.as_bytes()))
                .collect(),
            _ => Vec::new(),
        })
    }
}

/// Whether the window of `earlier` was over when the run of `later` began.
///
/// The run counts, not the creation: a request may wait for its session before it claims its names.
fn is_over(earlier: &Record, later: &Record) -> bool {
    earlier
        .expires_at
        .is_some_and(|expires_at| expires_at <= later.attempt.run_started_at)
}
