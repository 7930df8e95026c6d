//! The lists of the ledger: calls of a tenant with a common property, in order of creation.
//!
//! Must not decide anything.

use std::collections::VecDeque;

use jiff::Timestamp;
use rusqlite::{Connection, Result, params};

use super::query::{all, execute};
use oncegate_store::search::by_tool;

/// Entries of one read: about so many of all lists together, and at least so many of each.
const CHUNKS: (usize, usize) = (64, 4);

/// The beginning of 2026, from which times in lists count.
///
/// Until the middle of 2030 they take two bytes less than times since 1970.
const BEGINNING: i64 = 1_767_225_600_000_000;

/// The columns of a call in a list.
fn entry(list: i64, at: Timestamp, seq: i64) -> [i64; 3] {
    [list, at.as_microsecond() - BEGINNING, seq]
}

/// Adds a call to a list.
pub(super) fn insert(connection: &Connection, list: i64, at: Timestamp, seq: i64) -> Result<()> {
    let sql = "INSERT OR IGNORE INTO lists (list, created_at, seq) VALUES (?1, ?2, ?3)";
    execute(connection, sql, entry(list, at, seq)).map(drop)
}

/// Removes a call from a list.
pub(super) fn remove(connection: &Connection, list: i64, at: Timestamp, seq: i64) -> Result<()> {
    let sql = "DELETE FROM lists WHERE list = ?1 AND created_at = ?2 AND seq = ?3";
    execute(connection, sql, entry(list, at, seq)).map(drop)
}

/// Adds a tool to those that a tenant has called.
pub(super) fn insert_tool(connection: &Connection, tenant: &str, tool: &str) -> Result<()> {
    let sql = "INSERT OR IGNORE INTO tools (tenant, tool) VALUES (?1, ?2)";
    execute(connection, sql, [tenant, tool]).map(drop)
}

/// Removes a tool, if the tenant has no calls of it any more.
pub(super) fn remove_unused_tool(connection: &Connection, tenant: &str, tool: &str) -> Result<()> {
    let sql = "DELETE FROM tools WHERE tenant = ?1 AND tool = ?2
         AND NOT EXISTS (SELECT 1 FROM lists WHERE list = ?3)";
    let tool = params![tenant, tool, by_tool(tenant, tool)];
    execute(connection, sql, tool).map(drop)
}

/// The tools that a tenant has called.
pub(super) fn tools(connection: &Connection, tenant: &str) -> Result<Vec<String>> {
    let sql = "SELECT tool FROM tools WHERE tenant = ?1";
    all(connection, sql, [tenant], |row| row.get(0))
}

/// The creation time and the number of a call.
pub(super) type Place = (i64, i64);

/// Merges the calls of several lists, newest first.
pub(super) struct Walk<'a> {
    connection: &'a Connection,
    /// Calls created before it are left out.
    since: i64,
    heads: Vec<Head>,
}

/// One of the lists, with the entries that were read ahead.
struct Head {
    /// `None`: everything is read.
    list: Option<i64>,
    entries: VecDeque<Place>,
    /// The next read begins before this place.
    before: Place,
}

impl<'a> Walk<'a> {
    /// A walk through no lists yet.
    pub(super) fn new(connection: &'a Connection, since: i64) -> Self {
        Self {
            connection,
            since,
            heads: Vec::new(),
        }
    }

    /// Adds a list, with its calls up to and including this time.
    pub(super) fn add_list(&mut self, list: i64, until: i64) {
        self.heads.push(Head {
            list: Some(list),
            entries: VecDeque::new(),
            before: (until, i64::MAX),
        });
    }

    /// Adds the calls of another query, up to and including this time.
    pub(super) fn add_calls(&mut self, mut calls: Vec<Place>, until: i64) {
        calls.retain(|(created_at, _)| (self.since..=until).contains(created_at));
        calls.sort_unstable();
        self.heads.push(Head {
            list: None,
            entries: calls.into_iter().rev().collect(),
            before: (i64::MIN, 0),
        });
    }

    /// The next older time, and all calls created at it. `None`: no more calls.
    pub(super) fn next(&mut self) -> Result<Option<(i64, Vec<i64>)>> {
        let (all, each) = CHUNKS;
        let chunk = (all / self.heads.len().max(1)).max(each);
        let mut newest = None;
        for head in &mut self.heads {
            let first = head.first(self.connection, self.since, chunk)?;
            newest = newest.max(first.map(|(time, _)| time));
        }
        let Some(newest) = newest else {
            return Ok(None);
        };
        let mut calls = Vec::new();
        for head in &mut self.heads {
            while let Some((time, seq)) = head.first(self.connection, self.since, chunk)?
                && time == newest
            {
                calls.push(seq);
                head.entries.pop_front();
            }
        }
        // A call may be in several of the lists.
        calls.sort_unstable();
        calls.dedup();
        Ok(Some((newest, calls)))
    }
}

impl Head {
    fn first(
        &mut self,
        connection: &Connection,
        since: i64,
        chunk: usize,
    ) -> Result<Option<Place>> {
        if let (true, Some(list)) = (self.entries.is_empty(), self.list) {
            let sql = "SELECT created_at, seq FROM lists
                 WHERE list = ?1 AND created_at >= ?2 AND (created_at, seq) < (?3, ?4)
                 ORDER BY created_at DESC, seq DESC LIMIT ?5";
            let (time, seq) = self.before;
            let most = i64::try_from(chunk).unwrap_or(i64::MAX);
            let (since, time) = (
                since.saturating_sub(BEGINNING),
                time.saturating_sub(BEGINNING),
            );
            let part = params![list, since, time, seq, most];
            let found = all(connection, sql, part, |row| {
                let time = row.get::<_, i64>(0)?.saturating_add(BEGINNING);
                Ok((time, row.get(1)?))
            })?;
            match found.last() {
                Some(last) if found.len() == chunk => self.before = *last,
                _ => self.list = None,
            }
            self.entries = found.into();
        }
        Ok(self.entries.front().copied())
    }
}
