//! Refuses writes on a full disk, while the store has lost data, and over a file that is damaged or not checked yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Error, Result, ffi};

use crate::check::Check;
use crate::files::watermarks::Watermarks;
use oncegate_rules::key::Lookup;

const LOST: &str = "the store has lost data";

#[derive(Clone)]
pub(super) struct Gate {
    /// Whether the disk is full and the reserve in use.
    pub(super) short_of_space: Arc<AtomicBool>,
    pub(super) watermarks: Arc<Watermarks>,
    pub(super) check: Arc<Check>,
}

impl Gate {
    pub(super) fn is_short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::SeqCst)
    }

    /// Whether data was lost or is damaged. Then what is stored does not tell what may be done.
    pub(super) fn is_closed(&self) -> bool {
        self.watermarks.is_lost() || self.check.is_damaged()
    }

    /// Whether a claim, or the first version of a document, may be written.
    pub(super) fn may_begin(&self) -> Result<()> {
        self.must_be_whole()?;
        if let Some(why) = self.check.must_wait() {
            return Err(refused(ffi::SQLITE_READONLY, why));
        }
        self.must_have_space()
    }

    /// Whether a claim of these lookup keys, which were not found, may be written.
    pub(super) fn may_claim<'a>(&self, absent: impl Iterator<Item = &'a Lookup>) -> Result<()> {
        self.may_begin()?;
        let free = self.check.must_be_free(absent);
        free.map_err(|why| refused(ffi::SQLITE_READONLY, format!("the file is damaged: {why}")))
    }

    pub(super) fn must_have_space(&self) -> Result<()> {
        refuse_if(
            self.is_short_of_space(),
            ffi::SQLITE_FULL,
            "the disk is full",
        )
    }

    pub(super) fn must_be_whole(&self) -> Result<()> {
        refuse_if(self.watermarks.is_lost(), ffi::SQLITE_READONLY, LOST)?;
        match self.check.damage() {
            Some(why) => Err(refused(
                ffi::SQLITE_READONLY,
                format!("the file is damaged: {why}"),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn must_keep_documents(&self) -> Result<()> {
        let is_closed = !self.watermarks.keeps_documents();
        refuse_if(is_closed, ffi::SQLITE_READONLY, LOST)
    }
}

fn refuse_if(is_closed: bool, code: i32, why: &str) -> Result<()> {
    if is_closed {
        return Err(refused(code, why.to_owned()));
    }
    Ok(())
}

fn refused(code: i32, why: String) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), Some(why))
}
