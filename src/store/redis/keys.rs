//! Names of keys.
//!
//! A tenant is a partition: the keys of its calls and sessions share one hash tag, so that one
//! script may touch them on Redis Cluster.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::core::document::Kind;
use crate::core::key::GroupKey;
use crate::core::key::{self, Lookup};
use crate::core::ledger::Index;
use crate::core::record::{CallId, Intent, Record};
use crate::core::session::SessionId;

/// The number of partitions.
///
/// Part of the format: with another number nothing is found.
pub(super) const PARTITIONS: u8 = 64;

/// A partition; on Redis Cluster all of it is on one master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The prefix of its keys.
    pub(super) fn prefix(self) -> String {
        format!("oncegate:{{p{:03}}}:", self.0)
    }

    pub(super) fn key(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }

    /// The id of the call that holds this lookup key.
    pub(super) fn holder(self, lookup: &Lookup) -> String {
        self.key(&format!("key:{}", short(&lookup.0)))
    }

    /// The marks of a partition: its epoch and each gateway's writes, see `marks.lua`.
    ///
    /// Lost data does not have the epoch that its gateways remember.
    pub(super) fn marks(self) -> String {
        self.key("marks")
    }

    /// Two hashes, the newer one first: the last counts of forgotten gateways in this partition.
    ///
    /// They belong to one epoch: after an accepted loss the store's own counts hold.
    pub(super) fn last_counts(self, epoch: &str) -> [String; 2] {
        ["last_counts", "last_counts_before"].map(|name| self.key(&format!("{name}:{epoch}")))
    }

    /// The finished calls, by the time when they may be deleted.
    pub(super) fn retained(self) -> String {
        self.key("retained")
    }

    /// The key of the earliest of these times.
    pub(super) fn earliest(self) -> String {
        self.key("earliest")
    }

    /// All tenants with a call.
    pub(super) fn tenants(self) -> String {
        self.key("tenants")
    }

    /// The tools that a tenant has called.
    pub(super) fn tools(self, tenant: &str) -> String {
        let digest = key::digest(["tools", tenant]);
        self.key(&format!("tools:{}", short(&digest[..16])))
    }

    /// The list of a tenant's calls with one property, by position.
    ///
    /// That of a key has only calls whose name is not made of it, or is held by another call; of the states only
    /// [`LISTED`] have one. All calls of a tenant are those of its tools: the list of them all stays empty. The name is
    /// hashed: text of callers never gets into it.
    pub(super) fn list(self, tenant: &str, list: Index<'_>) -> String {
        let (name, value) = match list {
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
        self.key(&format!("list:{}", short(&digest[..16])))
    }

    /// The keys of a script about a call, in the order of the scripts.
    ///
    /// `rooms`: of its session, if the script reads or writes them.
    pub(super) fn of_script(
        self,
        record: &Record,
        rooms: Option<[String; 5]>,
        lists: &[Index<'_>],
        instead_of: &[Record],
    ) -> Vec<String> {
        let intent = &record.intent;
        let call = call(intent.call_id);
        let rooms = rooms.unwrap_or_else(|| std::array::from_fn(|_| call.clone()));
        let mut keys = vec![
            self.holder(&intent.lookup),
            call,
            self.marks(),
            self.earliest(),
            self.key("census"),
        ];
        keys.extend(["running", "unknown", "failed"].map(|name| self.key(name)));
        keys.extend(rooms);
        keys.extend([self.retained(), self.stream(), self.tenants()]);
        keys.push(self.tools(&intent.tenant));
        let list = |list| self.list(&intent.tenant, list);
        keys.extend(LISTED.map(Index::State).map(list));
        keys.extend(lists.iter().copied().map(list));
        keys.extend(instead_of.iter().map(|giver| {
            let giver = &giver.intent;
            self.list(&giver.tenant, Index::Key(&giver.key))
        }));
        keys.extend(record.all_names().skip(1).map(|name| self.holder(name)));
        keys
    }

    /// The stream of its calls' events.
    pub(super) fn stream(self) -> String {
        self.key("stream")
    }

    /// The channel for the end of a call.
    pub(super) fn endings(self) -> String {
        self.key("endings")
    }
}

/// The states with a list for each tenant.
const LISTED: [&str; 2] = ["unknown", "failed"];

/// The lists that have a call from its claim on.
pub(super) fn lists(intent: &Intent) -> Vec<Index<'_>> {
    let mut lists = Vec::with_capacity(5);
    if intent.lookup != Lookup::new(&intent.tenant, &intent.tool, &intent.key) {
        lists.push(Index::Key(&intent.key));
    }
    lists.extend([Index::Tool(&intent.tool), Index::Trace(&intent.trace_id)]);
    let named = [
        (&intent.session_id, Index::Session(&intent.session_id)),
        (&intent.user_id, Index::User(&intent.user_id)),
        (&intent.saga_id, Index::Saga(&intent.saga_id)),
    ];
    let is_named = |(name, _): &(&String, _)| !name.is_empty();
    lists.extend(named.into_iter().filter(is_named).map(|(_, list)| list));
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

/// `None`: this is no id of a call.
pub(super) fn call_id(text: &[u8]) -> Option<CallId> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    Uuid::from_slice(&bytes).ok().map(CallId)
}

/// What a key is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The holder of a name.
    Name(Lookup),
    Call(CallId),
}

/// `None`: this is no key of a call.
pub(super) fn about(key: &[u8]) -> Option<About> {
    let (_, name) = str::from_utf8(key).ok()?.split_once("}:")?;
    let (kind, id) = name.split_once(':')?;
    let id = <[u8; 16]>::try_from(URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
    match kind {
        "key" => Some(About::Name(Lookup(id))),
        "call" => Some(About::Call(CallId(Uuid::from_bytes(id)))),
        _ => None,
    }
}

/// A call's record with its history: see `common.lua`.
pub(super) fn call(call_id: CallId) -> String {
    Partition::of_call(call_id).key(&format!("call:{}", id(call_id)))
}

/// The duplicates of a call: see `arrived.lua`.
pub(super) fn duplicates(call_id: CallId) -> String {
    Partition::of_call(call_id).key(&format!("again:{}", id(call_id)))
}

/// The partition of a session, where its changes are counted.
pub(super) fn partition_of(id: &SessionId) -> Partition {
    Partition::of_tenant(&id.tenant)
}

/// The parts of a session: its token and lock, its line, and which waiters are alive.
///
/// Hashed: text of callers never gets into a name.
pub(super) fn session(id: &SessionId) -> [String; 3] {
    ["session", "line", "alive"].map(|name| of_session(id, name))
}

/// The acts of operators on a session.
pub(super) fn session_events(id: &SessionId) -> String {
    of_session(id, "session_events")
}

/// The paused tools: a hash, by tool.
pub(super) fn paused() -> String {
    Partition::FIRST.key("paused")
}

/// The acts of operators on a tool.
pub(super) fn tool_events(tool: &str) -> String {
    Partition::FIRST.key(&format!("tool_events:{tool}"))
}

/// When each gateway last announced itself: sorted by that time.
pub(super) fn seen() -> String {
    Partition::FIRST.key("seen")
}

/// A hash: up to where each gateway gives tokens.
pub(super) fn tokens() -> String {
    Partition::FIRST.key("tokens")
}

/// A document: a hash.
pub(super) fn document(digest: [u8; 16]) -> String {
    Partition::FIRST.key(&format!("document:{}", hex::encode(digest)))
}

/// An index of the documents of a kind.
///
/// `due` and `retained` by the times when they may be worked on and deleted, and the `count` of
/// each state, a hash.
pub(super) fn documents_by(index: &str, kind: Kind) -> String {
    Partition::FIRST.key(&format!("documents_{index}:{}", kind.as_str()))
}

/// The list of a kind's documents, by position.
///
/// Of one tenant or of all, and in one state or in any.
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
    let digest = key::digest(["session", &id.tenant, &id.id]);
    partition_of(id).key(&format!("{name}:{}", hex::encode(&digest[..16])))
}

/// The calls of a tenant that have a place in a room.
pub(super) fn room(tenant: &str, room: GroupKey) -> String {
    Partition::of_tenant(tenant).key(&format!("room:{}", hex::encode(&room.0[..16])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_what_it_is_about() {
        let lookup = Lookup(*b"a name in sixtee");
        let call_id = CallId(Uuid::from_bytes(*b"a call in sixtee"));
        let holder = Partition::of(&lookup).holder(&lookup);
        assert_eq!(about(holder.as_bytes()), Some(About::Name(lookup)));
        assert_eq!(about(call(call_id).as_bytes()), Some(About::Call(call_id)));
        let others = [duplicates(call_id), Partition::FIRST.marks(), seen()];
        for other in others.iter().map(String::as_bytes).chain([&b"\xff"[..]]) {
            assert_eq!(about(other), None);
        }
    }
}
