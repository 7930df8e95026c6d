//! Reconciliation: the ledger is compared with the systems behind the tools.
//!
//! `core::reconcile` decides what disagrees; here it is collected, written down and settled.
//!
//! The source is asked first and the ledger after it: what the source has by then was claimed before, so
//! no call that runs meanwhile is missed. Everything that is found has a name that follows from what
//! it is, so a second run, on this gateway or another, finds the same and does nothing again.

mod acts; // acts of persons on anomalies
mod adoption; // writes forgotten effects back as calls
mod anomaly_worker; // works on anomalies that are due
mod cases; // anomalies as persons look at them
mod collect; // what sources and ledger have
mod remedy; // how a call is settled, and a call or an effect undone
mod report; // what is kept of a run, and shown
mod run; // scheduled runs, and those that an operator asks for
mod service; // what all of these work with
mod settings; // as it is configured

pub use self::anomaly_worker::AnomalyWorker;
pub use self::cases::Shown;
pub use self::report::{Overview, Report, RunState};
pub use self::run::Period;
pub use self::service::Reconciler;
pub(in crate::gateway) use self::settings::Reconciliations;
pub use self::settings::{Reconciliation, SourceAt};
