//! What is known of a call.

use super::{Error, ErrorKind, Gateway};
use crate::core::caller::Caller;
use crate::core::record::{CallId, Entry, Record};

/// The most entries of a call's history that one answer holds: the newest.
const MAX_ENTRIES: u32 = 500;

impl Gateway {
    /// A call with its history, oldest entry first.
    ///
    /// # Errors
    /// Another tenant's call is unknown, just as one that is not there.
    pub async fn find_call(&self, caller: &Caller, call_id: CallId) -> Result<(Record, Vec<Entry>), Error> {
        if !caller.may_read(&caller.tenant) {
            return Err(ErrorKind::Forbidden.alone());
        }
        let found = self.counted("history", self.store.history(call_id, MAX_ENTRIES).await);
        let found = found.map_err(|_| ErrorKind::StoreUnavailable.alone())?;
        found
            .filter(|(record, _)| caller.may_read(&record.intent.tenant))
            .ok_or_else(|| ErrorKind::UnknownCall.alone())
    }
}
