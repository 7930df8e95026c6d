//! Reserved disk space, so that a full disk never loses an outcome.
//!
//! It is a file of fixed size beside the database. On a full disk the store deletes it, writes outcomes into its room, and
//! refuses claims until the file can be made again.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{At as _, OpenError};
use oncegate_store::private;

/// Sixteen outcomes of the largest size, or thousands of usual ones.
const SIZE: usize = 16 << 20;

/// How long after one try to take a released reserve back the next one may come.
const RETRY: Duration = Duration::from_secs(2);

pub(crate) struct Reserve {
    path: PathBuf,
    /// Whether the reserve is in use. Shared with the gate, which refuses claims.
    released: Arc<AtomicBool>,
    tried_at: Option<Instant>,
}

impl Reserve {
    /// Makes the file. On a full disk the reserve counts as released.
    ///
    /// # Errors
    /// The file cannot be made, and the disk is not full.
    pub(crate) fn new(path: PathBuf, released: Arc<AtomicBool>) -> Result<Self, OpenError> {
        let lacks_space = |error: &io::Error| {
            matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded
            )
        };
        let tried_at = match fill(&path) {
            Ok(()) => None,
            Err(error) if lacks_space(&error) => {
                tracing::error!(%error, "the disk is full: new calls are refused until there is room again");
                released.store(true, Ordering::SeqCst);
                Some(Instant::now())
            }
            Err(error) => return Err(error).at(&path),
        };
        Ok(Self {
            path,
            released,
            tried_at,
        })
    }

    /// Frees the space. False: it is in use already, or cannot be freed.
    pub(crate) fn release(&mut self) -> bool {
        if self.released.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.tried_at = Some(Instant::now());
        let freed = fs::remove_file(&self.path);
        tracing::error!(
            freed = freed.is_ok(),
            "the disk is full: outcomes use the reserve, new calls are refused"
        );
        freed.is_ok()
    }

    /// Takes the space back as soon as the disk has room again.
    pub(crate) fn refill(&mut self) {
        let due = self.tried_at.is_some_and(|tried| tried.elapsed() >= RETRY);
        if !due || !self.released.load(Ordering::SeqCst) {
            return;
        }
        self.tried_at = Some(Instant::now());
        if fill(&self.path).is_ok() {
            self.released.store(false, Ordering::SeqCst);
            tracing::info!("the disk has room again: the reserve is back, new calls are accepted");
        }
    }
}

/// Writes real blocks: a sparse file would reserve nothing.
///
/// Another size means an interrupted write.
fn fill(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && file.len() == SIZE as u64) {
        return Ok(());
    }
    let mut file = private::make_anew(path)?;
    let written = (|| {
        let block = [0x5a; 64 << 10];
        for _ in 0..SIZE / block.len() {
            file.write_all(&block)?;
        }
        file.sync_all()
    })();
    if written.is_err() {
        // Half a reserve would take the last room, which outcomes need.
        drop(fs::remove_file(path));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also if nothing was written for a long time after the disk was full.
    #[tokio::test(start_paused = true)]
    async fn a_released_reserve_is_taken_back_two_seconds_after_the_last_try() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("reserve");
        let released = Arc::new(AtomicBool::new(false));
        let mut reserve = Reserve::new(path.clone(), released.clone()).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").len(), SIZE as u64);
        assert!(reserve.release() && !path.exists());
        assert!(!reserve.release(), "it is in use already");
        reserve.refill();
        assert!(!path.exists() && released.load(Ordering::SeqCst));
        tokio::time::advance(RETRY).await;
        reserve.refill();
        assert_eq!(fs::metadata(&path).expect("there").len(), SIZE as u64);
        assert!(!released.load(Ordering::SeqCst));
    }
}
