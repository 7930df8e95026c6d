//! What the check finds, what it lets pass, and what is claimed meanwhile.

use std::fs;
use std::os::unix::fs::FileExt as _;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::trees::trees;
use super::*;
use crate::Sqlite;
use crate::tests::{arrival, at};
use oncegate_rules::record::InstanceId;
use oncegate_store::{Calls as _, Claimed, Error, Health as _, Ledger as _};

const ME: InstanceId = InstanceId(Uuid::from_u128(1));
const PAGE: u64 = 4_096;

/// A folder with a file of this many calls, which is closed and checked.
async fn filled(calls: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("oncegate.db");
    let store = open(&path).expect("a store");
    for n in 0..calls {
        claim(&store, &format!("k{n}")).await.expect("claimed");
    }
    settled(&store).await;
    store.close().await;
    (folder, path)
}

fn open(path: &Path) -> Result<Sqlite, OpenError> {
    Sqlite::open(path, ME, &CancellationToken::new())
}

async fn claim(store: &Sqlite, key: &str) -> oncegate_store::Result<Claimed> {
    store.claim(&arrival(key), &[]).await
}

/// Waits until the check has come to its end, or to damage.
async fn settled(store: &Sqlite) {
    let check = &store.gate.check;
    let patience = Instant::now() + Duration::from_secs(60);
    while lock(&check.state).stage != Stage::Done && !check.is_damaged() {
        assert!(Instant::now() < patience, "the check ends");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The pages of a tree that have this place in it: `leaf`, `internal`.
fn pages_of(path: &Path, tree: &str, place: &str) -> Vec<u32> {
    let connection = Connection::open(path).expect("opened");
    let sql = "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = ?2 ORDER BY path";
    let pages = crate::query::all(&connection, sql, [tree, place], |row| row.get(0));
    pages.expect("pages")
}

/// Overwrites bytes of a page.
fn overwrite(path: &Path, page: u32, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path);
    let place = u64::from(page - 1) * PAGE + at;
    file.expect("a file")
        .write_all_at(bytes, place)
        .expect("written");
}

fn page(path: &Path, page: u32) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    let place = u64::from(page - 1) * PAGE;
    fs::File::open(path)
        .and_then(|file| file.read_exact_at(&mut bytes, place))
        .expect("read");
    bytes
}

/// What a walk through the whole file says of it.
fn walked(path: &Path) -> Result<(), Ended> {
    let files = Arc::new(Files::lock(path).expect("locked"));
    let connection = Connection::open(path).expect("opened");
    connection.execute_batch("BEGIN").expect("begun");
    let pages = Pages::of(files, &connection)
        .expect("read")
        .expect("all in the file");
    let mut goes_on = || true;
    let mut walk = Walk::new(&pages, &mut goes_on);
    walk.free_pages()?;
    for tree in trees(&connection).map_err(|error| Ended::of(&error))? {
        walk.tree(&tree)?;
    }
    walk.nothing_is_lost()
}

fn quick(path: &Path) -> Result<(), String> {
    whole(&Connection::open(path).expect("opened"))
}

#[tokio::test]
async fn a_damaged_page_in_each_tree_closes_the_store() {
    let (_folder, path) = filled(60).await;
    let trees = {
        let connection = Connection::open(&path).expect("opened");
        let sql =
            "SELECT name FROM sqlite_schema WHERE rootpage > 0 UNION ALL SELECT 'sqlite_schema'";
        crate::query::all(&connection, sql, [], |row| row.get::<_, String>(0)).expect("trees")
    };
    assert!(trees.len() > 30, "{trees:?}");
    for tree in trees {
        let leaf = pages_of(&path, &tree, "leaf")[0];
        let was = page(&path, leaf);
        let head = if leaf == 1 { 100 } else { 0 };
        overwrite(&path, leaf, head, &[0xff; 16]);
        match open(&path) {
            Err(OpenError::Damaged(..)) => {}
            Err(other) => panic!("{tree}: {other}"),
            Ok(store) => {
                settled(&store).await;
                let reasons = store.readiness().await.reasons;
                assert!(
                    reasons.iter().any(|reason| reason.code == "damaged"),
                    "{tree}"
                );
                let refused = claim(&store, "new").await;
                assert!(
                    matches!(refused, Err(Error::Refused(_))),
                    "{tree}: {refused:?}"
                );
                assert_eq!(
                    store.prune(at(1_000_000_000), 9).await.expect("an answer"),
                    0
                );
                store.close().await;
            }
        }
        // The next start claims nothing before it has read the whole file.
        assert!(matches!(open(&path), Err(OpenError::Damaged(..))), "{tree}");
        overwrite(&path, leaf, 0, &was);
        let store = open(&path).unwrap_or_else(|error| panic!("{tree}: {error}"));
        settled(&store).await;
        assert!(
            store.readiness().await.reasons.is_empty(),
            "{tree}: it was put back"
        );
        store.close().await;
    }
}

/// SQLite's `quick_check` does not find it: nothing leads to a page twice.
#[tokio::test]
async fn a_page_of_keys_in_the_place_of_another_one_is_found_before_anything_is_claimed() {
    let (_folder, path) = filled(1_000).await;
    let leaves = pages_of(&path, "names", "leaf");
    let other = page(&path, leaves[0]);
    overwrite(&path, leaves[2], 0, &other);
    assert_eq!(quick(&path), Ok(()));
    assert!(matches!(open(&path), Err(OpenError::Damaged(..))));
}

#[tokio::test]
async fn a_page_that_has_lost_its_last_rows_is_found_before_anything_is_claimed() {
    let (_folder, path) = filled(1_000).await;
    let leaf = pages_of(&path, "names", "leaf")[1];
    let rows = page(&path, leaf)[4];
    overwrite(&path, leaf, 4, &[rows - 1]);
    let refused = open(&path);
    assert!(matches!(refused, Err(OpenError::Damaged(..))));
}

/// A page that is in use, and said to be free, would be overwritten.
#[tokio::test]
async fn a_page_that_is_not_free_is_found_before_anything_is_written() {
    let (_folder, path) = filled(200).await;
    {
        let connection = Connection::open(&path).expect("opened");
        let sql = "CREATE TABLE gone (a BLOB); INSERT INTO gone VALUES (zeroblob(60000)); DROP TABLE gone;
            PRAGMA wal_checkpoint(TRUNCATE);";
        connection.execute_batch(sql).expect("freed");
    }
    assert_eq!(walked(&path), Ok(()));
    let first = u32::from_be_bytes(page(&path, 1)[32..36].try_into().expect("four bytes"));
    let used = pages_of(&path, "lists", "leaf")[0];
    overwrite(&path, first, 8, &used.to_be_bytes());
    assert!(matches!(open(&path), Err(OpenError::Damaged(..))));
}

#[tokio::test]
async fn a_key_of_which_a_bit_has_changed_is_found() {
    let (_folder, path) = filled(100).await;
    let leaf = pages_of(&path, "names", "leaf")[0];
    let mut bytes = page(&path, leaf);
    // The last cell of the page: length, head of three bytes, key.
    let cell = usize::from(u16::from_be_bytes([bytes[8], bytes[9]]));
    bytes[cell + 4 + 12] ^= 1;
    overwrite(&path, leaf, 0, &bytes);
    assert_eq!(quick(&path), Ok(()));
    let store = open(&path).expect("it is not seen at the start");
    settled(&store).await;
    let why = store.gate.check.damage().expect("found");
    assert!(why.contains("not found by its key"), "{why}");
    assert!(claim(&store, "new").await.is_err());
    store.close().await;
}

/// A call may lose its key to a later one that is deleted before it.
#[tokio::test]
async fn a_call_that_another_one_took_the_key_of_is_not_missed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("oncegate.db");
    let store = open(&path).expect("a store");
    let Ok(Claimed::Yours(earlier)) = claim(&store, "k").await else {
        panic!("not claimed");
    };
    let later = store.claim(&arrival("k"), &[earlier]).await;
    let Ok(Claimed::Yours(later)) = later else {
        panic!("not claimed: {later:?}");
    };
    let connection = Connection::open(&path).expect("opened");
    for sql in [
        "DELETE FROM names WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)",
        "DELETE FROM calls WHERE seq = (SELECT seq FROM ids WHERE call_id = ?1)",
        "DELETE FROM ids WHERE call_id = ?1",
    ] {
        assert_eq!(
            connection.execute(sql, [later.intent.call_id.0]),
            Ok(1),
            "{sql}"
        );
    }
    let mut search = Search::begin(&connection).expect("a search");
    assert_eq!(search.step(&connection), Ok(false));
    connection
        .execute("DELETE FROM lists", [])
        .expect("deleted");
    let mut search = Search::begin(&connection).expect("a search");
    assert!(matches!(search.step(&connection), Err(Ended::Damaged(_))));
    store.close().await;
}

/// While the tree of the keys is not read, each claim reads its way through it.
#[tokio::test]
async fn a_key_is_not_free_where_its_page_is_damaged() {
    let (_folder, path) = filled(1_000).await;
    let leaf = pages_of(&path, "names", "leaf")[1];
    let rows = page(&path, leaf);
    let cell = usize::from(u16::from_be_bytes([rows[8], rows[9]]));
    let here = Lookup(rows[cell + 4..cell + 20].try_into().expect("a key"));
    let there = Lookup([0xff; 16]);
    let store = open(&path).expect("a store");
    settled(&store).await;
    let check = &store.gate.check;
    let files = store.files.upgrade().expect("open");
    let connection = Connection::open(&path).expect("opened");
    let pages = Pages::of(files, &connection)
        .expect("read")
        .expect("all in the file");
    let all = trees(&connection).expect("trees");
    let names = all.into_iter().find(|tree| tree.group() == Group::Names);
    check.enter(
        Stage::Proving,
        Some(Arc::new((pages, names.expect("a tree")))),
    );
    assert_eq!(check.must_be_free([here, there].iter()), Ok(()));
    overwrite(&path, leaf, 4, &[rows[4] - 1]);
    assert_eq!(check.must_be_free([there].iter()), Ok(()));
    assert!(!check.is_damaged());
    assert!(check.must_be_free([here].iter()).is_err());
    assert!(check.is_damaged());
    check.enter(Stage::Done, None);
    store.close().await;
}

/// A mistake of the walk must not close a whole file for good.
#[tokio::test]
async fn sqlite_has_the_last_word_on_pages() {
    let (_folder, path) = filled(10).await;
    let store = open(&path).expect("a store");
    settled(&store).await;
    let files = store.files.upgrade().expect("open");
    let connection = Connection::open(&path).expect("opened");
    let pages = Pages::of(files, &connection)
        .expect("read")
        .expect("all in the file");
    let mut work = Work {
        check: store.gate.check.clone(),
        connection,
        pages,
        trees: Vec::new(),
        was_damaged: false,
        opened: None,
    };
    let mistake = || Ended::Damaged("a mistake".to_owned());
    assert_eq!(work.ask_sqlite(mistake()), Ok(()));
    assert!(!store.gate.check.is_damaged());
    claim(&store, "new").await.expect("claimed");
    drop(work);
    store.close().await;
}

/// Files of every shape: long and short rows, many free bytes and pages, with and without maps of pages.
#[test]
fn the_walk_finds_no_damage_in_a_whole_file_and_all_that_sqlite_finds_in_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut found = 0;
    for (vacuum, seed) in [
        ("INCREMENTAL", 1),
        ("NONE", 2),
        ("INCREMENTAL", 3),
        ("NONE", 4),
    ] {
        let path: &Path = &folder.path().join(format!("{seed}.db"));
        let connection = Connection::open(path).expect("opened");
        let sql = format!(
            "PRAGMA auto_vacuum = {vacuum}; {}
             CREATE TABLE long (a BLOB, b TEXT); CREATE INDEX long_a ON long (a);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO long SELECT randomblob(abs(random()) % (i % 7 * i)), hex(randomblob(i % 40)) FROM n WHERE i % 7 > 0;
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO names SELECT randomblob(16), abs(random()) % (1 << (i % 60)) FROM n;
             DELETE FROM long WHERE rowid % 3 = {seed} % 3; DELETE FROM names WHERE seq % 5 = 1;
             UPDATE long SET b = hex(randomblob(rowid % 300)) WHERE rowid % 4 = 1;
             PRAGMA incremental_vacuum(20);",
            include_str!("../schema.sql")
        );
        connection.execute_batch(&sql).expect("filled");
        drop(connection);
        assert_eq!(quick(path), Ok(()));
        assert_eq!(walked(path), Ok(()), "{vacuum}");
        let pages = fs::metadata(path).expect("a file").len() / PAGE;
        for n in 0..80_u64 {
            let place = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (seed << 20);
            let (number, at) = (place % pages + 1, (place >> 24) % 40);
            let number = u32::try_from(number).expect("a page");
            if number == 1 {
                continue;
            }
            let was = page(path, number);
            overwrite(path, number, at, &[was[at as usize] ^ (1 << (place >> 61))]);
            let by_sqlite = quick(path).err();
            let is_of_pages = by_sqlite.as_ref().is_some_and(|why| {
                ["Tree", "Freelist", "Page", "***"]
                    .iter()
                    .any(|word| why.starts_with(word))
                    && !why.contains("ptr map")
                    && !why.contains("ptrmap")
            });
            if is_of_pages {
                found += 1;
                assert!(
                    walked(path).is_err(),
                    "page {number}, byte {at}: {by_sqlite:?}"
                );
            }
            overwrite(path, number, 0, &was);
        }
    }
    assert!(found > 25, "{found}");
}
