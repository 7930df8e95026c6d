//! Calls: claims, changes, and finding those that need work.

pub(crate) mod history; // the history of a call, in its row and beside it
pub(crate) mod row; // calls as rows
pub(crate) mod session; // the conditions of a claim; tokens, locks and places

use std::slice::from_ref;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use self::row::{Fresh, Stored, record, select};
use super::query::{all, corrupt, first, readable};
use super::worker::Need;
use super::{Sqlite, lists};
use oncegate_rules::call::Change;
use oncegate_rules::key::Lookup;
use oncegate_rules::record::{CallId, Holder, Record, State};
use oncegate_store::codec::{self, Unreadable};
use oncegate_store::search;
use oncegate_store::{Calls, Census, Claimed, Due, Error, Found, Replaced, Result, is_seen};

#[async_trait]
impl Calls for Sqlite {
    async fn claim(&self, change: &Change, replaced: &[Record]) -> Result<Claimed> {
        let fresh = Fresh::of(change);
        let change = change.clone();
        let replaced = replaced.to_vec();
        let gate = self.gate.clone();
        let claim = move |connection: &Connection| {
            let mut earlier = Vec::new();
            for held in held(connection, change.record.intent.all_lookups()) {
                let held = held?;
                if is_seen(&held.record, from_ref(&change.record)) {
                    return Ok(Claimed::Yours(held.record));
                }
                if !is_seen(&held.record, &replaced) {
                    return Ok(Claimed::Existing(held.record));
                }
                earlier.push(held);
            }
            let is_free = |name: &&Lookup| earlier.iter().all(|held| held.name != **name);
            gate.may_claim(change.record.intent.all_lookups().filter(is_free))?;
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Claimed::Denied(denied)),
            };
            lose_lookups(connection, &earlier)?;
            row::insert(connection, &record, &fresh)?;
            Ok(Claimed::Yours(record))
        };
        self.writer.run(Need::Plain, claim).await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced> {
        let progress = codec::progress(&change.record);
        let (change, expected) = (change.clone(), expected.clone());
        // A full disk refuses changes by which something is sent next: its outcome would need room, too.
        let begins = matches!(change.record.state, State::Running)
            && change.record.attempt.id != expected.attempt.id;
        let claims = begins || !change.takes.lookups.is_empty();
        let need = if claims { Need::Plain } else { Need::Reserve };
        let gate = self.gate.clone();
        let replace = move |connection: &Connection| {
            let call_id = change.record.intent.call_id;
            if matches!(change.record.state, State::Running) {
                for held in held(connection, change.record.intent.all_lookups()) {
                    let holder = held?.record;
                    if holder.intent.call_id != call_id {
                        return Ok(Replaced::Lost(Some(holder)));
                    }
                }
            }
            let stored = Stored::of(connection, call_id)?.filter(|stored| stored.is(&expected));
            let Some(stored) = stored else {
                // Another change may have written the same version. Only an equal record proves that this one did.
                let stored = by_id(connection, call_id)?.map(|(_, stored)| stored);
                return Ok(match stored {
                    Some(stored) if stored == change.as_stored(&stored) => Replaced::Done(stored),
                    stored => Replaced::Lost(stored),
                });
            };
            let mut earlier = Vec::new();
            for held in held(connection, &change.takes.lookups) {
                let held = held?;
                if held.record.intent.call_id == call_id {
                    continue;
                }
                if !is_seen(&held.record, &change.takes.replaced) {
                    return Ok(Replaced::Lost(Some(held.record)));
                }
                earlier.push(held);
            }
            if claims {
                gate.may_claim(change.takes.lookups.iter())?;
            }
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Replaced::Denied(denied)),
            };
            if begins {
                row::update_intent(connection, stored.seq, &record)?;
            }
            if let Some(before) = &change.erases {
                row::overwrite_deleted(connection, true)?;
                row::erase(connection, stored.seq, before, &record)?;
            }
            lose_lookups(connection, &earlier)?;
            row::take_lookups(connection, stored.seq, &change.takes.lookups)?;
            stored.update(connection, &record, &progress, &change.entry)?;
            if change.erases.is_some() {
                row::overwrite_deleted(connection, false)?;
            }
            session::release(connection, &change)?;
            Ok(Replaced::Done(record))
        };
        let replaced = self.writer.run(need, replace).await?;
        if let Replaced::Done(record) = &replaced
            && !matches!(record.state, State::Running)
        {
            self.endings.say(record.intent.call_id);
        }
        Ok(replaced)
    }

    async fn holders(&self, lookups: &[Lookup]) -> Result<Vec<Holder>> {
        let lookups = lookups.to_vec();
        let find = move |connection: &Connection| holders(connection, &lookups);
        self.readers.calls.read(find).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>> {
        let load = move |connection: &Connection| by_id(connection, call_id);
        let found = self.readers.calls.read(load).await?;
        Ok(found.map(|(_, record)| record))
    }

    async fn watch(&self, _: &Lookup, _: CallId) -> Result<Option<Record>> {
        Err(Error::Refused("no other process writes to it".into()))
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>> {
        let instance = self.instance;
        // Running calls whose lease is over, or whose owner is not this instance.
        let find = move |connection: &Connection| {
            let sql = select!(
                "calls c LEFT JOIN intents i ON i.seq = c.seq
                 WHERE c.state = 0 AND (c.due_at <= ?1 OR c.owner <> ?2) ORDER BY c.due_at"
            );
            let due = params![now.as_microsecond(), instance.0];
            let found = readable(connection, sql, due, limit, row::id, record)?;
            Ok(found.map(|record| Due {
                owner_ended: record.attempt.owner != instance,
                record,
            }))
        };
        self.readers.due.read(find).await
    }

    async fn due_rechecks(
        &self,
        now: Timestamp,
        tools: &[String],
        each: u32,
    ) -> Result<Found<Record>> {
        if self.gate.is_closed() {
            return Ok(Found::default());
        }
        let tools = tools.to_vec();
        let find = move |connection: &Connection| {
            let mut found = Found::default();
            for tool in &tools {
                let due = params![tool, now.as_microsecond()];
                let due = readable(connection, DUE_RECHECKS, due, each, row::id, record)?;
                found.calls.extend(due.calls);
                found.unreadable.extend(due.unreadable);
            }
            // Those that wait longest come first, whatever their tool.
            let due_at = |record: &Record| record.check.and_then(|check| check.at);
            found.calls.sort_by_key(due_at);
            Ok(found)
        };
        self.readers.due.read(find).await
    }

    async fn unscheduled_unknown(&self, tools: &[String], limit: u32) -> Result<Found<Record>> {
        let tools = serde_json::json!(tools).to_string();
        let find = move |connection: &Connection| {
            let sql = select!(
                "calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.state = 3 AND c.due_at IS NULL
                    AND c.tool IN (SELECT value FROM json_each(?1))"
            );
            readable(connection, sql, [&tools], limit, row::id, record)
        };
        self.readers.due.read(find).await
    }

    async fn due_proposals(&self, now: Timestamp, limit: u32) -> Result<Found<Record>> {
        if self.gate.is_closed() {
            return Ok(Found::default());
        }
        let find = move |connection: &Connection| {
            let sql = select!(
                "calls c LEFT JOIN intents i ON i.seq = c.seq
                 WHERE c.state IN (7, 8) AND c.due_at <= ?1 ORDER BY c.due_at"
            );
            let due = [now.as_microsecond()];
            readable(connection, sql, due, limit, row::id, record)
        };
        self.readers.due.read(find).await
    }

    async fn census(&self) -> Result<Vec<Census>> {
        let census = |connection: &Connection| {
            let sql = "SELECT tool, 'running', count(*) FROM calls WHERE state = 0 GROUP BY tool
         UNION ALL SELECT tool, 'unknown', count(*) FROM calls WHERE state = 3 GROUP BY tool
         UNION ALL SELECT tool, iif(state = 7, 'proposed', 'approved'), count(*) FROM calls WHERE state IN (7, 8)
                   GROUP BY state, tool";
            all(connection, sql, [], |row| {
                Ok(Census {
                    tool: row.get(0)?,
                    state: row.get(1)?,
                    calls: row.get::<_, i64>(2)?.unsigned_abs(),
                })
            })
        };
        self.readers.ledger.read(census).await
    }
}

/// A lookup key, and the call that holds it.
struct Held {
    name: Lookup,
    seq: i64,
    record: Record,
}

/// Those of the lookup keys that calls hold, in their order.
///
/// A lookup key that leads to no call, to half of one, or to one without this lookup key is an error: its call may have run.
fn held<'a>(
    connection: &'a Connection,
    lookups: impl IntoIterator<Item = &'a Lookup>,
) -> impl Iterator<Item = rusqlite::Result<Held>> {
    let sql = select!(
        "names n LEFT JOIN calls c ON c.seq = n.seq LEFT JOIN intents i ON i.seq = n.seq WHERE n.lookup = ?1"
    );
    lookups.into_iter().filter_map(|name| {
        let held = first(connection, sql, [name.0], |row| {
            let record = record(row)?;
            if !record.all_lookups().any(|own| own == name) {
                return Err(corrupt(Unreadable::Damaged("name")));
            }
            let (name, seq) = (*name, row::seq(row)?);
            Ok(Held { name, seq, record })
        });
        held.transpose()
    })
}

/// Adds calls that are about to lose these lookup keys to the lists of their keys.
fn lose_lookups(connection: &Connection, lost: &[Held]) -> rusqlite::Result<()> {
    for Held { name, seq, record } in lost {
        let intent = &record.intent;
        if *name == intent.lookup {
            let list = search::by_key(&intent.tenant, &intent.key);
            lists::insert(connection, list, intent.created_at, *seq)?;
        }
    }
    Ok(())
}

/// The calls that hold these lookup keys, in the order of the lookup keys.
fn holders(connection: &Connection, lookups: &[Lookup]) -> rusqlite::Result<Vec<Holder>> {
    let mut holders: Vec<Holder> = Vec::new();
    for held in held(connection, lookups) {
        let Held { name, record, .. } = held?;
        let call_id = record.intent.call_id;
        let is_same = |holder: &&mut Holder| holder.record.intent.call_id == call_id;
        match holders.iter_mut().find(is_same) {
            Some(holder) => holder.lookups.push(name),
            None => holders.push(Holder {
                record,
                lookups: vec![name],
            }),
        }
    }
    Ok(holders)
}

/// The call with this id, and its number.
///
/// An id that leads to half of a call, or to another one, is an error.
pub(super) fn by_id(
    connection: &Connection,
    call_id: CallId,
) -> rusqlite::Result<Option<(i64, Record)>> {
    let sql = select!(
        "ids LEFT JOIN calls c ON c.seq = ids.seq LEFT JOIN intents i ON i.seq = ids.seq WHERE ids.call_id = ?1"
    );
    first(connection, sql, [call_id.0], |row| {
        let record = record(row)?;
        if record.intent.call_id != call_id {
            return Err(corrupt(Unreadable::Damaged("id")));
        }
        Ok((row::seq(row)?, record))
    })
}

/// Due unknown calls, by tool and time.
pub(super) const DUE_RECHECKS: &str = select!(
    "calls c LEFT JOIN intents i ON i.seq = c.seq
     WHERE c.state = 3 AND c.tool = ?1 AND c.due_at <= ?2 ORDER BY c.due_at"
);

/// When the newest call was made; `None` if there is none, or it cannot be read.
pub(super) fn newest(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let sql =
        select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq ORDER BY c.seq DESC LIMIT 1");
    let made_at = |row: &Row<'_>| Ok(record(row).map(|newest| newest.intent.created_at).ok());
    Ok(first(connection, sql, [], made_at)?.flatten())
}

/// The oldest call that is stored; `None` if there is none, or it cannot be read.
pub(super) fn oldest(connection: &Connection) -> rusqlite::Result<Option<Record>> {
    let sql = select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq ORDER BY c.seq LIMIT 1");
    Ok(first(connection, sql, [], |row| Ok(record(row).ok()))?.flatten())
}

/// A call by its number; or why it cannot be read.
pub(super) type AtRisk = (i64, Result<CallId, String>);

/// Running, failed, unknown, proposed and approved calls with higher numbers than this.
pub(super) fn at_risk_after_loss(
    connection: &Connection,
    after: i64,
    limit: u32,
) -> rusqlite::Result<Vec<AtRisk>> {
    // Four queries, because each has its own index.
    let sql = select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.seq IN (
            SELECT seq FROM calls WHERE state = 0 AND seq > ?1
            UNION ALL SELECT seq FROM calls WHERE state = 2 AND seq > ?1
            UNION ALL SELECT seq FROM calls WHERE state = 3 AND seq > ?1
            UNION ALL SELECT seq FROM calls WHERE state IN (7, 8) AND +seq > ?1
            ORDER BY seq LIMIT ?2)
         ORDER BY c.seq");
    all(connection, sql, params![after, limit], |row| {
        let found = record(row).and_then(|record| {
            // Its id must lead to it: recovery loads it by the id.
            let id = record.intent.call_id;
            let sql = "SELECT seq FROM ids WHERE call_id = ?1";
            match first(connection, sql, [id.0], |row| row.get::<_, i64>(0))? {
                Some(seq) if seq == row::seq(row)? => Ok(id),
                Some(_) => Err(corrupt(Unreadable::Damaged("id"))),
                None => Err(corrupt(Unreadable::Missing("id"))),
            }
        });
        let found = found.map_err(|error| format!("call {}: {error}", row::id(row)));
        Ok((row::seq(row)?, found))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::tests::{Damaged, arrival};
    use oncegate_rules::outcome::Evidence;
    use oncegate_store::Health as _;

    #[tokio::test]
    async fn who_listens_for_the_end_of_a_call_hears_of_it() {
        let damaged = Damaged::new();
        let running = damaged.claimed("k").await;
        let listener = damaged.store.listen(running.intent.call_id);
        let listener = listener.expect("a listener");
        let why = "it is not there".into();
        damaged.end(&running, Evidence::NotSent { why }, None).await;
        let heard = tokio::time::timeout(Duration::from_secs(60), listener.heard()).await;
        heard.expect("it is told");
    }

    /// Otherwise a full disk would end the leases of calls that run.
    #[tokio::test]
    async fn a_full_disk_takes_changes_of_a_running_attempt() {
        let damaged = Damaged::new();
        let running = damaged.claimed("k").await;
        let is_short = &damaged.store.gate.short_of_space;
        is_short.store(true, Ordering::SeqCst);
        let mut change = arrival("k");
        change.record = running.clone();
        change.record.version += 1;
        change.admission = None;
        change.takes.lookups.clear();
        let replaced = damaged.store.replace(&change, &running).await;
        let replaced = replaced.expect("an answer");
        assert!(matches!(replaced, Replaced::Done(_)), "{replaced:?}");
    }
}
