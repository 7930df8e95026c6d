//! Whether a database file and the write-ahead log beside it belong together.
//!
//! A log has the commits since it was begun; the file has all commits before that. Each commit writes down how many commits
//! were in the file when the log could last begin anew. A file that has fewer commits by itself, or more than file and log
//! together, does not belong to the log: read together they would give pages of different times.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};
use uuid::Uuid;

/// The bytes of a path that a URI must escape.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'.')
    .remove(b'_')
    .remove(b'-');

/// The state of a file without its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    /// No tables: all commits may be in the log.
    Nothing,
    /// This many commits of this epoch.
    Commits { epoch: Uuid, commits: u64 },
    /// A crash may have interrupted the move of pages into the file.
    Unreadable,
}

/// The state of file and log together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Together {
    pub(crate) epoch: Uuid,
    /// The epoch before the last accepted loss. The file may still have this one.
    pub(crate) former: Uuid,
    pub(crate) commits: u64,
    /// The least number of commits in the file.
    pub(crate) in_file: u64,
}

impl Together {
    pub(crate) fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT epoch, former, commits, in_file FROM ledger";
        connection.query_row(sql, [], |row| {
            Ok(Self {
                epoch: row.get(0)?,
                former: row.get(1)?,
                commits: row.get::<_, i64>(2)?.unsigned_abs(),
                in_file: row.get::<_, i64>(3)?.unsigned_abs(),
            })
        })
    }
}

/// Reads the file without its log. Must be done before anything else has it open.
pub(crate) fn read_alone(path: &Path) -> Alone {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Alone::Nothing;
    }
    read_file(path).unwrap_or(Alone::Unreadable)
}

/// Reads something from the file without its log.
///
/// # Errors
/// Those of reading.
pub(crate) fn reads_alone<T>(
    path: &Path,
    read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    // `immutable`: SQLite reads without locks and without the log.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(format!("file:{}?immutable=1", escaped(path)), flags)?;
    read(&connection)
}

fn read_file(path: &Path) -> rusqlite::Result<Alone> {
    reads_alone(path, state_of)
}

fn state_of(connection: &Connection) -> rusqlite::Result<Alone> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'ledger'";
    let tables: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(Alone::Nothing);
    }
    connection.query_row("SELECT epoch, commits FROM ledger", [], |row| {
        Ok(Alone::Commits {
            epoch: row.get(0)?,
            commits: row.get::<_, i64>(1)?.unsigned_abs(),
        })
    })
}

/// Escapes a path for a URI.
fn escaped(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), &ESCAPED).to_string()
}

/// Why file and log do not belong together.
pub(crate) fn compare(alone: Alone, together: Together) -> Option<String> {
    let (commits, in_file) = (together.commits, together.in_file);
    match alone {
        Alone::Nothing if in_file == 0 => None,
        Alone::Nothing => Some(format!(
            "the log goes on after {in_file} commits, and the file has none"
        )),
        Alone::Unreadable => None,
        Alone::Commits { epoch, .. } if epoch != together.epoch && epoch != together.former => {
            Some("they are of different databases".to_owned())
        }
        Alone::Commits { commits: has, .. } if has < in_file => Some(format!(
            "the file is older: it has {has} commits, and the log goes on after {in_file}"
        )),
        Alone::Commits { commits: has, .. } if has > commits => Some(format!(
            "the log is older: it ends with {commits} commits, and the file has {has}"
        )),
        Alone::Commits { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Uuid = Uuid::from_u128(1);
    const BEFORE: Uuid = Uuid::from_u128(2);
    const OTHER: Uuid = Uuid::from_u128(3);

    #[test]
    fn a_file_belongs_to_a_log_that_goes_on_where_it_ends_or_before() {
        let together = Together {
            epoch: OURS,
            former: BEFORE,
            commits: 9,
            in_file: 5,
        };
        let fits = |epoch, commits| compare(Alone::Commits { epoch, commits }, together).is_none();
        let found: Vec<bool> = [0, 4, 5, 7, 9, 10]
            .map(|commits| fits(OURS, commits))
            .into();
        assert_eq!(found, [false, false, true, true, true, false]);
        assert!(
            fits(BEFORE, 7),
            "a loss was accepted since the file was last written"
        );
        assert!(!fits(OTHER, 7));
        assert!(compare(Alone::Nothing, together).is_some());
        assert!(
            compare(
                Alone::Nothing,
                Together {
                    in_file: 0,
                    ..together
                }
            )
            .is_none()
        );
        assert!(compare(Alone::Unreadable, together).is_none());
    }

    #[test]
    fn a_path_in_a_uri_is_the_file_of_that_name() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["plain.db", "with space?.db", "50%23#ü.db"] {
            let path = folder.path().join(name);
            assert_eq!(read_alone(&path), Alone::Unreadable, "there is none");
            let connection = Connection::open(&path).expect("made");
            let sql = "CREATE TABLE ledger (epoch BLOB, commits INTEGER); INSERT INTO ledger VALUES (zeroblob(16), 7)";
            connection.execute_batch(sql).expect("written");
            assert_eq!(
                read_alone(&path),
                Alone::Commits {
                    epoch: Uuid::nil(),
                    commits: 7
                },
                "{name}"
            );
        }
    }
}
