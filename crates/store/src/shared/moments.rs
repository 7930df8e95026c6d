//! When the store was seen whole, and what it had then.
//!
//! After a loss this tells until when the store surely has everything. It is judged when the loss is found: later a
//! gateway that accepts the loss may have made new writes.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

/// The shortest time between two remembered moments.
const APART: SignedDuration = SignedDuration::from_secs(30);
/// How many moments are remembered at most; then the oldest is forgotten.
const MOST: usize = 128;
/// Gaps between old moments may be their age divided by this.
const PART: i32 = 4;

/// Moments at which nothing was missing, each with what proves that everything from before it is there.
#[derive(Debug)]
pub struct Moments<T> {
    apart: SignedDuration,
    /// The newest last.
    whole: VecDeque<(Timestamp, T)>,
    /// After a loss: until when everything is there, by the worst inspection since. `Some(None)`: not known.
    until: Option<Option<Timestamp>>,
}

impl<T> Default for Moments<T> {
    fn default() -> Self {
        Self::apart(APART)
    }
}

impl<T> Moments<T> {
    /// Of moments that are nearer to each other only the first is remembered.
    pub fn apart(apart: SignedDuration) -> Self {
        Self {
            apart,
            whole: VecDeque::new(),
            until: None,
        }
    }

    /// Nothing is missing.
    pub fn is_whole(&mut self) {
        self.until = None;
    }

    /// Notes what the store had at this time, when nothing was missing.
    pub fn saw_whole(&mut self, at: Timestamp, proof: T) {
        self.is_whole();
        let is_due = |(last, _): &(Timestamp, T)| at.duration_since(*last) >= self.apart;
        if !self.whole.back().is_none_or(is_due) {
            return;
        }
        self.whole.push_back((at, proof));
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

    /// Notes an inspection that found a loss: up to the latest moment whose proof is still there, everything is.
    pub fn saw_loss(&mut self, is_there: impl Fn(&T) -> bool) {
        let now = self.latest(is_there);
        self.until = Some(self.until.map_or(now, |before| before.min(now)));
    }

    /// The latest moment whose proof is there.
    pub fn latest(&self, is_there: impl Fn(&T) -> bool) -> Option<Timestamp> {
        let latest = self.whole.iter().rev().find(|(_, proof)| is_there(proof));
        latest.map(|(at, _)| *at)
    }

    /// Until when everything that was written before the loss is there; `None`: not known.
    pub fn until(&self) -> Option<Timestamp> {
        self.until.flatten()
    }

    /// Whether a loss was found since the store was last whole.
    pub fn has_loss(&self) -> bool {
        self.until.is_some()
    }

    /// Forgets the moments: from now on other data counts.
    pub fn begin_anew(&mut self) {
        self.whole.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    /// What a store proves that has so many writes.
    fn with(count: i64) -> impl Fn(&i64) -> bool {
        move |proof| *proof <= count
    }

    #[test]
    fn a_store_has_everything_until_the_last_moment_whose_writes_it_has() {
        let mut moments = Moments::default();
        assert_eq!(moments.latest(with(9)), None);
        for minute in 1..=5 {
            moments.saw_whole(at(60 * minute), 10 * minute);
        }
        assert_eq!(moments.latest(with(50)), Some(at(300)));
        assert_eq!(moments.latest(with(49)), Some(at(240)));
        assert_eq!(moments.latest(with(10)), Some(at(60)));
        assert_eq!(moments.latest(with(9)), None, "older than all");
    }

    #[test]
    fn after_a_loss_the_worst_inspection_counts_until_all_is_whole_again() {
        let mut moments = Moments::default();
        for minute in 1..=5 {
            moments.saw_whole(at(60 * minute), 10 * minute);
        }
        assert_eq!((moments.until(), moments.has_loss()), (None, false));
        moments.saw_loss(with(45));
        assert_eq!(moments.until(), Some(at(240)));
        moments.saw_loss(with(25));
        moments.saw_loss(with(50));
        assert_eq!(moments.until(), Some(at(120)), "more was lost meanwhile");
        moments.begin_anew();
        let until = moments.until();
        assert_eq!(until, Some(at(120)), "the acceptance may break off");
        moments.saw_whole(at(600), 60);
        assert_eq!((moments.until(), moments.has_loss()), (None, false));
        moments.saw_loss(with(59));
        let known = (moments.until(), moments.has_loss());
        assert_eq!(known, (None, true), "no moment of this data is known");
    }

    #[test]
    fn few_moments_are_remembered_the_newest_and_some_old_ones() {
        let mut moments = Moments::default();
        for second in 0..100_000 {
            moments.saw_whole(at(second), second);
        }
        assert!(moments.whole.len() <= MOST, "{}", moments.whole.len());
        assert_eq!(moments.latest(with(0)), Some(at(0)), "the oldest");
        let newest = moments.latest(with(100_000)).expect("a moment");
        assert!(newest > at(100_000 - 31));
        let newest = moments.whole.back().expect("a moment").0;
        for (before, after) in moments.whole.iter().zip(moments.whole.iter().skip(1)) {
            let gap = after.0.duration_since(before.0);
            let most = newest.duration_since(after.0) / PART;
            assert!(gap <= most.max(APART), "{gap:?} before {}", after.0);
        }
        for then in [99_000, 90_000, 50_000, 10_000] {
            let older = moments.latest(with(then)).expect("a moment");
            let gap = at(then).duration_since(older).as_secs();
            let age = 100_000 - then;
            assert!((0..=60 + age / 3).contains(&gap), "{then}: {gap} s");
        }
    }
}
