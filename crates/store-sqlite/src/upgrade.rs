//! Steps from layout to layout, so that a file of each release since 0.2.0 is opened and nothing in it is lost.
//!
//! A copy of the file is made first. Then all steps are done in one transaction: after a crash the file has the old layout
//! or today's, and never one in between. A step is not counted as a commit, so the watermarks fit both.

use std::path::{Path, PathBuf};

use oncegate_hooks::crash;
use rusqlite::{Connection, TransactionBehavior};

use super::error::{LAYOUT, OpenError};
use super::files::{beside, copy};

/// From the layout before this one to this one.
struct Step {
    to: i64,
    sql: &'static str,
}

/// All steps in order. A released step is never changed.
const STEPS: [Step; 1] = [Step {
    to: 16,
    sql: include_str!("upgrade/16.sql"),
}];

/// The copy that is made before an upgrade.
#[derive(Debug, Clone, Default)]
pub enum Backup {
    /// Beside the file, with the layout in its name.
    #[default]
    Beside,
    At(PathBuf),
    /// The operator has one.
    None,
}

impl Backup {
    /// Where it is written; `None`: it is not.
    fn path(&self, file: &Path, layout: i64) -> Option<PathBuf> {
        match self {
            Self::Beside => Some(beside(file, &format!(".layout-{layout}"))),
            Self::At(path) => Some(path.clone()),
            Self::None => None,
        }
    }
}

/// An upgrade that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgraded {
    pub from: i64,
    pub to: i64,
    /// The copy of the file as it was.
    pub backup: Option<PathBuf>,
}

/// Brings a file of an older layout to today's.
///
/// # Errors
/// The backup cannot be written, or a step fails. The file is as it was.
pub(super) fn upgrade(
    connection: &mut Connection,
    path: &Path,
    from: i64,
    backup: &Backup,
) -> Result<Upgraded, OpenError> {
    crash::point("upgrade_begins");
    let backup = backup.path(path, from);
    if let Some(copy) = &backup {
        tracing::info!(file = %path.display(), backup = %copy.display(), layout = from, "the file is copied before it is upgraded");
        let written = copy::write(connection, copy);
        written.map_err(|why| OpenError::NoBackup(path.to_owned(), why))?;
    }
    crash::point("upgrade_copied");
    step(connection, from)
        .map_err(|error| OpenError::NotUpgraded(path.to_owned(), LAYOUT, error))?;
    crash::point("upgrade_done");
    tracing::info!(file = %path.display(), from, to = LAYOUT, "the file is upgraded; an older release does not open it any more");
    Ok(Upgraded {
        from,
        to: LAYOUT,
        backup,
    })
}

/// Does all steps after this layout, or none.
pub(super) fn step(connection: &mut Connection, from: i64) -> rusqlite::Result<()> {
    // Rolls back when dropped.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in STEPS.iter().filter(|step| step.to > from) {
        transaction.execute_batch(step.sql)?;
        let layout = format!("PRAGMA user_version = {}", step.to);
        transaction.execute_batch(&layout)?;
        crash::point("upgrade_stepped");
    }
    transaction.commit()
}

#[cfg(test)]
mod tests;
