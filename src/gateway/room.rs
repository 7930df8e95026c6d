//! Memory for results: kept before a call is claimed, so that no result is lost for want of it.

use super::call::Asked;
use super::{ErrorKind, Gateway};
use crate::budget::{Budget, Charge};
use crate::core::record::Record;

impl Gateway {
    pub fn memory(&self) -> &Budget {
        &self.limits.memory
    }

    /// The longest result, in bytes.
    pub fn max_result(&self) -> usize {
        self.downstream.max_result()
    }

    /// Room for the longest result of a call and for its arguments, if there is any.
    pub(super) fn keep_room(&self, asked: &Asked) -> Option<Charge> {
        let bytes = self.max_result() + 2 * asked.args.len();
        self.memory().charge(&asked.intent.tenant, bytes).ok()
    }

    /// A record that was loaded, with room for its result.
    pub(super) fn with_room(&self, mut record: Record) -> Result<Record, ErrorKind> {
        let bytes = record.state.kept_mut().map_or(0, |json| json.len());
        let room = self.memory().charge(&record.intent.tenant, bytes);
        move_in(&mut record, &mut Some(room.map_err(|_| ErrorKind::NoRoom)?));
        Ok(record)
    }
}

/// From now on the result holds the room that was kept for it, as long as a copy of it is anywhere.
pub(super) fn move_in(record: &mut Record, room: &mut Option<Charge>) {
    if let Some(json) = record.state.kept_mut()
        && let Some(room) = room.take()
    {
        *json = room.keep(json);
    }
}
