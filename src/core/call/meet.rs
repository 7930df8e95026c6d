//! An arrival looks under all of its names, and may meet several calls. Which of them it is, or which is in its way.

use jiff::Timestamp;

use super::arrive::is_past;
use crate::core::key::{self, Lookup};
use crate::core::recipe::{Name, Part, Prints, Sameness};
use crate::core::record::{Holder, Intent};

/// What an arrival meets. Numbers are places among the holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Met {
    /// Nothing that is in the way.
    Free {
        /// Calls past their window: they give up those of the names that the arrival claims.
        instead_of: Vec<usize>,
        /// Names by earlier recipes that stand for other calls: the arrival does not claim them.
        left: Vec<Lookup>,
    },
    /// This call: it is the same, or it is in the way.
    Call(usize),
    /// This call is past its window, and its key is not forgotten yet.
    Expired(usize),
}

/// Decides among the calls that hold the names of an arrival.
pub fn meet(holders: &[Holder], names: &[Name], intent: &Intent, prints: &Prints, now: Timestamp) -> Met {
    let by =
        |holder: &Holder| names.iter().filter(|name| holder.names.contains(&name.lookup)).collect::<Vec<_>>();
    let part = |holder: &Holder| by(holder).iter().map(|name| name.part).min();
    let is_runtime = |holder: &Holder| by(holder).iter().any(|name| name.is_runtime);
    let lives = |holder: &Holder| !is_past(holder.record.expires_at, now);
    let is = |holder: &Holder, sameness| prints.compare(intent, &holder.record) == sameness;
    let first = |is_it: &dyn Fn(&Holder) -> bool| holders.iter().position(is_it);

    let same = first(&|holder| lives(holder) && is(holder, Sameness::Same));
    let unclear = || first(&|holder| lives(holder) && is(holder, Sameness::Unclear));
    let in_the_way = || first(&|holder| lives(holder) && part(holder) == Some(Part::Today));
    if let Some(call) = same.or_else(unclear).or_else(in_the_way) {
        return Met::Call(call);
    }
    let expired = first(&|holder| {
        let is_kept = holder.record.intent.key_source == key::Source::Runtime || is_runtime(holder);
        !lives(holder) && is_kept && !is_past(holder.record.retain_until, now)
    });
    if let Some(call) = expired {
        return Met::Expired(call);
    }
    let instead_of = (0..holders.len()).filter(|place| !lives(&holders[*place])).collect();
    let left = holders.iter().filter(|holder| lives(holder)).flat_map(|holder| holder.names.iter().copied());
    Met::Free { instead_of, left: left.collect() }
}
