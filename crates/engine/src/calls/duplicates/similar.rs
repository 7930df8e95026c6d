//! A request with a new key that looks like an earlier call. The rule is in `rules::call`.

use std::sync::Arc;

use crate::base::Base;
use crate::calls::prepared::PreparedCall;
use crate::error::ErrorKind;
use crate::transition::{self, Moved, OnConflict};
use oncegate_rules::call::{Action, Event, Resembled};
use oncegate_rules::record::{CallId, Intent, MAX_ALIASES, Record, State};
use oncegate_rules::session::Refusal;
use oncegate_rules::tool::{OnSimilar, Tool};
use oncegate_rules::unknown;
use oncegate_store::Error;

/// How often the store is asked to add a key to a call.
///
/// Each refusal means that another writer was faster, and at most `MAX_ALIASES` writers add a key.
const TRIES: usize = 2 * MAX_ALIASES;

/// Whether a request that looks like a call gets the result of that call.
pub(in crate::calls) fn replays(tool: &Tool) -> bool {
    let similar = tool.similar.as_ref();
    similar.is_some_and(|similar| similar.action == OnSimilar::Replay)
}

/// Adds a request's key to the similar call, and returns that call as the answer.
///
/// `None`: the key has been claimed meanwhile, or the similar call is gone: look again.
///
/// # Errors
/// Why the request is not answered so. Nothing was run.
pub(in crate::calls) async fn answer_similar(
    base: &Base,
    call: &PreparedCall,
    intent: &Arc<Intent>,
    call_id: CallId,
    replaced: &[Record],
) -> Result<Option<Record>, ErrorKind> {
    let load = async || {
        let loaded = base.store.load(call_id).await;
        loaded.map_err(|_| ErrorKind::StoreUnavailable)
    };
    let mut similar = load().await?;
    for _ in 0..TRIES {
        let Some(record) = similar.take() else {
            return Ok(None);
        };
        let event = Event::Resembled(Resembled {
            intent: intent.clone(),
            replaced: replaced.to_vec(),
            by: base.instance,
        });
        let (tool, now) = (&call.at.tool, base.now());
        match transition::apply(base, tool, record, &event, now, OnConflict::GiveUp).await {
            Ok(Moved::Written { record, .. } | Moved::Unchanged(record, Action::Answer)) => {
                return Ok(Some(record));
            }
            Ok(Moved::Unchanged(record, Action::Wait)) => {
                let retry_after = match record.state {
                    State::Running => Some(call.at.retry_after_of(&record, now)),
                    _ => unknown::next_look(&record, now),
                };
                return Err(ErrorKind::Refused(Refusal::SimilarPending {
                    call_id,
                    retry_after,
                }));
            }
            Ok(Moved::Unchanged(_, Action::RefuseReused)) => return Ok(None),
            Ok(Moved::Unchanged(..)) => {
                return Err(ErrorKind::Refused(Refusal::Similar { call_id }));
            }
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == call_id => {
                similar = Some(newer);
            }
            Ok(Moved::Lost(_)) => return Ok(None),
            // The change may be written: the stored call tells.
            Err(Error::Ambiguous(_)) => similar = load().await?,
            Ok(Moved::Refused(..)) | Err(_) => return Err(ErrorKind::StoreUnavailable),
        }
    }
    Err(ErrorKind::StoreUnavailable)
}
