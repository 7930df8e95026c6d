//! The result of the last check, in a small file beside the database.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::files::beside;
use oncegate_store::private;

const TITLE: &str = "oncegate-check 1";
const DAMAGED: &str = "damaged";

/// What the file says. Without a file, and with one that cannot be read, nothing is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) is_damaged: bool,
    /// When the last complete check found no damage.
    pub(super) checked_at: Option<Timestamp>,
}

impl Last {
    pub(super) fn path(database: &Path) -> PathBuf {
        beside(database, ".checked")
    }

    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        match text.trim_end().strip_prefix(TITLE).map(str::trim_start) {
            Some(DAMAGED) => Self {
                is_damaged: true,
                checked_at: None,
            },
            Some(time) => Self {
                is_damaged: false,
                checked_at: time.parse().ok(),
            },
            None => Self::default(),
        }
    }

    /// Notes damage, so that the next start reads the whole file before it claims anything.
    pub(super) fn damaged(path: &Path) {
        write(path, DAMAGED);
    }

    pub(super) fn whole(path: &Path, at: Timestamp) {
        write(path, &at.to_string());
    }
}

fn write(path: &Path, what: &str) {
    let written = || -> io::Result<()> {
        let mut file = private::make_anew(path)?;
        writeln!(file, "{TITLE} {what}")?;
        file.sync_all()
    };
    if let Err(error) = written() {
        tracing::warn!(path = %path.display(), %error, "the result of the check cannot be stored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_check_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = Last::path(&folder.path().join("oncegate.db"));
        assert_eq!(Last::read(&path), Last::default());
        let at = Timestamp::from_second(1_800_000_000).expect("a time");
        Last::whole(&path, at);
        let known = |is_damaged, checked_at| Last {
            is_damaged,
            checked_at,
        };
        assert_eq!(Last::read(&path), known(false, Some(at)));
        Last::damaged(&path);
        assert_eq!(Last::read(&path), known(true, None));
        fs::write(&path, "something else").expect("written");
        assert_eq!(Last::read(&path), Last::default());
    }
}
