//! Watermarks, and the losses that they show.

use super::*;

fn counters(epoch: u128, commits: u64) -> Counters {
    Counters {
        epoch: Uuid::from_u128(epoch),
        commits,
        token: 7,
    }
}

const SERVED: Alone = Alone::Commits {
    epoch: Uuid::nil(),
    commits: 0,
};

/// What is missing from a database that had nothing in its file before its log was read.
fn missing(found: Found, data: Counters) -> Option<u64> {
    compare(found, data, Alone::Nothing).map(|lost| lost.commits)
}

#[test]
fn watermarks_ahead_of_the_database_are_a_loss_and_those_behind_are_none() {
    for (beside, lost) in [(4, None), (5, None), (6, Some(1)), (9, Some(4))] {
        assert_eq!(
            missing(Found::Counters(counters(1, beside)), counters(1, 5)),
            lost,
            "{beside}"
        );
    }
}

#[test]
fn another_database_or_one_without_watermarks_has_lost_data_unless_nothing_was_ever_written() {
    assert_eq!(
        missing(Found::Counters(counters(1, 5)), counters(2, 9)),
        Some(5)
    );
    assert_eq!(
        missing(Found::Counters(counters(1, 5)), counters(2, 0)),
        Some(5),
        "it was deleted"
    );
    assert_eq!(
        missing(Found::Counters(counters(1, 0)), counters(2, 5)),
        Some(0),
        "it was exchanged"
    );
    assert_eq!(
        missing(Found::Counters(counters(1, 0)), counters(2, 0)),
        None
    );
    assert_eq!(
        missing(parse_file(b""), counters(1, 0)),
        None,
        "it was never written"
    );
    assert_eq!(missing(parse_file(b""), counters(1, 1)), Some(0));
    for commits in [0, 1] {
        assert_eq!(
            missing(parse_file(b"damaged"), counters(1, commits)),
            Some(0),
            "{commits}"
        );
    }
}

#[test]
fn a_database_with_tables_in_its_file_has_lost_data_without_watermarks_of_its_epoch() {
    for alone in [SERVED, Alone::Unreadable] {
        let missing = |found, data| compare(found, data, alone).map(|lost| lost.commits);
        assert_eq!(missing(parse_file(b""), counters(1, 0)), Some(0));
        assert_eq!(
            missing(Found::Counters(counters(1, 0)), counters(1, 0)),
            None
        );
        assert_eq!(
            missing(Found::Counters(counters(1, 0)), counters(2, 0)),
            Some(0)
        );
        assert_eq!(
            missing(Found::Counters(counters(1, 3)), counters(1, 0)),
            Some(3)
        );
    }
}

#[test]
fn watermarks_are_one_line_of_one_length_and_a_damaged_one_is_none() {
    for counters in [
        counters(0, 0),
        Counters {
            epoch: Uuid::max(),
            commits: u64::MAX,
            token: u64::MAX,
        },
    ] {
        let line = counters.line();
        assert_eq!(
            (line.len(), Counters::parse(line.as_bytes())),
            (LINE, Some(counters))
        );
        for at in 0..line.len() {
            let mut damaged = line.clone().into_bytes();
            damaged[at] ^= 1;
            assert_eq!(Counters::parse(&damaged), None, "at {at}");
        }
        assert_eq!(Counters::parse(&line.as_bytes()[..111]), None);
    }
}

#[test]
fn a_copy_of_the_secret_is_read_as_it_was_written_or_not_at_all() {
    let line = secret_line(b"sealed");
    let read = |line: &[u8]| parse_secret(line).map_err(drop);
    let copy = Bytes::from_static(b"sealed");
    assert_eq!(read(line.as_bytes()), Ok(Some(copy)));
    for at in 0..line.len() {
        let mut damaged = line.clone().into_bytes();
        damaged[at] ^= 1;
        assert_eq!(read(&damaged), Err(()), "at {at}");
    }
    assert_eq!(read(secret_line(b"").as_bytes()), Ok(None));
}

fn database() -> Connection {
    let connection = Connection::open_in_memory().expect("a database");
    connection
        .execute_batch(include_str!("../../schema.sql"))
        .expect("tables");
    connection
}

#[test]
fn the_file_has_the_newest_marks_after_each_start_and_each_end() {
    let (folder, connection) = (tempfile::tempdir().expect("a folder"), database());
    let path = folder.path().join("oncegate.db");
    let is_newest = || {
        let text = std::fs::read(beside(&path, ".watermarks")).expect("a file");
        parse_file(&text) == Found::Counters(Counters::of(&connection).expect("marks"))
    };
    drop(Watermarks::open(&path, &connection, Alone::Nothing).expect("opened"));
    assert!(is_newest(), "it is new");
    Counters::count(&connection, None).expect("counted");
    assert!(!is_newest());
    let watermarks = Watermarks::open(&path, &connection, SERVED).expect("opened");
    assert!(is_newest(), "it was behind");
    Counters::count(&connection, None).expect("counted");
    watermarks.end(&connection);
    assert!(is_newest(), "it has ended");
}

#[test]
fn a_copy_of_the_secret_is_kept_in_the_file() {
    let (folder, connection) = (tempfile::tempdir().expect("a folder"), database());
    let path = folder.path().join("oncegate.db");
    let open = || Watermarks::open(&path, &connection, Alone::Nothing).expect("opened");
    let secret = Bytes::from_static(b"sealed");
    assert_eq!(open().secret().map_err(drop), Ok(None));
    open().remember_secret(&secret);
    assert_eq!(open().secret().map_err(drop), Ok(Some(secret)));
}

#[test]
fn a_link_in_its_place_is_not_taken_for_a_missing_file() {
    let (folder, connection) = (tempfile::tempdir().expect("a folder"), database());
    let path = folder.path().join("oncegate.db");
    let nothing = folder.path().join("nothing");
    std::os::unix::fs::symlink(nothing, beside(&path, ".watermarks")).expect("a link");
    assert!(Watermarks::open(&path, &connection, Alone::Nothing).is_err());
}
