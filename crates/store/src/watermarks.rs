//! The file of watermarks: what one gateway remembers of a shared store over its restarts.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Reason;
use super::private::{self, Locked};

/// How far the token in the file is ahead of the newest token.
pub const TOKENS_AHEAD_US: u64 = 10_000_000;
/// A token that is further ahead of the clock is a fault: no clock was set by that much.
pub const TOKEN_LIMIT_US: u64 = 24 * 3_600 * 1_000_000;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WatermarksError {
    #[error("{0}: another gateway uses it; each needs a file of its own")]
    InUse(PathBuf),
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    #[error("{0}: this is not a file of watermarks: {1}")]
    Damaged(PathBuf, serde_json::Error),
}

/// For what the file is written.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// For a stop: no more tokens are drawn, so the token in the file need not be ahead.
    Last,
    /// To keep it new: only if it is behind memory, or its token is nearly reached.
    IfOld,
    /// For this token: only if it is above the token in the file.
    Token(u64),
}

/// The tokens that decide whether the file is written.
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    /// The newest one in memory.
    pub newest: u64,
    /// The newest one that this process has drawn; 0 before the first.
    pub drawn: u64,
    pub in_file: u64,
}

impl Need {
    /// The token that the file gets. `None`: the file need not be written. `is_other`: memory is otherwise not as the file.
    ///
    /// The token in the file is ahead of those that were given, as in a timestamp oracle, so that not every token has to
    /// wait for the disk.
    pub fn token(self, tokens: Tokens, is_other: bool) -> Option<u64> {
        let Tokens {
            newest,
            drawn,
            in_file,
        } = tokens;
        let is_nearly_reached = drawn > in_file.saturating_sub(TOKENS_AHEAD_US / 2);
        let is_needed = match self {
            Self::Last => return Some(newest),
            Self::IfOld => newest > in_file || is_nearly_reached || is_other,
            Self::Token(token) => token > in_file,
        };
        // A process that has drawn no token yet does not move the token in the file.
        let ahead = if drawn > 0 {
            drawn.saturating_add(TOKENS_AHEAD_US)
        } else {
            0
        };
        is_needed.then_some(newest.max(ahead).max(in_file))
    }
}

/// A file of watermarks, as JSON.
pub struct WatermarksFile {
    path: PathBuf,
    /// Held as long as this process may write the file; `None` if it only reads it.
    lock: Option<Locked>,
}

impl WatermarksFile {
    /// Locks and reads the file; nothing if there is none yet. A visitor neither locks nor writes it.
    ///
    /// # Errors
    /// Another process has it, or it cannot be read.
    pub fn open<T: DeserializeOwned>(
        path: &Path,
        is_visitor: bool,
    ) -> Result<(Self, Option<T>), WatermarksError> {
        let io = |error| WatermarksError::Io(path.to_owned(), error);
        let lock = (!is_visitor).then(|| lock_file(path)).transpose()?;
        if private::is_link(path) {
            let why = "it is a symbolic link, which is not followed";
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let found = match fs::read(path) {
            Ok(text) => Some(
                serde_json::from_slice(&text)
                    .map_err(|error| WatermarksError::Damaged(path.to_owned(), error))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io(error)),
        };
        let path = path.to_owned();
        Ok((Self { path, lock }, found))
    }

    /// Whether this process may write it.
    pub fn is_ours(&self) -> bool {
        self.lock.is_some()
    }

    /// Writes it for the first time: a file that cannot be written is found at the start, and not in the middle of an incident.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn try_out<T: Serialize>(&self, content: &T) -> Result<(), WatermarksError> {
        if let Some(exposed) = self.exposed() {
            tracing::warn!("{}", exposed.text);
        }
        let io = |error| WatermarksError::Io(self.path.clone(), error);
        self.write(content).map_err(io)
    }

    /// The warning that other users may read or write the file.
    pub fn exposed(&self) -> Option<Reason> {
        private::exposed([self.path.as_path()].into_iter())
    }

    /// Replaces the file, so that it survives a loss of power. A visitor's stays as it is. Blocks.
    ///
    /// # Errors
    /// It is as it was, or as it is to be.
    pub fn write<T: Serialize>(&self, content: &T) -> io::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        let new = beside(&self.path, "new");
        let mut file = private::make_anew(&new)?;
        file.write_all(&serde_json::to_vec(content)?)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }
}

/// Locks a file beside it, because each save replaces the file itself.
fn lock_file(path: &Path) -> Result<Locked, WatermarksError> {
    let io = |error| WatermarksError::Io(path.to_owned(), error);
    let file = private::open(&beside(path, "lock")).map_err(io)?;
    Locked::new(file).map_err(|error| match error {
        TryLockError::WouldBlock => WatermarksError::InUse(path.to_owned()),
        TryLockError::Error(error) => io(error),
    })
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{ending}"));
    name.into()
}
