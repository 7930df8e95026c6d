//! An effect that the ledger has forgotten is written back as a succeeded call, and its first request recognised.

use jiff::Timestamp;

use super::change::{Action, Change, Illegal, Next};
use super::event::{Adoption, Arrival};
use crate::core::actor::Actor;
use crate::core::key::Source;
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
    let record = Record {
        intent: adoption.intent.clone(),
        version: 1,
        state: State::Succeeded(adoption.content.clone()),
        attempt: Attempt {
            id: adoption.attempt,
            owner: adoption.owner,
            number: 1,
            run_started_at: now,
            lease_until: now,
        },
        attempts: 1,
        earlier_attempt_may_have_run: false,
        fencing: None,
        similar_to: None,
        check: None,
        undo: None,
        aliases: Vec::new(),
        latency_ms: None,
        updated_at: now,
        expires_at: Some(after(now, window)),
        retain_until: Some(after(now, tool.retention.max(window))),
    };
    let by = Actor::Reconciliation(&adoption.by);
    let change = Change::new(record, "adopted", by, adoption.why.clone());
    let outcome = Outcome::Executed(adoption.content.clone());
    Next::finish(change.about(adoption.attempt).proving(&outcome))
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
