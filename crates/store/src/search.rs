//! What stores in tables search by: lists of calls, keys of sessions and groups, and columns about a call's state.
//!
//! Must not decide anything.

use jiff::Timestamp;

use oncegate_rules::key::{GroupKey, digest};
use oncegate_rules::ledger::{self, Index, STATES};
use oncegate_rules::record::{Record, State};

/// The due time of an unknown call whose checks were given up.
pub const NEVER: i64 = i64::MAX;

/// The lists that have a call.
///
/// No list has all calls of a tenant: the lists of its tools have them. A call is found by its key through its name. Only
/// a call that its name does not find is in a list by key, see [`by_key`].
pub fn of(record: &Record) -> Vec<i64> {
    let tenant = &record.intent.tenant;
    let listed = |index: &Index<'_>| !matches!(index, Index::All | Index::Key(_));
    let indexes = ledger::indexes(record).into_iter().filter(listed);
    indexes.filter_map(|index| list(tenant, index)).collect()
}

/// The list of calls with this key that no name finds: the name has another form, or another call holds it.
pub fn by_key(tenant: &str, key: &str) -> i64 {
    number(tenant, "key", key)
}

/// The list of a tool's calls.
pub fn by_tool(tenant: &str, tool: &str) -> i64 {
    number(tenant, "tool", tool)
}

/// The list of an index. `None`: its calls are found by another query.
pub fn list(tenant: &str, index: Index<'_>) -> Option<i64> {
    let (property, value) = match index {
        Index::UserDigest(user) => return Some(i64::from_be_bytes(user.0.as_chunks().0[0])),
        Index::All | Index::Key(_) => return None,
        Index::State(state) if !ledger::is_listed(state) => return None,
        Index::State(state) => ("state", state),
        Index::Tool(tool) => ("tool", tool),
        Index::Trace(trace) => ("trace", trace),
        Index::Session(session) => ("session", session),
        Index::User(user) => ("user", user),
        Index::Saga(saga) => ("saga", saga),
    };
    Some(number(tenant, property, value))
}

/// The number of a list. Two lists may share a number, so readers check each call.
fn number(tenant: &str, property: &str, value: &str) -> i64 {
    let digest = digest(["list", tenant, property, value]);
    i64::from_be_bytes(digest.as_chunks().0[0])
}

/// The key of a session: a digest of its tenant and its id.
pub fn session_key(tenant: &str, session_id: &str) -> [u8; 16] {
    digest(["session", tenant, session_id]).as_chunks().0[0]
}

/// The key of a group of calls.
pub fn group_key(group: GroupKey) -> [u8; 16] {
    group.0.as_chunks().0[0]
}

/// The columns by which running and unknown calls are found, and those that wait for approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateColumns<'a> {
    /// The place of its state in [`STATES`].
    pub state: u8,
    /// Running: when its lease ends. Unknown: its next check, `None` if none was planned yet. Proposed: until when it may be
    /// decided. Approved: since when.
    pub due_at: Option<i64>,
    /// Only of calls with a due time.
    pub tool: Option<&'a str>,
}

impl<'a> StateColumns<'a> {
    pub fn of(record: &'a Record) -> Self {
        let word = record.state.as_str();
        let state = STATES.iter().position(|one| *one == word).unwrap_or(0);
        let at = |time: Option<Timestamp>| time.map_or(NEVER, Timestamp::as_microsecond);
        let due_at = match record.state {
            State::Running => Some(record.attempt.lease_until.as_microsecond()),
            State::Unknown(_) => record.check.map(|check| at(check.at)),
            State::Proposed => Some(at(record.proposal.as_deref().map(|asked| asked.until))),
            State::Approved => Some(record.updated_at.as_microsecond()),
            _ => None,
        };
        let is_searched = matches!(
            record.state,
            State::Running | State::Unknown(_) | State::Proposed | State::Approved
        );
        Self {
            state: u8::try_from(state).unwrap_or(0),
            due_at,
            tool: is_searched.then_some(&record.intent.tool),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_each_tenant_has_a_list() {
        let list = by_key("shop", "k");
        assert_ne!(list, by_key("shop", "other"));
        assert_ne!(list, by_key("bank", "k"));
        assert_ne!(list, by_tool("shop", "k"));
    }

    #[test]
    fn tenants_and_ids_have_sessions_of_their_own() {
        let keys = [
            session_key("a", "bc"),
            session_key("ab", "c"),
            session_key("a", ""),
        ];
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }

    #[test]
    fn each_group_has_places_of_its_own() {
        assert_ne!(group_key(GroupKey([1; 32])), group_key(GroupKey([2; 32])));
    }
}
