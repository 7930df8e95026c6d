//! How fast the gateways of the tests look at things.

use std::time::Duration;

use oncegate::core::pace::Pace;

/// Faster than operators have it, and slow enough for a busy machine.
pub fn brisk() -> Pace {
    Pace {
        lease_margin: Duration::from_secs(1),
        recover_every: Duration::from_millis(300),
        look_every: Duration::from_millis(150),
        count_every: Duration::from_millis(100),
        poll: (Duration::from_millis(50), Duration::from_millis(200)),
        // Tests look at what was not confirmed before the gateway does.
        look_for_claim: Pace::default().look_for_claim,
        work_margin: Duration::from_secs(2),
        saga_looks_again: Duration::from_millis(500),
        redis_look_every: Duration::from_millis(250),
        redis_others_look: Duration::from_secs(1),
        recipes_max_age: Duration::from_secs(1),
        redis_watch_gone: Duration::from_millis(100),
        // What a test reads is what is so now.
        ask_store_every: Duration::ZERO,
        check_listener_every: Pace::default().check_listener_every,
        listen_at_most: Pace::default().listen_at_most,
        most_targets: 50,
    }
}
