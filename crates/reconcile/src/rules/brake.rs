//! When a source is not believed, and an effect may be that of a call that seems to be missing.
//!
//! A source that is the wrong one, or is read wrongly, disagrees with many calls at once. Nothing is undone because of it.

use std::collections::BTreeSet;

use super::{Anomaly, Comparison, Doubt, Kind};

/// Fewer compared calls, or orphans, say nothing about a source.
const AT_LEAST: u64 = 5;
/// More than one in so many makes a source suspect.
const ONE_IN: u64 = 10;

/// Puts the doubts on anomalies that follow from the run as a whole.
///
/// `found`: each source's comparison, with the tool of its effects; `None`: all tools.
pub fn apply(found: &mut [(Option<&str>, Comparison)]) {
    for (_, compared) in &mut *found {
        compared.suspect = suspicion(compared);
    }
    let is_suspect = found.iter().any(|(_, compared)| compared.suspect.is_some());
    let lacking: Vec<Option<&str>> = found
        .iter()
        .filter_map(|(tool, compared)| (compared.lacking > 0).then_some(*tool))
        .collect();
    for (tool, compared) in found {
        let mut others = lacking.iter();
        let is_explained = others.any(|other| other.is_none() || tool.is_none() || *other == *tool);
        for anomaly in &mut compared.anomalies {
            doubt(anomaly, is_suspect, is_explained);
        }
    }
}

/// Puts a doubt on every anomaly of a run that has found too many of them.
pub fn apply_to_many(found: &mut [Anomaly]) {
    for anomaly in found {
        if anomaly.doubt != Some(Doubt::Silent) && anomaly.kind != Kind::Settled {
            anomaly.doubt = Some(Doubt::Many);
        }
    }
}

fn doubt(anomaly: &mut Anomaly, is_suspect: bool, is_explained: bool) {
    // A source that shows nothing of any call is not even asked for forgotten ones.
    if anomaly.doubt == Some(Doubt::Silent) || anomaly.kind == Kind::Settled {
        return;
    }
    if is_suspect {
        anomaly.doubt = Some(Doubt::Suspect);
    } else if is_explained && anomaly.kind.is_surplus() && anomaly.doubt.is_none() {
        anomaly.doubt = Some(Doubt::Explained);
    }
}

/// Why a source is not believed.
///
/// It differs from more than a tenth of the calls, or more than a tenth of its effects are of no call.
fn suspicion(compared: &Comparison) -> Option<String> {
    let count = |kind: Kind| {
        let all = compared.anomalies.iter();
        all.filter(|one| one.kind == kind).count() as u64
    };
    let calls = compared.matched + count(Kind::Missing);
    let differing = compared
        .anomalies
        .iter()
        .filter(|one| matches!(one.kind, Kind::Missing | Kind::Mismatch | Kind::Duplicate));
    let differing: BTreeSet<_> = differing.filter_map(|one| one.call_id).collect();
    let differing = differing.len() as u64;
    if calls >= AT_LEAST && differing * ONE_IN > calls {
        return Some(format!("it differs from {differing} of {calls} calls"));
    }
    let orphans = count(Kind::Orphan);
    let effects = compared.matched + orphans;
    (orphans >= AT_LEAST && orphans * ONE_IN > effects)
        .then(|| format!("{orphans} of its {effects} effects are of no call"))
}

#[cfg(test)]
mod tests;
