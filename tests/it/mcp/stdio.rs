//! MCP servers that are programs: what their answers prove, and how they start and end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::mistakes::{cases, check_said, read};
use crate::support::binary::{Process, free_port};
use crate::support::program::Program;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Answer, Gateway, client, until};

on_both_stores!(
    a_call_of_a_program_has_one_effect_and_its_result_for_each_repetition,
    a_call_that_a_program_may_have_executed_is_never_sent_again,
);

/// Short times, and a breaker that never opens, so that each answer shows the outcome of its own call.
const ONCE: &str = "timeout = \"1s\"\ndeadline = \"3s\"\nbreaker = { failures = 1000 }\n";

async fn act(gateway: &Gateway, key: &str, does: &str) -> Answer {
    gateway.call_with_key(key, json!({ "does": does })).await
}

/// Repeats the call until the program runs again.
async fn act_when_up(gateway: &Gateway, key: &str, does: &str) -> Answer {
    loop {
        let answer = act(gateway, key, does).await;
        if !["tool-unreachable", "tool-unavailable"].contains(&answer.problem().as_str()) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_call_of_a_program_has_one_effect_and_its_result_for_each_repetition(stores: &Stores) {
    for era in ["modern", "legacy"] {
        let program = Program::new();
        let more = "[server]\nmax_result = \"64KiB\"";
        let gateway = stores.gateway(&program.config(era, more)).await;
        for (n, does) in [
            "answer",
            "late",
            "chatty",
            "noisy",
            "batch",
            "ask",
            "error_result",
        ]
        .iter()
        .enumerate()
        {
            let key = format!("{era}-{does}");
            let first = act(&gateway, &key, does).await.expect_ok();
            let again = act(&gateway, &key, does).await.expect_ok();
            assert_eq!(again.result(), first.result());
            assert_eq!(program.effects(), n + 1, "{key}");
            if *does == "ask" {
                let said = first.at("/result/structuredContent/said").to_string();
                assert!(
                    said.contains("result") && said.contains("-32601"),
                    "a ping is answered, and nothing else can be asked: {said}"
                );
            }
            if *does == "chatty" {
                assert_eq!(first.at("/result/theirs/n"), json!(1.5), "{}", first.text);
            }
        }
        gateway.stop().await;
    }
}

async fn a_call_that_a_program_may_have_executed_is_never_sent_again(stores: &Stores) {
    let program = Program::new();
    // Longer than a program takes to start on a busy machine: it must have read the call before the time is over.
    let more = "timeout = \"4s\"\ndeadline = \"12s\"\nbreaker = { failures = 1000 }\n[server]\nmax_result = \"64KiB\"";
    let gateway = stores.gateway(&program.config("legacy", more)).await;
    for (n, does) in ["unreadable", "error", "long", "die", "half", "hang"]
        .iter()
        .enumerate()
    {
        let told = act_when_up(&gateway, does, does).await;
        told.expect_problem("outcome-unknown");
        let again = act(&gateway, does, does).await;
        again.expect_problem("outcome-unknown");
        assert_eq!(program.effects(), n + 1, "{does}");
    }
    let other = act_when_up(&gateway, "other", "answer").await;
    other.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn concurrent_calls_of_one_process_each_get_their_own_answer() {
    let program = Program::new();
    let gateway = Gateway::start(&program.config("modern", "")).await;
    let calls = (0..20).map(|n| {
        let (gateway, does) = (&gateway, if n % 2 == 0 { "late" } else { "answer" });
        async move {
            let key = format!("k{n}");
            let answer = act(gateway, &key, does).await.expect_ok();
            let said = answer.at("/result/structuredContent/said");
            assert_eq!(said, if n % 2 == 0 { "late" } else { "done" }, "{key}");
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(program.effects(), 20);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_given_up_before_it_was_written_is_never_written() {
    let program = Program::new();
    let once = format!("{ONCE}retry = {{ attempts = 1 }}");
    let gateway = Gateway::start(&program.config("legacy", &once)).await;
    act(&gateway, "first", "answer").await.expect_ok();
    let nap = act(&gateway, "nap", "nap").await;
    nap.expect_problem("outcome-unknown");
    // More than a pipe holds, so only a part is written.
    let long = json!({ "does": "answer", "long": "x".repeat(300_000) });
    let long = gateway.call_with_key("long", long).await;
    long.expect_problem("outcome-unknown");
    let behind = act(&gateway, "behind", "answer").await;
    assert_eq!(behind.at("/effect"), "none", "{}", behind.text);
    until("it reads on", async || program.effects() == 3).await;
    act(&gateway, "last", "answer").await.expect_ok();
    assert_eq!(program.effects(), 4, "all but the one that was given up");
    gateway.stop().await;
}

#[tokio::test]
async fn an_unreadable_answer_of_a_program_ends_the_call_at_once() {
    let program = Program::new();
    let patient = "timeout = \"100s\"\ndeadline = \"400s\"\n[server]\nmax_result = \"64KiB\"";
    let gateway = Gateway::start(&program.config("legacy", patient)).await;
    for does in ["long", "half", "die"] {
        let told = act_when_up(&gateway, does, does).await;
        told.expect_problem("outcome-unknown");
    }
    assert_eq!(program.effects(), 3);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_dies_around_a_call_of_a_program_leaves_one_effect_at_most() {
    for point in ["before_first_byte", "after_last_byte", "after_answer"] {
        let program = Program::new();
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let config = program.config("legacy", "");
        let points = format!("{point}=1*return");
        let dying = [("FAILPOINTS", points.as_str())];
        let dies = Process::start_in(folder.path(), port, &config, &dying).await;
        let url = dies.url("/v1/tools/act/calls");
        let ask = async || {
            let body = r#"{"args":{"does":"late"}}"#;
            let request = client().post(&url).header("idempotency-key", "k");
            request.body(body).send().await
        };
        assert!(ask().await.is_err(), "it dies at {point}");
        dies.ended().await;
        let executed = program.effects();
        assert!(executed <= 1, "{point}");
        let again = Process::start_in(folder.path(), port, &config, &[]).await;
        for _ in 0..3 {
            let said = Answer::read(ask().await.expect("an answer")).await;
            said.expect_problem("outcome-unknown");
        }
        assert_eq!(program.effects(), executed, "{point}");
        again.kill();
    }
}

#[tokio::test]
async fn a_program_that_ends_without_an_answer_proves_nothing() {
    let program = Program::new();
    let gateway = Gateway::start(&program.config("legacy", ONCE)).await;
    act(&gateway, "k", "die_before")
        .await
        .expect_problem("outcome-unknown");
    assert_eq!(program.effects(), 0);
    act_when_up(&gateway, "l", "answer").await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn a_program_of_an_earlier_revision_is_recognised_however_it_answers() {
    for era in ["silent", "fragile"] {
        let program = Program::new();
        let patient = "timeout = \"20s\"\ndeadline = \"60s\"";
        let gateway = Gateway::start(&program.config(era, patient)).await;
        act_when_up(&gateway, era, "answer").await.expect_ok();
        assert_eq!(program.effects(), 1);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_program_of_an_older_revision_is_spoken_to_as_it_is() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let program = Program::new();
        let gateway = Gateway::start(&program.config(revision, "")).await;
        for does in ["answer", "batch"] {
            act(&gateway, does, does).await.expect_ok();
        }
        assert_eq!(program.effects(), 2, "{revision}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_has_executed_nothing() {
    let config = "[upstreams.up]\ncommand = [\"/nowhere/at/all\"]\n[tools.act]\nupstream = \"up\"\nretry = { attempts = 1 }";
    let gateway = Gateway::start(config).await;
    let told = act(&gateway, "k", "answer").await;
    let told = told.expect_problem("tool-unreachable");
    assert_eq!(told.at("/effect"), "none");
    gateway.stop().await;
}

#[tokio::test]
async fn a_program_that_does_not_end_is_killed_with_the_gateway() {
    let program = Program::new();
    let gateway = Gateway::start(&program.config("legacy", ONCE)).await;
    act(&gateway, "k", "deaf")
        .await
        .expect_problem("outcome-unknown");
    // The next call is not read either: its outcome is unknown, and it is not sent again.
    let behind = act(&gateway, "l", "answer").await;
    assert_eq!(behind.problem(), "outcome-unknown", "{}", behind.text);
    let name = program.command("legacy")[1].clone();
    let is_there = || {
        let all = std::process::Command::new("pgrep")
            .args(["-f", &name])
            .output();
        all.expect("pgrep runs").status.success()
    };
    assert!(is_there());
    gateway.stop().await;
    until("the program has ended", async || !is_there()).await;
    assert_eq!(program.effects(), 1);
}

#[tokio::test]
async fn processes_that_a_program_has_started_end_with_it() {
    let program = Program::new();
    let gateway = Gateway::start(&program.config("legacy", "")).await;
    let left = act(&gateway, "k", "leave").await.expect_ok();
    let left = left.at("/result/structuredContent/said");
    let is_there = || {
        let name = format!("/proc/{}/cmdline", left.as_str().expect("an id"));
        // A process that has ended and was not waited for has no command line.
        std::fs::read(name).is_ok_and(|line| !line.is_empty())
    };
    if cfg!(target_os = "linux") {
        until("it has ended", async || !is_there()).await;
    }
    // A call that is written just before the gateway notices the end is unknown.
    let mut n = 0;
    until("the program is started again", async || {
        n += 1;
        act(&gateway, &format!("l{n}"), "answer").await.status == 200
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_began_before_a_reload_starts_no_earlier_program_again() {
    let program = Program::new();
    let patient = "retry = { attempts = 8, base = \"300ms\", max = \"400ms\" }\ndeadline = \"90s\"";
    let nowhere = format!(
        "[upstreams.up]\ncommand = [\"/nowhere\"]\n[tools.act]\nupstream = \"up\"\n{patient}"
    );
    let gateway = Gateway::start(&nowhere).await;
    let earlier = act(&gateway, "k", "answer");
    let changed = async {
        let attempts = r#"oncegate_attempts_total{outcome="not_executed",tool="act"}"#;
        until("it is tried", async || gateway.metric(attempts).await > 0.0).await;
        assert!(gateway.reload(&program.config("legacy", patient)).await);
        for n in 0..20 {
            act(&gateway, &format!("l{n}"), "late").await.expect_ok();
        }
    };
    let (earlier, ()) = tokio::join!(earlier, changed);
    earlier.expect_problem("tool-unreachable");
    assert_eq!(program.starts(), 1, "the new one is not replaced");
    gateway.stop().await;
}

#[tokio::test]
async fn a_program_gets_only_the_environment_that_its_section_names() {
    let program = Program::new();
    let upstream = program.upstream("legacy", "env = { MINE = \"x\" }");
    let gateway =
        Gateway::start(&format!("{upstream}[tools.environment]\nupstream = \"up\"")).await;
    let seen = gateway
        .post(
            "environment",
            &json!({ "args": {} }),
            &[("idempotency-key", "k")],
        )
        .await
        .expect_ok();
    let seen = seen.at("/result/structuredContent/said").to_string();
    assert_eq!(seen, "\"MINE\"", "this gateway has no environment itself");
    gateway.stop().await;
}

#[tokio::test]
async fn a_program_that_is_no_longer_configured_ends_after_its_calls() {
    let program = Program::new();
    let gateway = Gateway::start(&program.config("legacy", "")).await;
    act(&gateway, "k", "answer").await.expect_ok();
    let under_way = act(&gateway, "l", "late");
    let changed = async {
        until("it is sent", async || program.effects() == 2).await;
        let other = program
            .config("legacy", "")
            .replace("[tools", "env = { A = \"1\" }\n[tools");
        assert!(gateway.reload(&other).await);
        act(&gateway, "m", "answer").await.expect_ok();
    };
    let (late, ()) = tokio::join!(under_way, changed);
    assert_eq!(
        late.expect_ok().at("/result/structuredContent/said"),
        "late"
    );
    assert_eq!(program.effects(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn tools_of_a_program_without_a_section_are_served_at_its_own_route() {
    let program = Program::new();
    let gateway = Gateway::start(
        &program.upstream("legacy", "repeatable = [\"act\"]\ntrust_annotations = true"),
    )
    .await;
    let ask = async |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = gateway.post_to("/mcp/up", &body).await;
        answer.json()
    };
    let listed = ask("tools/list", json!({})).await;
    assert_eq!(
        listed["result"]["tools"].as_array().map(Vec::len),
        Some(3),
        "{listed}"
    );
    for n in 1..=2 {
        let told = ask("tools/call", json!({ "name": "act", "arguments": {} })).await;
        assert_eq!(
            told["result"]["structuredContent"]["said"], "done",
            "{told}"
        );
        assert_eq!(program.effects(), n, "it may be repeated");
    }
    let answered = ask(
        "tools/call",
        json!({ "name": "environment", "arguments": {} }),
    )
    .await;
    let again = ask(
        "tools/call",
        json!({ "name": "environment", "arguments": {} }),
    )
    .await;
    assert_eq!(
        again["result"]["_meta"]["dev.oncegate/replayed"], true,
        "{again}"
    );
    assert_eq!(
        answered["result"]["structuredContent"],
        again["result"]["structuredContent"]
    );
    gateway.stop().await;
}

#[tokio::test]
async fn tools_without_a_section_may_be_called_concurrently_for_the_first_time() {
    let program = Program::new();
    let gateway = Gateway::start(&program.upstream("legacy", "")).await;
    let calls = ["act", "look", "environment"].map(|name| {
        let params = json!({ "name": name, "arguments": {} });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let gateway = &gateway;
        async move { gateway.post_to("/mcp/up", &body).await.json() }
    });
    for told in futures_util::future::join_all(calls).await {
        assert_eq!(told["result"]["isError"], false, "{told}");
    }
    gateway.stop().await;
}

#[test]
fn settings_of_programs_are_checked() {
    for [lines, said] in &cases(
        r#"
        command = [] => command: this is a list of texts
        command = [""] => command: this is a list of texts
        command = "run" => command: this must be a list of texts
        command = ["run"]\nurl = "http://a/" => url: this is for servers that have a URL
        command = ["run"]\nheaders = { A = "b" } => headers: this is for servers that have a URL
        command = ["run"]\nconnection_reuse = "1s" => connection_reuse: this is for servers that have a URL
        command = ["run"]\nenv = { "A=" = "b" } => env.A=: this is not a variable
        command = ["run"]\nenv = { A = "${NOT_THERE}" } => the environment variable NOT_THERE is not set
        command = ["run"]\nstderr = "file" => stderr: "file" is not one of discard, inherit
        command = ["run"]\ntimeout = "20m" => dedup_window: must not be shorter than the deadline
        "#,
    ) {
        let config = format!("[store]\nurl = \"sqlite:a.db\"\n[upstreams.up]\n{lines}\n");
        check_said(&read(&config, &[]).expect_err(lines), said);
    }
    let good = "[store]\nurl = \"sqlite:a.db\"\n[upstreams.up]\ncommand = [\"run\", \"$x\"]\n";
    assert!(read(good, &[]).is_ok());
}
