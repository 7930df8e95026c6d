//! Requests of operators about one anomaly, and when they are refused.

use super::case::{Case, Illegal};
use super::listed::{Act, Request, State, adoptable};
use crate::rules::Kind;

/// The act that a request leads to; `None`: no act, ever.
///
/// An act that was done, or may have been begun, stands. A decision against acts does not: nothing has happened yet. Nor
/// does an adoption whose call `is_lost`.
///
/// # Errors
/// The same was asked for before, another act was done or begun, or the request cannot be met.
pub(super) fn act_for(
    case: &Case,
    request: Request,
    is_lost: bool,
) -> Result<Option<Act>, Illegal> {
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
        return Err(Illegal::Contrary(why.into()));
    }
    match asks_for {
        Some(act) if is_bound && act == action => return Err(Illegal::Unchanged),
        None if state == State::Ignored => return Err(Illegal::Unchanged),
        _ if is_bound => {
            let (state, action) = (state.as_str(), action.as_str());
            let why = format!("it is {state}, and its action is {action}");
            return Err(Illegal::Contrary(why));
        }
        _ => {}
    }
    if case.listed.kind == Kind::Settled && asks_for.is_some() {
        let why = "a call that was unknown is settled, and nothing else";
        return Err(Illegal::Contrary(why.into()));
    }
    if asks_for == Some(Act::Adopt) {
        may_be_adopted(case).map_err(Illegal::Contrary)?;
    }
    Ok(asks_for)
}

impl Case {
    /// The requests that would change the case now.
    pub fn requests(&self) -> Vec<Request> {
        let is_met = |request: &Request| act_for(self, *request, false).is_ok();
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
