//! Who may end a saga.

use std::collections::BTreeSet;

use super::Saga;
use crate::caller::{Caller, Scope};
use crate::key;

impl Saga {
    /// Whether this caller may complete, abort and read the saga.
    ///
    /// `tools`: the tools of the calls and of their compensations; `None`: not all of them are known.
    ///
    /// An abort calls these tools, so the caller must have begun the saga, or be allowed to call each of them. A saga that
    /// undoes a single call is for administrators: an abort would undo a call that an operator has skipped.
    pub fn may_be_ended_by(&self, caller: &Caller, tools: Option<&BTreeSet<String>>) -> bool {
        if caller.is_admin() {
            return true;
        }
        if caller.tenant != self.id.tenant || self.id.id.starts_with(key::COMPENSATION) {
            return false;
        }
        let is_call = |scope: &Scope| matches!(scope, Scope::Call | Scope::CallTool(_));
        let calls = caller.scopes.iter().any(is_call);
        let has_begun = calls && caller.name == self.begun_by;
        has_begun
            || tools.is_some_and(|tools| {
                !tools.is_empty() && tools.iter().all(|tool| caller.may_call(tool))
            })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::saga::{Policy, SagaId};
    use crate::testing::caller;

    #[test]
    fn a_saga_is_ended_by_who_began_it_or_may_call_all_of_its_tools() {
        let policy = Policy::default();
        let saga = |id: &str, begun_by: &str| {
            let id = SagaId {
                tenant: "shop".into(),
                id: id.into(),
            };
            let saga = Saga::begin(id, &policy, Timestamp::UNIX_EPOCH);
            Saga {
                begun_by: begun_by.into(),
                ..saga
            }
        };
        let (own, others) = (saga("G", "agents"), saga("G", "others"));
        let single = saga("compensate:1", "agents");
        let tools = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let (ship, both, none) = (tools(&["ship"]), tools(&["pay", "ship"]), tools(&[]));
        for (number, (scopes, saga, tools, may)) in [
            (&["call:pay"][..], &own, Some(&ship), true),
            (&["call:pay"], &own, None, true),
            (&["read"], &own, Some(&ship), false),
            (&["call:ship"], &others, Some(&ship), true),
            (&["call:ship"], &others, Some(&both), false),
            (&["call"], &others, Some(&both), true),
            (&["call"], &others, Some(&none), false),
            (&["call"], &others, None, false),
            (&["call"], &single, Some(&ship), false),
            (&["admin"], &single, None, true),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(
                saga.may_be_ended_by(&caller(scopes), tools),
                may,
                "row {number}"
            );
        }
        let elsewhere = Caller {
            tenant: "bank".into(),
            ..caller(&["call"])
        };
        assert!(!own.may_be_ended_by(&elsewhere, Some(&ship)));
    }
}
