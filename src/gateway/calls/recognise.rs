//! The first request for an adopted call says what the call asked for. The rule is in `core::call`.

use jiff::Timestamp;

use crate::core::call::Event;
use crate::core::record::Record;
use crate::core::tool::Tool;
use crate::gateway::base::Base;
use crate::gateway::error::ErrorKind;
use crate::gateway::transition::{self, OnConflict};
use crate::store;

/// Writes down what an adopted call asked for; `None`: another request was faster, or may have been.
pub(super) async fn recognise(
    base: &Base,
    tool: &Tool,
    held: Record,
    event: &Event,
    now: Timestamp,
) -> Result<Option<Record>, ErrorKind> {
    let moved = transition::apply(base, tool, held, event, now, OnConflict::GiveUp);
    match moved.await {
        Ok(moved) => Ok(moved.written()),
        // It may have been written: what is stored says so.
        Err(store::Error::Ambiguous(_)) => Ok(None),
        Err(_) => Err(ErrorKind::StoreUnavailable),
    }
}
