//! Which lane a verb gets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use oncegate_store::lock::lock;

/// How many lanes there are: while one waits for its commit, the other one gathers verbs.
pub(crate) const LANES: usize = 2;

/// The verbs of each lane that are not answered yet.
#[derive(Default)]
pub(crate) struct Assignments(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    verbs: [usize; LANES],
    /// By its first exclusive lock: the lane of a verb, and how many verbs there have that lock.
    locks: HashMap<i64, (usize, usize)>,
}

/// The lane of one verb, which counts there until this is dropped.
pub(crate) struct Assignment {
    all: Arc<Assignments>,
    pub(crate) lane: usize,
    lock: Option<i64>,
}

impl Assignments {
    /// Chooses the lane of a verb with this first exclusive lock.
    ///
    /// It gets the lane of the verbs that have its lock already, so that two lanes never wait for one lock. Otherwise it gets the
    /// lane with the fewest verbs; the first one if both have as many. So verbs one after the other use only the first lane: a
    /// connection's first call of each function costs the server milliseconds.
    pub(crate) fn assign(self: &Arc<Self>, first_lock: Option<i64>) -> Assignment {
        let mut counts = lock(&self.0);
        let held = first_lock.and_then(|first_lock| counts.locks.get(&first_lock));
        let emptiest = || (0..LANES).min_by_key(|lane| counts.verbs[*lane]);
        let lane = match held {
            Some((lane, _)) => *lane,
            None => emptiest().unwrap_or(0),
        };
        counts.verbs[lane] += 1;
        if let Some(first_lock) = first_lock {
            counts.locks.entry(first_lock).or_insert((lane, 0)).1 += 1;
        }
        Assignment {
            all: self.clone(),
            lane,
            lock: first_lock,
        }
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        let mut counts = lock(&self.all.0);
        counts.verbs[self.lane] -= 1;
        let Some(first_lock) = self.lock else { return };
        if let Some((_, verbs)) = counts.locks.get_mut(&first_lock) {
            *verbs -= 1;
            if *verbs == 0 {
                counts.locks.remove(&first_lock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_one_after_the_other_use_one_lane_and_others_share_both() {
        let all = Arc::new(Assignments::default());
        for n in 0..10 {
            assert_eq!(all.assign(Some(n)).lane, 0);
        }
        let many: Vec<Assignment> = (0..10).map(|n| all.assign(Some(n))).collect();
        let first = many.iter().filter(|one| one.lane == 0).count();
        assert_eq!(first, 5);
        drop(many);
        assert_eq!(all.assign(None).lane, 0);
        assert!(lock(&all.0).locks.is_empty());
    }

    #[test]
    fn verbs_with_one_lock_never_wait_in_two_lanes() {
        let all = Arc::new(Assignments::default());
        let (_beat, held) = (all.assign(None), all.assign(Some(7)));
        assert_eq!(held.lane, 1);
        let others: Vec<Assignment> = (0..3).map(|_| all.assign(Some(7))).collect();
        assert!(others.iter().all(|one| one.lane == 1));
        drop(held);
        // The others still have it.
        assert_eq!(all.assign(Some(7)).lane, 1);
        drop(others);
        assert_eq!(all.assign(Some(8)).lane, 1);
    }
}
