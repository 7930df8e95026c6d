//! The key schemes by which keys are made.
//!
//! A gateway writes its own key schemes before it uses them, and reads all others after that. So of two gateways that
//! share a store at least one knows both key schemes, and two claims of one call find each other. The rules are in
//! `rules::key_scheme`.

mod forget; // forgets key schemes of which no call is kept
mod known; // the key schemes that this gateway knows
mod learn; // writes this gateway's key schemes, and reads those of others

pub use self::known::KeySchemes;
pub(super) use self::known::key_schemes_of;
pub use self::learn::Error;
