//! The items of one source and their calls, put together: which belongs to which, and what is left.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use super::{Anomaly, Found, Item, Join, Kind, Path, Root, Rules, Window, before, text};
use crate::core::outcome::Content;
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
}

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
        Self { rules, window, items, groups, seen: HashSet::new(), undecided: 0, is_blind: false }
    }

    /// Takes note of a call; what has no item and needs none is forgotten at once.
    pub fn add(&mut self, record: &Record) {
        let standing = match (&record.state, self.is_judged(record)) {
            (State::Succeeded(_), Some(true)) => Standing::Judged,
            (State::Succeeded(_), _) => Standing::Succeeded,
            (State::Unknown(_), _) => Standing::Unknown,
            (State::Running, _) => Standing::Running,
            (State::Failed(_), _) => Standing::Failed,
            (State::Compensating(_) | State::Compensated(_) | State::Stuck(_), _) => Standing::Undone,
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
            root.as_ref()?.pointer(path.pointer.as_str()).filter(|value| **value != redact::MASK)
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
        let fields = self.rules.compare.iter().map(|compare| at(&compare.call).cloned()).collect();
        let (call_id, created_at) = (record.intent.call_id, record.intent.created_at);
        group.calls.push(Call { standing, created_at, call_id, fields, named });
    }

    /// Whether the effect of a call that succeeded came within the window; `None`: it may have come long before.
    fn is_judged(&self, record: &Record) -> Option<bool> {
        let attempt = &record.attempt;
        // It may have been an earlier run of it that was executed.
        let ran_before = record.attempts > attempt.number;
        let begin = if ran_before { record.intent.created_at } else { attempt.run_started_at };
        let end = record.updated_at.min(attempt.lease_until);
        let is_within = self.window.since <= end && end < self.window.until;
        (!is_within || begin >= before(self.window.since, self.window.margin)).then_some(is_within)
    }

    /// Whether there are calls of which cannot be told which items they have made: then none is surely nobody's.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Whether there are items of which no call is known yet.
    pub fn has_strangers(&self) -> bool {
        self.strangers().next().is_some()
    }

    /// The calls that such items name themselves.
    pub fn named_by_strangers(&self) -> Vec<CallId> {
        self.strangers().filter_map(|item| item.call_id).filter(|id| !self.seen.contains(id)).collect()
    }

    fn strangers(&self) -> impl Iterator<Item = &Item> {
        let of_nobody = self.groups.values().filter(|group| group.calls.is_empty());
        of_nobody.flat_map(|group| &group.items).map(|n| &self.items[*n]).filter(|item| item.counts)
    }

    /// What came of it.
    pub fn finish(self) -> Found {
        let mut found = Found { undecided: self.undecided, ..Found::default() };
        for (key, group) in &self.groups {
            self.judge(key, group, &mut found);
        }
        let keyless = self.items.iter().filter(|item| item.key.is_none() && item.counts);
        for item in keyless.filter(|_| !self.rules.ignores_keyless) {
            found.anomalies.push(self.orphan("", item, None, "it has no key"));
        }
        found.anomalies.sort_by(|a, b| (a.kind, &a.key, &a.id).cmp(&(b.kind, &b.key, &b.id)));
        found
    }

    fn judge(&self, key: &str, group: &Group, found: &mut Found) {
        let mut calls: Vec<&Call> = group.calls.iter().collect();
        calls.sort_by_key(|call| (call.standing, call.created_at, call.call_id));
        // What is still an effect comes first.
        let mut free: Vec<usize> = group.items.clone();
        free.sort_by_key(|n| !self.items[*n].counts);
        let pairs = pair(&calls, &mut free, |n| self.items[n].counts);
        for (call, item) in calls.iter().zip(&pairs) {
            let item = item.map(|n| &self.items[n]);
            self.judge_call(key, call, item, found);
        }
        // What runs may be told of any of them.
        if calls.iter().any(|call| call.standing == Standing::Running) {
            found.undecided += free.iter().filter(|n| self.items[**n].counts).count() as u64;
            return;
        }
        let made_it = calls.iter().rev().find(|call| call.standing != Standing::Failed);
        for item in free.into_iter().map(|n| &self.items[n]).filter(|item| item.counts) {
            found.anomalies.push(match (made_it, calls.first()) {
                (Some(call), _) => Anomaly {
                    kind: Kind::Duplicate,
                    source: self.rules.source.clone(),
                    key: key.to_owned(),
                    call_id: Some(call.call_id),
                    id: item.name(),
                    detail: format!("{} is more than the call's one effect", item.name()),
                    item: Some(item.clone()),
                },
                (None, Some(failed)) => self.failed_but_there(key, item, failed),
                (None, None) => self.orphan(key, item, None, "no call has this key"),
            });
        }
    }

    fn judge_call(&self, key: &str, call: &Call, item: Option<&Item>, found: &mut Found) {
        let anomaly = |kind, detail: String, item: Option<&Item>| Anomaly {
            kind,
            source: self.rules.source.clone(),
            key: key.to_owned(),
            call_id: Some(call.call_id),
            id: call.call_id.to_string(),
            detail,
            item: item.cloned(),
        };
        let Some(item) = item else {
            if call.standing == Standing::Judged {
                let detail = "the call succeeded, and the source has nothing of it".to_owned();
                found.anomalies.push(anomaly(Kind::Missing, detail, None));
            }
            return;
        };
        match call.standing {
            Standing::Judged | Standing::Succeeded => found.matched += 1,
            // The same business key may be another's effect, and what was taken back proves no success.
            Standing::Unknown if !self.is_proof(call, item) => found.undecided += 1,
            Standing::Unknown => {
                let detail =
                    format!("the call was unknown, and the source has {}: it was executed", item.name());
                found.anomalies.push(anomaly(Kind::Settled, detail, Some(item)));
            }
            Standing::Failed if item.counts => found.anomalies.push(self.failed_but_there(key, item, call)),
            Standing::Running | Standing::Undone | Standing::Failed => {}
        }
        if call.standing <= Standing::Unknown && item.counts {
            let detail = self.differences(call, item);
            if !detail.is_empty() {
                found.anomalies.push(anomaly(Kind::Mismatch, detail, Some(item)));
            }
        }
    }

    /// Whether the item shows that just this call was executed.
    fn is_proof(&self, call: &Call, item: &Item) -> bool {
        let is_its_own = matches!(self.rules.join, Join::Key) || item.call_id == Some(call.call_id);
        is_its_own && item.counts
    }

    /// What the call does not have is not compared.
    fn differences(&self, call: &Call, item: &Item) -> String {
        let mut differing = Vec::new();
        for ((compare, of_call), of_item) in self.rules.compare.iter().zip(&call.fields).zip(&item.fields) {
            let Some(of_call) = of_call else { continue };
            if !of_item.as_ref().is_some_and(|of_item| is_same(of_call, of_item)) {
                let of_item = of_item.as_ref().map_or("nothing".to_owned(), short);
                let at = compare.item.as_str();
                differing.push(format!("{at} is {of_item} at the source and {} in the call", short(of_call)));
            }
        }
        differing.join("; ")
    }

    fn failed_but_there(&self, key: &str, item: &Item, call: &Call) -> Anomaly {
        let why = "its call failed, which is to say that it was surely not executed";
        self.orphan(key, item, Some(call.call_id), why)
    }

    fn orphan(&self, key: &str, item: &Item, call_id: Option<CallId>, why: &str) -> Anomaly {
        Anomaly {
            kind: Kind::Orphan,
            source: self.rules.source.clone(),
            key: key.to_owned(),
            call_id,
            id: item.name(),
            detail: format!("the source has {}: {why}", item.name()),
            item: Some(item.clone()),
        }
    }
}

/// Each call's item. Who names one gets that; the others take what is left, those first of whom most is known.
fn pair(calls: &[&Call], free: &mut Vec<usize>, counts: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
    let mut pairs = vec![None; calls.len()];
    for (call, pair) in calls.iter().zip(&mut pairs) {
        let named = free.iter().position(|n| call.named.contains(n));
        *pair = named.map(|at| free.remove(at));
    }
    for (call, pair) in calls.iter().zip(&mut pairs).filter(|(_, pair)| pair.is_none()) {
        // What was undone is expected to be no effect any more.
        let gone = free.iter().position(|n| call.standing == Standing::Undone && !counts(*n));
        let at = gone.unwrap_or(0);
        *pair = (at < free.len()).then(|| free.remove(at));
    }
    pairs
}

pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => one == other,
    }
}

/// Whether a result names this somewhere.
fn names(result: &Value, id: &str) -> bool {
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
