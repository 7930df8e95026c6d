//! How much there may be of something.

pub mod breaker; // when a failing tool gets no calls
pub mod permits; // fair shares of permits
pub mod rate; // how often something may happen
pub mod share; // how much of a budget one party may hold
