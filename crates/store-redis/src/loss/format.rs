//! The format of a store, and the steps from one to the next.
//!
//! Many gateways share a store and are replaced one after another. So a gateway reads and writes every format of [`STEPS`],
//! and the store stays at its format until an operator moves it, once all gateways that share it can do the next. What was
//! stored before is not written again: each format is read together with all before it.
//!
//! A gateway of an earlier release that finds a newer format writes nothing. It may have looked for the last time just
//! before the move, so nothing is written in the new form until the store has had it for some seconds.

use std::ops::RangeInclusive;

use jiff::{SignedDuration, Timestamp};

/// A format, and what it brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub to: u32,
    /// The newest version of the bytes of a call that is written in it.
    pub calls: u8,
    /// The first release that knows it.
    pub release: &'static str,
    pub what: &'static str,
}

/// All formats that this release knows, in order. A released one is never changed.
pub const STEPS: [Step; 2] = [
    Step {
        to: 5,
        calls: 1,
        release: "0.2.0",
        what: "",
    },
    Step {
        to: AUDITED_RELOADS,
        calls: 1,
        release: "the release after 0.2.0",
        what: "reloads of the configuration and exports are in the audit, and calls may wait for approval",
    },
];

/// From this format on reloads and exports are in the audit. A gateway of 0.2.0 cannot read them: it leaves them out of its
/// list, and logs an error for each.
pub(crate) const AUDITED_RELOADS: u32 = 6;
/// The newest format.
pub const FORMAT: u32 = STEPS[STEPS.len() - 1].to;
/// The oldest one that is still read.
pub(crate) const OLDEST: u32 = STEPS[0].to;

/// The format of a store as a gateway remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) number: u32,
    /// When the store was moved to it, in microseconds; `None` if it began with it.
    pub(crate) moved_us: Option<i64>,
}

impl Format {
    /// Of a store that begins with it.
    pub(crate) const fn begun(number: u32) -> Self {
        Self {
            number,
            moved_us: None,
        }
    }

    /// Whether what belongs to this format may be written at this time of the store.
    pub(crate) fn may_write(self, format: u32, now: Timestamp, settles: SignedDuration) -> bool {
        let moved = self.moved_us.map(Timestamp::from_microsecond);
        let is_settled = |moved: Timestamp| now.duration_since(moved) >= settles;
        self.number >= format
            && match moved {
                None => true,
                Some(Ok(moved)) => is_settled(moved),
                Some(Err(_)) => false,
            }
    }
}

/// The formats that a gateway knows up to this one.
pub(crate) fn known(newest: u32) -> RangeInclusive<u32> {
    OLDEST..=newest
}

/// The newest version of the bytes of a call that is written in this format.
pub(crate) fn calls_of(format: u32) -> Option<u8> {
    let step = STEPS.iter().find(|step| step.to == format);
    step.map(|step| step.calls)
}

/// Why a gateway cannot use a store of this format; `None`: it can.
pub(crate) fn unknown(format: u32, partitions: u8, newest: u32) -> Option<String> {
    use crate::keys::PARTITIONS;
    if partitions != PARTITIONS {
        let why = format!(
            "the store has {partitions} partitions, and this release knows stores of {PARTITIONS}"
        );
        return Some(why);
    }
    if known(newest).contains(&format) {
        return None;
    }
    let why = if format > newest {
        "a newer release has moved it on: start that one, or a newer one"
    } else {
        "it is of a release before 0.2.0"
    };
    Some(format!(
        "the store has format {format}, and this release knows formats {OLDEST} to {newest}; {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_store::codec;

    #[test]
    fn formats_follow_each_other_and_the_newest_has_the_bytes_of_this_release() {
        let numbers: Vec<u32> = STEPS.iter().map(|step| step.to).collect();
        let expected: Vec<u32> = known(FORMAT).collect();
        assert_eq!(numbers, expected);
        assert_eq!(calls_of(FORMAT), Some(codec::VERSION));
        assert_eq!(calls_of(FORMAT + 1), None);
    }

    #[test]
    fn an_unknown_format_is_refused_with_a_sentence() {
        assert_eq!(unknown(5, 64, FORMAT), None);
        assert_eq!(unknown(FORMAT, 64, FORMAT), None);
        insta::assert_snapshot!(unknown(7, 64, 6).unwrap_or_default(), @"the store has format 7, and this release knows formats 5 to 6; a newer release has moved it on: start that one, or a newer one");
        insta::assert_snapshot!(unknown(6, 64, 5).unwrap_or_default(), @"the store has format 6, and this release knows formats 5 to 5; a newer release has moved it on: start that one, or a newer one");
        insta::assert_snapshot!(unknown(4, 64, 6).unwrap_or_default(), @"the store has format 4, and this release knows formats 5 to 6; it is of a release before 0.2.0");
        insta::assert_snapshot!(unknown(6, 128, 6).unwrap_or_default(), @"the store has 128 partitions, and this release knows stores of 64");
    }

    #[test]
    fn a_new_form_is_written_only_when_every_gateway_has_looked_since_the_move() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let settles = SignedDuration::from_secs(10);
        let moved = Format {
            number: 6,
            moved_us: Some(at(100).as_microsecond()),
        };
        assert!(!moved.may_write(6, at(109), settles));
        assert!(moved.may_write(6, at(110), settles));
        assert!(!moved.may_write(7, at(200), settles));
        assert!(Format::begun(6).may_write(6, at(0), settles));
        assert!(!Format::begun(5).may_write(6, at(200), settles));
        let spoiled = Format {
            number: 6,
            moved_us: Some(i64::MAX),
        };
        assert!(!spoiled.may_write(6, at(200), settles));
    }
}
