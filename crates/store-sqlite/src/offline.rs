//! What operators do to a file while no gateway serves from it: an upgrade, and a shorter file.

use std::path::Path;

use rusqlite::Connection;

use super::error::{At as _, LAYOUT, OpenError};
use super::files::together::{self, Together};
use super::files::{Files, copy};
use super::open::{
    Access, Opening, SHRINKS, check, connect, identify, layout, refuse_foreign, resolve,
};
use super::query::pragma;
use super::upgrade::{self, Upgraded};

/// Upgrades a file; `None`: it has today's layout, or none yet.
///
/// # Errors
/// The file cannot be trusted, or not be upgraded. It is as it was.
pub fn upgrade_file(path: &Path, opening: &Opening) -> Result<Option<Upgraded>, OpenError> {
    let path = &resolve(path).at(path)?;
    let (mut connection, _files, layout) = open_whole(path)?;
    match layout {
        None | Some(LAYOUT) => Ok(None),
        Some(older) => upgrade::upgrade(&mut connection, path, older, &opening.backup).map(Some),
    }
}

/// Writes the file again without its free pages, and puts it in the place of the old one. From then on the gateway gives
/// free pages back by itself. Answers the bytes before and after.
///
/// # Errors
/// The file cannot be trusted, or there is no room beside it for another one. It is as it was.
pub fn compact(path: &Path) -> Result<(u64, u64), OpenError> {
    let path = &resolve(path).at(path)?;
    let (connection, _files, _) = open_whole(path)?;
    let not_copied = |why| OpenError::NotCopied(path.to_owned(), why);
    // The new file has everything; so has the old one by itself, until it is replaced.
    let busy: i64 = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        .at(path)?;
    if busy != 0 {
        let why = "another process reads the file; try again when it has ended".to_owned();
        return Err(not_copied(why));
    }
    if pragma(&connection, "auto_vacuum").at(path)? == Some(0) {
        // It holds for the new file; the old one refuses it.
        connection.execute_batch(SHRINKS).at(path)?;
    }
    let bytes = || std::fs::metadata(path).map(|file| file.len()).at(path);
    let before = bytes()?;
    let part = copy::write_beside(&connection, path).map_err(not_copied)?;
    // Its log is empty, and the next start makes another one.
    drop(connection);
    copy::put_in_place(&part, path).map_err(not_copied)?;
    Ok((before, bytes()?))
}

/// Opens a file alone, after every check but that of lost commits. Nothing is written to it.
fn open_whole(path: &Path) -> Result<(Connection, Files, Option<i64>), OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.to_owned()));
    }
    let files = Files::lock(path)?;
    refuse_foreign(path)?;
    let alone = together::read_alone(path);
    let connection = connect(path, Access::Write)?;
    identify(&connection, path)?;
    let layout = layout(&connection, path)?;
    if layout.is_some() {
        let together = Together::of(&connection).at(path)?;
        if let Some(why) = together::compare(alone, together) {
            return Err(OpenError::Apart(path.to_owned(), why));
        }
        check(&connection, path)?;
    }
    Ok((connection, files, layout))
}
