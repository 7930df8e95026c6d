//! Copies of a database in one file, also while it is served.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use oncegate_hooks::crash;
use rusqlite::{Connection, OpenFlags};

use super::beside;
use super::watermarks::Counters;
use oncegate_store::private;

/// Writes a copy of the database, which only this user may read.
///
/// It has its name only when it is complete and on the disk.
///
/// # Errors
/// A sentence. What was at this path is still there.
pub(crate) fn write(connection: &Connection, to: &Path) -> Result<(), String> {
    let part = write_beside(connection, to)?;
    put_in_place(&part, to)
}

/// Writes a copy beside this path. Answers where it is.
///
/// # Errors
/// A sentence.
pub(crate) fn write_beside(connection: &Connection, to: &Path) -> Result<PathBuf, String> {
    let part = beside(to, ".part");
    match write_part(connection, &part) {
        Ok(()) => Ok(part),
        Err(why) => {
            // Half a copy would take room, and could be taken for a whole one.
            drop(fs::remove_file(&part));
            Err(why)
        }
    }
}

/// Gives a complete copy its name, and replaces what has this name.
///
/// # Errors
/// A sentence. The copy is deleted.
pub(crate) fn put_in_place(part: &Path, to: &Path) -> Result<(), String> {
    crash::point("copy_written");
    let folder = to
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let placed = fs::rename(part, to)
        .and_then(|()| File::open(folder))
        .and_then(|folder| folder.sync_all());
    placed.map_err(|error| {
        drop(fs::remove_file(part));
        format!("{}: {error}", to.display())
    })
}

fn write_part(connection: &Connection, part: &Path) -> Result<(), String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", part.display());
    let name = part
        .to_str()
        .ok_or_else(|| at(&"the name of the copy is not UTF-8"))?;
    // SQLite writes into an empty file, and keeps its mode.
    let file = private::make_anew(part).map_err(|error| at(&error))?;
    let before = Counters::of(connection).map_err(|error| at(&error))?;
    connection
        .execute("VACUUM INTO ?1", [name])
        .map_err(|error| at(&error))?;
    file.sync_all().map_err(|error| at(&error))?;
    drop(file);
    // Commits may have been added meanwhile; none may be missing.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copied = Connection::open_with_flags(part, flags).and_then(|copy| Counters::of(&copy));
    let copied = copied.map_err(|error| at(&error))?;
    if copied.commits < before.commits {
        return Err(at(&"the copy is not complete"));
    }
    Ok(())
}
