//! Whether the file has lost data, by watermarks beside it.
//!
//! The database has a random *epoch* and counts its transactions. Both are also written to a small
//! file beside it, after the commit and before anything is answered, without an fsync of its own.
//! At the start that file may be behind the database, after a loss of power; if it is ahead, or of
//! another epoch, the database was deleted, exchanged or put back. Then the store is closed until
//! an operator accepts the loss, which begins another epoch.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use rusqlite::{Connection, ffi, params};
use uuid::Uuid;

use super::query::execute;
use super::row::integer;
use crate::core::key::digest;
use crate::store::Error;
use crate::store::lock::lock;
use crate::store::private;

const TITLE: &str = "oncegate-watermarks 1";
/// The second line: a copy of the store's secret.
const SECRET: &str = "secret";
/// The length of the first line.
const LINE: usize = 112;
/// How far ahead of the clock a token is a fault, which raises no other session's.
const TOKEN_LIMIT_US: i64 = 24 * 3_600 * 1_000_000;

/// The epoch, the commits and the token of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    epoch: Uuid,
    /// Transactions that have changed something.
    commits: u64,
    /// No fencing token above this was given.
    token: u64,
}

impl Marks {
    /// The watermarks as one line, always of the same length.
    fn line(&self) -> String {
        let marks = format!(
            "{TITLE} {} {:020} {:020}",
            self.epoch.simple(),
            self.commits,
            self.token
        );
        let sum = digest([marks.as_str()]);
        format!("{marks} {}\n", hex::encode(&sum[..7]))
    }

    /// `None`: this line was never written.
    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.strip_prefix(TITLE)?.split_ascii_whitespace();
        let epoch = Uuid::parse_str(words.next()?).ok()?;
        let marks = Self {
            epoch,
            commits: words.next()?.parse().ok()?,
            token: words.next()?.parse().ok()?,
        };
        (marks.line() == text).then_some(marks)
    }

    /// Counts the transaction in which this is called.
    ///
    /// `moved`: as many commits are in the file, and not only in the log.
    pub(super) fn count(connection: &Connection, moved: Option<u64>) -> rusqlite::Result<Self> {
        let count = "UPDATE ledger SET commits = commits + 1, in_file = coalesce(?1, in_file)";
        execute(connection, count, [moved.map(integer)])?;
        Self::of(connection)
    }

    /// Transactions that have changed something.
    pub(super) fn commits(&self) -> u64 {
        self.commits
    }

    pub(super) fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let mut marks = connection.prepare_cached(
            "SELECT epoch, commits, max(token, coalesce((
                SELECT max(token) FROM sessions
                WHERE token <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?1), 0)) FROM ledger",
        )?;
        marks.query_row([TOKEN_LIMIT_US], read)
    }
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Marks> {
    let (commits, token): (i64, i64) = (row.get(1)?, row.get(2)?);
    let epoch = Uuid::from_bytes(row.get(0)?);
    Ok(Marks {
        epoch,
        commits: commits.unsigned_abs(),
        token: token.unsigned_abs(),
    })
}

/// The watermarks in the file beside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// There is no file, or it is empty.
    Nothing,
    /// The file is damaged.
    Unreadable,
    Marks(Marks),
}

/// A loss of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) what: String,
    /// Missing transactions, as far as they can be counted.
    pub(super) commits: u64,
    remembered: Option<Marks>,
}

/// The loss of the database, if there is one.
fn compare(beside: Beside, data: Marks) -> Option<Lost> {
    let lost = |what: String, commits, remembered| {
        Some(Lost {
            what,
            commits,
            remembered,
        })
    };
    match beside {
        // Nothing was ever acknowledged. A damaged file says that something may have been.
        Beside::Nothing if data.commits == 0 => None,
        Beside::Marks(marks) if data.commits == 0 && marks.commits == 0 => None,
        Beside::Nothing => lost(
            "there are calls, but no file of watermarks beside them".into(),
            0,
            None,
        ),
        Beside::Unreadable => lost(
            "the file of watermarks beside it is damaged".into(),
            0,
            None,
        ),
        Beside::Marks(marks) if marks.epoch != data.epoch => {
            let what = "this is another database than the one that was served last".to_owned();
            lost(what, marks.commits, Some(marks))
        }
        Beside::Marks(marks) => {
            let missing = marks
                .commits
                .checked_sub(data.commits)
                .filter(|missing| *missing > 0)?;
            lost(
                format!("the newest {missing} transactions are missing"),
                missing,
                Some(marks),
            )
        }
    }
}

/// The file of watermarks, and the loss that it shows.
pub(super) struct Watermarks {
    path: PathBuf,
    file: Mutex<Option<File>>,
    /// The line with the copy of the store's secret. A damaged line is kept as it is.
    secret: Mutex<Vec<u8>>,
    lost: Mutex<Option<Lost>>,
    is_lost: AtomicBool,
    /// Whether an operator is about to accept the loss: documents may be written.
    is_accepting: AtomicBool,
    /// Whether the last write of the file failed, and was logged.
    is_failing: AtomicBool,
}

impl Watermarks {
    /// Compares the file with the database, and updates it if nothing is lost.
    ///
    /// # Errors
    /// The database cannot be read, or the file.
    pub(super) fn open(path: PathBuf, connection: &Connection) -> Result<Self, OpenError> {
        let data = Marks::of(connection)?;
        let file = private::open_existing(&path);
        let (file, beside, secret) = match file {
            Ok(file) => {
                let (beside, secret) = read_file(&file)?;
                (Some(file), beside, secret)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (None, Beside::Nothing, Vec::new())
            }
            Err(error) => return Err(error.into()),
        };
        let lost = compare(beside, data);
        let watermarks = Self {
            path,
            file: Mutex::new(file),
            secret: Mutex::new(secret),
            is_lost: AtomicBool::new(lost.is_some()),
            lost: Mutex::new(lost),
            is_accepting: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
        };
        match &*watermarks.lost() {
            Some(lost) => {
                tracing::error!(
                    what = lost.what,
                    "the store has lost data: nothing is claimed until a person accepts that"
                );
            }
            None if beside == Beside::Marks(data) => {}
            None => watermarks.write(&data, true),
        }
        Ok(watermarks)
    }

    /// The loss that is not accepted yet.
    pub(super) fn lost(&self) -> MutexGuard<'_, Option<Lost>> {
        lock(&self.lost)
    }

    /// Whether data was lost and the loss is not accepted yet.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    /// Whether documents may be written.
    pub(super) fn keeps_documents(&self) -> bool {
        !self.is_lost() || self.is_accepting.load(Ordering::SeqCst)
    }

    /// Prepares to accept the loss. False: nothing is lost.
    pub(super) fn prepare(&self) -> bool {
        let is_lost = self.is_lost();
        self.is_accepting.store(is_lost, Ordering::SeqCst);
        is_lost
    }

    /// Ends an acceptance that was not completed: documents may not be written any more.
    pub(super) fn break_off(&self) {
        self.is_accepting.store(false, Ordering::SeqCst);
    }

    /// Begins another epoch, in the transaction in which this is called.
    ///
    /// The file comes first: if the transaction is not committed, the database is of another epoch
    /// than the file, and the store stays closed.
    pub(super) fn begin_epoch(&self, connection: &Connection) -> rusqlite::Result<()> {
        let data = Marks::count(connection, None)?;
        let remembered = self
            .lost()
            .as_ref()
            .and_then(|lost| lost.remembered)
            .unwrap_or(data);
        let marks = Marks {
            epoch: Uuid::new_v4(),
            commits: data.commits.max(remembered.commits),
            token: data.token.max(remembered.token),
        };
        self.try_write(&marks, true).map_err(|error| {
            let why = format!("{}: {error}", self.path.display());
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(why))
        })?;
        // Tokens that no gateway remembers were not ahead of the clock either.
        let sql = "UPDATE ledger SET former = epoch, epoch = ?1, commits = ?2,
                    token = max(?3, CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
                    whole_since = CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
        let (commits, token) = (integer(marks.commits), integer(marks.token));
        execute(
            connection,
            sql,
            params![marks.epoch.as_bytes(), commits, token],
        )
        .map(drop)
    }

    /// Marks the data as whole from now on, after the loss was accepted.
    pub(super) fn accepted(&self) {
        *self.lost() = None;
        self.is_accepting.store(false, Ordering::SeqCst);
        self.is_lost.store(false, Ordering::SeqCst);
    }

    /// The copy of the store's secret.
    ///
    /// # Errors
    /// It was damaged. That is no absent one: the secret of the calls may have been another.
    pub(super) fn secret(&self) -> Result<Option<Bytes>, Error> {
        parse_secret(&lock(&self.secret))
    }

    /// Keeps a copy of the store's secret. Without a file yet, it is written with the file.
    pub(super) fn remember_secret(&self, secret: &Bytes) {
        let line = secret_line(secret).into_bytes();
        lock(&self.secret).clone_from(&line);
        let slot = lock(&self.file);
        let Some(file) = &*slot else { return };
        let written = file
            .write_all_at(&line, LINE as u64)
            .and_then(|()| file.set_len((LINE + line.len()) as u64))
            .and_then(|()| file.sync_all());
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, "no copy of the store's secret is kept");
        }
    }

    /// Writes the file.
    ///
    /// A file that cannot be written falls behind, which counts as no loss; so that is only logged.
    pub(super) fn write(&self, marks: &Marks, durably: bool) {
        let written = self.try_write(marks, durably);
        let failed = written.is_err();
        if failed != self.is_failing.swap(failed, Ordering::SeqCst) {
            match written {
                Err(error) => tracing::error!(
                    path = %self.path.display(),
                    %error,
                    "the watermarks cannot be written: a loss of newer data would not be noticed"
                ),
                Ok(()) => {
                    tracing::info!(path = %self.path.display(), "the watermarks are written again")
                }
            }
        }
    }

    fn try_write(&self, marks: &Marks, durably: bool) -> io::Result<()> {
        let mut slot = lock(&self.file);
        let is_new = slot.is_none();
        let file = match &mut *slot {
            Some(file) => file,
            none => none.insert(private::open(&self.path)?),
        };
        let line = marks.line();
        file.write_all_at(line.as_bytes(), 0)?;
        if durably {
            let secret = lock(&self.secret).clone();
            file.write_all_at(&secret, line.len() as u64)?;
            // A damaged file may have been longer.
            file.set_len((line.len() + secret.len()) as u64)?;
            file.sync_all()?;
        }
        if is_new && let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Writes the file a last time, durably.
    pub(super) fn end(&self, connection: &Connection) {
        if let Ok(marks) = Marks::of(connection)
            && !self.is_lost()
        {
            self.write(&marks, true);
        }
    }
}

/// Why the watermarks cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
}

fn read_file(file: &File) -> io::Result<(Beside, Vec<u8>)> {
    let mut text = Vec::new();
    file.take(4_096).read_to_end(&mut text)?;
    let (marks, secret) = text.split_at(text.len().min(LINE));
    Ok((parse_file(marks), secret.to_vec()))
}

/// The line of the secret; an empty secret has none.
fn secret_line(secret: &[u8]) -> String {
    if secret.is_empty() {
        return String::new();
    }
    let secret = hex::encode(secret);
    let sum = digest([SECRET, &secret]);
    format!("{SECRET} {secret} {}\n", hex::encode(&sum[..7]))
}

/// `None`: there is none.
fn parse_secret(line: &[u8]) -> Result<Option<Bytes>, Error> {
    if line.is_empty() {
        return Ok(None);
    }
    let read = || {
        let text = std::str::from_utf8(line).ok()?;
        let secret = text.split_ascii_whitespace().nth(1)?;
        let secret = hex::decode(secret).ok()?;
        (secret_line(&secret) == text).then(|| secret.into())
    };
    let damaged = || Error::Unreadable("the copy of the secret was damaged".into());
    read().map(Some).ok_or_else(damaged)
}

fn parse_file(text: &[u8]) -> Beside {
    match Marks::parse(text) {
        Some(marks) => Beside::Marks(marks),
        // Its first line was never written.
        None if text.is_empty() => Beside::Nothing,
        None => Beside::Unreadable,
    }
}

#[cfg(test)]
#[path = "watermarks_tests.rs"]
mod tests;
