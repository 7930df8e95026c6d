//! Claims about oncegate, tested through HTTP against the real router, the real store and a fake
//! tool that counts its effects.

#![expect(unreachable_pub, reason = "a test binary has no outside")]
#![expect(clippy::expect_used, reason = "a helper that fails fails the test")]

mod accidents; // the process ends where it hurts
mod approvals; // calls that a person has to approve
mod bounds; // what attackers and crowds may take
mod calls; // one call, and what repeats of it get
mod config; // the configuration, and what is made from it
mod console; // pages for the operator who is woken up
mod house; // how the code is laid out and written
mod mcp; // calls by MCP, servers behind the gateway, and `oncegate wrap`
mod operators; // acts of operators, and what they watch
#[cfg(feature = "postgres")]
mod postgres; // many gateways over one PostgreSQL
mod proxies; // APIs that callers use as they are
mod reconcile; // the ledger, held against the systems behind the tools
mod redis; // many gateways over one Redis
mod sagas; // what an abandoned plan has done is undone
mod secrets; // who may do what, and what nobody may see
mod sessions; // what bounds the calls of one conversation, and what is kept of them
mod stores; // what every store promises, and a file as a store
mod support; // the words that the tests are written in
