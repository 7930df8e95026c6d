//! APIs that callers use as they are.

pub mod access; // who may use an API
pub mod apis; // the guides of docs/apis: what they configure and what they promise
pub mod attacked; // callers who try to get around a rule
pub mod commerce; // protocols of agents that buy
pub mod crashes; // gateways that end in the middle of an order
pub mod credentials; // whose call it is, and what is shown of it
pub mod guard; // other spellings of paths, methods and names
pub mod origin; // answers of others are never active on the gateway's origin
pub mod payments; // agents that pay
pub mod profiles; // rows of settings for protocols
pub mod purchases; // what counts as one purchase of an agent that pays
pub mod requests; // requests that pass, and what is kept of them
pub mod rules; // what a rule says of a path
pub mod tokenless; // callers without a token of the gateway
pub mod wire; // heads and bodies as they are
