//! Stored calls with random changes.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::tests::{any_entry, any_record};
use super::*;
use oncegate_fuzz::attack;
use oncegate_rules::record::Entry;

/// Values that a strategy makes, the same in each run.
fn some<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    let made = (0..30).map(|_| of.new_tree(&mut runner).expect("a value").current());
    made.collect()
}

#[test]
fn a_changed_call_is_refused_or_reads_as_one_that_can_be_written() {
    let samples: Vec<Vec<u8>> = some(any_record())
        .iter()
        .map(|one| pack(one).to_vec())
        .collect();
    attack(&samples, |bytes| {
        let Ok(read) = unpack(&Arc::from(bytes)) else {
            return Ok(());
        };
        prop_assert_eq!(unpack(&pack(&read)), Ok(read));
        Ok(())
    });
}

#[test]
fn a_changed_progress_is_refused_or_reads_as_one_that_can_be_written() {
    let record = some(any_record()).swap_remove(0);
    let intent = intent(&record.intent);
    let samples: Vec<Vec<u8>> = some(any_record()).iter().map(progress).collect();
    let read_one = |bytes: &[u8]| {
        let beside = Beside {
            result: Some(Bytes::from_static(b"{}")),
            ..Beside::default()
        };
        read(&intent, bytes, beside)
    };
    attack(&samples, |bytes| {
        drop(stamp(bytes));
        let Ok(read) = read_one(bytes) else {
            return Ok(());
        };
        prop_assert_eq!(read_one(&progress(&read)), Ok(read));
        Ok(())
    });
}

#[test]
fn a_changed_history_is_refused_or_reads_as_one_that_can_be_written() {
    let of = some(any_record()).swap_remove(0).intent;
    let history = |entries: &[Entry]| {
        entries
            .iter()
            .flat_map(|one| entry(one, &of))
            .collect::<Vec<u8>>()
    };
    let samples: Vec<Vec<u8>> = some(any_entry()).chunks(3).map(history).collect();
    attack(&samples, |bytes| {
        drop((
            read_duplicate(bytes),
            read_duplicates(bytes),
            read_maker(bytes),
            call_id(bytes),
        ));
        let Ok(read) = read_entries(bytes, &of, u32::MAX) else {
            return Ok(());
        };
        prop_assert_eq!(read_entries(&history(&read), &of, u32::MAX), Ok(read));
        Ok(())
    });
}
