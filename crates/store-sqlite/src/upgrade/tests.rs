use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::open::Opening;
use crate::query::{all, pragma};
use crate::{Sqlite, upgrade_file};
use oncegate_rules::record::InstanceId;

/// A copy of a file that 0.2.0 has left.
fn of_0_2_0() -> (TempDir, PathBuf) {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/stores/0.2.0/stopped");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["oncegate.db", "oncegate.db.watermarks"] {
        fs::copy(stored.join(name), folder.path().join(name)).expect("a copy");
    }
    let path = folder.path().join("oncegate.db");
    (folder, path)
}

fn layout(path: &Path) -> Option<i64> {
    let connection = Connection::open(path).expect("opened");
    pragma(&connection, "user_version").expect("a number")
}

/// The statements of all tables and indexes, without spaces and comments.
fn schema(connection: &Connection) -> Vec<String> {
    let sql = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
    let statements = all(connection, sql, [], |row| row.get::<_, String>(0)).expect("a schema");
    let code = |statement: String| {
        let lines = statement.lines().map(|line| line.split("--").next());
        let words = lines.flatten().flat_map(str::split_whitespace);
        words.collect::<String>()
    };
    statements.into_iter().map(code).collect()
}

#[test]
fn the_steps_make_of_a_file_of_0_2_0_what_a_new_file_is() {
    let (_folder, path) = of_0_2_0();
    let mut connection = Connection::open(path).expect("opened");
    step(&mut connection, 15).expect("stepped");
    let new = Connection::open_in_memory().expect("opened");
    new.execute_batch(include_str!("../schema.sql"))
        .expect("made");
    assert_eq!(schema(&connection), schema(&new));
    assert_eq!(STEPS.last().map(|step| step.to), Some(LAYOUT));
}

#[test]
fn before_the_upgrade_there_is_a_copy_that_only_its_user_may_read() {
    let (_folder, path) = of_0_2_0();
    let upgraded = upgrade_file(&path, &Opening::default()).expect("upgraded");
    let backup = beside(&path, ".layout-15");
    let expected = Upgraded {
        from: 15,
        to: LAYOUT,
        backup: Some(backup.clone()),
    };
    assert_eq!(upgraded, Some(expected));
    assert_eq!((layout(&path), layout(&backup)), (Some(LAYOUT), Some(15)));
    let mode = fs::metadata(&backup).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = upgrade_file(&path, &Opening::default()).expect("nothing to do");
    assert_eq!(again, None);
}

#[test]
fn without_a_backup_nothing_is_upgraded_and_the_file_is_as_it_was() {
    let (folder, path) = of_0_2_0();
    let before = fs::read(&path).expect("read");
    let opening = Opening {
        backup: Backup::At(folder.path().join("missing/copy.db")),
    };
    let me = InstanceId(Uuid::from_u128(1));
    let refused = Sqlite::open_with(&path, me, &CancellationToken::new(), &opening).err();
    assert!(
        matches!(refused, Some(OpenError::NoBackup(..))),
        "{refused:?}"
    );
    assert_eq!(fs::read(&path).expect("read"), before);
    assert_eq!(layout(&path), Some(15));
}

/// What was there under the name of the copy stays until the new one is complete.
#[test]
fn a_copy_that_breaks_off_leaves_nothing_behind() {
    let (folder, path) = of_0_2_0();
    let connection = Connection::open(&path).expect("opened");
    let to = folder.path().join("copy.db");
    fs::write(&to, "an older copy").expect("written");
    fs::create_dir(beside(&to, ".part")).expect("in the way");
    copy::write(&connection, &to).expect_err("refused");
    assert_eq!(fs::read(&to).expect("read"), b"an older copy");
    fs::remove_dir(beside(&to, ".part")).expect("out of the way");
    copy::write(&connection, &to).expect("copied");
    assert!(!beside(&to, ".part").exists());
    assert_eq!(layout(&to), Some(15));
}

#[test]
fn a_full_disk_during_the_steps_leaves_the_old_layout() {
    let (_folder, path) = of_0_2_0();
    let mut connection = Connection::open(&path).expect("opened");
    let pages: i64 = pragma(&connection, "page_count")
        .expect("a number")
        .expect("a number");
    let free: i64 = pragma(&connection, "freelist_count")
        .expect("a number")
        .expect("a number");
    let full = format!("PRAGMA max_page_count = {pages}");
    connection.query_row(&full, [], |_| Ok(())).expect("set");
    let stepped = step(&mut connection, 15);
    assert_eq!((free, stepped.is_err()), (0, true), "it needs a page");
    drop(connection);
    assert_eq!(layout(&path), Some(15));
    upgrade_file(&path, &Opening::default()).expect("there is room again");
}

#[test]
fn a_file_that_is_cut_off_is_neither_copied_nor_upgraded() {
    let (_folder, path) = of_0_2_0();
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[..whole.len() / 2]).expect("cut off");
    let refused = upgrade_file(&path, &Opening::default());
    assert!(
        matches!(refused, Err(OpenError::Damaged(..))),
        "{refused:?}"
    );
    assert!(!beside(&path, ".layout-15").exists());
    assert_eq!(fs::read(&path).expect("read"), &whole[..whole.len() / 2]);
}
