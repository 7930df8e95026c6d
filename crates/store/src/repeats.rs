//! Log lines that say the same again. In an outage each request or each look would write one.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// Most different lines that are known.
const MOST: usize = 4_096;

/// Says which log lines are due: each at once, and the same again only after a while.
pub struct Repeats {
    every: Duration,
    known: Mutex<HashMap<u64, Noted>>,
}

/// When a line was logged last, and how many like it were left out since.
struct Noted {
    logged: Instant,
    left_out: u64,
}

impl Repeats {
    /// The same line is due again after this time.
    pub fn every(every: Duration) -> Self {
        let known = Mutex::default();
        Self { every, known }
    }

    /// Notes a line about this. `Some`: it is due, and so many like it were left out since the last one.
    pub fn note(&self, about: impl Hash) -> Option<u64> {
        self.note_at(about, Instant::now())
    }

    fn note_at(&self, about: impl Hash, now: Instant) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        about.hash(&mut hasher);
        let mut known = lock(&self.known);
        if known.len() >= MOST {
            known.retain(|_, noted| now.duration_since(noted.logged) < self.every);
            if known.len() >= MOST {
                known.clear();
            }
        }
        let first = Noted {
            logged: now,
            left_out: 0,
        };
        let Some(noted) = known.get_mut(&hasher.finish()) else {
            known.insert(hasher.finish(), first);
            return Some(0);
        };
        if now.duration_since(noted.logged) < self.every {
            noted.left_out += 1;
            return None;
        }
        Some(std::mem::replace(noted, first).left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_line_is_logged_once_in_its_time_with_how_many_were_left_out() {
        let (repeats, began) = (Repeats::every(Duration::from_secs(10)), Instant::now());
        let note = |about, s| repeats.note_at(about, began + Duration::from_secs(s));
        assert_eq!(note("a", 0), Some(0));
        assert_eq!((note("a", 1), note("a", 9)), (None, None));
        assert_eq!(note("b", 9), Some(0), "another line");
        assert_eq!(note("a", 10), Some(2));
        assert_eq!(note("a", 11), None);
        assert_eq!(note("a", 90), Some(1));
    }

    #[test]
    fn lines_without_end_are_all_logged_and_take_no_memory_without_end() {
        let repeats = Repeats::every(Duration::from_secs(10));
        assert!((0..3 * MOST).all(|n| repeats.note(n) == Some(0)));
        assert!(lock(&repeats.known).len() <= MOST);
    }
}
