//! Memory for results: kept before a call is claimed, so that no result is lost for want of it.

use crate::budget::{Budget, Charge};
use crate::core::record::Record;
use crate::gateway::error::ErrorKind;

/// The memory that results are charged to.
pub struct ResultMemory {
    pub budget: Budget,
    /// The longest result, in bytes.
    pub max_result: usize,
}

impl ResultMemory {
    /// Room for the longest result of a call and for its arguments, if there is any. `longest`: of a tool that has another
    /// bound than all tools.
    pub(in crate::gateway) fn reserve(
        &self,
        tenant: &str,
        longest: Option<usize>,
        args: usize,
    ) -> Option<Charge> {
        let longest = longest.unwrap_or(self.max_result);
        self.budget.charge(tenant, longest + 2 * args).ok()
    }

    /// A record that was loaded, with room for its result.
    pub(in crate::gateway) fn with_room(&self, mut record: Record) -> Result<Record, ErrorKind> {
        let bytes = record.state.kept_mut().map_or(0, |json| json.len());
        let room = self.budget.charge(&record.intent.tenant, bytes);
        move_in(&mut record, &mut Some(room.map_err(|_| ErrorKind::NoRoom)?));
        Ok(record)
    }
}

/// From now on the result holds the room that was kept for it, as long as a copy of it is anywhere.
pub(in crate::gateway) fn move_in(record: &mut Record, room: &mut Option<Charge>) {
    if let Some(json) = record.state.kept_mut()
        && let Some(room) = room.take()
    {
        *json = room.keep(json);
    }
}
