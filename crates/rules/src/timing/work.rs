//! Due work: taken by one gateway, tried again, postponed, given up.
//!
//! Sagas and anomalies are such work. Gateways compete for it by compare-and-swap on the document that holds it: the
//! gateway that writes [`Event::Taken`] does the work. Must not know what the work is.

use std::time::Duration;

use jiff::Timestamp;

use crate::retry;
use crate::time::later;

/// When a worker takes the work next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Only after an act of an operator.
    Never,
    At(Timestamp),
    /// A gateway works on it until then. Other gateways do not take it meanwhile.
    Taken {
        until: Timestamp,
    },
}

impl Due {
    /// Reads the stored form: the time, and whether the work is taken.
    pub fn from_parts(time: Option<Timestamp>, is_taken: bool) -> Self {
        match time {
            None => Self::Never,
            Some(until) if is_taken => Self::Taken { until },
            Some(time) => Self::At(time),
        }
    }

    pub fn at(self) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::At(time) | Self::Taken { until: time } => Some(time),
        }
    }

    pub fn is_taken(self) -> bool {
        matches!(self, Self::Taken { .. })
    }

    /// The same, but not before this time. [`Never`](Self::Never) stays.
    pub fn not_before(self, least: Timestamp) -> Self {
        let time = self.at().map(|time| time.max(least));
        Self::from_parts(time, self.is_taken())
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
    /// Tries before the work is given up; `None`: no bound.
    pub tries: Option<u32>,
    /// Postponements before the work is given up; `None`: no bound.
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
    /// A gateway begins the work.
    Taken { until: Timestamp },
    /// The gateway that does the work needs until then.
    Prolonged { until: Timestamp },
    /// The gateway that did the work has ended, and no other gateway does it.
    Freed,
    /// A try was blocked. `jitter` is random, of 0..1.
    Blocked { blocker: Blocker, jitter: f64 },
}

/// Why work could not be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// The cause will end soon. The work is postponed, which is not a failure.
    Busy,
    /// The outcome of a call is unknown. It may become known without an operator.
    Unknown,
    /// The try failed.
    Failed,
    /// Only an operator can do the work.
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
    /// Whether the work was tried or postponed too often.
    pub gives_up: bool,
}

/// The work is not due, or no gateway works on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotDue;

impl Work {
    /// New work that is due at this time.
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
        let due = match *event {
            Event::Taken { until } if self.due.at().is_some_and(|due_at| due_at <= now) => {
                Due::Taken { until }
            }
            Event::Freed if self.due.is_taken() => Due::At(now),
            Event::Taken { .. } | Event::Freed => return Err(NotDue),
            Event::Prolonged { until } => Due::Taken { until },
            Event::Blocked { blocker, jitter } => {
                return Ok(self.blocked(blocker, jitter, policy, now));
            }
        };
        Ok(Next {
            work: Self { due, ..self },
            gives_up: false,
        })
    }

    fn blocked(self, blocker: Blocker, jitter: f64, policy: &Policy, now: Timestamp) -> Next {
        let (tries, waits) = if blocker == Blocker::Busy {
            (self.tries, self.waits.saturating_add(1))
        } else {
            // A bound is on postponements in a row. Without a bound they lengthen the pauses for good.
            let waits = policy.waits.map_or(self.waits, |_| 0);
            (self.tries.saturating_add(1), waits)
        };
        let pause = match policy.postponed_by {
            Some(pause) if blocker == Blocker::Busy => pause,
            _ => {
                let longest = retry::back_off(policy.base, policy.max, tries.max(waits));
                retry::at_least_half(longest, jitter)
            }
        };
        let is_reached = |bound: Option<u32>, count| bound.is_some_and(|bound| count >= bound);
        let gives_up = match blocker {
            Blocker::Busy => is_reached(policy.waits, waits),
            Blocker::Unknown | Blocker::Failed => is_reached(policy.tries, tries),
            Blocker::Final => true,
        };
        let due = Due::At(later(now, pause));
        Next {
            work: Self { due, tries, waits },
            gives_up,
        }
    }
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
    fn due_work_is_stored_as_a_time_and_whether_it_is_taken() {
        for due in [Due::Never, Due::At(at(1)), Due::Taken { until: at(1) }] {
            assert_eq!(Due::from_parts(due.at(), due.is_taken()), due);
        }
        assert_eq!(Due::from_parts(None, true), Due::Never);
    }
}
