//! Names of keys. All keys of one call share the hash tag of its partition, so that one script may
//! touch them on Redis Cluster; so do those of a session, whose partition may be another one.

use crate::core::document::Kind;
use crate::core::key::GroupKey;
use crate::core::key::{self, Lookup};
use crate::core::ledger::{self, Index};
use crate::core::record::{CallId, Record};
use crate::core::session::SessionId;

/// In how many parts the keys are split. Part of the format: with another number nothing is found.
pub(super) const PARTITIONS: u8 = 64;

/// One part of the store; on Redis Cluster it is on one master as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partition(u8);

impl Partition {
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..PARTITIONS).map(Self)
    }

    pub(super) fn of(lookup: &Lookup) -> Self {
        Self(lookup.0[31] % PARTITIONS)
    }

    /// Where all calls of a tenant are.
    pub(super) fn of_tenant(tenant: &str) -> Self {
        Self(Lookup::partition_of(tenant) % PARTITIONS)
    }

    /// The same as that of its lookup key: see [`CallId::new`].
    pub(super) fn of_call(call_id: CallId) -> Self {
        Self(call_id.0.as_bytes()[15] % PARTITIONS)
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// What stands before the name of each of its keys.
    pub(super) fn prefix(self) -> String {
        format!("oncegate:{{p{:03}}}:", self.0)
    }

    pub(super) fn key(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }

    /// The call that has this lookup key: its id.
    pub(super) fn holder(self, lookup: &Lookup) -> String {
        self.key(&format!("key:{}", hex::encode(lookup.0)))
    }

    /// How many writes each gateway has made: a hash, by gateway.
    pub(super) fn writes(self) -> String {
        self.key("writes")
    }

    /// Which run of data this is. Lost data does not have the epoch that its gateways remember.
    pub(super) fn epoch(self) -> String {
        self.key("epoch")
    }

    /// The finished calls, by when they may be deleted.
    pub(super) fn retained(self) -> String {
        self.key("retained")
    }

    /// All tenants with a call.
    pub(super) fn tenants(self) -> String {
        self.key("tenants")
    }

    /// The calls of a tenant that one property finds, in the order of their positions. Hashed: what
    /// callers write never gets into a name.
    pub(super) fn list(self, tenant: &str, index: Index<'_>) -> String {
        let (name, value) = match index {
            Index::All => ("all", ""),
            Index::Key(key) => ("key", key),
            Index::Trace(trace) => ("trace", trace),
            Index::Session(session) => ("session", session),
            Index::User(user) => ("user", user),
            Index::Saga(saga) => ("saga", saga),
            Index::State(state) => ("state", state),
            Index::Tool(tool) => ("tool", tool),
        };
        let digest = key::digest(["list", tenant, name, value]);
        self.key(&format!("list:{}", hex::encode(&digest[..16])))
    }

    /// What a script about a call may touch, in the order in which scripts name it. `rooms`: of its
    /// session, where that is written with the call.
    pub(super) fn of_script(self, record: &Record, rooms: Option<[String; 5]>) -> Vec<String> {
        let intent = &record.intent;
        let (lookup, call) = (&intent.lookup, call(intent.call_id));
        let [census, running, unknown, failed] =
            ["census", "running", "unknown", "failed"].map(|name| self.key(name));
        let rooms = rooms.unwrap_or_else(|| std::array::from_fn(|_| call.clone()));
        let mut keys = vec![
            self.holder(lookup),
            call,
            self.epoch(),
            self.writes(),
            census,
            running,
            unknown,
            failed,
        ];
        keys.extend(rooms);
        keys.extend([self.retained(), self.stream(), self.tenants()]);
        let list = |index| self.list(&intent.tenant, index);
        keys.extend(["running", "unknown", "failed"].map(|state| list(Index::State(state))));
        keys.extend(ledger::indexes(record).into_iter().map(list));
        keys.extend(record.all_names().skip(1).map(|name| self.holder(name)));
        keys
    }

    /// What happens to the calls of this part, for others to follow.
    pub(super) fn stream(self) -> String {
        self.key("stream")
    }

    /// Where the end of a call is announced.
    pub(super) fn endings(self) -> String {
        self.key("endings")
    }
}

/// A call's record with its history: a hash.
pub(super) fn call(call_id: CallId) -> String {
    Partition::of_call(call_id).key(&format!("call:{call_id}"))
}

/// Where a session is kept, so that its changes are counted there.
pub(super) fn partition_of(id: &SessionId) -> Partition {
    Partition::of(&lookup_of(id))
}

fn lookup_of(id: &SessionId) -> Lookup {
    Lookup::new(&id.tenant, "session", &id.id)
}

/// What is kept of a session: its newest token, its lock, whether it is frozen; the line for the lock;
/// who in it is alive. Hashed: what callers write never gets into a name.
pub(super) fn session(id: &SessionId) -> [String; 3] {
    ["session", "line", "alive"].map(|name| of_session(id, name))
}

/// What operators have done to a session.
pub(super) fn session_events(id: &SessionId) -> String {
    of_session(id, "session_events")
}

/// The paused tools: a hash, by tool.
pub(super) fn paused() -> String {
    Partition::FIRST.key("paused")
}

/// What operators have done to a tool.
pub(super) fn tool_events(tool: &str) -> String {
    Partition::FIRST.key(&format!("tool_events:{tool}"))
}

/// When each gateway was there last: sorted by that time.
pub(super) fn seen() -> String {
    Partition::FIRST.key("seen")
}

/// How many writes a gateway that was forgotten had made in each partition. Those of another epoch say nothing: after an
/// accepted loss the store's own counts hold.
pub(super) fn last_counts(epoch: &str, gateway: &str) -> String {
    Partition::FIRST.key(&format!("last_counts:{epoch}:{gateway}"))
}

/// Up to where each gateway gives tokens: a hash.
pub(super) fn tokens() -> String {
    Partition::FIRST.key("tokens")
}

/// A document: a hash.
pub(super) fn document(digest: [u8; 16]) -> String {
    Partition::FIRST.key(&format!("document:{}", hex::encode(digest)))
}

/// What is kept of the documents of a kind: `due` and `retained` by when they may be worked on and deleted, and the `count`
/// of each state, a hash.
pub(super) fn documents_by(index: &str, kind: Kind) -> String {
    Partition::FIRST.key(&format!("documents_{index}:{}", kind.as_str()))
}

/// The documents of a kind, of one tenant or of all, in one state or in any, in the order of their places.
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

fn of_session(id: &SessionId, name: &str) -> String {
    partition_of(id).key(&format!("{name}:{}", lookup_of(id).for_tool()))
}

/// The calls that have a place in a room.
pub(super) fn room(room: GroupKey) -> String {
    format!("oncegate:{{r{}}}:places", hex::encode(&room.0[..16]))
}
