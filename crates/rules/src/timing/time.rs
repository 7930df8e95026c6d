//! Sums of times that neither overflow nor lose digits in a store.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, TimestampArithmetic};

/// The time so much later; at most [`Timestamp::MAX`].
pub fn after(time: Timestamp, span: impl Into<TimestampArithmetic>) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// The time so much earlier; at least [`Timestamp::MIN`].
pub fn before(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_sub(span).unwrap_or(Timestamp::MIN)
}

/// The duration with a sign; at most [`SignedDuration::MAX`].
pub fn signed(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

/// The time so much later, in whole milliseconds.
///
/// Stores keep microseconds, and a time must come back as it was written.
pub(crate) fn later(time: Timestamp, span: Duration) -> Timestamp {
    let milliseconds = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    after(time, Duration::from_millis(milliseconds))
}

/// The time from one to another; 0 if the clock was set back in between.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The time from one to another in whole milliseconds; 0 if the clock was set back.
pub fn elapsed_ms(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(between(from, to).as_millis()).unwrap_or(u64::MAX)
}

/// A time in a document: microseconds since 1970 in UTC. For `#[serde(with = "…")]`.
pub mod micros {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// For serde.
    ///
    /// # Errors
    /// The format cannot write it.
    pub fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(time.as_microsecond())
    }

    /// For serde.
    ///
    /// # Errors
    /// It is not a number, or not a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        Timestamp::from_microsecond(i64::deserialize(from)?).map_err(D::Error::custom)
    }

    /// A time that may be absent.
    pub mod optional {
        use jiff::Timestamp;
        use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

        /// For serde.
        ///
        /// # Errors
        /// The format cannot write it.
        pub fn serialize<S: Serializer>(
            time: &Option<Timestamp>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            time.map(Timestamp::as_microsecond).serialize(to)
        }

        /// For serde.
        ///
        /// # Errors
        /// It is not a number, or not a time.
        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Timestamp>, D::Error> {
            let micros = Option::<i64>::deserialize(from)?;
            micros
                .map(Timestamp::from_microsecond)
                .transpose()
                .map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[test]
    fn a_clock_set_back_lets_no_time_pass() {
        assert_eq!(elapsed_ms(at(1), at(3)), 2_000);
        assert_eq!(elapsed_ms(at(3), at(1)), 0);
    }

    #[test]
    fn no_sum_is_beyond_the_last_of_all_times_and_stores_keep_all_of_its_digits() {
        assert_eq!(
            after(at(1), Duration::from_millis(1_500)),
            later(at(1), Duration::from_micros(1_500_999))
        );
        for endless in [
            Duration::MAX,
            Duration::from_secs(u64::from(u32::MAX) * 3_600),
        ] {
            assert_eq!(after(at(1), endless), Timestamp::MAX);
            assert_eq!(later(at(1), endless), Timestamp::MAX);
        }
        assert_eq!(signed(Duration::MAX), SignedDuration::MAX);
        assert_eq!(before(at(1), SignedDuration::MAX), Timestamp::MIN);
        assert_eq!(before(at(3), signed(Duration::from_secs(2))), at(1));
    }
}
