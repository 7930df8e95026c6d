//! What operators see and do.

mod ledger; // listing calls
mod pause; // paused tools
mod sessions; // sessions as operators see them
