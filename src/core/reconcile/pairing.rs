//! Pairs the items of one source with their calls, and keeps the rest.

mod judge; // what is left when each has what belongs to it

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use super::{Item, Join, Path, Root, Rules, Window, text};
use crate::core::mcp::round;
use crate::core::record::{CallId, Content, Record, State};
use crate::core::time::before;
use crate::core::{json, redact};

/// How likely a call is the reason of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It succeeded within the window: the source must have its effect.
    Judged,
    /// It succeeded, and the source may have its effect.
    Succeeded,
    Unknown,
    Running,
    /// It is compensated, or is to be.
    Undone,
    /// It surely has no effect.
    Failed,
}

#[derive(Debug, Clone)]
struct Call {
    standing: Standing,
    created_at: Timestamp,
    call_id: CallId,
    fields: Vec<Option<Value>>,
    /// Items that the call's result names.
    named: Vec<usize>,
    /// Whether it was adopted from one of the effects of its key.
    is_adopted: bool,
    /// Tenant, tool and key of an unknown call: earlier calls may have had them, too.
    name: Option<Name>,
}

/// Tenant, tool and key, which repetitions have in common.
pub type Name = (String, String, String);

#[derive(Debug, Default)]
struct Group {
    items: Vec<usize>,
    calls: Vec<Call>,
}

/// Items of one source, waiting for their calls.
pub struct Pairing<'a> {
    rules: &'a Rules,
    window: Window,
    items: Vec<Item>,
    groups: BTreeMap<String, Group>,
    seen: HashSet<CallId>,
    /// Calls that items name, and those of them that exist, whatever their tools.
    named: HashSet<CallId>,
    known: HashSet<CallId>,
    /// Keys of items that are also keys of other tools' calls.
    claimed: HashSet<String>,
    /// Keys of items of which every call is known, however old.
    read: HashSet<String>,
    undecided: u64,
    /// Whether there are calls that may have made any of the items.
    is_blind: bool,
}

impl<'a> Pairing<'a> {
    /// Takes the items of a source, each id once.
    ///
    /// A list that moved on between two pages says an item twice. The later one counts: it is still
    /// one effect.
    pub fn new(rules: &'a Rules, window: Window, said: Vec<Item>) -> Self {
        let (mut items, mut places) = (Vec::<Item>::with_capacity(said.len()), HashMap::new());
        for item in said {
            // One name under two keys is two effects.
            match places.entry((item.name(), item.key.clone())) {
                Entry::Vacant(place) => {
                    place.insert(items.len());
                    items.push(item);
                }
                Entry::Occupied(place) => items[*place.get()] = item,
            }
        }
        let mut groups = BTreeMap::<String, Group>::new();
        for (n, item) in items.iter().enumerate() {
            if let Some(key) = &item.key {
                groups.entry(key.clone()).or_default().items.push(n);
            }
        }
        Self {
            rules,
            window,
            named: items.iter().filter_map(|item| item.call_id).collect(),
            items,
            groups,
            seen: HashSet::new(),
            known: HashSet::new(),
            claimed: HashSet::new(),
            read: HashSet::new(),
            undecided: 0,
            is_blind: false,
        }
    }

    /// Adds a call of the source's tool.
    ///
    /// One that has no item and needs none is dropped at once.
    pub fn mark_known(&mut self, record: &Record) {
        if self.named.contains(&record.intent.call_id) {
            self.known.insert(record.intent.call_id);
        }
        if self.rules.join == Join::Key {
            let key = record.intent.lookup.for_tool();
            if self.groups.contains_key(&key) {
                self.claimed.insert(key);
            }
        }
    }

    /// Adds a call of the source's tool.
    ///
    /// One that has no item and needs none is dropped at once.
    pub fn add(&mut self, record: &Record) {
        self.mark_known(record);
        let standing = match (&record.state, self.is_judged(record)) {
            // A server that only asked has made nothing.
            (State::Succeeded(_), Some(true)) if round::asked_by(record).is_none() => {
                Standing::Judged
            }
            (State::Succeeded(_), _) => Standing::Succeeded,
            (State::Unknown(_), _) => Standing::Unknown,
            (State::Running, _) => Standing::Running,
            (State::Failed(_), _) => Standing::Failed,
            (State::Compensating(_) | State::Compensated(_) | State::Stuck(_), _) => {
                Standing::Undone
            }
        };
        let args = json::parse(&String::from_utf8_lossy(&record.intent.args)).ok();
        let result = match record.state.content() {
            Some(Content::Kept(json)) => serde_json::from_slice(json).ok(),
            Some(Content::Unavailable(_)) | None => None,
        };
        let at = |path: &Path| {
            let root: &Option<Value> = match path.root {
                Root::Args => &args,
                Root::Result => &result,
            };
            root.as_ref()?
                .pointer(path.pointer.as_str())
                .filter(|value| **value != redact::MASK)
        };
        let key = match &self.rules.join {
            Join::Key => Some(record.intent.lookup.for_tool()),
            Join::At(path) => at(path).and_then(text),
        };
        let is_undecided =
            self.is_judged(record).is_none() || (standing == Standing::Judged && key.is_none());
        if standing < Standing::Unknown && is_undecided {
            self.undecided += 1;
        }
        // It runs, or its outcome is unknown, or what it is joined by cannot be read.
        self.is_blind |= key.is_none() && standing < Standing::Failed;
        let Some(key) = key else { return };
        if !self.groups.contains_key(&key) && standing != Standing::Judged {
            return;
        }
        if !self.seen.insert(record.intent.call_id) {
            return;
        }
        let group = self.groups.entry(key).or_default();
        let is_named = |n: &usize| {
            let item = &self.items[*n];
            let is_in = |id: &String| result.as_ref().is_some_and(|result| names(result, id));
            item.id.as_ref().is_some_and(is_in) || record.is_adopted_from(&item.name())
        };
        let named = group.items.iter().copied().filter(is_named).collect();
        let fields = self
            .rules
            .compare
            .iter()
            .map(|compare| at(&compare.call).filter(|value| !value.is_null()).cloned())
            .collect();
        let intent = &record.intent;
        let (call_id, created_at) = (intent.call_id, intent.created_at);
        let name = || {
            (
                intent.tenant.clone(),
                intent.tool.clone(),
                intent.key.clone(),
            )
        };
        let is_open = standing == Standing::Unknown && self.rules.join == Join::Key;
        group.calls.push(Call {
            standing,
            created_at,
            call_id,
            fields,
            named,
            is_adopted: record.is_adopted(),
            name: is_open.then(name),
        });
    }

    /// Keys of unknown calls that the source has, each with the item's.
    ///
    /// They lead to older calls of the same key.
    pub fn keys_to_read(&self) -> Vec<(String, Name)> {
        let strange = self
            .groups
            .iter()
            .filter(|(key, group)| self.is_strange(key, group));
        let named = |(key, group): (&String, &Group)| {
            let name = group.calls.iter().find_map(|call| call.name.clone());
            name.map(|name| (key.clone(), name))
        };
        strange.filter_map(named).collect()
    }

    /// From now on every call with this item's key is known.
    pub fn has_read(&mut self, key: String) {
        self.read.insert(key);
    }

    /// Whether a call's effect came within the window; `None`: it may be older.
    ///
    /// When that of an adopted call came is not known; but that it was there is.
    fn is_judged(&self, record: &Record) -> Option<bool> {
        if record.is_adopted() {
            return Some(false);
        }
        let attempt = &record.attempt;
        // It may have been an earlier run of it that was executed.
        let ran_before = record.attempts > attempt.number;
        let begin = if ran_before {
            record.intent.created_at
        } else {
            attempt.run_started_at
        };
        let end = record.updated_at.min(attempt.lease_until);
        let is_within = self.window.since <= end && end < self.window.until;
        (!is_within || begin >= before(self.window.since, self.window.margin)).then_some(is_within)
    }

    /// Whether items may have been made by a call that is not known yet.
    pub fn has_strangers(&self) -> bool {
        self.groups
            .iter()
            .any(|(key, group)| self.is_strange(key, group))
    }

    /// Whether items have a key that no call of any tool has.
    pub fn has_unclaimed_items(&self) -> bool {
        let mut without_calls = self
            .groups
            .iter()
            .filter(|(_, group)| group.calls.is_empty());
        let is_join = self.rules.join == Join::Key;
        is_join
            && without_calls
                .any(|(key, group)| !self.claimed.contains(key) && self.is_strange(key, group))
    }

    /// Calls that items name and that are not known yet.
    pub fn names_to_look_for(&self) -> Vec<CallId> {
        let named = self
            .items
            .iter()
            .filter(|item| item.counts)
            .filter_map(|item| item.call_id);
        let unknown: BTreeSet<CallId> = named
            .filter(|call_id| !self.known.contains(call_id))
            .collect();
        unknown.into_iter().collect()
    }

    /// Whether a key has more effects than calls that surely had one.
    ///
    /// An older call may have run again.
    fn is_strange(&self, key: &str, group: &Group) -> bool {
        if self.read.contains(key) {
            return false;
        }
        let is_open =
            |item: &&Item| item.counts && !item.call_id.is_some_and(|id| self.known.contains(&id));
        let open = group
            .items
            .iter()
            .map(|n| &self.items[*n])
            .filter(is_open)
            .count();
        let has_had_one = |call: &&Call| {
            matches!(
                call.standing,
                Standing::Judged | Standing::Succeeded | Standing::Undone
            ) && !self.named.contains(&call.call_id)
        };
        open > group.calls.iter().filter(has_had_one).count()
    }
}

/// Whether a result names this id somewhere.
pub(super) fn names(result: &Value, id: &str) -> bool {
    match result {
        Value::Array(items) => items.iter().any(|item| names(item, id)),
        Value::Object(members) => members.values().any(|value| names(value, id)),
        plain => text(plain).is_some_and(|text| text == id),
    }
}
