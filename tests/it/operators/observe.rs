//! What is shown to operators: metrics, rules, board, runbook and the files of compose fit together. Whether
//! they say the truth, and fire when they should, `scripts/observe` asks a real Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::approvals::{approve, ask, post, tokens, until_state};
use crate::support::{Act, Gateway, Tool};

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The series of a scrape: names with labels.
async fn series(gateway: &Gateway) -> BTreeSet<String> {
    let text = gateway.get("/metrics").await.expect_ok().text;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
        .collect()
}

/// A series that began with its first event would not show that event as an increase: no alert for it.
#[tokio::test]
async fn every_series_of_a_tool_is_there_before_anything_is_counted() {
    let tool = Tool::start().await;
    let act = "retry = { attempts = 1 }\nbudget = { per = \"session\", max = 9, window = \"10m\" }\n\
               breaker = { failures = 2, cooldown = \"1h\" }\n\
               compensation = { tool = \"undo\", args = {} }";
    let undo = format!(
        "[tools.undo]\nurl = \"{}\"\nretry = {{ attempts = 1 }}",
        tool.url()
    );
    let gateway = Gateway::with_tool(&tool, &format!("{act}\n{undo}")).await;
    let before = series(&gateway).await;

    for act in [
        Act::Numbered,
        Act::Answer(422, "", b"{}"),
        Act::Answer(412, "", b"{}"),
        Act::HalfBody(200),
        Act::Numbered,
        Act::Answer(429, "", b"{}"),
        Act::ExecuteThenDrop,
    ] {
        tool.then(act);
    }
    let ask = async |key: &str, saga: &str| {
        let body =
            json!({ "args": {}, "session_id": "S", "saga_id": saga, "idempotency_key": key });
        gateway.post("act", &body, &[]).await
    };
    for key in ["done", "rejected", "fenced", "lost"] {
        ask(key, "").await;
    }
    ask("undone", "G").await.expect_ok();
    for key in ["unavailable", "unknown", "resting"] {
        assert_ne!(ask(key, "").await.status, 200, "{key}");
    }
    ask("done", "").await.expect_ok();
    ask("unknown", "").await.expect_problem("outcome-unknown");
    gateway
        .post_text("act", "{\"args\":7}".into(), &[])
        .await
        .expect_problem("invalid-request");

    let is_of_a_tool = |series: &&String| series.contains("tool=\"");
    let new: Vec<_> = series(&gateway)
        .await
        .difference(&before)
        .filter(is_of_a_tool)
        .cloned()
        .collect();
    assert!(new.is_empty(), "{new:#?}");
    for (name, least) in [
        ("arrivals_total{kind=\"first\"", 7.0),
        ("first_arrival_failures_total{reason=\"fenced\"", 1.0),
    ] {
        assert!(
            gateway
                .metric(&format!("oncegate_{name},tool=\"act\"}}"))
                .await
                >= least,
            "{name}"
        );
    }
    gateway.stop().await;
}

/// Most series of one tool.
const MOST: usize = 60;

/// A tool that writes, with every setting that adds series. `name` is undone by itself.
fn with_everything(name: &str, tool: &Tool) -> String {
    format!(
        "[tools.{name}]\nurl = \"{}\"\nsession = \"exclusive\"\n\
         retry = {{ attempts = 3 }}\nbreaker = {{ failures = 9, cooldown = \"1m\" }}\noutcomes = {{ 409 = \"rejected\" }}\n\
         input_schema = {{ type = \"object\" }}\nbudget = {{ per = \"session\", max = 9, window = \"10m\" }}\n\
         similar = {{ fields = [\"/to\"], window = \"1h\", action = \"refuse\" }}\n\
         compensation = {{ tool = \"undo\", args = {{}} }}\napproval = {{ when = [\"always\"] }}\n",
        tool.url()
    )
}

/// How many of these series are of a tool.
fn count_of(series: &BTreeSet<String>, tool: &str) -> usize {
    let label = format!("tool=\"{tool}\"");
    series.iter().filter(|one| one.contains(&label)).count()
}

/// Hundreds of tools must not be more than a Prometheus takes.
#[tokio::test]
async fn a_tool_of_any_settings_has_at_most_sixty_series_also_after_a_reload() {
    let tool = Tool::start().await;
    let reads = format!(
        "[tools.look]\nurl = \"{}\"\neffect = \"read\"\n[tools.undo]\nurl = \"{}\"\n{}",
        tool.url(),
        tool.url(),
        tokens()
    );
    let proxy = crate::proxies::requests::api(&tool, "");
    let gateway = Gateway::start(&format!("{reads}{proxy}")).await;
    let few = series(&gateway).await;
    let of_tools = |series: &BTreeSet<String>| {
        let of_a_tool = series.iter().filter(|one| one.contains("tool=\""));
        of_a_tool.count()
    };
    let rest = few.len() - of_tools(&few);
    for name in ["look", "undo", "api"] {
        let count = count_of(&few, name);
        assert!((40..50).contains(&count), "{name}: {count}");
    }
    let names: Vec<String> = (1..=20).map(|n| format!("act{n}")).collect();
    let tools: String = names
        .iter()
        .map(|one| with_everything(one, &tool))
        .collect();
    assert!(gateway.reload(&format!("{tools}{reads}{proxy}")).await);
    let many = series(&gateway).await;
    for name in &names {
        let count = count_of(&many, name);
        assert!((50..=MOST).contains(&count), "{name}: {count}");
    }
    let least = many.len() - few.len();
    assert!(least <= 20 * MOST, "{least}");
    assert!(many.len() <= 20 * MOST + rest + of_tools(&few));
    // What only its settings can count is there at zero, and only for a tool with these settings.
    for one in [
        "approvals_total{outcome=\"lapsed\",",
        "arrivals_total{kind=\"asked\",",
        "barred_total{reason=\"budget\",",
        "barred_total{reason=\"busy\",",
        "barred_total{reason=\"similar\",",
        "proposals{",
        "similar_total{",
    ] {
        let one = |tool: &str| format!("oncegate_{one}tool=\"{tool}\"}}");
        assert!(many.contains(&one("act20")), "{}", one("act20"));
        assert!(!many.contains(&one("undo")), "{}", one("undo"));
    }
    for (one, tool) in [
        ("passed_through_total{", "look"),
        ("tasks_total{", "undo"),
        ("passed_on_total{kind=\"unkeyed\",", "api"),
        ("requests_total{door=\"proxy\",", "api"),
    ] {
        let one = format!("oncegate_{one}tool=\"{tool}\"}}");
        assert!(many.contains(&one), "{one}");
    }
    gateway.stop().await;
}

/// The same as for a tool without approvals.
#[tokio::test]
async fn every_series_of_approvals_and_similar_calls_is_there_before_anything_is_counted() {
    let tool = Tool::start().await;
    let undo = format!("[tools.undo]\nurl = \"{}\"\n{}", tool.url(), tokens());
    let config = format!("{}{undo}", with_everything("act", &tool));
    let gateway = Gateway::start(&config).await;
    let before = series(&gateway).await;
    let in_session = async |key: &str, to: &str| {
        let body = json!({ "args": { "to": to }, "idempotency_key": key, "session_id": "S" });
        crate::approvals::ask_as(&gateway, "wait=0", &body).await
    };
    let one = in_session("one", "a").await;
    approve(&gateway, "ann", &one).await.expect_ok();
    until_state(&gateway, &one, "succeeded").await;
    in_session("alike", "a")
        .await
        .expect_problem("possible-duplicate");
    for (act, by) in [("decline", "ann"), ("withdraw", "agent")] {
        let asked = in_session(act, act).await;
        let reason = match act {
            "decline" => json!({ "reason": "no" }),
            _ => json!({}),
        };
        post(&gateway, by, &asked, act, reason).await.expect_ok();
    }
    ask(&gateway, "without-session", json!({})).await;
    let new = series(&gateway).await;
    let new: Vec<_> = new.difference(&before).collect();
    assert!(new.iter().all(|one| !one.contains("tool=\"")), "{new:#?}");
    let ends = "oncegate_approvals_total{outcome=\"declined\",tool=\"act\"}";
    assert_eq!(gateway.metric(ends).await, 1.0);
    assert!(count_of(&before, "act") <= MOST);
    gateway.stop().await;
}

#[tokio::test]
async fn each_verb_of_the_store_is_timed() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let count = async |operation: &str| {
        let line =
            format!("oncegate_store_operation_duration_seconds_count{{operation=\"{operation}\"}}");
        gateway.metric(&line).await
    };
    // So that the first error of a verb is an increase, too.
    let errors = "oncegate_store_errors_total{kind=\"ambiguous\",operation=\"claim\"}";
    assert!(series(&gateway).await.contains(errors));
    assert_eq!((count("claim").await, count("replace").await), (0.0, 0.0));
    gateway.call(json!({})).await.expect_ok();
    assert_eq!((count("claim").await, count("replace").await), (1.0, 1.0));
    gateway.stop().await;
}

/// The names of our metrics that a text mentions, without what a histogram adds to them.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let found = text.match_indices("oncegate_").filter(|(at, _)| {
        // The name of a recording rule begins otherwise, and goes on otherwise.
        !text[..*at].ends_with(|c: char| is_name(c) || c == ':')
    });
    let names = found.map(|(at, _)| text[at..].split(|c| !is_name(c)).next().unwrap_or_default());
    let ends = ["_bucket", "_count", "_sum"];
    let base = |name: &str| {
        ends.iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name)
            .to_owned()
    };
    names.map(base).collect()
}

/// Each query of the board.
fn queries() -> Vec<String> {
    let board: Value = serde_json::from_str(&file("config/grafana/oncegate.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    targets
        .map(|target| target["expr"].as_str().expect("a query").to_owned())
        .collect()
}

#[test]
fn rules_board_and_runbook_name_only_metrics_that_there_are() {
    let declared = named(&file("crates/engine/src/metrics.rs"));
    assert!(declared.len() > 25, "{declared:?}");
    let rules = file("config/prometheus/rules.yml");
    let recorded: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
        .collect();
    assert_eq!(recorded.len(), 8);
    let queries = queries();
    assert!(queries.len() > 20);
    let pages = [
        "README.md",
        "docs/runbook.md",
        "docs/operate.md",
        "docs/reconciliation.md",
        "docs/sagas.md",
        "docs/ledger.md",
        "docs/redis.md",
    ];
    let pages = pages.map(file);
    for text in queries.iter().chain([&rules]).chain(&pages) {
        let unknown: Vec<_> = named(text).difference(&declared).cloned().collect();
        assert!(unknown.is_empty(), "{unknown:?} in {text}");
        for rule in text.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))) {
            let is_rule = rule.starts_with("tool:oncegate") || rule.starts_with("job:oncegate");
            assert!(
                !is_rule || recorded.contains(&rule),
                "no rule records {rule}"
            );
        }
    }
}

/// The anchor of a heading, as Markdown viewers make it.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

#[test]
fn every_alert_has_a_page_in_the_runbook_and_every_page_an_alert() {
    let (rules, book) = (file("config/prometheus/rules.yml"), file("docs/runbook.md"));
    let tests = file("config/prometheus/rules_test.yml");
    let mut alerts = BTreeSet::new();
    for rule in rules.split("- alert: ").skip(1) {
        let name = rule.lines().next().expect("a name");
        let said = |what: &str| rule.lines().any(|line| line.trim().starts_with(what));
        assert!(
            said(&format!("runbook_url: docs/runbook.md#{}", anchor(name))),
            "{name} has no link"
        );
        for what in ["summary: ", "description: ", "labels: { severity: "] {
            assert!(said(what), "{name} has no {what}");
        }
        // promtool asks whether it does.
        for then in [
            format!("alertname: {name}, exp_alerts: []"),
            format!("alertname: {name}\n        exp_alerts:\n"),
        ] {
            assert!(
                tests.contains(&then),
                "{name} is tested only firing, or only not: {then}"
            );
        }
        alerts.insert(name.to_owned());
    }
    assert!(alerts.len() > 15, "{alerts:?}");
    let pages: Vec<&str> = book.split("\n## ").skip(1).collect();
    let headings = pages.iter().filter_map(|page| page.lines().next());
    assert_eq!(alerts, headings.map(str::to_owned).collect());
    for page in pages {
        for part in [
            "**Means.**",
            "**Users see.**",
            "**Look first.**",
            "**Do.**",
            "**Clears.** It ends ",
            "**Never.**",
        ] {
            assert!(
                page.contains(part),
                "{:?} lacks {part}",
                page.lines().next()
            );
        }
    }
}

/// An operator must not type a path that is answered with 404.
#[tokio::test]
async fn the_runbook_names_only_doors_that_there_are() {
    let gateway = Gateway::start("").await;
    let document = gateway.get("/openapi.json").await.expect_ok().json();
    let routes = document["paths"].as_object().expect("paths");
    let book = file("docs/runbook.md");
    let mut doors = 0;
    for path in book.split("127.0.0.1:8080").skip(1) {
        let end = |c: char| c.is_whitespace() || "'\"?`".contains(c);
        let path = path.split(end).next().expect("a path");
        if path.is_empty() {
            continue;
        }
        let fits = |route: &str| {
            let (asked, there): (Vec<_>, Vec<_>) =
                (path.split('/').collect(), route.split('/').collect());
            asked.len() == there.len()
                && asked
                    .iter()
                    .zip(&there)
                    .all(|(asked, there)| asked == there || there.starts_with('{'))
        };
        let mut routes = routes.keys();
        assert!(
            routes.any(|route| fits(route)),
            "there is no endpoint {path}"
        );
        doors += 1;
    }
    assert!(doors > 20, "{doors}");
    gateway.stop().await;
}

#[test]
fn compose_and_what_it_provisions_name_only_files_that_there_are() {
    let compose = file("docker-compose.yml");
    let mounts = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ./"));
    let mounts: Vec<&str> = mounts.filter_map(|mount| mount.split(':').next()).collect();
    assert!(mounts.len() > 5, "{mounts:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for mount in &mounts {
        assert!(root.join(mount).exists(), "{mount}");
    }
    // What is provisioned lies where it is looked for, and asks the Prometheus of compose.
    let boards = file("config/grafana/provisioning/dashboards/oncegate.yml");
    assert!(boards.contains("path: /etc/grafana/boards"));
    assert!(
        compose.contains("- ./config/grafana/oncegate.json:/etc/grafana/boards/oncegate.json:ro")
    );
    let sources = file("config/grafana/provisioning/datasources/prometheus.yml");
    assert!(
        sources.contains("url: http://prometheus:9090") && compose.contains("\n  prometheus:\n")
    );
    let board: Value = serde_json::from_str(&file("config/grafana/oncegate.json")).expect("JSON");
    for panel in board["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
    {
        let uid = panel["datasource"]["uid"].as_str().expect("a source");
        assert!(
            sources.contains(&format!("uid: {uid}")),
            "{}",
            panel["title"]
        );
    }
}
