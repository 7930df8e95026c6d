//! Many gateways over one Redis.

pub mod accepted; // a loss of Redis data is accepted by an operator
pub mod accepting; // a loss whose acceptance takes longer than a request
pub mod commands; // how many commands a gateway asks of a Redis
pub mod damaged; // calls in a Redis that cannot be read
pub mod documents; // documents that a Redis has lost, cannot read or has no room for
pub mod far; // a Redis that is far away
pub mod faults; // a Redis that is killed, stopped, cut off, full or unfit
pub mod finished; // succeeded calls that gateways over one Redis remember
pub mod forgotten; // gateways that are gone leave no trace, and hide no loss
pub mod formats; // gateways of different releases, and the move to the newest format
pub mod kinds; // TLS, clusters, replicas, Sentinels
pub mod late; // what comes late from a gateway that has noticed a loss
pub mod losses; // a Redis that has lost data
pub mod pause; // pauses that gateways of one Redis share
pub mod put_back; // what a gateway remembers goes back to a Redis that has lost it
pub mod refused; // what is refused where a Redis is unfit or lacks what a gateway knows
pub mod shared; // many gateways over one Redis
pub mod tenants; // a tenant is a partition: every kind of tool on every kind of Redis, slots on the move
