//! Opening the file, after checks: it is local, ours alone, whole, and of a known layout.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use tokio_util::sync::CancellationToken;

use super::check::{Check, whole};
use super::error::{At as _, LAYOUT, OLDEST_LAYOUT, OpenError};
use super::files::{Files, beside};
use super::gate::Gate;
use super::query::pragma;
use super::upgrade::{self, Backup};
use super::worker::{BATCH, Thread, Worker, Writing};
use super::{Readers, Sqlite};
use crate::files::log::Log;
use crate::files::mounts;
use crate::files::reserve::Reserve;
use crate::files::together::{self, Alone, Together};
use crate::files::watermarks::Watermarks;
use oncegate_rules::record::InstanceId;

/// "once" in ASCII: marks the file as ours.
pub(super) const APPLICATION_ID: i32 = 0x6f6e_6365;
const SCHEMA: &str = include_str!("schema.sql");
/// The first SQLite whose checkpoint cannot reset the log under other connections.
const OLDEST_SQLITE: i32 = 3_051_003;
/// Settings for durable commits.
///
/// On macOS only a full fsync reaches the disk; elsewhere the last two change nothing.
const DURABLE: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;";
/// For a new file, before anything else: its free pages can be given back without writing the whole file again.
///
/// On another file this would be a write at each start.
pub(super) const SHRINKS: &str = "PRAGMA auto_vacuum = INCREMENTAL;";
/// Memory for pages of the connection that writes, at most, in KiB: the inner pages of all trees of 10 million calls.
/// With SQLite's 2 MB each claim would read pages again that the claim before it has read.
const WRITER_CACHE: &str = "PRAGMA cache_size = -65536;";
/// The same for each connection that reads. It is less, because each commit empties it.
///
/// Do not map the file into memory (`mmap_size`): that saves one copy of each page, but then an unreadable page or a
/// truncated file ends the process with a signal instead of an error.
const READER_CACHE: &str = "PRAGMA cache_size = -8192;";
/// Most prepared statements of a connection. There are fewer.
const STATEMENTS: usize = 64;

/// Connections that read: calls that callers wait for, due calls, and long questions to the ledger.
const CALL_READERS: usize = 2;
const DUE_READERS: usize = 1;
const LEDGER_READERS: usize = 2;

/// How a file is opened.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// The copy that is made before a file of an earlier release is upgraded.
    pub backup: Backup,
}

impl Sqlite {
    /// Opens the file at `path`, or makes it, after every start-up check.
    ///
    /// `instance` is this run of the gateway. `fatal` is cancelled when the file fails later: then the process must end, and
    /// the next start recovers.
    ///
    /// # Errors
    /// The file cannot be trusted; says why.
    pub fn open(
        path: &Path,
        instance: InstanceId,
        fatal: &CancellationToken,
    ) -> Result<Self, OpenError> {
        Self::open_with(path, instance, fatal, &Opening::default())
    }

    /// The same, opened in this way.
    ///
    /// # Errors
    /// The file cannot be trusted; says why.
    pub fn open_with(
        path: &Path,
        instance: InstanceId,
        fatal: &CancellationToken,
        opening: &Opening,
    ) -> Result<Self, OpenError> {
        if rusqlite::version_number() < OLDEST_SQLITE {
            return Err(OpenError::OldSqlite(rusqlite::version()));
        }
        // All names of a file lead to one lock.
        let path = &resolve(path).at(path)?;
        let files = Arc::new(Files::lock(path)?);
        if mounts::on_network(path) {
            return Err(OpenError::NotLocal(path.to_owned()));
        }
        refuse_foreign(path)?;
        let alone = together::read_alone(path);
        let (mut writer, readers) = connect_somehow(path)?;
        verify(&mut writer, path, alone, opening)?;
        files.remember_log();
        // The order counts: a file that has its tables in itself always has had watermarks beside it.
        let watermarks = Arc::new(Watermarks::open(path, &writer, alone)?);
        // From here on the log may be moved into the file.
        writer
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .at(path)?;
        let log = Log::of(&mut writer, alone).at(path)?;
        let short_of_space = Arc::new(AtomicBool::new(false));
        let reserve = Reserve::new(beside(path, ".reserve"), short_of_space.clone())?;
        if let Some(exposed) = files.exposed() {
            tracing::warn!("{}", exposed.text);
        }
        let checks = (!readers.is_empty()).then(|| connect(path, Access::Read));
        let checking = Check::begin(path, &files, &writer, &log, checks.transpose()?)?;
        let gate = Gate {
            short_of_space,
            watermarks: watermarks.clone(),
            check: checking.check.clone(),
        };
        let thread = |name, connection, batch, writing| Thread {
            name,
            connection,
            batch,
            writing,
            files: files.clone(),
            check: checking.check.clone(),
            fatal: fatal.clone(),
        };
        let (worker, waiting) = Worker::new();
        let interrupts = readers
            .iter()
            .map(Connection::get_interrupt_handle)
            .collect();
        let (mut connections, mut threads) = (readers.into_iter(), Vec::new());
        let mut reader = |name, count, batch| -> Result<Worker, OpenError> {
            // Without connections of their own the thread that writes reads, too.
            if connections.len() == 0 {
                return Ok(worker.clone());
            }
            let (pool, waiting) = Worker::new();
            for connection in connections.by_ref().take(count) {
                let thread = thread(name, connection, batch, None);
                threads.push(thread.start(waiting.clone()).at(path)?);
            }
            Ok(pool)
        };
        let ledger = reader("sqlite-ledger", LEDGER_READERS, 1)?;
        let readers = Readers {
            calls: reader("sqlite-calls", CALL_READERS, BATCH)?,
            due: reader("sqlite-due", DUE_READERS, 1)?,
            ledger,
            interrupts,
        };
        let writing = Writing {
            reserve,
            watermarks,
            log,
            readers: threads.into_iter().chain(checking.thread).collect(),
        };
        let thread = thread("sqlite-writer", writer, BATCH, Some(writing));
        thread.start(waiting).at(path)?;
        Ok(Self {
            writer: worker,
            readers: Arc::new(readers),
            instance,
            gate,
            files: Arc::downgrade(&files),
            endings: Arc::default(),
        })
    }
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
    /// It reads and writes, as the only connection.
    ///
    /// It needs no index of the log in shared memory: that is a file, for which the disk may have no room.
    Alone,
}

/// Opens all connections. On a full disk it deletes the reserve; if that is not enough it opens only one connection.
fn connect_somehow(path: &Path) -> Result<(Connection, Vec<Connection>), OpenError> {
    let opened = connect_all(path).or_else(|error| {
        // Room for outcomes is of no use to a store that cannot be opened.
        if !lacks_space(&error) || fs::remove_file(beside(path, ".reserve")).is_err() {
            return Err(error);
        }
        connect_all(path)
    });
    opened.or_else(|error| {
        if !lacks_space(&error) {
            return Err(error);
        }
        tracing::warn!("the disk is full: until the next start one connection reads and writes");
        Ok((connect(path, Access::Alone)?, Vec::new()))
    })
}

/// Opens the connection that writes and all that read.
fn connect_all(path: &Path) -> Result<(Connection, Vec<Connection>), OpenError> {
    let writer = connect(path, Access::Write)?;
    let count = CALL_READERS + DUE_READERS + LEDGER_READERS;
    let readers = (0..count).map(|_| connect(path, Access::Read));
    Ok((writer, readers.collect::<Result<_, _>>()?))
}

/// Whether a file could not be opened because the disk is full.
fn lacks_space(error: &OpenError) -> bool {
    let OpenError::Database(_, rusqlite::Error::SqliteFailure(error, _)) = error else {
        return false;
    };
    matches!(error.code, ErrorCode::DiskFull | ErrorCode::CannotOpen)
        || matches!(
            error.extended_code,
            ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMMAP
        )
}

/// The path without links. The file itself may be missing.
pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            Ok(match path.file_name() {
                Some(name) => folder.join(name),
                None => folder,
            })
        }
        resolved => resolved,
    }
}

pub(super) fn connect(path: &Path, access: Access) -> Result<Connection, OpenError> {
    let flags = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        _ => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
    };
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).at(path)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let config = |key| connection.set_db_config(key, true).at(path);
    // Without it SQLite plans a cached statement again for each value that a partial index might fit.
    config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG)?;
    // A file that is refused later stays as it was, and so does its log.
    config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)?;
    connection.busy_timeout(Duration::from_secs(5)).at(path)?;
    let pragmas: &[&str] = match access {
        Access::Read => &["PRAGMA query_only = 1;", READER_CACHE],
        Access::Write => &[DURABLE, WRITER_CACHE],
        Access::Alone => &["PRAGMA locking_mode = EXCLUSIVE;", DURABLE, WRITER_CACHE],
    };
    let is_new = access != Access::Read && fs::metadata(path).is_ok_and(|file| file.len() == 0);
    if is_new {
        connection.execute_batch(SHRINKS).at(path)?;
    }
    connection.execute_batch(&pragmas.concat()).at(path)?;
    // A pragma that has no effect is not an error, so the values are read back.
    let refused = |pragma, got| Err(OpenError::Pragma(path.to_owned(), pragma, got));
    let mode: Option<String> = pragma(&connection, "journal_mode").at(path)?;
    if mode.as_deref() != Some("wal") {
        return refused("journal_mode = WAL", mode.unwrap_or_default());
    }
    let synchronous: Option<i64> = pragma(&connection, "synchronous").at(path)?;
    if access != Access::Read && synchronous.is_none_or(|level| level < 2) {
        return refused("synchronous = FULL", format!("{synchronous:?}"));
    }
    Ok(connection)
}

/// The index of calls that wait for approval, as `schema.sql` has it.
const WAITING: &str =
    "CREATE INDEX IF NOT EXISTS calls_waiting ON calls (due_at) WHERE state IN (7, 8)";

/// Refuses a file that cannot be trusted, makes the tables of a new one, and upgrades one of an earlier release.
fn verify(
    connection: &mut Connection,
    path: &Path,
    alone: Alone,
    opening: &Opening,
) -> Result<(), OpenError> {
    identify(connection, path)?;
    let layout = layout(connection, path)?;
    if layout.is_some()
        && let Some(why) = together::compare(alone, Together::of(connection).at(path)?)
    {
        return Err(OpenError::Apart(path.to_owned(), why));
    }
    match layout {
        None => lay_out(connection).at(path)?,
        // It is checked beside serving. A file of an unreleased build may lack the index.
        Some(LAYOUT) => connection.execute_batch(WAITING).at(path)?,
        Some(older) => {
            check(connection, path)?;
            drop(upgrade::upgrade(connection, path, older, &opening.backup)?);
        }
    }
    Ok(())
}

/// Refuses another program's file before anything is written to it.
pub(super) fn refuse_foreign(path: &Path) -> Result<(), OpenError> {
    let is_foreign = together::reads_alone(path, |file| {
        let id: Option<i32> = pragma(file, "application_id")?;
        Ok(id.unwrap_or(0) != APPLICATION_ID && (id.unwrap_or(0) != 0 || has_tables(file)?))
    });
    // What cannot be read so is refused later, or needs its log.
    match is_foreign {
        Ok(true) => Err(OpenError::NotOurs(path.to_owned())),
        Ok(false) | Err(_) => Ok(()),
    }
}

/// Refuses another program's file, and marks a new one as ours.
pub(super) fn identify(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let id: Option<i32> = pragma(connection, "application_id").at(path)?;
    let is_used = has_tables(connection).at(path)?;
    match id {
        Some(APPLICATION_ID) => Ok(()),
        Some(0) | None if !is_used => {
            let sql = format!("PRAGMA application_id = {APPLICATION_ID}");
            connection.execute_batch(&sql).at(path)
        }
        _ => Err(OpenError::NotOurs(path.to_owned())),
    }
}

/// Reads the whole file once, so that a damaged page is found now.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    whole(connection).map_err(|why| OpenError::Damaged(path.to_owned(), why))
}

/// The layout of the file; `None`: it is new and has no tables.
pub(super) fn layout(connection: &Connection, path: &Path) -> Result<Option<i64>, OpenError> {
    let found: Option<i64> = pragma(connection, "user_version").at(path)?;
    match found.unwrap_or(0) {
        known @ OLDEST_LAYOUT..=LAYOUT => Ok(Some(known)),
        // The tables are made in one step.
        0 if !has_tables(connection).at(path)? => Ok(None),
        newer if newer > LAYOUT => Err(OpenError::Newer(path.to_owned(), newer)),
        older => Err(OpenError::TooOld(path.to_owned(), older)),
    }
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) > 0 FROM sqlite_schema";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Makes the tables of a new file, all of them or none.
fn lay_out(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    transaction.execute_batch(&format!("PRAGMA user_version = {LAYOUT}"))?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// A change of the schema raises `LAYOUT`, and then this digest.
    #[test]
    fn a_layout_is_one_schema() {
        let code = |line: &str| {
            line.split("--")
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .collect::<String>()
        };
        let text: String = SCHEMA.lines().map(code).collect();
        let digest = hex::encode(&Sha256::digest(text)[..8]);
        assert_eq!((LAYOUT, digest.as_str()), (16, "e01362709817f787"));
    }

    /// A start reads few pages; only the check reads the others.
    #[test]
    fn a_damaged_page_that_nothing_else_reads_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: &Path = &folder.path().join("oncegate.db");
        let connection = Connection::open(path).expect("opened");
        let fill = "CREATE TABLE t (a);
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
            INSERT INTO t SELECT randomblob(1000) FROM n;";
        connection.execute_batch(fill).expect("filled");
        check(&connection, path).expect("it is whole");
        drop(connection);
        let mut bytes = fs::read(path).expect("read");
        let page = bytes.len() - 4096;
        bytes[page..page + 16].fill(0xff);
        fs::write(path, bytes).expect("damaged");
        let connection = Connection::open(path).expect("opened");
        let refused = check(&connection, path);
        assert!(
            matches!(refused, Err(OpenError::Damaged(..))),
            "{refused:?}"
        );
    }

    #[test]
    fn tables_without_a_version_are_not_taken_for_a_new_file() {
        let connection = Connection::open_in_memory().expect("opened");
        let path = Path::new("oncegate.db");
        let found = layout(&connection, path);
        assert!(matches!(found, Ok(None)), "{found:?}");
        connection
            .execute_batch("CREATE TABLE t (a)")
            .expect("made");
        let found = layout(&connection, path);
        assert!(matches!(found, Err(OpenError::TooOld(_, 0))), "{found:?}");
    }

    #[test]
    fn only_a_full_disk_makes_do_with_one_connection() {
        let error = |code| {
            let why = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            OpenError::Database(PathBuf::new(), why)
        };
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_IOERR_SHMSIZE,
        ] {
            assert!(lacks_space(&error(code)), "{code}");
        }
        for code in [ffi::SQLITE_NOTADB, ffi::SQLITE_BUSY, ffi::SQLITE_IOERR_READ] {
            assert!(!lacks_space(&error(code)), "{code}");
        }
        assert!(!lacks_space(&OpenError::NotOurs(PathBuf::new())));
    }

    /// The reserve is given up only for lack of room.
    #[test]
    fn a_file_that_is_no_database_costs_no_reserve() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: &Path = &folder.path().join("oncegate.db");
        let text = "this is not a database, but it is long enough to look at twice";
        fs::write(path, text).expect("written");
        fs::write(beside(path, ".reserve"), "").expect("written");
        assert!(connect_somehow(path).is_err());
        assert!(beside(path, ".reserve").exists());
    }
}
