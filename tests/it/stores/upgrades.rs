//! Files of earlier releases are upgraded, or left as they were, whatever happens in between; and what operators do to a
//! file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use oncegate::store::sqlite::files_of;
use serde_json::Value;

use crate::stores::kept::{Kept, stored_folders};
use crate::support::binary::{Process, free_port, run, spawn_with_points, write_config};
use crate::support::gateway::one_tool;
use crate::support::{Answer, Tool, client};

/// The layout of a file with its log.
fn layout(path: &Path) -> i64 {
    let connection = rusqlite::Connection::open(path).expect("opened");
    let sql = "PRAGMA user_version";
    connection
        .query_row(sql, [], |row| row.get(0))
        .expect("a number")
}

/// The layout of the file in this folder, which stays as it is, with its log.
fn layout_beside(folder: &Path) -> i64 {
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["oncegate.db", "oncegate.db-wal"] {
        // There need not be a log.
        drop(fs::copy(folder.join(name), copy.path().join(name)));
    }
    layout(&copy.path().join("oncegate.db"))
}

fn store(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let all = [&["store"], arguments, &["--config", "oncegate.toml"]].concat();
    let output = run(folder, &all);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).expect("text");
    (output.status.success(), said)
}

#[tokio::test]
async fn a_kill_at_any_step_of_an_upgrade_loses_nothing_and_runs_nothing_again() {
    for point in [
        "upgrade_begins",
        "copy_written",
        "upgrade_copied",
        "upgrade_stepped",
        "upgrade_done",
    ] {
        for stored in stored_folders() {
            let tool = Tool::start().await;
            let mut kept = Kept::copy(&stored, &tool);
            kept.configure();
            let folder = kept.folder.path().to_owned();
            let mut killed = spawn_with_points(&folder, &format!("{point}=return"));
            let ended = killed.wait().expect("it ends");
            assert!(!ended.success(), "{point}");
            let file = folder.join("oncegate.db");
            // In one step, from what the old release opens to what this one does.
            let expected = if point == "upgrade_done" { 16 } else { 15 };
            assert_eq!(layout_beside(&folder), expected, "{point}");
            // Either the old release opens it, or this one has its copy.
            let backup = folder.join("oncegate.db.layout-15");
            let copied = ["upgrade_copied", "upgrade_stepped", "upgrade_done"].contains(&point);
            assert_eq!(backup.exists(), copied, "{point}");
            if copied {
                assert_eq!(layout(&backup), 15, "{point}");
            }
            kept.start().await;
            kept.keeps_every_promise().await;
            assert_eq!(tool.requests(), 0, "{point}");
            assert_eq!((layout(&file), layout(&backup)), (16, 15), "{point}");
            assert!(!folder.join("oncegate.db.layout-15.part").exists());
        }
    }
}

#[tokio::test]
async fn the_copy_before_an_upgrade_is_opened_in_the_place_of_the_file_without_a_loss() {
    for stored in stored_folders() {
        let tool = Tool::start().await;
        let mut kept = Kept::copy(&stored, &tool);
        kept.configure();
        let folder = kept.folder.path().to_owned();
        let (is_done, said) = store(&folder, &["upgrade"]);
        assert!(
            is_done && said.contains("upgraded from layout 15 to 16"),
            "{said}"
        );
        // Nothing was written since: the operator goes back, as docs/upgrade.md says.
        for ending in ["-wal", "-shm"] {
            drop(fs::remove_file(folder.join(format!("oncegate.db{ending}"))));
        }
        let copy = folder.join("oncegate.db.layout-15");
        fs::rename(copy, folder.join("oncegate.db")).expect("put back");
        kept.start().await;
        kept.keeps_every_promise().await;
        assert_eq!(tool.requests(), 0);
    }
}

#[tokio::test]
async fn inspect_says_what_a_file_of_an_earlier_release_is_and_what_an_upgrade_would_do() {
    let tool = Tool::start().await;
    for stored in stored_folders() {
        let kept = Kept::copy(&stored, &tool);
        kept.configure();
        let folder = kept.folder.path();
        let (is_done, said) = store(folder, &["inspect", "--dry-run"]);
        assert!(is_done, "{said}");
        for expected in [
            "layout:         15\n",
            "readable by:    0.2.0 and later\n",
            " succeeded",
            " unknown",
            "oldest promise: of 20",
            "makes layout 16 of it, which 0.3.0 and later opens",
            "tried on a copy: ",
        ] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        assert_eq!(layout(&folder.join("oncegate.db")), 15);
        let left = fs::read_dir(folder).expect("a folder");
        let left = left.map(|entry| entry.expect("an entry").file_name());
        let extra = left.filter(|name| {
            let name = name.to_string_lossy();
            name.contains("dry-run") || name.contains("layout-15")
        });
        assert_eq!(extra.count(), 0);
    }
}

#[tokio::test]
async fn a_backup_while_serving_has_every_call_and_only_its_user_may_read_it() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let call = client().post(gateway.url("/v1/tools/act/calls"));
    let made = Answer::to(call.body("{\"args\":{},\"idempotency_key\":\"k\"}")).await;
    assert_eq!(made.status, 200, "{}", made.text);
    let made: Value = serde_json::from_str(&made.text).expect("JSON");
    let (is_done, said) = store(folder.path(), &["backup", "copy.db"]);
    assert!(is_done, "{said}");
    let copy = folder.path().join("copy.db");
    let mode = fs::metadata(&copy).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (is_done, said) = store(folder.path(), &["backup", "oncegate.db"]);
    assert!(!is_done && said.contains("the database itself"), "{said}");

    // On another machine: the copy is older than nothing there, and has the call.
    let other = tempfile::tempdir().expect("a folder");
    fs::copy(&copy, other.path().join("oncegate.db")).expect("copied");
    let restored = Process::start(other.path(), free_port(), &one_tool(&tool, "")).await;
    let id = made["call_id"].as_str().expect("an id");
    let found = Answer::to(client().get(restored.url(&format!("/v1/calls/{id}")))).await;
    assert!(found.text.contains("\"succeeded\""), "{}", found.text);
    // A copy without watermarks is lost data until an operator accepts that.
    let ready = Answer::to(client().get(restored.url("/readyz"))).await;
    assert_eq!(ready.status, 503, "{}", ready.text);
}

#[tokio::test]
async fn compact_makes_a_file_shorter_and_loses_nothing() {
    let tool = Tool::start().await;
    let stored = stored_folders().remove(0);
    let mut kept = Kept::copy(&stored, &tool);
    kept.configure();
    let folder = kept.folder.path().to_owned();
    let file = folder.join("oncegate.db");
    let connection = rusqlite::Connection::open(&file).expect("opened");
    let fill = "CREATE TABLE t (a BLOB); INSERT INTO t VALUES (zeroblob(4000000)); DROP TABLE t;";
    connection.execute_batch(fill).expect("filled");
    drop(connection);
    let before = fs::metadata(&file).expect("there").len();
    let (is_done, said) = store(&folder, &["compact"]);
    assert!(is_done, "{said}");
    let after = fs::metadata(&file).expect("there").len();
    assert!(after + 3_000_000 < before, "{before} {after}: {said}");
    kept.start().await;
    kept.keeps_every_promise().await;
    assert_eq!(tool.requests(), 0);
    let (is_done, said) = store(&folder, &["compact"]);
    assert!(
        !is_done && said.contains("in use by another gateway"),
        "{said}"
    );
}

#[tokio::test]
async fn a_file_of_another_application_is_named_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    write_config(folder.path(), free_port(), "");
    let file = folder.path().join("oncegate.db");
    let (is_done, said) = store(folder.path(), &["inspect"]);
    assert!(!is_done && said.contains("does not exist"), "{said}");
    assert!(files_of(&file).iter().all(|file| !file.exists()));
    let connection = rusqlite::Connection::open(&file).expect("opened");
    connection
        .execute_batch("CREATE TABLE t (a)")
        .expect("made");
    drop(connection);
    let before = fs::read(&file).expect("read");
    for act in [
        &["inspect"][..],
        &["backup", "copy.db"],
        &["upgrade"],
        &["compact"],
    ] {
        let (is_done, said) = store(folder.path(), act);
        assert!(
            !is_done && said.contains("not one of oncegate"),
            "{act:?}: {said}"
        );
    }
    assert_eq!(fs::read(&file).expect("read"), before);
}
