//! What bounds the calls of one conversation, and what is kept of them.

pub mod exclusive; // one call of a session at a time, under load
pub mod ledger; // what ran, how often it was asked for, and with what result
pub mod locks; // what bounds the branches of one conversation
pub mod pause; // an operator stops a tool for a while
pub mod problems; // the table of failures
pub mod replay; // an operator asks whether a result is stable
pub mod session_tokens; // fencing tokens, and the sessions of different tenants
pub mod tokens; // they rise, whatever becomes of store and clock
pub mod turns; // one's turn in a session, when something goes wrong
