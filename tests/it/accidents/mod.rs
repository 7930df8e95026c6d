//! The process ends where it hurts.

pub mod chaos; // whatever goes wrong: at most one effect, and nothing is lost
#[cfg(target_os = "linux")]
pub mod clocks; // a gateway whose clock is set back while it shares a store
pub mod crash; // kill -9
pub mod gone_back; // a store goes back to an older copy
pub mod maintenance; // another master of a Redis on purpose
#[cfg(feature = "crash-points")]
pub mod points; // the process ends where it hurts
#[cfg(feature = "crash-points")]
pub mod points_world; // one life of a gateway that ends at a point, and what must hold after it
pub mod shutdown; // stopping in good order
