//! The shared store: one Redis (or the master of its sentinels, or a cluster), many gateways.
//!
//! Each verb that writes is one script, so it is one atomic step and one round trip. The gateway inspects the Redis every
//! second: how durable it is, and whether it still has what was written to it. While either is not as it should be, nothing
//! is claimed.

mod answer; // answers of scripts and commands
mod at_risk; // calls that a loss of data puts at risk
mod barrier; // WAIT, for writes that replicas must have
mod calls; // claims, changes, and finding calls that need work
mod checks; // what is inspected, and when
mod document; // documents
mod durability; // how durable a Redis is
mod epoch; // lost data: noticing it, accepting it
mod find; // finding calls
mod forget; // deleting old calls
mod gateways; // gateways that are gone are forgotten
mod keys; // names of keys
mod known; // tenants and tools that are listed
mod ledger; // listing calls
mod link; // the connection
mod loss; // whether the store has lost data
#[cfg(test)]
mod loss_model; // explores all states of a model of the loss check
mod marks; // epoch and counts of a partition
mod memory; // what a gateway remembers of the store
mod pause; // paused tools
mod put_back; // writes that the store has lost and the gateway remembers
mod record; // records as texts
mod scripts; // one per verb
mod selftest; // a trial of the scripts
mod server; // the connection, the scripts and what is known of their Redis
mod session; // conditions of claims, and denials
mod sessions; // sessions as operators see them
mod status; // whether anything may be claimed
mod store; // the parts, opened together
mod subscriber; // hears the ends of other gateways' calls
mod target; // the address of a Redis, and the demands on it
mod tracker; // hears what other gateways change
mod whole; // until when the store surely has everything

pub use self::memory::WatermarksError;
pub use self::store::{OpenError, Redis};
pub use self::target::{Settings, Target};
