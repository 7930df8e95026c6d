//! Why a gateway does not open a file, and the version of its tables.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// The version of the tables: `user_version` of every file that is served from.
///
/// Raise it with each change of the schema, and when an older gateway would misread a document. Then add a step to
/// `upgrade.rs`, and the next release to [`RELEASES`].
pub(super) const LAYOUT: i64 = 16;
/// The oldest layout that is carried forward.
pub(super) const OLDEST_LAYOUT: i64 = 15;
/// Which releases serve from a file of each layout.
pub(super) const RELEASES: [(i64, &str); 2] = [(15, "0.2.0"), (16, "0.3.0")];

/// Why a gateway does not open a file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    #[error("{0} is in use by another gateway; a SQLite store belongs to one process")]
    InUse(PathBuf),
    #[error(
        "{0} has another name (a hard link), under which another gateway may use it; remove one of them"
    )]
    Linked(PathBuf),
    #[error("{0} is a symbolic link, which is not followed; remove it")]
    Link(PathBuf),
    #[error(
        "{0} is a mount point of its own: its newest commits and its watermarks lie beside it and would be lost; mount the \
         folder instead"
    )]
    Mounted(PathBuf),
    #[error(
        "the folder {0} cannot be written ({1}): the newest commits and the watermarks are stored there, beside the database"
    )]
    Folder(PathBuf, io::Error),
    #[error("{0} lies on a network file system, where locks and fsync cannot be trusted")]
    NotLocal(PathBuf),
    #[error("{0}: {1}")]
    Database(PathBuf, rusqlite::Error),
    #[error("{0} is a SQLite file, but not one of oncegate")]
    NotOurs(PathBuf),
    #[error(
        "{0} has layout {1}, and this release knows layouts up to {LAYOUT}: a newer release has served it. Nothing was \
         changed; start that release"
    )]
    Newer(PathBuf, i64),
    #[error(
        "{0} has layout {1}, which is older than that of 0.2.0 ({OLDEST_LAYOUT}); serve from it with the release that \
         wrote it, or start with another file and reconcile"
    )]
    TooOld(PathBuf, i64),
    #[error(
        "{0} is not upgraded, because the backup before it cannot be written: {1}. Nothing was changed; make room, or \
         write it elsewhere: oncegate store upgrade --backup FILE"
    )]
    NoBackup(PathBuf, String),
    #[error("{0} could not be upgraded to layout {1} and is as it was: {2}")]
    NotUpgraded(PathBuf, i64, rusqlite::Error),
    #[error("{0}: {1}")]
    NotCopied(PathBuf, String),
    #[error("{0} does not exist")]
    Missing(PathBuf),
    #[error(
        "{0} and the write-ahead log beside it (-wal) do not belong together: {1}. Nothing was changed. Put the file \
         there that belongs to the log; or remove -wal and -shm, start, and accept the loss"
    )]
    Apart(PathBuf, String),
    #[error("{0} is damaged: {1}; restore a backup, or start with another file and reconcile")]
    Damaged(PathBuf, String),
    #[error("{0}: SQLite would not give {1}, it says {2}")]
    Pragma(PathBuf, &'static str, String),
    #[error("SQLite {0} is too old")]
    OldSqlite(&'static str),
}

/// Adds the path of the file to an error.
pub(super) trait At<T> {
    fn at(self, path: &Path) -> Result<T, OpenError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, OpenError> {
        self.map_err(|error| OpenError::Io(path.to_owned(), error))
    }
}

impl<T> At<T> for rusqlite::Result<T> {
    /// An unreadable page means a damaged file: a start may read one before it checks the whole file.
    fn at(self, path: &Path) -> Result<T, OpenError> {
        let path = path.to_owned();
        self.map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged(path, error.to_string()),
            _ => OpenError::Database(path, error),
        })
    }
}
