//! Memory never shows an older state of a call than the store has.

use bytes::Bytes;

use super::*;
use crate::Remembering;
use crate::codec::tests::record;
use crate::remembering::tests::Held;
use oncegate_rules::record::{Alias, Content};

fn succeeded(result: &'static str) -> Record {
    record(State::Succeeded(Content::Kept(Bytes::from(result))))
}

fn name() -> Lookup {
    succeeded("1").intent.lookup
}

/// Remembers a call that surely holds its name.
fn keep(finished: &Finished, result: &'static str, start: &Start) {
    let call = succeeded(result);
    finished.remember(&call, call.intent.all_names(), start);
}

/// The result that is remembered.
fn remembered(finished: &Finished) -> Option<Bytes> {
    finished.get(&name())?.state.kept().cloned()
}

#[test]
fn the_newest_read_or_write_is_remembered() {
    let finished = Finished::new(1 << 20);
    let looked = finished.begin_read(&[name()]);
    keep(&finished, "1", &looked);
    assert_eq!(remembered(&finished), Some("1".into()));
    let begun = finished.begin_write([&name()].into_iter());
    assert_eq!(remembered(&finished), None, "it may change at any moment");
    finished.end_write(&begun);
    keep(&finished, "2", &begun);
    assert_eq!(remembered(&finished), Some("2".into()));
    finished.clear();
    assert_eq!((remembered(&finished), finished.bytes()), (None, 0));
}

#[test]
fn a_read_that_began_before_a_write_is_not_remembered() {
    let finished = Finished::new(1 << 20);
    let looked = finished.begin_read(&[name()]);
    let begun = finished.begin_write([&name()].into_iter());
    keep(&finished, "old", &looked);
    assert_eq!(remembered(&finished), None, "while it is written");
    let meanwhile = finished.begin_read(&[name()]);
    keep(&finished, "old", &meanwhile);
    assert_eq!(remembered(&finished), None, "read while it is written");
    finished.end_write(&begun);
    keep(&finished, "old", &meanwhile);
    assert_eq!(remembered(&finished), None, "read while it was written");
    keep(&finished, "old", &looked);
    assert_eq!(remembered(&finished), None, "read before");
}

#[test]
fn a_read_that_began_before_its_name_was_touched_is_not_remembered() {
    let finished = Finished::new(1 << 20);
    let looked = finished.begin_read(&[name()]);
    finished.touch([&name()].into_iter());
    keep(&finished, "old", &looked);
    assert_eq!(remembered(&finished), None);
    let looked = finished.begin_read(&[name()]);
    keep(&finished, "new", &looked);
    assert_eq!(remembered(&finished), Some("new".into()));
}

#[test]
fn of_two_writes_at_once_none_is_remembered() {
    let finished = Finished::new(1 << 20);
    let first = finished.begin_write([&name()].into_iter());
    let second = finished.begin_write([&name()].into_iter());
    finished.end_write(&second);
    keep(&finished, "second", &second);
    assert_eq!(
        remembered(&finished),
        None,
        "the first may still be written"
    );
    finished.end_write(&first);
    keep(&finished, "first", &first);
    assert_eq!(remembered(&finished), None, "the first is older");
    // The write that began last may be made first.
    let first = finished.begin_write([&name()].into_iter());
    let second = finished.begin_write([&name()].into_iter());
    finished.end_write(&first);
    finished.end_write(&second);
    keep(&finished, "second", &second);
    assert_eq!(
        remembered(&finished),
        None,
        "the first may have come after it"
    );
}

#[test]
fn a_write_that_may_have_been_made_keeps_its_name_out_for_ever() {
    let finished = Finished::new(1 << 20);
    drop(finished.begin_write([&name()].into_iter()));
    let looked = finished.begin_read(&[name()]);
    keep(&finished, "1", &looked);
    assert_eq!(remembered(&finished), None);
}

#[test]
fn a_write_that_may_have_been_made_keeps_no_name_of_another_stripe_out() {
    let finished = Finished::new(1 << 20);
    let of_stripe = |stripe: usize| {
        let mut name = [0; 16];
        name[13..15].copy_from_slice(&u16::try_from(stripe).expect("a stripe").to_be_bytes());
        Lookup(name)
    };
    let names: Vec<Lookup> = (0..STRIPES).map(of_stripe).collect();
    drop(finished.begin_write(names[..1].iter()));
    let read = finished.begin_read(&names);
    let kept_out = read.seen.iter().filter(|Seen(_, begun)| *begun == NEVER);
    assert_eq!(kept_out.count(), 1);
}

#[test]
fn only_succeeded_calls_are_remembered_and_only_under_names_that_they_have() {
    let finished = Finished::new(1 << 20);
    let other = Lookup([9; 16]);
    let looked = finished.begin_read(&[name(), other]);
    keep(&finished, "1", &looked);
    assert!(finished.get(&other).is_none());
    for state in [
        State::Running,
        State::Unknown("why".into()),
        State::Compensating(Some(Content::Kept(Bytes::from("1")))),
    ] {
        let finished = Finished::new(1 << 20);
        let looked = finished.begin_read(&[name()]);
        let call = record(state);
        finished.remember(&call, call.intent.all_names(), &looked);
        assert_eq!(finished.bytes(), 0);
    }
}

/// Otherwise large calls would be remembered although there is no room, or no call at all.
#[test]
fn the_size_of_a_call_counts_its_result_its_texts_and_each_of_its_names() {
    let call = succeeded("1");
    let with = |result: &'static str, text: &str, names: usize, aliases: usize| {
        let mut call = succeeded(result);
        let intent = Arc::make_mut(&mut call.intent);
        intent.client_ids = text.to_owned();
        intent.names = vec![name(); names];
        call.aliases = vec![
            Alias {
                names: vec![name()],
                fingerprint: [0; 32],
                recipe: call.intent.recipe,
            };
            aliases
        ];
        size(&call)
    };
    let least = size(&call);
    let taken = pack(&call).len() + FIXED;
    assert!((taken..2 * taken).contains(&least), "{least}");
    assert_eq!(with("1", "", 0, 0), least);
    assert_eq!(with("1234567", "", 0, 0), least + 6);
    assert_eq!(with("1", "1234567", 0, 0), least + 7);
    assert_eq!(with("1", "", 3, 0), least + 3 * size_of::<Lookup>());
    assert_eq!(with("1", "", 0, 2), least + 2 * ALIAS);
    let both = 3 * size_of::<Lookup>() + 2 * ALIAS;
    assert_eq!(with("1", "", 3, 2), least + both);
}

#[test]
fn it_holds_no_more_than_it_may() {
    let finished = Finished::new(100 * (PACKED + FIXED));
    for number in 0..1_000_u32 {
        let mut lookup = [0; 16];
        lookup[..4].copy_from_slice(&number.to_be_bytes());
        let mut call = succeeded("1");
        Arc::make_mut(&mut call.intent).lookup = Lookup(lookup);
        let looked = finished.begin_read(&[Lookup(lookup)]);
        finished.remember(&call, call.intent.all_names(), &looked);
    }
    assert!((1..=100 * (PACKED + FIXED)).contains(&finished.bytes()));
}

#[tokio::test]
async fn nothing_is_remembered_without_room() {
    let store = Arc::new(Held::new());
    let finished = Arc::new(Finished::new(1 << 20));
    let (asked, room) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let has_room = {
        let (asked, room) = (asked.clone(), room.clone());
        move |bytes| {
            asked.store(bytes, Ordering::Relaxed);
            bytes <= room.load(Ordering::Relaxed)
        }
    };
    let remembering = Remembering::new(store, finished.clone(), Arc::new(has_room));
    let call = succeeded("1");
    let remember = || {
        let start = finished.begin_read(&[name()]);
        remembering.remember(&call, [&name()].into_iter(), &start);
        remembered(&finished)
    };
    assert_eq!(remember(), None);
    let bytes = asked.load(Ordering::Relaxed);
    assert!(bytes > PACKED + FIXED, "{bytes}");
    let start = finished.begin_read(&[name(), Lookup([9; 16])]);
    remembering.remember(&call, [&name()].into_iter(), &start);
    assert_eq!(asked.load(Ordering::Relaxed), 2 * bytes, "for two names");
    room.store(bytes, Ordering::Relaxed);
    assert_eq!(remember(), Some("1".into()));
    assert!((FIXED..=bytes).contains(&finished.bytes()));
}
