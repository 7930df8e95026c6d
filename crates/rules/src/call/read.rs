//! A request to a tool that reads: it is executed each time, unless it repeats a call that is in doubt.

use crate::key_scheme::fingerprints::{Fingerprints, Sameness};
use crate::record::{Holder, Intent, Record, State};

/// The stored call that keeps a read from being executed. `holders`: the calls that hold the lookup keys of the request.
///
/// A tool may have counted as a write when the call was made, by its earlier settings or by what its server said of it. While
/// such a call runs, or its outcome is unknown, its callers have been told that asking again executes nothing. Any other
/// stored call says nothing to a read.
pub fn in_doubt<'a>(
    holders: &'a [Holder],
    intent: &Intent,
    fingerprints: &Fingerprints,
) -> Option<&'a Record> {
    let records = holders.iter().map(|holder| &holder.record);
    let mut doubted = records.filter(|record| was_write(record) && is_in_doubt(&record.state));
    doubted.find(|record| fingerprints.compare(intent, record) != Sameness::Other)
}

/// Whether a call was made as a write: reads get no fencing token.
fn was_write(record: &Record) -> bool {
    record.fencing.is_some()
}

fn is_in_doubt(state: &State) -> bool {
    match state {
        State::Running | State::Unknown(_) => true,
        State::Compensating(_) | State::Stuck(_) => state.content().is_none(),
        State::Succeeded(_)
        | State::Failed(_)
        | State::Compensated(_)
        | State::Proposed
        | State::Approved => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::Source;
    use crate::record::Content;
    use crate::testing::tool;
    use crate::testing::{failed, record};

    #[test]
    fn only_a_write_in_doubt_with_the_same_arguments_keeps_a_read_from_being_executed() {
        let there = record(&tool("t"), Source::Runtime, &[]);
        let stored = || Content::Stored("{}".into());
        let blocks = |state: State, fencing, fingerprint| {
            let intent = Intent {
                fingerprint: [fingerprint; 32],
                ..(*there.intent).clone()
            };
            let asked = Intent {
                fingerprint: [1; 32],
                ..intent.clone()
            };
            let held = Record {
                intent: Arc::new(intent),
                state,
                fencing,
                ..there.clone()
            };
            let lookups = held.all_lookups().copied().collect();
            let holders = [Holder {
                record: held,
                lookups,
            }];
            in_doubt(&holders, &asked, &Fingerprints::default()).is_some()
        };
        for (state, expected) in [
            (State::Running, true),
            (State::Unknown("timed out".into()), true),
            (State::Compensating(None), true),
            (State::Stuck(None), true),
            (State::Compensating(Some(stored())), false),
            (State::Succeeded(stored()), false),
            (State::Compensated(None), false),
            (failed(), false),
        ] {
            let word = state.as_str();
            assert_eq!(blocks(state.clone(), Some(1), 1), expected, "{word}");
            assert!(!blocks(state.clone(), None, 1), "a read: {word}");
            assert!(!blocks(state, Some(1), 2), "other arguments: {word}");
        }
    }
}
