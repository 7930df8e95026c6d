//! Memory for results: reserved before a call is claimed, so that no result is lost for want of it.

use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use oncegate_budget::{Budget, Charge, attach};
use oncegate_rules::record::Record;

/// Bytes of values that are part of what every request is charged.
const FEW: usize = 16 * 1024;

/// The memory that results are charged to.
pub struct ResultMemory {
    pub budget: Budget,
    /// The longest result, in bytes.
    pub max_result: usize,
}

impl ResultMemory {
    /// Reserves memory for a call's longest result and its arguments. `None`: there is not enough.
    ///
    /// `longest`: for a tool with a bound of its own.
    pub(crate) fn reserve(
        &self,
        tenant: &str,
        longest: Option<usize>,
        args: usize,
    ) -> Option<Charge> {
        let longest = longest.unwrap_or(self.max_result);
        self.budget.charge(tenant, longest + 2 * args).ok()
    }

    /// Memory for the values of a request while it is read. `None`: they are few.
    ///
    /// # Errors
    /// There is not enough.
    pub(crate) fn to_read(&self, tenant: &str, bytes: usize) -> Result<Option<Charge>, Error> {
        if bytes < FEW {
            return Ok(None);
        }
        let room = self.budget.charge(tenant, bytes);
        room.map(Some).map_err(|_| ErrorKind::NoRoom.alone())
    }

    /// A loaded record, with memory for its result.
    pub(super) fn with_room(&self, mut record: Record) -> Result<Record, ErrorKind> {
        let bytes = record.state.kept_mut().map_or(0, |json| json.len());
        let room = self.budget.charge(&record.intent.tenant, bytes);
        move_in(&mut record, &mut Some(room.map_err(|_| ErrorKind::NoRoom)?));
        Ok(record)
    }

    /// A remembered record, with memory for its result. Does not copy the result.
    pub(super) fn with_room_beside(&self, mut record: Record) -> Result<Record, ErrorKind> {
        if let Some(json) = record.state.kept_mut() {
            let room = self.budget.charge(&record.intent.tenant, json.len());
            let room = room.map_err(|_| ErrorKind::NoRoom)?;
            *json = attach(json.clone(), &Arc::new(room));
        }
        Ok(record)
    }
}

/// Ties the reserved memory to the result, until its last copy is dropped.
pub(super) fn move_in(record: &mut Record, room: &mut Option<Charge>) {
    if let Some(json) = record.state.kept_mut()
        && let Some(room) = room.take()
    {
        *json = room.keep(json);
    }
}
