//! The ledger: listing calls, their duplicates, forgetting them. Must not decide anything.

use std::cmp::Reverse;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::lists::{self, Place, Walk};
use super::query::{all, blob, corrupt, execute, first};
use super::worker::Need;
use super::{Sqlite, calls, document, feed, operators};
use crate::calls::history;
use crate::calls::row::{self, select};
use crate::files::space;
use oncegate_rules::key::Lookup;
use oncegate_rules::ledger::{
    Duplicates, Filter, History, Index, Listed, Maker, PAGE_BYTES, Page, Placed as _,
};
use oncegate_rules::position::Position;
use oncegate_rules::record::{CallId, Intent, Record};
use oncegate_store::codec::{self, Unreadable};
use oncegate_store::search;
use oncegate_store::{Error, Ledger, Result, to_forget};

/// Most calls that one page looks at. A page with few matches ends early.
const LOOKS: usize = 2_000;
/// Seconds after which cleanup tries a damaged call again.
const DAY_S: i64 = 24 * 3_600;

#[async_trait]
impl Ledger for Sqlite {
    async fn maker(&self, call_id: CallId) -> Result<Option<Maker>> {
        let read = move |connection: &Connection| {
            let sql = "SELECT i.intent FROM ids LEFT JOIN intents i ON i.seq = ids.seq WHERE ids.call_id = ?1";
            first(connection, sql, [call_id.0], |row| {
                codec::read_maker(blob(row, 0, "intent")?).map_err(corrupt)
            })
        };
        self.readers.ledger.read(read).await
    }

    async fn history(&self, call_id: CallId, limit: u32) -> Result<Option<History>> {
        let read = move |connection: &Connection| match history_of(connection, call_id, limit) {
            Err(rusqlite::Error::FromSqlConversionFailure(_, _, why)) => {
                Ok(Err(Error::Unreadable(format!("call {call_id}: {why}"))))
            }
            found => found.map(Ok),
        };
        self.readers.ledger.read(read).await?
    }

    async fn tenants(&self) -> Result<Vec<String>> {
        let tenants = |connection: &Connection| {
            let sql = "SELECT DISTINCT tenant FROM tools";
            all(connection, sql, [], |row| row.get(0))
        };
        self.readers.ledger.read(tenants).await
    }

    async fn list(
        &self,
        tenant: &str,
        filter: &Filter,
        before: Option<Position>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let (tenant, filter) = (tenant.to_owned(), filter.clone());
        let list = move |connection: &Connection| list(connection, &tenant, &filter, before, limit);
        self.readers.ledger.read(list).await
    }

    async fn count_duplicates(&self, call_id: CallId, later: &Duplicates) -> Result<()> {
        let later = later.clone();
        let count = move |connection: &Connection| count(connection, call_id, &later);
        self.writer.run(Need::Plain, count).await
    }

    async fn prune(&self, now: Timestamp, limit: u32) -> Result<u64> {
        // What is lost, damaged or not checked yet may say that a call is not over.
        if self.gate.is_closed() || self.gate.check.must_wait().is_some() {
            return Ok(0);
        }
        let prune = move |connection: &Connection| {
            let calls = prune(connection, now, limit)?;
            let now = now.as_microsecond();
            let documents = document::prune(connection, now, limit)?;
            let others = operators::prune(connection, now, limit)?;
            let events = feed::prune(connection, now, limit)?;
            space::shrink(connection)?;
            Ok((calls + others + documents + events) as u64)
        };
        self.writer.run(Need::Plain, prune).await
    }
}

/// The calls of a tenant that pass the filter.
fn list(
    connection: &Connection,
    tenant: &str,
    filter: &Filter,
    before: Option<Position>,
    limit: u32,
) -> rusqlite::Result<Page<Listed>> {
    // No id of that time comes before the nil id.
    let until = filter.until.map(|created_at| Position {
        created_at,
        id: Uuid::nil(),
    });
    let before = until.into_iter().chain(before).min();
    let mut page = Page {
        found: Vec::new(),
        next: None,
        unreadable: 0,
    };
    let mut walk = walk(connection, tenant, filter, before, &mut page.unreadable)?;
    let (mut looked, mut bytes) = (0, 0);
    let most = filter.looks.map_or(LOOKS, |most| most.min(LOOKS));
    loop {
        let Some((time, numbers)) = walk.next()? else {
            return Ok(page);
        };
        let mut together = Vec::new();
        for seq in numbers {
            let listed = read_listed(connection, seq, filter.is_brief);
            match or_skip(listed, &mut page.unreadable) {
                Some(listed) => together.push(listed),
                None => looked += 1,
            }
        }
        together.retain(|listed| before.is_none_or(|before| listed.position() < before));
        together.sort_by_key(|listed| Reverse(listed.position()));
        for listed in together {
            let position = listed.position();
            looked += 1;
            bytes += listed.size();
            if listed.record.intent.tenant == tenant && filter.lists(&listed) {
                page.found.push(listed);
            }
            if looked >= most || page.found.len() >= limit as usize || bytes >= PAGE_BYTES {
                page.next = Some(position);
                return Ok(page);
            }
        }
        // All calls of this time were looked at, so the next page begins before it.
        if looked >= most
            && let Ok(created_at) = Timestamp::from_microsecond(time.saturating_sub(1))
        {
            let id = Uuid::max();
            page.next = Some(Position { created_at, id });
            return Ok(page);
        }
    }
}

/// The result of a read. An unreadable call is logged, counted and skipped.
fn or_skip<T>(read: rusqlite::Result<T>, unreadable: &mut u64) -> Option<T> {
    read.inspect_err(|error| {
        tracing::error!(%error, "a call in the ledger cannot be read");
        *unreadable += 1;
    })
    .ok()
}

/// The calls of the filter's index, newest first; some may not pass the filter.
fn walk<'a>(
    connection: &'a Connection,
    tenant: &str,
    filter: &Filter,
    before: Option<Position>,
    unreadable: &mut u64,
) -> rusqlite::Result<Walk<'a>> {
    let since = filter.since.map_or(i64::MIN, Timestamp::as_microsecond);
    let until = before.map_or(i64::MAX, |before| before.created_at.as_microsecond());
    let mut walk = Walk::new(connection, since);
    let tools = || match &filter.tool {
        Some(tool) => Ok(vec![tool.clone()]),
        None => lists::tools(connection, tenant),
    };
    match filter.index() {
        Index::All => {
            for tool in tools()? {
                walk.add_list(search::by_tool(tenant, &tool), until);
            }
        }
        Index::Key(key) => {
            walk.add_list(search::by_key(tenant, key), until);
            let mut found = Vec::new();
            for tool in tools()? {
                let named = named(connection, &Lookup::new(tenant, &tool, key));
                found.extend(or_skip(named, unreadable).flatten());
            }
            walk.add_calls(found, until);
        }
        index => match search::list(tenant, index) {
            Some(list) => walk.add_list(list, until),
            None => walk.add_calls(running(connection, tenant, unreadable)?, until),
        },
    }
    Ok(walk)
}

/// The call that holds a name, if the name is made of its key.
fn named(connection: &Connection, name: &Lookup) -> rusqlite::Result<Option<Place>> {
    let sql = "SELECT i.intent, n.seq FROM names n LEFT JOIN intents i ON i.seq = n.seq WHERE n.lookup = ?1";
    let found = first(connection, sql, [name.0], |row| {
        let intent = intent(row)?;
        let place = (intent.created_at.as_microsecond(), row.get(1)?);
        Ok((intent.lookup == *name).then_some(place))
    })?;
    Ok(found.flatten())
}

/// The intent in the first column, without its arguments.
fn intent(row: &Row<'_>) -> rusqlite::Result<Intent> {
    codec::read_intent(blob(row, 0, "intent")?, Bytes::new()).map_err(corrupt)
}

/// The running calls of a tenant.
///
/// Reads all running calls: there are no more than gateways run at once. The tenant of an unreadable one is not known, so
/// every tenant counts it.
fn running(
    connection: &Connection,
    tenant: &str,
    unreadable: &mut u64,
) -> rusqlite::Result<Vec<Place>> {
    let sql = "SELECT i.intent, c.seq FROM calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.state = 0";
    let found = all(connection, sql, [], |row| Ok((intent(row), row.get(1)?)))?;
    let found = found.into_iter().filter_map(|(intent, seq)| {
        let intent = or_skip(intent, unreadable)?;
        let place = (intent.created_at.as_microsecond(), seq);
        (intent.tenant == tenant).then_some(place)
    });
    Ok(found.collect())
}

/// A call of this number as the ledger shows it. A missing one is an error: a list led to it.
fn read_listed(connection: &Connection, seq: i64, is_brief: bool) -> rusqlite::Result<Listed> {
    let sql = if is_brief {
        select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.seq = ?1")
    } else {
        select!("calls c LEFT JOIN intents i ON i.seq = c.seq WHERE c.seq = ?1")
    };
    let record = first(connection, sql, [seq], row::record)?;
    let mut record = record.ok_or_else(|| corrupt(Unreadable::Missing("progress")))?;
    if is_brief {
        record = record.without_texts();
    }
    Ok(Listed {
        duplicates: duplicates(connection, seq, record.intent.call_id)?,
        record,
    })
}

fn history_of(
    connection: &Connection,
    call_id: CallId,
    limit: u32,
) -> rusqlite::Result<Option<History>> {
    let Some((seq, record)) = calls::by_id(connection, call_id)? else {
        return Ok(None);
    };
    let duplicates = duplicates(connection, seq, call_id)?;
    let entries = history::newest(connection, seq, &record.intent, limit)?;
    Ok(Some(History {
        record,
        entries,
        duplicates,
    }))
}

/// The duplicates of a call. Unreadable ones are logged and count as none, so that they hide no call.
fn duplicates(connection: &Connection, seq: i64, call_id: CallId) -> rusqlite::Result<Duplicates> {
    let sql = "SELECT duplicates FROM duplicates WHERE seq = ?1";
    let found = first(connection, sql, [seq], |row| {
        Ok(codec::read_duplicates(row.get_ref(0)?.as_blob()?))
    })?;
    let read = found.transpose().unwrap_or_else(|error| {
        tracing::error!(%call_id, %error, "the duplicates of a call cannot be read, and count as none");
        None
    });
    Ok(read.unwrap_or_default())
}

/// Adds to the duplicates of a call, if it is still kept.
pub(super) fn count(
    connection: &Connection,
    call_id: CallId,
    later: &Duplicates,
) -> rusqlite::Result<()> {
    let sql = "SELECT seq FROM ids WHERE call_id = ?1";
    let Some(seq) = first(connection, sql, [call_id.0], |row| row.get(0))? else {
        return Ok(());
    };
    let mut all = duplicates(connection, seq, call_id)?;
    all.add(later);
    let sql = "INSERT OR REPLACE INTO duplicates (seq, duplicates) VALUES (?1, ?2)";
    execute(connection, sql, params![seq, codec::duplicates(&all)]).map(drop)
}

/// Deletes calls past their retention, with names and list entries; answers how many it deleted or postponed.
fn prune(connection: &Connection, now: Timestamp, limit: u32) -> rusqlite::Result<usize> {
    let now_s = now.as_second();
    let sql = select!(brief "calls c LEFT JOIN intents i ON i.seq = c.seq
         WHERE c.retain_until <= ?1 ORDER BY c.retain_until LIMIT ?2");
    let over = all(connection, sql, params![now_s, limit], |row| {
        Ok((row::seq(row)?, row::id(row), row::record(row)))
    })?;
    let mut done = 0;
    let mut tools = Vec::new();
    for (seq, id, record) in over {
        if let Some(record) = to_forget(record, &id, now) {
            forget(connection, seq, &record)?;
            done += 1;
            let tool = (record.intent.tenant.clone(), record.intent.tool.clone());
            if !tools.contains(&tool) {
                tools.push(tool);
            }
            continue;
        }
        // It stays for another day, so that it does not keep cleanup from other calls.
        let sql = "UPDATE calls SET retain_until = ?2 WHERE seq = ?1 AND retain_until <= ?3";
        let later = now_s.saturating_add(DAY_S);
        done += execute(connection, sql, params![seq, later, now_s])?;
    }
    for (tenant, tool) in tools {
        lists::remove_unused_tool(connection, &tenant, &tool)?;
    }
    Ok(done)
}

/// Deletes a call.
fn forget(connection: &Connection, seq: i64, record: &Record) -> rusqlite::Result<()> {
    let intent = &record.intent;
    let mut is_found_by_key = false;
    for name in record.all_lookups() {
        let sql = "DELETE FROM names WHERE lookup = ?1 AND seq = ?2";
        let was_its_own = execute(connection, sql, params![name.0, seq])? > 0;
        is_found_by_key |= was_its_own && *name == intent.lookup;
    }
    is_found_by_key &= intent.lookup == Lookup::new(&intent.tenant, &intent.tool, &intent.key);
    if !is_found_by_key {
        let list = search::by_key(&intent.tenant, &intent.key);
        lists::remove(connection, list, intent.created_at, seq)?;
    }
    let by_state = search::list(&intent.tenant, Index::State(record.state.as_str()));
    for list in search::of(record).into_iter().chain(by_state) {
        lists::remove(connection, list, intent.created_at, seq)?;
    }
    let sql = "DELETE FROM ids WHERE call_id = ?1";
    execute(connection, sql, [intent.call_id.0])?;
    for sql in [
        "DELETE FROM older WHERE seq = ?1",
        "DELETE FROM duplicates WHERE seq = ?1",
        "DELETE FROM intents WHERE seq = ?1",
        "DELETE FROM calls WHERE seq = ?1",
    ] {
        execute(connection, sql, [seq])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::{Damaged, arrival, at};
    use oncegate_rules::call::Change;
    use oncegate_rules::outcome::Evidence;
    use oncegate_store::{Calls as _, Claimed};

    /// Makes a call that has failed, and whose retention ends at second 2.
    async fn over(damaged: &Damaged, change: &Change, replaced: &[Record]) -> Record {
        let running = match damaged.store.claim(change, replaced).await {
            Ok(Claimed::Yours(record)) => record,
            other => panic!("not claimed: {other:?}"),
        };
        let why = "it is not there".into();
        damaged
            .end(&running, Evidence::NotSent { why }, Some(2))
            .await
    }

    #[tokio::test]
    async fn cleanup_leaves_nothing_of_calls_that_their_keys_do_not_find() {
        let damaged = Damaged::new();
        // The name of this call has another form.
        let mut other = arrival("name");
        Arc::make_mut(&mut other.record.intent).key = "key".into();
        over(&damaged, &other, &[]).await;
        // A later call takes the key of this one, but not its further name.
        let mut first = arrival("taken");
        let further = Lookup::new("shop", "t", "further");
        Arc::make_mut(&mut first.record.intent).lookups = vec![further];
        let first = over(&damaged, &first, &[]).await;
        over(&damaged, &arrival("taken"), &[first]).await;

        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            let count = damaged.file.query_row(&sql, [], |row| row.get::<_, i64>(0));
            count.expect("a count")
        };
        for key in ["key", "taken"] {
            let list = search::by_key("shop", key);
            assert_eq!(count(&format!("lists WHERE list = {list}")), 1, "{key}");
        }
        assert_eq!(damaged.store.prune(at(2), 9).await.expect("pruned"), 3);
        for table in ["calls", "intents", "ids", "names", "lists", "tools"] {
            assert_eq!(count(table), 0, "{table}");
        }
    }
}
