//! Claims about oncegate, tested through HTTP against the real router, the real store and a fake
//! tool that counts its effects. In suggested reading order:

#![expect(unreachable_pub, reason = "a test binary has no outside")]

mod support; // the words that the tests are written in

mod calls; // the same call, sent again
mod unknown; // ambiguous outcomes
mod keys; // what counts as the same call
mod outcomes; // what the tool's answers mean to a caller
mod downstream; // nothing is sent twice or too late
mod store; // the promises of the store
mod crash; // kill -9
mod shutdown; // stopping in good order
mod access; // who may do what
mod ops; // health, readiness, metrics, logs
mod config; // what an operator may write
mod problems; // the table of failures
mod house; // which room may know which
