//! The rules, and nothing else: from values to values.
//!
//! This room knows no clock, no network, no randomness, no async. Times, random numbers and
//! what was observed come in as arguments; what to do goes out as data.

pub mod actor; // who acts, as entries say it
pub mod audit; // what persons have done
pub mod breaker; // when a failing tool gets no calls
pub mod call; // the states of a call and the one function that moves it
pub mod caller; // who is calling and what they may do
pub mod compensation; // how a tool's calls are undone
pub mod document; // what is kept beside the calls
pub mod evidence; // what was observed of an attempt
pub mod frozen; // how frozen sessions are found
pub mod json; // strict JSON and its canonical form (RFC 8785)
pub mod key; // what counts as the same call
pub mod ledger; // what is asked of the ledger
pub mod many; // acts on many calls or sagas at once
pub mod mcp; // the rules of the MCP door, and of MCP servers
pub mod outcome; // what an attempt proved
pub mod pace; // times that no operator sets
pub mod pause; // whether a paused tool was resumed
pub mod places; // who may take a place that others may want, too
pub mod position; // where something stands in a list
pub mod proxy; // an API of HTTP that callers use as it is
pub mod rate; // how often something may happen
pub mod recipe; // how the names and the fingerprint of a call are made
pub mod reconcile; // whether the ledger and a system behind the tools agree
pub mod record; // what is kept of a call
pub mod redact; // what is never kept, or never shown
pub mod replay; // whether a tool would answer today as it did then
pub mod request; // how arguments become a request of HTTP
pub mod retry; // when to try again
pub mod saga; // a group of calls that is completed or undone as a whole
pub mod schema; // what a tool's arguments must be like
pub mod secret; // what fingerprints are made with
pub mod session; // what bounds the parallel branches of one conversation
pub mod share; // how much of a budget one party may hold
pub mod sign_in; // a person's session in the console
pub mod time; // sums of times
pub mod tool; // the policy of one tool
pub mod tool_schema_export; // what a model is shown of a tool
pub mod trace; // where in which trace a call belongs
pub mod trial; // what a trial of a tool shows
pub mod undo; // the call that undoes another one
pub mod unknown; // how an unknown outcome comes to rest
pub mod work; // what is due, tried, postponed and given up

#[cfg(test)]
mod fuzz_tests;
