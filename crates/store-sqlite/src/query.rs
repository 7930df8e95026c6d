//! Statements, each prepared once per connection, and values of the codec in their rows.

use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use oncegate_store::codec::Unreadable;
use oncegate_store::{Found, UNREADABLE};

/// Runs a statement that writes. Answers how many rows it changed.
pub(super) fn execute(connection: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    connection.prepare_cached(sql)?.execute(params)
}

/// The value of one PRAGMA.
pub(super) fn pragma<T: FromSql>(connection: &Connection, name: &str) -> Result<Option<T>> {
    let sql = format!("PRAGMA {name}");
    connection.query_row(&sql, [], |row| row.get(0)).optional()
}

/// The first row of a query, if it has one.
pub(super) fn first<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    connection
        .prepare_cached(sql)?
        .query_row(params, read)
        .optional()
}

/// All rows of a query.
pub(super) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    connection
        .prepare_cached(sql)?
        .query_map(params, read)?
        .collect()
}

/// The first rows of a query, at most `limit`. Skips unreadable rows, and notes the id of each.
pub(super) fn readable<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    limit: u32,
    id: impl Fn(&Row<'_>) -> String,
    mut read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Found<T>> {
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query(params)?;
    let mut found = Found::default();
    while !is_full(&found, limit)
        && let Some(row) = rows.next()?
    {
        match read(row) {
            Ok(one) => found.calls.push(one),
            Err(error) => found.unreadable.push((id(row), error.to_string())),
        }
    }
    Ok(found)
}

/// Whether a search has found enough, or too many unreadable rows. There may be more then.
pub(super) fn is_full<T>(found: &Found<T>, limit: u32) -> bool {
    found.calls.len() >= limit as usize || found.unreadable.len() > UNREADABLE as usize
}

/// A value of the codec.
///
/// It is NULL in an outer join with a missing row. Then the call is unreadable, and never absent.
pub(super) fn blob<'a>(row: &'a Row<'_>, column: usize, what: &'static str) -> Result<&'a [u8]> {
    let bytes = row.get_ref(column)?.as_blob_or_null()?;
    bytes.ok_or_else(|| corrupt(Unreadable::Missing(what)))
}

/// The error for an unreadable value of the codec.
pub(super) fn corrupt(why: Unreadable) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, Box::new(why))
}

/// A number as a signed SQLite integer. No number here comes near the limit.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
