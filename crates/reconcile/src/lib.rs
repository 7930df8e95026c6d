//! Reconciliation: compares the ledger with the systems behind the tools, and settles what disagrees.
//!
//! [`rules`] decides what disagrees, and how an anomaly moves; [`Reconciler`] collects the data, and an anomaly is a document
//! on which one gateway at a time works ([`AnomalyWorker`]).
//!
//! A run asks the sources first and the ledger after them. An effect that a source has was claimed before, so the ledger
//! has its call by then. The name of an anomaly follows from its content, so a second run, on this gateway or another,
//! finds the same anomalies and does nothing again.
//!
//! An item whose key no call has is an orphan:
//!
//! ```
//! use jiff::{SignedDuration, Timestamp};
//! use oncegate_reconcile::rules::pairing::Pairing;
//! use oncegate_reconcile::rules::{Join, Kind, Rules, Window};
//! use oncegate_rules::key::Lookup;
//!
//! let rules = Rules {
//!     source: "shop".into(),
//!     key: "/key".parse()?,
//!     join: Join::Key,
//!     id: Some("/id".parse()?),
//!     call_id: None,
//!     compare: Vec::new(),
//!     time: None,
//!     status: None,
//!     ignore: Vec::new(),
//!     ignores_keyless: false,
//! };
//! let window = Window {
//!     since: Timestamp::from_second(1_000).expect("a time"),
//!     until: Timestamp::from_second(2_000).expect("a time"),
//!     margin: SignedDuration::from_secs(60),
//! };
//! let key = Lookup::new("tenant", "ship", "k1").for_tool();
//! let item = rules.item(&serde_json::json!({ "id": "o1", "key": key }));
//! let compared = Pairing::new(&rules, window, vec![item]).finish(&[]);
//! assert_eq!(compared.anomalies[0].kind, Kind::Orphan);
//! # Ok::<(), String>(())
//! ```

mod adoption; // writes forgotten effects back as calls
mod anomalies; // anomalies as operators see them, and acts on them
mod anomaly_worker; // works on anomalies that are due
mod collect; // reads the sources and the ledger, and compares them
mod growth; // a run comes sooner where unknown calls grow
mod many; // one act on many anomalies
mod many_routes; // its route
mod reload; // what a reload of the configuration may change
mod remedy; // settles a call, and undoes a call or an effect
mod report; // the report of a run
mod routes; // the JSON routes
pub mod rules; // what disagrees, and how an anomaly moves
mod run; // scheduled runs, and runs that an operator asks for
mod section; // the sections of the configuration
mod service; // the service that these files extend
mod settings; // the configured reconciliations
mod source; // lists of effects, page by page
#[cfg(test)]
mod testing; // an anomaly for tests
mod unknown; // how many calls are unknown

use std::sync::Arc;

use oncegate_http::openapi::Route;

pub use self::anomaly_worker::AnomalyWorker;
pub use self::many::{AskedFor, Found, ManyAnomalies, Sum};
pub use self::report::{Overview, Report, RunState};
pub use self::run::Period;
pub use self::section::settings;
pub use self::service::Reconciler;
pub use self::settings::{Reconciliation, SourceAt};
pub use self::source::Source;

/// The routes of reconciliations and anomalies.
pub fn routes(reconciler: &Arc<Reconciler>) -> Vec<Route> {
    routes::routes(many_routes::route(), reconciler)
}
