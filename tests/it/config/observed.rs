//! `oncegate check --calls`: timeouts beside the calls that a gateway has seen.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::gateway::one_tool;
use crate::support::mcp::token;
use crate::support::{Act, Gateway, Tool};

fn check(config: &str, gateway: &Gateway, secret: &str) -> (bool, Value) {
    let file = gateway.folder().join("checked.toml");
    std::fs::write(&file, config).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(["check", "--json", "--config"]).arg(&file);
    command.args(["--calls", &gateway.url("")]);
    let output = command.env("ONCEGATE_TOKEN", secret).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let json = serde_json::from_str(&said).unwrap_or_else(|_| json!({ "error": errors }));
    (output.status.success(), json)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_that_is_short_for_the_calls_of_a_gateway_is_a_warning() {
    let tool = Tool::start().await;
    tool.always(Act::after_ms(300, Act::Numbered));
    let tokens = token("reads", "[\"read\", \"call\"]", "");
    let rules = one_tool(&tool, &tokens);
    let gateway = Gateway::start(&rules).await;
    let call = async |n: usize| {
        let body = json!({ "args": {}, "idempotency_key": format!("k{n}") }).to_string();
        let url = gateway.url("/v1/tools/act/calls");
        let request = gateway.client.post(url).bearer_auth("reads").body(body);
        crate::support::Answer::to(request).await.expect_ok()
    };
    futures_util::future::join_all((0..20).map(call)).await;
    let store = "[store]\nurl = \"sqlite:other.db\"\n";
    let short = format!("{store}{}", one_tool(&tool, "timeout = \"500ms\""));
    let (is_good, said) = check(&short, &gateway, "reads");
    assert!(is_good, "{said}");
    let warnings = said["warnings"].to_string();
    assert!(
        warnings.contains("act: of its newest 20 calls 99 % took up to")
            && warnings.contains("its timeout is 500ms")
            && warnings.contains(" s or more"),
        "{said}"
    );
    // The default is long enough. That it is the default is a note.
    let long = format!("{store}{}", one_tool(&tool, ""));
    let (is_good, said) = check(&long, &gateway, "reads");
    assert!(
        is_good && !said["warnings"].to_string().contains("newest"),
        "{said}"
    );
    assert!(
        said["notes"]
            .to_string()
            .contains("act: the timeout is the default of 10s"),
        "{said}"
    );
    let (is_good, said) = check(&long, &gateway, "another");
    let why = said["error"].to_string();
    assert!(
        !is_good && why.contains("the calls of act cannot be read"),
        "{said}"
    );
    gateway.stop().await;
}
