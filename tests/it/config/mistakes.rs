//! Mistakes in a configuration: each is refused with its place.

use std::fs;
use std::time::Duration;

use oncegate::config::{Config, Environment};

use crate::support::binary::run;

pub const GOOD: &str = "[store]\nurl = \"sqlite:x.db\"\n[tools.t]\nurl = \"http://127.0.0.1:9/\"\n";

pub fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let environment: Environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Config::read(text, &environment)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

/// A reconciliation with the fewest settings.
pub const RECONCILED: &str = "[reconciliations.r]\ntools = [\"t\"]\n[[reconciliations.r.sources]]\nname = \"s\"\n\
    url = \"http://127.0.0.1:9/?a={since}&b={until}\"\nitems = \"\"\nkey = \"/k\"\n";

/// A case a line, its parts divided by ` => `. `\n` in it is the end of a line of the configuration.
pub fn cases<const N: usize>(table: &str) -> Vec<[String; N]> {
    let parts = |line: &str| {
        let parts: Vec<String> = line
            .trim()
            .split("=> ")
            .map(|part| part.trim().replace("\\n", "\n"))
            .collect();
        parts.try_into().unwrap_or_else(|_| panic!("{line}"))
    };
    table.trim().lines().map(parts).collect()
}

/// One of the mistakes says this.
#[track_caller]
pub fn check_said(mistakes: &[String], words: &str) {
    let is_said = mistakes.iter().any(|mistake| mistake.contains(words));
    assert!(is_said, "{words}: {mistakes:#?}");
}

/// That this line, added to a good tool, is refused with these words.
#[track_caller]
fn check_refused(line: &str, words: &str) {
    let mistakes = read(&format!("{GOOD}{line}\n"), &[]).expect_err(line);
    check_said(&mistakes, words);
}

#[test]
fn a_placeholder_that_nothing_fills_in_is_a_mistake_with_its_place() {
    let tool = |url: &str, more: &str| {
        let text = format!("[store]\nurl = \"sqlite:x.db\"\n[tools.t]\nurl = \"{url}\"\n{more}\n");
        read(&text, &[]).map(drop)
    };
    let refused = |url: &str, more: &str| tool(url, more).expect_err(url).join("\n");
    for path in ["orders/{name}", "{tool}", "orders?of={user_id}", "a/{a.b}"] {
        let said = refused(&format!("http://127.0.0.1:9/{path}"), "");
        assert!(
            said.starts_with("4:7: tools.t.url: {") && said.contains("would be sent as it stands"),
            "{said}"
        );
    }
    assert!(refused("http://127.0.0.1:9/orders/{name}", "").contains("{name}"));
    assert!(!refused("http://127.0.0.1:9/{a very secret text}", "").contains("secret"));
    let probe = |url: &str| {
        format!("unknown = \"probe\"\nprobe = {{ url = \"http://127.0.0.1:9/{url}\" }}")
    };
    tool("http://127.0.0.1:9/", &probe("{key}")).expect("good");
    assert!(
        refused("http://127.0.0.1:9/", &probe("{key}/{name}")).contains("{name} would be sent")
    );
    for [place, word] in &cases(
        r#"
        items =  => {cursor}
        a={since} => a={from}&b={since}
        "#,
    ) {
        let source = RECONCILED.replace(place, &place.replace("a={since}", word));
        let text = format!("{GOOD}{source}\n");
        let said = read(&text, &[]);
        assert_eq!(
            said.is_err_and(|said| said.join("").contains("{from} would be sent")),
            word.contains("from")
        );
    }
}

#[test]
fn one_mistake_is_one_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(
        folder.path().join("bad.toml"),
        format!("{GOOD}timeout = \"soon\"\n"),
    )
    .expect("a file");
    let output = run(folder.path(), &["check", "--config", "bad.toml"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.ends_with("\n1 mistake, nothing was started\n"),
        "{said}"
    );
}

#[test]
fn five_mistakes_are_five_lines_each_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = r#"[server]
listen = "nowhere"
max_bodies = "1MiB"

[store]
url = "sqlite:x.db"

[tools.pay]
url = "ftp://shop/pay"
timeout = "10 parsecs"
deadline = "5s"
"#;
    fs::write(folder.path().join("bad.toml"), text).expect("a file");
    for command in ["check", "serve"] {
        let output = run(folder.path(), &[command, "--config", "bad.toml"]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).expect("text");
        insta::assert_snapshot!("five_mistakes", said);
    }
    assert!(!folder.path().join("x.db").exists(), "nothing was started");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    for [line, words] in &cases(
        r#"
        deadline = "20s" => shorter than 3 attempts
        timeout = "0s" => must be longer than zero
        dedup_window = "10s" => must not be shorter than the deadline
        retention = "1h" => must not be shorter than the time for which keys are remembered
        key = { fields = ["/id"] } => input_schema does not require /id
        key = { fields = ["id"] } => not a JSON Pointer
        key = { source = "model" } => not one of derived, required
        retry = { attempts = 0 } => at least 1
        retry = { attempts = 99 } => must be at most 20 attempts
        retry = { base = "9s" } => base must not exceed max
        outcomes = { 99 = "executed" } => not a status
        outcomes = { 500 = "fine" } => is not one of
        success = { equals = 1 } => success.pointer: this key is missing
        input_schema = { type = "nonsense" } => not a JSON Schema
        method = "TRACE" => not one of POST
        headers = { Idempotency-Key = "x" } => the gateway's own
        headers = { X = "${NO_SUCH_NAME}" } => NO_SUCH_NAME is not set
        effect = "maybe" => not one of read, write
        connection_reuse = "on" => or "off"
        remember_rejections = "yes" => true or false
        session = "mine" => not one of exclusive, fenced, shared
        session_wait = "1h" => must be at most ten minutes
        budget = { per = "session", max = 5 } => budget.window: this key is missing
        budget = { max = 5, window = "1m" } => budget.per: this key is missing
        budget = { per = "user", max = 0, window = "1m" } => at least 1
        budget = { per = "user", max = 10001, window = "1m" } => must be at most 10000
        budget = { per = "user", max = 5, window = "0s" } => must be longer than zero
        key = { per = "tenant" } => without fields there is no business key
        similar = { fields = [], window = "1m" } => nothing is similar
        similar = { fields = ["/a"], window = "60d" } => longer than the retention
        similar = { fields = ["/a"], window = "1m", action = "warn" } => not one of flag, refuse, replay
        effect = "read"\nsession = "exclusive" => this one reads
        effect = "read"\nbudget = { per = "user", max = 1, window = "1m" } => this one reads
        compensation = { tool = "t" } => does not undo itself
        compensation = { tool = "u" } => is not a tool
        compensation = { tool = "u", args = { id = "/order" } } => begins with none of
        compensation = { args = {} } => compensation.tool: this key is missing
        compensation = "cancel" => not one of none
        compensate_unknown = "send" => there is no compensation
        effect = "read"\ncompensation = "none" => this one reads
        [sagas]\ndeadline = "0s" => must be longer than zero
        [audit]\nretention = "23h" => from 1 to 3650 days
        [audit]\nretention = "3651d" => from 1 to 3650 days
        [sagas]\nretention = "29d" => would take up its old calls
        [sagas]\non_timeout = "undo" => not one of abort, report
        [sagas]\nretry = { base = "9m", max = "1m" } => base must not exceed max
        unknown = "retry" => needs dedup
        unknown = "retry"\ndedup = "key"\nsession = "exclusive" => beside later calls
        unknown = "retry"\ndedup = "key"\neffect = "read" => never unknown
        unknown = "probe" => needs probe
        probe = { url = "http://127.0.0.1/orders" } => its URL has {key} or {/pointer} in it
        recheck = { base = "1ms" } => must be at least 100 ms
        recheck = { base = "9m" } => recheck.base must not exceed recheck.max
        recheck = { base = "2s", give_up_after = "2s" } => recheck.give_up_after must be longer than recheck.base
        breaker = { failures = 0 } => at least 1
        [nothing.r]\nevery = "1h" => no such key
        [tools."two words"]\nurl = "http://127.0.0.1/" => a tool's name
        [server]\nlisten = "0.0.0.0:80" => must be a loopback one
        [[auth.tokens]]\nname = "a"\ntenant = "t"\nsha256 = "00"\nscopes = ["root"] => unknown scope
        [[auth.tokens]]\nname = "a"\ntenant = "t"\nsha256 = "00"\nscopes = ["read"] => 64 hex digits
        = broken => key
        "#,
    ) {
        check_refused(line, words);
    }
    for [store, words] in &cases(
        r#"
         => store
        url = "mysql://h" => names no store
        url = "sqlite:" => names no store
        url = "redis://h/x" => not a number of a database
        url = "redis+sentinel://h" => name of the master
        url = "redis://a,b" => several hosts
        url = "redis://h"\ndurability = "firm" => not one of strict, bounded, relaxed
        url = "sqlite:a.db"\nwatermarks = "w" => for Redis and PostgreSQL only
        "#,
    ) {
        let mistakes = read(&format!("[store]\n{store}\n"), &[]).expect_err(store);
        check_said(&mistakes, words);
    }
    let needs_one_step = "session = \"exclusive\"\nbudget = { per = \"user\", max = 1, window = \"1m\" }\nsimilar = { fields = [\"/sku\"], window = \"1m\", action = \"refuse\" }";
    let on_a_cluster = format!(
        "[store]\nurl = \"redis+cluster://h\"\n[tools.t]\nurl = \"http://127.0.0.1/\"\n{needs_one_step}\n"
    );
    assert!(read(&on_a_cluster, &[]).is_ok(), "a cluster has all of it");
    let mistakes = read("", &[]).expect_err("a gateway without a store");
    assert_eq!(mistakes, ["1:1: store: this section is missing"]);
}

#[test]
fn a_compensation_that_cannot_be_sent_is_refused_where_it_is_written() {
    let text = |undone: &str, by: &str| {
        format!("{GOOD}{undone}\n[tools.u]\nurl = \"http://127.0.0.1:9/\"\n{by}\n")
    };
    let by_result = "compensation = { tool = \"u\", args = { id = \"/result/id\" } }";
    let needs = |names: &str| {
        format!(
            "input_schema = {{ required = [{names}], properties = {{ of = {{ required = [\"x\"] }} }} }}"
        )
    };
    let of = "compensation = { tool = \"u\", args = { id = \"/result/id\", of = { y = 1 } } }";
    let card = |path: &str, secret: &str| {
        format!(
            "compensation = {{ tool = \"u\", args = {{ list = [\"{path}\"] }} }}\nredact = {{ args = [\"{secret}\"] }}"
        )
    };
    for (undone, by, words) in [
        (
            format!("{by_result}\ncompensate_unknown = \"send\""),
            String::new(),
            "there is nothing at /result/id",
        ),
        (
            by_result.into(),
            "session = \"exclusive\"".into(),
            "never called without a session_id",
        ),
        (
            card("/args/card/no", "/card"),
            String::new(),
            "/args/card/no is not stored",
        ),
        (
            card("/args/card", "/card/no"),
            String::new(),
            "/args/card is not stored",
        ),
        (
            card("/args", "/card/no"),
            String::new(),
            "/args is not stored",
        ),
        (
            by_result.into(),
            needs("\"id\", \"why\""),
            "the input_schema of u requires /why",
        ),
        (of.into(), needs("\"id\""), "requires /of/x"),
    ] {
        let mistakes = read(&text(&undone, &by), &[]).expect_err(words);
        assert!(
            mistakes.len() == 1 && mistakes[0].contains(words),
            "{mistakes:?}"
        );
        assert!(
            mistakes[0].starts_with("5:16: tools.t.compensation: "),
            "{mistakes:?}"
        );
    }
    for (undone, by) in [
        (format!("{by_result}\nsession = \"exclusive\""), "session = \"exclusive\"".into()),
        (format!("{by_result}\nredact = {{ args = [\"/card\"], result = [\"/id\"] }}"), needs("\"id\"")),
        (card("/args/cards", "/card"), String::new()),
        (
            "compensation = { tool = \"u\", args = { id = \"/call/key\" } }\ncompensate_unknown = \"send\""
                .into(),
            String::new(),
        ),
    ] {
        read(&text(&undone, &by), &[]).expect("it can be sent");
    }
}

/// A token of this name, with further settings.
pub fn token(name: &str, digit: char, more: &str) -> String {
    let digest = digit.to_string().repeat(64);
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n{more}\n"
    )
}

#[test]
fn what_is_said_of_a_token_must_fit_together() {
    for [more, words] in &cases(
        r#"
        expires = "soon" => is not a time; one looks like
        rate = { per_second = 5 } => rate.burst: this key is missing
        rate = { per_second = 0, burst = 1 } => at least 1
        new_keys = { per_second = 2000000, burst = 1 } => must be at most
        new_keys = { per_minute = 2, burst = 1 } => no such key
        "#,
    ) {
        check_refused(&token("a", '0', more), words);
    }
    let rate = "rate = { per_second = 5, burst = 5 }";
    check_refused(
        &(token("a", '0', rate) + &token("a", '1', "")),
        "must be the same for both",
    );
    let reserved = token("a", '1', "").replace("\"t\"", "\"oncegate\"");
    check_refused(&reserved, "oncegate is the gateway's own");
    let other_tenant = token("a", '1', "").replace("\"t\"", "\"u\"");
    check_refused(&(token("a", '0', "") + &other_tenant), "the same tenant");
    let twins = token("a", '0', rate) + &token("a", '1', rate) + &token("b", '2', "");
    read(&format!("{GOOD}{twins}"), &[]).expect("good");
}

#[test]
fn a_duplicate_waits_no_longer_than_a_caller_may_ask_for() {
    let with = |wait: &str| read(&format!("[server]\njoin_wait = \"{wait}\"\n{GOOD}"), &[]);
    assert_eq!(
        with("60s").expect("good").limits.join_wait,
        Duration::from_secs(60)
    );
    let mistakes = with("61s").expect_err("too long");
    assert!(mistakes[0].contains("join_wait"), "{mistakes:?}");
}

#[test]
fn a_reconciliation_that_cannot_be_right_is_refused() {
    let good = format!("{GOOD}{RECONCILED}");
    assert_eq!(read(&good, &[]).expect("good").warnings, [""; 0]);
    let of = |rules: &str, source: &str| {
        let text = good.replace("[[recon", &format!("{rules}\n[[recon"));
        read(&format!("{text}{source}\n"), &[])
    };
    for [rules, source, words] in &cases(
        r#"
        every = "2h" =>  => it would fall behind
        every = "100ms" =>  => must be at least one second
        window = "0s" =>  => longer than zero
        window = "30d" =>  => the calls of t would be deleted before
        on = { missing = "webhook" } =>  => there is no [webhook]
        on = { missing = "compensate" } =>  => t declares no compensation
        on = { missing = "compensate" } =>  => t has no probe
        on = { orphan = "compensate" } =>  => s has no id
        on = { settled = "report" } =>  => there is no such key
        on = { duplicate = "adopt" } =>  => on.duplicate
        on = { orphan = "adopt" } => join = "/args/id" => is found by the key that the tool got
        show = ["/1","/2","/3","/4","/5","/6","/7","/8","/9"] =>  => must be at most 8 values
         => adopt = { results = "/a" } => there is no such key
        max_items = 2000000 =>  => must be at most 1000000
         => next = "/next" => pages need both
         => join = "/business_id" => begins neither with /args/ nor with /result/
         => compare = [1] => each is a JSON Pointer
         => compare = [{ item = "/a" }] => each is a JSON Pointer
         => ignore = ["cancelled"] => this needs a status
         => tool = "other" => not one of the tools
         => colour = "red" => there is no such key
        "#,
    ) {
        let mistakes = of(rules, source).expect_err(words);
        check_said(&mistakes, words);
        assert!(
            mistakes
                .iter()
                .all(|mistake| mistake.contains("reconciliations.r")),
            "{mistakes:#?}"
        );
    }
    let redacting = "redact = { args = [\"/card\"] }\n[reconciliations.r]\n";
    for (from, to, words) in [
        ("tools = [\"t\"]", "tools = [\"u\"]", "there is no tool u"),
        ("tools = [\"t\"]", "tools = []", "nothing to compare"),
        ("&b={until}", "", "its query must hold {until}"),
        ("key = \"/k\"", "", "key: this key is missing"),
        ("key = \"/k\"", "key = \"k\"", "not a JSON Pointer"),
        ("\"http://127", "\"ftp://127", "not an http://"),
        ("[reconciliations.r]", redacting, ""),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good);
        if !words.is_empty() {
            let mistakes = read(&text, &[]).expect_err(words);
            check_said(&mistakes, words);
            continue;
        }
        // What is kept nowhere cannot be compared.
        for source in ["compare = [\"/card/number\"]", "join = \"/args/card\""] {
            let mistakes = read(&format!("{text}{source}\n"), &[]).expect_err(source);
            check_said(&mistakes, "is secret in t");
        }
    }
}

#[test]
fn what_undoes_surplus_effects_takes_something_of_the_effect() {
    let on = "tools = [\"t\"]\non = { duplicate = \"compensate\" }\n";
    let rules = RECONCILED.replace("tools = [\"t\"]\n", on);
    let with = |args: &str| {
        let undone = format!("compensation = {{ tool = \"u\", args = {{ {args} }} }}\n");
        let by = "[tools.u]\nurl = \"http://127.0.0.1:9/u\"\n";
        let text = format!("{GOOD}{undone}{by}{rules}id = \"/id\"\ntool = \"t\"\n");
        read(&text, &[])
    };
    assert!(with("id = \"/args/id\", of = [{ at = \"/result/id\" }]").is_ok());
    for args in [
        "id = \"/args/id\"",
        "key = \"/call/tool_key\", why = \"result\"",
        "",
    ] {
        let mistakes = with(args).expect_err(args);
        check_said(&mistakes, "takes nothing below /result");
    }
}

#[test]
fn a_tool_that_remembers_keys_is_told_of_for_how_long_they_count() {
    let told = |lines: &str| {
        let read = read(&format!("{GOOD}dedup = \"key\"\n{lines}\n"), &[]);
        let warnings = read.expect("good").warnings;
        warnings
            .iter()
            .any(|warning| warning.contains("dedup_window"))
    };
    assert!(told(""));
    assert!(!told("dedup_window = \"30d\""));
    let schema = "{ type = \"object\", required = [\"order\"], properties = { order = { type = \"string\" } } }";
    let by_order = format!("key = {{ fields = [\"/order\"] }}\ninput_schema = {schema}");
    assert!(!told(&by_order));
}

#[test]
fn what_a_result_hides_is_not_shown_as_an_argument_of_its_compensation() {
    let told = |args: &str, hidden: &str| {
        let undone = format!(
            "redact = {{ result = [\"/secret\"] }}\ncompensation = {{ tool = \"u\", args = {{ {args} }} }}\n"
        );
        let by = format!("[tools.u]\nurl = \"http://127.0.0.1:9/u\"\n{hidden}\n");
        let warnings = read(&format!("{GOOD}{undone}{by}"), &[])
            .expect("good")
            .warnings;
        warnings
            .iter()
            .any(|warning| warning.contains("list it in redact.args there"))
    };
    let hidden = "redact = { args = [\"/s\"] }";
    for args in [
        "s = \"/result/secret\"",
        "s = [\"/result\"]",
        "s = { of = \"/result/secret/x\" }",
    ] {
        assert!(told(args, ""), "{args}");
        assert!(!told(args, hidden), "{args}");
    }
    assert!(!told("s = \"/result/id\"", ""));
}

#[test]
fn the_ops_doors_need_a_place_and_a_digest() {
    let with = |lines: &str| read(&format!("[server]\n{lines}\n{GOOD}"), &[]);
    let digest = "ab".repeat(32);
    let good = with(&format!(
        "ops_listen = \"0.0.0.0:9100\"\nops_token = \"{digest}\""
    ))
    .expect("good");
    assert_eq!(good.server.ops_listen.map(|at| at.port()), Some(9_100));
    assert_eq!(good.server.ops_token, Some([0xab; 32]));
    for [lines, said] in &cases(
        r#"
        ops_listen = "9100" => 2:14: server.ops_listen: "9100" is not an address
        ops_listen = "127.0.0.1:8080" => 2:14: server.ops_listen: this is server.listen
        proxy_listen = "9100" => 2:16: server.proxy_listen: "9100" is not an address
        proxy_listen = "127.0.0.1:8080" => 2:16: server.proxy_listen: another listener has this
        ops_token = "secret" => 2:13: server.ops_token: this must be the SHA-256
        "#,
    ) {
        let mistakes = with(lines).expect_err(lines);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(said),
            "{lines}: {mistakes:#?}"
        );
    }
}
