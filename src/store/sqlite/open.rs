//! Opening the file, after checks: it is local, ours alone, whole, and of a known layout.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::error::{LAYOUT, OpenError, database, io};
use super::files::{Files, beside};
use super::gate::Gate;
use super::log::Log;
use super::reserve::Reserve;
use super::together::{self, Alone, Together};
use super::watermarks::{self, Watermarks};
use super::worker::{BATCH, Thread, Worker, Writing};
use super::{Readers, Sqlite, pragma};
use crate::core::record::InstanceId;

/// "once" in ASCII: marks the file as ours.
const APPLICATION_ID: i32 = 0x6f6e_6365;
const SCHEMA: &str = include_str!("schema.sql");
/// The first SQLite whose checkpoint cannot reset the log under other connections.
const OLDEST_SQLITE: i32 = 3_051_003;
/// Settings for durable commits.
///
/// On macOS only a full fsync reaches the disk; elsewhere the last two change nothing.
const DURABLE: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;";
/// Pages that the writer keeps in memory, in KiB and at the most: the inner pages of every tree of 10 million calls.
/// With SQLite's 2 MB a claim reads pages again that the one before it has read.
const WRITER_CACHE: &str = "PRAGMA cache_size = -65536;";
/// The same for each reader. Less, because a commit of the writer empties it.
///
/// Nothing is mapped into memory (`mmap_size`): it would save a copy of each page, which is in the system's memory
/// anyway; but a page that cannot be read, or a file that was cut off, would end the process by a signal, without an error
/// that says so.
const READER_CACHE: &str = "PRAGMA cache_size = -8192;";
/// Most prepared statements; there are fewer.
const STATEMENTS: usize = 64;

impl Sqlite {
    /// Opens the file at `path`, or makes it, after every start-up check.
    ///
    /// `instance` is this run of the gateway. `fatal` is cancelled when the file fails under way:
    /// then the process must end and start over with recovery.
    ///
    /// # Errors
    /// The file cannot be trusted with money; says why.
    pub fn open(
        path: &Path,
        instance: InstanceId,
        fatal: &CancellationToken,
    ) -> Result<Self, OpenError> {
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
        let alone = together::read_alone(path);
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
            tracing::warn!(
                "the disk is full: until the next start one connection reads and writes"
            );
            Opened::new(path, Sharing::One)
        })?;
        identify(&opened.writer, path)?;
        let is_new = !has_layout(&opened.writer, path)?;
        if !is_new {
            is_together(&opened.writer, path, alone)?;
        }
        check(&opened.writer, path)?;
        if is_new {
            lay_out(&mut opened.writer).map_err(|error| database(path, error))?;
        }
        // From here on the log may be moved into the file.
        let moves = opened
            .writer
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
        moves.map_err(|error| database(path, error))?;
        files.remember_log();
        let watermarks = Watermarks::open(beside(path, ".watermarks"), &opened.writer);
        let watermarks = watermarks.map_err(|error| match error {
            watermarks::OpenError::Io(error) => io(&beside(path, ".watermarks"), error),
            watermarks::OpenError::Database(error) => database(path, error),
        })?;
        let log = Log::of(&mut opened.writer).map_err(|error| database(path, error))?;
        let short_of_space = Arc::new(AtomicBool::new(false));
        let reserve = Reserve::new(reserve, short_of_space.clone());
        let reserve = reserve.map_err(|error| io(&beside(path, ".reserve"), error))?;
        if let Some(exposed) = files.exposed() {
            tracing::warn!("{}", exposed.text);
        }
        let writing = Writing {
            reserve,
            watermarks: Arc::new(watermarks),
            log,
            readers: Vec::new(),
        };
        opened.start(instance, writing, short_of_space, &files, fatal)
    }
}

/// How many connections a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Many,
    /// One connection.
    ///
    /// It needs no index of the log in shared memory, which is a file for which there may be no
    /// room.
    One,
}

/// The connections to a file.
struct Opened {
    path: PathBuf,
    writer: Connection,
    /// Empty if one connection does everything.
    readers: Vec<Connection>,
}

/// The readers: for calls on their way, for due calls, and for questions, which may take long.
const READERS: [(&str, usize, usize); 3] = [
    ("sqlite-calls", 2, BATCH),
    ("sqlite-due", 1, 1),
    ("sqlite-ledger", 2, 1),
];

impl Opened {
    fn new(path: &Path, sharing: Sharing) -> Result<Self, OpenError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let writer = connect(path, flags, sharing)?;
        let count = if sharing == Sharing::Many {
            READERS.iter().map(|(_, count, _)| count).sum()
        } else {
            0
        };
        let readers = (0..count).map(|_| connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, sharing));
        Ok(Self {
            path: path.to_owned(),
            writer,
            readers: readers.collect::<Result<_, _>>()?,
        })
    }

    fn start(
        self,
        instance: InstanceId,
        writing: Writing,
        short_of_space: Arc<AtomicBool>,
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
        let interrupts = self
            .readers
            .iter()
            .map(Connection::get_interrupt_handle)
            .collect();
        let (writer, waiting) = Worker::new();
        let (mut threads, mut connections, mut pools) =
            (Vec::new(), self.readers.into_iter(), Vec::new());
        for (name, count, batch) in READERS {
            let (pool, waiting) = Worker::new();
            for connection in connections.by_ref().take(count) {
                let started = thread(name, connection, batch, None).start(waiting.clone());
                threads.push(started.map_err(|error| io(&self.path, error))?);
            }
            pools.push(pool);
        }
        // Without threads of their own the one that writes does everything.
        let reader = |at: usize| {
            if threads.is_empty() {
                writer.clone()
            } else {
                pools[at].clone()
            }
        };
        let readers = Readers {
            calls: reader(0),
            due: reader(1),
            ledger: reader(2),
            interrupts,
        };
        let watermarks = writing.watermarks.clone();
        let writing = Writing {
            readers: threads,
            ..writing
        };
        let started = thread("sqlite-writer", self.writer, BATCH, Some(writing)).start(waiting);
        started.map_err(|error| io(&self.path, error))?;
        Ok(Sqlite {
            writer,
            readers: Arc::new(readers),
            instance,
            gate: Gate {
                short_of_space,
                watermarks,
            },
            files: Arc::downgrade(files),
            endings: Arc::default(),
        })
    }
}

/// Whether a file could not be opened because the disk is full.
fn lacks_room(error: &OpenError) -> bool {
    let OpenError::Database { error, .. } = error else {
        return false;
    };
    let extended = match error {
        rusqlite::Error::SqliteFailure(error, _) => error.extended_code,
        _ => 0,
    };
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::CannotOpen)
    ) || matches!(
        extended,
        ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMMAP
    )
}

/// The path without links; the file itself may not be there yet.
fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
            Ok(path
                .file_name()
                .map_or_else(|| folder.clone(), |name| folder.join(name)))
        }
        resolved => resolved,
    }
}

/// Whether Linux says that the file is on NFS, SMB or 9P. Other systems are not checked.
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
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(database)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Else a cached statement is planned again for each value that a partial index might fit.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(database)?;
    // A file that is not served from is left as it was, and so is its log.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(database)?;
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .map_err(database)?;
    if sharing == Sharing::One {
        connection
            .execute_batch("PRAGMA locking_mode = EXCLUSIVE")
            .map_err(database)?;
    }
    let writes = flags.contains(OpenFlags::SQLITE_OPEN_READ_WRITE);
    let pragmas = if writes {
        [DURABLE, WRITER_CACHE]
    } else {
        ["PRAGMA query_only = 1;", READER_CACHE]
    };
    connection
        .execute_batch(&pragmas.concat())
        .map_err(database)?;
    // What a pragma cannot do it does not say; so it is read back.
    let mode: Option<String> = pragma(&connection, "journal_mode").map_err(database)?;
    if mode.as_deref() != Some("wal") {
        let got = mode.unwrap_or_default();
        return Err(OpenError::Pragma {
            path: path.to_owned(),
            pragma: "journal_mode = WAL",
            got,
        });
    }
    let synchronous: Option<i64> = pragma(&connection, "synchronous").map_err(database)?;
    if writes && synchronous.is_none_or(|level| level < 2) {
        let got = format!("{synchronous:?}");
        return Err(OpenError::Pragma {
            path: path.to_owned(),
            pragma: "synchronous = FULL",
            got,
        });
    }
    Ok(connection)
}

/// Refuses another program's file, and marks a new one as ours.
fn identify(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let database = |error| database(path, error);
    let id: Option<i32> = pragma(connection, "application_id").map_err(database)?;
    let is_used = has_tables(connection).map_err(database)?;
    match id {
        Some(APPLICATION_ID) => Ok(()),
        Some(0) | None if !is_used => connection
            .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}"))
            .map_err(database),
        _ => Err(OpenError::NotOurs(path.to_owned())),
    }
}

/// Reads the whole file once, so that a damaged page is found now.
fn check(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    match pragma::<String>(connection, "quick_check(1)") {
        Ok(Some(said)) if said == "ok" => Ok(()),
        Ok(said) => Err(OpenError::Damaged(
            path.to_owned(),
            said.unwrap_or_default(),
        )),
        Err(error) => Err(OpenError::Damaged(path.to_owned(), error.to_string())),
    }
}

/// Whether the file has its tables; a new one has none.
fn has_layout(connection: &Connection, path: &Path) -> Result<bool, OpenError> {
    let found: Option<i64> =
        pragma(connection, "user_version").map_err(|error| database(path, error))?;
    match found.unwrap_or(0) {
        LAYOUT => Ok(true),
        // The tables are made in one step.
        0 if !has_tables(connection).map_err(|error| database(path, error))? => Ok(false),
        other => Err(OpenError::OtherLayout(path.to_owned(), other)),
    }
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| {
            row.get::<_, i64>(0)
        })
        .map(|n| n > 0)
}

/// Refuses a file that does not belong to its log.
fn is_together(connection: &Connection, path: &Path, alone: Alone) -> Result<(), OpenError> {
    let sql = "SELECT epoch, former, commits, in_file FROM ledger";
    let together = connection.query_row(sql, [], |row| {
        let (epoch, former) = (Uuid::from_bytes(row.get(0)?), Uuid::from_bytes(row.get(1)?));
        let (commits, in_file): (i64, i64) = (row.get(2)?, row.get(3)?);
        Ok(Together {
            epoch,
            former,
            commits: commits.unsigned_abs(),
            in_file: in_file.unsigned_abs(),
        })
    });
    let together = together.map_err(|error| database(path, error))?;
    match together::compare(alone, together) {
        Some(why) => Err(OpenError::Apart(path.to_owned(), why)),
        None => Ok(()),
    }
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
        assert_eq!((LAYOUT, digest.as_str()), (15, "070d8040919cc2f6"));
    }
}
