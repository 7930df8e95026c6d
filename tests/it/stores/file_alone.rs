//! A SQLite file without the files beside it, as on a volume that holds this one file only.

use std::fs;
use std::path::Path;
use std::process::Command;

use tokio::time::timeout;

use crate::stores::file_losses::{Serving, remove};
use crate::support::binary::{accept_loss_command, free_port, write_config};
use crate::support::gateway::one_tool;
use crate::support::{PATIENCE, Tool};

const WATERMARKS: &str = "oncegate.db.watermarks";
const BESIDE: [&str; 5] = [
    "oncegate.db-wal",
    "oncegate.db-shm",
    "oncegate.db.lock",
    "oncegate.db.reserve",
    WATERMARKS,
];

/// Kills a gateway, loses what `lose` loses, and expects that nothing runs until an operator accepts that.
async fn stays_closed(mut serving: Serving, tool: &Tool, lose: &[&str]) {
    let effects = tool.effects();
    serving.kill();
    remove(&serving, lose);
    for _ in 0..2 {
        serving.again().await;
        assert!(
            serving.is_closed().await,
            "without {lose:?}: {}",
            serving.get("/readyz").await.text
        );
        let again = serving.call(7).await;
        assert!(
            again.status == 503 || again.at("/replayed") == true,
            "{}",
            again.text
        );
        serving.kill();
        assert_eq!(tool.effects(), effects, "without {lose:?}");
    }
    let accepted = accept_loss_command(serving.folder.path(), "only the file was stored");
    assert!(accepted.status.success());
    serving.again().await;
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.call(8).await.expect_ok();
    assert_eq!(tool.effects(), effects + 1);
}

#[tokio::test]
async fn a_file_that_was_served_is_known_as_such_by_itself() {
    let tool = Tool::start().await;
    for lose in [&BESIDE[..], &BESIDE[..1], &BESIDE[4..]] {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("oncegate.db"), "").expect("made empty, as for a mount");
        let serving = Serving::start_in(folder, &tool).await;
        serving.call(7).await.expect_ok();
        stays_closed(serving, &tool, lose).await;
    }
}

/// The first start after a loss must not make watermarks that let the second one pass.
#[tokio::test]
async fn a_file_that_was_served_and_never_called_is_no_new_one_either() {
    let tool = Tool::start().await;
    let serving = Serving::start(&tool).await;
    stays_closed(serving, &tool, &BESIDE).await;
}

#[tokio::test]
async fn an_empty_file_whose_log_was_never_acknowledged_is_a_new_one() {
    let tool = Tool::start().await;
    let mut serving = Serving::start(&tool).await;
    serving.kill();
    remove(&serving, &BESIDE);
    fs::write(serving.path("oncegate.db"), "").expect("emptied");
    serving.again().await;
    assert_eq!(serving.get("/readyz").await.status, 200);
    serving.call(7).await.expect_ok();
}

/// What an earlier release left: tables in the file, and no mark but these.
#[tokio::test]
async fn a_file_with_tables_and_no_commit_needs_its_watermarks() {
    let tool = Tool::start().await;
    let mut serving = Serving::start(&tool).await;
    serving.call(7).await.expect_ok();
    serving.stop().await;
    let file = rusqlite::Connection::open(serving.path("oncegate.db")).expect("opened");
    let sql = "UPDATE ledger SET commits = 0, in_file = 0; DELETE FROM calls;";
    file.execute_batch(sql).expect("written");
    drop(file);
    remove(&serving, &BESIDE);
    serving.again().await;
    assert!(serving.is_closed().await);
}

/// Whether this machine lets the tests mount. Some containers do not; there the unit tests of the rule have to do.
fn may_mount() -> bool {
    let mut unshare = Command::new("unshare");
    let done = unshare
        .args(["--user", "--map-root-user", "--mount", "true"])
        .output();
    done.is_ok_and(|done| done.status.success())
}

/// What a gateway says that is started after `mounts`, in a namespace of its own, where each user may mount.
async fn refused_after(mounts: &str, folder: &Path, tool: &Tool) -> String {
    write_config(folder, free_port(), &one_tool(tool, ""));
    let script = format!("{mounts} && cd . && exec \"$0\" serve --config oncegate.toml");
    let mut unshare = tokio::process::Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    unshare
        .arg(env!("CARGO_BIN_EXE_oncegate"))
        .current_dir(folder)
        .kill_on_drop(true);
    // One that is not refused serves, and would not end.
    let refused = timeout(PATIENCE, unshare.output()).await;
    let refused = refused.expect("it is refused").expect("unshare is there");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    said
}

#[tokio::test]
async fn a_file_that_is_a_mount_point_of_its_own_is_refused() {
    if !may_mount() {
        return;
    }
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    for name in ["kept.db", "oncegate.db"] {
        fs::write(folder.path().join(name), "").expect("made");
    }
    let said = refused_after("mount --bind kept.db oncegate.db", folder.path(), &tool).await;
    assert!(said.contains("mount the folder"), "{said}");
    let kept = fs::metadata(folder.path().join("kept.db")).expect("there");
    assert_eq!(kept.len(), 0);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_refused_with_a_sentence() {
    if !may_mount() {
        return;
    }
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    for name in ["oncegate.db", "oncegate.db.lock"] {
        fs::write(folder.path().join(name), "").expect("made");
    }
    let mounts = "mount --bind . . && mount -o remount,bind,ro . && cd \"$PWD\"";
    let said = refused_after(mounts, folder.path(), &tool).await;
    assert!(said.contains("cannot be written"), "{said}");
}
