//! Refuses writes on a full disk, and while the store has lost data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Error, Result, ffi};

use super::watermarks::Watermarks;

const LOST: &str = "the store has lost data";

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

    /// Whether a claim, or the first version of a document, may be written.
    pub(super) fn may_begin(&self) -> Result<()> {
        self.must_be_whole()?;
        self.must_have_room()
    }

    pub(super) fn must_have_room(&self) -> Result<()> {
        refuse_if(
            self.is_short_of_space(),
            ffi::SQLITE_FULL,
            "the disk is full",
        )
    }

    pub(super) fn must_be_whole(&self) -> Result<()> {
        refuse_if(self.has_lost_data(), ffi::SQLITE_READONLY, LOST)
    }

    pub(super) fn must_keep_documents(&self) -> Result<()> {
        let is_closed = !self.watermarks.keeps_documents();
        refuse_if(is_closed, ffi::SQLITE_READONLY, LOST)
    }
}

fn refuse_if(is_closed: bool, code: i32, why: &str) -> Result<()> {
    if is_closed {
        return Err(Error::SqliteFailure(
            ffi::Error::new(code),
            Some(why.into()),
        ));
    }
    Ok(())
}
