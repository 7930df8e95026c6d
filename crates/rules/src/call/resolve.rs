//! Which of several stored calls an arrival repeats, or which one blocks it.
//!
//! An arrival looks under all of its lookup keys, and may find several calls.

use jiff::Timestamp;

use super::arrive::{begins_anew, gives_way, is_over, key_outlives_window};
use crate::key::Lookup;
use crate::key_scheme::fingerprints::{Fingerprints, Sameness};
use crate::key_scheme::identity::{LookupKey, Part};
use crate::record::{CallId, Holder, Intent, State};
use crate::tool::{Expired, Tool};

/// The result of looking under an arrival's lookup keys. Numbers are indexes of holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// No stored call blocks the arrival.
    Free {
        /// Calls past their window, or that give way. The arrival claims its lookup keys from them.
        replaced: Vec<usize>,
        /// Lookup keys by earlier key schemes that other calls hold. The arrival does not claim these.
        left: Vec<Lookup>,
    },
    /// This call is the same as the arrival, or blocks it.
    Call(usize),
    /// This call is past its window, and its key is not forgotten yet.
    Expired(usize),
}

/// An arrival that looks for its call.
#[derive(Debug, Clone, Copy)]
pub struct Seeking<'a> {
    pub lookups: &'a [LookupKey],
    pub intent: &'a Intent,
    pub fingerprints: &'a Fingerprints,
    /// The call with equal arguments that the arrival names as another intent.
    pub confirmed: Option<CallId>,
}

/// Decides among the calls that hold the lookup keys of an arrival. `dedup_now`: see [`Now::dedup_now`](super::Now::dedup_now).
pub fn resolve(
    tool: &Tool,
    holders: &[Holder],
    seeking: Seeking<'_>,
    dedup_now: Timestamp,
) -> Resolved {
    let Seeking {
        lookups,
        intent,
        fingerprints,
        confirmed,
    } = seeking;
    let held = |holder: &Holder| {
        let held = lookups.iter();
        let held = held.filter(|name| holder.lookups.contains(&name.lookup));
        held.collect::<Vec<_>>()
    };
    let part = |holder: &Holder| held(holder).iter().map(|name| name.part).min();
    let is_runtime = |holder: &Holder| held(holder).iter().any(|name| name.is_runtime);
    let is_past = |holder: &Holder| is_over(&holder.record, intent, dedup_now);
    let lives = |holder: &Holder| {
        let gives_way = gives_way(
            tool,
            &holder.record,
            intent,
            fingerprints,
            confirmed,
            dedup_now,
        );
        let begins_anew = || begins_anew(tool, &holder.record, intent, fingerprints);
        !is_past(holder) && !gives_way && !begins_anew()
    };
    let first = |is_it: &dyn Fn(&Holder) -> bool| holders.iter().position(is_it);
    let compares = |sameness| {
        first(&|holder| lives(holder) && fingerprints.compare(intent, &holder.record) == sameness)
    };
    let has = |wanted| first(&|holder| lives(holder) && part(holder) == Some(wanted));

    // An answer goes before a further run: of two equal calls under two lookup keys one may have failed.
    let is_answer = |holder: &Holder| !matches!(holder.record.state, State::Failed(_));
    let answers = first(&|holder| {
        let is_same = || fingerprints.compare(intent, &holder.record) == Sameness::Same;
        lives(holder) && is_answer(holder) && is_same()
    });
    let call = answers
        .or_else(|| compares(Sameness::Same))
        .or_else(|| compares(Sameness::Unclear))
        .or_else(|| has(Part::Today))
        .or_else(|| has(Part::Fallback))
        .or_else(|| {
            let is_from_before =
                |holder: &Holder| holder.record.intent.key_scheme != intent.key_scheme;
            first(&|holder| {
                lives(holder) && part(holder) == Some(Part::OtherScope) && is_from_before(holder)
            })
        });
    if let Some(call) = call {
        return Resolved::Call(call);
    }
    let expired = first(&|holder| {
        let outlives = key_outlives_window(tool, &holder.record, intent)
            || is_runtime(holder) && tool.expired == Expired::Refuse;
        is_past(holder) && outlives && !holder.record.may_be_forgotten(dedup_now)
    });
    if let Some(call) = expired {
        return Resolved::Expired(call);
    }
    let replaced = (0..holders.len()).filter(|index| !lives(&holders[*index]));
    let left = holders.iter().filter(|holder| lives(holder));
    Resolved::Free {
        replaced: replaced.collect(),
        left: left
            .flat_map(|holder| holder.lookups.iter().copied())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::Source;
    use crate::record::Record;
    use crate::testing::tool;
    use crate::testing::{at, record};

    fn name(key: &str) -> Lookup {
        Lookup::new("shop", "t", key)
    }

    /// A succeeded or past call of this fingerprint, found by these lookup keys.
    fn holder(lookups: &[&str], fingerprint: u8, expires_at: Option<i64>) -> Holder {
        let there = record(&tool("t"), Source::Business, &[]);
        let intent = Intent {
            fingerprint: [fingerprint; 32],
            ..(*there.intent).clone()
        };
        let expires_at = expires_at.map(at);
        let record = Record {
            intent: Arc::new(intent),
            expires_at,
            retain_until: Some(at(100)),
            ..there
        };
        Holder {
            record,
            lookups: lookups.iter().map(|key| name(key)).collect(),
        }
    }

    /// An arrival with business fields, a runtime key, and a key by an earlier key scheme.
    fn met(holders: &[Holder]) -> Resolved {
        let lookups = [
            LookupKey {
                lookup: name("fields"),
                part: Part::Today,
                is_runtime: false,
            },
            LookupKey {
                lookup: name("runtime"),
                part: Part::Fallback,
                is_runtime: true,
            },
            LookupKey {
                lookup: name("earlier"),
                part: Part::Earlier,
                is_runtime: false,
            },
        ];
        let there = record(&tool("t"), Source::Business, &[]);
        let intent = Intent {
            fingerprint: [1; 32],
            ..(*there.intent).clone()
        };
        let seeking = Seeking {
            lookups: &lookups,
            intent: &intent,
            fingerprints: &Fingerprints::default(),
            confirmed: None,
        };
        resolve(&tool("t"), holders, seeking, at(50))
    }

    fn free(replaced: &[usize], left: &[&str]) -> Resolved {
        Resolved::Free {
            replaced: replaced.to_vec(),
            left: left.iter().map(|key| name(key)).collect(),
        }
    }

    #[test]
    fn the_same_call_is_found_by_any_of_its_names() {
        let other = holder(&["fields"], 2, None);
        for lookups in [
            &["fields"][..],
            &["runtime"],
            &["earlier"],
            &["runtime", "earlier"],
        ] {
            assert_eq!(
                met(&[holder(lookups, 1, None)]),
                Resolved::Call(0),
                "{lookups:?}"
            );
        }
        assert_eq!(
            met(&[other.clone(), holder(&["earlier"], 1, None)]),
            Resolved::Call(1)
        );
        assert_eq!(
            met(&[other, holder(&["runtime"], 2, None)]),
            Resolved::Call(0),
            "the fields come first"
        );
        assert_eq!(
            met(&[holder(&["runtime"], 2, None)]),
            Resolved::Call(0),
            "the runtime's key stands for another"
        );
        assert_eq!(met(&[]), free(&[], &[]));
    }

    #[test]
    fn another_call_under_an_earlier_name_does_not_block() {
        assert_eq!(
            met(&[holder(&["earlier"], 2, None)]),
            free(&[], &["earlier"])
        );
    }

    #[test]
    fn past_its_window_a_call_gives_up_its_fields_but_not_its_runtime_key() {
        assert_eq!(met(&[holder(&["fields"], 1, Some(50))]), free(&[0], &[]));
        assert_eq!(
            met(&[holder(&["fields", "runtime"], 1, Some(50))]),
            Resolved::Expired(0)
        );
        assert_eq!(
            met(&[holder(&["runtime"], 1, Some(50))]),
            Resolved::Expired(0)
        );
        let again = [
            holder(&["fields"], 1, None),
            holder(&["runtime"], 1, Some(50)),
        ];
        assert_eq!(
            met(&again),
            Resolved::Call(0),
            "what the fields find is the answer"
        );
        let over = holder(&["runtime"], 1, Some(40));
        let over = Holder {
            record: Record {
                retain_until: Some(at(50)),
                ..over.record
            },
            ..over
        };
        assert_eq!(met(&[over]), free(&[0], &[]), "until it need not be kept");
    }
}
