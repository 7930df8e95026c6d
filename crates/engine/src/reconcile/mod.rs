//! Reconciliation: compares the ledger with the systems behind the tools.
//!
//! `core::reconcile` decides what disagrees; this part collects the data, writes anomalies down and settles them.
//!
//! A run asks the sources first and the ledger after them. An effect that a source has was claimed before, so the ledger
//! has its call by then. The name of an anomaly follows from its content, so a second run, on this gateway or another,
//! finds the same anomalies and does nothing again.

mod adoption; // writes forgotten effects back as calls
mod anomalies; // anomalies as operators see them, and acts on them
mod anomaly_worker; // works on anomalies that are due
mod collect; // reads the sources and the ledger, and compares them
mod remedy; // settles a call, and undoes a call or an effect
mod report; // the report of a run
mod run; // scheduled runs, and runs that an operator asks for
mod service; // the service that all of these files extend
mod settings; // the configured reconciliations

pub use self::anomaly_worker::AnomalyWorker;
pub use self::report::{Overview, Report, RunState};
pub use self::run::Period;
pub use self::service::Reconciler;
pub(crate) use self::settings::by_name;
pub use self::settings::{Reconciliation, SourceAt};
