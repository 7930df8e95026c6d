//! Explores the promise: every state that gateways, store, tool, callers and operators can reach within small bounds.
//!
//! Every change of a call or saga goes through the real rules, `rules::call::next` and `rules::saga::next`. The model
//! imitates what `gateway` and `store` do around them; each file names those that it imitates. Only tests use it.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "only tests use it; it says how long a search took"
)]

mod approvals; // approvers, and who begins what they have approved
mod canon; // a state as bytes, without what makes no difference
mod claims; // how a gateway claims a key
mod gateway; // what a gateway does about one call
mod judge; // the promise
mod loss; // the store loses writes
mod model; // the real rules, but for one that a test breaks
mod names; // names, numbers and times
mod operators; // what callers and operators do
mod outside; // the tool, and the network before it
mod recover; // workers for lost and unknown calls
mod sagas; // the worker for sagas
mod scene; // what is explored, and within which bounds
mod search; // every state, breadth first
mod steps; // what may happen next
mod store; // compare-and-swap
mod tests;
mod tidy; // what can make no difference any more
mod world; // a state
