//! What `check` refuses of approval.

use super::{config_with, tokens};
use crate::config::mistakes::{check_said, read};

const STORE: &str = "[store]\nurl = \"sqlite:x.db\"\n";

/// The mistakes of a tool with this rule and these further settings.
#[track_caller]
fn refused(approval: &str, more: &str) -> Vec<String> {
    let text = STORE.to_owned() + &config_with("http://127.0.0.1:9/", approval, more);
    read(&text, &[]).expect_err(approval)
}

#[test]
fn a_rule_that_could_not_be_kept_is_refused() {
    let good = STORE.to_owned() + &config_with("http://127.0.0.1:9/", "when = [\"always\"]", "");
    read(&good, &[]).expect("good");
    let always = "when = [\"always\"]";
    for (approval, more, words) in [
        ("", "", "when"),
        ("when = []", "", "without a condition nothing is asked"),
        ("when = [\"sometimes\"]", "", "a condition is"),
        ("when = [{ pointer = \"/a\" }]", "", "a condition is"),
        (
            "when = [{ pointer = \"/a\", above = \"5\" }]",
            "",
            "a condition is",
        ),
        (
            "when = [{ pointer = \"/a\", above = 5, in = [1] }]",
            "",
            "a condition is",
        ),
        ("when = [\"similar\"]", "", "needs the section similar"),
        (
            "when = [\"similar\"]",
            "similar = { fields = [\"/to\"], window = \"1m\", action = \"replay\" }",
            "nothing is asked",
        ),
        ("when = [\"over_budget\"]", "", "needs the section budget"),
        (always, "effect = \"read\"", "a read changes nothing"),
        (
            always,
            "redact = { args = [\"/card\"] }",
            "an approver has to see all arguments",
        ),
        (
            "when = [\"always\"]\nexpires = \"59s\"",
            "",
            "from one minute to 30 days",
        ),
        (
            "when = [\"always\"]\nexpires = \"31d\"",
            "",
            "from one minute to 30 days",
        ),
        (
            "when = [\"always\"]\ngood_for = \"2h\"",
            "",
            "not longer than expires",
        ),
        ("when = [\"always\"]\napprovals = 3", "", "must be 1 or 2"),
        (
            "when = [\"always\"]\nfrom = [\"eve\"]",
            "",
            "approval.from names eve",
        ),
        (
            "when = [\"always\"]\nshow = [\"amount\"]",
            "",
            "is not a JSON Pointer",
        ),
        (
            "when = [\"always\"]\nshow = [\"/card/number\"]",
            "redact = { args = [\"/card\"] }",
            "show has /card/number, which redact.args hides",
        ),
        (
            "when = [\"always\"]\napprovals = 2\nfrom = [\"ann\"]",
            "",
            "approval needs 2 approvers",
        ),
    ] {
        check_said(&refused(approval, more), words);
    }
}

#[test]
fn a_rule_without_tokens_and_a_token_that_calls_and_approves_are_refused() {
    let alone = format!(
        "{STORE}[tools.act]\nurl = \"http://127.0.0.1:9/\"\n[tools.act.approval]\nwhen = [\"always\"]\n"
    );
    let mistakes = read(&alone, &[]).expect_err("no tokens");
    check_said(&mistakes, "approval needs [[auth.tokens]]");
    let tool = format!("{STORE}[tools.act]\nurl = \"http://127.0.0.1:9/\"\n");
    let both = tokens().replace("\"call\", \"read\"", "\"call\", \"approve\"");
    let said = "a token that may call tools must not approve calls";
    check_said(&read(&(tool.clone() + &both), &[]).expect_err("both"), said);
    // Two tokens of one name are one caller.
    let twins = tokens().replace("name = \"ann\"", "name = \"agent\"");
    check_said(&read(&(tool + &twins), &[]).expect_err("twins"), said);
}

#[test]
fn a_rule_of_a_server_asks_neither_about_similar_calls_nor_beyond_budgets() {
    for (when, is_good) in [("always", true), ("similar", false), ("over_budget", false)] {
        let text = format!(
            "{STORE}[upstreams.up]\nurl = \"http://127.0.0.1:9/\"\n[upstreams.up.approval]\nwhen = [\"{when}\"]\n{}",
            tokens()
        );
        match read(&text, &[]) {
            Ok(_) => assert!(is_good, "{when}"),
            Err(mistakes) if is_good => panic!("{mistakes:?}"),
            Err(mistakes) => check_said(&mistakes, "a section of their own"),
        }
    }
}

#[test]
fn notices_that_could_not_be_signed_or_followed_are_refused() {
    let read_with = |more: &str| {
        let tool = config_with("http://127.0.0.1:9/", "when = [\"always\"]", "");
        read(&format!("{STORE}{more}\n{tool}"), &[])
    };
    let webhook =
        |secrets: &str| format!("[webhook]\nurl = \"https://x.example\"\nsecrets = {secrets}");
    let good = format!("\"whsec_{}\"", "A".repeat(32));
    for secrets in [
        "[]".to_owned(),
        format!("[{good}]"),
        format!("[{good}, {good}]"),
    ] {
        read_with(&webhook(&secrets)).expect(&secrets);
    }
    for (secrets, words) in [
        (format!("[{good}, {good}, {good}]"), "at most two secrets"),
        ("[\"whsec_short\"]".to_owned(), "a secret is whsec_ and"),
        (
            format!("[\"{}\"]", "A".repeat(32)),
            "a secret is whsec_ and",
        ),
    ] {
        let mistakes = read_with(&webhook(&secrets)).expect_err(&secrets);
        check_said(&mistakes, words);
        assert!(!format!("{mistakes:?}").contains("AAAA"), "{mistakes:?}");
    }
    for console in ["https://gate.example", "http://127.0.0.1:8080/base/", ""] {
        let console = format!("[approvals]\nconsole = \"{console}\"");
        read_with(&console).expect(&console);
    }
    for console in [
        "gate.example",
        "ftp://gate.example",
        "https://a:b@gate.example",
        "https://gate.example/?x=1",
        "https://gate.example/#x",
    ] {
        let console = format!("[approvals]\nconsole = \"{console}\"");
        let mistakes = read_with(&console).expect_err(&console);
        check_said(&mistakes, "base of the console");
    }
}
