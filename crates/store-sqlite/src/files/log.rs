//! The write-ahead log, and when its pages are moved into the file.
//!
//! SQLite could do that by itself. This crate does it, so that each transaction can store how many commits the file has. A
//! log begins anew only with a commit after all its pages were moved.
//!
//! The tables of a new file are moved before anything is served: by them the file is known later as one that was served,
//! also without its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rusqlite::{Connection, ErrorCode, ffi};

use super::together::Alone;
use super::watermarks::Counters;

/// How many pages a long log has: 4 MB, which the reserve has room for beside outcomes.
const LONG: i32 = 1_000;

pub(crate) struct Log {
    /// Pages in the log after the last commit.
    pub(crate) pages: Arc<AtomicI32>,
    /// Whether the check reads the file itself. Then nothing can be moved, and trying it costs more the longer the log is.
    pub(crate) is_held: Arc<AtomicBool>,
    /// Commits that are surely in the file. Each commit stores the number.
    pub(crate) moved: Option<u64>,
}

impl Log {
    /// Replaces SQLite's checkpoint hook, and moves the pages of the log.
    ///
    /// `alone`: the file before its log was read.
    ///
    /// # Errors
    /// The file cannot be written; or it has no tables, and there is no room for them.
    pub(crate) fn of(connection: &mut Connection, alone: Alone) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let after_commit = pages.clone();
        connection.wal_hook(Some(move |_: &mut _, pages| {
            after_commit.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        let mut log = Self {
            pages,
            is_held: Arc::default(),
            moved: None,
        };
        match log.move_all(connection) {
            // Without its log it would pass for a new file.
            Ok(()) if alone == Alone::Nothing && log.moved.is_none() => {
                let why = "another process reads the file, which has no tables yet".to_owned();
                let busy = ffi::Error::new(ffi::SQLITE_BUSY);
                Err(rusqlite::Error::SqliteFailure(busy, Some(why)))
            }
            // The log stays as it is until the disk has room.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DiskFull)
                    && alone != Alone::Nothing =>
            {
                Ok(log)
            }
            moved => moved.map(|()| log),
        }
    }

    /// # Errors
    /// The file cannot be written. The rest stays in the log.
    pub(crate) fn move_if_long(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.pages.load(Ordering::Relaxed) < LONG || self.is_held.load(Ordering::SeqCst) {
            Ok(())
        } else {
            self.move_all(connection)
        }
    }

    fn move_all(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let (pages, moved): (i64, i64) =
            connection.query_row(sql, [], |row| Ok((row.get(1)?, row.get(2)?)))?;
        // Otherwise a reader still needs older pages, and the next commit tries again.
        if pages == moved {
            self.moved = Some(Counters::of(connection)?.commits);
            self.pages.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Damaged;

    #[tokio::test]
    async fn a_long_log_is_moved_into_the_file() {
        let mut damaged = Damaged::new();
        let mut log = Log::of(&mut damaged.file, Alone::Unreadable).expect("a log");
        let before = log.moved.take();
        assert!(before.is_some(), "the start moves it");
        let write = |connection: &Connection, sql| connection.execute_batch(sql).expect("written");
        write(&damaged.file, "CREATE TABLE more (bytes BLOB)");
        log.move_if_long(&damaged.file).expect("looked at");
        assert_eq!(log.moved, None, "it is short");
        write(&damaged.file, "INSERT INTO more VALUES (zeroblob(5000000))");
        assert!(log.pages.load(Ordering::Relaxed) > LONG);
        log.move_if_long(&damaged.file).expect("moved");
        assert_eq!((log.moved, log.pages.load(Ordering::Relaxed)), (before, 0));
    }

    #[test]
    fn a_start_goes_on_over_no_other_error_than_a_full_disk() {
        let mut connection = Connection::open_in_memory().expect("opened");
        let log = Log::of(&mut connection, Alone::Unreadable);
        assert!(log.is_err(), "it has no tables");
    }
}
