//! Times that no operator sets. They are values, so that tests need not wait as long as operators would.

use std::time::Duration;

/// How often the gateway looks at things, and how long it waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "crash-points", derive(serde::Serialize, serde::Deserialize))]
pub struct Pace {
    /// How long after its deadline a call may still hold its key: the time to write down how it ended.
    pub lease_margin: Duration,
    /// How often calls without an owner are looked for, and old ones deleted.
    pub recover_every: Duration,
    /// How often unknown calls, sagas, reconciliations and anomalies are looked for whose time has come.
    pub look_every: Duration,
    /// How often it is written down which calls were asked for again.
    pub count_every: Duration,
    /// How often another gateway's call is looked at while it runs: at first, and at most.
    pub poll: (Duration, Duration),
    /// How often it is looked whether a claim of unknown fate was carried out after all.
    pub look_for_claim: Duration,
    /// How long others leave work alone that is taken, beyond what the work itself may take.
    pub work_margin: Duration,
    /// How long a saga waits for a running or unknown call before it looks again, at most.
    pub saga_looks_again: Duration,
    /// How often a Redis is looked at.
    pub redis_look_every: Duration,
    /// How long after a restart of Redis nothing is claimed, so that every gateway may look.
    /// Well above `redis_look_every`.
    pub redis_others_look: Duration,
    /// How old the list of key recipes may be, where other gateways write to it, when a call is claimed by it.
    /// Well above `recover_every`, which is how often it is read.
    pub recipes_max_age: Duration,
    /// For how long a gateway that seems to be gone is watched before it is forgotten, by the clock of the one that
    /// watches. Longer than gateways take to say again that they are there.
    pub redis_watch_gone: Duration,
    /// How often the store is asked for what the ops doors show, at most.
    pub ask_store_every: Duration,
    /// How often it is checked whether a client that listens for changes may still do so.
    pub check_listener_every: Duration,
    /// How long a client may listen for changes before it has to ask again.
    pub listen_at_most: Duration,
}

impl Default for Pace {
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
            recipes_max_age: Duration::from_secs(15),
            redis_watch_gone: Duration::from_secs(180),
            ask_store_every: Duration::from_secs(1),
            check_listener_every: Duration::from_secs(15),
            listen_at_most: Duration::from_secs(3_600),
        }
    }
}
