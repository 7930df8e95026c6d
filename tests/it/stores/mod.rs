//! What every store promises, and a file as a store.

pub mod acceptance; // an operator accepts that the store has lost data
pub mod admission; // what every store promises about the conditions of a claim
pub mod admission_groups; // what every store promises about budgets and calls that look alike
#[cfg(target_os = "linux")]
pub mod cleanup; // what is kept no longer is deleted, and nothing else
pub mod contract; // the promises of every store
pub mod documents; // what every store promises about what is kept beside the calls
pub mod erased; // what every store promises about erased calls
pub mod faults; // a store that fails
pub mod file; // a file, and a disk that fails
pub mod file_accepted; // a loss of a SQLite file is accepted by an operator
pub mod file_alone; // a SQLite file without the files beside it
#[cfg(feature = "crash-points")]
pub mod file_checks; // a file that is checked while it is served
pub mod file_losses; // a SQLite file that has lost data
pub mod files; // only their user may read them, and nothing else is touched
pub mod finished; // succeeded calls that a gateway remembers
pub mod kept; // files that earlier releases have left
pub mod key_schemes; // a stored call is recognised whatever the configuration has become
pub mod key_schemes_kept; // key schemes are written down before they are used, and forgotten after their last call
pub mod listing; // what every store promises about the ledger
pub mod upgrades; // files of earlier releases, upgraded whatever happens; and what operators do to a file
