//! Whether the whole file is whole, while it is served.
//!
//! A damaged page that SQLite reads without an error can make a key look free, and then a call would run twice. So the pages
//! that tell which calls are known are read first, quickly: the free pages, small tables, and the tree of the lookup keys.
//! Until that tree is read, a claim reads the pages itself that say that its keys are free. Everything else is read
//! afterwards, with pauses. Damage closes the store: nothing more is claimed or deleted, and the next start reads the whole
//! file before it claims anything.

mod found; // whether each call is found under its keys
mod last; // the result of the last check, in a file
mod pages; // the pages of the file, as bytes
mod trees; // the trees of the file

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use oncegate_hooks::crash;
use rusqlite::Connection;
use tokio::time::Instant;

use self::found::Search;
use self::last::Last;
use self::pages::Pages;
use self::trees::{Ended, Group, Tree, Walk};
use super::error::{At as _, OpenError};
use super::files::Files;
use super::files::log::Log;
use super::query::pragma;
use oncegate_rules::key::Lookup;
use oncegate_store::Reason;
use oncegate_store::lock::lock;

/// How long a start waits before it serves beside the first part of the check.
const PATIENCE: Duration = Duration::from_secs(1);
/// Work between two pauses, and how much longer than the work a pause is.
const WORK: Duration = Duration::from_millis(4);
const PAUSES: u32 = 3;
/// The longest part of a pause.
const PART: Duration = Duration::from_millis(20);
/// Pages of a log that is too long for pauses: while the walk goes on, nothing of it is moved into the file. 32 MB.
const LONG_LOG: i32 = 8_192;
/// Steps between two looks at the clock.
const STEPS: u64 = 32;
/// How much of the progress is the walk, in per cent; the rest is the search for calls.
const WALK: u64 = 70;

/// How far the check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Nothing may be claimed: it is not known yet what is free.
    Closed,
    /// A claim must prove that its keys are free.
    Proving,
    /// Keys that are not found are free.
    Open,
    Done,
}

struct State {
    stage: Stage,
    /// Why the store is closed for good.
    damage: Option<String>,
    /// What a claim reads to prove that a key is free.
    names: Option<Arc<(Pages, Tree)>>,
    /// When the last complete check found no damage.
    checked_at: Option<Timestamp>,
}

/// The check of an open file.
pub(crate) struct Check {
    state: Mutex<State>,
    /// In per cent.
    progress: AtomicU32,
    is_stopped: AtomicBool,
    /// Pages of the log, of which nothing can be moved while the file is held.
    log: Arc<AtomicI32>,
    holds_file: Arc<AtomicBool>,
    last: PathBuf,
}

/// A check that goes on beside serving, if there is one.
pub(crate) struct Begun {
    pub(crate) check: Arc<Check>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Check {
    /// Begins the check. Returns when nothing has to be proved any more, or after a while.
    ///
    /// Nothing may have written since the log was moved into the file. `connection`: one that reads; `None`: there is room for
    /// only one.
    ///
    /// # Errors
    /// The file is damaged, as far as that is known by then, or the thread cannot be started.
    pub(crate) fn begin(
        path: &Path,
        files: &Arc<Files>,
        writer: &Connection,
        log: &Log,
        connection: Option<Connection>,
    ) -> Result<Begun, OpenError> {
        let last = Last::path(path);
        let found = Last::read(&last);
        let check = Arc::new(Self {
            state: Mutex::new(State {
                stage: Stage::Closed,
                damage: None,
                names: None,
                checked_at: found.checked_at,
            }),
            progress: AtomicU32::new(0),
            is_stopped: AtomicBool::new(false),
            log: log.pages.clone(),
            holds_file: log.is_held.clone(),
            last,
        });
        let damaged = |why| OpenError::Damaged(path.to_owned(), why);
        let connection = connection.filter(|_| log.moved.is_some());
        let mut pages = None;
        if let Some(connection) = &connection {
            // From here on the file does not change: what is written stays in the log while this connection reads.
            connection.execute_batch("BEGIN").at(path)?;
            let read: rusqlite::Result<Option<i64>> = pragma(connection, "user_version");
            read.at(path)?;
            pages = Pages::of(files.clone(), connection).at(path)?;
        }
        let Some((connection, pages)) = connection.zip(pages) else {
            // The pages are partly in the log, or there is one connection only.
            whole(writer).map_err(|why| {
                Last::damaged(&check.last);
                damaged(why)
            })?;
            check.all_is_well(writer);
            return Ok(Begun {
                check,
                thread: None,
            });
        };
        check.holds_file.store(true, Ordering::SeqCst);
        let trees = trees::trees(&connection).at(path)?;
        let (opened, is_open) = mpsc::channel();
        let work = Work {
            check: check.clone(),
            connection,
            pages,
            trees,
            was_damaged: found.is_damaged,
            opened: Some(opened),
        };
        let thread = thread::Builder::new().name("sqlite-check".to_owned());
        let thread = thread.spawn(move || work.run()).at(path)?;
        match is_open.recv_timeout(PATIENCE) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            // It has ended before anything may be claimed.
            Err(RecvTimeoutError::Disconnected) => {
                drop(thread.join());
                let why = check.damage().unwrap_or_default();
                return Err(damaged(why));
            }
        }
        if let Some(why) = check.must_wait() {
            tracing::warn!(path = %path.display(), "{why}");
        }
        Ok(Begun {
            check,
            thread: Some(thread),
        })
    }

    /// Ends the check before its time.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Why the store is closed for good.
    pub(crate) fn damage(&self) -> Option<String> {
        lock(&self.state).damage.clone()
    }

    pub(crate) fn is_damaged(&self) -> bool {
        lock(&self.state).damage.is_some()
    }

    /// Why nothing may be claimed yet.
    pub(crate) fn must_wait(&self) -> Option<String> {
        let is_closed = lock(&self.state).stage == Stage::Closed;
        is_closed.then(|| {
            let percent = self.progress();
            format!("the file is being checked before anything is claimed: checking {percent} %")
        })
    }

    /// The reason for readiness.
    pub(crate) fn reason(&self) -> Option<Reason> {
        if let Some(why) = self.damage() {
            let text = format!(
                "the file is damaged: {why}; nothing is claimed: restore a backup, or start with another file and reconcile"
            );
            return Some(Reason::new("damaged", text));
        }
        self.must_wait().map(|why| Reason::new("checking", why))
    }

    /// How much of the file is checked, in per cent.
    pub(crate) fn progress(&self) -> u32 {
        self.progress.load(Ordering::Relaxed)
    }

    /// When the last complete check found no damage.
    pub(crate) fn checked_at(&self) -> Option<Timestamp> {
        lock(&self.state).checked_at
    }

    /// Refuses to believe that these keys are free, if the pages that say so are damaged.
    pub(crate) fn must_be_free<'a>(
        &self,
        lookups: impl Iterator<Item = &'a Lookup>,
    ) -> Result<(), String> {
        let Some(names) = lock(&self.state).names.clone() else {
            return Ok(());
        };
        for lookup in lookups {
            if let Err(why) = trees::is_whole_around(&names.0, &names.1, lookup) {
                self.close(why.clone());
                return Err(why);
            }
        }
        Ok(())
    }

    /// Closes the store for good.
    pub(crate) fn close(&self, why: String) {
        tracing::error!(
            why,
            "the file is damaged: nothing is claimed any more; restore a backup, or start with another file and reconcile"
        );
        Last::damaged(&self.last);
        lock(&self.state).damage = Some(why);
    }

    /// Takes a closing back.
    fn reopen(&self) {
        let mut state = lock(&self.state);
        state.damage = None;
        state.names = None;
        state.stage = Stage::Open;
    }

    fn enter(&self, stage: Stage, names: Option<Arc<(Pages, Tree)>>) {
        let mut state = lock(&self.state);
        state.stage = stage;
        state.names = names;
    }

    /// Ends a complete check that found no damage.
    fn all_is_well(&self, connection: &Connection) {
        let at = now(connection);
        self.progress.store(100, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.stage = Stage::Done;
        state.names = None;
        if state.damage.is_some() {
            return;
        }
        state.checked_at = at.or(state.checked_at);
        drop(state);
        if let Some(at) = at {
            Last::whole(&self.last, at);
        }
    }
}

/// The time, by the machine's clock.
fn now(connection: &Connection) -> Option<Timestamp> {
    let sql = "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
    let now: rusqlite::Result<i64> = connection.query_row(sql, [], |row| row.get(0));
    now.ok()
        .and_then(|now| Timestamp::from_microsecond(now).ok())
}

/// Reads the whole file by SQLite's own check, so that a damaged page is found now.
///
/// # Errors
/// What is damaged.
pub(crate) fn whole(connection: &Connection) -> Result<(), String> {
    says_ok(connection, "quick_check(1)")
}

fn says_ok(connection: &Connection, question: &str) -> Result<(), String> {
    match pragma::<String>(connection, question) {
        Ok(Some(answer)) if answer == "ok" => Ok(()),
        Ok(answer) => Err(answer.unwrap_or_default()),
        Err(error) => Err(error.to_string()),
    }
}

/// The thread of the check.
struct Work {
    check: Arc<Check>,
    connection: Connection,
    pages: Pages,
    trees: Vec<Tree>,
    /// Damage was found before: then all of the file is read before anything is claimed.
    was_damaged: bool,
    /// Told when nothing has to be proved any more. Dropped when the file is damaged.
    opened: Option<mpsc::Sender<()>>,
}

impl Drop for Work {
    fn drop(&mut self) {
        if thread::panicking() {
            self.check
                .close("the check of the file broke off".to_owned());
            self.check.holds_file.store(false, Ordering::SeqCst);
        }
    }
}

impl Work {
    fn run(mut self) {
        let began = Instant::now();
        let check = self.check.clone();
        let whole = self.walk().or_else(|ended| self.ask_sqlite(ended));
        // From here on the log may be moved into the file again.
        let released = self.connection.execute_batch("COMMIT");
        check.holds_file.store(false, Ordering::SeqCst);
        let whole = whole.and_then(|()| {
            released.map_err(|error| Ended::of(&error))?;
            self.search()
        });
        match whole {
            Ok(()) => {
                check.all_is_well(&self.connection);
                let seconds = began.elapsed().as_secs_f64();
                tracing::info!(seconds, "the whole file was checked: no damage");
                self.has_opened();
            }
            // Otherwise the lock of the file would be held.
            Err(Ended::Stopped) => lock(&check.state).names = None,
            Err(Ended::Failed(why)) => {
                tracing::warn!(
                    why,
                    "the file could not be checked to its end; the next start checks it again"
                );
            }
            Err(Ended::Damaged(why)) => check.close(why),
        }
    }

    fn has_opened(&mut self) {
        if let Some(opened) = self.opened.take() {
            // A start that did not wait has gone on.
            opened.send(()).ok();
        }
    }

    /// Reads every page.
    fn walk(&mut self) -> Result<(), Ended> {
        crash::point("check_begins");
        let (check, pages) = (self.check.clone(), self.pages.clone());
        let mut each = Steps::new(&check);
        let rests = std::cell::Cell::new(false);
        let all = u64::from(pages.count.max(1));
        let mut goes_on = || each.goes_on(rests.get(), |steps| steps * WALK / all);
        let mut walk = Walk::new(&pages, &mut goes_on);
        walk.free_pages()?;
        let mut group = Group::First;
        for tree in std::mem::take(&mut self.trees) {
            let next = tree.group();
            if next != group && !self.was_damaged {
                if next == Group::Names {
                    let names = Arc::new((pages.clone(), tree.clone()));
                    check.enter(Stage::Proving, Some(names));
                    crash::point("check_names");
                } else {
                    check.enter(Stage::Open, None);
                    self.has_opened();
                    rests.set(true);
                    crash::point("check_rest");
                }
            }
            group = next;
            walk.tree(&tree)?;
        }
        walk.nothing_is_lost()
    }

    /// Closes the store at once. If SQLite finds no damage, a mistake of the walk does not keep it closed.
    fn ask_sqlite(&mut self, ended: Ended) -> Result<(), Ended> {
        let Ended::Damaged(why) = ended else {
            return Err(ended);
        };
        self.check.close(why.clone());
        let stops = self.check.clone();
        let stops = move || stops.is_stopped.load(Ordering::Relaxed);
        drop(self.connection.progress_handler(10_000, Some(stops)));
        let asked = says_ok(&self.connection, "integrity_check(1)");
        drop(self.connection.progress_handler(0, None::<fn() -> bool>));
        match asked {
            Ok(()) => {
                tracing::error!(why, "SQLite finds no damage in the file: it is used again");
                self.check.reopen();
                Ok(())
            }
            Err(_) if self.check.is_stopped.load(Ordering::Relaxed) => Err(Ended::Stopped),
            Err(sqlite) => Err(Ended::Damaged(format!("{why} (SQLite: {})", sqlite.trim()))),
        }
    }

    /// Looks for each call under its keys.
    fn search(&mut self) -> Result<(), Ended> {
        crash::point("check_search");
        let check = self.check.clone();
        let mut each = Steps::new(&check);
        let mut search = Search::begin(&self.connection)?;
        loop {
            let done = search.done() * (100 - WALK) / 100 + WALK;
            if !each.goes_on(!self.was_damaged, |_| done) {
                return Err(Ended::Stopped);
            }
            if !search.step(&self.connection)? {
                return Ok(());
            }
        }
    }
}

/// Pauses between parts of the work, so that it takes a quarter of the time of one processor and of the disk.
struct Steps<'a> {
    check: &'a Check,
    steps: u64,
    since: Instant,
}

impl<'a> Steps<'a> {
    fn new(check: &'a Check) -> Self {
        let since = Instant::now();
        Self {
            check,
            steps: 0,
            since,
        }
    }

    /// Is asked before each step. False: the check is stopped. `progress`: from the steps so far, in per cent.
    fn goes_on(&mut self, rests: bool, progress: impl Fn(u64) -> u64) -> bool {
        let is_stopped = || self.check.is_stopped.load(Ordering::Relaxed);
        self.steps += 1;
        if !self.steps.is_multiple_of(STEPS) {
            return !is_stopped();
        }
        let progress = u32::try_from(progress(self.steps).min(99)).unwrap_or_default();
        self.check.progress.store(progress, Ordering::Relaxed);
        let worked = self.since.elapsed();
        if rests && worked >= WORK && self.check.log.load(Ordering::Relaxed) < LONG_LOG {
            let until = Instant::now() + worked * PAUSES;
            // In short parts, so that a stop does not wait.
            while !is_stopped()
                && let Some(left) = until.checked_duration_since(Instant::now())
            {
                thread::sleep(left.min(PART));
            }
        }
        if worked >= WORK {
            self.since = Instant::now();
        }
        !is_stopped()
    }
}

#[cfg(test)]
mod tests;
