//! Intervals that no operator sets. They are values, so that tests can make them shorter.

use std::time::Duration;

/// The intervals of the gateway's loops, and its waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "crash-points", derive(serde::Serialize, serde::Deserialize))]
pub struct Timings {
    /// How long after its deadline a call holds its key: the time to write down the outcome.
    pub lease_margin: Duration,
    /// How often the gateway looks for calls without an owner, and for old ones.
    pub recover_every: Duration,
    /// How often it looks for due unknown calls, sagas, reconciliations and anomalies.
    pub look_every: Duration,
    /// How often it writes down the duplicates of calls.
    pub count_every: Duration,
    /// The first and the longest pause before the gateway looks again at another gateway's running call.
    pub poll: (Duration, Duration),
    /// How often it looks whether an unconfirmed claim was stored.
    pub look_for_claim: Duration,
    /// How long beyond the work's own time other gateways do not take it.
    pub work_margin: Duration,
    /// The longest pause of a saga that waits for a running or unknown call.
    pub saga_looks_again: Duration,
    /// How often it looks at a Redis.
    pub redis_look_every: Duration,
    /// How long after a restart of Redis nothing is claimed, so that every gateway looks first.
    ///
    /// Well above `redis_look_every`.
    pub redis_others_look: Duration,
    /// The greatest age of the list of key schemes by which a shared store is claimed.
    ///
    /// Well above `recover_every`, which is how often it is read.
    pub key_schemes_max_age: Duration,
    /// How long a gateway that seems to be gone is watched before it is forgotten.
    ///
    /// By the clock of the gateway that watches. Longer than the interval at which gateways report.
    pub redis_watch_gone: Duration,
    /// How long nothing is written in the form to which a Redis was moved.
    ///
    /// Well above `redis_look_every`: a gateway of an earlier release looks meanwhile, and stops writing.
    pub redis_format_settles: Duration,
    /// How often the ops routes ask the store, at most.
    pub ask_store_every: Duration,
    /// How often it checks whether a listening client still may listen.
    pub check_listener_every: Duration,
    /// How long a client may listen for changes in one request.
    pub listen_at_most: Duration,
    /// Most calls or sagas of one act of an operator.
    pub most_targets: usize,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease_margin: Duration::from_secs(10),
            recover_every: Duration::from_secs(5),
            look_every: Duration::from_secs(1),
            count_every: Duration::from_secs(1),
            poll: (Duration::from_millis(250), Duration::from_secs(1)),
            look_for_claim: Duration::from_millis(500),
            work_margin: Duration::from_secs(10),
            saga_looks_again: Duration::from_secs(5),
            redis_look_every: Duration::from_secs(1),
            redis_others_look: Duration::from_secs(2),
            key_schemes_max_age: Duration::from_secs(15),
            redis_watch_gone: Duration::from_secs(180),
            redis_format_settles: Duration::from_secs(10),
            ask_store_every: Duration::from_secs(1),
            check_listener_every: Duration::from_secs(15),
            listen_at_most: Duration::from_secs(3_600),
            most_targets: 10_000,
        }
    }
}

/// How long a batch of a cleanup should hold up live traffic.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// Calls of a batch, at least.
const SMALLEST_BATCH: u32 = 10;

/// How many calls the next batch of a cleanup has, after one that took so long.
pub fn next_batch(last: u32, took: Duration, most: u32) -> u32 {
    if took > BATCH_TIME {
        (last / 2).max(SMALLEST_BATCH.min(most))
    } else if took < BATCH_TIME / 2 {
        last.saturating_mul(2).min(most)
    } else {
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_smaller_after_a_slow_one_and_larger_after_a_fast_one_within_bounds() {
        let after = |last, milliseconds| next_batch(last, Duration::from_millis(milliseconds), 100);
        assert_eq!(after(100, 6), 50);
        assert_eq!(after(50, 4), 50, "about right");
        for right in [BATCH_TIME, BATCH_TIME / 2] {
            assert_eq!(next_batch(50, right, 100), 50);
        }
        assert_eq!(after(50, 2), 100);
        assert_eq!(after(100, 0), 100);
        assert_eq!(after(12, 900), 10);
        assert_eq!(next_batch(4, Duration::from_secs(1), 4), 4);
    }
}
