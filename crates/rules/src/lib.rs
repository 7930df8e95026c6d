//! The rules: functions from values to values.
//!
//! This crate knows no clock, no network, no randomness, no async. Times, random numbers and
//! observations are arguments; what to do is returned as data.
//!
//! What an attempt without an answer proves, for example: nothing.
//!
//! ```
//! use oncegate_rules::evidence::{Evidence, Outcome, Sent};
//! use oncegate_rules::outcome::classify;
//! use oncegate_rules::tool::Tool;
//!
//! let lost = Evidence::NoAnswer { why: "the connection broke".into() };
//! let (outcome, why) = classify(&Tool::new("ship"), &lost, Sent::default());
//! assert_eq!(outcome, Outcome::Unknown);
//! assert_eq!(why, "the request was sent and not answered: the connection broke");
//! ```

mod access; // who acts, and what they may do
pub mod approval; // approval of the exact call
pub mod call; // the states of a call and the one function that changes it
pub mod key; // what counts as the same call
pub mod key_scheme; // how the lookup keys and the fingerprint of a call are made
pub mod ledger; // searches in the ledger, and what is stored beside the calls
mod limits; // how much there may be of something
pub mod mcp; // the rules of the MCP endpoint, and of MCP servers
pub mod outcome; // what an attempt proved, and how what is unknown becomes known
pub mod proxy; // an HTTP API that callers use as it is
pub mod record; // what is stored of a call
pub mod request; // how arguments become an HTTP request
pub mod saga; // a group of calls that is completed or undone as a whole
pub mod session; // locks, fencing tokens and budgets of one conversation
#[cfg(any(test, feature = "testing"))]
pub mod testing; // calls, tools and events for tests
mod timing; // when something happens
pub mod tool; // the policy of one tool
pub mod trial; // what a trial of a tool shows
mod values; // values that several features share

pub use self::access::{actor, caller, tenant};
pub use self::key::{nulls, secret};
pub use self::ledger::{audit, document, erasure, many, position};
pub use self::limits::{breaker, permits, rate, share};
pub use self::outcome::{evidence, replay, unknown};
pub use self::saga::{compensation, undo};
pub use self::session::frozen;
pub use self::timing::{retry, time, timings, work};
pub use self::tool::{pause, schema, schema_export as tool_schema_export};
pub use self::values::{json, redact, trace, words};

#[cfg(test)]
mod fuzz_tests;
