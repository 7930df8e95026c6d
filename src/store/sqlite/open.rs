//! Opening the file: nothing is served from one that is not local, not ours alone, not whole or not
//! of a schema that we know.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use tokio_util::sync::CancellationToken;

use super::reserve::{self, Reserve};
use super::worker::Worker;
use super::{Sqlite, pragma};
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
    #[error("{path}: no room for {} MiB to keep back for outcomes on a full disk: {error}", reserve::SIZE >> 20)]
    NoRoom { path: PathBuf, error: std::io::Error },
}

/// Held for as long as the store is open.
pub(super) struct Lock {
    _file: File,
    database: PathBuf,
    /// Device and inode of the database, once it is there.
    identity: OnceLock<(u64, u64)>,
}

impl Lock {
    /// Whether the database's name still stands for the file that was opened. One that was deleted
    /// or replaced takes writes without a complaint, and they are gone at the next start.
    pub(super) fn is_of_the_file(&self) -> bool {
        self.identity.get().is_none_or(|opened| identity(&self.database).is_some_and(|now| now == *opened))
    }

    fn remember_file(&self) {
        if let Some(identity) = identity(&self.database) {
            self.identity.get_or_init(|| identity);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok()
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
        let lock = Arc::new(lock(path)?);
        if on_network(path) {
            return Err(OpenError::NotLocal(path.to_owned()));
        }
        let mut connection =
            connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
        identify(&connection, path)?;
        check(&connection, path)?;
        migrate(&mut connection, path)?;
        lock.remember_file();
        let reader = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;

        let short_of_space = Arc::new(AtomicBool::new(false));
        let reserve = Reserve::new(beside(path, "reserve"), short_of_space.clone())
            .map_err(|error| OpenError::NoRoom { path: path.to_owned(), error })?;
        let start = |name, connection, begin, reserve| {
            Worker::start(name, connection, begin, reserve, lock.clone(), fatal.clone())
                .map_err(|error| io(path, error))
        };
        Ok(Self {
            // A writer that begins as a reader may find that it cannot become one.
            writer: start("sqlite-writer", connection, TransactionBehavior::Immediate, Some(reserve))?,
            reader: start("sqlite-reader", reader, TransactionBehavior::Deferred, None)?,
            instance,
            short_of_space,
            endings: Arc::default(),
        })
    }
}

fn io(path: &Path, error: std::io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), error }
}

/// A page that cannot be read may be met before the whole file is checked.
fn database(path: &Path, error: rusqlite::Error) -> OpenError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt) => OpenError::Damaged(path.to_owned(), error.to_string()),
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

/// `oncegate.db` and `lock` make `oncegate.db.lock`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn lock(path: &Path) -> Result<Lock, OpenError> {
    let lock_path = beside(path, "lock");
    let file = File::create(&lock_path).map_err(|error| io(&lock_path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file, database: path.to_owned(), identity: OnceLock::new() }),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(&lock_path, error)),
    }
}

/// Whether Linux says that the file lies on NFS, SMB or 9P. Elsewhere nobody is asked.
fn on_network(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        const NETWORK: [u32; 5] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997];
        let kind = rustix::fs::statfs(beside(path, "lock")).map(|system| system.f_type as u32);
        kind.is_ok_and(|kind| NETWORK.contains(&kind))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        false
    }
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, OpenError> {
    let database = |error| database(path, error);
    let connection =
        Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(database)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(database)?;
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
