//! When something happens.

pub mod retry; // when to try again
pub mod time; // sums of times
pub mod timings; // intervals that no operator sets
pub mod work; // work that is due, tried, postponed and given up
