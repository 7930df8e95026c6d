//! An MCP server on standard input for the tests: it counts its effects in a file, and misbehaves on request.
//!
//! `stdio_server FILE ERA`: each `tools/call` of `act` appends its idempotency key to FILE as a line, and each start a line to
//! FILE.starts. What it does then is
//! its argument `does`. ERA is modern, legacy, silent (legacy, and leaves `server/discover` unanswered), fragile
//! (legacy, and ends at it) or the name of an earlier revision.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a server of the tests, which ends if something is wrong"
)]

use std::fs::OpenOptions;
use std::io::{Write, stdin, stdout};
use std::process::exit;
use std::thread::{park, sleep};
use std::time::Duration;

use serde_json::{Value, json};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

fn say(line: &[u8]) {
    let mut out = stdout().lock();
    out.write_all(line).expect("standard output is open");
    out.flush().expect("it is open");
}

/// The next line; `None`: there is none any more.
fn read() -> Option<String> {
    let mut line = String::new();
    let read = stdin().read_line(&mut line).expect("text");
    (read > 0).then_some(line)
}

fn answer(id: &Value, result: Value) {
    say(format!(
        "{}\n",
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    )
    .as_bytes());
}

fn error(id: &Value, code: i64) {
    let error = json!({ "code": code, "message": "no" });
    say(format!(
        "{}\n",
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    )
    .as_bytes());
}

fn result(said: &str) -> Value {
    json!({
        "content": [{ "type": "text", "text": said }],
        "structuredContent": { "said": said },
        "isError": false,
        "theirs": { "n": 1.5 },
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (file, era) = (arguments[1].clone(), arguments[2].clone());
    append(&format!("{file}.starts"), "started");
    while let Some(line) = read() {
        let message: Value = serde_json::from_str(&line).expect("a line is a message");
        let (id, method) = (message["id"].clone(), message["method"].as_str());
        let info = json!({ "name": "stdio_server", "version": "1" });
        match (method.unwrap_or_default(), era.as_str()) {
            ("server/discover", "modern") => answer(
                &id,
                json!({
                    "resultType": "complete", "supportedVersions": [MODERN], "capabilities": { "tools": {} },
                    "ttlMs": 0, "cacheScope": "private",
                }),
            ),
            ("server/discover", "silent") => {}
            ("server/discover", "fragile") => exit(4),
            ("initialize", era) if era != "modern" => answer(
                &id,
                json!({
                    "protocolVersion": if era.starts_with("20") { era } else { LEGACY },
                    "capabilities": { "tools": {} }, "serverInfo": info,
                }),
            ),
            ("tools/list", _) => answer(&id, json!({ "tools": tools() })),
            ("tools/call", _) => call(&file, &message, id),
            (_, _) if message.get("id").is_some() && method.is_some() => error(&id, -32_601),
            _ => {}
        }
    }
}

/// A message as it came: a server that repeats what it reads.
fn line_of(message: &Value) -> String {
    message.to_string()
}

fn tools() -> Value {
    let schema = json!({ "type": "object" });
    json!([
        { "name": "act", "inputSchema": schema },
        { "name": "look", "inputSchema": schema, "annotations": { "readOnlyHint": true } },
        { "name": "environment", "inputSchema": schema },
    ])
}

fn append(file: &str, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(file);
    writeln!(file.expect("it can be opened"), "{line}").expect("it is written");
}

fn call(file: &str, message: &Value, id: Value) {
    let params = &message["params"];
    if params["name"] == "environment" {
        let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
        names.sort_unstable();
        return answer(&id, result(&names.join(" ")));
    }
    let does = params["arguments"]["does"].as_str().unwrap_or("answer");
    if does == "die_before" {
        exit(3);
    }
    let key = params["_meta"]["dev.oncegate/idempotency-key"].as_str();
    append(file, key.unwrap_or("-"));
    match does {
        "answer" => answer(&id, result("done")),
        "late" => {
            std::thread::spawn(move || {
                sleep(Duration::from_millis(600));
                answer(&id, result("late"));
            });
        }
        "slow" => {
            std::thread::spawn(move || {
                sleep(Duration::from_secs(4));
                answer(&id, result("slow"));
            });
        }
        "big" => answer(&id, result(&"x".repeat(3 << 20))),
        "die" => exit(3),
        "hang" => {}
        // Reads nothing meanwhile.
        "nap" => {
            sleep(Duration::from_secs(4));
            answer(&id, result("awake"));
        }
        // Its launcher ends, and a process that it has started goes on.
        "leave" => {
            let child = std::process::Command::new("sleep").arg("600").spawn();
            answer(&id, result(&child.expect("it starts").id().to_string()));
            sleep(Duration::from_millis(200));
            exit(0);
        }
        // Reads no more, and does not end when its input ends.
        "deaf" => loop {
            park();
        },
        "half" => {
            let line = json!({ "jsonrpc": "2.0", "id": id, "result": result("ä") }).to_string();
            let end = line.find('ä').expect("it is there") + 1;
            say(&line.as_bytes()[..end]);
            exit(0);
        }
        "chatty" => {
            say(b"Listening\n\n[1]\n\xff\xfe\n");
            say(b"{\"jsonrpc\":\"2.0\",\"id\":\"oncegate-0\",\"result\":{}}\n");
            say(b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32603,\"message\":\"?\"}}\n");
            say(format!("{}\n", json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "data": id } })).as_bytes());
            answer(&id, result("done"));
            answer(&id, result("another"));
        }
        // Lines that are not responses: a server that logs to its standard output.
        "noisy" => {
            for line in [
                format!("{{\"level\":30,\"id\":{id},\"msg\":\"calling\"}}"),
                format!("handling request {id}"),
                format!("{{\"id\":{id},\"result\":{{}}}}"),
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}}}"),
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{"),
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}},\"error\":{{\"code\":1}}}}"
                ),
                format!(
                    "{{\"level\":30,\"req\":{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":1}}}}"
                ),
                format!("[{id}]"),
                line_of(message),
            ] {
                say(format!("{line}\n").as_bytes());
            }
            let long = "x".repeat(200 << 10);
            say(format!("{{\"level\":30,\"id\":{id},\"msg\":\"{long}\"}}\n").as_bytes());
            answer(&id, result("done"));
        }
        "batch" => {
            let response = json!({ "jsonrpc": "2.0", "id": id, "result": result("done") });
            let progress =
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
            say(format!("{}\n", json!([progress, response])).as_bytes());
        }
        "ask" => {
            say(b"{\"jsonrpc\":\"2.0\",\"id\":\"s1\",\"method\":\"ping\"}\n");
            say(b"{\"jsonrpc\":\"2.0\",\"id\":\"s2\",\"method\":\"roots/list\"}\n");
            let said = [read(), read()].map(|line| line.expect("an answer"));
            answer(&id, result(&said.concat()));
        }
        "long" => {
            say(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"text\":\"").as_bytes());
            for _ in 0..100 {
                say(&vec![b'x'; 1 << 20]);
            }
            say(b"\"}}\n");
        }
        "unreadable" => {
            say(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\n").as_bytes())
        }
        "error" => error(&id, -32_603),
        "error_result" => answer(&id, json!({ "content": [], "isError": true })),
        other => panic!("{other} is not known"),
    }
}
