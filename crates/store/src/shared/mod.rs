//! What stores of many gateways have in common, whatever server they are on.

pub mod clock; // the store's time
pub mod conditions; // the conditions of a claim, for the server
pub mod demand; // the demanded durability, and what is weaker
pub mod inspection; // when a server is inspected, and what becomes of the finding
pub mod memory; // what one gateway remembers of the store
pub mod moments; // until when the store surely has everything
pub mod pages; // pages of the ledger, read in portions
pub mod seen; // what a gateway has seen of the data

use std::path::PathBuf;

use crate::watermarks::WatermarksError;

/// Why a shared store cannot be opened. An unreachable server is not a reason: it may become reachable.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Watermarks(#[from] WatermarksError),
    #[error("{0}: the certificate authority cannot be read: {1}")]
    Ca(PathBuf, String),
    #[error("the certificate authorities of this system cannot be read: {0}")]
    Tls(String),
}
