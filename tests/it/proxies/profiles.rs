//! Rows of settings for protocols of agents, what `check` says of them, and keys in arguments.

use oncegate::config::{Config, Environment};
use serde_json::json;

use crate::proxies::requests::api;
use crate::support::binary::run;
use crate::support::gateway::one_tool;
use crate::support::{Act, Gateway, Tool};

/// The files that `docs/commerce.md` names.
#[test]
fn the_shipped_examples_are_read_and_name_their_profile() {
    for name in ["acp", "ucp", "mpp", "x402"] {
        let path = format!("config/commerce/{name}.toml");
        let text = std::fs::read_to_string(path).expect("a file");
        let config = Config::read(&text, &Environment::new());
        let config = config.unwrap_or_else(|mistakes| panic!("{name}: {mistakes:?}"));
        let policy = config.tools[0].tool.proxy().expect("a proxy");
        let profile = policy.profile.as_deref().unwrap_or_default();
        assert!(profile.starts_with(name), "{profile}");
        assert!(!policy.answers.is_empty(), "{name}");
    }
}

#[test]
fn check_prints_what_a_profile_presets_and_what_the_file_says_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "[store]\nurl = \"sqlite:a.db\"\n[proxies.shop]\nupstream = \"http://127.0.0.1:9\"\n\
                profile = \"acp@2026-04-17\"\ndedup_window = \"48h\"\n";
    std::fs::write(folder.path().join("a.toml"), text).expect("written");
    let output = run(folder.path(), &["check", "--config", "a.toml", "--expand"]);
    let said = String::from_utf8_lossy(&output.stdout);
    for line in [
        "[proxies.shop]",
        "key_scope = \"path\"",
        "# dedup_window = \"24h\": the file has its own",
    ] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
}

/// As UCP has it over MCP: the key is a member of the arguments.
#[tokio::test]
async fn a_key_in_the_arguments_names_the_call_also_after_the_configuration_says_so() {
    let tool = Tool::start().await;
    tool.always(Act::Numbered);
    let gateway = Gateway::start(&one_tool(&tool, "")).await;
    let body = |key: &str, id: &str| json!({ "args": { "meta": { "idempotency-key": key, "request_id": id }, "checkout": "c1" } });
    let ask = async |key: &str, id: &str| gateway.post("act", &body(key, id), &[]).await;
    let before = ask("k0", "r1").await.expect_ok();
    let from = "key = { from = [\"/meta/idempotency-key\"], source = \"required\" }";
    assert!(gateway.reload(&one_tool(&tool, from)).await);
    let again = ask("k0", "r1").await.expect_ok();
    assert_eq!(
        (again.result(), again.at("/replayed")),
        (before.result(), json!(true)),
        "made before, by its arguments"
    );
    let first = ask("k1", "r1").await.expect_ok();
    let again = ask("k1", "r1").await.expect_ok();
    assert_eq!(again.result(), first.result());
    ask("k1", "r2").await.expect_problem("key-reused");
    ask("a b", "r3").await.expect_problem("key-invalid");
    let none = json!({ "args": { "checkout": "c1" } });
    let none = gateway.post("act", &none, &[]).await;
    none.expect_problem("key-missing");
    let differs = gateway
        .post("act", &body("k1", "r1"), &[("idempotency-key", "k2")])
        .await;
    differs.expect_problem("key-conflict");
    assert_eq!(tool.effects(), 2);
}

#[tokio::test]
async fn what_does_not_fit_a_row_is_refused_with_its_place() {
    let tool = Tool::start().await;
    let mistakes = |more: &str| {
        let text = format!("[store]\nurl = \"sqlite:a.db\"\n{}", api(&tool, more));
        let read = Config::read(&text, &Environment::new());
        let mistakes = read.err().unwrap_or_default();
        mistakes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    for (more, expected) in [
        (
            "profile = \"acp\"",
            "5:11: proxies.api.profile: there is no such profile",
        ),
        (
            "compare = \"bytes\"\nignore = [\"/body/a\"]",
            "6:10: proxies.api.ignore: with compare = \"bytes\" all of a body counts",
        ),
        (
            "never_keep = [401]",
            "5:14: proxies.api.never_keep: without remember_rejections",
        ),
        (
            "answers = \"soap\"",
            "5:11: proxies.api.answers: must be one of",
        ),
        (
            "key_from = [\"/header/x\"]",
            "5:12: proxies.api.key_from: this begins with",
        ),
        (
            "send_key = \"none\"\ndedup = \"key\"",
            "proxies.api.dedup: the API cannot deduplicate",
        ),
        (
            "probe = { url = \"http://127.0.0.1:9/{key}\", answers = true }",
            "probe.answers: only what found names",
        ),
        (
            "send_key = \"none\"\nprobe = { url = \"http://127.0.0.1:9/{key}\" }",
            "proxies.api.probe: the API gets no key",
        ),
        (
            "key_from = [\"/body/id\"]\nredact = { request = [\"/id\"] }",
            "proxies.api.key_from: a key is stored",
        ),
        (
            "unkeyed = \"pass\"\nkey_from = [\"/body/id\"]",
            "proxies.api.unkeyed: with key_from each write is guarded",
        ),
        (
            "[[proxies.api.rules]]\npath = \"/a/{x}/{x}\"\nas = \"write\"",
            "two segments have the same name",
        ),
        (
            "[[proxies.api.rules]]\npath = \"/a/{x}\"\nas = \"write\"\nprobe = { url = \"http://127.0.0.1:9/{y}\" }",
            "would be sent as it stands",
        ),
    ] {
        let said = mistakes(more);
        assert!(said.contains(expected), "{more}: {said}");
    }
    assert_eq!(
        mistakes("profile = \"acp@2026-04-17\"\ndedup_window = \"48h\""),
        ""
    );
}
