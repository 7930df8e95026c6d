//! Requests of persons about one anomaly, and when they are refused.

use super::case::Case;
use super::listed::{Act, Request, State, adoptable};
use crate::core::reconcile::Kind;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The act is to be done; `None`: no act, ever.
    Do(Option<Act>),
    /// The same was asked for before.
    Stands,
    /// Another act was done or begun, or the request cannot be met; says why.
    Refused(String),
}

/// Decides on a request.
///
/// An act that was done, or may have been begun, stands. A decision against acts does not: nothing has happened yet. Nor
/// does an adoption whose call `is_lost`.
pub(super) fn verdict(case: &Case, request: Request, is_lost: bool) -> Verdict {
    let (state, action) = (case.state, case.listed.action);
    // A notification of a webhook changes nothing.
    let is_bound = matches!(state, State::Open | State::Done) && action != Act::Webhook;
    let asks_for = match request {
        Request::Compensate => Some(Act::Compensate),
        Request::Ignore => None,
        Request::Adopt => Some(Act::Adopt),
    };
    if is_lost && case.adopted_as().is_some() {
        let why =
            "the call that it became is not in the ledger any more: run the reconciliation again";
        return Verdict::Refused(why.into());
    }
    match asks_for {
        Some(act) if is_bound && act == action => return Verdict::Stands,
        None if state == State::Ignored => return Verdict::Stands,
        _ if is_bound => {
            let (state, action) = (state.as_str(), action.as_str());
            return Verdict::Refused(format!("it is {state}, and its action is {action}"));
        }
        _ => {}
    }
    if case.listed.kind == Kind::Settled && asks_for.is_some() {
        return Verdict::Refused("a call that was unknown is settled, and nothing else".into());
    }
    if asks_for == Some(Act::Adopt)
        && let Err(why) = may_be_adopted(case)
    {
        return Verdict::Refused(why);
    }
    Verdict::Do(asks_for)
}

impl Case {
    /// The requests that would change the case now.
    pub fn requests(&self) -> Vec<Request> {
        let is_met = |request: &Request| matches!(verdict(self, *request, false), Verdict::Do(_));
        Request::ALL.into_iter().filter(is_met).collect()
    }
}

/// Checks by its case that an effect can be adopted.
///
/// # Errors
/// Why not.
fn may_be_adopted(case: &Case) -> Result<(), String> {
    if case.undoing.is_some() {
        return Err("how it is undone is decided already: that may have been begun".into());
    }
    let listed = &case.listed;
    let rival = listed.rival.as_ref();
    adoptable(listed.kind, listed.call(), &listed.key, rival)
}
