//! Who may do what, and what nobody may see.

pub mod access; // who may do what
pub mod canary; // no secret of one caller gets into logs, metrics or the answers of others
pub mod fingerprints; // what was redacted cannot be guessed, and its secret is not lost
pub mod guessed; // nor asked for by keys
pub mod learned; // a further secret is learned while requests wait
pub mod stored; // what is secret stays so
