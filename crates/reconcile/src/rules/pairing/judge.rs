//! Pairs the items and calls of each key, and judges pairs and the rest.

use serde_json::Value;

use super::{Call, Group, Pairing, Standing};
use crate::rules::differ::{Difference, difference};
use crate::rules::{Anomaly, Comparison, Doubt, Item, Join, Kind, beginning};
use oncegate_rules::record::CallId;
use oncegate_rules::time::before;

/// A source may lack so many calls and still be believed: a few calls may all have failed unnoticed.
const FEW: usize = 3;
/// Most characters of a value that an anomaly shows.
const MAX_SHOWN: usize = 100;

impl Pairing<'_> {
    /// The comparison. `doubts`: reasons why a call may not be known.
    pub fn finish(self, doubts: &[Doubt]) -> Comparison {
        let mut found = Comparison {
            undecided: self.undecided,
            ..Comparison::default()
        };
        let mut doubts = doubts.to_vec();
        doubts.extend(self.is_blind.then_some(Doubt::Unreadable));
        let judge = |key| Judge {
            all: &self,
            key,
            doubts: &doubts,
        };
        for (key, group) in &self.groups {
            judge(key).group(group, &mut found);
        }
        let is_stray = |item: &&Item| item.key.is_none() && item.counts;
        let strays = self.items.iter().filter(is_stray);
        for item in strays.filter(|_| !self.rules.ignores_keyless) {
            if item.call_id.is_some_and(|id| self.known.contains(&id)) {
                found.undecided += 1;
            } else {
                let orphan = judge("").orphan(item, None, "it has no key");
                found.anomalies.push(orphan);
            }
        }
        found
            .anomalies
            .sort_by(|a, b| (a.kind, &a.key, &a.id).cmp(&(b.kind, &b.key, &b.id)));
        // A source that shows no effect of any call may be the wrong one.
        let is_missing = |anomaly: &&Anomaly| anomaly.kind == Kind::Missing;
        let missing = found.anomalies.iter().filter(is_missing).count();
        // As soon as the source shows the key of one call, it would show that of an open call's effect, too.
        let open = if found.matched == 0 { self.open } else { 0 };
        found.lacking = missing as u64 + open;
        if found.matched == 0 && missing > FEW {
            for anomaly in &mut found.anomalies {
                anomaly.doubt = Some(Doubt::Silent);
            }
        }
        found
    }
}

/// Judges the items and calls of one key.
#[derive(Clone, Copy)]
struct Judge<'a> {
    all: &'a Pairing<'a>,
    key: &'a str,
    doubts: &'a [Doubt],
}

impl<'a> Judge<'a> {
    fn item(&self, n: usize) -> &'a Item {
        &self.all.items[n]
    }

    /// How many of these items are effects.
    fn count(&self, items: &[usize]) -> u64 {
        items.iter().filter(|n| self.item(**n).counts).count() as u64
    }

    fn group(&self, group: &Group, found: &mut Comparison) {
        let mut calls: Vec<&Call> = group.calls.iter().collect();
        calls.sort_by_key(|call| (call.standing, call.created_at, call.call_id));
        let is_claimed = calls.is_empty() && self.all.claimed.contains(self.key);
        let is_anothers = |n: &usize| {
            let named = self.item(*n).call_id;
            let is_other = |id| calls.iter().all(|call| call.call_id != id);
            named.is_some_and(|id| self.all.known.contains(&id) && is_other(id))
        };
        let (others, mut free): (Vec<usize>, Vec<usize>) =
            (group.items.iter()).partition(|n| is_claimed || is_anothers(n));
        found.undecided += self.count(&others);
        // Effects that were not undone come first.
        free.sort_by_key(|n| !self.item(*n).counts);
        let pairs = self.pair(&calls, &mut free);
        let joins_by_key = self.all.rules.join == Join::Key;
        let is_alone = calls.len() == 1 && (group.items.len() == 1 || joins_by_key);
        for (call, n) in calls.iter().zip(&pairs) {
            self.call(call, n.map(|n| self.item(n)), found);
            let Some(n) = *n else { continue };
            let is_named = self.item(n).call_id == Some(call.call_id) || call.named.contains(&n);
            if is_named || is_alone {
                let doubts = if is_named { &[] } else { self.doubts };
                let mismatch = Self { doubts, ..*self }.mismatch(call, self.item(n));
                found.anomalies.extend(mismatch);
            }
        }
        // A running or unknown call may turn out to have made any of the rest.
        let is_open = |(call, n): (&&Call, &Option<usize>)| match call.standing {
            Standing::Running => true,
            Standing::Unknown => !n.is_some_and(|n| self.is_proof(call, self.item(n))),
            _ => false,
        };
        if calls.iter().zip(&pairs).any(is_open) {
            found.undecided += self.count(&free);
            return;
        }
        let surplus = free.into_iter().map(|n| self.item(n));
        let surplus: Vec<&Item> = surplus.filter(|item| item.counts).collect();
        let judged = surplus.iter().map(|item| Anomaly {
            rival: if calls.is_empty() {
                rival(item, &surplus)
            } else {
                None
            },
            ..self.surplus(item, &calls)
        });
        found.anomalies.extend(judged);
    }

    /// Judges an effect that is left when each call has one.
    fn surplus(&self, item: &Item, calls: &[&Call]) -> Anomaly {
        let has_run = |call: &&&Call| call.standing != Standing::Failed;
        let its_own = calls.iter().find(|call| item.call_id == Some(call.call_id));
        let made_it = its_own.or_else(|| calls.iter().rev().find(has_run));
        let call = match (made_it, calls.first()) {
            (Some(call), _) if has_run(&call) => call,
            (Some(failed), _) | (None, Some(failed)) => {
                return self.failed_but_there(item, failed);
            }
            (None, None) => return self.orphan(item, None, "no call has this key"),
        };
        // If each call was told of one effect, it is known which of them stay.
        let stays = |call: &&Call| match call.named[..] {
            [n] => call.standing == Standing::Undone || self.item(n).counts,
            _ => false,
        };
        let is_named = calls.iter().filter(has_run).all(stays);
        let doubt = match item.call_id {
            _ if !is_named => Some(Doubt::Unnamed),
            Some(call_id) if call_id == call.call_id => None,
            _ if self.may_be_anothers(call, item) => Some(Doubt::Forgotten),
            Some(_) => Some(Doubt::UnknownCall),
            None => self.doubts.first().copied(),
        };
        let detail = format!("{} is more than the call's one effect", item.name());
        Anomaly {
            doubt,
            ..self.anomaly(Kind::Duplicate, Some(call.call_id), Some(item), detail)
        }
    }

    /// The anomaly of values that differ, if the item surely is the call's.
    fn mismatch(&self, call: &Call, item: &Item) -> Option<Anomaly> {
        let is_its_own = match call.standing {
            Standing::Judged | Standing::Succeeded => item.counts,
            Standing::Unknown => self.is_proof(call, item),
            Standing::Running | Standing::Undone | Standing::Failed => false,
        };
        let (detail, worst) = self.differences(call, item);
        let spelled = (worst == Some(Difference::Spelling)).then_some(Doubt::Spelled);
        (is_its_own && worst.is_some()).then(|| Anomaly {
            doubt: spelled.or(self.doubts.first().copied()),
            ..self.anomaly(Kind::Mismatch, Some(call.call_id), Some(item), detail)
        })
    }

    /// Gives each call its item.
    ///
    /// A call that names an item, or is named by it, gets that item. The other calls take the rest, the
    /// best known calls first.
    fn pair(&self, calls: &[&Call], free: &mut Vec<usize>) -> Vec<Option<usize>> {
        let names_it = |call: &Call, n: usize| self.item(n).call_id == Some(call.call_id);
        let may_be_of = |call: &Call, n: usize| {
            let named = self.item(n).call_id;
            let is_others = named.is_some_and(|other| self.all.known.contains(&other));
            // The item would settle an unknown call. A call that has succeeded may have been told of an older item, by a
            // tool that deduplicates.
            let is_older = call.standing == Standing::Unknown && self.is_older(call, self.item(n));
            names_it(call, n) || !is_others && !is_older
        };
        let is_named = |call: &Call, n: usize| call.named.contains(&n) && may_be_of(call, n);
        // The item of a call that was undone should be no effect any more.
        let is_gone = |call: &Call, n: usize| {
            call.standing == Standing::Undone && !self.item(n).counts && may_be_of(call, n)
        };
        let mut pairs = vec![None; calls.len()];
        give(calls, free, &mut pairs, &[&is_named]);
        give(calls, free, &mut pairs, &[&names_it]);
        give(calls, free, &mut pairs, &[&is_gone, &may_be_of]);
        pairs
    }

    fn call(&self, call: &Call, item: Option<&Item>, found: &mut Comparison) {
        let anomaly = |kind, detail| self.anomaly(kind, Some(call.call_id), item, detail);
        let Some(item) = item else {
            if call.standing == Standing::Judged && self.all.named.contains(&call.call_id) {
                // The source has the effect under another key, or without a key.
                found.undecided += 1;
            } else if call.standing == Standing::Judged {
                let detail = "the call succeeded, and the source has nothing of it".to_owned();
                found.anomalies.push(anomaly(Kind::Missing, detail));
            }
            return;
        };
        match call.standing {
            Standing::Judged | Standing::Succeeded => found.matched += 1,
            // The effect may be that of another call with the same key, and an undone effect proves no success.
            Standing::Unknown if !self.is_proof(call, item) => found.undecided += 1,
            Standing::Unknown => {
                let name = item.name();
                let detail =
                    format!("the call was unknown, and the source has {name}: it was executed");
                found.anomalies.push(anomaly(Kind::Settled, detail));
            }
            Standing::Failed if item.counts => {
                found.anomalies.push(self.failed_but_there(item, call));
            }
            Standing::Running | Standing::Undone | Standing::Failed => {}
        }
    }

    /// Whether the item shows that this very call was executed: one key may have had many calls.
    ///
    /// An unknown call is not [paired](Self::pair) with an older item.
    fn is_proof(&self, call: &Call, item: &Item) -> bool {
        let is_read = self.all.read.contains(self.key) || !self.doubts.contains(&Doubt::Unread);
        let is_its_own = match item.call_id {
            Some(call_id) => call_id == call.call_id,
            None => self.all.rules.join == Join::Key && is_read,
        };
        is_its_own && item.counts
    }

    /// Whether the item may be the effect of a forgotten call with the same key.
    fn may_be_anothers(&self, call: &Call, item: &Item) -> bool {
        call.is_adopted || self.is_older(call, item)
    }

    /// Whether the item was made before the call, so by an earlier call of the key.
    fn is_older(&self, call: &Call, item: &Item) -> bool {
        // Clocks may differ by the margin.
        let first = before(call.created_at, self.all.window.margin);
        item.made_at.is_some_and(|made_at| made_at < first)
    }

    /// Says how item and call differ, and the worst difference. A value that the call lacks is not compared.
    fn differences(&self, call: &Call, item: &Item) -> (String, Option<Difference>) {
        let compare = self.all.rules.compare.iter();
        let compared = compare.zip(&call.fields).zip(&item.fields);
        let (mut sentences, mut worst) = (Vec::new(), None);
        for ((compare, of_call), of_item) in compared {
            let Some(of_call) = of_call else { continue };
            let Some(found) = difference(of_call, of_item.as_ref()) else {
                continue;
            };
            let of_item = of_item.as_ref().map_or("nothing".to_owned(), shown);
            let (at, of_call) = (compare.item.as_str(), shown(of_call));
            sentences.push(format!(
                "{at} is {of_item} at the source and {of_call} in the call"
            ));
            worst = worst.max(Some(found));
        }
        (sentences.join("; "), worst)
    }

    fn failed_but_there(&self, item: &Item, call: &Call) -> Anomaly {
        let why = "its call failed, which means that it was not executed";
        self.orphan(item, Some(call.call_id), why)
    }

    fn orphan(&self, item: &Item, call_id: Option<CallId>, why: &str) -> Anomaly {
        let doubt = match (call_id, item.call_id) {
            (Some(call_id), Some(other)) if call_id != other => Some(Doubt::UnknownCall),
            _ => self.doubts.first().copied(),
        };
        let detail = format!("the source has {}: {why}", item.name());
        Anomaly {
            doubt,
            ..self.anomaly(Kind::Orphan, call_id, Some(item), detail)
        }
    }

    /// An anomaly without a doubt.
    fn anomaly(
        &self,
        kind: Kind,
        call_id: Option<CallId>,
        item: Option<&Item>,
        detail: String,
    ) -> Anomaly {
        Anomaly {
            kind,
            source: self.all.rules.source.clone(),
            // As the source spells it: the same anomaly has the same name in every version.
            key: match item {
                Some(item) => item.key.clone().unwrap_or_default(),
                None => self.key.to_owned(),
            },
            call_id,
            id: match item {
                Some(item) if kind.is_surplus() => item.name(),
                _ => call_id.map(|id| id.to_string()).unwrap_or_default(),
            },
            detail,
            doubt: None,
            rival: None,
            item: item.cloned(),
        }
    }
}

/// Why another effect of the key is the one to adopt; `None`: this one is.
///
/// A key has one call at a time. Of several effects the newest is that of the last call. The others are its doubles, or
/// effects of earlier calls whose window was over.
fn rival(item: &Item, all: &[&Item]) -> Option<String> {
    let order = |item: &Item| item.made_at.map(|made_at| (made_at, item.name()));
    let others = all.iter().filter(|other| !std::ptr::eq(**other, item));
    let newest = others.max_by_key(|other| order(other))?;
    if all.iter().any(|item| item.made_at.is_none()) {
        let why = "the source has several effects of its key, and does not say which is the newest";
        return Some(why.to_owned());
    }
    (order(newest) > order(item))
        .then(|| format!("{} has the same key, and is newer", newest.name()))
}

/// Whether an item belongs to a call.
type Belongs<'a> = &'a dyn Fn(&Call, usize) -> bool;

/// Gives each call without an item the first one that belongs to it.
///
/// The first rule that finds an item counts.
fn give(calls: &[&Call], free: &mut Vec<usize>, pairs: &mut [Option<usize>], by: &[Belongs<'_>]) {
    for (call, pair) in calls.iter().zip(pairs).filter(|(_, pair)| pair.is_none()) {
        let find = |belongs: &Belongs<'_>| free.iter().position(|n| belongs(call, *n));
        *pair = by.iter().find_map(find).map(|at| free.remove(at));
    }
}

fn shown(value: &Value) -> String {
    beginning(&value.to_string(), MAX_SHOWN)
}
