//! The files that a gateway makes. Only its user may read them. It neither follows links nor destroys other files in their
//! place.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;

use crate::support::binary::{Process, free_port, log, run, write_config};
use crate::support::gateway::{one_tool, store_is_free};
use crate::support::redis::Redis;
use crate::support::{Answer, Gateway, Tool, client, until};

const ENDINGS: [&str; 6] = ["", "-wal", "-shm", ".lock", ".reserve", ".watermarks"];

fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o777
}

/// Starts a gateway whose umask lets all users read its files.
async fn start_carelessly(folder: &Path, config: &str, environment: &[(&str, &str)]) -> Process {
    let gateway = Process::start_after("umask 000", folder, free_port(), config, environment).await;
    let call = client()
        .post(gateway.url("/v1/tools/act/calls"))
        .body(json!({ "args": {} }).to_string());
    until("a call is stored", async || {
        let sent = call
            .try_clone()
            .expect("a request")
            .send()
            .await
            .expect("an answer");
        Answer::read(sent).await.status == 200
    })
    .await;
    gateway
}

#[tokio::test]
async fn every_file_is_made_for_its_user_alone() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let _gateway = start_carelessly(folder.path(), &one_tool(&tool, ""), &[]).await;
    for ending in ENDINGS {
        assert_eq!(
            mode(&folder.path().join(format!("oncegate.db{ending}"))),
            0o600,
            "{ending}"
        );
    }
}

#[tokio::test]
async fn every_file_of_a_gateway_on_redis_is_made_for_its_user_alone() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let redis = Redis::strict().await;
    let url = redis.url();
    let store = [
        ("ONCEGATE_STORE__URL", url.as_str()),
        ("ONCEGATE_STORE__WATERMARKS", "marks"),
    ];
    let _gateway = start_carelessly(folder.path(), &one_tool(&tool, ""), &store).await;
    for name in ["marks", "marks.lock"] {
        assert_eq!(mode(&folder.path().join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn files_that_others_may_read_are_warned_about() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    assert_eq!(gateway.get("/readyz").await.at("/warnings"), json!([]));
    let folder = gateway.stop().await;
    let path = folder.path().join("oncegate.db");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let ready = async || {
        let ready = client()
            .get(gateway.url("/readyz"))
            .send()
            .await
            .expect("an answer");
        Answer::read(ready).await.expect_ok()
    };
    assert_eq!(ready().await.at("/warnings"), json!(["files_exposed"]));
    let logged = fs::read_to_string(log(folder.path())).expect("a log");
    let said = logged
        .lines()
        .find(|line| line.contains("other users may read or write"))
        .expect("a warning");
    assert!(
        said.contains("oncegate.db,") && !said.contains("watermarks"),
        "{said}"
    );
    for ending in ["", "-wal", "-shm"] {
        let path = folder.path().join(format!("oncegate.db{ending}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
    }
    until("it is mended", async || {
        ready().await.at("/warnings") == json!([])
    })
    .await;
    gateway.kill();
}

const PRECIOUS: &str = "a file of another program";

/// Otherwise a user who may write into the folder could make the gateway overwrite other files.
#[tokio::test]
async fn links_in_the_place_of_files_are_not_followed_and_nothing_is_truncated() {
    let tool = Tool::start().await;
    for ending in &ENDINGS[1..] {
        let folder = tempfile::tempdir().expect("a folder");
        let (victim, there) = (
            folder.path().join("victim"),
            folder.path().join(format!("oncegate.db{ending}")),
        );
        fs::write(&victim, PRECIOUS).expect("written");
        write_config(folder.path(), free_port(), &one_tool(&tool, ""));
        symlink(&victim, &there).expect("a link");
        let refused = run(folder.path(), &["serve", "--config", "oncegate.toml"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains("symbolic link"),
            "{ending}: {said}"
        );
        assert!(
            said.contains(&format!("oncegate.db{ending}")),
            "{ending}: {said}"
        );
        assert_eq!(
            fs::read_to_string(&victim).expect("read"),
            PRECIOUS,
            "{ending}"
        );
        assert!(
            fs::symlink_metadata(&there).expect("there").is_symlink(),
            "{ending}"
        );
    }
}

#[tokio::test]
async fn a_reserve_that_is_another_files_second_name_loses_only_that_name() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let (victim, reserve) = (
        folder.path().join("victim"),
        folder.path().join("oncegate.db.reserve"),
    );
    fs::write(&victim, PRECIOUS).expect("written");
    fs::hard_link(&victim, &reserve).expect("a second name");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    assert_eq!(fs::read_to_string(&victim).expect("read"), PRECIOUS);
    assert_eq!(fs::metadata(&reserve).expect("there").len(), 16 << 20);
    gateway.kill();
    store_is_free(folder.path()).await;
}

#[tokio::test]
async fn links_in_the_place_of_watermarks_are_not_followed_on_redis() {
    let (tool, redis) = (Tool::start().await, Redis::strict().await);
    for name in ["watermarks", "watermarks.lock", "watermarks.new"] {
        let folder = tempfile::tempdir().expect("a folder");
        let victim = folder.path().join("victim");
        fs::write(&victim, PRECIOUS).expect("written");
        symlink(&victim, folder.path().join(name)).expect("a link");
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\nwatermarks = \"watermarks\"\n{}",
            redis.url(),
            one_tool(&tool, "")
        );
        fs::write(folder.path().join("oncegate.toml"), config).expect("written");
        let refused = run(folder.path(), &["serve", "--config", "oncegate.toml"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains("symbolic link"),
            "{name}: {said}"
        );
        assert_eq!(
            fs::read_to_string(&victim).expect("read"),
            PRECIOUS,
            "{name}"
        );
    }
}
