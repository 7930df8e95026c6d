//! What operators see and do.

mod ledger; // listing and deleting calls
mod sessions; // sessions and pauses
