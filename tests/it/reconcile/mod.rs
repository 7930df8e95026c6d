//! The ledger, held against the systems behind the tools.

pub mod adopted; // who adopts, and what the runbook says after a loss
pub mod adopted_again; // adopted calls that are lost, several effects of a key, and tools that deduplicate
pub mod adopting; // forgotten effects are calls again
pub mod anomalies; // acts of operators on what a reconciliation has found
pub mod guesses; // what a spelling or a wrong source explains is not undone
pub mod many; // many anomalies at once, and what holds too much
#[cfg(feature = "crash-points")]
pub mod points; // the process ends where it hurts a reconciliation
pub mod rules; // what a reconciliation leaves alone, and how an anomaly ends
pub mod runs; // the ledger, held against the systems behind the tools
