//! An effect that the ledger has forgotten is written back as a succeeded call, and its first request recognised.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::change::{Action, Change, Illegal, Next};
use super::event::{Adoption, Arrival};
use super::undo;
use crate::core::actor::Actor;
use crate::core::caller::RESERVED_TENANT;
use crate::core::key::{Lookup, Source};
use crate::core::outcome::Outcome;
use crate::core::record::{Alias, Attempt, Record, State};
use crate::core::time::after;
use crate::core::tool::Tool;

/// The claim of an effect's key for a call that has succeeded.
///
/// It counts from now on, and not from the time of the effect: the longer it is remembered, the later a repetition is
/// executed. Whose key it is comes out later, so it is remembered as long as any.
pub(super) fn claim(tool: &Tool, adoption: &Adoption, now: Timestamp) -> Next {
    let window = tool.window(Source::Adopted);
    let attempt = Attempt {
        id: adoption.attempt,
        owner: adoption.owner,
        number: 1,
        run_started_at: now,
        lease_until: now,
    };
    let state = State::Succeeded(adoption.content.clone());
    let record = Record {
        expires_at: Some(after(now, window)),
        retain_until: Some(after(now, tool.retention.max(window))),
        ..Record::first(adoption.intent.clone(), state, attempt, now)
    };
    let by = Actor::Reconciliation(&adoption.by);
    let change = Change::new(record, "adopted", by, adoption.why.clone());
    let outcome = Outcome::Executed(adoption.content.clone());
    Next::finish(change.about(adoption.attempt).proving(&outcome))
}

/// The tenant whose key it is, of those that are known here: the last byte of a key follows from the tenant.
///
/// Another may have the same byte, and be known to another gateway: until a request proves whose it is, only administrators
/// [read](Record::is_proven) the call.
///
/// # Errors
/// Why it is not known. What undoes effects for the gateway itself has keys, too, and is not undone.
pub fn tenant_of(lookup: &Lookup, mut known: BTreeSet<String>) -> Result<String, String> {
    known.insert(RESERVED_TENANT.to_owned());
    known.retain(|tenant| Lookup::partition_of(tenant) == lookup.partition());
    let found: Vec<String> = known.into_iter().collect();
    match &found[..] {
        [] => Err("no tenant that this gateway knows has such a key".into()),
        [own] if own == RESERVED_TENANT => Err(format!(
            "of the tenants that this gateway knows only its own, {own}, has such a key"
        )),
        [tenant] => Ok(tenant.clone()),
        several => Err(format!(
            "its key may be of any of these tenants: {}",
            several.join(", ")
        )),
    }
}

/// Marks an adopted call whose effect is undone at its source: its key is not free meanwhile, nor afterwards.
///
/// # Errors
/// It is no adopted call, or it is undone, or being undone, or a person has decided that its effect stands.
pub(super) fn effect_to_undo(
    tool: &Tool,
    record: &Record,
    by: &str,
    reason: &str,
    now: Timestamp,
) -> Result<Change, Illegal> {
    if !record.is_adopted() || record.is_skipped() {
        return Err(Illegal::NothingToUndo);
    }
    let change = undo::to_compensate(tool, record, by, reason, None, now)?;
    let detail = format!("its effect is undone at the source ({reason})");
    Ok(Change::new(change.record, "compensating", by, detail))
}

/// Whether the call that holds the key is the effect's own.
///
/// # Errors
/// It is another call, whatever has become of it: nothing of it changes.
pub(super) fn adopted_before(record: &Record, adoption: &Adoption) -> Result<Next, Illegal> {
    if record.is_adopted() && record.attempt.id == adoption.attempt {
        Ok(Next::unchanged(Action::Answer))
    } else {
        Err(Illegal::KeyHeld)
    }
}

/// The first request for an adopted call says what the call asked for.
///
/// Its fingerprint is kept like that of a further key, so that the intent never changes.
pub(super) fn recognise(record: &Record, arrival: &Arrival, now: Timestamp) -> Next {
    if arrival.is_of_other_saga(record) {
        return Next::unchanged(Action::RefuseOtherSaga);
    }
    let intent = &arrival.intent;
    let mut known = record.changed(now);
    known.aliases.push(Alias {
        names: vec![record.intent.lookup],
        fingerprint: intent.fingerprint,
        recipe: intent.recipe,
    });
    if intent.key_source == Source::Compensation {
        // Like that of any compensation: it must never be free again.
        known.expires_at = None;
    }
    let by = match intent.made_by.as_str() {
        "" => "the gateway itself".to_owned(),
        token => format!("token {token}"),
    };
    let detail =
        format!("the first request with its key came, from {by}: it says what the call asked for");
    let change = Change::new(known, "recognised", Actor::Gateway(arrival.owner), detail);
    Next::write(change, Action::TakeFingerprint)
}
