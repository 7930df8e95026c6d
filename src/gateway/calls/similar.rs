//! A request with a new key that looks like an earlier call. The rule is in `core::call`.

use std::sync::Arc;

use super::prepared::PreparedCall;
use crate::core::call::{Action, Event, Resembled};
use crate::core::record::{CallId, Intent, MAX_ALIASES, Record, State};
use crate::core::session::Refusal;
use crate::core::tool::OnSimilar;
use crate::core::unknown;
use crate::gateway::base::Base;
use crate::gateway::error::ErrorKind;
use crate::gateway::transition::{self, Moved, OnConflict};
use crate::store::Error;

/// How often the store is asked to add a key to a call.
///
/// Each refusal means that another writer was faster, and only so many writers add a key.
const TRIES: usize = 2 * MAX_ALIASES;

/// The answer to a request that looks like a call.
pub(in crate::gateway) enum Alike {
    /// The result of that call, which has the request's key as a name now.
    Settled(Box<Record>),
    /// The key has been claimed meanwhile, or that call is gone: look again.
    Again,
}

/// Whether requests that look like a call get its result.
pub(in crate::gateway) fn replays(call: &PreparedCall) -> bool {
    call.at
        .tool
        .similar
        .as_ref()
        .is_some_and(|similar| similar.action == OnSimilar::Replay)
}

/// Answers a request from a similar call, whose name its key becomes.
///
/// # Errors
/// Why it is not answered so. Nothing was run.
pub(in crate::gateway) async fn answer_alike(
    base: &Base,
    call: &PreparedCall,
    intent: &Arc<Intent>,
    call_id: CallId,
    instead_of: &[Record],
) -> Result<Alike, ErrorKind> {
    let unavailable = |_| ErrorKind::StoreUnavailable;
    let load = async || base.store.load(call_id).await;
    let mut there = load().await.map_err(unavailable)?;
    for _ in 0..TRIES {
        let Some(record) = there.take() else {
            return Ok(Alike::Again);
        };
        let event = Event::Resembled(Resembled {
            intent: intent.clone(),
            instead_of: instead_of.to_vec(),
            by: base.instance,
        });
        let now = base.now();
        let tool = &call.at.tool;
        let moved = transition::apply(base, tool, record, &event, now, OnConflict::GiveUp);
        match moved.await {
            Ok(Moved::Written { record, .. } | Moved::Unchanged(record, Action::Answer)) => {
                return Ok(Alike::Settled(record.into()));
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
            Ok(Moved::Unchanged(_, Action::RefuseReused)) => return Ok(Alike::Again),
            Ok(Moved::Unchanged(..)) => {
                return Err(ErrorKind::Refused(Refusal::Similar { call_id }));
            }
            Ok(Moved::Lost(Some(newer))) if newer.intent.call_id == call_id => {
                there = Some(newer);
            }
            Ok(Moved::Lost(_)) => return Ok(Alike::Again),
            // It may have been written: what is stored says so.
            Err(Error::Ambiguous(_)) => there = load().await.map_err(unavailable)?,
            Ok(Moved::Refused(..)) | Err(_) => return Err(ErrorKind::StoreUnavailable),
        }
    }
    Err(ErrorKind::StoreUnavailable)
}
