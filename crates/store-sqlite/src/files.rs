//! The files of a database: locked while it is open, and compared with their names.

use std::fs::{self, File, Metadata, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::{At as _, OpenError};
use super::mounts;
use oncegate_store::{Reason, private};

/// The lock and the opened files, for as long as the database is open.
pub(super) struct Files {
    database: PathBuf,
    log: PathBuf,
    opened: Identity,
    /// The write-ahead log, once it exists.
    opened_log: OnceLock<Identity>,
    /// The locked database.
    ///
    /// Closing any descriptor of the file drops SQLite's locks on it. So this one is closed after the last connection, and
    /// no other one is ever opened.
    _database: File,
    _lock: File,
}

/// The endings of the names of a database's files.
const ENDINGS: [&str; 6] = ["", "-wal", "-shm", ".lock", ".reserve", ".watermarks"];

/// The files of the database at this path, which may be missing.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    ENDINGS.map(|ending| beside(path, ending)).into()
}

/// Device and inode.
type Identity = (u64, u64);

impl Files {
    /// Locks the database. Makes an empty one if it is missing.
    ///
    /// # Errors
    /// Another process uses it, it has another name, or other files cannot be kept beside it.
    pub(super) fn lock(path: &Path) -> Result<Self, OpenError> {
        mounts::check(path)?;
        let lock_path = beside(path, ".lock");
        let lock = private::open(&lock_path).at(&lock_path)?;
        try_lock(&lock, path)?;
        // SQLite's error would only say that it cannot open them.
        for beside in ["-wal", "-shm"].map(|ending| beside(path, ending)) {
            if private::is_link(&beside) {
                return Err(OpenError::Link(beside));
            }
        }
        let database = private::open_by_any_name(path).at(path)?;
        // On other systems this lock and those of SQLite are of one kind, and exclude each other.
        if cfg!(target_os = "linux") {
            try_lock(&database, path)?;
        }
        let opened = database.metadata().at(path)?;
        if opened.nlink() > 1 {
            return Err(OpenError::Linked(path.to_owned()));
        }
        Ok(Self {
            database: path.to_owned(),
            log: beside(path, "-wal"),
            opened: identity(&opened),
            opened_log: OnceLock::new(),
            _database: database,
            _lock: lock,
        })
    }

    /// The warning that other users may read some of the files.
    pub(super) fn exposed(&self) -> Option<Reason> {
        let all = files_of(&self.database);
        private::exposed(all.iter().map(PathBuf::as_path))
    }

    /// Remembers the write-ahead log, which exists from now on.
    pub(super) fn remember_log(&self) {
        if let Some(log) = identity_of(&self.log) {
            self.opened_log.get_or_init(|| log);
        }
    }

    /// Whether the names of database and log still stand for the opened files.
    ///
    /// Deleted or replaced files take writes without an error, and the next start does not find these writes.
    pub(super) fn are_those_opened(&self) -> bool {
        let log = self.opened_log.get();
        identity_of(&self.database) == Some(self.opened)
            && log.is_none_or(|opened| identity_of(&self.log) == Some(*opened))
    }
}

fn try_lock(file: &File, path: &Path) -> Result<(), OpenError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(error).at(path),
        Ok(()) => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_is_not_the_one_that_was_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path: &Path = &folder.path().join("oncegate.db");
        let files = Files::lock(path).expect("locked");
        assert!(files.are_those_opened());
        let other = folder.path().join("other");
        fs::write(&other, "").expect("written");
        fs::rename(&other, path).expect("replaced");
        assert!(!files.are_those_opened());
    }
}
