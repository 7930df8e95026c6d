//! Opening the file: nothing is served from one that is not local, not ours alone, not whole or not
//! of a schema that we know.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use tokio_util::sync::CancellationToken;

use super::files::{Files, beside};
use super::reserve::Reserve;
use super::watermarks::{self, Watermarks};
use super::worker::{BATCH, Thread, Worker, Writing};
use super::{Readers, Sqlite, pragma};
use crate::core::record::InstanceId;

/// "once" in ASCII: says that the file is one of ours.
const APPLICATION_ID: i32 = 0x6f6e_6365;
/// One step of the schema each. `user_version` counts those that were made.
const MIGRATIONS: [&str; 8] = [
    include_str!("schema.sql"),
    include_str!("sessions.sql"),
    include_str!("unknown.sql"),
    include_str!("ledger.sql"),
    include_str!("pauses.sql"),
    include_str!("documents.sql"),
    include_str!("sagas.sql"),
    include_str!("whole.sql"),
];
/// The first version in which a checkpoint beside other connections cannot reset the log under them.
const OLDEST_SQLITE: i32 = 3_051_003;
/// On macOS only a full fsync reaches the disk; elsewhere the last two change nothing.
const DURABLE: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;";
/// Statements kept prepared; there are fewer.
const STATEMENTS: usize = 64;

/// Why the file is not served from.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{0} is in use by another gateway; a SQLite store belongs to one process")]
    InUse(PathBuf),
    #[error("{0} has another name (a hard link), under which another gateway may use it; remove one of them")]
    Linked(PathBuf),
    #[error("{0} lies on a network file system, where locks and fsync cannot be trusted")]
    NotLocal(PathBuf),
    #[error("{path}: {error}")]
    Database { path: PathBuf, error: rusqlite::Error },
    #[error("{0} is a SQLite file, but not one of oncegate")]
    NotOurs(PathBuf),
    #[error("{0} was written by a newer oncegate (schema {1}, this one knows {2})")]
    TooNew(PathBuf, i64, usize),
    #[error("{0} is damaged: {1}; restore a backup, or start with another file and reconcile")]
    Damaged(PathBuf, String),
    #[error("{path}: SQLite would not give {pragma}, it says {got}")]
    Pragma { path: PathBuf, pragma: &'static str, got: String },
    #[error("SQLite {0} is too old")]
    OldSqlite(&'static str),
}

impl Sqlite {
    /// Opens the file at `path`, or makes it, after every start-up check.
    ///
    /// `instance` is this run of the gateway. `fatal` is cancelled when the file fails under way:
    /// then the process must end and start over with recovery.
    ///
    /// # Errors
    /// The file cannot be trusted with money; says why.
    pub fn open(path: &Path, instance: InstanceId, fatal: &CancellationToken) -> Result<Self, OpenError> {
        if rusqlite::version_number() < OLDEST_SQLITE {
            return Err(OpenError::OldSqlite(rusqlite::version()));
        }
        // However the file is called, there is one lock for it.
        let path = &resolve(path).map_err(|error| io(path, error))?;
        let files = Arc::new(Files::lock(path)?);
        if on_network(path) {
            return Err(OpenError::NotLocal(path.to_owned()));
        }
        let reserve = beside(path, ".reserve");
        let opened = Opened::new(path, Sharing::Many).or_else(|error| {
            // What is kept back for outcomes is of no use if nothing can be read.
            if !lacks_room(&error) || fs::remove_file(&reserve).is_err() {
                return Err(error);
            }
            Opened::new(path, Sharing::Many)
        });
        let mut opened = opened.or_else(|error| {
            if !lacks_room(&error) {
                return Err(error);
            }
            tracing::warn!("the disk is full: until the next start one connection reads and writes");
            Opened::new(path, Sharing::One)
        })?;
        identify(&opened.writer, path)?;
        check(&opened.writer, path)?;
        migrate(&mut opened.writer, path)?;
        files.remember_log();
        let watermarks = Watermarks::open(beside(path, ".watermarks"), &opened.writer);
        let watermarks = watermarks.map_err(|error| match error {
            watermarks::OpenError::Io(error) => io(&beside(path, ".watermarks"), error),
            watermarks::OpenError::Database(error) => database(path, error),
        })?;
        let short_of_space = Arc::new(AtomicBool::new(false));
        let reserve = Reserve::new(reserve, short_of_space.clone()).map_err(|error| io(path, error))?;
        opened.start(instance, reserve, short_of_space, Arc::new(watermarks), &files, fatal)
    }
}

/// How many connections a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Many,
    /// It needs no index of the log in shared memory, which is a file, for which there may be no room.
    One,
}

/// The connections to a file.
struct Opened {
    path: PathBuf,
    writer: Connection,
    /// None if one connection does everything.
    readers: Vec<Connection>,
}

/// Those with which calls look; those for what has become due; those for questions, which may take long.
const READERS: [(&str, usize, usize); 3] =
    [("sqlite-calls", 2, BATCH), ("sqlite-due", 1, 1), ("sqlite-ledger", 2, 1)];

impl Opened {
    fn new(path: &Path, sharing: Sharing) -> Result<Self, OpenError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let writer = connect(path, flags, sharing)?;
        let count =
            if sharing == Sharing::Many { READERS.iter().map(|(_, count, _)| count).sum() } else { 0 };
        let readers = (0..count).map(|_| connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, sharing));
        Ok(Self { path: path.to_owned(), writer, readers: readers.collect::<Result<_, _>>()? })
    }

    fn start(
        self,
        instance: InstanceId,
        reserve: Reserve,
        short_of_space: Arc<AtomicBool>,
        watermarks: Arc<Watermarks>,
        files: &Arc<Files>,
        fatal: &CancellationToken,
    ) -> Result<Sqlite, OpenError> {
        let thread = |name, connection, batch, writing| Thread {
            name,
            connection,
            batch,
            writing,
            files: files.clone(),
            fatal: fatal.clone(),
        };
        let interrupts = self.readers.iter().map(Connection::get_interrupt_handle).collect();
        let (writer, waiting) = Worker::new();
        let (mut threads, mut connections, mut pools) = (Vec::new(), self.readers.into_iter(), Vec::new());
        for (name, count, batch) in READERS {
            let (pool, waiting) = Worker::new();
            for connection in connections.by_ref().take(count) {
                let started = thread(name, connection, batch, None).start(waiting.clone());
                threads.push(started.map_err(|error| io(&self.path, error))?);
            }
            pools.push(pool);
        }
        let readers = match <[Worker; 3]>::try_from(pools) {
            Ok([calls, due, ledger]) if !threads.is_empty() => Readers { calls, due, ledger, interrupts },
            _ => Readers { calls: writer.clone(), due: writer.clone(), ledger: writer.clone(), interrupts },
        };
        let writing = Writing { reserve, watermarks: watermarks.clone(), readers: threads };
        let started = thread("sqlite-writer", self.writer, BATCH, Some(writing)).start(waiting);
        started.map_err(|error| io(&self.path, error))?;
        Ok(Sqlite {
            writer,
            readers: Arc::new(readers),
            instance,
            short_of_space,
            watermarks,
            endings: Arc::default(),
        })
    }
}

/// Whether a file could not be opened because the disk is full.
fn lacks_room(error: &OpenError) -> bool {
    let OpenError::Database { error, .. } = error else { return false };
    let extended = match error {
        rusqlite::Error::SqliteFailure(error, _) => error.extended_code,
        _ => 0,
    };
    matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::CannotOpen))
        || matches!(
            extended,
            ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMMAP
        )
}

pub(super) fn io(path: &Path, error: std::io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), error }
}

/// A page that cannot be read may be met before the whole file is checked.
fn database(path: &Path, error: rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged(path.to_owned(), error.to_string()),
        _ => OpenError::Database { path: path.to_owned(), error },
    }
}

/// The path without links; the file itself may not be there yet.
fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            Ok(path.file_name().map_or_else(|| folder.clone(), |name| folder.join(name)))
        }
        resolved => resolved,
    }
}

/// Whether Linux says that the file lies on NFS, SMB or 9P. Elsewhere nobody is asked.
fn on_network(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        const NETWORK: [u32; 5] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];
        let kind = rustix::fs::statfs(beside(path, ".lock")).map(|system| system.f_type as u32);
        kind.is_ok_and(|kind| NETWORK.contains(&kind))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        false
    }
}

fn connect(path: &Path, flags: OpenFlags, sharing: Sharing) -> Result<Connection, OpenError> {
    let database = |error| database(path, error);
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(database)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(database)?;
    if sharing == Sharing::One {
        connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE").map_err(database)?;
    }
    let writes = flags.contains(OpenFlags::SQLITE_OPEN_READ_WRITE);
    let pragmas = if writes { DURABLE } else { "PRAGMA query_only = 1;" };
    connection.execute_batch(pragmas).map_err(database)?;
    // What a pragma cannot do it does not say; so it is read back.
    let mode: Option<String> = pragma(&connection, "journal_mode").map_err(database)?;
    if mode.as_deref() != Some("wal") {
        let got = mode.unwrap_or_default();
        return Err(OpenError::Pragma { path: path.to_owned(), pragma: "journal_mode = WAL", got });
    }
    let synchronous: Option<i64> = pragma(&connection, "synchronous").map_err(database)?;
    if writes && synchronous.is_none_or(|level| level < 2) {
        let got = format!("{synchronous:?}");
        return Err(OpenError::Pragma { path: path.to_owned(), pragma: "synchronous = FULL", got });
    }
    Ok(connection)
}

/// Refuses what is another program's, and marks a new file as ours.
fn identify(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let database = |error| database(path, error);
    let id: Option<i32> = pragma(connection, "application_id").map_err(database)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(database)?;
    match id {
        Some(APPLICATION_ID) => Ok(()),
        Some(0) | None if tables == 0 => {
            connection.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}")).map_err(database)
        }
        _ => Err(OpenError::NotOurs(path.to_owned())),
    }
}

/// Reads the whole file once. A page that is damaged now would be found in the middle of a call.
fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    match pragma::<String>(connection, "quick_check(1)") {
        Ok(Some(said)) if said == "ok" => Ok(()),
        Ok(said) => Err(OpenError::Damaged(path.to_owned(), said.unwrap_or_default())),
        Err(error) => Err(OpenError::Damaged(path.to_owned(), error.to_string())),
    }
}

/// Makes the steps of the schema that the file has not made yet, each in a transaction of its own.
fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let database = |error| database(path, error);
    let made: i64 = pragma(connection, "user_version").map_err(database)?.unwrap_or(0);
    let steps = usize::try_from(made).ok().and_then(|made| MIGRATIONS.get(made..));
    let steps = steps.ok_or_else(|| OpenError::TooNew(path.to_owned(), made, MIGRATIONS.len()))?;
    for (step, version) in steps.iter().zip(made + 1..) {
        let transaction = connection.transaction().map_err(database)?;
        transaction.execute_batch(step).map_err(database)?;
        transaction.execute_batch(&format!("PRAGMA user_version = {version}")).map_err(database)?;
        transaction.commit().map_err(database)?;
    }
    Ok(())
}
