//! How a call is undone, as both stores keep it. Must not decide anything.

use uuid::Uuid;

use crate::core::record::{CallId, Compensation, Undo};

/// As a JSON text: the tool and the id of the call that undoes it, if there is one, and whether an operator has
/// decided that it is not undone.
pub(super) fn write(undo: &Undo) -> String {
    let call = undo
        .compensation
        .as_ref()
        .map(|call| (&call.tool, call.call_id.0));
    serde_json::json!([call, undo.skipped]).to_string()
}

/// `None`: this was never written.
pub(super) fn read(text: &str) -> Option<Undo> {
    let (call, skipped): (Option<(String, Uuid)>, bool) = serde_json::from_str(text).ok()?;
    let compensation = call.map(|(tool, call_id)| Compensation {
        tool,
        call_id: CallId(call_id),
    });
    Some(Undo {
        compensation,
        skipped,
    })
}
