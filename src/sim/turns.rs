//! One thing after the other: what reaches another part of the world gets a millisecond of its own.
//!
//! The runtime wakes the readers of one channel in a random order. What they ask for in one millisecond is put in the
//! order of its names, so that this order changes nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use oncegate_hooks::seed;

pub(super) struct Turns {
    began: Instant,
    lines: Mutex<Lines>,
    is_asked: Notify,
}

#[derive(Default)]
struct Lines {
    asked: Vec<Asked>,
    /// The turn of each millisecond.
    due: BTreeMap<u64, oneshot::Sender<()>>,
}

struct Asked {
    asked_at: u64,
    name: String,
    at: u64,
    turn: oneshot::Sender<()>,
}

impl Turns {
    /// From now on.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            lines: Mutex::default(),
            is_asked: Notify::new(),
        }
    }

    /// Milliseconds since the beginning.
    pub(super) fn now(&self) -> u64 {
        seed::elapsed().map_or(0, |elapsed| elapsed.as_millis() as u64)
    }

    /// Waits for a turn, at about this many milliseconds from now.
    pub(super) async fn wait(&self, name: String, after_ms: u64) {
        let (turn, mine) = oneshot::channel();
        let asked_at = self.now();
        self.lines().asked.push(Asked {
            asked_at,
            name,
            at: asked_at + after_ms,
            turn,
        });
        self.is_asked.notify_one();
        drop(mine.await);
    }

    /// Gives everything its turn, for ever.
    pub(super) async fn hand_out(&self) {
        loop {
            let (has_asked, next) = {
                let lines = self.lines();
                (!lines.asked.is_empty(), lines.due.keys().next().copied())
            };
            let wake_at = match (has_asked, next) {
                (true, _) => self.now() + 1,
                (false, Some(next)) => next,
                (false, None) => {
                    self.is_asked.notified().await;
                    continue;
                }
            };
            tokio::select! {
                biased;
                () = sleep_until(self.began + Duration::from_millis(wake_at)) => {}
                () = self.is_asked.notified(), if !has_asked => continue,
            }
            self.next(self.now());
        }
    }

    /// Puts what was asked for before this millisecond in order, and gives what is due its turn.
    fn next(&self, now: u64) {
        let mut lines = self.lines();
        let (mut before, asked_now): (Vec<_>, Vec<_>) = std::mem::take(&mut lines.asked)
            .into_iter()
            .partition(|asked| asked.asked_at < now);
        lines.asked = asked_now;
        before.sort_by(|one, other| one.name.cmp(&other.name));
        for Asked { at, turn, .. } in before {
            let mut at = at.max(now);
            while lines.due.contains_key(&at) {
                at += 1;
            }
            lines.due.insert(at, turn);
        }
        while let Some(entry) = lines.due.first_entry().filter(|entry| *entry.key() <= now) {
            // What has waited for it may be gone.
            entry.remove().send(()).ok();
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
