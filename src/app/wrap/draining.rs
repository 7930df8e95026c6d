//! A file that tells the next process that this one is ending.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A file which says that the holder of the store's file is draining.
pub(super) struct Draining(PathBuf);

impl Draining {
    pub(super) fn of(store: &Path) -> Self {
        let mut path = store.as_os_str().to_owned();
        path.push(".draining");
        Self(path.into())
    }

    // If it cannot be made, another client takes another file. A link in its place is not followed.
    pub(super) fn begin(&self) {
        File::create_new(&self.0).ok();
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.exists()
    }

    pub(super) fn end(&self) {
        std::fs::remove_file(&self.0).ok();
    }
}
