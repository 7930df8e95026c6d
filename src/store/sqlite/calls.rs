//! Calls: claims, changes, and finding those that need work.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::query::{all, first, readable};
use super::row::{self, Identity, record, select};
use super::worker::Need;
use super::{Sqlite, session};
use crate::core::call::Change;
use crate::core::key;
use crate::core::record::{CallId, Holder, Record, State};
use crate::store::{Calls, Census, Claimed, Due, Error, Found, Replaced, UNREADABLE, is_seen};

#[async_trait]
impl Calls for Sqlite {
    async fn claim(&self, change: &Change, instead_of: &[Record]) -> Result<Claimed, Error> {
        let change = change.clone();
        let instead_of = instead_of.to_vec();
        let gate = self.gate.clone();
        let claim = move |connection: &Connection| {
            for name in change.record.intent.all_names() {
                let Some(holder) = holder_of(connection, name)? else {
                    continue;
                };
                if is_seen(&holder, std::slice::from_ref(&change.record)) {
                    return Ok(Claimed::Yours(holder));
                }
                if !is_seen(&holder, &instead_of) {
                    return Ok(Claimed::Existing(holder));
                }
            }
            gate.may_begin()?;
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Claimed::Denied(denied)),
            };
            row::insert(connection, &record)?;
            row::insert_entry(connection, &record, &change.entry)?;
            Ok(Claimed::Yours(record))
        };
        self.writer.run(Need::Plain, claim).await
    }

    async fn replace(&self, change: &Change, expected: &Record) -> Result<Replaced, Error> {
        let (change, expected) = (change.clone(), expected.clone());
        // What is to be sent next needs room for its outcome: it waits until there is room again.
        let begins = matches!(change.record.state, State::Running)
            && change.record.attempt.id != expected.attempt.id;
        let claims = begins || !change.takes.names.is_empty();
        let need = if claims { Need::Plain } else { Need::Reserve };
        let gate = self.gate.clone();
        let replace = move |connection: &Connection| {
            if matches!(change.record.state, State::Running) {
                for name in change.record.intent.all_names() {
                    let holder = holder_of(connection, name)?;
                    if let Some(holder) = holder
                        && holder.intent.call_id != change.record.intent.call_id
                    {
                        return Ok(Replaced::Lost(Some(holder)));
                    }
                }
            }
            if !row::is_still(connection, &expected)? {
                // Another change may have come to the same version: only what is the same was ours.
                let is_ours = |stored: &Record| *stored == change.as_stored(stored);
                return Ok(match by_id(connection, expected.intent.call_id)? {
                    Some(stored) if is_ours(&stored) => Replaced::Done(stored),
                    stored => Replaced::Lost(stored),
                });
            }
            for name in &change.takes.names {
                if let Some(holder) = holder_of(connection, name)?
                    && holder.intent.call_id != change.record.intent.call_id
                    && !is_seen(&holder, &change.takes.instead_of)
                {
                    return Ok(Replaced::Lost(Some(holder)));
                }
            }
            if claims {
                gate.may_begin()?;
            }
            let record = match session::enter(connection, &change)? {
                Ok(record) => record,
                Err(denied) => return Ok(Replaced::Denied(denied)),
            };
            row::update(connection, &record)?;
            if begins {
                row::update_asked(connection, &record)?;
            }
            if let Some(seq) = row::seq_of(connection, record.intent.call_id, &change.takes.names)?
            {
                row::take_names(connection, seq, change.takes.names.iter())?;
            }
            row::insert_entry(connection, &record, &change.entry)?;
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

    async fn holders(&self, names: &[key::Lookup]) -> Result<Vec<Holder>, Error> {
        let names = names.to_vec();
        let find = move |connection: &Connection| holders(connection, &names);
        self.readers.calls.read(find).await
    }

    async fn load(&self, call_id: CallId) -> Result<Option<Record>, Error> {
        let load = move |connection: &Connection| by_id(connection, call_id);
        self.readers.calls.read(load).await
    }

    async fn due(&self, now: Timestamp, limit: u32) -> Result<Found<Due>, Error> {
        let instance = self.instance;
        // Running calls whose lease is over, or whose owner is not this instance.
        let find = move |connection: &Connection| {
            let sql = select!(
                "state = 'running' AND (lease_until <= ?1 OR owner <> ?2) ORDER BY lease_until LIMIT ?3"
            );
            let most = limit.saturating_add(UNREADABLE);
            let due = params![now.as_microsecond(), instance.to_string(), most];
            let (found, _) = readable(connection, sql, due, limit, record)?;
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
                let due = params![tool, now.as_microsecond(), each];
                let (due, _) = readable(connection, DUE_RECHECKS, due, u32::MAX, record)?;
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
                "state = 'unknown' AND check_since IS NULL AND tool IN (SELECT value FROM json_each(?1)) LIMIT ?2"
            );
            let (found, _) = readable(connection, sql, params![tools, limit], limit, record)?;
            Ok(found)
        };
        self.readers.due.read(find).await
    }

    async fn census(&self) -> Result<Vec<Census>, Error> {
        let census = |connection: &Connection| {
            let sql = "SELECT tool, 'running', count(*) FROM calls WHERE state = 'running' GROUP BY tool
         UNION ALL SELECT tool, 'unknown', count(*) FROM calls WHERE state = 'unknown' GROUP BY tool";
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

fn holder_of(connection: &Connection, lookup: &key::Lookup) -> rusqlite::Result<Option<Record>> {
    let sql = select!("seq = (SELECT seq FROM names WHERE lookup = ?1)");
    first(connection, sql, [&lookup.0], record)
}

/// The calls that hold these names, in the order of the names.
fn holders(connection: &Connection, lookups: &[key::Lookup]) -> rusqlite::Result<Vec<Holder>> {
    let mut holders: Vec<Holder> = Vec::new();
    for lookup in lookups {
        let Some(record) = holder_of(connection, lookup)? else {
            continue;
        };
        let call_id = record.intent.call_id;
        match holders
            .iter_mut()
            .find(|holder| holder.record.intent.call_id == call_id)
        {
            Some(holder) => holder.names.push(*lookup),
            None => holders.push(Holder {
                record,
                names: vec![*lookup],
            }),
        }
    }
    Ok(holders)
}

pub(super) fn by_id(connection: &Connection, call_id: CallId) -> rusqlite::Result<Option<Record>> {
    let sql = select!("call_id = ?1");
    first(connection, sql, [call_id.to_string()], record)
}

/// Unknown calls of a tool whose next check is due, by tool, time and limit.
pub(super) const DUE_RECHECKS: &str =
    select!("state = 'unknown' AND tool = ?1 AND check_at <= ?2 ORDER BY check_at LIMIT ?3");

/// Running, failed and unknown calls whose ids come after this one.
pub(super) fn at_risk_after_loss(
    connection: &Connection,
    after: &str,
    limit: u32,
) -> rusqlite::Result<Vec<CallId>> {
    let sql =
        "SELECT call_id FROM calls WHERE state IN ('running', 'failed', 'unknown') AND call_id > ?1
               ORDER BY call_id LIMIT ?2";
    all(connection, sql, params![after, limit], |row| {
        row.get::<_, Identity>(0).map(|id| CallId(id.0))
    })
}
