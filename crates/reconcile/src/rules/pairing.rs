//! Gathers the items of one source and their calls by key.

mod judge; // pairs items and calls of each key, and judges the rest

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use super::{Item, Join, Path, Root, Rules, Window, text};
use oncegate_rules::mcp::elicitation;
use oncegate_rules::record::{CallId, Content, Record, State};
use oncegate_rules::time::before;
use oncegate_rules::{json, redact};

/// How likely a call has made an item, the most likely first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It succeeded within the window: the source must have its effect.
    Judged,
    /// It succeeded, and the source may have its effect.
    Succeeded,
    Unknown,
    Running,
    /// It was undone, or is to be.
    Undone,
    /// It surely had no effect.
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
    /// Whether the call was adopted from one of the effects of its key.
    is_adopted: bool,
    /// The name of an unknown call, which earlier calls may have had, too.
    name: Option<Name>,
}

/// Tenant, tool and key, the same for all repetitions.
pub type Name = (String, String, String);

#[derive(Debug, Default)]
struct Group {
    items: Vec<usize>,
    calls: Vec<Call>,
}

/// The items of one source, and the calls that were found for them.
pub struct Pairing<'a> {
    rules: &'a Rules,
    window: Window,
    items: Vec<Item>,
    groups: BTreeMap<String, Group>,
    seen: HashSet<CallId>,
    /// Calls that items name.
    named: HashSet<CallId>,
    /// Those of the named calls that exist, of whichever tool.
    known: HashSet<CallId>,
    /// Keys of items that are also keys of calls, of whichever tool.
    claimed: HashSet<String>,
    /// Keys of items for which every call has been read, however old.
    read: HashSet<String>,
    undecided: u64,
    /// Open calls of the window of whose key the source has nothing.
    open: u64,
    /// Whether a call with an unreadable key may have made any of the items.
    is_blind: bool,
}

impl<'a> Pairing<'a> {
    /// Takes the items of a source, each id once.
    ///
    /// A list that moves on between two pages shows an item twice. That is one effect, and the later
    /// item counts.
    pub fn new(rules: &'a Rules, window: Window, listed: Vec<Item>) -> Self {
        let (mut items, mut places) = (Vec::<Item>::with_capacity(listed.len()), HashMap::new());
        for item in listed {
            // One id under two keys is two effects.
            let key = item.key.clone().map(|key| rules.joined(key));
            match places.entry((item.name(), key)) {
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
                let key = rules.joined(key.clone());
                groups.entry(key).or_default().items.push(n);
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
            open: 0,
            is_blind: false,
        }
    }

    /// Notes that a call exists, of whichever tool.
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

    /// Adds a call of the source's tool. A call that has no item, and needs none, is not kept.
    pub fn add(&mut self, record: &Record) {
        self.mark_known(record);
        let is_judged = self.is_judged(record);
        let standing = match (&record.state, is_judged) {
            // A server that only asked questions has made no effect.
            (State::Succeeded(_), Some(true)) if elicitation::asked_by(record).is_none() => {
                Standing::Judged
            }
            (State::Succeeded(_), _) => Standing::Succeeded,
            (State::Unknown(_), _) => Standing::Unknown,
            (State::Running, _) => Standing::Running,
            // A call that waits for approval was not sent.
            (State::Failed(_) | State::Proposed | State::Approved, _) => Standing::Failed,
            (State::Compensating(_) | State::Compensated(_) | State::Stuck(_), _) => {
                Standing::Undone
            }
        };
        let args = json::parse(&String::from_utf8_lossy(&record.intent.args)).ok();
        let result = match record.state.content() {
            Some(Content::Stored(json)) => serde_json::from_slice(json).ok(),
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
            Join::At(path) => at(path)
                .and_then(text)
                .map(|value| self.rules.joined(value)),
        };
        let is_undecided = is_judged.is_none() || (standing == Standing::Judged && key.is_none());
        if standing < Standing::Unknown && is_undecided {
            self.undecided += 1;
        }
        // The result of a running or unknown call cannot be read yet, nor what it joins by.
        self.is_blind |= key.is_none() && standing < Standing::Failed;
        // Its outcome is open, and so is which effect it has made.
        let is_open = matches!(standing, Standing::Unknown | Standing::Running);
        let Some(key) = key else {
            self.open += u64::from(is_open && is_judged != Some(false));
            return;
        };
        if is_open && is_judged != Some(false) && !self.groups.contains_key(&key) {
            self.open += 1;
        }
        let is_needed = self.groups.contains_key(&key) || standing == Standing::Judged;
        if !is_needed || !self.seen.insert(record.intent.call_id) {
            return;
        }
        let group = self.groups.entry(key).or_default();
        let is_named = |n: &usize| {
            let item = &self.items[*n];
            let is_in = |id: &String| result.as_ref().is_some_and(|result| names(result, id));
            item.id.as_ref().is_some_and(is_in) || record.is_adopted_from(&item.name())
        };
        let named = group.items.iter().copied().filter(is_named).collect();
        let fields = self.rules.compare.iter();
        let fields = fields.map(|both| at(&both.call).filter(|value| !value.is_null()).cloned());
        let intent = &record.intent;
        let name = || {
            let (tenant, tool) = (intent.tenant.clone(), intent.tool.clone());
            (tenant, tool, intent.key.clone())
        };
        let is_open = standing == Standing::Unknown && self.rules.join == Join::Key;
        group.calls.push(Call {
            standing,
            created_at: intent.created_at,
            call_id: intent.call_id,
            fields: fields.collect(),
            named,
            is_adopted: record.is_adopted(),
            name: is_open.then(name),
        });
    }

    /// Keys of items that an older call may have made, each with the name of an unknown call.
    pub fn keys_to_read(&self) -> Vec<(String, Name)> {
        let named = |(key, group): (&String, &Group)| {
            let name = group.calls.iter().find_map(|call| call.name.clone());
            Some((key.clone(), name?))
        };
        self.strange().filter_map(named).collect()
    }

    /// Notes that every call with this key of an item has been read.
    pub fn has_read(&mut self, key: String) {
        self.read.insert(key);
    }

    /// Whether a call's effect came within the window; `None`: it may be older.
    ///
    /// An adopted call is never judged: its effect was seen, but its time is not known.
    fn is_judged(&self, record: &Record) -> Option<bool> {
        if record.is_adopted() {
            return Some(false);
        }
        let attempt = &record.attempt;
        // An earlier run of the call may have made the effect.
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

    /// Whether a call that is not known yet may have made some of the items.
    pub fn names_unknown_calls(&self) -> bool {
        self.strange().next().is_some()
    }

    /// Whether items have a key that no call of any tool has.
    pub fn has_unclaimed_items(&self) -> bool {
        let is_unclaimed =
            |(key, group): (&String, &Group)| group.calls.is_empty() && !self.claimed.contains(key);
        self.rules.join == Join::Key && self.strange().any(is_unclaimed)
    }

    /// Calls that items name and that are not known yet.
    pub fn calls_to_look_for(&self) -> BTreeSet<CallId> {
        let named = self.items.iter().filter(|item| item.counts);
        let named = named.filter_map(|item| item.call_id);
        named
            .filter(|call_id| !self.known.contains(call_id))
            .collect()
    }

    fn strange(&self) -> impl Iterator<Item = (&String, &Group)> {
        let groups = self.groups.iter();
        groups.filter(|(key, group)| self.is_strange(key, group))
    }

    /// Whether a key has more effects than calls that surely had one, so that an older call may have run.
    fn is_strange(&self, key: &str, group: &Group) -> bool {
        if self.read.contains(key) {
            return false;
        }
        let is_open =
            |item: &&Item| item.counts && !item.call_id.is_some_and(|id| self.known.contains(&id));
        let items = group.items.iter().map(|n| &self.items[*n]);
        let open = items.filter(is_open).count();
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
