//! `oncegate check` for programs and before a reload, and secrets that lie in files.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::binary::{run, write_config};

const TOOL: &str = "[tools.pay]\nmethod = \"POST\"\nurl = \"http://127.0.0.1:9/pay\"\n";

fn check(folder: &Path, more: &[&str]) -> (bool, String, String) {
    let all = [&["check", "--config", "oncegate.toml"], more].concat();
    let output = run(folder, &all);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_secret_is_read_from_a_file_each_time_and_a_missing_or_empty_one_is_a_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    let header = format!(
        "{TOOL}headers = {{ Authorization = \"Bearer ${{file:{}}}\" }}\n",
        secret.display()
    );
    write_config(folder.path(), 8080, &header);
    let (is_good, _, said) = check(folder.path(), &[]);
    assert!(!is_good && said.contains("secret: No such file"), "{said}");
    fs::write(&secret, "\n").expect("written");
    let (is_good, _, said) = check(folder.path(), &[]);
    assert!(!is_good && said.contains("secret: it is empty"), "{said}");
    fs::write(&secret, "a\u{1}b").expect("written");
    let (is_good, _, said) = check(folder.path(), &[]);
    assert!(
        !is_good && !said.contains("a\u{1}b"),
        "it is not shown: {said}"
    );
    fs::write(&secret, "abc\n").expect("written");
    let (is_good, _, said) = check(folder.path(), &[]);
    assert!(is_good, "{said}");
    write_config(folder.path(), 8080, &header.replace("file:/", "file:"));
    let (is_good, _, said) = check(folder.path(), &[]);
    assert!(!is_good && said.contains("must begin with /"), "{said}");
}

#[test]
fn a_check_for_programs_is_one_object_with_every_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    write_config(folder.path(), 8080, TOOL);
    let (is_good, found, _) = check(folder.path(), &["--json"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(
        (is_good, &found["ok"], &found["tools"]),
        (true, &json!(true), &json!(1))
    );
    write_config(
        folder.path(),
        8080,
        &format!("{TOOL}timeuot = 1\ndeadline = 2\n"),
    );
    let (is_good, found, _) = check(folder.path(), &["--json"]);
    let found: Value = serde_json::from_str(&found).expect("JSON");
    let mistakes = found["mistakes"].as_array().expect("mistakes");
    assert_eq!(
        (is_good, &found["ok"], mistakes.len()),
        (false, &json!(false), 2)
    );
    let first = mistakes[0].as_str().expect("a sentence");
    assert!(first.starts_with("oncegate.toml:"), "{first}");
}

#[test]
fn a_check_against_the_running_configuration_names_changed_keys_of_calls_first() {
    let folder = tempfile::tempdir().expect("a folder");
    write_config(folder.path(), 8080, TOOL);
    let old = folder.path().join("old.toml");
    fs::rename(folder.path().join("oncegate.toml"), &old).expect("renamed");
    let new = format!("{TOOL}description = \"Pay\"\ndedup_window = \"48h\"\n");
    write_config(folder.path(), 8081, &new);
    let (is_good, said, why) = check(folder.path(), &["--diff", "old.toml"]);
    assert!(is_good, "{why}");
    let changes: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("change: "))
        .collect();
    assert!(
        changes[0].starts_with("tools.pay.dedup_window: which calls are the same"),
        "{said}"
    );
    assert_eq!(
        changes[1..],
        ["server.listen (takes a restart)", "tools.pay.description"]
    );
}
