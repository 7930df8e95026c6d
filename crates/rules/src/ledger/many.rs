//! Acts on many calls or sagas at once: whether the targets are still those that an operator has confirmed.
//!
//! A dry run answers count and digest of the targets; the act sends both back. The digest covers the act, the ids of
//! the targets, and the state and the newest attempt of each. A new time for a check changes none of these.

use crate::key;
use crate::record::Record;
use crate::saga::{Saga, SagaId};
use crate::session::Lock;

/// Targets that a dry run shows.
pub const SAMPLE: usize = 10;
/// Bytes of each part of a digest.
const PART: usize = 8;

/// A short digest of the facts about a target that an operator decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenVersion([u8; 16]);

impl SeenVersion {
    fn new<const N: usize>(parts: [&str; N]) -> Self {
        Self(key::short_digest(parts))
    }

    /// The version as hex digits, for a form that is sent later.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Reads a version. Any other text gives a version that no target has.
    pub fn from_hex(text: &str) -> Self {
        let mut version = [0; 16];
        // After an error all bytes stay zero.
        hex::decode_to_slice(text, &mut version).ok();
        Self(version)
    }

    /// The version of a call: its state, its newest attempt, and its compensation; while it waits for approval, also the number
    /// of the ask.
    pub fn of_call(record: &Record) -> Self {
        let attempt = record.attempt.id.to_string();
        let undo = record.compensation().map(|by| by.call_id.to_string());
        let undo = undo.unwrap_or_default();
        let state = record.state.as_str();
        match record.proposal.as_deref() {
            Some(proposal) if record.state.waits_for_approval() => {
                let ask = proposal.ask.to_string();
                Self::new([state, &attempt, &undo, &ask])
            }
            _ => Self::new([state, &attempt, &undo]),
        }
    }

    /// The version of a document.
    pub fn of_document(version: u64) -> Self {
        Self::new(["document", &version.to_string()])
    }

    /// The version of a session's lock: the run that holds it.
    pub fn of_lock(lock: &Lock) -> Self {
        let (call_id, token) = (lock.call_id.to_string(), lock.token.to_string());
        let until = lock.lease_until.to_string();
        Self::new(["lock", &call_id, &token, &until])
    }

    /// The version of a saga: its state and its trouble.
    pub fn of_saga(saga: &Saga) -> Self {
        let trouble = saga.trouble.as_ref();
        let call_id = trouble.and_then(|trouble| trouble.call_id);
        let call_id = call_id.map_or_else(String::new, |call_id| call_id.to_string());
        let why = trouble.map_or("", |trouble| &trouble.why);
        Self::new([saga.state().as_str(), &call_id, why])
    }
}

/// A text that is different for any two sagas.
pub fn name_of_saga(id: &SagaId) -> String {
    format!("{}:{}{}", id.tenant.len(), id.tenant, id.id)
}

/// The targets of an act: how many, and a digest of which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub count: usize,
    /// Hex digits of three digests: of the act, of the ids, and of the versions.
    pub digest: String,
}

impl Summary {
    /// The summary of an act, in words that no other act has, and of the names and versions of its targets.
    ///
    /// The order of the targets does not matter: the next list may have another order.
    pub fn of(act: &[&str], mut targets: Vec<(String, SeenVersion)>) -> Self {
        targets.sort_by(|(one, _), (other, _)| one.cmp(other));
        let ids = targets.iter().map(|(name, _)| words(&[name])).collect();
        let versions = targets
            .iter()
            .map(|(_, version)| version.to_hex())
            .collect();
        let parts = [words(act), ids, versions];
        let parts = parts.map(|part| hex::encode(&key::digest([&part])[..PART]));
        Self {
            count: targets.len(),
            digest: parts.join("-"),
        }
    }

    /// Compares with what an operator has confirmed.
    ///
    /// # Errors
    /// What is different.
    pub fn confirm(&self, confirmed: &Self) -> Result<(), Different> {
        let now: Vec<&str> = self.digest.split('-').collect();
        let then: Vec<&str> = confirmed.digest.split('-').collect();
        let is_same = |part: usize| now.get(part) == then.get(part);
        if now.len() != then.len() {
            Err(Different::NoDigest)
        } else if !is_same(0) {
            Err(Different::Act)
        } else if !is_same(1) || self.count != confirmed.count {
            Err(Different::Members {
                then: confirmed.count,
                now: self.count,
            })
        } else if !is_same(2) {
            Err(Different::Changed { now: self.count })
        } else {
            Ok(())
        }
    }
}

/// Words as one text that no other words give.
fn words(words: &[&str]) -> String {
    let words = words.iter().map(|word| format!("{}:{word}", word.len()));
    words.collect()
}

/// Why an act is not the one that was confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Different {
    #[error("no dry run has returned this digest")]
    NoDigest,
    #[error("a different action was confirmed")]
    Act,
    #[error("{then} were confirmed, and now the filter finds {now}, not all of them the same")]
    Members { then: usize, now: usize },
    #[error("the filter finds the same {now}, but at least one of them has changed since")]
    Changed { now: usize },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{AttemptId, CallId, Check, State};
    use crate::saga::{Policy, Trouble};
    use crate::testing::{at, succeeded};
    use uuid::Uuid;

    fn summary(act: &[&str], versions: &[(&str, &str)]) -> Summary {
        let targets = versions.iter();
        let targets = targets.map(|(id, version)| ((*id).to_owned(), SeenVersion::new([version])));
        Summary::of(act, targets.collect())
    }

    #[test]
    fn a_lock_has_another_mark_for_each_run() {
        let lock = Lock {
            call_id: CallId(Uuid::from_u128(1)),
            token: 7,
            lease_until: at(40),
            free_from: None,
        };
        let unknown = Lock {
            free_from: Some(at(40)),
            ..lock
        };
        assert_eq!(SeenVersion::of_lock(&unknown), SeenVersion::of_lock(&lock));
        for other in [
            Lock {
                call_id: CallId(Uuid::from_u128(2)),
                ..lock
            },
            Lock { token: 8, ..lock },
            Lock {
                lease_until: at(41),
                ..lock
            },
        ] {
            assert_ne!(
                SeenVersion::of_lock(&other),
                SeenVersion::of_lock(&lock),
                "{other:?}"
            );
        }
    }

    #[test]
    fn only_the_same_act_on_the_same_targets_as_they_were_is_confirmed() {
        let act = ["resolve", "failed"];
        let then = summary(&act, &[("a", "1"), ("b", "1")]);
        let confirm = |now: &Summary| now.confirm(&then);
        assert_eq!(confirm(&summary(&act, &[("b", "1"), ("a", "1")])), Ok(()));
        let other = summary(&["resolve", "succeeded"], &[("a", "1"), ("b", "1")]);
        assert_eq!(confirm(&other), Err(Different::Act));
        let fewer = summary(&act, &[("a", "1")]);
        let differs = Different::Members { then: 2, now: 1 };
        assert_eq!(confirm(&fewer), Err(differs));
        let others = summary(&act, &[("a", "1"), ("c", "1")]);
        let differs = Different::Members { then: 2, now: 2 };
        assert_eq!(confirm(&others), Err(differs));
        let changed = summary(&act, &[("a", "1"), ("b", "2")]);
        assert_eq!(confirm(&changed), Err(Different::Changed { now: 2 }));
        // A count that was changed by hand confirms nothing.
        let more = Summary {
            count: 3,
            ..then.clone()
        };
        let differs = Different::Members { then: 3, now: 2 };
        assert_eq!(then.confirm(&more), Err(differs));
        for digest in ["", "1-2", "1-2-3-4"] {
            let digest = digest.to_owned();
            let none = Summary { count: 2, digest };
            assert_eq!(then.confirm(&none), Err(Different::NoDigest));
        }
    }

    #[test]
    fn words_and_ids_do_not_run_into_each_other() {
        assert_ne!(summary(&["ab", "c"], &[]), summary(&["a", "bc"], &[]));
        let name = |tenant: &str, id: &str| name_of_saga(&SagaId::new(tenant, id));
        assert_ne!(name("a", "bc"), name("ab", "c"));
        let one = summary(&["x"], &[("ab", "1"), ("c", "1")]);
        assert_ne!(one, summary(&["x"], &[("a", "1"), ("bc", "1")]));
    }

    #[test]
    fn a_call_is_as_it_was_until_its_state_its_attempt_or_its_undoing_changes() {
        let before = Record {
            state: State::Unknown("timed out".into()),
            ..succeeded("{}")
        };
        let version = SeenVersion::of_call(&before);
        let check = Some(Check {
            since: at(1),
            at: Some(at(9)),
            number: 3,
        });
        let checked = Record {
            check,
            version: before.version + 1,
            updated_at: at(5),
            ..before.clone()
        };
        assert_eq!(
            SeenVersion::of_call(&checked),
            version,
            "a check found nothing"
        );
        let mut again = before.clone();
        again.attempt.id = AttemptId(Uuid::from_u128(9));
        assert_ne!(SeenVersion::of_call(&again), version);
        assert_ne!(SeenVersion::of_call(&succeeded("{}")), version);
    }

    #[test]
    fn a_saga_is_as_it_was_until_its_state_or_its_trouble_changes() {
        let saga = Saga::begin(SagaId::new("t", "s"), &Policy::default(), at(0));
        let version = SeenVersion::of_saga(&saga);
        let later = Saga {
            version: 7,
            ..saga.clone()
        };
        assert_eq!(SeenVersion::of_saga(&later), version);
        let trouble = |call_id: Option<u128>, why: &str| {
            let trouble = Some(Trouble {
                call_id: call_id.map(|id| CallId(Uuid::from_u128(id))),
                why: why.into(),
            });
            SeenVersion::of_saga(&Saga {
                trouble,
                ..saga.clone()
            })
        };
        let versions = [
            version,
            trouble(None, "a"),
            trouble(Some(1), "a"),
            trouble(Some(2), "a"),
            trouble(Some(1), "b"),
        ];
        for (at, one) in versions.iter().enumerate() {
            assert!(!versions[..at].contains(one), "{at}");
        }
    }

    #[test]
    fn a_mark_in_a_form_is_the_same_when_it_comes_back() {
        let version = SeenVersion::of_call(&succeeded("{}"));
        let text = version.to_hex();
        assert_eq!((SeenVersion::from_hex(&text), text.len()), (version, 32));
        for other in ["", "xyzzy", &text[1..], &format!("{text}0")] {
            assert_ne!(SeenVersion::from_hex(other), version, "{other:?}");
        }
    }
}
