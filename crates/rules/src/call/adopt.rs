//! An effect without a call in the ledger becomes a succeeded call, and its first request is recognised.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::change::{Action, Call, Change, Illegal, Next, first_attempt};
use super::event::{Adoption, Arrival};
use super::undo;
use crate::actor::{Actor, By};
use crate::key::{Lookup, Source};
use crate::outcome::Outcome;
use crate::record::{Alias, Attempt, Record, State};
use crate::tenant::RESERVED_TENANT;
use crate::time::after;
use crate::tool::Tool;

/// The claim of an effect's key for a call that has succeeded.
///
/// Its window begins now and not at the time of the effect: the longer the key is remembered, the later a repetition
/// could be executed. The window is the longest of all sources of keys, because only the first request tells the source.
pub(super) fn claim(
    tool: &Tool,
    adoption: &Adoption,
    now: Timestamp,
    dedup_now: Timestamp,
) -> Next {
    let window = tool.window(Source::Adopted);
    let attempt = Attempt {
        remote_task: None,
        lease_until: now,
        ..first_attempt(tool, adoption.attempt, adoption.owner, now)
    };
    let state = State::Succeeded(adoption.content.clone());
    let record = Record {
        expires_at: Some(after(dedup_now, window)),
        retain_until: Some(after(dedup_now, tool.retention.max(window))),
        ..Record::first(adoption.intent.clone(), state, attempt, now)
    };
    let by = Actor::Reconciliation(&adoption.by);
    let change = Change::new(record, "adopted", by, adoption.why.clone());
    let outcome = Outcome::Executed(adoption.content.clone());
    Next::finish(change.about(adoption.attempt).proving(&outcome))
}

/// The tenant that has this key, of the reserved tenant and the known ones.
///
/// The last byte of a key follows from its tenant. A tenant that only another gateway knows may have the same byte: until
/// a request proves whose the key is, only administrators [read](Record::is_proven) the call.
///
/// # Errors
/// Why the tenant is not known. The reserved tenant's keys undo effects, and their own effects are not undone.
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

/// Marks an adopted call whose effect is undone at its source. The key is not free meanwhile, nor afterwards.
///
/// # Errors
/// The call is not adopted, it is undone or being undone, or an operator has decided that its effect stands.
pub(super) fn effect_to_undo(call: Call<'_>, by: &By) -> Result<Change, Illegal> {
    if !call.record.is_adopted() || call.record.is_skipped() {
        return Err(Illegal::NothingToUndo);
    }
    let change = undo::to_compensate(call, by, None)?;
    let detail = format!("its effect is undone at the source ({})", by.reason);
    Ok(Change::new(
        change.record,
        "compensating",
        &by.actor,
        detail,
    ))
}

/// Whether the call that holds the key was adopted from this effect.
///
/// # Errors
/// Another call holds the key, and nothing of it changes.
pub(super) fn adopted_before(record: &Record, adoption: &Adoption) -> Result<Next, Illegal> {
    if record.is_adopted() && record.attempt.id == adoption.attempt {
        Ok(Next::unchanged(Action::Answer))
    } else {
        Err(Illegal::KeyHeld)
    }
}

/// Keeps what the first request for an adopted call asks for.
///
/// Its fingerprint is kept like that of an alias, so that the intent never changes.
pub(super) fn recognise(call: Call<'_>, arrival: &Arrival) -> Next {
    let intent = &arrival.intent;
    if call.is_of_other_saga(&intent.saga_id) {
        return Next::unchanged(Action::RefuseOtherSaga);
    }
    let mut known = call.changed();
    known.aliases.push(Alias {
        lookups: vec![call.record.intent.lookup],
        fingerprint: intent.fingerprint,
        key_scheme: intent.key_scheme,
    });
    if intent.key_source == Source::Compensation {
        // The key of a compensation must never be free again.
        known.expires_at = None;
    }
    let by = match intent.made_by.as_str() {
        "" => "the gateway itself".to_owned(),
        token => Actor::Token(token).to_string(),
    };
    let detail =
        format!("the first request with its key came, from {by}: it says what the call asked for");
    let change = Change::new(known, "recognised", Actor::Gateway(arrival.owner), detail);
    Next::write(change, Action::TakeFingerprint)
}
