//! How fast the gateways of the tests look at things.

use std::time::Duration;

use oncegate::core::timings::Timings;

/// Faster than operators have it, and slow enough for a busy machine. Looking twice as often took a tenth more processor time for
/// the whole suite.
pub fn brisk() -> Timings {
    Timings {
        lease_margin: Duration::from_secs(1),
        recover_every: Duration::from_millis(600),
        look_every: Duration::from_millis(500),
        count_every: Duration::from_millis(250),
        poll: (Duration::from_millis(50), Duration::from_millis(200)),
        // Tests look at what was not confirmed before the gateway does.
        look_for_claim: Timings::default().look_for_claim,
        work_margin: Duration::from_secs(2),
        saga_looks_again: Duration::from_millis(500),
        redis_look_every: Duration::from_millis(250),
        redis_others_look: Duration::from_secs(1),
        key_schemes_max_age: Duration::from_millis(1_500),
        redis_watch_gone: Duration::from_millis(100),
        redis_format_settles: Duration::from_millis(600),
        // What a test reads is what is so now.
        ask_store_every: Duration::ZERO,
        check_listener_every: Timings::default().check_listener_every,
        listen_at_most: Timings::default().listen_at_most,
        most_targets: 50,
    }
}

/// The same over a server that nothing happens to: nobody has to look whether it has lost data.
pub fn brisk_at_peace() -> Timings {
    Timings {
        redis_look_every: Duration::from_secs(1),
        redis_others_look: Duration::from_millis(100),
        ..brisk()
    }
}
