//! Whether the file has lost data, by watermarks beside it.
//!
//! The database has a random *epoch* and counts its transactions. After each commit, and before any answer, both are also
//! written to a small file beside the database, without an fsync of its own. After a loss of power that file may be behind
//! the database. If it is ahead, or of another epoch, the database was deleted, exchanged or put back. Then the store is
//! closed until an operator accepts the loss, which begins another epoch.
//!
//! A new database gets its watermarks before its tables are moved from the log into the file itself. So a file with tables
//! and without watermarks was served, even if it counts no commits: all of them were in a log that is gone.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use rusqlite::{Connection, ffi, params};
use uuid::Uuid;

use super::beside;
use super::together::Alone;
use crate::calls::row::integer;
use crate::error::{At as _, OpenError};
use crate::query::execute;
use oncegate_rules::key::digest;
use oncegate_store::lock::lock;
use oncegate_store::private;
use oncegate_store::{Error, Result};

const TITLE: &str = "oncegate-watermarks 1";
/// The second line: a copy of the store's secret.
const SECRET: &str = "secret";
/// The length of the first line.
const LINE: usize = 112;
/// How far ahead of the clock a token must be to count as a fault, which raises no other session's tokens.
const TOKEN_LIMIT_US: i64 = 24 * 3_600 * 1_000_000;

/// The epoch, the commits and the token of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    epoch: Uuid,
    /// Transactions that have changed something.
    pub(crate) commits: u64,
    /// No higher fencing token was given out.
    token: u64,
}

impl Counters {
    /// The watermarks as one line. Its length is always the same.
    fn line(&self) -> String {
        let counters = format!(
            "{TITLE} {} {:020} {:020}",
            self.epoch.simple(),
            self.commits,
            self.token
        );
        let sum = digest([counters.as_str()]);
        format!("{counters} {}\n", hex::encode(&sum[..7]))
    }

    /// `None`: the line is damaged.
    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let mut words = text.strip_prefix(TITLE)?.split_ascii_whitespace();
        let epoch = Uuid::parse_str(words.next()?).ok()?;
        let counters = Self {
            epoch,
            commits: words.next()?.parse().ok()?,
            token: words.next()?.parse().ok()?,
        };
        (counters.line() == text).then_some(counters)
    }

    /// Counts the transaction in which it is called.
    ///
    /// `moved`: how many commits are in the file itself, and not only in the log.
    pub(crate) fn count(connection: &Connection, moved: Option<u64>) -> rusqlite::Result<Self> {
        let count = "UPDATE ledger SET commits = commits + 1, in_file = coalesce(?1, in_file)";
        execute(connection, count, [moved.map(integer)])?;
        Self::of(connection)
    }

    pub(crate) fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let sql = "SELECT epoch, commits, max(token, coalesce((
                SELECT max(token) FROM sessions
                WHERE token <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?1), 0)) FROM ledger";
        let mut counters = connection.prepare_cached(sql)?;
        counters.query_row([TOKEN_LIMIT_US], |row| {
            Ok(Self {
                epoch: row.get(0)?,
                commits: row.get::<_, i64>(1)?.unsigned_abs(),
                token: row.get::<_, i64>(2)?.unsigned_abs(),
            })
        })
    }
}

/// The watermarks in the file beside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// There is no file, or it is empty.
    Nothing,
    /// The file is damaged.
    Unreadable,
    Counters(Counters),
}

/// A loss of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) what: String,
    /// Missing transactions, as far as they can be counted.
    pub(crate) commits: u64,
    remembered: Option<Counters>,
    /// Whether an operator is accepting the loss. Then documents may be written.
    is_accepting: bool,
}

/// What the database has lost, by the watermarks in the file. `alone`: the database before its log was read.
fn compare(found: Found, data: Counters, alone: Alone) -> Option<Lost> {
    let is_new = data.commits == 0 && alone == Alone::Nothing;
    let (what, commits, remembered) = match found {
        // Nothing was ever acknowledged. A damaged file says that something may have been.
        Found::Nothing if is_new => return None,
        Found::Counters(counters) if is_new && counters.commits == 0 => return None,
        Found::Nothing if data.commits == 0 => {
            let what = "the database was served before, and neither its newest commits nor its file of watermarks are \
                        beside it";
            (what.to_owned(), 0, None)
        }
        Found::Nothing => {
            let what = "there are calls, but no file of watermarks beside them";
            (what.to_owned(), 0, None)
        }
        Found::Unreadable => {
            let what = "the file of watermarks beside it is damaged";
            (what.to_owned(), 0, None)
        }
        Found::Counters(counters) if counters.epoch != data.epoch => {
            let what = "this is another database than the one that was served last";
            (what.to_owned(), counters.commits, Some(counters))
        }
        Found::Counters(counters) => {
            let missing = counters
                .commits
                .checked_sub(data.commits)
                .filter(|missing| *missing > 0)?;
            let what = format!("the newest {missing} transactions are missing");
            (what, missing, Some(counters))
        }
    };
    Some(Lost {
        what,
        commits,
        remembered,
        is_accepting: false,
    })
}

/// The file of watermarks, and the loss that it shows.
pub(crate) struct Watermarks {
    path: PathBuf,
    file: Mutex<Option<File>>,
    /// The line with the copy of the store's secret. A damaged line is kept as it is.
    secret: Mutex<Vec<u8>>,
    lost: Mutex<Option<Lost>>,
    /// Whether the last write of the file failed, and was logged.
    is_failing: AtomicBool,
}

impl Watermarks {
    /// Compares the file with its database, and updates it if nothing is lost.
    ///
    /// `alone`: the database before its log was read.
    ///
    /// # Errors
    /// The database cannot be read, or the file; or the first watermarks cannot be written.
    pub(crate) fn open(
        database: &Path,
        connection: &Connection,
        alone: Alone,
    ) -> Result<Self, OpenError> {
        let data = Counters::of(connection).at(database)?;
        let path = beside(database, ".watermarks");
        let file = match private::open_existing(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.at(&path)?),
        };
        let mut text = Vec::new();
        if let Some(file) = &file {
            file.take(4_096).read_to_end(&mut text).at(&path)?;
        }
        let (counters, secret) = text.split_at(text.len().min(LINE));
        let found = parse_file(counters);
        let lost = compare(found, data, alone);
        let watermarks = Self {
            path,
            file: Mutex::new(file),
            secret: Mutex::new(secret.to_vec()),
            lost: Mutex::new(lost),
            is_failing: AtomicBool::new(false),
        };
        match &*watermarks.lost() {
            Some(lost) => {
                tracing::error!(
                    what = lost.what,
                    "the store has lost data: nothing is claimed until an operator accepts that"
                );
            }
            None if found == Found::Counters(data) => {}
            // Without them the next start would take the database for one whose watermarks were lost.
            None if alone == Alone::Nothing => {
                let written = watermarks.try_write(&data, true);
                written.at(&watermarks.path)?;
            }
            None => watermarks.write(&data, true),
        }
        Ok(watermarks)
    }

    /// The loss that is not accepted yet.
    pub(crate) fn lost(&self) -> MutexGuard<'_, Option<Lost>> {
        lock(&self.lost)
    }

    /// Whether data was lost and the loss is not accepted yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// Whether documents may be written.
    pub(crate) fn keeps_documents(&self) -> bool {
        self.lost().as_ref().is_none_or(|lost| lost.is_accepting)
    }

    /// Begins the acceptance of a loss. False: nothing is lost.
    pub(crate) fn prepare(&self) -> bool {
        let mut lost = self.lost();
        lost.as_mut().is_some_and(|lost| {
            lost.is_accepting = true;
            true
        })
    }

    /// Cancels an acceptance: documents may not be written any more.
    pub(crate) fn break_off(&self) {
        if let Some(lost) = &mut *self.lost() {
            lost.is_accepting = false;
        }
    }

    /// Begins another epoch, in the transaction in which it is called.
    ///
    /// It writes the file first. If the transaction is not committed, the epochs of file and database differ, and the store
    /// stays closed.
    pub(crate) fn begin_epoch(&self, connection: &Connection) -> rusqlite::Result<()> {
        let data = Counters::count(connection, None)?;
        let remembered = self
            .lost()
            .as_ref()
            .and_then(|lost| lost.remembered)
            .unwrap_or(data);
        let counters = Counters {
            epoch: Uuid::new_v4(),
            commits: data.commits.max(remembered.commits),
            token: data.token.max(remembered.token),
        };
        self.try_write(&counters, true).map_err(|error| {
            let why = format!("{}: {error}", self.path.display());
            rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(why))
        })?;
        // Lost tokens may be higher than all remembered ones, but none was ahead of the clock.
        let sql = "UPDATE ledger SET former = epoch, epoch = ?1, commits = ?2,
                    token = max(?3, CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
                    whole_since = CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
        let begun = params![
            counters.epoch,
            integer(counters.commits),
            integer(counters.token)
        ];
        execute(connection, sql, begun).map(drop)
    }

    /// The loss was accepted: from now on nothing is lost.
    pub(crate) fn accepted(&self) {
        *self.lost() = None;
    }

    /// The copy of the store's secret.
    ///
    /// # Errors
    /// The copy is damaged. It must not count as absent: the calls may have been made with another secret.
    pub(crate) fn secret(&self) -> Result<Option<Bytes>> {
        parse_secret(&lock(&self.secret))
    }

    /// Keeps a copy of the store's secret. If the file does not exist yet, the first watermarks are written with the copy.
    pub(crate) fn remember_secret(&self, secret: &Bytes) {
        let line = secret_line(secret).into_bytes();
        lock(&self.secret).clone_from(&line);
        let slot = lock(&self.file);
        let Some(file) = &*slot else { return };
        let written = file
            .write_all_at(&line, LINE as u64)
            .and_then(|()| file.set_len((LINE + line.len()) as u64))
            .and_then(|()| file.sync_all());
        if let Err(error) = written {
            tracing::error!(path = %self.path.display(), %error, "the copy of the store's secret cannot be stored");
        }
    }

    /// Writes the file.
    ///
    /// A failure is only logged: the file falls behind, which counts as no loss.
    pub(crate) fn write(&self, counters: &Counters, durably: bool) {
        let written = self.try_write(counters, durably);
        if written.is_err() == self.is_failing.swap(written.is_err(), Ordering::SeqCst) {
            return;
        }
        let path = self.path.display();
        match written {
            Err(error) => tracing::error!(
                %path,
                %error,
                "the watermarks cannot be written: a loss of newer data would not be noticed"
            ),
            Ok(()) => tracing::info!(%path, "the watermarks are written again"),
        }
    }

    fn try_write(&self, counters: &Counters, durably: bool) -> io::Result<()> {
        let mut slot = lock(&self.file);
        let is_new = slot.is_none();
        let file = match &mut *slot {
            Some(file) => file,
            none => none.insert(private::open(&self.path)?),
        };
        let line = counters.line();
        file.write_all_at(line.as_bytes(), 0)?;
        if durably {
            let secret = lock(&self.secret).clone();
            file.write_all_at(&secret, line.len() as u64)?;
            // The file may have been damaged, and longer.
            file.set_len((line.len() + secret.len()) as u64)?;
            file.sync_all()?;
        }
        if is_new && let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Writes the file a last time, durably.
    pub(crate) fn end(&self, connection: &Connection) {
        if let Ok(counters) = Counters::of(connection)
            && !self.is_lost()
        {
            self.write(&counters, true);
        }
    }
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
fn parse_secret(line: &[u8]) -> Result<Option<Bytes>> {
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

fn parse_file(text: &[u8]) -> Found {
    match Counters::parse(text) {
        Some(counters) => Found::Counters(counters),
        // The first line was never written.
        None if text.is_empty() => Found::Nothing,
        None => Found::Unreadable,
    }
}

#[cfg(test)]
mod tests;
