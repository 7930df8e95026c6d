//! The configuration is read again while the gateway runs (`SIGHUP`): with the real binary.

use serde_json::{Value, json};

use crate::support::binary::{Process, free_port, log, write_config};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client, until};

/// A process with its folder, and the client that asks it.
struct Running {
    process: Process,
    folder: tempfile::TempDir,
    client: reqwest::Client,
}

impl Running {
    async fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let process = Process::start(folder.path(), free_port(), config).await;
        Self {
            process,
            folder,
            client: client(),
        }
    }

    /// Writes another configuration and waits until it is taken over.
    async fn reload(&self, config: &str) {
        let (_, failures) = self.reloads().await;
        self.read_again(config).await;
        assert_eq!(
            self.reloads().await.1,
            failures,
            "{:?}",
            self.said("the configuration was not reloaded")
        );
    }

    /// Writes another configuration and waits until it was read.
    async fn read_again(&self, config: &str) {
        write_config(self.folder.path(), self.process.port, config);
        self.hang_up().await;
    }

    async fn hang_up(&self) {
        let before = self.reloads().await;
        self.process.signal("HUP");
        until("the configuration was read", async || {
            self.reloads().await != before
        })
        .await;
    }

    /// How often a configuration was taken over, and how often not.
    async fn reloads(&self) -> (String, String) {
        let of = async |result: &str| {
            self.metric(&format!(
                "oncegate_config_reloads_total{{result=\"{result}\"}}"
            ))
            .await
        };
        (of("success").await, of("failure").await)
    }

    async fn metric(&self, line: &str) -> String {
        let text = self.get("/metrics").await.text;
        let value = text
            .lines()
            .find_map(|have| have.strip_prefix(line)?.strip_prefix(' '))
            .map(str::to_owned);
        value.unwrap_or_else(|| panic!("there is no {line}"))
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::to(self.client.get(self.process.url(path))).await
    }

    /// Calls `act`.
    async fn call(&self, token: &str, args: Value) -> Answer {
        let url = self.process.url("/v1/tools/act/calls");
        let request = self
            .client
            .post(url)
            .bearer_auth(token)
            .body(json!({ "args": args }).to_string());
        Answer::to(request).await
    }

    /// The lines of the log that hold this.
    fn said(&self, what: &str) -> Vec<String> {
        let said = std::fs::read_to_string(log(self.folder.path())).expect("a log");
        said.lines()
            .filter(|line| line.contains(what))
            .map(str::to_owned)
            .collect()
    }
}

fn token(name: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name));
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    )
}

#[tokio::test]
async fn a_new_token_is_let_in_and_a_removed_one_is_not() {
    let tool = Tool::start().await;
    let act = one_tool(&tool, "");
    let gateway = Running::start(&format!("{}{act}", token("old"))).await;
    gateway.call("old", json!({ "n": 1 })).await.expect_ok();
    gateway
        .call("new", json!({ "n": 2 }))
        .await
        .expect_problem("unauthenticated");
    let started = gateway
        .metric("oncegate_config_last_success_timestamp_seconds")
        .await;
    assert!(
        started.parse::<i64>().expect("a time") > 1_700_000_000,
        "{started}"
    );

    gateway.reload(&format!("{}{act}", token("new"))).await;
    assert_eq!(gateway.reloads().await, ("1".into(), "0".into()));
    gateway.call("new", json!({ "n": 2 })).await.expect_ok();
    gateway
        .call("old", json!({ "n": 3 }))
        .await
        .expect_problem("unauthenticated");
    assert_eq!(tool.requests(), 2);
}

#[tokio::test]
async fn a_changed_tool_is_used_and_a_call_that_runs_goes_on_as_it_began() {
    let (before, after) = (Tool::start().await, Tool::start().await);
    let (hold, held) = Act::held(Act::Answer(429, "retry-after: 0\r\n", b""));
    before.then(held);
    let retrying = "outcomes = { 429 = \"not_executed\" }\nretry = { attempts = 2, base = \"1ms\", max = \"1ms\" }\n";
    // Another pool of connections, too.
    let gateway = Running::start(&one_tool(
        &before,
        &format!("{retrying}connection_reuse = \"7s\"\n"),
    ))
    .await;
    let running = gateway.call("", json!({ "n": 1 }));
    let meanwhile = async {
        until("the tool was asked", async || before.requests() == 1).await;
        gateway.reload(&one_tool(&after, "")).await;
        gateway.call("", json!({ "n": 2 })).await.expect_ok();
        assert_eq!((before.requests(), after.requests()), (1, 1));
        drop(hold);
    };
    let (answer, ()) = tokio::join!(running, meanwhile);
    answer.expect_ok();
    assert_eq!(
        (before.requests(), before.effects(), after.requests()),
        (2, 1, 1),
        "its retry is its own"
    );
}

#[tokio::test]
async fn a_file_with_mistakes_changes_nothing_and_each_is_said_with_its_line() {
    let tool = Tool::start().await;
    let config = format!("{}{}", token("old"), one_tool(&tool, ""));
    let gateway = Running::start(&config).await;
    let started = gateway
        .metric("oncegate_config_last_success_timestamp_seconds")
        .await;
    let bad = format!(
        "{}{}effect = \"wrote\"\ncolour = 1\n",
        token("new"),
        one_tool(&tool, "")
    );
    gateway.read_again(&bad).await;
    assert_eq!(gateway.reloads().await, ("0".into(), "1".into()));
    assert_eq!(
        gateway
            .metric("oncegate_config_last_success_timestamp_seconds")
            .await,
        started
    );
    let line = |text: &str| {
        let written =
            std::fs::read_to_string(gateway.folder.path().join("oncegate.toml")).expect("a file");
        written
            .lines()
            .position(|line| line.starts_with(text))
            .expect("the line")
            + 1
    };
    for wrong in ["effect", "colour"] {
        let place = format!("oncegate.toml:{}:", line(wrong));
        assert_eq!(gateway.said(&place).len(), 1, "{place}");
    }
    gateway.call("old", json!({ "n": 1 })).await.expect_ok();
    gateway
        .call("new", json!({ "n": 2 }))
        .await
        .expect_problem("unauthenticated");

    // Nor does one that is not there, or is only half written: everyone would be let in.
    std::fs::remove_file(gateway.folder.path().join("oncegate.toml")).expect("removed");
    gateway.hang_up().await;
    gateway.read_again(&one_tool(&tool, "")).await;
    assert_eq!(gateway.reloads().await, ("0".into(), "3".into()));
    assert_eq!(gateway.said("callers are not authenticated").len(), 1);
    gateway
        .call("", json!({ "n": 3 }))
        .await
        .expect_problem("unauthenticated");

    gateway.reload(&config).await;
    assert_eq!(
        gateway.reloads().await,
        ("1".into(), "3".into()),
        "it is not given up"
    );
}

#[tokio::test]
async fn what_takes_a_restart_is_said_and_stays_as_it_was() {
    let tool = Tool::start().await;
    let gateway = Running::start(&one_tool(&tool, "")).await;
    let proxy = "[proxies.p]\nupstream = \"https://h\"\n";
    let with_proxy = format!("description = \"another\"\n{proxy}");
    gateway.reload(&one_tool(&tool, &with_proxy)).await;
    assert_eq!(
        gateway.said("take a restart"),
        Vec::<String>::new(),
        "there was nothing to say"
    );
    assert_eq!(gateway.said("read again").len(), 1);

    let file = gateway.folder.path().join("oncegate.toml");
    let written = std::fs::read_to_string(&file).expect("a file");
    let written = written.replace("grace = \"1s\"", "grace = \"2s\"\nmax_body = \"1KiB\"");
    std::fs::write(&file, format!("{written}[log]\nlevel = \"warn\"\n")).expect("written");
    gateway.hang_up().await;
    let said = gateway.said("take a restart");
    assert!(
        said.len() == 1 && said[0].contains("\"keys\":\"server.max_body, server.shutdown_grace\""),
        "{said:?}"
    );
    gateway
        .call("", json!({ "n": "x".repeat(2_000) }))
        .await
        .expect_ok();
    assert_eq!(
        gateway.said("call ended"),
        Vec::<String>::new(),
        "but the level of the log is another"
    );
}

#[tokio::test]
async fn calls_are_not_kept_for_longer_than_the_sagas_that_run_are() {
    let tool = Tool::start().await;
    let gateway = Running::start(&one_tool(&tool, "")).await;
    gateway
        .read_again(&format!(
            "[sagas]\nretention = \"40d\"\n{}",
            one_tool(&tool, "retention = \"40d\"")
        ))
        .await;
    assert_eq!(gateway.reloads().await, ("0".into(), "1".into()));
    assert_eq!(
        gateway
            .said("would take up its old calls; sagas.retention takes a restart")
            .len(),
        1
    );
    gateway
        .reload(&format!(
            "[sagas]\nretention = \"40d\"\n{}",
            one_tool(&tool, "retention = \"30d\"")
        ))
        .await;
}

#[tokio::test]
async fn what_was_seen_of_a_tool_stays_known_unless_it_moves() {
    let (tool, other) = (Tool::start().await, Tool::start().await);
    tool.always(Act::Answer(500, "", b""));
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 1, cooldown = \"1h\" }\n";
    let gateway = Running::start(&one_tool(&tool, rules)).await;
    gateway
        .call("", json!({ "n": 1 }))
        .await
        .expect_problem("outcome-unknown");
    gateway
        .reload(&one_tool(
            &tool,
            &format!("{rules}description = \"x\"\ntimeout = \"1s\"\n"),
        ))
        .await;
    gateway
        .call("", json!({ "n": 2 }))
        .await
        .expect_problem("tool-unavailable");
    assert_eq!(tool.requests(), 1, "it is left alone as before");
    gateway.reload(&one_tool(&other, rules)).await;
    gateway.call("", json!({ "n": 2 })).await.expect_ok();
    assert_eq!((tool.requests(), other.requests()), (1, 1));
}

#[tokio::test]
async fn a_tool_that_is_gone_is_unknown_and_its_unknown_calls_are_held_until_it_is_back() {
    let (tool, other) = (Tool::start().await, Tool::start().await);
    tool.deduplicate();
    let gateway = Running::start(&one_tool(&tool, "")).await;
    // Once more, when what was there at the start has surely been taken up.
    for n in 1..=2 {
        tool.then(Act::ExecuteThenDrop);
        gateway.reload(&one_tool(&tool, "")).await;
        gateway
            .call("", json!({ "n": n }))
            .await
            .expect_problem("outcome-unknown");
        gateway
            .reload(&format!("[tools.other]\nurl = \"{}\"\n", other.url()))
            .await;
        gateway
            .call("", json!({ "n": n }))
            .await
            .expect_problem("unknown-tool");
        assert_eq!(
            gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await,
            "1"
        );
        assert_eq!(
            gateway
                .metric("oncegate_unknown_calls{tool=\"other\"}")
                .await,
            "0"
        );

        // With a policy now, and the loops see it.
        let retry = "dedup = \"key\"\nunknown = \"retry\"\nrecheck = { base = \"100ms\", max = \"100ms\" }\n";
        gateway.reload(&one_tool(&tool, retry)).await;
        until("its call has come to rest", async || {
            gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await == "0"
        })
        .await;
        gateway.call("", json!({ "n": n })).await.expect_ok();
        assert_eq!((tool.requests(), tool.effects()), (2 * n, n));
    }
}

#[tokio::test]
async fn a_call_that_was_executed_is_recognised_after_a_hang_up() {
    let tool = Tool::start().await;
    let gateway = Running::start(&one_tool(&tool, "")).await;
    let first = gateway
        .call("", json!({ "n": 1, "note": "a" }))
        .await
        .expect_ok();
    let after = "key = { source = \"required\", ignore = [\"/note\"] }\ninput_schema = { required = [\"m\"] }\n";
    gateway.reload(&one_tool(&tool, after)).await;
    let again = gateway
        .call("", json!({ "n": 1, "note": "a" }))
        .await
        .expect_ok();
    assert_eq!(
        (again.at("/replayed"), again.at("/call_id")),
        (true.into(), first.at("/call_id"))
    );
    gateway
        .call("", json!({ "n": 2 }))
        .await
        .expect_problem("invalid-arguments");
    assert_eq!(tool.requests(), 1);
}

#[tokio::test]
async fn every_reload_is_in_the_audit_with_the_changed_settings_or_the_mistakes_and_without_values()
{
    let tool = Tool::start().await;
    let config = one_tool(&tool, "headers = { \"X-Secret\" = \"hidden-1\" }");
    let running = Running::start(&config).await;
    let hash = running.metric("oncegate_config_hash").await;
    let changed = config.replace("hidden-1", "hidden-2");
    running.reload(&changed).await;
    assert_ne!(running.metric("oncegate_config_hash").await, hash);
    running
        .read_again(&format!("{changed}\n[tools.act.nonsense]\n"))
        .await;
    let acts = async || {
        let audit = running.get("/v1/audit?act=reload").await;
        let audit: Value = serde_json::from_str(&audit.text).expect("JSON");
        audit["acts"].as_array().expect("acts").clone()
    };
    until("both are in the audit", async || acts().await.len() == 2).await;
    let acts = acts().await;
    let said = |n: usize| acts[n]["reason"].as_str().expect("a reason").to_owned();
    assert_eq!(
        (&acts[0]["outcome"], &acts[1]["outcome"]),
        (&json!("refused"), &json!("done"))
    );
    assert!(said(0).contains("nonsense"), "{}", said(0));
    let done = said(1);
    assert!(
        done.starts_with("changed: tools.act.headers.X-Secret; configuration "),
        "{done}"
    );
    assert!(!done.contains("hidden"), "{done}");
    assert_eq!(acts[1]["target"]["kind"], "configuration");
    let built = format!(
        "oncegate_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(running.metric(&built).await, "1");
}

#[tokio::test]
async fn a_reload_reads_included_files_again_and_a_mistake_in_one_changes_nothing() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let pattern = folder.path().join("*.toml");
    let included = folder.path().join("act.toml");
    let running = Running::start("").await;
    let main = format!("include = [\"{}\"]\n", pattern.display());
    let config = running.folder.path().join("oncegate.toml");
    let text = std::fs::read_to_string(&config).expect("its configuration");
    std::fs::write(&config, format!("{main}{text}")).expect("written");
    running.hang_up().await;
    running
        .call("", json!({ "n": 1 }))
        .await
        .expect_problem("unknown-tool");

    std::fs::write(&included, one_tool(&tool, "")).expect("written");
    running.hang_up().await;
    running.call("", json!({ "n": 1 })).await.expect_ok();
    std::fs::write(&included, "[tools.act]\n").expect("written");
    running.hang_up().await;
    let place = format!("{}:1:1: tools.act.url", included.display());
    assert_eq!(running.said(&place).len(), 1);
    running.call("", json!({ "n": 2 })).await.expect_ok();
    assert_eq!(running.reloads().await, ("2".into(), "1".into()));
    assert_eq!(tool.requests(), 2);
}
