//! Copies the calls of a file, so that it becomes large in minutes.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::calls::Fallible;

/// Makes a file about so many times as large, by copies of its finished calls under other names and in other lists.
///
/// No store may have the file open. Only the size of the copies matters: their encoded values still name the originals.
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
        for sql in [
            "INSERT INTO calls SELECT seq + ?1, state, due_at, tool, owner, retain_until + 315360000, fencing, similar_to,
                progress, history, result FROM calls WHERE seq <= ?2 AND state IN (1, 2)",
            "INSERT INTO intents SELECT seq + ?1, intent, args FROM intents
                WHERE seq <= ?2 AND seq + ?1 IN (SELECT seq FROM calls)",
        ] {
            transaction.execute(sql, params![shift, last])?;
        }
        // An id begins with a time, so copies stay ordered by time. Names have no order.
        for (sql, into, begins) in [
            (
                "SELECT call_id, seq FROM ids WHERE seq <= ?1",
                "INSERT INTO ids VALUES (?1, ?2)",
                true,
            ),
            (
                "SELECT lookup, seq FROM names WHERE seq <= ?1",
                "INSERT INTO names VALUES (?1, ?2)",
                false,
            ),
        ] {
            let (mut select, mut insert) = (transaction.prepare(sql)?, transaction.prepare(into)?);
            let mut rows = select.query([last])?;
            while let Some(row) = rows.next()? {
                let (id, seq): ([u8; 16], i64) = (row.get(0)?, row.get(1)?);
                let id = u128::from_be_bytes(id);
                let id = if begins {
                    id.wrapping_add((copy as u128) << 110)
                } else {
                    id ^ spread(copy) as u128 ^ (spread(-copy) as u128) << 64
                };
                insert.execute(params![id.to_be_bytes(), seq + shift])?;
            }
        }
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
