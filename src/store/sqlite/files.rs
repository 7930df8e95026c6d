//! The files of a database: locked while it is open, and compared with their names.

use std::fs::{self, File, Metadata, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::{OpenError, io};
use crate::store::{Reason, private};

/// The lock and the opened files, for as long as the database is open.
pub(super) struct Files {
    database: PathBuf,
    log: PathBuf,
    opened: Identity,
    /// The write-ahead log, once it is there.
    opened_log: OnceLock<Identity>,
    /// The locked database.
    ///
    /// Closing a descriptor of it drops SQLite's locks on it, so this one is closed after the last
    /// connection, and no other one is ever opened.
    _database: File,
    _lock: File,
}

/// The endings of the names of a database's files.
const ENDINGS: [&str; 6] = ["", "-wal", "-shm", ".lock", ".reserve", ".watermarks"];

/// Device and inode.
type Identity = (u64, u64);

impl Files {
    /// Locks the database, and makes an empty one if there is none.
    ///
    /// # Errors
    /// Another process has it, or it has another name.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        let lock_path = beside(path, ".lock");
        let lock = private::open(&lock_path).map_err(|error| io(&lock_path, error))?;
        try_lock(&lock, path)?;
        // SQLite would say of these only that it cannot open them.
        for beside in ["-wal", "-shm"].map(|ending| beside(path, ending)) {
            if private::is_link(&beside) {
                return Err(OpenError::Link(beside));
            }
        }
        let database = private::open_by_any_name(path).map_err(|e| io(path, e))?;
        // Elsewhere this lock and those of SQLite are of one kind, and exclude each other.
        if cfg!(target_os = "linux") {
            try_lock(&database, path)?;
        }
        let opened = database.metadata().map_err(|error| io(path, error))?;
        if opened.nlink() > 1 {
            return Err(OpenError::Linked(path.to_owned()));
        }
        let (opened, opened_log) = (identity(&opened), OnceLock::new());
        let log = beside(path, "-wal");
        Ok(Self {
            database: path.to_owned(),
            log,
            opened,
            opened_log,
            _database: database,
            _lock: lock,
        })
    }

    /// The warning that other users may read some of the files.
    pub(super) fn exposed(&self) -> Option<Reason> {
        let all = ENDINGS.map(|ending| beside(&self.database, ending));
        private::exposed(all.iter().map(PathBuf::as_path))
    }

    /// Remembers the write-ahead log, which is there from now on.
    pub(super) fn remember_log(&self) {
        if let Some(there) = identity_of(&self.log) {
            self.opened_log.get_or_init(|| there);
        }
    }

    /// Whether the names of database and log still stand for the opened files.
    ///
    /// Files that were deleted or replaced take writes without an error, and lose them at the next
    /// start.
    pub(super) fn are_those_opened(&self) -> bool {
        let log = self.opened_log.get();
        identity_of(&self.database) == Some(self.opened)
            && log.is_none_or(|opened| identity_of(&self.log) == Some(*opened))
    }
}

fn try_lock(file: &File, path: &Path) -> Result<(), OpenError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::InUse(path.to_owned()),
        TryLockError::Error(error) => io(path, error),
    })
}

fn identity(file: &Metadata) -> Identity {
    (file.dev(), file.ino())
}

fn identity_of(path: &Path) -> Option<Identity> {
    fs::metadata(path).map(|file| identity(&file)).ok()
}

/// `oncegate.db` and `.lock` make `oncegate.db.lock`.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
