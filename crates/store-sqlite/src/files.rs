//! The files of a database: locked while it is open, and compared with their names.

pub(crate) mod copy; // copies of the file
pub(crate) mod log; // the write-ahead log, and when its pages are moved into the file
pub(crate) mod mounts; // whether files can be kept beside the database
pub(crate) mod reserve; // disk space for outcomes when the disk is full
pub(crate) mod space; // how much room the file takes, and giving back what it does not need
pub(crate) mod together; // whether the file and its log belong together
pub(crate) mod watermarks; // whether the file has lost commits

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::{At as _, OpenError};
use oncegate_store::Reason;
use oncegate_store::private::{self, Locked};

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
    file: Database,
    _lock: Locked,
}

/// On other systems than Linux this lock and those of SQLite are of one kind, and exclude each other.
#[cfg(target_os = "linux")]
type Database = Locked;
#[cfg(not(target_os = "linux"))]
type Database = File;

/// The endings of the names of a database's files.
const ENDINGS: [&str; 7] = [
    "",
    "-wal",
    "-shm",
    ".lock",
    ".reserve",
    ".watermarks",
    ".checked",
];

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
        let lock = locked(lock, path)?;
        // SQLite's error would only say that it cannot open them.
        for beside in ["-wal", "-shm"].map(|ending| beside(path, ending)) {
            if private::is_link(&beside) {
                return Err(OpenError::Link(beside));
            }
        }
        let database = private::open_by_any_name(path).at(path)?;
        #[cfg(target_os = "linux")]
        let database = locked(database, path)?;
        let opened = database.metadata().at(path)?;
        if opened.nlink() > 1 {
            return Err(OpenError::Linked(path.to_owned()));
        }
        Ok(Self {
            database: path.to_owned(),
            log: beside(path, "-wal"),
            opened: identity(&opened),
            opened_log: OnceLock::new(),
            file: database,
            _lock: lock,
        })
    }

    /// The path of the database.
    pub(super) fn path(&self) -> &Path {
        &self.database
    }

    /// Reads bytes of the database, without its log.
    pub(super) fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    /// Tells the system that these bytes are read soon.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_variables, clippy::unused_self, reason = "only Linux is told")
    )]
    pub(super) fn expect(&self, at: u64, length: u64) {
        #[cfg(target_os = "linux")]
        {
            let length = std::num::NonZero::new(length);
            // A hint only.
            rustix::fs::fadvise(&*self.file, at, length, rustix::fs::Advice::WillNeed).ok();
        }
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

fn locked(file: File, path: &Path) -> Result<Locked, OpenError> {
    match Locked::new(file) {
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(error).at(path),
        Ok(locked) => Ok(locked),
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
