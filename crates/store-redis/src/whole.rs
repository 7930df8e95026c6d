//! When the store was seen whole, and which writes it had then.
//!
//! After a loss this tells until when the store surely has everything. It is judged when the loss is found: later a
//! gateway that accepts the loss may have counted new writes.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use super::loss::{CLOSED, Sight, Writes};

/// The shortest time between two remembered moments.
const APART: SignedDuration = SignedDuration::from_secs(30);
/// How many moments are remembered at most; then the oldest is forgotten.
const MOST: usize = 128;
/// Gaps between old moments may be their age divided by this.
const PART: i32 = 4;

/// Moments at which no write was missing.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// The newest last.
    whole: VecDeque<(Timestamp, Writes)>,
    /// After a loss: until when everything is there, by the worst inspection since. `Some(None)`: not known.
    until: Option<Option<Timestamp>>,
}

impl Moments {
    /// Notes that all these writes were there at this time.
    pub(super) fn saw_whole(&mut self, at: Timestamp, writes: &Writes) {
        self.until = None;
        let is_due = |(last, _): &(Timestamp, Writes)| at.duration_since(*last) >= APART;
        if !self.whole.back().is_none_or(is_due) {
            return;
        }
        self.whole.push_back((at, writes.clone()));
        self.thin_out(at);
    }

    /// Forgets moments between two others whose gap is small for their age.
    fn thin_out(&mut self, now: Timestamp) {
        let mut number = self.whole.len().saturating_sub(2);
        while number > 0 {
            let (before, after) = (self.whole[number - 1].0, self.whole[number + 1].0);
            if after.duration_since(before) <= now.duration_since(after) / PART {
                self.whole.remove(number);
            }
            number -= 1;
        }
        while self.whole.len() > MOST {
            self.whole.pop_front();
        }
    }

    /// Notes an inspection that found a loss. `epoch`: the one that this gateway knows.
    pub(super) fn saw_loss(&mut self, sight: &Sight, epoch: &str) {
        let now = self.latest_in(sight, epoch);
        self.until = Some(self.until.map_or(now, |before| before.min(now)));
    }

    /// The latest moment whose writes are all there.
    fn latest_in(&self, sight: &Sight, epoch: &str) -> Option<Timestamp> {
        // Under another epoch another gateway may have counted new writes instead of lost ones.
        let is_known = |seen: &String| seen == epoch || seen == CLOSED || seen.is_empty();
        if !sight.epochs.iter().all(is_known) {
            return None;
        }
        let is_there = |(_, writes): &&(Timestamp, Writes)| {
            writes.missing_in(&sight.writes, &sight.forgotten) == 0
        };
        let latest = self.whole.iter().rev().find(is_there);
        latest.map(|(at, _)| *at)
    }

    /// Until when everything that was written before the loss is there; `None`: not known.
    pub(super) fn until(&self) -> Option<Timestamp> {
        self.until.flatten()
    }

    /// Forgets the moments: from now on other data counts.
    pub(super) fn begin_anew(&mut self) {
        self.whole.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Partition;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    /// So many writes of a gateway in one partition.
    fn writes(count: u64) -> Writes {
        let mut writes = Writes::default();
        writes.count("g", Partition::FIRST, count);
        writes
    }

    fn sight(count: u64) -> Sight {
        Sight {
            writes: writes(count),
            ..Sight::default()
        }
    }

    #[test]
    fn a_store_has_everything_until_the_last_moment_whose_writes_it_has() {
        let mut moments = Moments::default();
        assert_eq!(moments.latest_in(&sight(9), "e"), None);
        for minute in 1..=5 {
            moments.saw_whole(at(60 * minute), &writes(10 * minute.unsigned_abs()));
        }
        assert_eq!(moments.latest_in(&sight(50), "e"), Some(at(300)));
        assert_eq!(moments.latest_in(&sight(49), "e"), Some(at(240)));
        assert_eq!(moments.latest_in(&sight(10), "e"), Some(at(60)));
        assert_eq!(moments.latest_in(&sight(9), "e"), None, "older than all");
    }

    #[test]
    fn after_a_loss_the_worst_inspection_counts_until_all_is_whole_again() {
        let mut moments = Moments::default();
        for minute in 1..=5 {
            moments.saw_whole(at(60 * minute), &writes(10 * minute.unsigned_abs()));
        }
        assert_eq!(moments.until(), None, "nothing is lost");
        moments.saw_loss(&sight(45), "e");
        assert_eq!(moments.until(), Some(at(240)));
        moments.saw_loss(&sight(25), "e");
        moments.saw_loss(&sight(50), "e");
        assert_eq!(moments.until(), Some(at(120)), "more was lost meanwhile");
        moments.begin_anew();
        assert_eq!(
            moments.until(),
            Some(at(120)),
            "the acceptance may break off"
        );
        moments.saw_whole(at(600), &writes(60));
        assert_eq!(moments.until(), None);
        moments.saw_loss(&sight(59), "e");
        assert_eq!(moments.until(), None, "no moment of this data is known");
    }

    #[test]
    fn counts_of_another_epoch_prove_nothing() {
        let mut moments = Moments::default();
        moments.saw_whole(at(60), &writes(10));
        for (epoch, expected) in [
            ("e", Some(at(60))),
            (CLOSED, Some(at(60))),
            ("", Some(at(60))),
            ("f", None),
        ] {
            let seen = Sight {
                epochs: vec!["e".into(), epoch.into()],
                ..sight(10)
            };
            assert_eq!(moments.latest_in(&seen, "e"), expected, "{epoch}");
        }
    }

    #[test]
    fn few_moments_are_remembered_the_newest_and_some_old_ones() {
        let mut moments = Moments::default();
        for second in 0..100_000 {
            moments.saw_whole(at(second), &writes(second.unsigned_abs()));
        }
        assert!(moments.whole.len() <= MOST, "{}", moments.whole.len());
        assert_eq!(moments.latest_in(&sight(0), "e"), Some(at(0)), "the oldest");
        let newest = moments.latest_in(&sight(100_000), "e").expect("a moment");
        assert!(newest > at(100_000 - 31));
        let newest = moments.whole.back().expect("a moment").0;
        for (before, after) in moments.whole.iter().zip(moments.whole.iter().skip(1)) {
            let gap = after.0.duration_since(before.0);
            let most = newest.duration_since(after.0) / PART;
            assert!(gap <= most.max(APART), "{gap:?} before {}", after.0);
        }
        for then in [99_000, 90_000, 50_000, 10_000_u64] {
            let older = moments.latest_in(&sight(then), "e").expect("a moment");
            let gap = at(then.cast_signed()).duration_since(older).as_secs();
            let age = (100_000 - then).cast_signed();
            assert!((0..=60 + age / 3).contains(&gap), "{then}: {gap} s");
        }
    }
}
