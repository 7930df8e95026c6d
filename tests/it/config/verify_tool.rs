//! `oncegate verify-tool` against the demo's shop in each of its ways.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::support::binary::{command, run};
use crate::support::shop::{Shop, order};

const SEQUENCE: &str = "once_in_sequence";
const AT_ONCE: &str = "once_at_once";
const LATER: &str = "once_later";
const OTHER: &str = "other_arguments_refused";
const UNUSED: &str = "probe_of_unused_key";
const USED: &str = "probe_of_used_key";
const UNDONE: &str = "undone_twice";

/// A shop, and a folder with a configuration and arguments for it.
struct Trial {
    shop: Shop,
    folder: tempfile::TempDir,
}

impl Trial {
    /// All that can be declared of its tool is declared.
    async fn of(ways: &[&str]) -> Self {
        Self::declaring(ways, "dedup = \"key\"\nunknown = \"retry\"\n").await
    }

    async fn declaring(ways: &[&str], declared: &str) -> Self {
        let shop = Shop::start_with(ways).await;
        let folder = tempfile::tempdir().expect("a folder");
        let url = &shop.url;
        let config = format!(
            "[store]\nurl = \"sqlite:oncegate.db\"\n\
             [tools.create_order]\nurl = \"{url}/orders\"\n{declared}\
             headers = {{ Authorization = \"Bearer top-secret\" }}\n\
             redact = {{ result = [\"/sku\"] }}\n\
             probe = {{ url = \"{url}/orders/by-key/{{key}}\" }}\n\
             compensation = {{ tool = \"cancel_order\", args = {{ order_id = \"/result/order_id\" }} }}\n\
             [tools.cancel_order]\nurl = \"{url}/orders/cancel\"\n"
        );
        let write = |name: &str, text: String| {
            fs::write(folder.path().join(name), text).expect("a file");
        };
        write("c.toml", config);
        write("args.json", order("widget", 1).to_string());
        write("other.json", order("widget", 2).to_string());
        Self { shop, folder }
    }

    fn run(&self, options: &[&str]) -> Output {
        let fixed = [
            "verify-tool",
            "create_order",
            "--config",
            "c.toml",
            "--args",
            "args.json",
        ];
        run(self.folder.path(), &[&fixed, options].concat())
    }

    /// So that two requests at once are under way together, however busy the machine is.
    async fn slow_down(&self) {
        let slow = json!({ "mode": "slow", "delay_ms": 30 });
        let json = [("content-type", "application/json")];
        assert_eq!(self.shop.post("/chaos", slow, &json).await.status, 200);
    }

    /// Its report, and how the command ended.
    async fn report(&self, options: &[&str]) -> (Value, i32) {
        self.slow_down().await;
        let output = self.run(&[&["--yes", "--json"], options].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|error| panic!("{error}: {said}"));
        (report, output.status.code().expect("a status"))
    }

    /// The report with all evidence that there is.
    async fn whole(&self, after: &str) -> (Value, i32) {
        let count = format!("{}/stats", self.shop.url);
        self.report(&[
            "--id",
            "/order_id",
            "--other-args",
            "other.json",
            "--count-url",
            &count,
            "--count",
            "/orders",
            "--undo-count",
            "/available/widget",
            "--after",
            after,
        ])
        .await
    }
}

#[track_caller]
fn shows(report: &Value, expected: &[(&str, &str)]) {
    for (claim, verdict) in expected {
        let findings = report["findings"].as_array().expect("a list");
        let found = findings.iter().find(|finding| finding["claim"] == *claim);
        let found = found.unwrap_or_else(|| panic!("nothing of {claim}"));
        assert_eq!(found["verdict"], *verdict, "{claim}: {}", found["why"]);
    }
}

fn why(report: &Value, claim: &str) -> String {
    let mut findings = report["findings"].as_array().expect("a list").iter();
    let found = findings.find(|finding| finding["claim"] == claim);
    found.expect("a finding")["why"].to_string()
}

#[tokio::test]
async fn a_shop_that_deduplicates_is_proved_to_do_so() {
    let trial = Trial::of(&["--dedup", "key"]).await;
    let (report, status) = trial.whole("10ms").await;
    let all = [SEQUENCE, AT_ONCE, LATER, OTHER, UNUSED, USED, UNDONE];
    shows(&report, &all.map(|claim| (claim, "proved")));
    assert_eq!(status, 0, "all that is declared was proved");
    let lines = report["lines"].as_array().expect("a list");
    let settings: Vec<&Value> = lines.iter().map(|line| &line["setting"]).collect();
    assert_eq!(settings, ["dedup", "retry", "probe", "compensation"]);
    assert!(lines.iter().all(|line| line["is_declared"] == true));
    assert_eq!(trial.shop.stats().await["orders"], 5, "one for each key");
    assert_eq!(report["effects"].as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn a_shop_that_does_not_deduplicate_is_refuted_in_each_way() {
    let trial = Trial::of(&["--dedup", "none"]).await;
    let (report, status) = trial.whole("10ms").await;
    let wrong = [SEQUENCE, AT_ONCE, LATER, OTHER];
    shows(&report, &wrong.map(|claim| (claim, "refuted")));
    shows(&report, &[(UNUSED, "proved"), (USED, "proved")]);
    assert!(why(&report, OTHER).contains("they were executed"));
    assert_eq!(status, 2, "it is declared");
}

#[tokio::test]
async fn a_shop_that_forgets_keys_is_refuted_only_after_a_while() {
    let trial = Trial::of(&["--dedup", "moment"]).await;
    let (report, status) = trial.whole("2500ms").await;
    shows(&report, &[(SEQUENCE, "proved"), (AT_ONCE, "proved")]);
    shows(&report, &[(LATER, "refuted")]);
    assert!(why(&report, LATER).starts_with("\"after 2s 500ms"));
    assert_eq!(status, 2);
}

#[tokio::test]
async fn a_shop_that_deduplicates_only_in_sequence_is_refuted_at_once() {
    let trial = Trial::of(&["--dedup", "sequence"]).await;
    let (report, status) = trial.whole("10ms").await;
    shows(&report, &[(SEQUENCE, "proved"), (AT_ONCE, "refuted")]);
    shows(&report, &[(LATER, "proved"), (OTHER, "refuted")]);
    assert!(why(&report, OTHER).contains("the first result"));
    assert_eq!(status, 2);
}

#[tokio::test]
async fn a_probe_that_lies_is_refuted_in_both_directions() {
    for (way, unused, used) in [
        ("always", "refuted", "not_shown"),
        ("never", "proved", "refuted"),
    ] {
        let trial = Trial::declaring(&["--dedup", "key", "--probe", way], "").await;
        let (report, status) = trial.report(&["--id", "/order_id", "--after", "1ms"]).await;
        shows(&report, &[(UNUSED, unused), (USED, used)]);
        assert_eq!(status, 2, "{way}: the probe is declared");
    }
}

#[tokio::test]
async fn a_compensation_that_undoes_twice_is_refuted() {
    let trial = Trial::of(&["--dedup", "none", "--cancel", "again"]).await;
    let (report, status) = trial.whole("1ms").await;
    shows(&report, &[(UNDONE, "refuted")]);
    assert_eq!(status, 2);
    let trial = Trial::of(&["--dedup", "none"]).await;
    let (report, _) = trial.whole("1ms").await;
    shows(&report, &[(UNDONE, "proved")]);
}

#[tokio::test]
async fn equal_answers_prove_nothing_while_no_place_in_them_names_the_effect() {
    let trial = Trial::of(&["--dedup", "key"]).await;
    let (report, status) = trial.report(&["--after", "1ms"]).await;
    shows(&report, &[(SEQUENCE, "not_shown"), (AT_ONCE, "not_shown")]);
    shows(&report, &[(LATER, "not_shown"), (OTHER, "not_shown")]);
    assert!(why(&report, SEQUENCE).contains("/order_id"), "a hint");
    assert_eq!(status, 3, "declared, and not shown");
    // A place that every effect has in common names none.
    let (report, _) = trial.report(&["--id", "/status", "--after", "1ms"]).await;
    shows(&report, &[(SEQUENCE, "not_shown"), (AT_ONCE, "not_shown")]);
}

#[tokio::test]
async fn a_count_is_evidence_without_any_id() {
    for (way, verdict) in [("key", "proved"), ("none", "refuted")] {
        let trial = Trial::of(&["--dedup", way]).await;
        let count = format!("{}/stats", trial.shop.url);
        let counted = [
            "--count-url",
            &count,
            "--count",
            "/orders",
            "--after",
            "1ms",
        ];
        let (report, _) = trial.report(&counted).await;
        for claim in [SEQUENCE, AT_ONCE, LATER] {
            shows(&report, &[(claim, verdict)]);
        }
    }
}

#[tokio::test]
async fn a_tool_gets_the_request_that_calls_make() {
    // The shop knows one header of keys only.
    let trial = Trial::declaring(&["--dedup", "key"], "key_header = \"X-Request-Id\"\n").await;
    let (report, _) = trial.report(&["--id", "/order_id", "--after", "1ms"]).await;
    shows(&report, &[(SEQUENCE, "refuted"), (USED, "refuted")]);
}

#[tokio::test]
async fn nothing_is_sent_before_an_operator_says_so_or_if_something_is_wrong() {
    let trial = Trial::of(&[]).await;
    let fails = |options: &[&str], expected: &str| {
        let output = trial.run(options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    let fixed = ["verify-tool", "create_order", "--config", "c.toml"];
    let mut unasked = command(
        trial.folder.path(),
        &[&fixed[..], &["--args", "args.json"]].concat(),
    );
    let unasked = unasked.stdin(Stdio::null()).output().expect("it ends");
    let said = String::from_utf8_lossy(&unasked.stderr).into_owned();
    assert_eq!(unasked.status.code(), Some(1));
    assert!(
        said.contains("real effects") && said.contains("--yes"),
        "{said}"
    );
    let undoing = format!("cancel_order at {}/… is called to undo", trial.shop.url);
    assert!(said.contains(&undoing), "{said}");
    assert!(!said.contains("second key"), "{said}");
    fails(&["--undo-id", "/order_id"], "effect of a second key, once");
    fails(&["--yes", "--id", "order_id"], "--id");
    fails(&["--yes", "--other-args", "args.json"], "same arguments");
    fails(&["--yes", "--count", "/orders"], "--count-url");
    fails(&["--yes", "--after", "soon"], "--after");
    fails(&["--yes", "--rounds", "0"], "--rounds");
    fails(&["--yes", "--fresh", "/quantity"], "no text");
    assert_eq!(trial.shop.stats().await["orders"], 0);
    fs::write(trial.folder.path().join("args.json"), "{}").expect("a file");
    fails(&["--yes"], "first request has to be executed");
    assert_eq!(trial.shop.stats().await["orders"], 0);
}

#[tokio::test]
async fn the_report_names_what_is_justified_and_holds_no_secrets() {
    let trial = Trial::of(&["--dedup", "key"]).await;
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let options = [
        "--yes",
        "--id",
        "/order_id",
        "--after",
        "1ms",
        "--fresh",
        "/business_id",
    ];
    trial.slow_down().await;
    let output = trial.run(&options);
    let text = said(&output);
    assert!(text.contains("[tools.create_order]\n"), "{text}");
    assert!(text.contains("\ndedup = \"key\"\n"), "{text}");
    assert!(text.contains("\nunknown = \"retry\"\n"), "{text}");
    assert!(text.contains("\"B-1-"), "each key has its own: {text}");
    assert!(!text.contains("top-secret"), "{text}");
    let answers: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("    201"))
        .collect();
    assert!(answers.len() > 5, "{text}");
    for answer in answers {
        assert!(
            answer.contains("[redacted]") && !answer.contains("widget"),
            "{answer}"
        );
    }
    let declared = Trial::of(&["--dedup", "none"]).await;
    let text = said(&declared.run(&options));
    assert!(!text.contains("\ndedup = \"key\"\n"), "{text}");
    assert!(
        text.contains("declared, but refuted: dedup = \"key\""),
        "{text}"
    );
}

#[tokio::test]
async fn an_interrupted_trial_has_told_what_it_did() {
    let trial = Trial::of(&["--dedup", "key"]).await;
    let options = "verify-tool create_order --config c.toml --args args.json --yes --after 30s";
    let options: Vec<&str> = options.split(' ').collect();
    let mut running = command(trial.folder.path(), &options);
    let mut running = running.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut said = BufReader::new(running.stdout.take().expect("its output"));
    let mut text = String::new();
    while !text.contains("again: ") && said.read_line(&mut text).expect("a line") > 0 {}
    running.kill().expect("it runs");
    running.wait().expect("it ends");
    said.read_to_string(&mut text).expect("the rest");
    assert!(text.contains("first: ") && text.contains("ord_"), "{text}");
    assert!(!text.contains("later: "), "{text}");
}

#[test]
fn tools_that_cannot_be_asked_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "[store]\nurl = \"sqlite:oncegate.db\"\n\
        [upstreams.server]\nurl = \"http://127.0.0.1:9/mcp\"\n\
        [tools.of_server]\nupstream = \"server\"\n\
        [tools.find]\nurl = \"http://127.0.0.1:9/\"\neffect = \"read\"\n\
        [tools.undone]\nurl = \"http://127.0.0.1:9/\"\ncompensation = { tool = \"of_server\", args = { id = \"/result/id\" } }\n\
        [tools.closed]\nurl = \"http://127.0.0.1:9/\"\n\
        [tools.strict]\nurl = \"http://127.0.0.1:9/\"\ninput_schema = { type = \"object\", required = [\"id\"] }\n";
    fs::write(folder.path().join("c.toml"), config).expect("a file");
    fs::write(folder.path().join("a.json"), "{}").expect("a file");
    for (tool, expected) in [
        ("nowhere", "there is no tool"),
        ("of_server", "a tool of an MCP server"),
        (
            "undone",
            "of_server, which undoes undone, is a tool of an MCP server",
        ),
        ("find", "only reads"),
        ("strict", "--args: "),
        ("closed", "nothing was sent"),
    ] {
        let files = ["--config", "c.toml", "--args", "a.json", "--yes"];
        let output = run(
            folder.path(),
            &[&["verify-tool", tool], &files[..]].concat(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
