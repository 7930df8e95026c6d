//! How much a caller gets, and who is refused.

pub(crate) mod permits; // permits that tenants and tokens share
pub(crate) mod refusals; // tokens that were refused
pub(crate) mod throttle; // how fast a caller may be
