//! Due work: taken by one gateway, tried again, postponed, given up.
//!
//! Sagas and anomalies are such work. Gateways compete for it by compare-and-swap on the document that holds it: who
//! writes [`Event::Taken`] does the work. Must not know what the work is.

use std::time::Duration;

use jiff::Timestamp;

use super::retry;
use super::time::later;

/// When a worker takes it next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Only after an act of a person.
    Never,
    At(Timestamp),
    /// A gateway works on it; others leave it alone until then.
    Taken {
        until: Timestamp,
    },
}

impl Due {
    /// The stored form: the time, and whether it is taken.
    pub fn to_parts(self) -> (Option<Timestamp>, bool) {
        match self {
            Self::Never => (None, false),
            Self::At(time) => (Some(time), false),
            Self::Taken { until } => (Some(until), true),
        }
    }

    pub fn from_parts(time: Option<Timestamp>, is_taken: bool) -> Self {
        match time {
            None => Self::Never,
            Some(until) if is_taken => Self::Taken { until },
            Some(time) => Self::At(time),
        }
    }

    pub fn at(self) -> Option<Timestamp> {
        self.to_parts().0
    }

    /// The same, but not before this time. Work that is never due stays so.
    pub fn not_before(self, least: Timestamp) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::At(time) => Self::At(time.max(least)),
            Self::Taken { until } => Self::Taken {
                until: until.max(least),
            },
        }
    }

    pub fn is_taken(self) -> bool {
        self.to_parts().1
    }
}

/// The progress of some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub due: Due,
    /// Failed tries in a row.
    pub tries: u32,
    /// Postponements: in a row where they are bounded, otherwise all.
    pub waits: u32,
}

/// How often work is tried, and the pauses between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Tries before it is given up; `None`: no bound.
    pub tries: Option<u32>,
    /// Postponements before it is given up; `None`: no bound.
    pub waits: Option<u32>,
    /// The upper bound of the first pause; it doubles with each further one.
    pub base: Duration,
    /// The upper bound of every pause.
    pub max: Duration,
    /// The pause after a postponement; `None`: as after a failed try.
    pub postponed_by: Option<Duration>,
}

/// An event of some work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// A gateway begins to work on it.
    Taken { until: Timestamp },
    /// The gateway that worked on it needs until then.
    Prolonged { until: Timestamp },
    /// The gateway that worked on it has ended, and no other works on it.
    Freed,
    /// A try was blocked. `jitter` is random, of 0..1.
    Blocked { blocker: Blocker, jitter: f64 },
}

/// Why work could not be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// It waits for something that will end soon: no failure, it is postponed.
    Busy,
    /// The outcome of a call is unknown. It may become known without a person.
    Unknown,
    /// The try failed.
    Failed,
    /// Only a person can do it.
    Final,
}

/// A blocker, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub blocker: Blocker,
    pub why: String,
}

impl Blocked {
    pub fn busy(why: impl Into<String>) -> Self {
        Self::by(Blocker::Busy, why)
    }

    pub fn failed(why: impl Into<String>) -> Self {
        Self::by(Blocker::Failed, why)
    }

    pub fn for_good(why: impl Into<String>) -> Self {
        Self::by(Blocker::Final, why)
    }

    pub fn by(blocker: Blocker, why: impl Into<String>) -> Self {
        Self {
            blocker,
            why: why.into(),
        }
    }
}

/// The work after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    pub work: Work,
    /// It was tried or postponed too often.
    pub gives_up: bool,
}

/// The work is not due, or no gateway works on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDue;

impl Work {
    /// New work that is due then.
    pub fn due_at(time: Timestamp) -> Self {
        Self {
            due: Due::At(time),
            tries: 0,
            waits: 0,
        }
    }

    /// Decides what an event does to work.
    ///
    /// # Errors
    /// The event does not fit; nothing changes.
    pub fn next(self, event: &Event, policy: &Policy, now: Timestamp) -> Result<Next, NotDue> {
        let (due, tries, waits) = match *event {
            Event::Taken { until } if self.due.at().is_some_and(|due_at| due_at <= now) => {
                (Due::Taken { until }, self.tries, self.waits)
            }
            Event::Freed if self.due.is_taken() => (Due::At(now), self.tries, self.waits),
            Event::Taken { .. } | Event::Freed => return Err(NotDue),
            Event::Prolonged { until } => (Due::Taken { until }, self.tries, self.waits),
            Event::Blocked { blocker, jitter } => {
                let (tries, waits) = match blocker {
                    Blocker::Busy => (self.tries, self.waits.saturating_add(1)),
                    Blocker::Unknown | Blocker::Failed | Blocker::Final => {
                        // A bound is on postponements in a row. Without one they lengthen the pauses for good.
                        let waits = policy.waits.map_or(self.waits, |_| 0);
                        (self.tries.saturating_add(1), waits)
                    }
                };
                let pause = match policy.postponed_by {
                    Some(pause) if blocker == Blocker::Busy => pause,
                    _ => pause(policy, tries.max(waits), jitter),
                };
                (Due::At(later(now, pause)), tries, waits)
            }
        };
        let gives_up = match *event {
            Event::Taken { .. } | Event::Freed | Event::Prolonged { .. } => false,
            Event::Blocked { blocker, .. } => match blocker {
                Blocker::Busy => policy.waits.is_some_and(|most| waits >= most),
                Blocker::Unknown | Blocker::Failed => {
                    policy.tries.is_some_and(|most| tries >= most)
                }
                Blocker::Final => true,
            },
        };
        let work = Self { due, tries, waits };
        Ok(Next { work, gives_up })
    }
}

/// The pause after so many failures: at least half of the back-off.
fn pause(policy: &Policy, failures: u32, jitter: f64) -> Duration {
    let back_off = retry::Policy {
        attempts: u32::MAX,
        base: policy.base,
        max: policy.max,
    };
    let longest = retry::delay(&back_off, failures.max(1), 1.0, None);
    longest.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        tries: Some(3),
        waits: Some(5),
        base: Duration::from_secs(2),
        max: Duration::from_secs(6),
        postponed_by: None,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn blocked(work: Work, blocker: Blocker, jitter: f64, policy: &Policy) -> Next {
        work.next(&Event::Blocked { blocker, jitter }, policy, at(0))
            .expect("it can be blocked")
    }

    fn pause_of(next: Next) -> i128 {
        let due = next.work.due.at().expect("a time");
        due.duration_since(at(0)).as_millis()
    }

    #[test]
    fn it_is_taken_only_when_it_is_due_and_freed_only_if_it_was_taken() {
        let work = Work::due_at(at(5));
        let taken = Event::Taken { until: at(60) };
        assert_eq!(work.next(&taken, &POLICY, at(4)), Err(NotDue));
        assert_eq!(work.next(&Event::Freed, &POLICY, at(9)), Err(NotDue));
        let taken = work.next(&taken, &POLICY, at(5)).expect("it is due").work;
        assert_eq!(taken.due, Due::Taken { until: at(60) });
        let again = Event::Taken { until: at(99) };
        assert_eq!(taken.next(&again, &POLICY, at(59)), Err(NotDue));
        assert!(
            taken.next(&again, &POLICY, at(60)).is_ok(),
            "its gateway has ended"
        );
        let freed = taken
            .next(&Event::Freed, &POLICY, at(9))
            .expect("freed")
            .work;
        assert_eq!(freed, Work::due_at(at(9)));
        let never = Work {
            due: Due::Never,
            ..work
        };
        assert_eq!(never.next(&again, &POLICY, at(9)), Err(NotDue));
    }

    #[test]
    fn tries_end_and_postponements_count_apart() {
        let mut work = Work::due_at(at(0));
        let mut seen = Vec::new();
        for blocker in [
            Blocker::Busy,
            Blocker::Busy,
            Blocker::Failed,
            Blocker::Unknown,
            Blocker::Busy,
        ] {
            let next = blocked(work, blocker, 1.0, &POLICY);
            assert!(!next.gives_up);
            work = next.work;
            seen.push((work.tries, work.waits, pause_of(next)));
        }
        assert_eq!(
            seen,
            [
                (0, 1, 2_000),
                (0, 2, 4_000),
                (1, 0, 2_000),
                (2, 0, 4_000),
                (2, 1, 4_000)
            ]
        );
        assert!(blocked(work, Blocker::Failed, 0.0, &POLICY).gives_up);
        assert!(blocked(work, Blocker::Unknown, 0.0, &POLICY).gives_up);
        assert!(blocked(Work::due_at(at(0)), Blocker::Final, 0.0, &POLICY).gives_up);
        let patient = Policy {
            tries: None,
            ..POLICY
        };
        assert!(!blocked(Work { tries: 99, ..work }, Blocker::Failed, 0.0, &patient).gives_up);
        let waited = Work { waits: 4, ..work };
        assert!(blocked(waited, Blocker::Busy, 0.0, &POLICY).gives_up);
        let unbounded = Policy {
            waits: None,
            ..POLICY
        };
        assert!(!blocked(waited, Blocker::Busy, 0.0, &unbounded).gives_up);
    }

    #[test]
    fn postponements_without_a_bound_lengthen_the_pauses_after_failures() {
        let policy = Policy {
            waits: None,
            ..POLICY
        };
        let waited = Work {
            waits: 2,
            ..Work::due_at(at(0))
        };
        let failed = blocked(waited, Blocker::Failed, 1.0, &policy);
        assert_eq!((failed.work.tries, failed.work.waits), (1, 2));
        assert_eq!(pause_of(failed), 4_000);
    }

    #[test]
    fn pauses_are_at_least_half_and_never_longer_than_the_bound() {
        let many = Work {
            tries: 90,
            ..Work::due_at(at(0))
        };
        let pauses =
            [0.0, 1.0, 9.0].map(|jitter| pause_of(blocked(many, Blocker::Failed, jitter, &POLICY)));
        assert_eq!(pauses, [3_000, 6_000, 6_000]);
        let fixed = Policy {
            postponed_by: Some(Duration::from_millis(70)),
            ..POLICY
        };
        assert_eq!(pause_of(blocked(many, Blocker::Busy, 0.0, &fixed)), 70);
        assert_eq!(pause_of(blocked(many, Blocker::Failed, 0.0, &fixed)), 3_000);
    }

    #[test]
    fn what_is_due_is_stored_as_a_time_and_whether_it_is_taken() {
        for due in [Due::Never, Due::At(at(1)), Due::Taken { until: at(1) }] {
            let (time, is_taken) = due.to_parts();
            assert_eq!(Due::from_parts(time, is_taken), due);
        }
        assert_eq!(Due::from_parts(None, true), Due::Never);
    }
}
