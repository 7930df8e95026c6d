//! Calls: claims, changes, and finding those that need work.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::query::{all, corrupt, first, readable};
use super::row::{self, Fresh, Stored, record, select};
use super::worker::Need;
use super::{Sqlite, lists, session};
use crate::core::call::Change;
use crate::core::key::Lookup;
use crate::core::record::{CallId, Holder, Record, State};
use crate::store::codec::{self, Unreadable};
use crate::store::{Calls, Census, Claimed, Due, Error, Found, Replaced, UNREADABLE, is_seen};

#[async_trait]
impl Calls for Sqlite {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let fresh = Fresh::of(change);
        let change = change.clone();
        let instead_of = instead_of.to_vec();
        let gate = self.gate.clone();
        let claim = move |connection: &Connection| {
            let mut earlier = Vec::new();
            for name in change.record.intent.all_names() {
                let Some((seq, holder)) = holder_of(connection, name)? else {
                    continue;
                };
                if is_seen(&holder, std::slice::from_ref(&change.record)) {
                    return Ok(Claimed::Yours(holder));
                }
                if !is_seen(&holder, &instead_of) {
                    return Ok(Claimed::Existing(holder));
                }
                earlier.push((*name, seq, holder));
            }
            gate.may_begin()?;
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Claimed::Denied(denied)),
            };
            lose_names(connection, &earlier)?;
            row::insert(connection, &record, &fresh)?;
            Ok(Claimed::Yours(record))
        };
        self.writer.run(Need::Plain, claim).await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let progress = codec::progress(&change.record);
        let (change, expected) = (change.clone(), expected.clone());
        // What is to be sent next needs room for its outcome: it waits until there is room again.
        let begins = matches!(change.record.state, State::Running)
            && change.record.attempt.id != expected.attempt.id;
        let claims = begins || !change.takes.names.is_empty();
        let need = if claims { Need::Plain } else { Need::Reserve };
        let gate = self.gate.clone();
        let replace = move |connection: &Connection| {
            let call_id = change.record.intent.call_id;
            if matches!(change.record.state, State::Running) {
                for name in change.record.intent.all_names() {
                    if let Some((_, holder)) = holder_of(connection, name)?
                        && holder.intent.call_id != call_id
                    {
                        return Ok(Replaced::Lost(Some(holder)));
                    }
                }
            }
            let stored = Stored::of(connection, call_id)?.filter(|stored| stored.is(&expected));
            let Some(stored) = stored else {
                // Another change may have come to the same version: only what is the same was ours.
                let is_ours = |stored: &Record| *stored == change.as_stored(stored);
                return Ok(match by_id(connection, call_id)? {
                    Some((_, stored)) if is_ours(&stored) => Replaced::Done(stored),
                    stored => Replaced::Lost(stored.map(|(_, stored)| stored)),
                });
            };
            let mut earlier = Vec::new();
            for name in &change.takes.names {
                let Some((seq, holder)) = holder_of(connection, name)? else {
                    continue;
                };
                if holder.intent.call_id == call_id {
                    continue;
                }
                if !is_seen(&holder, &change.takes.instead_of) {
                    return Ok(Replaced::Lost(Some(holder)));
                }
                earlier.push((*name, seq, holder));
            }
            if claims {
                gate.may_begin()?;
            }
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Replaced::Denied(denied)),
            };
            if begins {
                row::update_asked(connection, stored.seq, &record)?;
            }
            lose_names(connection, &earlier)?;
            row::take_names(connection, stored.seq, change.takes.names.iter())?;
            stored.update(connection, &record, &progress, &change.entry)?;
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

    async fn holders(&self, names: &[Lookup]) -> Result<Vec<Holder>, Error> {
        let names = names.to_vec();
        let find = move |connection: &Connection| holders(connection, &names);
        self.readers.calls.read(find).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        let load = move |connection: &Connection| by_id(connection, call_id);
        let found = self.readers.calls.read(load).await?;
        Ok(found.map(|(_, record)| record))
    }

    async fn watch(&self, _: &Lookup, _: CallId) -> Result<Option<Record>, Error> {
        Err(Error::Refused("no other process writes to it".into()))
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        let instance = self.instance;
        // Running calls whose lease is over, or whose owner is not this instance.
        let find = move |connection: &Connection| {
            let sql = select!(
                "calls c LEFT JOIN intents i ON i.seq = c.seq
                 WHERE c.state = 0 AND (c.due_at <= ?1 OR c.owner <> ?2) ORDER BY c.due_at LIMIT ?3"
            );
            let most = limit.saturating_add(UNREADABLE);
            let due = params![now.as_microsecond(), instance.0.into_bytes(), most];
            let (found, _) = readable(connection, sql, due, limit, row::id, record)?;
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
    ) -> Result<Found<Record>, Error> {
        if self.gate.has_lost_data() {
            return Ok(Found::default());
        }
        let tools = tools.to_vec();
        let find = move |connection: &Connection| {
            let mut found = Found::default();
            for tool in &tools {
                let most = each.saturating_add(UNREADABLE);
                let due = params![tool, now.as_microsecond(), most];
                let (due, _) = readable(connection, DUE_RECHECKS, due, each, row::id, record)?;
                found.calls.extend(due.calls);
                found.unreadable.extend(due.unreadable);
            }
            // Of all tools together those that wait longest come first.
            found
                .calls
                .sort_by_key(|record| record.check.and_then(|check| check.at));
            Ok(found)
        };
        self.readers.due.read(find).await
    }

    async fn unscheduled_unknown(
        &self,
        tools: &[String],
        limit: u32,
    ) -> Result<Found<Record>, Error> {
        let tools = serde_json::json!(tools).to_string();
        let find = move |connection: &Connection| {
            let sql = select!(
                "calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.state = 3 AND c.due_at IS NULL
                    AND c.tool IN (SELECT value FROM json_each(?1)) LIMIT ?2"
            );
            let unscheduled = params![tools, limit.saturating_add(UNREADABLE)];
            let (found, _) = readable(connection, sql, unscheduled, limit, row::id, record)?;
            Ok(found)
        };
        self.readers.due.read(find).await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let census = |connection: &Connection| {
            let sql = "SELECT tool, 'running', count(*) FROM calls WHERE state = 0 GROUP BY tool
         UNION ALL SELECT tool, 'unknown', count(*) FROM calls WHERE state = 3 GROUP BY tool";
            all(connection, sql, [], |row| {
                let calls = row.get::<_, i64>(2)?.unsigned_abs();
                Ok(Census {
                    tool: row.get(0)?,
                    state: row.get(1)?,
                    calls,
                })
            })
        };
        self.readers.ledger.read(census).await
    }
}

/// The call that holds a name, and its number.
///
/// `None`: the name is free. A name that leads to no call, to half of one, or to one without this name is an error:
/// its call may have run.
fn holder_of(connection: &Connection, name: &Lookup) -> rusqlite::Result<Option<(i64, Record)>> {
    let sql = select!(
        "names n LEFT JOIN calls c ON c.seq = n.seq LEFT JOIN intents i ON i.seq = n.seq WHERE n.lookup = ?1"
    );
    first(connection, sql, [name.0], |row| {
        let record = record(row)?;
        if !record.all_names().any(|own| own == name) {
            return Err(corrupt(Unreadable::Damaged("name")));
        }
        Ok((row::seq(row)?, record))
    })
}

/// Adds calls that are about to lose these names to the lists of their keys.
fn lose_names(connection: &Connection, names: &[(Lookup, i64, Record)]) -> rusqlite::Result<()> {
    for (name, seq, holder) in names {
        let intent = &holder.intent;
        if *name == intent.lookup {
            let list = lists::by_key(&intent.tenant, &intent.key);
            lists::insert(connection, list, intent.created_at.as_microsecond(), *seq)?;
        }
    }
    Ok(())
}

/// The calls that hold these names, in the order of the names.
fn holders(connection: &Connection, names: &[Lookup]) -> rusqlite::Result<Vec<Holder>> {
    let mut holders: Vec<Holder> = Vec::new();
    for name in names {
        let Some((_, record)) = holder_of(connection, name)? else {
            continue;
        };
        let call_id = record.intent.call_id;
        match holders
            .iter_mut()
            .find(|holder| holder.record.intent.call_id == call_id)
        {
            Some(holder) => holder.names.push(*name),
            None => holders.push(Holder {
                record,
                names: vec![*name],
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
    first(connection, sql, [call_id.0.into_bytes()], |row| {
        let record = record(row)?;
        if record.intent.call_id != call_id {
            return Err(corrupt(Unreadable::Damaged("id")));
        }
        Ok((row::seq(row)?, record))
    })
}

/// Due unknown calls of a tool, by tool, time and limit.
pub(super) const DUE_RECHECKS: &str = select!(
    "calls c LEFT JOIN intents i ON i.seq = c.seq
     WHERE c.state = 3 AND c.tool = ?1 AND c.due_at <= ?2 ORDER BY c.due_at LIMIT ?3"
);

/// When the newest call was made; `None` if there is none, or it cannot be read.
pub(super) fn newest(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let sql =
        select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq ORDER BY c.seq DESC LIMIT 1");
    let made_at =
        |row: &rusqlite::Row<'_>| Ok(record(row).map(|newest| newest.intent.created_at).ok());
    Ok(first(connection, sql, [], made_at)?.flatten())
}

/// A call by its number; or why it cannot be read.
pub(super) type AtRisk = (i64, Result<CallId, String>);

/// Running, failed and unknown calls with higher numbers than this.
pub(super) fn at_risk_after_loss(
    connection: &Connection,
    after: i64,
    limit: u32,
) -> rusqlite::Result<Vec<AtRisk>> {
    // Each of the three by its index.
    let sql = select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.seq IN (
            SELECT seq FROM calls WHERE state = 0 AND seq > ?1
            UNION ALL SELECT seq FROM calls WHERE state = 2 AND seq > ?1
            UNION ALL SELECT seq FROM calls WHERE state = 3 AND seq > ?1
            ORDER BY seq LIMIT ?2)
         ORDER BY c.seq");
    all(connection, sql, params![after, limit], |row| {
        let found = record(row).and_then(|record| {
            // It is loaded by its id.
            let (id, sql) = (
                record.intent.call_id,
                "SELECT seq FROM ids WHERE call_id = ?1",
            );
            let leads_to: Option<i64> =
                first(connection, sql, [id.0.into_bytes()], |row| row.get(0))?;
            match leads_to {
                Some(seq) if seq == row::seq(row)? => Ok(id),
                Some(_) => Err(corrupt(Unreadable::Damaged("id"))),
                None => Err(corrupt(Unreadable::Missing("id"))),
            }
        });
        let found = found.map_err(|error| format!("call {}: {error}", row::id(row)));
        Ok((row::seq(row)?, found))
    })
}
