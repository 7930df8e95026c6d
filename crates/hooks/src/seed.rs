//! Time and numbers of a simulation, on the thread that runs it. Only tests have them.
//!
//! Without a simulation on this thread there are none, and the machine's are used.

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::{Builder, Uuid};

thread_local! {
    static SEED: Cell<Option<Seed>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Seed {
    seed: u64,
    began: Instant,
    /// How many numbers were drawn since the simulated time last moved on.
    drawn: u64,
    drawn_at: Duration,
}

/// Begins a simulation on this thread, whose runtime has a paused clock.
pub fn begin(seed: u64) {
    SEED.set(Some(Seed {
        seed,
        began: Instant::now(),
        drawn: 0,
        drawn_at: Duration::ZERO,
    }));
}

/// Ends it.
pub fn end() {
    SEED.set(None);
}

/// The time since the simulation began.
pub fn elapsed() -> Option<Duration> {
    SEED.get().map(|seed| seed.began.elapsed())
}

/// The wall clock of all machines.
pub fn wall() -> Option<Timestamp> {
    const BEGIN: i64 = 1_800_000_000;
    let micros = i64::try_from(elapsed()?.as_micros()).ok()?;
    Timestamp::from_microsecond(BEGIN * 1_000_000 + micros).ok()
}

/// The next number. It depends on the time, too: a draw too many at one time changes no later ones.
pub fn number() -> Option<u64> {
    let mut seed = SEED.get()?;
    let now = seed.began.elapsed();
    if now != seed.drawn_at {
        (seed.drawn, seed.drawn_at) = (0, now);
    }
    seed.drawn += 1;
    SEED.set(Some(seed));
    let micros = u64::try_from(now.as_micros()).ok()?;
    Some(mixed(&[seed.seed, micros, seed.drawn]))
}

/// A random UUID.
pub fn uuid() -> Option<Uuid> {
    Some(Builder::from_random_bytes(bytes()?).into_uuid())
}

/// A UUID that is ordered by time.
pub fn uuid_by_time() -> Option<Uuid> {
    let millis = u64::try_from(wall()?.as_millisecond()).ok()?;
    let random = bytes()?;
    let random = random.first_chunk::<10>()?;
    Some(Builder::from_unix_timestamp_millis(millis, random).into_uuid())
}

fn bytes() -> Option<[u8; 16]> {
    let number = u128::from(number()?) << 64 | u128::from(number()?);
    Some(number.to_be_bytes())
}

/// One number of many (SplitMix64).
pub fn mixed(parts: &[u64]) -> u64 {
    let mut mixed = 0x5851_f42d_4c95_7f2d_u64;
    for part in parts {
        mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}
