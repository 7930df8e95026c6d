use std::fs;
use std::sync::Arc;

use super::*;
use bytes::Bytes;
use oncegate_rules::key;
use oncegate_rules::record::State::Succeeded;
use oncegate_rules::record::{self, Attempt, Content, Intent};
use oncegate_rules::testing;
use oncegate_rules::tool::Tool;
use oncegate_store::watermarks::{Need, TOKENS_AHEAD_US};

fn partition(number: usize) -> Partition {
    Partition::all().nth(number).expect("a partition")
}

/// A version of a call, as its newest run, which began at this second, has left it.
fn version(call: u128, version: u64, second: i64, state: record::State) -> Record {
    let record = testing::record(&Tool::new("t"), key::Source::Runtime, &[]);
    let call_id = CallId(Uuid::from_u128(call));
    let intent = Arc::new(Intent {
        call_id,
        ..(*record.intent).clone()
    });
    let attempt = Attempt {
        run_started_at: testing::at(second),
        ..record.attempt.clone()
    };
    Record {
        intent,
        version,
        state,
        attempt,
        ..record
    }
}

fn over() -> record::State {
    Succeeded(Content::Stored("{}".into()))
}

fn remember(memory: &Memory, record: Record) {
    let change = testing::claim_of(record.clone());
    memory.remember(memory.call_write(&record, &change));
}

/// The first call's name moves to the second, and back to a later run of the first.
#[test]
fn remembered_writes_are_ordered_by_the_newest_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
    let remember = |call, number, second, state| {
        remember(&memory, version(call, number, second, state));
    };
    remember(2, 1, 5, Running);
    remember(1, 1, 0, Running);
    remember(1, 2, 0, over());
    remember(3, 1, 7, Running);
    remember(3, 2, 7, over());
    remember(2, 2, 5, over());
    remember(1, 3, 9, Running);
    let order: Vec<(u128, u64)> = memory
        .recent()
        .iter()
        .map(|write| (write.call_id().0.as_u128(), write.record.version))
        .collect();
    assert_eq!(
        order,
        [(2, 1), (2, 2), (3, 1), (3, 2), (1, 1), (1, 2), (1, 3)]
    );
}

/// The calls that would be put back.
fn calls(memory: &Memory) -> Vec<u128> {
    let recent = memory.recent();
    recent
        .iter()
        .map(|write| write.call_id().0.as_u128())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_running_call_is_remembered_until_it_ends_and_other_writes_until_they_are_old() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
    remember(&memory, version(1, 1, 0, Running));
    remember(&memory, version(2, 1, 0, over()));
    memory.saw_all(&Sight::default());
    assert_eq!(
        calls(&memory),
        [1_u128, 2],
        "an inspection may have begun before them"
    );
    tokio::time::advance(REMEMBERED).await;
    memory.saw_all(&Sight::default());
    assert_eq!(calls(&memory), [1_u128], "it still runs");
    remember(&memory, version(1, 2, 0, over()));
    remember(&memory, version(3, 1, 0, Running));
    memory.forget(CallId(Uuid::from_u128(3)));
    tokio::time::advance(REMEMBERED).await;
    memory.saw_all(&Sight::default());
    let left = calls(&memory);
    assert!(
        left.is_empty(),
        "one has ended, and another gateway has written the other: {left:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_of_writes_has_bounds_in_number_and_in_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
    let (most, bytes) = MAX_REMEMBERED;
    for (state, why) in [
        (over(), "the oldest is forgotten"),
        (Running, "also of those that run"),
    ] {
        let mut record = version(0, 1, 0, state);
        for call in 0..=most as u128 {
            Arc::make_mut(&mut record.intent).call_id = CallId(Uuid::from_u128(call));
            remember(&memory, record.clone());
        }
        if matches!(record.state, Running) {
            tokio::time::advance(REMEMBERED).await;
            memory.saw_all(&Sight::default());
        }
        assert_eq!(calls(&memory).len(), most, "{why}");
    }

    let memory = Memory::open(&folder.path().join("other"), false).expect("a memory");
    // A quarter of the bytes for each call, half of them for its arguments.
    let text = Bytes::from(vec![b'a'; (bytes / 4 - 1_024) / 2]);
    for call in 1..=5 {
        let mut record = version(call, 1, 0, Succeeded(Content::Stored(text.clone())));
        Arc::make_mut(&mut record.intent).args = text.clone();
        remember(&memory, record);
    }
    assert_eq!(calls(&memory), [2_u128, 3, 4, 5]);
}

#[test]
fn after_a_loss_no_token_is_below_those_of_other_gateways() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
    memory.adopt(
        "d",
        Sight {
            tokens: [("other".to_owned(), 9)].into(),
            ..Sight::default()
        },
    );
    memory.saw_token(5);
    let tokens = [("other".to_owned(), 70)].into();
    memory.saw_all(&Sight {
        tokens,
        ..Sight::default()
    });
    assert_eq!(
        memory.token(),
        5,
        "without a loss each session has tokens of its own"
    );
    let tokens = [("third".to_owned(), 60)].into();
    memory.adopt(
        "e",
        Sight {
            tokens,
            ..Sight::default()
        },
    );
    assert_eq!(memory.token(), 70);
    memory.saw_brought(80);
    memory.adopt("f", Sight::default());
    assert_eq!(memory.token(), 80, "a caller has brought it");
}

#[test]
fn a_write_that_was_made_during_an_inspection_is_not_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(&folder.path().join("watermarks"), false).expect("a memory");
    let (lost, whole) = (Partition::FIRST, partition(1));
    memory.saw_writes(lost, 9);
    memory.saw_writes(whole, 4);
    let known = memory.all_writes();
    let mut sight = Sight::default();
    sight.writes.count(&memory.gateway(), lost, 7);
    sight.writes.count(&memory.gateway(), whole, 4);
    memory.saw_writes(whole, 5);
    memory.saw_loss(&sight, &known);
    assert_eq!(
        (memory.writes_left(lost), memory.writes_left(whole)),
        (7, 5)
    );
    memory.saw_all(&sight);
    assert_eq!(memory.writes_left(lost), 9);
}

#[test]
fn the_file_belongs_to_one_gateway_and_its_token_is_ahead() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("watermarks");
    let memory = Memory::open(&path, false).expect("a memory");
    assert!(matches!(
        Memory::open(&path, false),
        Err(WatermarksError::InUse(_))
    ));
    memory.adopt("e", Sight::default());
    memory.saw_writes(Partition::FIRST, 9);
    let mut all = Sight::default();
    all.writes.count("other", partition(1), 4);
    memory.saw_all(&all);
    assert!(memory.saw_token(1_000), "not covered yet");
    memory.save(Need::IfOld).expect("saved");
    assert!(!memory.saw_token(1_001), "covered");
    let gateway = memory.gateway();
    drop(memory);
    let again = Memory::open(&path, false).expect("a memory");
    assert_eq!(again.epoch(), "e");
    assert_eq!(again.all_writes().of(&gateway, Partition::FIRST), 9);
    assert_eq!(again.all_writes().of("other", partition(1)), 4);
    assert!(again.token() >= 1_001, "no token is given twice");
    let covered = again.covered_token();
    again.save(Need::IfOld).expect("saved");
    assert_eq!(
        again.covered_token(),
        covered,
        "a process that draws nothing does not move the token"
    );
    again.saw_token(covered + 1);
    again.save(Need::Token(covered + 1)).expect("saved");
    assert!(
        again.covered_token() > covered + 1,
        "the token in the file is ahead"
    );
    again.save(Need::Last).expect("saved");
    assert_eq!(
        again.covered_token(),
        covered + 1,
        "after a stop nothing is drawn"
    );
    fs::write(&path, "{").expect("damaged");
    assert!(matches!(
        Memory::open(&path, true),
        Err(WatermarksError::Damaged(..))
    ));
}

/// A gateway that was killed may have made more writes than are in the file.
#[test]
fn a_gateway_that_was_killed_counts_under_another_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("watermarks");
    let open = || Memory::open(&path, false).expect("a memory");
    let new = open();
    let (name, scripts) = (new.gateway(), new.script_name());
    drop(new);
    let memory = open();
    assert_eq!(memory.gateway(), name, "it has not used a store yet");
    memory.adopt("e", Sight::default());
    memory.saw_writes(Partition::FIRST, 9);
    memory.save(Need::Last).expect("saved");
    drop(memory);
    let memory = open();
    assert_eq!(
        (memory.gateway(), memory.writes(Partition::FIRST)),
        (name.clone(), 9),
        "it was stopped"
    );
    memory.save(Need::IfOld).expect("saved");
    drop(memory);
    let text = fs::read(&path).expect("a file");
    let visitor = Memory::open(&path, true).expect("a memory");
    assert_ne!(
        visitor.gateway(),
        name,
        "a visitor counts under a name of its own"
    );
    assert_eq!(visitor.writes(Partition::FIRST), 0);
    assert!(
        fs::read(&path).expect("a file") == text,
        "a visitor changes nothing"
    );
    let memory = open();
    assert_ne!(memory.gateway(), name, "it was killed");
    assert_eq!(memory.script_name(), scripts, "the scripts stay the same");
    assert_eq!(
        (
            memory.writes(Partition::FIRST),
            memory.all_writes().of(&name, Partition::FIRST)
        ),
        (0, 9)
    );
    memory.save(Need::Last).expect("saved");
    memory.saw_writes(Partition::FIRST, 1);
    memory.save(Need::IfOld).expect("saved");
    drop(memory);
    assert_eq!(
        open().writes(Partition::FIRST),
        0,
        "it wrote after the stop"
    );
}

#[test]
fn the_file_is_written_when_it_is_behind_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("watermarks");
    let memory = Memory::open(&path, false).expect("a memory");
    let writes = |need| {
        fs::remove_file(&path).ok();
        memory.save(need).expect("saved");
        path.exists()
    };
    assert!(!writes(Need::IfOld), "nothing has changed");
    memory.saw_writes(Partition::FIRST, 1);
    assert!(writes(Need::IfOld), "a write was counted");
    assert_eq!(memory.covered_token(), 0, "no token was drawn");
    memory.saw_token(1_000);
    assert!(
        writes(Need::IfOld),
        "the token is above the one in the file"
    );
    assert!(!writes(Need::IfOld), "nothing has changed");
    let half = memory.covered_token() - TOKENS_AHEAD_US / 2;
    memory.saw_token(half);
    assert!(!writes(Need::IfOld), "half of the reserve is left");
    memory.saw_token(half + 1);
    assert!(writes(Need::IfOld), "before a call has to wait for it");
    let covered = memory.covered_token();
    assert!(!memory.saw_token(covered));
    assert!(!writes(Need::Token(covered)));
    assert!(writes(Need::Token(covered + 1)));
}

/// Under one name two gateways would take each other's writes for their own, and scripts of the other for tried ones.
#[test]
fn every_gateway_has_names_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name, is_visitor| {
        let memory = Memory::open(&folder.path().join(name), is_visitor).expect("a memory");
        [memory.gateway(), memory.script_name()]
    };
    let [one, other, visitor] = [open("one", false), open("other", false), open("one", true)];
    for of in 0..2 {
        assert_ne!(one[of], other[of]);
        assert_ne!(one[of], visitor[of]);
    }
}

#[test]
fn a_file_that_cannot_be_read_does_not_count_as_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("watermarks");
    fs::create_dir(&path).expect("a folder in its place");
    assert!(matches!(
        Memory::open(&path, true),
        Err(WatermarksError::Io(..))
    ));
}

#[test]
fn a_file_that_others_may_read_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("watermarks");
    let memory = Memory::open(&path, false).expect("a memory");
    assert!(memory.exposed().is_none());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    assert!(memory.exposed().is_some());
}
