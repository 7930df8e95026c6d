//! Names of keys.
//!
//! The keys of a tenant's calls and sessions are in one partition: they share one hash tag, so that one script may touch
//! all of them on Redis Cluster.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use oncegate_rules::document::Kind;
use oncegate_rules::key::GroupKey;
use oncegate_rules::key::{self, Lookup};
use oncegate_rules::ledger::Index;
use oncegate_rules::record::{CallId, Intent, Record};
use oncegate_rules::session::SessionId;

/// The number of partitions.
///
/// Part of the stored format: a gateway with another number would not find the data.
pub(super) const PARTITIONS: u8 = 64;
/// The length of what all keys begin with.
const PREFIX: usize = "oncegate:{p000}:".len();

/// A partition of the keys; on Redis Cluster all of it is on one master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partition(u8);

impl Partition {
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..PARTITIONS).map(Self)
    }

    pub(super) fn of(lookup: &Lookup) -> Self {
        Self(lookup.partition() % PARTITIONS)
    }

    /// The partition of a tenant's calls and sessions.
    pub(super) fn of_tenant(tenant: &str) -> Self {
        Self(Lookup::partition_of(tenant) % PARTITIONS)
    }

    /// The partition of a call, the same as that of its lookup key: see [`CallId::new`].
    pub(super) fn of_call(call_id: CallId) -> Self {
        Self(call_id.0.as_bytes()[15] % PARTITIONS)
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// The prefix of the partition's keys.
    pub(super) fn prefix(self) -> String {
        self.key("")
    }

    pub(super) fn key(self, name: &str) -> String {
        self.joined(name, "", "")
    }

    /// The key of one of many things of a kind.
    fn key_of(self, kind: &str, name: &str) -> String {
        self.joined(kind, ":", name)
    }

    /// Without `format!`, which takes longer: a script about a call has about thirty keys.
    fn joined(self, kind: &str, between: &str, name: &str) -> String {
        let digit = |of: u8| char::from(b'0' + self.0 / of % 10);
        let mut key = String::with_capacity(PREFIX + kind.len() + between.len() + name.len());
        key.push_str("oncegate:{p");
        key.extend([digit(100), digit(10), digit(1)]);
        for part in ["}:", kind, between, name] {
            key.push_str(part);
        }
        key
    }

    /// The key of the id of the call that holds this name.
    pub(super) fn holder(self, lookup: &Lookup) -> String {
        self.key_of("key", &short(&lookup.0))
    }

    /// The key of the loss counters: the epoch and each gateway's writes, see `marks.lua`.
    pub(super) fn counters(self) -> String {
        self.key("marks")
    }

    /// Two hashes, the newer first: the last counts of forgotten gateways in this partition.
    ///
    /// They belong to one epoch: after an accepted loss gateways count from the store's own counts.
    pub(super) fn last_counts(self, epoch: &str) -> [String; 2] {
        ["last_counts", "last_counts_before"].map(|name| self.key_of(name, epoch))
    }

    /// The set of tools that a tenant has called.
    pub(super) fn tools(self, tenant: &str) -> String {
        let digest = key::digest(["tools", tenant]);
        self.key_of("tools", &short(&digest[..16]))
    }

    /// The list of a tenant's calls with one property, by position.
    ///
    /// The list of an idempotency key has only those of its calls that the holder of the key's name does not lead to. Of
    /// the states only [`LISTED`] have a list. No list has all calls of a tenant: the lists of its tools together do.
    /// The name is hashed, so that it contains no text of callers.
    pub(super) fn list(self, tenant: &str, list: Index<'_>) -> String {
        let (name, value) = match list {
            // The same digest as that of the user's name.
            Index::UserDigest(user) => {
                return self.key_of("list", &short(&user.0[..16]));
            }
            Index::Key(key) => ("key", key),
            Index::Trace(trace) => ("trace", trace),
            Index::Session(session) => ("session", session),
            Index::User(user) => ("user", user),
            Index::Saga(saga) => ("saga", saga),
            Index::State(state) => ("state", state),
            Index::Tool(tool) => ("tool", tool),
            Index::All => ("tool", ""),
        };
        let digest = key::digest(["list", tenant, name, value]);
        self.key_of("list", &short(&digest[..16]))
    }

    /// The keys of a script about a call: see `common.lua`.
    pub(super) fn of_script(
        self,
        record: &Record,
        conditions: ConditionKeys,
        lists: &[Index<'_>],
        givers: &[Record],
    ) -> Vec<String> {
        let intent = &record.intent;
        let mut keys = vec![
            self.holder(&intent.lookup),
            call(intent.call_id),
            self.counters(),
            self.key("earliest"),
        ];
        let indexes = ["census", "running", "unknown", "failed"];
        keys.extend(indexes.map(|name| self.key(name)));
        keys.extend(conditions);
        keys.extend(["retained", "stream", "tenants"].map(|name| self.key(name)));
        keys.push(self.tools(&intent.tenant));
        let list = |list| self.list(&intent.tenant, list);
        keys.extend(LISTED.map(Index::State).map(list));
        keys.push(self.key("waiting"));
        keys.extend(lists.iter().copied().map(list));
        let of_givers = givers.iter().map(|giver| Index::Key(&giver.intent.key));
        keys.extend(of_givers.map(list));
        keys.extend(record.all_lookups().skip(1).map(|name| self.holder(name)));
        keys
    }

    /// The channel on which the ends of calls are announced.
    pub(super) fn endings(self) -> String {
        self.key("endings")
    }
}

/// The states with a list for each tenant.
const LISTED: [&str; 4] = ["unknown", "failed", "proposed", "approved"];

/// The keys of a call's session, its line, the line's live waiters, its budget and its near-duplicate group.
pub(super) type ConditionKeys = [String; 5];

/// The lists that have a call from its claim on.
pub(super) fn lists(intent: &Intent) -> Vec<Index<'_>> {
    let mut lists = Vec::with_capacity(5);
    if intent.lookup != Lookup::new(&intent.tenant, &intent.tool, &intent.key) {
        lists.push(Index::Key(&intent.key));
    }
    lists.extend([Index::Tool(&intent.tool), Index::Trace(&intent.trace_id)]);
    let named = |id: &String| !id.is_empty();
    let (session, user, saga) = (&intent.session_id, &intent.user_id, &intent.saga_id);
    lists.extend(named(session).then_some(Index::Session(session)));
    lists.extend(named(user).then_some(Index::User(user)));
    lists.extend(named(saga).then_some(Index::Saga(saga)));
    lists
}

/// A short printable name of 16 bytes.
///
/// Redis gives the key of a call no more memory than that.
fn short(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The id of a call in the arguments of scripts.
pub(super) fn id(call_id: CallId) -> String {
    short(call_id.0.as_bytes())
}

/// Reads the id of a call; `None` if it is none.
pub(super) fn call_id(text: &[u8]) -> Option<CallId> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    Uuid::from_slice(&bytes).ok().map(CallId)
}

/// What a key belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A lookup key, whose holder the key has.
    Lookup(Lookup),
    Call(CallId),
}

/// Reads what a key belongs to; `None` if neither to a name nor to a call.
pub(super) fn about(key: &[u8]) -> Option<About> {
    let (_, name) = str::from_utf8(key).ok()?.split_once("}:")?;
    let (kind, id) = name.split_once(':')?;
    let id = <[u8; 16]>::try_from(URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
    match kind {
        "key" => Some(About::Lookup(Lookup(id))),
        "call" => Some(About::Call(CallId(Uuid::from_bytes(id)))),
        _ => None,
    }
}

/// The key of a call's record with its history: see `common.lua`.
pub(super) fn call(call_id: CallId) -> String {
    Partition::of_call(call_id).key_of("call", &id(call_id))
}

/// The key of a call's duplicates: see `arrived.lua`.
pub(super) fn duplicates(call_id: CallId) -> String {
    Partition::of_call(call_id).key_of("again", &id(call_id))
}

/// The partition of a session, where its changes are counted.
pub(super) fn partition_of(id: &SessionId) -> Partition {
    Partition::of_tenant(&id.tenant)
}

/// The keys of a session: its token and lock, its line, the line's live waiters, and the acts of operators.
///
/// Hashed, so that they contain no text of callers.
pub(super) fn session(id: &SessionId) -> [String; 4] {
    let digest = hex::encode(&key::digest(["session", &id.tenant, &id.id])[..16]);
    ["session", "line", "alive", "session_events"]
        .map(|name| partition_of(id).key_of(name, &digest))
}

/// The keys of a call's conditions. In the place of an absent group stands the session, which the script ignores there.
pub(super) fn conditions(
    intent: &Intent,
    budget: Option<GroupKey>,
    similar: Option<GroupKey>,
) -> ConditionKeys {
    let [session, line, waiters, _] = session(&SessionId::of(intent));
    let group = |group: Option<GroupKey>| match group {
        Some(group) => {
            Partition::of_tenant(&intent.tenant).key_of("room", &hex::encode(&group.0[..16]))
        }
        None => session.clone(),
    };
    let (budget, similar) = (group(budget), group(similar));
    [session, line, waiters, budget, similar]
}

/// The hash of paused tools.
pub(super) fn paused() -> String {
    Partition::FIRST.key("paused")
}

/// The acts of operators on a tool.
pub(super) fn tool_events(tool: &str) -> String {
    Partition::FIRST.key_of("tool_events", tool)
}

/// The gateways, by the time at which each last announced itself.
pub(super) fn seen() -> String {
    Partition::FIRST.key("seen")
}

/// The hash of what each gateway can read.
pub(super) fn abilities() -> String {
    Partition::FIRST.key("abilities")
}

/// The hash of the highest fencing token that each gateway may have given.
pub(super) fn tokens() -> String {
    Partition::FIRST.key("tokens")
}

/// The hash of a document.
pub(super) fn document(digest: [u8; 16]) -> String {
    Partition::FIRST.key_of("document", &hex::encode(digest))
}

/// An index of the documents of a kind.
///
/// `due` is ordered by when they are due, `retained` by when they may be deleted; `count` is a hash of how many
/// documents are in each state.
pub(super) fn documents_by(index: &str, kind: Kind) -> String {
    Partition::FIRST.key(&format!("documents_{index}:{}", kind.as_str()))
}

/// The list of a kind's documents, by position: of one tenant or of all, in one state or in any.
pub(super) fn documents(kind: Kind, tenant: Option<&str>, state: Option<&str>) -> String {
    let of = if tenant.is_some() { "of" } else { "all" };
    let in_state = if state.is_some() { "in" } else { "any" };
    let parts = [
        "documents",
        kind.as_str(),
        of,
        tenant.unwrap_or_default(),
        in_state,
        state.unwrap_or_default(),
    ];
    Partition::FIRST.key(&format!(
        "documents:{}",
        hex::encode(&key::digest(parts)[..16])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_name_or_a_call_is_recognised() {
        let lookup = Lookup(*b"a name in sixtee");
        let call_id = CallId(Uuid::from_bytes(*b"a call in sixtee"));
        let holder = Partition::of(&lookup).holder(&lookup);
        assert_eq!(about(holder.as_bytes()), Some(About::Lookup(lookup)));
        assert_eq!(about(call(call_id).as_bytes()), Some(About::Call(call_id)));
        let others = [duplicates(call_id), Partition::FIRST.counters(), seen()];
        for other in others.iter().map(String::as_bytes).chain([&b"\xff"[..]]) {
            assert_eq!(about(other), None);
        }
    }

    /// The names are part of the stored format, and the prefix is all that a gateway's user of Redis may touch.
    #[test]
    fn each_name_begins_with_the_prefix_of_its_partition() {
        let partition = Partition(7);
        assert_eq!(partition.counters(), "oncegate:{p007}:marks");
        assert_eq!(partition.endings(), "oncegate:{p007}:endings");
        let tools = partition.tools("shop");
        assert!(tools.starts_with("oncegate:{p007}:tools:"), "{tools}");
        assert_ne!(tools, partition.tools("bank"));
        assert_eq!(seen(), "oncegate:{p000}:seen");
        assert_eq!(tokens(), "oncegate:{p000}:tokens");
    }
}
