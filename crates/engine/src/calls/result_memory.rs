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
    pub fn reserve(&self, tenant: &str, longest: Option<usize>, args: usize) -> Option<Charge> {
        let longest = longest.unwrap_or(self.max_result);
        self.budget.charge(tenant, longest + 2 * args).ok()
    }

    /// Memory for the values of a request while it is read. `None`: they are few.
    ///
    /// # Errors
    /// There is not enough.
    pub fn to_read(&self, tenant: &str, bytes: usize) -> Result<Option<Charge>, Error> {
        if bytes < FEW {
            return Ok(None);
        }
        let reservation = self.budget.charge(tenant, bytes);
        reservation
            .map(Some)
            .map_err(|_| ErrorKind::NoMemory.alone())
    }

    /// A loaded record, with memory for its result.
    pub(super) fn with_reservation(&self, mut record: Record) -> Result<Record, ErrorKind> {
        let bytes = record.state.stored_mut().map_or(0, |json| json.len());
        let reservation = self.budget.charge(&record.intent.tenant, bytes);
        move_in(
            &mut record,
            &mut Some(reservation.map_err(|_| ErrorKind::NoMemory)?),
        );
        Ok(record)
    }

    /// A remembered record, with memory for its result. Does not copy the result.
    pub(super) fn with_reservation_beside(&self, mut record: Record) -> Result<Record, ErrorKind> {
        if let Some(json) = record.state.stored_mut() {
            let reservation = self.budget.charge(&record.intent.tenant, json.len());
            let reservation = reservation.map_err(|_| ErrorKind::NoMemory)?;
            *json = attach(json.clone(), &Arc::new(reservation));
        }
        Ok(record)
    }
}

/// Ties the reserved memory to the result, until its last copy is dropped.
pub(super) fn move_in(record: &mut Record, reservation: &mut Option<Charge>) {
    if let Some(json) = record.state.stored_mut()
        && let Some(reservation) = reservation.take()
    {
        *json = reservation.keep(json);
    }
}
