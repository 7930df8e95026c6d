//! Simulates the whole: the gateway's real code, with time, numbers, network, store and tools that a seed decides.
//!
//! One thread and a paused clock; the same seed gives the same history. What the model in `explore` imitates is the
//! real code here. Only tests use it.

mod agents; // what callers do
#[expect(
    unreachable_pub,
    reason = "a file of `tests/it`, where it is part of the support"
)]
#[path = "../../tests/it/support/arguments.rs"]
mod arguments;
mod books; // what the tools have seen and done
mod dice; // numbers that a seed decides
mod events; // what agents and tools have seen, for a judge that others wrote
mod gateway; // gateways that begin, crash and begin again
mod judge; // the promise
mod life; // one life of a gateway
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the store of `tests/it`, of which a simulation needs a part"
)]
#[path = "../../tests/it/support/memory/mod.rs"]
mod memory;
mod net; // the network and the tools behind it
mod operators; // what operators do
mod plan; // what a seed decides at the beginning
mod run; // one seed, from the beginning to the end
mod store; // the store as a gateway reaches it
mod tasks; // agents that make calls as tasks of MCP
mod tests;
mod turns; // one thing after the other
mod world; // what all of them share
