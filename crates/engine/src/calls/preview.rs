//! Previews: what a request would meet if it were sent now. Nothing is claimed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::answer::answer_from;
use super::engine::Engine;
use super::prepared::{PreparedCall, Request};
use super::refusal::{expired, refusal};
use crate::callers::throttle::NewKey;
use crate::error::{Error, ErrorKind};
use crate::trace::RequestSpan;
use crate::transition;
use oncegate_rules::call::{self, Action, Resolved};
use oncegate_rules::caller::Caller;
use oncegate_rules::record::{Intent, Record, State};
use oncegate_rules::tool::Effect;

/// Which call a request is, and how it would be answered.
#[derive(Debug)]
pub struct Preview {
    /// The intent as it would be stored; its call id has no meaning.
    pub intent: Arc<Intent>,
    /// Whether the tool would get a key that follows from the request; a read has a new one each time.
    pub has_tool_key: bool,
    /// `None`: the caller may not know, because it could guess redacted arguments of others by it.
    pub would: Option<Would>,
    /// The call that holds the key now, if the caller may read it.
    pub meets: Option<Record>,
}

/// The answer to a request, as far as its key decides it.
///
/// A preview does not ask session, tool and store whether the call may begin.
#[derive(Debug)]
pub enum Would {
    Run,
    /// The request would wait for an operator's approval, and nothing would be sent before.
    Ask,
    /// The call is running; the request would wait for its result.
    Wait,
    /// The stored result would be answered.
    Replay,
    /// This failure would be answered, and nothing would run.
    Refuse(ErrorKind),
}

impl Engine {
    /// Reads a request as a call does, and looks once for a stored call.
    ///
    /// # Errors
    /// Why the request would be refused whatever is stored; the store does not answer; or for a tool that redacts arguments
    /// the caller has used up its new keys.
    pub async fn preview(&self, caller: &Caller, request: Request) -> Result<Preview, Error> {
        let at = self.at_for(caller, &request)?;
        let span = RequestSpan::default();
        let call = self.prepare(at, caller, request, &span).await?;
        let (intent, key) = (call.intent.clone(), call.shown_key.clone());
        let has_tool_key = call.at.tool.effect == Effect::Write;
        let error_of = |kind: ErrorKind| Error {
            key,
            ..kind.alone()
        };
        if !call.at.tool.redact.args.is_empty() {
            // Each preview may be a guess at what others have sent.
            let mut new_key = match self.claims.throttle.take_new_key(call.new_keys.as_ref()) {
                Ok(new_key) => new_key,
                Err(kind) => return Err(error_of(kind)),
            };
            NewKey::used(&mut new_key);
            if !caller.may_read(&caller.tenant) {
                return match call.complaint.clone() {
                    Some(complaint) => Err(error_of(complaint)),
                    None => Ok(Preview {
                        intent,
                        has_tool_key,
                        would: None,
                        meets: None,
                    }),
                };
            }
        }
        let (would, meets) = would(self, caller, call).await.map_err(error_of)?;
        Ok(Preview {
            intent,
            has_tool_key,
            would: Some(would),
            meets,
        })
    }
}

/// What a request for a read would meet.
async fn would_read(
    engine: &Engine,
    caller: &Caller,
    call: PreparedCall,
) -> Result<(Would, Option<Record>), ErrorKind> {
    let found = engine.claims.in_doubt(&call).await?;
    let would = match (&found, call.complaint) {
        (Some(record), _) if record.state == State::Running => Would::Wait,
        (Some(record), _) => {
            let (record, now) = (Arc::new(record.clone()), engine.base.now());
            match answer_from(&record, true, Duration::ZERO, now) {
                Ok(_) => Would::Replay,
                Err(kind) => Would::Refuse(kind),
            }
        }
        (None, Some(complaint)) => return Err(complaint),
        (None, None) => Would::Run,
    };
    Ok((would, found.filter(|record| may_read(caller, record))))
}

/// What a request would meet.
async fn would(
    engine: &Engine,
    caller: &Caller,
    call: PreparedCall,
) -> Result<(Would, Option<Record>), ErrorKind> {
    if call.at.tool.effect == Effect::Read {
        return would_read(engine, caller, call).await;
    }
    let holders = engine.claims.look_up(&call).await?;
    let mut call = Cow::Owned(call);
    engine.claims.compare_with(&mut call, &holders).await?;
    let (tool, now) = (&call.at.tool, engine.base.time());
    let met = call::resolve(tool, &holders, call.seeking(), now.dedup_now());
    let index = match &met {
        Resolved::Call(index) | Resolved::Expired(index) => Some(index),
        Resolved::Free { replaced, .. } => replaced.first(),
    };
    let held = index.and_then(|index| holders.get(*index));
    let held = held.map(|holder| &holder.record);
    let next = transition::ask(tool, held, &engine.claims.arrival(&call), now);
    let action = next.map_err(|_| ErrorKind::StoreUnavailable)?.action;
    let is_expired = matches!(met, Resolved::Expired(_));
    let asks = matches!(action, Action::Propose | Action::Begin);
    let runs = asks || matches!(action, Action::Claim | Action::Run);
    // A stored call is the answer. Without one the caller is told why the request is not a call today.
    if let Some(complaint) = &call.complaint
        && !is_expired
        && (runs || action == Action::RefuseReused)
    {
        return Err(complaint.clone());
    }
    let would = match (action, held) {
        (_, held) if is_expired => Would::Refuse(expired(&call, held)),
        (Action::Propose, _) => Would::Ask,
        _ if runs => Would::Run,
        (Action::Wait, Some(held)) if !held.state.waits_for_approval() => Would::Wait,
        (Action::Wait | Action::Answer | Action::TakeFingerprint, Some(held)) => {
            match answer_from(&Arc::new(held.clone()), true, Duration::ZERO, now.at) {
                Ok(_) => Would::Replay,
                Err(kind) => Would::Refuse(kind),
            }
        }
        (action, held) => {
            Would::Refuse(refusal(action, &call, held).for_caller(caller, &tool.name))
        }
    };
    let meets = held.filter(|held| may_read(caller, held));
    Ok((would, meets.cloned()))
}

fn may_read(caller: &Caller, record: &Record) -> bool {
    let intent = &record.intent;
    caller.may_read_call(&intent.tenant, &intent.tool, &intent.made_by)
}
