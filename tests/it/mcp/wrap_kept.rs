//! `oncegate wrap`: where calls and watermarks are kept, who else may write there, and lines that are not requests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::mcp::wrap::{Wrapped, call, home, is_replay, said};
use crate::support::binary::command;
use crate::support::program::Program;
use crate::support::redis::Redis;
use crate::support::until;

fn names(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).expect("a folder");
    let name = |file: std::io::Result<fs::DirEntry>| {
        let name = file.expect("an entry").file_name();
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = found.map(name).collect();
    names.sort();
    names
}

/// A call, once the store is ready.
async fn act_when_ready(wrapped: &mut Wrapped) -> Value {
    for _ in 0..200 {
        let told = wrapped.act("answer").await;
        let problem = &told["result"]["_meta"]["dev.oncegate/problem"]["type"];
        if problem != "/problems/store-unavailable" {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the store is never ready");
}

#[tokio::test]
async fn watermarks_of_a_redis_lie_below_the_users_data_folder_and_each_client_has_its_own() {
    let (home, program, redis) = (home(), Program::new(), Redis::strict().await);
    let url = redis.url();
    let options = ["--store", url.as_str(), "--name", "shop"];
    let mut first = Wrapped::start_with(home.path(), &program, &options).await;
    let mut second = Wrapped::start_with(home.path(), &program, &options).await;
    let told = act_when_ready(&mut first).await;
    assert!(!is_replay(&told), "{told}");
    let told = act_when_ready(&mut second).await;
    assert!(is_replay(&told), "{told}");
    assert_eq!(program.effects(), 1);
    let kept = home.path().join(".local/share/oncegate/wrap");
    let marks = || {
        let mut names = names(&kept);
        names.retain(|name| name.ends_with(".watermarks"));
        names
    };
    let of_both = marks();
    assert_eq!(of_both.len(), 2, "{of_both:?}");
    assert_eq!(names(home.path()), [".local"], "nothing lies in its folder");
    first.end().await;
    second.end().await;
    // The next one takes a file of an earlier one: what that has written is still known.
    let next = Wrapped::start_with(home.path(), &program, &options).await;
    assert_eq!(marks(), of_both);
    next.end().await;
}

#[tokio::test]
async fn a_clients_response_is_no_request_and_ends_none() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.send(99, "tools/call", call("late")).await;
    until("it is executed", async || program.effects() == 1).await;
    let responses = [
        json!({ "id": 99, "result": {} }),
        json!({ "jsonrpc": "2.0", "id": 99, "result": {} }),
        json!({ "jsonrpc": "2.0", "id": 99, "result": null }),
        json!({ "jsonrpc": "2.0", "id": 99, "error": { "code": -32601, "message": "unknown" } }),
        json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "bad" } }),
        json!({ "jsonrpc": "2.0", "id": "other", "result": {} }),
    ];
    for response in responses {
        wrapped.write(format!("{response}\n").as_bytes()).await;
    }
    let told = wrapped.read().await;
    assert_eq!(told["id"], 99, "{told}");
    assert_eq!(said(&told), "late");
    let next = wrapped.ask(100, "ping", json!({})).await;
    assert_eq!(next["id"], 100, "nothing was said in between: {next}");
    wrapped.end().await;
}

/// Otherwise another user decides which calls count as executed.
#[tokio::test]
async fn a_folder_or_a_file_that_others_may_write_is_refused() {
    let (home, program) = (home(), Program::new());
    let wrapped = Wrapped::start(home.path(), &program).await;
    let file = wrapped.store.clone();
    wrapped.end().await;
    let folder = home.path().join(".local/share/oncegate/wrap");
    let refused = async || {
        let output = crate::mcp::wrap::wrap(home.path(), &program, &[])
            .output()
            .await;
        let output = output.expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for path in [folder.as_path(), Path::new(&file)] {
        let before = fs::metadata(path).expect("there").permissions();
        for mode in [0o720, 0o702] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
            let said = refused().await;
            assert!(said.contains("other users may write"), "{said}");
            assert!(said.contains(&*path.to_string_lossy()), "{said}");
        }
        fs::set_permissions(path, before).expect("set");
    }
    Wrapped::start(home.path(), &program).await.end().await;
}

/// It may have calls that this release cannot read. Another file would forget them, and execute them again.
#[tokio::test]
async fn a_file_of_a_newer_release_is_refused_and_left_as_it_is() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.act("answer").await;
    let file = wrapped.store.clone();
    wrapped.end().await;
    let database = || Connection::open(&file).expect("a file");
    let layout = database().pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0));
    let layout = layout.expect("a layout");
    let set = |layout: i64| database().pragma_update(None, "user_version", layout);
    set(1_000).expect("another layout");
    let before = fs::read(&file).expect("a file");
    for options in [&[][..], &["--store", file.as_str()]] {
        let mut refused = crate::mcp::wrap::wrap(home.path(), &program, options);
        let refused = refused.output().await.expect("it runs");
        assert_eq!(refused.status.code(), Some(1));
        assert!(refused.stdout.is_empty());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            said.contains(&file) && said.contains("layout 1000"),
            "{said}"
        );
    }
    assert!(
        fs::read(&file).expect("a file") == before,
        "it is as it was"
    );
    set(layout).expect("its own layout");
    let mut back = Wrapped::start(home.path(), &program).await;
    assert_eq!(back.store, file);
    assert!(is_replay(&back.act("answer").await));
    assert_eq!(program.effects(), 1);
    back.end().await;
}

#[test]
fn without_a_home_the_file_has_to_be_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrap = |options: &[&str]| {
        let mut wrap = command(folder.path(), &["wrap"]);
        wrap.args(options).args(["--", "cat"]);
        wrap.env_remove("HOME").env_remove("XDG_DATA_HOME");
        wrap.stdin(Stdio::null()).output().expect("it runs")
    };
    for options in [
        &[][..],
        &["--store", "redis://127.0.0.1:1", "--name", "shop"],
    ] {
        let refused = wrap(options);
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("--store names a file"), "{said}");
        assert!(refused.stdout.is_empty());
    }
    let served = wrap(&["--store", "calls.db"]);
    assert!(served.status.success(), "{served:?}");
    assert!(folder.path().join("calls.db").exists());
    assert!(served.stdout.is_empty());
}
