//! `oncegate wrap`: one MCP server for one client, made safe to repeat.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::mcp::{MODERN, meta};
use crate::support::program::Program;
use crate::support::{PATIENCE, until};

/// A client's end of a wrapped server.
pub struct Wrapped {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
    /// Where its calls are kept.
    pub store: String,
}

impl Wrapped {
    pub async fn start(home: &Path, program: &Program) -> Self {
        Self::start_with(home, program, &[]).await
    }

    pub async fn start_with(home: &Path, program: &Program, options: &[&str]) -> Self {
        Self::start_in(home, program, options, &[]).await
    }

    /// The same with something in the environment.
    pub async fn start_in(
        home: &Path,
        program: &Program,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = wrap(home, program, options);
        command.envs(variables.iter().copied());
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut wrapped = Self {
            input: child.stdin.take(),
            output: output.lines(),
            errors: errors.lines(),
            child,
            store: String::new(),
        };
        // What it warns of stands before that.
        while wrapped.store.is_empty() {
            let said = wrapped.complaint().await;
            if let Some((_, store)) = said.split_once("calls are stored in ") {
                store.clone_into(&mut wrapped.store);
            }
        }
        wrapped
    }

    async fn complaint(&mut self) -> String {
        let line = timeout(PATIENCE, self.errors.next_line()).await;
        line.expect("in time").expect("text").expect("a line")
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("it is open");
        input.write_all(bytes).await.expect("it is read");
        input.flush().await.expect("it is read");
    }

    pub async fn send(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        let id: Value = id.into();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(format!("{message}\n").as_bytes()).await;
    }

    pub async fn read(&mut self) -> Value {
        let line = timeout(PATIENCE, self.output.next_line()).await;
        let line = line.expect("in time").expect("text").expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub async fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        self.send(id, method, params).await;
        self.read().await
    }

    pub async fn act(&mut self, does: &str) -> Value {
        self.ask(1, "tools/call", call(does)).await
    }

    /// Its input ends; waits for its end.
    pub async fn end(mut self) {
        drop(self.input.take());
        let status = timeout(PATIENCE, self.child.wait()).await.expect("in time");
        let mut said = String::new();
        let mut rest = self.errors.into_inner();
        rest.read_to_string(&mut said).await.expect("text");
        assert!(status.expect("it ended").success(), "{said}");
    }
}

/// Runs the fixture behind `oncegate wrap`.
pub fn wrap(home: &Path, program: &Program, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command
        .arg("wrap")
        .args(options)
        .arg("--")
        .args(program.command("legacy"))
        .env("HOME", home)
        .env_remove("XDG_DATA_HOME")
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .current_dir(home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub fn call(does: &str) -> Value {
    json!({ "name": "act", "arguments": { "does": does } })
}

pub fn said(answer: &Value) -> &str {
    let said = &answer["result"]["structuredContent"]["said"];
    said.as_str().unwrap_or_else(|| panic!("{answer}"))
}

pub fn is_replay(answer: &Value) -> bool {
    answer["result"]["_meta"]["dev.oncegate/replayed"] == true
}

fn is_unknown(answer: &Value) -> bool {
    let problem = &answer["result"]["_meta"]["dev.oncegate/problem"];
    problem["type"] == "/problems/outcome-unknown"
}

pub fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[tokio::test]
async fn a_call_that_is_sent_again_is_executed_once_also_by_the_next_process() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begun = wrapped.ask("i", "initialize", params).await;
    assert_eq!(begun["result"]["protocolVersion"], "2025-06-18", "{begun}");
    assert_eq!(begun["id"], "i");
    wrapped
        .write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")
        .await;
    let listed = wrapped.ask(0, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(3));
    let first = wrapped.act("answer").await;
    assert!(said(&first) == "done" && !is_replay(&first), "{first}");
    let again = wrapped.act("answer").await;
    assert!(said(&again) == "done" && is_replay(&again), "{again}");
    wrapped.end().await;
    let mut next = Wrapped::start(home.path(), &program).await;
    assert!(is_replay(&next.act("answer").await));
    assert_eq!(program.effects(), 1);
    next.end().await;
}

#[tokio::test]
async fn another_key_of_the_model_makes_no_second_effect_until_it_is_confirmed() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    let act = |key: &str, confirms: Value| {
        let args =
            json!({ "does": "answer", "idempotency_key": key, "confirm_duplicate_of": confirms });
        json!({ "name": "act", "arguments": args })
    };
    let first = wrapped.ask(1, "tools/call", act("one", Value::Null)).await;
    assert!(said(&first) == "done" && !is_replay(&first), "{first}");
    for key in ["two", "three"] {
        let again = wrapped.ask(1, "tools/call", act(key, Value::Null)).await;
        assert!(is_replay(&again), "{again}");
    }
    assert!(is_replay(&wrapped.act("answer").await), "without a key");
    assert_eq!(program.effects(), 1);
    let id = first["result"]["_meta"]["dev.oncegate/call-id"].clone();
    let meant = wrapped.ask(1, "tools/call", act("four", id)).await;
    assert!(said(&meant) == "done" && !is_replay(&meant), "{meant}");
    assert_eq!(program.effects(), 2);
    wrapped.end().await;
}

#[tokio::test]
async fn a_process_that_is_killed_in_a_call_leaves_it_unknown() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.send(1, "tools/call", call("hang")).await;
    until("it is executed", async || program.effects() == 1).await;
    wrapped.child.kill().await.expect("it could be killed");
    let mut next = Wrapped::start(home.path(), &program).await;
    for _ in 0..2 {
        let told = next.act("hang").await;
        assert!(is_unknown(&told), "{told}");
    }
    assert_eq!(program.effects(), 1);
    next.end().await;
}

#[tokio::test]
async fn two_clients_at_once_have_two_files_and_are_told_so() {
    let (home, program) = (home(), Program::new());
    let mut one = Wrapped::start(home.path(), &program).await;
    let mut two = Wrapped::start(home.path(), &program).await;
    assert_ne!(one.store, two.store);
    let warned = two.complaint().await;
    assert!(warned.contains("do not see each other's calls"), "{warned}");
    assert!(!is_replay(&one.act("answer").await) && !is_replay(&two.act("answer").await));
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn a_client_that_comes_back_is_told_what_nobody_knows_although_another_one_has_ended() {
    let (home, program) = (home(), Program::new());
    let mut one = Wrapped::start(home.path(), &program).await;
    one.act("answer").await;
    let mut two = Wrapped::start(home.path(), &program).await;
    two.send(1, "tools/call", call("hang")).await;
    until("it is executed", async || program.effects() == 2).await;
    two.child.kill().await.expect("it could be killed");
    one.end().await;
    let mut back = Wrapped::start(home.path(), &program).await;
    assert_eq!(back.store, two.store);
    assert!(is_unknown(&back.act("hang").await));
    assert_eq!(program.effects(), 2);
    back.end().await;
}

#[tokio::test]
async fn clients_that_have_given_up_take_no_file_from_one_that_comes_back() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.send(1, "tools/call", call("slow")).await;
    until("it is executed", async || program.effects() == 1).await;
    drop(wrapped.input.take());
    let marker = format!("{}.draining", wrapped.store);
    until("it drains", async || Path::new(&marker).exists()).await;
    let gave_up: Vec<Child> = (0..5)
        .map(|_| {
            let mut command = wrap(home.path(), &program, &[]);
            command.stdin(Stdio::null()).spawn().expect("it starts")
        })
        .collect();
    for mut child in gave_up {
        let status = timeout(PATIENCE, child.wait()).await.expect("in time");
        assert!(!status.expect("it ended").success());
    }
    let mut next = Wrapped::start(home.path(), &program).await;
    assert_eq!(next.store, wrapped.store);
    let told = next.act("slow").await;
    assert!(said(&told) == "slow" && is_replay(&told), "{told}");
    assert_eq!(program.effects(), 1);
    next.end().await;
}

#[tokio::test]
async fn a_client_that_comes_back_waits_for_what_it_left_under_way() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    let begun = format!(
        "{}\n",
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("late") })
    );
    wrapped.write(begun.as_bytes()).await;
    until("it is executed", async || program.effects() == 1).await;
    drop(wrapped.input.take());
    let marker = format!("{}.draining", wrapped.store);
    until("it drains", async || Path::new(&marker).exists()).await;
    let mut next = Wrapped::start(home.path(), &program).await;
    assert_eq!(next.store, wrapped.store);
    let told = next.act("late").await;
    assert!(said(&told) == "late" && is_replay(&told), "{told}");
    assert_eq!(program.effects(), 1);
    next.end().await;
    assert!(timeout(PATIENCE, wrapped.child.wait()).await.is_ok());
    let left = fs::read_dir(PathBuf::from(&wrapped.store).parent().expect("a folder"));
    let left = left.expect("it is there").flatten();
    assert!(
        !left
            .into_iter()
            .any(|file| file.path().extension().is_some_and(|end| end == "draining"))
    );
}

#[tokio::test]
async fn a_client_that_cancels_gets_no_answer_and_the_call_goes_on() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.send("late", "tools/call", call("late")).await;
    until("it is executed", async || program.effects() == 1).await;
    wrapped
        .write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"late\"}}\n")
        .await;
    let again = wrapped.ask("again", "tools/call", call("late")).await;
    assert_eq!(again["id"], "again", "{again}");
    assert_eq!(said(&again), "late");
    assert_eq!(program.effects(), 1);
    wrapped.end().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_and_harms_nothing() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    for (line, code) in [
        (&b"garbage"[..], -32_700),
        (b"\xff\xfe{}", -32_700),
        (
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            -32_600,
        ),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
            -32_600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}",
            -32_600,
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no/such\"}",
            -32_601,
        ),
    ] {
        wrapped.write(&[line, b"\r\n\n"].concat()).await;
        let told = wrapped.read().await;
        assert_eq!(told["error"]["code"], code, "{told}");
    }
    wrapped.write(&vec![b'x'; 20 << 20]).await;
    wrapped.write(b"\n").await;
    assert_eq!(wrapped.read().await["error"]["code"], -32_600);
    let pretty = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"} \n";
    wrapped.write(pretty).await;
    assert_eq!(wrapped.read().await["result"], json!({}));
    wrapped.end().await;
}

#[tokio::test]
async fn a_client_of_2026_speaks_without_headers() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    let found = wrapped
        .ask(1, "server/discover", json!({ "_meta": meta(json!({})) }))
        .await;
    assert_eq!(found["result"]["supportedVersions"][0], MODERN, "{found}");
    let mut params = call("answer");
    params["_meta"] = meta(json!({ "dev.oncegate/idempotency-key": "mine" }));
    for _ in 0..2 {
        let told = wrapped.ask("ä", "tools/call", params.clone()).await;
        assert_eq!(told["result"]["resultType"], "complete", "{told}");
        assert_eq!(said(&told), "done");
    }
    assert_eq!(program.effects(), 1);
    let mut look = json!({ "name": "look", "arguments": {} });
    look["_meta"] = meta(json!({}));
    for n in 2..4 {
        wrapped.ask(n, "tools/call", look.clone()).await;
        assert_eq!(program.effects(), n, "its annotation says that it reads");
    }
    wrapped.end().await;
}

#[tokio::test]
async fn a_message_that_ends_with_the_input_is_answered_and_big_answers_come_whole() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    let last = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call("big") });
    wrapped.write(last.to_string().as_bytes()).await;
    drop(wrapped.input.take());
    let told = wrapped.read().await;
    assert_eq!(said(&told).len(), 3 << 20);
    wrapped.end().await;
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    for n in 0..40 {
        let mut params = call("late");
        params["arguments"]["n"] = n.into();
        wrapped.send(n, "tools/call", params).await;
    }
    for _ in 0..40 {
        let told = wrapped.read().await;
        assert_eq!(said(&told), "late", "{told}");
    }
    assert_eq!(program.effects(), 40);
    wrapped.end().await;
}

#[tokio::test]
async fn a_store_may_be_named_and_reads_need_not_be_trusted() {
    let (home, program) = (home(), Program::new());
    let file = home.path().join("mine $1.db");
    let options = [
        "--store",
        file.to_str().expect("text"),
        "--distrust-annotations",
    ];
    let mut wrapped = Wrapped::start_with(home.path(), &program, &options).await;
    for _ in 0..2 {
        let look = json!({ "name": "look", "arguments": {} });
        wrapped.ask(1, "tools/call", look).await;
    }
    assert_eq!(program.effects(), 1);
    assert!(file.exists() && !home.path().join(".local").exists());
    wrapped.end().await;
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_told_and_nothing_else() {
    let home = home();
    let refused = |options: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command.arg("wrap").args(options).env("HOME", home.path());
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let redis = refused(&["--store", "redis://127.0.0.1:1/", "--", "x"]);
    assert!(redis.contains("a Redis needs --name"), "{redis}");
    let window = refused(&["--dedup-window", "soon", "--", "x"]);
    assert!(
        window.contains("dedup_window") && window.contains("is not a duration"),
        "{window}"
    );
    let name = refused(&["--name", "a b", "--", "x"]);
    assert!(name.contains("a-z"), "{name}");
    let nothing = refused(&[]);
    assert!(nothing.contains("COMMAND"), "{nothing}");
}

#[tokio::test]
async fn a_signal_ends_it_after_what_it_was_asked_is_answered() {
    let (home, program) = (home(), Program::new());
    let mut wrapped = Wrapped::start(home.path(), &program).await;
    wrapped.send(1, "tools/call", call("late")).await;
    until("it is executed", async || program.effects() == 1).await;
    let id = wrapped.child.id().expect("it runs").to_string();
    let status = Command::new("kill")
        .args(["-s", "TERM", &id])
        .status()
        .await;
    assert!(status.expect("kill runs").success());
    assert_eq!(said(&wrapped.read().await), "late");
    let ended = timeout(Duration::from_secs(30), wrapped.child.wait()).await;
    assert!(ended.expect("in time").expect("it ended").success());
    let mut next = Wrapped::start(home.path(), &program).await;
    let told = next.act("late").await;
    assert!(said(&told) == "late" && is_replay(&told), "{told}");
    assert_eq!(program.effects(), 1);
    next.end().await;
}
