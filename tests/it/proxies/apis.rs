//! The guides of `docs/apis`: their configurations are good, are what the guides quote, and do what the guides say
//! before servers that answer as those APIs do.

mod github; // no keys: what is unknown is held, or the thing itself is asked
mod own; // a service that was built to be asked
mod paypal; // the key in a header of another name
mod square; // the key in the body
mod stripe; // forms, and answers that are given again

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use oncegate::config::{Config, Environment};
use regex::Regex;
use serde_json::{Value, json};

use crate::support::tool::Seen;
use crate::support::{Act, Gateway, Tool, until};

fn path(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(inside)
}

/// The names of the files of a folder, without their endings.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(path(folder)).expect("a folder");
    let names = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name");
        stem.to_str().expect("text").to_owned()
    });
    names.collect()
}

fn configuration(api: &str) -> String {
    fs::read_to_string(path(&format!("config/apis/{api}.toml"))).expect("a configuration")
}

/// The names of the environment variables that a configuration takes.
fn variables(text: &str) -> BTreeSet<String> {
    let variable = Regex::new(r"\$\{([A-Z_]+)\}").expect("a pattern");
    let found = variable.captures_iter(text);
    found.map(|found| found[1].to_owned()).collect()
}

/// The configuration of an API, which stands at this address instead, and is asked about sooner.
fn at(api: &str, address: &str, port: u16) -> String {
    let mut text = configuration(api);
    for name in variables(&text) {
        text = text.replace(&format!("${{{name}}}"), "secret");
    }
    assert!(text.contains(address), "{api} is not at {address}");
    text.replace(address, &format!("http://127.0.0.1:{port}"))
        .replace("base = \"2s\"", "base = \"100ms\"")
}

/// A request for a call with these arguments.
fn call(args: Value) -> Value {
    json!({ "args": args })
}

/// What a server does that keeps keys: the first request with a key is executed, the same again is answered from memory.
fn keeping_keys(
    tool: &Tool,
    key: fn(&Seen) -> String,
    fresh: Act,
    again: Act,
    other: Act,
    busy: Act,
) {
    tool.choose(move |seen, before| {
        let mut earlier = before.iter().filter(|had| key(had) == key(seen));
        match earlier.next() {
            None => fresh.clone(),
            Some(first) if first.body != seen.body || first.line != seen.line => other.clone(),
            Some(first) if first.until.is_none() => busy.clone(),
            Some(_) => again.clone(),
        }
    });
}

/// That the tool was sent the same bytes as often as that, and has executed them once.
#[track_caller]
fn sent_alike(tool: &Tool, times: usize) -> Seen {
    let seen = tool.seen();
    assert_eq!(seen.len(), times, "{seen:#?}");
    let bytes = |seen: &Seen| {
        let mut headers = seen.headers.clone();
        headers.remove("traceparent");
        (seen.line.clone(), headers, seen.body.clone())
    };
    for one in &seen[1..] {
        assert_eq!(bytes(one), bytes(&seen[0]), "the same bytes again");
    }
    assert_eq!(tool.effects(), 1, "{seen:#?}");
    seen[0].clone()
}

/// Aborts a saga, and waits until it is undone.
async fn abort(gateway: &Gateway, saga: &str) {
    let path = format!("/v1/sagas/{saga}");
    let reason = json!({ "reason": "the plan is abandoned" });
    gateway.post_to(&format!("{path}/abort"), &reason).await;
    until("the saga is undone", async || {
        gateway.get(&path).await.at("/state") == "compensated"
    })
    .await;
}

#[test]
fn each_guide_has_a_configuration_that_is_good() {
    let apis = names("docs/apis");
    assert_eq!(apis, names("config/apis"));
    assert!(apis.len() >= 5, "the test reads nothing");
    for api in apis {
        let text = configuration(&api);
        let variables = variables(&text);
        assert!(!variables.is_empty(), "{api} has no credentials");
        let environment: Environment = variables
            .into_iter()
            .map(|name| (name, "dummy".to_owned()))
            .collect();
        let read = Config::read(&text, &environment);
        let read = read.unwrap_or_else(|mistakes| panic!("{api}: {mistakes:#?}"));
        for warning in read.warnings {
            let is_explained = [
                "is taken as proof",
                "its probe has no {key}",
                "writes without a key pass",
            ]
            .iter()
            .any(|known| warning.contains(known));
            assert!(is_explained, "{api}: {warning}");
        }
    }
}

/// What stands in a page and not in the file would be tested by no one.
#[test]
fn what_a_guide_quotes_stands_in_its_configuration() {
    let block = Regex::new(r"(?ms)^```toml\n(.*?)^```").expect("a pattern");
    let mut seen = 0;
    for api in names("docs/apis") {
        let page = fs::read_to_string(path(&format!("docs/apis/{api}.md"))).expect("a guide");
        let text = configuration(&api);
        for quoted in block.captures_iter(&page) {
            seen += 1;
            assert!(text.contains(&quoted[1]), "{api}:\n{}", &quoted[1]);
        }
    }
    assert!(seen >= 15, "it found {seen} blocks");
}

/// A gateway with the configuration of an API before a server of the test.
async fn gateway(api: &str, address: &str, tool: &Tool) -> Gateway {
    Gateway::start(&at(api, address, tool.port)).await
}
