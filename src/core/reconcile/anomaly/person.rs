//! What persons ask for about one anomaly, and when that is refused.

use super::case::Case;
use super::listed::{Act, Request, State, adoptable};
use crate::core::reconcile::Kind;

/// What follows from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This is to be done; `None`: nothing, ever.
    Do(Option<Act>),
    /// It was asked for before, and stands.
    Stands,
    /// Something else is done, or being done; says what.
    Refused(String),
}

/// Decides on a request.
///
/// What was done, or may have been begun, stands. That nothing was to be done does not: nothing has happened. An adoption
/// does not stand if its call `is_lost`.
pub(super) fn verdict(case: &Case, request: Request, is_lost: bool) -> Verdict {
    let (state, action) = (case.state, case.listed.action);
    // To tell a webhook changes nothing.
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
    /// What a person may ask for now, so that something follows from it.
    pub fn requests(&self) -> Vec<Request> {
        let follows = |request: &Request| matches!(verdict(self, *request, false), Verdict::Do(_));
        Request::ALL.into_iter().filter(follows).collect()
    }
}

/// Whether an effect can be adopted, as far as its case says.
///
/// # Errors
/// Why not.
fn may_be_adopted(case: &Case) -> Result<(), String> {
    if case.undoing.is_some() {
        return Err("how it is undone is decided already: that may have been begun".into());
    }
    let listed = &case.listed;
    adoptable(
        listed.kind,
        listed.call(),
        &listed.key,
        listed.rival.as_ref(),
    )
}
