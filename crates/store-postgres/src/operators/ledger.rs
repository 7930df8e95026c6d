//! The ledger: listing calls, their duplicates, forgetting them. Must not decide anything.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::calls::row::{self, bytes_of, record, record_at, select};
use crate::calls::session::time;
use crate::link::lanes::{Lock, Verb};
use crate::link::rows::{get, signed, unreadable};
use crate::link::{Param, params};
use crate::store::Postgres;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::{
    self, Duplicates, Filter, History, Index, LISTED_DUPLICATES, Listed, Maker, PAGE_BYTES, Page,
};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Entry, Intent, Record};
use oncegate_store::codec::{self, Unreadable};
use oncegate_store::search::{self, session_key};
use oncegate_store::shared::pages::{self, LOOKS, page};
use oncegate_store::{Ledger, Result, to_forget};

/// After this time cleanup tries a damaged call again.
const DAY_US: i64 = 24 * 3_600 * 1_000_000;
/// How long a session without a call is kept: tokens never fall behind the clock.
const SESSION_MEMORY_US: i64 = 7 * DAY_US;
/// Most calls that one step of cleanup deletes: more would hold up live traffic.
const AT_ONCE: u32 = 100;
/// Older parts of a history that are read at once.
const PARTS: i64 = 16;

/// A query for the positions of calls: where they are found, and by which values.
macro_rules! positions {
    ($table:literal, $column:literal, $of:literal) => {
        concat!(
            "SELECT p.created_at, p.call_id FROM unnest($1::", $of, "[]) l CROSS JOIN LATERAL (
               SELECT created_at, call_id FROM ", $table, " WHERE ", $column, " = l AND created_at >= $2
                 AND (created_at, call_id) < ($3, $4) ORDER BY created_at DESC, call_id DESC LIMIT $5) p
             ORDER BY 1 DESC, 2 DESC LIMIT $5"
        )
    };
}
const BY_TOOL: &str = positions!("calls", "by_tool", "bigint");
const BY_TRACE: &str = positions!("calls", "by_trace", "bigint");
const BY_USER: &str = positions!("calls", "by_user", "bigint");
const BY_SAGA: &str = positions!("calls", "by_saga", "bigint");
const BY_SESSION: &str = positions!("calls", "session", "uuid");
const BY_STATE: &str = positions!("states", "by_state", "bigint");
const RUNNING: &str = "SELECT created_at, call_id FROM states WHERE state = 0 AND $1::bigint[] IS NOT NULL AND created_at >= $2
    AND (created_at, call_id) < ($3, $4) ORDER BY created_at DESC, call_id DESC LIMIT $5";
const BY_KEY: &str = include_str!("../sql/by_key.sql");
const SIZES: &str = "SELECT coalesce(octet_length(args), 0)::bigint + coalesce(octet_length(result), 0)
    FROM unnest($1::uuid[]) WITH ORDINALITY u (call_id, nth) LEFT JOIN whole USING (call_id) ORDER BY nth";
const LISTED: &str = "SELECT intent, CASE WHEN $2 THEN '' ELSE args END, progress,
    CASE WHEN $2::boolean THEN substr(result, 1, 0) ELSE result END, fencing, similar_to, call_id, count, last
    FROM whole WHERE call_id = ANY ($1)";
const HISTORY: &str =
    "SELECT intent, args, progress, result, fencing, similar_to, call_id, count, last, history
    FROM whole WHERE call_id = $1";
const OLDER: &str =
    "SELECT part, entries FROM older WHERE call_id = $1 AND part < $2 ORDER BY part DESC LIMIT $3";
const MAKER: &str = "SELECT intent FROM whole WHERE call_id = $1";
const TENANTS: &str = "SELECT tenant FROM tools GROUP BY tenant ORDER BY tenant COLLATE \"C\"";
const TOOLS: &str = "SELECT tool FROM tools WHERE tenant = $1";
const OVER: &str = select!(brief "whole WHERE retain_until <= $1 ORDER BY retain_until LIMIT $2");
const FORGET: &str = "forget_1";
const POSTPONE: &str = "postpone_1";
const PRUNE: &str = "prune_1";
const COUNT: &str = "count_duplicates_1";

#[async_trait]
impl Ledger for Postgres {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>> {
        let rows = self.server.ledger.ask(MAKER, &[&call_id.0]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let intent: Option<&[u8]> = get(row, 0)?;
        let intent = intent.ok_or_else(|| unreadable(Unreadable::Missing("intent")))?;
        codec::read_maker(intent).map(Some).map_err(unreadable)
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>> {
        let rows = self.server.ledger.ask(HISTORY, &[&call_id.0]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let record = record_at(row, 0)?;
        let newest =
            codec::read_entries(get(row, 9)?, &record.intent, limit).map_err(unreadable)?;
        let entries = self.older(call_id, &record.intent, newest, limit).await?;
        Ok(Some(History {
            record,
            entries,
            duplicates: duplicates(row)?,
        }))
    }

    async fn tenants(&self) -> Result<Vec<String>> {
        let rows = self.server.ledger.ask(TENANTS, &[]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let listing = Listing {
            store: self,
            tenant,
            filter,
        };
        page(&listing, before, limit as usize).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<()> {
        let last = later.last.iter().take(LISTED_DUPLICATES);
        let last: Vec<Vec<u8>> = last.map(codec::duplicate).collect();
        let listed = i32::try_from(LISTED_DUPLICATES).unwrap_or(i32::MAX);
        let key = bytes_of(call_id);
        let params = params![call_id.0, signed(later.count), last, listed];
        let verb = Verb::about(&key, COUNT, params);
        self.server.lanes.run(verb).await.map(drop)
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64> {
        // The lost data may say that a call is not over.
        if self.server.status.is_in_doubt() {
            return Ok(0);
        }
        let mut calls = 0;
        while calls < u64::from(limit) {
            let most = AT_ONCE.min(limit - u32::try_from(calls).unwrap_or(limit));
            let (found, done) = self.forget(now, most).await?;
            calls += done;
            if found < most as usize || done == 0 {
                break;
            }
        }
        let now = now.as_microsecond();
        let (known, idle) = (self.server.known(), now - SESSION_MEMORY_US);
        let params = params![known, now, idle, i64::from(limit)];
        Ok(calls + self.deleted(Verb::plain(PRUNE, params)).await?)
    }
}

impl Postgres {
    /// The newest entries of a call, at most `limit`, oldest first. Reads no more of `older` than it needs.
    async fn older(
        &self,
        call_id: CallId,
        intent: &Intent,
        newest: Vec<Entry>,
        limit: u32,
    ) -> Result<Vec<Entry>> {
        let count = |entries: &Vec<Entry>| u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let mut left = limit.saturating_sub(count(&newest));
        let (mut parts, mut before) = (vec![newest], i32::MAX);
        while left > 0 {
            let listed: [&(dyn ToSql + Sync); 3] = [&call_id.0, &before, &PARTS];
            let rows = self.server.ledger.ask(OLDER, &listed).await?;
            for row in &rows {
                before = get(row, 0)?;
                let part = codec::read_entries(get(row, 1)?, intent, left).map_err(unreadable)?;
                left = left.saturating_sub(count(&part));
                parts.push(part);
            }
            if rows.len() < PARTS.unsigned_abs() as usize {
                break;
            }
        }
        Ok(parts.into_iter().rev().flatten().collect())
    }

    /// Deletes calls past their retention, or postpones damaged ones. Answers how many were found, and how many are done.
    async fn forget(&self, now: Timestamp, limit: u32) -> Result<(usize, u64)> {
        let now_us = now.as_microsecond();
        let listed: [&(dyn ToSql + Sync); 2] = [&now_us, &i64::from(limit)];
        let over = self.server.ledger.ask(OVER, &listed).await?;
        let (mut forgotten, mut damaged): (Vec<Record>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for row in &over {
            match to_forget(record(row), &row::id(row), now) {
                Some(record) => forgotten.push(record),
                None => damaged.push(get(row, 6)?),
            }
        }
        let mut done = 0;
        if !damaged.is_empty() {
            let params = params![damaged, now_us, now_us.saturating_add(DAY_US)];
            let postpone = Verb::plain(POSTPONE, params);
            let answer = self.server.lanes.run(postpone).await?;
            done += get::<i64>(&answer, 0)?.unsigned_abs();
        }
        if !forgotten.is_empty() {
            done += self.forget_these(&forgotten).await?;
        }
        Ok((over.len(), done))
    }

    async fn forget_these(&self, records: &[Record]) -> Result<u64> {
        let of = |record: &Record| (record.intent.call_id, signed(record.version));
        let (calls, versions): (Vec<CallId>, Vec<i64>) = records.iter().map(of).unzip();
        let mut locks: Vec<Lock> = calls.iter().map(|id| Lock::alone(&bytes_of(*id))).collect();
        let (mut names, mut holders): (Vec<Uuid>, Vec<Uuid>) = (Vec::new(), Vec::new());
        for record in records {
            let intent = &record.intent;
            let session = session_key(&intent.tenant, &intent.session_id);
            locks.push(Lock::alone(&session));
            for name in record.all_lookups() {
                names.push(Uuid::from_bytes(name.0));
                holders.push(intent.call_id.0);
                locks.push(Lock::alone(&name.0));
            }
        }
        let ids: Vec<Uuid> = calls.iter().map(|id| id.0).collect();
        let recent = self.server.now().as_microsecond() - SESSION_MEMORY_US;
        let known = self.server.known();
        let params = params![known, ids, versions, names, holders, recent];
        // Before they are gone, because nothing is lost then.
        self.server.memory.forgot(&calls);
        self.deleted(Verb::new(FORGET, params, locks)).await
    }

    /// Runs a verb of cleanup. Answers how much it deleted.
    async fn deleted(&self, verb: Verb) -> Result<u64> {
        let answer = self.server.run_guarded(verb).await?;
        Ok(get::<i64>(&answer, 1)?.unsigned_abs())
    }
}

/// A search for calls of a tenant.
struct Listing<'a> {
    store: &'a Postgres,
    tenant: &'a str,
    filter: &'a Filter,
}

#[async_trait]
impl pages::Listing for Listing<'_> {
    const PORTION: (usize, usize) = (LOOKS, PAGE_BYTES / 2);

    fn filter(&self) -> &Filter {
        self.filter
    }

    async fn positions(&self, before: Option<Position>, limit: usize) -> Result<Page<Position>> {
        let rows = self.rows(before, limit).await?;
        let found = rows.iter().map(position).collect::<Result<_>>()?;
        Ok(Page::first(found, limit))
    }

    async fn sizes(&self, positions: &[Position]) -> Result<Vec<usize>> {
        let ledger = &self.store.server.ledger;
        let rows = ledger.ask(SIZES, &[&ids(positions)]).await?;
        let size = |row: &Row| Ok(get::<i64>(row, 0)?.unsigned_abs() as usize);
        rows.iter().map(size).collect()
    }

    async fn read(&self, positions: &[Position]) -> Result<(Vec<(Position, Option<Listed>)>, u64)> {
        let is_brief = self.filter.is_brief;
        let (mut calls, mut unreadable) = (HashMap::new(), 0);
        let ledger = &self.store.server.ledger;
        for row in ledger.ask(LISTED, &[&ids(positions), &is_brief]).await? {
            let id: Uuid = get(&row, 6)?;
            match record(&row) {
                Ok(record) if record.intent.tenant == self.tenant => {
                    let record = if is_brief {
                        record.without_texts()
                    } else {
                        record
                    };
                    let duplicates = duplicates(&row)?;
                    calls.insert(id, Listed { record, duplicates });
                }
                // Two lists may share a number.
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(call_id = %id, %error, "a call in the ledger cannot be read");
                    unreadable += 1;
                }
            }
        }
        let found = positions
            .iter()
            .map(|position| (*position, calls.remove(&position.id)));
        Ok((found.collect(), unreadable))
    }
}

impl Listing<'_> {
    /// The times and ids of the next calls in the filter's index, newest first.
    async fn rows(&self, before: Option<Position>, limit: usize) -> Result<Vec<Row>> {
        let since = self.filter.since;
        let since = since.map_or(i64::MIN, Timestamp::as_microsecond);
        let until = before.map_or(i64::MAX, |before| before.created_at.as_microsecond());
        let id = before.map_or(Uuid::nil(), |before| before.id);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let list = |index| -> Param { Box::new(Vec::from_iter(search::list(self.tenant, index))) };
        let mut names = None;
        let (sql, lists): (_, Param) = match self.filter.index() {
            Index::All => {
                let tools = self.tools().await?;
                let lists = tools.iter().map(|tool| search::by_tool(self.tenant, tool));
                (BY_TOOL, Box::new(lists.collect::<Vec<_>>()))
            }
            Index::Key(key) => {
                let tools = self.tools().await?;
                let of = tools.iter().map(|tool| Lookup::new(self.tenant, tool, key));
                names = Some(row::ids(&of.collect::<Vec<_>>()));
                (BY_KEY, Box::new(vec![search::by_key(self.tenant, key)]))
            }
            Index::Session(session) => {
                let session = Uuid::from_bytes(session_key(self.tenant, session));
                (BY_SESSION, Box::new(vec![session]))
            }
            index @ Index::State(state) if ledger::is_listed(state) => (BY_STATE, list(index)),
            index @ Index::State(_) => (RUNNING, list(index)),
            index @ Index::Tool(_) => (BY_TOOL, list(index)),
            index @ Index::Trace(_) => (BY_TRACE, list(index)),
            index @ (Index::User(_) | Index::UserDigest(_)) => (BY_USER, list(index)),
            index @ Index::Saga(_) => (BY_SAGA, list(index)),
        };
        let mut listed: Vec<&(dyn ToSql + Sync)> = vec![&*lists, &since, &until, &id, &limit];
        listed.extend(names.iter().map(|names| names as &(dyn ToSql + Sync)));
        self.store.server.ledger.ask(sql, &listed).await
    }

    /// The tools that the tenant has called.
    async fn tools(&self) -> Result<Vec<String>> {
        let rows = self.store.server.ledger.ask(TOOLS, &[&self.tenant]).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }
}

fn ids(positions: &[Position]) -> Vec<Uuid> {
    positions.iter().map(|position| position.id).collect()
}

fn position(row: &Row) -> Result<Position> {
    Ok(Position {
        created_at: time(get(row, 0)?)?,
        id: get(row, 1)?,
    })
}

/// The duplicates of a call, from their columns. Unreadable ones are left out, and counted all the same.
fn duplicates(row: &Row) -> Result<Duplicates> {
    let count: Option<i64> = get(row, 7)?;
    let last: Option<Vec<&[u8]>> = get(row, 8)?;
    let last = last.unwrap_or_default();
    Ok(Duplicates {
        count: count.unwrap_or(0).unsigned_abs(),
        last: last.into_iter().flat_map(codec::read_duplicate).collect(),
    })
}
