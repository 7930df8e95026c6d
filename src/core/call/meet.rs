//! Which of several stored calls an arrival repeats, or which one blocks it.
//!
//! An arrival looks under all of its names, and may meet several calls.

use jiff::Timestamp;

use super::arrive::{is_over, keeps_key};
use crate::core::key::Lookup;
use crate::core::recipe::identity::{Name, Part};
use crate::core::recipe::prints::{Prints, Sameness};
use crate::core::record::{Holder, Intent};

/// The result of looking under an arrival's names. Numbers are places among the holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Met {
    /// No stored call blocks the arrival.
    Free {
        /// Calls past their window: they give up those of the names that the arrival claims.
        instead_of: Vec<usize>,
        /// Names by earlier recipes that stand for other calls: the arrival does not claim them.
        left: Vec<Lookup>,
    },
    /// This call: it is the same, or it blocks the arrival.
    Call(usize),
    /// This call is past its window, and its key is not forgotten yet.
    Expired(usize),
}

/// Decides among the calls that hold the names of an arrival.
pub fn meet(
    holders: &[Holder],
    names: &[Name],
    intent: &Intent,
    prints: &Prints,
    now: Timestamp,
) -> Met {
    let by = |holder: &Holder| {
        names
            .iter()
            .filter(|name| holder.names.contains(&name.lookup))
            .collect::<Vec<_>>()
    };
    let part = |holder: &Holder| by(holder).iter().map(|name| name.part).min();
    let is_runtime = |holder: &Holder| by(holder).iter().any(|name| name.is_runtime);
    let lives = |holder: &Holder| !is_over(&holder.record, intent, now);
    let is = |holder: &Holder, sameness| prints.compare(intent, &holder.record) == sameness;
    let first = |is_it: &dyn Fn(&Holder) -> bool| holders.iter().position(is_it);

    let same = first(&|holder| lives(holder) && is(holder, Sameness::Same));
    let unclear = || first(&|holder| lives(holder) && is(holder, Sameness::Unclear));
    let in_the_way = || {
        let by = |wanted| first(&|holder: &Holder| lives(holder) && part(holder) == Some(wanted));
        by(Part::Today).or_else(|| by(Part::Second))
    };
    if let Some(call) = same.or_else(unclear).or_else(in_the_way) {
        return Met::Call(call);
    }
    let expired = first(&|holder| {
        let is_kept = keeps_key(&holder.record, intent) || is_runtime(holder);
        !lives(holder) && is_kept && !holder.record.may_be_forgotten(now)
    });
    if let Some(call) = expired {
        return Met::Expired(call);
    }
    let instead_of = (0..holders.len())
        .filter(|place| !lives(&holders[*place]))
        .collect();
    let left = holders
        .iter()
        .filter(|holder| lives(holder))
        .flat_map(|holder| holder.names.iter().copied());
    Met::Free {
        instead_of,
        left: left.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::call::tests::{at, record};
    use crate::core::key::Source;
    use crate::core::record::Record;
    use crate::core::tool::tests::tool;

    fn name(key: &str) -> Lookup {
        Lookup::new("shop", "t", key)
    }

    /// A succeeded or past call of this fingerprint, found by these names.
    fn holder(names: &[&str], fingerprint: u8, expires_at: Option<i64>) -> Holder {
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
            names: names.iter().map(|key| name(key)).collect(),
        }
    }

    /// An arrival with business fields, a runtime key, and a key by an earlier recipe.
    fn met(holders: &[Holder]) -> Met {
        let names = [
            Name {
                lookup: name("fields"),
                part: Part::Today,
                is_runtime: false,
            },
            Name {
                lookup: name("runtime"),
                part: Part::Second,
                is_runtime: true,
            },
            Name {
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
        meet(holders, &names, &intent, &Prints::default(), at(50))
    }

    fn free(instead_of: &[usize], left: &[&str]) -> Met {
        Met::Free {
            instead_of: instead_of.to_vec(),
            left: left.iter().map(|key| name(key)).collect(),
        }
    }

    #[test]
    fn the_same_call_counts_by_whatever_name_it_is_found() {
        let other = holder(&["fields"], 2, None);
        for names in [
            &["fields"][..],
            &["runtime"],
            &["earlier"],
            &["runtime", "earlier"],
        ] {
            assert_eq!(met(&[holder(names, 1, None)]), Met::Call(0), "{names:?}");
        }
        assert_eq!(
            met(&[other.clone(), holder(&["earlier"], 1, None)]),
            Met::Call(1)
        );
        assert_eq!(
            met(&[other, holder(&["runtime"], 2, None)]),
            Met::Call(0),
            "the fields come first"
        );
        assert_eq!(
            met(&[holder(&["runtime"], 2, None)]),
            Met::Call(0),
            "the runtime's key stands for another"
        );
        assert_eq!(met(&[]), free(&[], &[]));
    }

    #[test]
    fn another_call_under_an_earlier_name_is_not_in_the_way() {
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
            Met::Expired(0)
        );
        assert_eq!(met(&[holder(&["runtime"], 1, Some(50))]), Met::Expired(0));
        let again = [
            holder(&["fields"], 1, None),
            holder(&["runtime"], 1, Some(50)),
        ];
        assert_eq!(
            met(&again),
            Met::Call(0),
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
