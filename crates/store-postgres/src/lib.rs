//! The shared store that loses nothing in a failover: one PostgreSQL, many gateways.
//!
//! Each verb that writes is one function in the database, and what waits at one time is one transaction, so a claim and an
//! outcome are one round trip and one commit each. The gateway inspects the server every second: how durable it is, and whether
//! it still has what was written to it. While either is not as it should be, nothing is claimed.

mod calls; // claims, changes, and finding calls that need work
mod checks; // what is inspected, and when
mod document; // documents as rows
mod link; // connections, and lanes over which all callers write
mod loss; // whether the store has lost data
mod operators; // what operators see and do
mod server; // the connections, and what is known of their PostgreSQL
mod store; // the parts, opened together
mod target; // the address of a PostgreSQL, and the demands on it

pub use self::checks::layout::administrators_sql;
pub use self::store::Postgres;
pub use self::target::{DEFAULT_SCHEMA, Schema, Settings, Target};
#[doc(hidden)]
pub use tokio_postgres; // for tests that look at what is stored
