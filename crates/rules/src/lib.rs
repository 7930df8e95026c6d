//! The rules: functions from values to values.
//!
//! This crate knows no clock, no network, no randomness, no async. Times, random numbers and
//! observations are arguments; what to do is returned as data.

pub mod actor; // who acts, as entries say it
pub mod audit; // the acts of operators
pub mod breaker; // when a failing tool gets no calls
pub mod call; // the states of a call and the one function that changes it
pub mod caller; // who is calling and what they may do
pub mod compensation; // how a tool's calls are undone
pub mod document; // what is stored beside the calls
mod ecma; // patterns of schemas that look around
pub mod evidence; // what was observed of an attempt
pub mod frozen; // marks by which frozen sessions are listed
pub mod json; // strict JSON and its canonical form (RFC 8785)
pub mod key; // what counts as the same call
pub mod ledger; // searches in the ledger
pub mod many; // acts on many calls or sagas at once
pub mod mcp; // the rules of the MCP endpoint, and of MCP servers
pub mod nulls; // members that are null
pub mod outcome; // what an attempt proved
pub mod pace; // intervals that no operator sets
pub mod pause; // whether a paused tool was resumed
pub mod places; // fair shares of permits
pub mod position; // positions in lists
pub mod proxy; // an HTTP API that callers use as it is
pub mod rate; // how often something may happen
pub mod recipe; // how the lookup keys and the fingerprint of a call are made
pub mod reconcile; // whether the ledger and a system behind the tools agree
pub mod record; // what is stored of a call
pub mod redact; // what is never kept, or never shown
pub mod replay; // whether a tool gives the same answer as before
pub mod request; // how arguments become an HTTP request
pub mod retry; // when to try again
pub mod saga; // a group of calls that is completed or undone as a whole
pub mod schema; // what a tool's arguments must be like
pub mod secret; // what fingerprints are made with
pub mod session; // locks, fencing tokens and budgets of one conversation
pub mod share; // how much of a budget one party may hold
pub mod sign_in; // an operator's session in the console
pub mod tenant; // tenants with a meaning of their own
#[cfg(any(test, feature = "testing"))]
pub mod testing; // calls, tools and events for tests
pub mod time; // sums of times
pub mod tool; // the policy of one tool
pub mod tool_schema_export; // what a model sees of a tool
pub mod trace; // the trace of a call, and its span in it
pub mod trial; // what a trial of a tool shows
pub mod undo; // the keys and arguments of compensations
pub mod unknown; // when an unknown call is checked, and what a probe proves
pub mod words; // enumerations with one word for each value
pub mod work; // work that is due, tried, postponed and given up

#[cfg(test)]
mod fuzz_tests;
