//! Statements, each prepared once for a connection.

use rusqlite::{Connection, OptionalExtension, Params, Result, Row};

use crate::store::{Found, UNREADABLE};

/// Runs a statement that writes; answers how many rows it has changed.
pub(super) fn execute(connection: &Connection, sql: &str, params: impl Params) -> Result<usize> {
    connection.prepare_cached(sql)?.execute(params)
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

/// At most `limit` rows of a query that begins with an id, and whether there may be more. Rows that cannot be read are
/// passed over.
pub(super) fn readable<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    limit: u32,
    mut read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<(Found<T>, bool)> {
    let mut query = connection.prepare_cached(sql)?;
    let mut rows = query.query(params)?;
    let mut found = Found::default();
    while found.calls.len() < limit as usize && found.unreadable.len() <= UNREADABLE as usize {
        let Some(row) = rows.next()? else {
            return Ok((found, false));
        };
        match read(row) {
            Ok(one) => found.calls.push(one),
            Err(error) => {
                let id = row.get::<_, String>(0).unwrap_or_default();
                found.unreadable.push((id, error.to_string()));
            }
        }
    }
    Ok((found, true))
}
