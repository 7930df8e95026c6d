//! What a file is and has, and a copy of it: for operators, also while a gateway serves from it.
//!
//! Nothing is written to the file.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags};
use tokio::time::Instant;

use super::error::{At as _, LAYOUT, OLDEST_LAYOUT, OpenError, RELEASES};
use super::files::{beside, copy};
use super::open::{APPLICATION_ID, resolve};
use super::query::{all, pragma};
use super::{calls, upgrade};
use oncegate_rules::ledger::STATES;

/// What a file is and has.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub path: PathBuf,
    pub layout: i64,
    /// Bytes of the file, without its log.
    pub bytes: u64,
    /// Bytes of pages that nothing uses, which new calls use first.
    pub free: u64,
    /// How many calls are in each state that has any.
    pub calls: Vec<(String, u64)>,
    /// When the oldest call was made, and until when its key is kept at least; `None`: not by time.
    pub oldest: Option<(Timestamp, Option<Timestamp>)>,
    pub sagas: u64,
    /// How long an upgrade took on a copy, and the copying.
    pub tried: Option<(Duration, Duration)>,
}

/// Looks at a file. `dry_run`: also upgrades a copy beside it, and deletes the copy.
///
/// # Errors
/// It is not a file of oncegate, or cannot be read, or the copy cannot be written.
pub fn inspect(path: &Path, dry_run: bool) -> Result<Inspection, OpenError> {
    let path = &resolve(path).at(path)?;
    let connection = look_into(path)?;
    let layout = pragma(&connection, "user_version").at(path)?.unwrap_or(0);
    let number = |name| -> Result<u64, OpenError> {
        let number: Option<i64> = pragma(&connection, name).at(path)?;
        Ok(number.unwrap_or(0).unsigned_abs())
    };
    let page = number("page_size")?;
    let mut found = Inspection {
        path: path.to_owned(),
        layout,
        bytes: number("page_count")?.saturating_mul(page),
        free: number("freelist_count")?.saturating_mul(page),
        calls: Vec::new(),
        oldest: None,
        sagas: 0,
        tried: None,
    };
    if !(OLDEST_LAYOUT..=LAYOUT).contains(&layout) {
        return Ok(found);
    }
    let sql = "SELECT state, count(*) FROM calls GROUP BY state";
    found.calls = all(&connection, sql, [], |row| {
        let state = STATES.get(usize::from(row.get::<_, u8>(0)?));
        let calls = row.get::<_, i64>(1)?.unsigned_abs();
        Ok((state.copied().unwrap_or("unreadable").to_owned(), calls))
    })
    .at(path)?;
    let oldest = calls::oldest(&connection).at(path)?;
    found.oldest = oldest.map(|record| (record.intent.created_at, record.retain_until));
    let sql = "SELECT count(*) FROM documents WHERE kind = 'saga'";
    let sagas: i64 = connection.query_row(sql, [], |row| row.get(0)).at(path)?;
    found.sagas = sagas.unsigned_abs();
    if dry_run && layout < LAYOUT {
        found.tried = Some(try_upgrade(&connection, path, layout)?);
    }
    Ok(found)
}

/// Writes a copy of a file, which only this user may read. Works while a gateway serves from it.
///
/// # Errors
/// It is not a file of oncegate, or the copy cannot be written. What was there is still there.
pub fn backup(path: &Path, to: &Path) -> Result<(), OpenError> {
    let path = &resolve(path).at(path)?;
    let to = std::path::absolute(to).at(to)?;
    if resolve(&to).at(&to)? == *path {
        let why = "this is the database itself".to_owned();
        return Err(OpenError::NotCopied(to, why));
    }
    let connection = look_into(path)?;
    copy::write(&connection, &to).map_err(|why| OpenError::NotCopied(path.to_owned(), why))
}

/// Opens a file of ours to read it.
fn look_into(path: &Path) -> Result<Connection, OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing(path.to_owned()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).at(path)?;
    connection.busy_timeout(Duration::from_secs(5)).at(path)?;
    let id: Option<i32> = pragma(&connection, "application_id").at(path)?;
    if id != Some(APPLICATION_ID) {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    Ok(connection)
}

/// Upgrades a copy beside the file. Answers how long the copying took, and the steps.
fn try_upgrade(
    connection: &Connection,
    path: &Path,
    layout: i64,
) -> Result<(Duration, Duration), OpenError> {
    let copy = beside(path, ".dry-run");
    let began = Instant::now();
    let tried = copy::write(connection, &copy)
        .map_err(|why| OpenError::NotCopied(path.to_owned(), why))
        .and_then(|()| {
            let copied = began.elapsed();
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut upgraded = Connection::open_with_flags(&copy, flags).at(&copy)?;
            upgrade::step(&mut upgraded, layout)
                .map_err(|error| OpenError::NotUpgraded(copy.clone(), LAYOUT, error))?;
            Ok((copied, began.elapsed().saturating_sub(copied)))
        });
    for ending in ["", "-journal", "-wal", "-shm"] {
        drop(fs::remove_file(beside(&copy, ending)));
    }
    tried
}

/// Which releases serve from a file of this layout.
fn releases(layout: i64) -> String {
    if layout > LAYOUT {
        return "releases after this one; this one does not".to_owned();
    }
    let reads = RELEASES.iter().filter(|(known, _)| *known >= layout);
    let names: Vec<_> = reads.map(|(_, release)| *release).collect();
    if layout < OLDEST_LAYOUT {
        return "the release that wrote it".to_owned();
    }
    format!("{} and later", names.first().copied().unwrap_or_default())
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        writeln!(f, "file:           {}", self.path.display())?;
        writeln!(
            f,
            "size:           {}, of which {} are free pages",
            megabytes(self.bytes),
            megabytes(self.free)
        )?;
        writeln!(f, "layout:         {}", self.layout)?;
        writeln!(f, "readable by:    {}", releases(self.layout))?;
        if (OLDEST_LAYOUT..=LAYOUT).contains(&self.layout) {
            let mut calls = String::new();
            for (state, count) in &self.calls {
                let comma = if calls.is_empty() { "" } else { ", " };
                write!(calls, "{comma}{count} {state}")?;
            }
            let none = if calls.is_empty() { "none" } else { "" };
            writeln!(f, "calls:          {calls}{none}")?;
            writeln!(f, "sagas:          {}", self.sagas)?;
        }
        if let Some((made_at, until)) = self.oldest {
            let until = match until {
                Some(until) => format!("kept until {until:.0}"),
                None => "kept until it has ended".to_owned(),
            };
            writeln!(f, "oldest promise: of {made_at:.0}, {until}")?;
        }
        let upgrade = match self.layout {
            LAYOUT => "nothing to do".to_owned(),
            layout if !(OLDEST_LAYOUT..LAYOUT).contains(&layout) => {
                "this release does not open the file".to_owned()
            }
            layout => format!(
                "the next start of this release copies the file to {} ({}), and then makes layout {LAYOUT} of it, which \
                 {} opens and no older release",
                beside(&self.path, &format!(".layout-{layout}")).display(),
                megabytes(self.bytes.saturating_sub(self.free)),
                releases(LAYOUT),
            ),
        };
        writeln!(f, "upgrade:        {upgrade}")?;
        if let Some((copied, stepped)) = self.tried {
            writeln!(
                f,
                "tried on a copy: the copy took {:.1} s, the steps {:.1} s",
                copied.as_secs_f64(),
                stepped.as_secs_f64()
            )?;
        }
        Ok(())
    }
}
