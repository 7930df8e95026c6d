//! Memory never shows an older state of a call than the store has.

use bytes::Bytes;

use super::*;
use crate::Remembering;
use crate::codec::tests::record;
use crate::remembering::tests::Held;
use oncegate_rules::record::{Alias, Content};

fn succeeded(result: &'static str) -> Record {
    record(State::Succeeded(Content::Stored(Bytes::from(result))))
}

fn name() -> Lookup {
    succeeded("1").intent.lookup
}

/// Remembers a call that surely holds its name.
fn keep(replay_cache: &ReplayCache, result: &'static str, start: &Start) {
    let call = succeeded(result);
    replay_cache.remember(&call, call.intent.all_lookups(), start);
}

/// The result that is remembered.
fn remembered(replay_cache: &ReplayCache) -> Option<Bytes> {
    replay_cache.get(&name())?.state.stored().cloned()
}

#[test]
fn the_newest_read_or_write_is_remembered() {
    let replay_cache = ReplayCache::new(1 << 20);
    let looked = replay_cache.begin_read(&[name()]);
    keep(&replay_cache, "1", &looked);
    assert_eq!(remembered(&replay_cache), Some("1".into()));
    let begun = replay_cache.begin_write([&name()].into_iter());
    assert_eq!(
        remembered(&replay_cache),
        None,
        "it may change at any moment"
    );
    replay_cache.end_write(&begun);
    keep(&replay_cache, "2", &begun);
    assert_eq!(remembered(&replay_cache), Some("2".into()));
    replay_cache.clear();
    assert_eq!((remembered(&replay_cache), replay_cache.bytes()), (None, 0));
}

#[test]
fn a_read_that_began_before_a_write_is_not_remembered() {
    let replay_cache = ReplayCache::new(1 << 20);
    let looked = replay_cache.begin_read(&[name()]);
    let begun = replay_cache.begin_write([&name()].into_iter());
    keep(&replay_cache, "old", &looked);
    assert_eq!(remembered(&replay_cache), None, "while it is written");
    let meanwhile = replay_cache.begin_read(&[name()]);
    keep(&replay_cache, "old", &meanwhile);
    assert_eq!(remembered(&replay_cache), None, "read while it is written");
    replay_cache.end_write(&begun);
    keep(&replay_cache, "old", &meanwhile);
    assert_eq!(remembered(&replay_cache), None, "read while it was written");
    keep(&replay_cache, "old", &looked);
    assert_eq!(remembered(&replay_cache), None, "read before");
}

#[test]
fn a_read_that_began_before_its_name_was_touched_is_not_remembered() {
    let replay_cache = ReplayCache::new(1 << 20);
    let looked = replay_cache.begin_read(&[name()]);
    replay_cache.touch([&name()].into_iter());
    keep(&replay_cache, "old", &looked);
    assert_eq!(remembered(&replay_cache), None);
    let looked = replay_cache.begin_read(&[name()]);
    keep(&replay_cache, "new", &looked);
    assert_eq!(remembered(&replay_cache), Some("new".into()));
}

#[test]
fn of_two_writes_at_once_none_is_remembered() {
    let replay_cache = ReplayCache::new(1 << 20);
    let first = replay_cache.begin_write([&name()].into_iter());
    let second = replay_cache.begin_write([&name()].into_iter());
    replay_cache.end_write(&second);
    keep(&replay_cache, "second", &second);
    assert_eq!(
        remembered(&replay_cache),
        None,
        "the first may still be written"
    );
    replay_cache.end_write(&first);
    keep(&replay_cache, "first", &first);
    assert_eq!(remembered(&replay_cache), None, "the first is older");
    // The write that began last may be made first.
    let first = replay_cache.begin_write([&name()].into_iter());
    let second = replay_cache.begin_write([&name()].into_iter());
    replay_cache.end_write(&first);
    replay_cache.end_write(&second);
    keep(&replay_cache, "second", &second);
    assert_eq!(
        remembered(&replay_cache),
        None,
        "the first may have come after it"
    );
}

#[test]
fn a_write_that_may_have_been_made_keeps_its_name_out_for_ever() {
    let replay_cache = ReplayCache::new(1 << 20);
    drop(replay_cache.begin_write([&name()].into_iter()));
    let looked = replay_cache.begin_read(&[name()]);
    keep(&replay_cache, "1", &looked);
    assert_eq!(remembered(&replay_cache), None);
}

#[test]
fn a_write_that_may_have_been_made_keeps_no_name_of_another_stripe_out() {
    let replay_cache = ReplayCache::new(1 << 20);
    let of_stripe = |stripe: usize| {
        let mut name = [0; 16];
        name[13..15].copy_from_slice(&u16::try_from(stripe).expect("a stripe").to_be_bytes());
        Lookup(name)
    };
    let lookups: Vec<Lookup> = (0..STRIPES).map(of_stripe).collect();
    drop(replay_cache.begin_write(lookups[..1].iter()));
    let read = replay_cache.begin_read(&lookups);
    let left_out = read.seen.iter().filter(|Seen(_, begun)| *begun == NEVER);
    assert_eq!(left_out.count(), 1);
}

#[test]
fn only_succeeded_calls_are_remembered_and_only_under_names_that_they_have() {
    let replay_cache = ReplayCache::new(1 << 20);
    let other = Lookup([9; 16]);
    let looked = replay_cache.begin_read(&[name(), other]);
    keep(&replay_cache, "1", &looked);
    assert!(replay_cache.get(&other).is_none());
    for state in [
        State::Running,
        State::Unknown("why".into()),
        State::Compensating(Some(Content::Stored(Bytes::from("1")))),
    ] {
        let replay_cache = ReplayCache::new(1 << 20);
        let looked = replay_cache.begin_read(&[name()]);
        let call = record(state);
        replay_cache.remember(&call, call.intent.all_lookups(), &looked);
        assert_eq!(replay_cache.bytes(), 0);
    }
}

/// Otherwise large calls would be remembered although there is no room, or no call at all.
#[test]
fn the_size_of_a_call_counts_its_result_its_texts_and_each_of_its_names() {
    let call = succeeded("1");
    let with = |result: &'static str, text: &str, lookups: usize, aliases: usize| {
        let mut call = succeeded(result);
        let intent = Arc::make_mut(&mut call.intent);
        intent.client_ids = text.to_owned();
        intent.lookups = vec![name(); lookups];
        call.aliases = vec![
            Alias {
                lookups: vec![name()],
                fingerprint: [0; 32],
                key_scheme: call.intent.key_scheme,
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
    let replay_cache = ReplayCache::new(100 * (PACKED + FIXED));
    for number in 0..1_000_u32 {
        let mut lookup = [0; 16];
        lookup[..4].copy_from_slice(&number.to_be_bytes());
        let mut call = succeeded("1");
        Arc::make_mut(&mut call.intent).lookup = Lookup(lookup);
        let looked = replay_cache.begin_read(&[Lookup(lookup)]);
        replay_cache.remember(&call, call.intent.all_lookups(), &looked);
    }
    assert!((1..=100 * (PACKED + FIXED)).contains(&replay_cache.bytes()));
}

#[tokio::test]
async fn nothing_is_remembered_without_room() {
    let store = Arc::new(Held::new());
    let replay_cache = Arc::new(ReplayCache::new(1 << 20));
    let (asked, memory) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let has_memory = {
        let (asked, memory) = (asked.clone(), memory.clone());
        move |bytes| {
            asked.store(bytes, Ordering::Relaxed);
            bytes <= memory.load(Ordering::Relaxed)
        }
    };
    let remembering = Remembering::new(store, replay_cache.clone(), Arc::new(has_memory));
    let call = succeeded("1");
    let remember = || {
        let start = replay_cache.begin_read(&[name()]);
        remembering.remember(&call, [&name()].into_iter(), &start);
        remembered(&replay_cache)
    };
    assert_eq!(remember(), None);
    let bytes = asked.load(Ordering::Relaxed);
    assert!(bytes > PACKED + FIXED, "{bytes}");
    let start = replay_cache.begin_read(&[name(), Lookup([9; 16])]);
    remembering.remember(&call, [&name()].into_iter(), &start);
    assert_eq!(asked.load(Ordering::Relaxed), 2 * bytes, "for two names");
    memory.store(bytes, Ordering::Relaxed);
    assert_eq!(remember(), Some("1".into()));
    assert!((FIXED..=bytes).contains(&replay_cache.bytes()));
}
