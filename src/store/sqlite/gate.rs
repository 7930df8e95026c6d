//! Refuses writes on a full disk, and while data is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Error, ffi};

use super::watermarks::Watermarks;

#[derive(Clone)]
pub(super) struct Gate {
    /// Whether the disk is full and the reserve in use.
    pub(super) short_of_space: Arc<AtomicBool>,
    pub(super) watermarks: Arc<Watermarks>,
}

impl Gate {
    pub(super) fn is_short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::SeqCst)
    }

    pub(super) fn has_lost_data(&self) -> bool {
        self.watermarks.is_lost()
    }

    /// Refuses a claim, or the first version of a document.
    pub(super) fn may_begin(&self) -> rusqlite::Result<()> {
        self.must_be_whole()?;
        self.must_have_room()
    }

    pub(super) fn must_have_room(&self) -> rusqlite::Result<()> {
        if self.is_short_of_space() {
            return Err(refused(ffi::SQLITE_FULL, "the disk is full"));
        }
        Ok(())
    }

    pub(super) fn must_be_whole(&self) -> rusqlite::Result<()> {
        refuse_if(self.has_lost_data())
    }

    pub(super) fn must_keep_documents(&self) -> rusqlite::Result<()> {
        refuse_if(!self.watermarks.keeps_documents())
    }
}

fn refuse_if(is_lost: bool) -> rusqlite::Result<()> {
    if is_lost {
        return Err(refused(ffi::SQLITE_READONLY, "the store has lost data"));
    }
    Ok(())
}

fn refused(code: i32, why: &str) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), Some(why.into()))
}
