//! Whether a database file and the write-ahead log beside it belong together.
//!
//! A log holds what was committed since it was begun; all before that is in the file. With each commit the database says
//! how many of them the file had when a log could last be begun anew. A file that has fewer by itself, or more than are
//! known with the log, is not the one to which the log belongs: read together they give pages of different times.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use uuid::Uuid;

/// The state of a file without its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alone {
    /// No tables yet: every commit may still be in the log.
    Nothing,
    /// So many commits of this epoch.
    Commits { epoch: Uuid, commits: u64 },
    /// A crash may have interrupted moving pages into it.
    Unreadable,
}

/// The state of file and log together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Together {
    pub(super) epoch: Uuid,
    /// The epoch before a loss was accepted; the file may still be of that one.
    pub(super) former: Uuid,
    pub(super) commits: u64,
    /// The least number of commits in the file.
    pub(super) in_file: u64,
}

/// Reads the file without its log. Must be done before anything else has it open.
pub(super) fn read_alone(path: &Path) -> Alone {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        return Alone::Nothing;
    }
    read_file(path).unwrap_or(Alone::Unreadable)
}

fn read_file(path: &Path) -> rusqlite::Result<Alone> {
    // `immutable`: SQLite reads without locks and without the log.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(format!("file:{}?immutable=1", escaped(path)), flags)?;
    let is_there = connection
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE name = 'ledger'",
            [],
            |_| Ok(()),
        )
        .optional()?;
    if is_there.is_none() {
        return Ok(Alone::Nothing);
    }
    connection.query_row("SELECT epoch, commits FROM ledger", [], |row| {
        let commits: i64 = row.get(1)?;
        Ok(Alone::Commits {
            epoch: Uuid::from_bytes(row.get(0)?),
            commits: commits.unsigned_abs(),
        })
    })
}

/// Escapes a path for a URI.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text += &format!("%{byte:02x}");
        }
    }
    text
}

/// Why file and log do not belong together.
pub(super) fn compare(alone: Alone, together: Together) -> Option<String> {
    let Together {
        epoch,
        former,
        commits,
        in_file,
    } = together;
    match alone {
        Alone::Nothing if in_file == 0 => None,
        Alone::Nothing => Some(format!(
            "the log goes on after {in_file} commits, and the file has none"
        )),
        Alone::Unreadable => None,
        Alone::Commits { epoch: other, .. } if other != epoch && other != former => {
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
