//! Copies the calls of a file, so that it becomes large in minutes.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use oncegate::core::key::Lookup;
use oncegate::core::record::CallId;
use oncegate::store::codec;
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::calls::Fallible;

/// Makes a file about so many times as large, by copies of its finished calls under other keys and in other lists.
///
/// No store may have the file open. Each copy is found by its own id and key, as the check of a file demands.
pub(super) fn multiply(file: &Path, times: usize) -> Fallible<()> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch(
        "PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000; PRAGMA wal_autocheckpoint = 200000;",
    )?;
    let last: i64 = connection.query_row("SELECT max(seq) FROM calls", [], |row| row.get(0))?;
    for copy in 1..i64::try_from(times)? {
        let transaction = connection.unchecked_transaction()?;
        let shift = copy * last;
        transaction.execute(
            "INSERT INTO calls SELECT seq + ?1, state, due_at, tool, owner, retain_until + 315360000, fencing, similar_to,
                progress, history, result FROM calls WHERE seq <= ?2 AND state IN (1, 2)",
            params![shift, last],
        )?;
        let mut select = transaction.prepare(
            "SELECT i.seq, i.intent, i.args FROM intents i JOIN calls c ON c.seq = i.seq
             WHERE i.seq <= ?1 AND c.state IN (1, 2)",
        )?;
        let mut intents = transaction.prepare("INSERT INTO intents VALUES (?1, ?2, ?3)")?;
        let mut ids = transaction.prepare("INSERT INTO ids VALUES (?1, ?2)")?;
        let mut names = transaction.prepare("INSERT INTO names VALUES (?1, ?2)")?;
        let mut rows = select.query([last])?;
        while let Some(row) = rows.next()? {
            let seq: i64 = row.get::<_, i64>(0)? + shift;
            let args = row.get_ref(2)?.as_blob()?;
            let mut intent = codec::read_intent(row.get_ref(1)?.as_blob()?, Bytes::new())?;
            // An id begins with a time, so copies stay ordered by time. Names have no order.
            let id = intent
                .call_id
                .0
                .as_u128()
                .wrapping_add((copy as u128) << 110);
            intent.call_id = CallId(Uuid::from_u128(id));
            intent.key = format!("{}-{copy}", intent.key);
            intent.lookup = Lookup::new(&intent.tenant, &intent.tool, &intent.key);
            intents.execute(params![seq, codec::intent(&intent), args])?;
            ids.execute(params![intent.call_id.0, seq])?;
            names.execute(params![intent.lookup.0, seq])?;
        }
        drop(rows);
        drop((select, intents, ids, names));
        let mut select =
            transaction.prepare("SELECT list, created_at, seq FROM lists WHERE seq <= ?1")?;
        let mut insert = transaction.prepare("INSERT OR IGNORE INTO lists VALUES (?1, ?2, ?3)")?;
        let mut rows = select.query([last])?;
        while let Some(row) = rows.next()? {
            let (list, at, seq): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            insert.execute(params![list ^ spread(copy), at, seq + shift])?;
        }
        drop(rows);
        drop((select, insert));
        transaction.commit()?;
    }
    Ok(())
}

/// A number that differs for each copy.
fn spread(copy: i64) -> i64 {
    copy.wrapping_mul(0x1e37_79b9_7f4a_7c15)
}
