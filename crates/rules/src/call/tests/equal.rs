//! Requests with equal arguments under another key of a model, or under none.

use jiff::SignedDuration;

use super::*;
use crate::key_scheme::fingerprints::Fingerprints;
use crate::key_scheme::identity::{LookupKey, Part};
use crate::record::Holder;

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn name(key: &str) -> Lookup {
    Lookup::new("shop", "t", key)
}

/// A request with these arguments under this key of a model, or under none.
fn asks(model_key: Option<&str>) -> Intent {
    let arguments = name("arguments");
    let (source, lookup, lookups) = match model_key {
        Some(key) => (key::Source::Model, name(key), vec![arguments]),
        None => (key::Source::Derived, arguments, Vec::new()),
    };
    Intent {
        lookup,
        lookups,
        ..(*intent(source, 1)).clone()
    }
}

/// A call of the model's key `one` that has had these events.
fn there(tool: &Tool, events: &[(Event, i64)]) -> Record {
    let mut record = record(tool, key::Source::Model, events);
    record.intent = Arc::new(asks(Some("one")));
    record
}

fn succeeded(tool: &Tool) -> Record {
    there(tool, &[(ended_with(1, answer(200), None), 10)])
}

fn arrives(intent: Intent, confirmed: Option<CallId>) -> Event {
    Event::Arrived(Arrival {
        intent: Arc::new(intent),
        fingerprints: Arc::new(
            Fingerprints::default().with_lookups_of_arguments(vec![name("arguments")]),
        ),
        preconditions: Preconditions {
            fencing: None,
            confirmed,
        },
        attempt: attempt(2),
        owner: ME,
    })
}

fn action(tool: &Tool, record: &Record, event: &Event, now: impl Into<Now>) -> Action {
    next(tool, Some(record), event, now)
        .expect("an answer")
        .action
}

#[test]
fn another_key_of_a_model_meets_the_call_within_the_window_of_derived_keys() {
    let tool = tool("t");
    let there = succeeded(&tool);
    for (key, until) in [
        (Some("one"), DAY + 10),
        (Some("two"), HOUR + 10),
        (None, HOUR + 10),
    ] {
        let event = arrives(asks(key), None);
        let action = |seconds| action(&tool, &there, &event, at(seconds));
        assert_eq!(action(until - 1), Action::Answer, "{key:?}");
        assert_eq!(action(until), Action::Claim, "{key:?}");
    }
    // A configured window holds for both.
    let mut short = tool.clone();
    short.dedup_window = Some(Duration::from_mins(10));
    let event = arrives(asks(Some("two")), None);
    for (made_with, asked_with) in [(&short, &short), (&short, &tool)] {
        let there = succeeded(made_with);
        let action = |seconds| action(asked_with, &there, &event, at(seconds));
        assert_eq!((action(609), action(610)), (Action::Answer, Action::Claim));
    }
    // It counts the time for which a machine slept before the call.
    let slept = Now {
        at: at(10),
        slept: SignedDuration::from_hours(3),
    };
    let running = self::there(&tool, &[]);
    let ended = next(
        &tool,
        Some(&running),
        &ended_with(1, answer(200), None),
        slept,
    );
    let ended = ended.expect("an end").change.expect("a change").record;
    let awake = 3 * HOUR + 10;
    let action = |seconds| action(&tool, &ended, &event, at(seconds));
    assert_eq!(action(awake + HOUR - 1), Action::Answer);
    assert_eq!(action(awake + HOUR), Action::Claim);
}

#[test]
fn a_confirmation_counts_only_for_a_call_that_has_ended_well() {
    let tool = tool("t");
    let id = intent(key::Source::Model, 1).call_id;
    let unknown = [(ended_with(1, no_answer(), None), 10)];
    let failed = [(ended_with(1, not_sent(), None), 10)];
    for (there, expected) in [
        (succeeded(&tool), Action::Claim),
        (there(&tool, &[]), Action::Wait),
        (there(&tool, &unknown), Action::Answer),
        (there(&tool, &failed), Action::Run),
    ] {
        for key in [Some("one"), Some("two"), None] {
            let confirmed = arrives(asks(key), Some(id));
            assert_eq!(
                action(&tool, &there, &confirmed, at(20)),
                expected,
                "{key:?}"
            );
        }
    }
    let there = succeeded(&tool);
    let another = arrives(asks(None), Some(CallId(Uuid::from_u128(9))));
    assert_eq!(action(&tool, &there, &another, at(20)), Action::Answer);
    // A runtime's key, and an id of the client's, stand for their call.
    let mut by_client = asks(Some("two"));
    by_client.lookups.push(name("client"));
    let mut named = there.clone();
    Arc::make_mut(&mut named.intent)
        .lookups
        .push(name("client"));
    let event = arrives(by_client, Some(id));
    assert_eq!(action(&tool, &named, &event, at(20)), Action::Answer);
    let mut of_runtime = there.clone();
    Arc::make_mut(&mut of_runtime.intent).key_source = key::Source::Runtime;
    let event = arrives(asks(Some("one")), Some(id));
    assert_eq!(action(&tool, &of_runtime, &event, at(20)), Action::Answer);
}

#[test]
fn of_two_equal_calls_the_one_that_has_a_result_is_the_answer() {
    let tool = tool("t");
    let failed = there(&tool, &[(ended_with(1, not_sent(), None), 10)]);
    let mut other = succeeded(&tool);
    let intent = Arc::make_mut(&mut other.intent);
    *intent = Intent {
        call_id: CallId(Uuid::from_u128(7)),
        ..asks(Some("two"))
    };
    let holder = |record: &Record, held: &str| Holder {
        record: record.clone(),
        lookups: vec![name(held)],
    };
    let lookups = [("one", Part::Today), ("arguments", Part::Arguments)];
    let lookups = lookups.map(|(key, part)| LookupKey {
        lookup: name(key),
        part,
        is_runtime: false,
    });
    let asked = asks(Some("one"));
    let seeking = Seeking {
        lookups: &lookups,
        intent: &asked,
        fingerprints: &Fingerprints::default().with_lookups_of_arguments(vec![name("arguments")]),
        confirmed: None,
    };
    let both = [holder(&failed, "one"), holder(&other, "arguments")];
    assert_eq!(resolve(&tool, &both, seeking, at(20)), Resolved::Call(1));
    assert_eq!(
        resolve(&tool, &both[..1], seeking, at(20)),
        Resolved::Call(0)
    );
    // A failed call keeps the name of its arguments as long as it may run again: it has no window of its own.
    let asked = asks(Some("two"));
    let seeking = Seeking {
        intent: &asked,
        ..seeking
    };
    let late = [holder(&failed, "arguments")];
    assert_eq!(
        resolve(&tool, &late, seeking, at(2 * HOUR)),
        Resolved::Call(0)
    );
    let late = [holder(&succeeded(&tool), "arguments")];
    let free = Resolved::Free {
        replaced: vec![0],
        left: Vec::new(),
    };
    assert_eq!(resolve(&tool, &late, seeking, at(2 * HOUR)), free);
}
