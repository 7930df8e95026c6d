//! A file that is checked for damage while it is served.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::json;
use tokio::time::Instant;

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client, until};

/// Pauses the check at this point, for longer than a test takes.
fn paused(point: &str) -> (&'static str, String) {
    ("FAILPOINTS", format!("{point}=sleep(120000)"))
}

async fn start(folder: &Path, tool: &Tool, points: Option<(&str, String)>) -> Process {
    let points: Vec<_> = points.iter().map(|(name, what)| (*name, &**what)).collect();
    Process::start_in(folder, free_port(), &one_tool(tool, ""), &points).await
}

async fn send(gateway: &Process, key: &str) -> Answer {
    let body = json!({ "args": { "long": "x".repeat(500) }, "idempotency_key": key }).to_string();
    let call = client().post(gateway.url("/v1/tools/act/calls")).body(body);
    Answer::to(call).await
}

async fn get(gateway: &Process, path: &str) -> Answer {
    Answer::to(client().get(gateway.url(path))).await
}

async fn reasons(gateway: &Process) -> (u16, String) {
    let ready = get(gateway, "/readyz").await;
    (ready.status, ready.at("/reasons").to_string())
}

/// A file of the calls `k0` to `k79`, after a clean stop.
async fn filled(folder: &Path, tool: &Tool) {
    let gateway = start(folder, tool, None).await;
    for n in 0..80 {
        send(&gateway, &format!("k{n}")).await.expect_ok();
    }
    gateway.signal("TERM");
    assert!(gateway.ended().await, "a good end");
}

/// Damages the page with the oldest rows of a table.
fn damage(folder: &Path, table: &str) {
    let file = folder.join("oncegate.db");
    let connection = rusqlite::Connection::open(&file).expect("opened");
    let sql =
        "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf' ORDER BY path LIMIT 1";
    let page: i64 = connection
        .query_row(sql, [table], |row| row.get(0))
        .expect("a page");
    drop(connection);
    let file = fs::OpenOptions::new().write(true).open(file);
    let at = (page.unsigned_abs() - 1) * 4_096;
    file.expect("a file")
        .write_all_at(&[0xff; 16], at)
        .expect("damaged");
}

#[tokio::test]
async fn damage_that_is_found_beside_serving_closes_the_store_and_nothing_runs_afterwards() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    filled(folder.path(), &tool).await;
    damage(folder.path(), "intents");
    let points = ("FAILPOINTS", "check_rest=sleep(3000)".to_owned());
    let gateway = start(folder.path(), &tool, Some(points)).await;
    send(&gateway, "before").await.expect_ok();
    assert_eq!(
        tool.effects(),
        81,
        "it is served before the check has come to the damage"
    );
    until("it is found", async || reasons(&gateway).await.0 == 503).await;
    assert_eq!(reasons(&gateway).await, (503, r#"["damaged"]"#.into()));
    for n in 0..5 {
        let refused = send(&gateway, &format!("after{n}")).await;
        refused.expect_problem("store-unavailable");
    }
    let again = send(&gateway, "before").await.expect_ok();
    assert_eq!(again.at("/replayed"), true);
    assert_eq!(tool.requests(), 81);
    gateway.kill();
    // From now on no start serves from the file.
    let start = crate::support::binary::run(folder.path(), &["serve", "--config", "oncegate.toml"]);
    let said = String::from_utf8_lossy(&start.stderr).into_owned();
    assert!(
        !start.status.success() && said.contains("is damaged"),
        "{said}"
    );
}

/// Otherwise a load balancer or a supervisor takes it for dead, and nobody sees why.
#[tokio::test]
async fn a_start_over_a_file_that_takes_long_to_check_answers_at_once_and_says_what_it_waits_for() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    filled(folder.path(), &tool).await;
    let began = Instant::now();
    let points = ("FAILPOINTS", "check_begins=sleep(5000)".to_owned());
    let gateway = start(folder.path(), &tool, Some(points)).await;
    let health = client().get(gateway.url("/healthz")).send().await;
    assert_eq!(health.expect("an answer").status(), 200);
    assert_eq!(reasons(&gateway).await, (503, r#"["checking"]"#.into()));
    assert!(began.elapsed().as_secs() < 5, "the check has not begun");
    assert_eq!(send(&gateway, "k7").await.expect_ok().at("/replayed"), true);
    send(&gateway, "new")
        .await
        .expect_problem("store-unavailable");
    assert_eq!(tool.requests(), 80);
    until("it is ready", async || reasons(&gateway).await.0 == 200).await;
    send(&gateway, "new").await.expect_ok();
    assert_eq!(tool.effects(), 81);
    gateway.kill();
}

#[tokio::test]
async fn calls_are_claimed_while_the_lookup_keys_are_still_read_and_no_call_runs_twice() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    filled(folder.path(), &tool).await;
    let gateway = start(folder.path(), &tool, Some(paused("check_names"))).await;
    assert_eq!(reasons(&gateway).await.0, 200);
    for n in 0..80 {
        let again = send(&gateway, &format!("k{n}")).await.expect_ok();
        assert_eq!(again.at("/replayed"), true);
    }
    for n in 0..80 {
        send(&gateway, &format!("new{n}")).await.expect_ok();
    }
    assert_eq!(tool.effects(), 160);
    gateway.kill();
}

/// A page of lookup keys that says that it has fewer rows than it has: SQLite reads it without an error.
#[tokio::test]
async fn a_call_whose_key_a_damaged_page_hides_does_not_run_again() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    filled(folder.path(), &tool).await;
    let file = folder.path().join("oncegate.db");
    let root: i64 = {
        let connection = rusqlite::Connection::open(&file).expect("opened");
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'names'";
        connection
            .query_row(sql, [], |row| row.get(0))
            .expect("a page")
    };
    let at = (root.unsigned_abs() - 1) * 4_096;
    let page = fs::OpenOptions::new().read(true).write(true).open(&file);
    let page = page.expect("a file");
    let mut head = [0; 8];
    page.read_exact_at(&mut head, at).expect("read");
    let rows = u16::from_be_bytes([head[3], head[4]]);
    assert!(head[0] == 10 && rows >= 80, "all keys are on one page");
    page.write_all_at(&(rows / 2).to_be_bytes(), at + 3)
        .expect("damaged");
    drop(page);
    let gateway = start(folder.path(), &tool, Some(paused("check_names"))).await;
    for n in 0..80 {
        let again = send(&gateway, &format!("k{n}")).await;
        assert!(again.status == 200 || again.status == 503, "{again:?}");
    }
    assert_eq!(tool.requests(), 80, "none ran again");
    assert_eq!(reasons(&gateway).await, (503, r#"["damaged"]"#.into()));
    gateway.kill();
}

#[tokio::test]
async fn a_kill_in_the_middle_of_the_check_loses_nothing_and_the_next_start_checks_again() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    filled(folder.path(), &tool).await;
    let checked = folder.path().join("oncegate.db.checked");
    fs::remove_file(&checked).expect("it was checked");
    for point in ["check_names", "check_rest", "check_search"] {
        let gateway = start(folder.path(), &tool, Some(paused(point))).await;
        // Its commits stay in the log, because the check reads the file itself.
        for n in 0..20 {
            send(&gateway, &format!("{point}{n}")).await.expect_ok();
        }
        tool.then(Act::Hang);
        let key = format!("{point}-lost");
        let before = tool.requests();
        tokio::select! {
            _ = send(&gateway, &key) => unreachable!("it hangs"),
            () = until("the tool has it", async || tool.requests() > before) => {}
        }
        gateway.kill();
        assert!(!checked.exists(), "{point}: it was not checked to its end");
    }
    let requests = tool.requests();
    let gateway = start(folder.path(), &tool, None).await;
    for point in ["check_names", "check_rest", "check_search"] {
        for n in 0..20 {
            let again = send(&gateway, &format!("{point}{n}")).await.expect_ok();
            assert_eq!(again.at("/replayed"), true);
        }
        let lost = send(&gateway, &format!("{point}-lost")).await;
        lost.expect_problem("outcome-unknown");
    }
    assert_eq!(tool.requests(), requests, "nothing ran again");
    until("it is checked", async || checked.exists()).await;
    let metrics = client().get(gateway.url("/metrics")).send().await;
    let metrics = metrics.expect("an answer").text().await.expect("a text");
    let says = |line: &str| metrics.lines().any(|found| found == line);
    assert!(says("oncegate_store_checked_percent 100"), "{metrics}");
    assert!(
        !says("oncegate_store_checked_timestamp_seconds 0"),
        "{metrics}"
    );
    gateway.kill();
}
