//! The items of one source and their calls, put together: which belongs to which, and what is left.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use super::{Anomaly, Doubt, Found, Item, Join, Kind, Path, Root, Rules, Window, before, text};
use crate::core::record::Content;
use crate::core::record::{CallId, Record, State};
use crate::core::{json, redact};

/// What a call is worth as the reason of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It succeeded within the window: the source must have it.
    Judged,
    /// It succeeded, and the source may have it.
    Succeeded,
    Unknown,
    Running,
    /// It is compensated, or about to be.
    Undone,
    /// Surely without an effect.
    Failed,
}

#[derive(Debug, Clone)]
struct Call {
    standing: Standing,
    created_at: Timestamp,
    call_id: CallId,
    fields: Vec<Option<Value>>,
    /// Items that its result names.
    named: Vec<usize>,
    /// Tenant, tool and key of one that is unknown: others may have had them before.
    name: Option<Name>,
}

/// Tenant, tool and key: what calls are the same by.
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
    /// The calls that items name themselves; and those of them that exist, whatever their tools.
    named: HashSet<CallId>,
    known: HashSet<CallId>,
    /// Keys of items that calls of other tools have.
    claimed: HashSet<String>,
    /// Keys of items of which every call is known, however old.
    read: HashSet<String>,
    undecided: u64,
    /// There are calls that may have made any of the items.
    is_blind: bool,
}

impl<'a> Pairing<'a> {
    /// Of an item that the source has said twice, because a list moved on between two pages, the later counts: it is
    /// still one effect.
    pub fn new(rules: &'a Rules, window: Window, said: Vec<Item>) -> Self {
        let (mut items, mut places) = (Vec::<Item>::with_capacity(said.len()), HashMap::new());
        for item in said {
            match places.entry(item.name()) {
                Entry::Vacant(place) => {
                    place.insert(items.len());
                    items.push(item);
                }
                // One name for two effects: each is one.
                Entry::Occupied(place) if items[*place.get()].key != item.key => items.push(item),
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

    /// Takes note that a call exists, whatever its tool: an item that names it, or has its key, belongs to a call.
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

    /// Takes note of a call of the source's tool; what has no item and needs none is forgotten at once.
    pub fn add(&mut self, record: &Record) {
        self.mark_known(record);
        let standing = match (&record.state, self.is_judged(record)) {
            (State::Succeeded(_), Some(true)) => Standing::Judged,
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
            let id = self.items[*n].id.as_ref();
            id.is_some_and(|id| result.as_ref().is_some_and(|result| names(result, id)))
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
            name: is_open.then(name),
        });
    }

    /// The keys of unknown calls that the source has, by which older calls of theirs are found; each with the item's.
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

    /// From now on every call that had this item's key is known.
    pub fn has_read(&mut self, key: String) {
        self.read.insert(key);
    }

    /// Whether the effect of a call that succeeded came within the window; `None`: it may have come long before.
    fn is_judged(&self, record: &Record) -> Option<bool> {
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

    /// Whether there are items that may have been made by a call that is not known yet.
    pub fn has_strangers(&self) -> bool {
        self.groups
            .iter()
            .any(|(key, group)| self.is_strange(key, group))
    }

    /// Whether there are items with a key that no call has, of any tool.
    pub fn has_unclaimed_items(&self) -> bool {
        let mut of_nobody = self
            .groups
            .iter()
            .filter(|(_, group)| group.calls.is_empty());
        let is_join = self.rules.join == Join::Key;
        is_join
            && of_nobody
                .any(|(key, group)| !self.claimed.contains(key) && self.is_strange(key, group))
    }

    /// The calls that items name themselves and that are not known yet.
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

    /// Whether it has more effects than calls that have surely had one: an older one may have run again.
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

    /// What came of it; and what makes it doubtful that every call is known.
    pub fn finish(self, doubts: &[Doubt]) -> Found {
        let mut found = Found {
            undecided: self.undecided,
            ..Found::default()
        };
        let mut doubts = doubts.to_vec();
        doubts.extend(self.is_blind.then_some(Doubt::Unreadable));
        for (key, group) in &self.groups {
            self.judge(key, group, &doubts, &mut found);
        }
        let keyless = self
            .items
            .iter()
            .filter(|item| item.key.is_none() && item.counts);
        for item in keyless.filter(|_| !self.rules.ignores_keyless) {
            match item
                .call_id
                .is_some_and(|call_id| self.known.contains(&call_id))
            {
                true => found.undecided += 1,
                false => {
                    found
                        .anomalies
                        .push(self.orphan("", item, None, "it has no key", &doubts))
                }
            }
        }
        found
            .anomalies
            .sort_by(|a, b| (a.kind, &a.key, &a.id).cmp(&(b.kind, &b.key, &b.id)));
        found.doubted_if_silent()
    }

    fn judge(&self, key: &str, group: &Group, doubts: &[Doubt], found: &mut Found) {
        let mut calls: Vec<&Call> = group.calls.iter().collect();
        calls.sort_by_key(|call| (call.standing, call.created_at, call.call_id));
        let is_anothers = |n: &usize| {
            let call_id = self.items[*n]
                .call_id
                .filter(|call_id| self.known.contains(call_id));
            call_id.is_some_and(|call_id| calls.iter().all(|call| call.call_id != call_id))
        };
        let is_claimed = calls.is_empty() && self.claimed.contains(key);
        let (others, mut free): (Vec<usize>, Vec<usize>) = group
            .items
            .iter()
            .partition(|n| is_claimed || is_anothers(n));
        found.undecided += self.count(&others);
        // What is still an effect comes first.
        free.sort_by_key(|n| !self.items[*n].counts);
        let pairs = self.pair(&calls, &mut free);
        let is_alone = calls.len() == 1 && (group.items.len() == 1 || self.rules.join == Join::Key);
        for (call, item) in calls.iter().zip(&pairs) {
            self.judge_call(key, call, item.map(|n| &self.items[n]), doubts, found);
            let Some(n) = *item else { continue };
            let is_named = self.items[n].call_id == Some(call.call_id) || call.named.contains(&n);
            let doubts = if is_named { &[] } else { doubts };
            if is_named || is_alone {
                found
                    .anomalies
                    .extend(self.mismatch(key, call, &self.items[n], doubts));
            }
        }
        // What runs, or may have been executed, may be told of any of them.
        let is_open = |(call, item): (&&Call, &Option<usize>)| match call.standing {
            Standing::Running => true,
            Standing::Unknown => {
                !item.is_some_and(|n| self.is_proof(key, call, &self.items[n], doubts))
            }
            _ => false,
        };
        if calls.iter().zip(&pairs).any(is_open) {
            found.undecided += self.count(&free);
            return;
        }
        let made_it = calls
            .iter()
            .rev()
            .find(|call| call.standing != Standing::Failed);
        // Each was told of one effect: so it is known which of them stays.
        let stays = |call: &&&Call| match call.named[..] {
            [n] => call.standing == Standing::Undone || self.items[n].counts,
            _ => false,
        };
        let had_one = || {
            calls
                .iter()
                .filter(|call| call.standing != Standing::Failed)
        };
        let is_told = had_one().count() == had_one().filter(stays).count();
        for item in free
            .into_iter()
            .map(|n| &self.items[n])
            .filter(|item| item.counts)
        {
            let its_own = calls.iter().find(|call| item.call_id == Some(call.call_id));
            found
                .anomalies
                .push(match (its_own.or(made_it), calls.first()) {
                    (Some(call), _) if call.standing == Standing::Failed => {
                        self.failed_but_there(key, item, call, doubts)
                    }
                    (Some(call), _) => Anomaly {
                        kind: Kind::Duplicate,
                        source: self.rules.source.clone(),
                        key: key.to_owned(),
                        call_id: Some(call.call_id),
                        id: item.name(),
                        detail: format!("{} is more than the call's one effect", item.name()),
                        doubt: match item.call_id {
                            _ if !is_told => Some(Doubt::Untold),
                            Some(call_id) if call_id == call.call_id => None,
                            Some(_) => Some(Doubt::Stranger),
                            None => doubts.first().copied(),
                        },
                        item: Some(item.clone()),
                    },
                    (None, Some(failed)) => self.failed_but_there(key, item, failed, doubts),
                    (None, None) => self.orphan(key, item, None, "no call has this key", doubts),
                });
        }
    }

    /// Where they differ, if the item is surely the call's.
    fn mismatch(&self, key: &str, call: &Call, item: &Item, doubts: &[Doubt]) -> Option<Anomaly> {
        let is_its_own = match call.standing {
            Standing::Judged | Standing::Succeeded => item.counts,
            Standing::Unknown => self.is_proof(key, call, item, doubts),
            Standing::Running | Standing::Undone | Standing::Failed => false,
        };
        let detail = if is_its_own {
            self.differences(call, item)
        } else {
            String::new()
        };
        (!detail.is_empty()).then(|| Anomaly {
            kind: Kind::Mismatch,
            source: self.rules.source.clone(),
            key: key.to_owned(),
            call_id: Some(call.call_id),
            id: call.call_id.to_string(),
            detail,
            doubt: doubts.first().copied(),
            item: Some(item.clone()),
        })
    }

    fn count(&self, items: &[usize]) -> u64 {
        items.iter().filter(|n| self.items[**n].counts).count() as u64
    }

    /// Each call's item. Who names one, or is named by one, gets that; the others take what is left, those first of
    /// whom most is known.
    fn pair(&self, calls: &[&Call], free: &mut Vec<usize>) -> Vec<Option<usize>> {
        let may_be_of = |call: &Call, n: usize| {
            let other = self.items[n]
                .call_id
                .filter(|call_id| *call_id != call.call_id);
            other.is_none_or(|other| !self.known.contains(&other))
        };
        let is_named = |call: &Call, n: usize| call.named.contains(&n) && may_be_of(call, n);
        let names_it = |call: &Call, n: usize| self.items[n].call_id == Some(call.call_id);
        let mut pairs = vec![None; calls.len()];
        give(calls, free, &mut pairs, is_named);
        give(calls, free, &mut pairs, names_it);
        for (call, pair) in calls
            .iter()
            .zip(&mut pairs)
            .filter(|(_, pair)| pair.is_none())
        {
            // What was undone is expected to be no effect any more.
            let is_gone = |n: &usize| call.standing == Standing::Undone && !self.items[*n].counts;
            let gone = free.iter().position(|n| is_gone(n) && may_be_of(call, *n));
            let at = gone.or_else(|| free.iter().position(|n| may_be_of(call, *n)));
            *pair = at.map(|at| free.remove(at));
        }
        pairs
    }

    fn judge_call(
        &self,
        key: &str,
        call: &Call,
        item: Option<&Item>,
        doubts: &[Doubt],
        found: &mut Found,
    ) {
        let anomaly = |kind, detail: String, item: Option<&Item>| Anomaly {
            kind,
            source: self.rules.source.clone(),
            key: key.to_owned(),
            call_id: Some(call.call_id),
            id: call.call_id.to_string(),
            detail,
            doubt: None,
            item: item.cloned(),
        };
        let Some(item) = item else {
            if call.standing == Standing::Judged && self.named.contains(&call.call_id) {
                // The source has it, under another key or none.
                found.undecided += 1;
            } else if call.standing == Standing::Judged {
                let detail = "the call succeeded, and the source has nothing of it".to_owned();
                found.anomalies.push(anomaly(Kind::Missing, detail, None));
            }
            return;
        };
        match call.standing {
            Standing::Judged | Standing::Succeeded => found.matched += 1,
            // The same business key may be another's effect, and what was taken back proves no success.
            Standing::Unknown if !self.is_proof(key, call, item, doubts) => found.undecided += 1,
            Standing::Unknown => {
                let detail = format!(
                    "the call was unknown, and the source has {}: it was executed",
                    item.name()
                );
                found
                    .anomalies
                    .push(anomaly(Kind::Settled, detail, Some(item)));
            }
            Standing::Failed if item.counts => {
                found
                    .anomalies
                    .push(self.failed_but_there(key, item, call, doubts));
            }
            Standing::Running | Standing::Undone | Standing::Failed => {}
        }
    }

    /// Whether the item shows that just this call was executed. One key may have been that of many calls.
    fn is_proof(&self, key: &str, call: &Call, item: &Item, doubts: &[Doubt]) -> bool {
        let is_read = self.read.contains(key) || !doubts.contains(&Doubt::Unread);
        let is_its_own = match item.call_id {
            Some(call_id) => call_id == call.call_id,
            None => self.rules.join == Join::Key && is_read,
        };
        is_its_own && item.counts
    }

    /// What the call does not have is not compared.
    fn differences(&self, call: &Call, item: &Item) -> String {
        let mut differing = Vec::new();
        for ((compare, of_call), of_item) in self
            .rules
            .compare
            .iter()
            .zip(&call.fields)
            .zip(&item.fields)
        {
            let Some(of_call) = of_call else { continue };
            if !of_item
                .as_ref()
                .is_some_and(|of_item| is_same(of_call, of_item))
            {
                let of_item = of_item.as_ref().map_or("nothing".to_owned(), short);
                let at = compare.item.as_str();
                differing.push(format!(
                    "{at} is {of_item} at the source and {} in the call",
                    short(of_call)
                ));
            }
        }
        differing.join("; ")
    }

    fn failed_but_there(&self, key: &str, item: &Item, call: &Call, doubts: &[Doubt]) -> Anomaly {
        let why = "its call failed, which is to say that it was surely not executed";
        self.orphan(key, item, Some(call.call_id), why, doubts)
    }

    fn orphan(
        &self,
        key: &str,
        item: &Item,
        call_id: Option<CallId>,
        why: &str,
        doubts: &[Doubt],
    ) -> Anomaly {
        Anomaly {
            kind: Kind::Orphan,
            source: self.rules.source.clone(),
            key: key.to_owned(),
            call_id,
            id: item.name(),
            detail: format!("the source has {}: {why}", item.name()),
            doubt: match item.call_id {
                Some(other) if call_id.is_some_and(|call_id| call_id != other) => {
                    Some(Doubt::Stranger)
                }
                _ => doubts.first().copied(),
            },
            item: Some(item.clone()),
        }
    }
}

/// To each call that has none yet the first that belongs to it.
fn give(
    calls: &[&Call],
    free: &mut Vec<usize>,
    pairs: &mut [Option<usize>],
    belongs: impl Fn(&Call, usize) -> bool,
) {
    for (call, pair) in calls.iter().zip(pairs).filter(|(_, pair)| pair.is_none()) {
        let at = free.iter().position(|n| belongs(call, *n));
        *pair = at.map(|at| free.remove(at));
    }
}

pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => one == other,
    }
}

/// Whether a result names this somewhere.
pub(super) fn names(result: &Value, id: &str) -> bool {
    match result {
        Value::Array(items) => items.iter().any(|item| names(item, id)),
        Value::Object(members) => members.values().any(|value| names(value, id)),
        plain => text(plain).is_some_and(|text| text == id),
    }
}

fn short(value: &Value) -> String {
    let mut text: String = value.to_string().chars().take(101).collect();
    if text.chars().count() > 100 {
        text.pop();
        text.push('…');
    }
    text
}
