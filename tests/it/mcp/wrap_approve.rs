//! Calls of a wrapped server that its user has to approve: `--approve`, and `oncegate approvals`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::wrap::{Wrapped, call, home, said};
use crate::support::program::Program;
use crate::support::{Answer, client, until};

/// What `oncegate approvals` prints, with these words and this input.
async fn approvals(home: &Path, words: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .arg("approvals")
        .args(words)
        .env("HOME", home)
        .env_remove("XDG_DATA_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // It may have ended without reading.
    drop(pipe.write_all(input.as_bytes()).await);
    drop(pipe);
    child.wait_with_output().await.expect("it ended")
}

fn text(printed: &Output) -> String {
    String::from_utf8_lossy(&printed.stdout).into_owned()
}

/// The id of the call that waits, once there is one.
async fn waiting(home: &Path) -> String {
    let mut line = String::new();
    until("a call waits", async || {
        line = text(&approvals(home, &[], "").await);
        line.contains("proposed")
    })
    .await;
    let id = line.split(' ').next().expect("an id");
    id.to_owned()
}

/// A client's end of a server whose calls wait, without a display.
async fn start(home: &Path, program: &Program, what: &str) -> Wrapped {
    Wrapped::start_with(home, program, &["--approve", what]).await
}

#[tokio::test]
async fn a_call_of_a_wrapped_server_is_sent_once_its_user_has_said_yes() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = start(home.path(), &program, "writes").await;
    wrapped.send(1, "tools/call", call("answer")).await;
    let id = waiting(home.path()).await;
    let shown = text(&approvals(home.path(), &["show", &id], "").await);
    assert!(shown.contains("\"does\":\"answer\""), "{shown}");
    for input in ["", "no\n"] {
        let refused = approvals(home.path(), &["approve", &id], input).await;
        assert!(!refused.status.success(), "{}", text(&refused));
    }
    assert_eq!(program.effects(), 0);
    let approved = approvals(home.path(), &["approve", &id], "yes\n").await;
    assert!(approved.status.success(), "{approved:?}");
    let answer = wrapped.read().await;
    assert_eq!(said(&answer), "done");
    assert_eq!(program.effects(), 1);
    assert!(text(&approvals(home.path(), &[], "").await).contains("no call waits"));
    wrapped.end().await;
    let gone = approvals(home.path(), &[], "").await;
    assert!(!gone.status.success(), "its socket is gone: {gone:?}");
}

#[tokio::test]
async fn a_declined_call_of_a_wrapped_server_is_never_sent() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = start(home.path(), &program, "act").await;
    wrapped.send(1, "tools/call", call("answer")).await;
    let id = waiting(home.path()).await;
    let words = [
        "decline",
        &id,
        "--reason",
        "not now",
        "--tell",
        "Ask later.",
    ];
    let declined = approvals(home.path(), &words, "").await;
    assert!(declined.status.success(), "{declined:?}");
    let answer = wrapped.read().await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(answer.to_string().contains("Ask later."), "{answer}");
    assert_eq!(program.effects(), 0);
    wrapped.end().await;
}

#[tokio::test]
async fn only_the_tools_that_were_named_wait() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = start(home.path(), &program, "another,third").await;
    assert_eq!(said(&wrapped.act("answer").await), "done");
    assert_eq!(program.effects(), 1);
    wrapped.end().await;
}

/// A cookie and the page that follows, after a link was opened.
async fn enter(link: &str) -> (Answer, String) {
    let answer = Answer::to(client().get(link)).await;
    let cookie = answer.header("set-cookie");
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    (answer, cookie)
}

#[tokio::test]
async fn a_link_leads_once_into_a_console_that_shows_and_decides_calls_and_nothing_else() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = start(home.path(), &program, "writes").await;
    wrapped.send(1, "tools/call", call("answer")).await;
    let id = waiting(home.path()).await;
    let link = text(&approvals(home.path(), &["link"], "").await);
    let link = link.trim();
    let (origin, _) = link.split_once("/console/").expect("a link");
    assert!(origin.starts_with("http://127.0.0.1:"), "{link}");
    let page = format!("{origin}/console/approvals/{id}");
    let outside = Answer::to(client().get(&page)).await;
    assert!(!outside.text.contains("answer"), "{}", outside.text);
    let (entered, cookie) = enter(link).await;
    assert_eq!(entered.status, 303, "{}", entered.text);
    let (again, none) = enter(link).await;
    assert_eq!((again.status, none), (401, String::new()), "it is used up");

    let get = async |path: &str| {
        let request = client().get(format!("{origin}{path}"));
        Answer::to(request.header("cookie", &cookie)).await
    };
    let shown = Answer::to(client().get(&page).header("cookie", &cookie)).await;
    assert!(shown.text.contains("answer"), "{}", shown.text);
    for (path, status) in [
        ("/console/audit", 403),
        ("/v1/approvals", 404),
        ("/mcp", 404),
    ] {
        assert_eq!(get(path).await.status, status, "{path}");
    }
    let field = |name: &str| {
        let (_, rest) = shown
            .text
            .split_once(&format!("name=\"{name}\" value=\""))
            .expect(name);
        rest.split('"').next().expect("a value").to_owned()
    };
    let form = [("form", field("form")), ("seen", field("seen"))];
    let form = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form)
        .finish();
    let act = client()
        .post(format!("{page}/approve"))
        .header("cookie", &cookie)
        .header("origin", origin)
        .header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(program.effects(), 0);
    let done = Answer::to(act.body(form)).await;
    assert!(done.status < 400, "{}", done.text);
    assert_eq!(said(&wrapped.read().await), "done");
    assert_eq!(program.effects(), 1);
    wrapped.end().await;
}

/// Puts a program in the place of the one that opens a browser: it keeps what it is given.
fn fake_browser(home: &Path) -> String {
    let folder = home.join("bin");
    fs::create_dir(&folder).expect("a folder");
    let program = folder.join("xdg-open");
    let script = format!(
        "#!/bin/sh\ncp \"$1\" '{0}/.opened'\nmv '{0}/.opened' '{0}/opened'\n",
        home.display()
    );
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("its mode");
    format!("{}:/usr/bin:/bin", folder.display())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_first_call_that_waits_opens_the_browser_by_a_page_that_only_its_user_reads() {
    let (home, program) = (home(), Program::new());
    let path = fake_browser(home.path());
    let variables = [("PATH", &*path), ("DISPLAY", ":9")];
    let options = ["--approve", "writes"];
    let mut wrapped = Wrapped::start_in(home.path(), &program, &options, &variables).await;
    let opened = home.path().join("opened");
    assert!(!opened.exists(), "nothing waits");
    wrapped.send(1, "tools/call", call("answer")).await;
    until("the browser is opened", async || opened.exists()).await;
    let page = fs::read_to_string(&opened).expect("a page");
    let link = page
        .split("url=")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let (entered, _) = enter(link.expect("a link")).await;
    assert_eq!(entered.status, 303, "{}", entered.text);
    let folder = home.path().join(".local/share/oncegate/wrap");
    let mode = fs::metadata(&folder)
        .expect("a folder")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    for entry in fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ending| ending == "html") {
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
    let id = waiting(home.path()).await;
    approvals(home.path(), &["approve", &id], "yes\n").await;
    assert_eq!(said(&wrapped.read().await), "done");
    wrapped.end().await;
}

/// A model is told where its user decides, and no way in.
#[tokio::test]
async fn a_model_gets_the_page_without_a_code() {
    let (home, program) = (home(), Program::new());
    let options = ["--approve", "writes", "--timeout", "1m"];
    let mut wrapped = Wrapped::start_with(home.path(), &program, &options).await;
    let answer = wrapped.act("answer").await;
    let told: &Value = &answer["result"]["content"][0]["text"];
    let told = told.as_str().expect("a text");
    assert!(told.contains("Nothing was executed yet"), "{told}");
    let id = waiting(home.path()).await;
    assert!(told.contains(&format!("/console/approvals/{id}")), "{told}");
    assert!(!told.contains("/console/enter/"), "{told}");
    let problem = &answer["result"]["_meta"]["dev.oncegate/problem"];
    assert_eq!(problem["type"], json!("/problems/approval-required"));
    assert_eq!(program.effects(), 0);
    wrapped.end().await;
}
