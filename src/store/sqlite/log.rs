//! The write-ahead log, and when its pages are moved into the file.
//!
//! SQLite would do that by itself. It is done here, so that each transaction can say how many
//! commits the file has. A log is begun anew only by a commit after all of it was moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::{Connection, ErrorCode};

use super::watermarks::Marks;

/// How many pages a long log has.
const LONG: i32 = 1_000;

pub(super) struct Log {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicI32>,
    /// Commits in the file, if the whole log was moved.
    moved: Option<u64>,
}

impl Log {
    /// Replaces SQLite's checkpoint hook, and moves the present log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn of(connection: &mut Connection) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let after_commit = pages.clone();
        connection.wal_hook(Some(move |_: &mut _, pages| {
            after_commit.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        let mut log = Self { pages, moved: None };
        match log.move_all(connection) {
            // It stays where it is until there is room.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(log),
            moved => moved.map(|()| log),
        }
    }

    /// Commits that are known to be in the file; each commit stores the number.
    pub(super) fn moved(&self) -> Option<u64> {
        self.moved
    }

    /// # Errors
    /// The file could not be written. The rest is still in the log.
    pub(super) fn move_if_long(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.pages.load(Ordering::Relaxed) < LONG {
            Ok(())
        } else {
            self.move_all(connection)
        }
    }

    fn move_all(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let (there, moved): (i64, i64) =
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                Ok((row.get(1)?, row.get(2)?))
            })?;
        // Otherwise a reader still needs older pages: the next commit tries again.
        if there == moved {
            self.moved = Some(Marks::of(connection)?.commits());
            self.pages.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}
