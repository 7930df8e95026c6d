//! One call, and what repeats of it get.

pub mod agent; // an agent that does what it is told
pub mod downstream; // nothing is sent twice or too late
pub mod keyless; // a loop of an agent whose runtime brings no keys of its own
pub mod keys; // what counts as the same call
pub mod nulls; // null for an argument that need not be there
pub mod outcomes; // what the tool's answers mean to a caller
pub mod peers; // mistakes of other systems that no other test looks for
pub mod reads; // a read is executed each time
pub mod recheck; // unknown calls come to rest, when something goes wrong
pub mod rechecks_shared; // rechecks by several gateways, and stored calls that cannot be read
pub mod rejections; // what a tool's refusal proves
pub mod requests; // what arguments become on the wire
pub mod rest; // unknown calls come to rest
pub mod reused; // the same key with other arguments
pub mod same; // the same call, sent again
pub mod same_intent; // one intent under several keys of a model: one effect
pub mod shared_runs; // what those are told who share a run
pub mod similar; // what looks like a call gets its result
pub mod unknown; // ambiguous outcomes
