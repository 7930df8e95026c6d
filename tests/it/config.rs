use std::fs;
use std::path::Path;
use std::time::Duration;

use oncegate::config::{Config, Environment, Place};
use oncegate::core::compensation::Policy::By;
use oncegate::core::tool::{Effect, Tool};
use oncegate::gateway::reconcile::Reconciliation;
use sha2::{Digest, Sha256};

use crate::support::binary::run;

const GOOD: &str = "[store]\nurl = \"sqlite:x.db\"\n[tools.t]\nurl = \"http://127.0.0.1:9/\"\n";

fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let environment: Environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Config::read(text, &environment)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

/// A reconciliation in as few words as there can be.
const RECONCILED: &str = "[reconciliations.r]\ntools = [\"t\"]\n[[reconciliations.r.sources]]\nname = \"s\"\n\
    url = \"http://127.0.0.1:9/?a={since}&b={until}\"\nitems = \"\"\nkey = \"/k\"\n";

/// That this line, added to a good tool, is refused with these words.
#[track_caller]
fn check_refused(line: &str, words: &str) {
    let mistakes = read(&format!("{GOOD}{line}\n"), &[]).expect_err(line);
    assert!(
        mistakes.iter().any(|mistake| mistake.contains(words)),
        "{line}: {mistakes:#?}"
    );
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
    for (place, word) in [
        ("items = ", "{cursor}"),
        ("a={since}", "a={from}&b={since}"),
    ] {
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
    for (line, words) in [
        ("deadline = \"20s\"", "shorter than 3 attempts"),
        ("timeout = \"0s\"", "no tool answers in no time"),
        (
            "dedup_window = \"10s\"",
            "forgotten before its call's deadline",
        ),
        (
            "retention = \"1h\"",
            "deleted while their keys are remembered",
        ),
        (
            "key = { fields = [\"/id\"] }",
            "input_schema does not require /id",
        ),
        ("key = { fields = [\"id\"] }", "no JSON Pointer"),
        ("key = { source = \"model\" }", "none of derived, required"),
        ("retry = { attempts = 0 }", "at least 1"),
        ("retry = { attempts = 99 }", "help nobody"),
        ("retry = { base = \"9s\" }", "longer than the longest"),
        ("outcomes = { 99 = \"executed\" }", "no status"),
        ("outcomes = { 500 = \"fine\" }", "is none of"),
        (
            "success = { equals = 1 }",
            "success.pointer: this key is missing",
        ),
        ("input_schema = { type = \"nonsense\" }", "no JSON Schema"),
        ("method = \"TRACE\"", "none of POST"),
        ("headers = { Idempotency-Key = \"x\" }", "the gateway's own"),
        (
            "headers = { X = \"${NO_SUCH_NAME}\" }",
            "NO_SUCH_NAME is not set",
        ),
        ("effect = \"maybe\"", "none of read, write"),
        ("connection_reuse = \"on\"", "or \"off\""),
        ("remember_rejections = \"yes\"", "true or false"),
        ("session = \"mine\"", "none of exclusive, fenced, shared"),
        ("session_wait = \"1h\"", "for more than ten minutes"),
        (
            "budget = { per = \"session\", max = 5 }",
            "budget.window: this key is missing",
        ),
        (
            "budget = { max = 5, window = \"1m\" }",
            "budget.per: this key is missing",
        ),
        (
            "budget = { per = \"user\", max = 0, window = \"1m\" }",
            "at least 1",
        ),
        (
            "budget = { per = \"user\", max = 10001, window = \"1m\" }",
            "bounds nothing",
        ),
        (
            "budget = { per = \"user\", max = 5, window = \"0s\" }",
            "in no time",
        ),
        (
            "key = { per = \"tenant\" }",
            "without fields there is no business key",
        ),
        (
            "similar = { fields = [], window = \"1m\" }",
            "nothing is similar",
        ),
        (
            "similar = { fields = [\"/a\"], window = \"60d\" }",
            "longer than the retention",
        ),
        (
            "similar = { fields = [\"/a\"], window = \"1m\", action = \"warn\" }",
            "none of flag, refuse, replay",
        ),
        (
            "effect = \"read\"\nsession = \"exclusive\"",
            "this one reads",
        ),
        (
            "effect = \"read\"\nbudget = { per = \"user\", max = 1, window = \"1m\" }",
            "this one reads",
        ),
        ("compensation = { tool = \"t\" }", "does not undo itself"),
        ("compensation = { tool = \"u\" }", "is no tool"),
        (
            "compensation = { tool = \"u\", args = { id = \"/order\" } }",
            "begins with none of",
        ),
        (
            "compensation = { args = {} }",
            "compensation.tool: this key is missing",
        ),
        ("compensation = \"cancel\"", "none of none"),
        ("compensate_unknown = \"send\"", "there is no compensation"),
        (
            "effect = \"read\"\ncompensation = \"none\"",
            "this one reads",
        ),
        ("[sagas]\ndeadline = \"0s\"", "in no time"),
        (
            "[sagas]\nretention = \"29d\"",
            "would take up its old calls",
        ),
        ("[sagas]\non_timeout = \"undo\"", "none of abort, report"),
        (
            "[sagas]\nretry = { base = \"9m\", max = \"1m\" }",
            "longer than the longest",
        ),
        ("unknown = \"retry\"", "needs dedup"),
        (
            "unknown = \"retry\"\ndedup = \"key\"\nsession = \"exclusive\"",
            "beside later calls",
        ),
        (
            "unknown = \"retry\"\ndedup = \"key\"\neffect = \"read\"",
            "never unknown",
        ),
        ("unknown = \"probe\"", "needs probe"),
        (
            "probe = { url = \"http://127.0.0.1/orders\" }",
            "with {key} in it",
        ),
        ("recheck = { base = \"1ms\" }", "every 100 ms"),
        ("recheck = { base = \"9m\" }", "longer than the longest"),
        (
            "recheck = { base = \"2s\", give_up_after = \"2s\" }",
            "before it was worked on",
        ),
        ("breaker = { failures = 0 }", "at least 1"),
        ("[nothing.r]\nevery = \"1h\"", "no such key"),
        (
            "[tools.\"two words\"]\nurl = \"http://127.0.0.1/\"",
            "a tool's name",
        ),
        (
            "[server]\nlisten = \"0.0.0.0:80\"",
            "must be a loopback one",
        ),
        (
            "[[auth.tokens]]\nname = \"a\"\ntenant = \"t\"\nsha256 = \"00\"\nscopes = [\"root\"]",
            "unknown scope",
        ),
        (
            "[[auth.tokens]]\nname = \"a\"\ntenant = \"t\"\nsha256 = \"00\"\nscopes = [\"read\"]",
            "64 hex digits",
        ),
        ("= broken", "key"),
    ] {
        check_refused(line, words);
    }
    for (store, words) in [
        ("", "store"),
        ("url = \"mysql://h\"", "names no store"),
        ("url = \"sqlite:\"", "names no store"),
        ("url = \"redis://h/x\"", "no number of a database"),
        ("url = \"redis+sentinel://h\"", "name of the master"),
        ("url = \"redis://a,b\"", "several hosts"),
        (
            "url = \"redis://h\"\ndurability = \"firm\"",
            "none of strict, bounded, relaxed",
        ),
        (
            "url = \"sqlite:a.db\"\nwatermarks = \"w\"",
            "for Redis only",
        ),
    ] {
        let mistakes = read(&format!("[store]\n{store}\n"), &[]).expect_err(store);
        assert!(
            mistakes.iter().any(|mistake| mistake.contains(words)),
            "{mistakes:?}"
        );
    }
    for more in [
        "session = \"exclusive\"",
        "budget = { per = \"user\", max = 1, window = \"1m\" }",
    ] {
        let text = format!(
            "[store]\nurl = \"redis+cluster://h\"\n[tools.t]\nurl = \"http://127.0.0.1/\"\n{more}\n"
        );
        let mistakes = read(&text, &[]).expect_err(more);
        assert!(
            mistakes[0].contains("t: an exclusive session"),
            "{mistakes:?}"
        );
    }
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
            "/args/card/no is not kept",
        ),
        (
            card("/args/card", "/card/no"),
            String::new(),
            "/args/card is not kept",
        ),
        (
            card("/args", "/card/no"),
            String::new(),
            "/args is not kept",
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

#[test]
fn a_public_address_is_allowed_with_tokens() {
    let digest = "0".repeat(64);
    let token = format!(
        "[[auth.tokens]]\nname = \"a\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    );
    let text = format!("[server]\nlisten = \"0.0.0.0:80\"\n{token}{GOOD}");
    assert_eq!(read(&text, &[]).expect("good").tokens.len(), 1);
    let mistakes =
        read(&format!("{text}{}", token.repeat(2)), &[]).expect_err("three of one name, all alike");
    assert!(
        mistakes
            .iter()
            .any(|mistake| mistake.contains("this is a third")),
        "{mistakes:?}"
    );
}

/// A token of this name, and whatever else is said of it.
fn token(name: &str, digit: char, more: &str) -> String {
    let digest = digit.to_string().repeat(64);
    format!(
        "[[auth.tokens]]\nname = \"{name}\"\ntenant = \"t\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n{more}\n"
    )
}

#[test]
fn what_is_said_of_a_token_must_fit_together() {
    for (more, words) in [
        ("expires = \"soon\"", "is no time; one looks like"),
        (
            "rate = { per_second = 5 }",
            "rate.burst: this key is missing",
        ),
        ("rate = { per_second = 0, burst = 1 }", "at least 1"),
        (
            "new_keys = { per_second = 2000000, burst = 1 }",
            "bounds nothing",
        ),
        ("new_keys = { per_minute = 2, burst = 1 }", "no such key"),
    ] {
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
    check_refused(&(token("a", '0', "") + &other_tenant), "another tenant");
    let twins = token("a", '0', rate) + &token("a", '1', rate) + &token("b", '2', "");
    read(&format!("{GOOD}{twins}"), &[]).expect("good");
}

#[test]
fn a_token_that_has_expired_or_will_soon_is_said() {
    let text = format!(
        "{GOOD}{}{}{}",
        token("old", '0', "expires = \"2026-12-01T00:00:00Z\""),
        token("soon", '1', "expires = 2026-12-14T00:00:00Z"),
        token("fresh", '2', "expires = \"2027-06-01T00:00:00+02:00\""),
    );
    let config = read(&text, &[]).expect("good");
    let warnings = config.warnings_at("2026-12-01T00:00:00Z".parse().expect("a time"));
    assert_eq!(
        warnings,
        [
            "a token of old has expired at 2026-12-01T00:00:00Z: it opens nothing any more",
            "a token of soon expires at 2026-12-14T00:00:00Z: replace it in time",
        ]
    );
}

#[test]
fn a_new_token_is_printed_once_with_the_lines_that_let_it_in() {
    let folder = tempfile::tempdir().expect("a folder");
    let new = |more: &[&str]| {
        let named = [
            "token",
            "--name",
            "shop \"agents\"",
            "--tenant",
            "shop",
            "--scope",
            "call:t",
        ];
        run(folder.path(), &[&named, more].concat())
    };
    let output = new(&["--scope", "read", "--expires", "2999-01-01T00:00:00Z"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("text");
    let (token, block) = said.split_once("\n\n").expect("a token and its lines");
    assert!(
        token.starts_with("og_") && token.len() == 46,
        "32 bytes: {token}"
    );
    assert!(!block.contains(token), "the configuration does not know it");
    fs::write(folder.path().join("good.toml"), format!("{GOOD}{block}")).expect("a file");
    assert!(
        run(folder.path(), &["check", "--config", "good.toml"])
            .status
            .success()
    );
    let config = read(&format!("{GOOD}{block}"), &[]).expect("good");
    let made = &config.tokens[0];
    assert_eq!(
        (made.caller.name.as_str(), made.caller.tenant.as_str()),
        ("shop \"agents\"", "shop")
    );
    assert_eq!(made.sha256, <[u8; 32]>::from(Sha256::digest(token)));
    assert!(
        made.caller.may_call("t") && !made.caller.may_call("u") && made.caller.may_read("shop")
    );
    assert_eq!(
        made.expires.expect("a time").to_string(),
        "2999-01-01T00:00:00Z"
    );
    assert_ne!(new(&[]).stdout, new(&[]).stdout, "no two are alike");
    for wrong in [
        ["--scope", "root"],
        ["--expires", "2020-01-01T00:00:00Z"],
        ["--expires", "soon"],
    ] {
        let output = new(&wrong);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(1), 0),
            "{wrong:?}"
        );
    }
}

#[test]
fn nobody_waits_for_a_running_call_for_longer_than_a_caller_may_ask_for() {
    let with = |wait: &str| read(&format!("[server]\njoin_wait = \"{wait}\"\n{GOOD}"), &[]);
    assert_eq!(
        with("60s").expect("good").limits.join_wait,
        Duration::from_secs(60)
    );
    let mistakes = with("61s").expect_err("too long");
    assert!(mistakes[0].contains("join_wait"), "{mistakes:?}");
}

#[test]
fn the_environment_goes_over_the_file_and_into_its_texts() {
    let text = format!("{GOOD}headers = {{ Authorization = \"Bearer ${{TOKEN}}\" }}\n");
    let environment = [
        ("TOKEN", "secret"),
        ("ONCEGATE_SERVER__LISTEN", "127.0.0.1:1234"),
        ("ONCEGATE_SERVER__MAX_RUNNING", "7"),
        ("ONCEGATE_TOOLS__T__TIMEOUT", "2s"),
        ("ONCEGATE_LOG", "not an override"),
    ];
    let config = read(&text, &environment).expect("good");
    assert_eq!(
        (config.server.listen.port(), config.limits.max_running),
        (1234, 7)
    );
    let tool = &config.tools[0];
    assert_eq!(tool.tool.timeout, Duration::from_secs(2));
    assert_eq!(tool.endpoint.headers["authorization"], "Bearer secret");
    assert!(
        !format!("{config:?}").contains("secret"),
        "credentials are not printed by accident"
    );

    let wrong = [
        ("ONCEGATE_SERVER__LISTEN", "x"),
        ("ONCEGATE_SERVER__LISTENS", "y"),
        ("TOKEN", "t"),
    ];
    let environment: Environment = wrong
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect();
    let mistakes = Config::read(&text, &environment).expect_err("two mistakes");
    let places: Vec<&Place> = mistakes.iter().map(|mistake| &mistake.place).collect();
    let variable = |name: &str| Place::Environment(name.to_owned());
    assert_eq!(
        places,
        [
            &variable("ONCEGATE_SERVER__LISTEN"),
            &variable("ONCEGATE_SERVER__LISTENS")
        ]
    );
}

#[test]
fn what_is_allowed_but_dangerous_is_said() {
    let tool = "url = \"http://shop.example/\"\noutcomes = { 503 = \"not_executed\" }\n\
                success = { pointer = \"/ok\", equals = true, otherwise = \"rejected\" }\n";
    let config = read(
        &format!("[store]\nurl = \"sqlite:x.db\"\n[tools.t]\n{tool}"),
        &[],
    )
    .expect("good");
    assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
    let grace = read(&format!("[server]\nshutdown_grace = \"29s\"\n{GOOD}"), &[]).expect("good");
    assert!(
        grace.warnings[0].contains("longer than shutdown_grace"),
        "{:?}",
        grace.warnings
    );
    assert!(read(GOOD, &[]).expect("good").warnings.is_empty());
}

/// The reference says that it names every default; so it must be the default.
#[test]
fn the_reference_configuration_is_good_and_tells_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/oncegate.toml");
    let text = fs::read_to_string(path).expect("the reference");
    let reference = read(&text, &[]).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    let minimal = read(GOOD, &[]).expect("good");
    assert_eq!(
        format!("{:?}", reference.server),
        format!("{:?}", minimal.server)
    );
    assert_eq!(
        format!("{:?}", reference.limits),
        format!("{:?}", minimal.limits)
    );
    assert_eq!(format!("{:?}", reference.log), format!("{:?}", minimal.log));
    let create = reference
        .tools
        .iter()
        .find(|at| at.tool.name == "create_order")
        .expect("it is there");
    let (tool, default) = (&create.tool, Tool::new("create_order"));
    assert_eq!(
        (tool.effect, default.effect),
        (Effect::Write, Effect::Write)
    );
    assert_eq!(
        (tool.timeout, tool.deadline, tool.retention),
        (default.timeout, default.deadline, default.retention)
    );
    assert_eq!(
        (tool.retry, tool.remember_rejections),
        (default.retry, default.remember_rejections)
    );
    assert_eq!(
        (tool.session, tool.breaker, tool.dedup),
        (default.session, default.breaker, default.dedup)
    );
    assert_eq!(
        (tool.unknown, tool.recheck),
        (default.unknown, default.recheck)
    );
    let By(template) = &tool.compensation else {
        panic!("{:?}", tool.compensation)
    };
    assert!(!template.undoes_unknown, "the default");
    let minimal_one = format!("{GOOD}{RECONCILED}");
    let (reference, default) = (
        &reference.reconciliations,
        read(&minimal_one, &[]).expect("good").reconciliations,
    );
    let of = |one: &Reconciliation| {
        (
            one.lag,
            one.window,
            one.retention,
            one.max_items,
            one.max_anomalies,
        )
    };
    assert_eq!(of(&reference[0]), of(&default[0]));
    assert_eq!(
        reference[0].sources[0].source.timeout,
        default[0].sources[0].source.timeout
    );
    let (endpoint, default) = (&create.endpoint, &minimal.tools[0].endpoint);
    assert_eq!(
        (&endpoint.method, endpoint.connection_reuse),
        (&default.method, default.connection_reuse)
    );
}

const TRACING: &str = "[tracing]\notlp = \"http://127.0.0.1:4318/v1/traces\"\nsample = 1.0\n";

#[test]
#[cfg(not(feature = "otel"))]
fn a_build_that_exports_no_spans_says_so() {
    let mistakes = read(&format!("{GOOD}{TRACING}"), &[]).expect_err("it cannot be done");
    assert!(
        mistakes.len() == 1 && mistakes[0].contains("--features otel"),
        "{mistakes:?}"
    );
}

#[test]
#[cfg(feature = "otel")]
fn where_spans_go_is_checked_and_holds_no_secret() {
    let config = read(&format!("{GOOD}{TRACING}"), &[]).expect("good");
    let tracing = config.tracing.expect("it is there");
    assert_eq!(
        (tracing.service_name.as_str(), config.limits.sample),
        ("oncegate", 1.0)
    );
    for wrong in [
        "[tracing]\nsample = 0.5\n",
        "[tracing]\notlp = \"collector:4318\"\n",
        "[tracing]\notlp = \"http://user:secret@collector/v1/traces\"\n",
        &format!("{TRACING}samples = 1.0\n"),
        &TRACING.replace("1.0", "1.1"),
        &TRACING.replace("1.0", "nan"),
    ] {
        assert_eq!(
            read(&format!("{GOOD}{wrong}"), &[]).expect_err(wrong).len(),
            1,
            "{wrong}"
        );
    }
}

/// A misspelt key is answered with the known ones; the reference must name each of them.
#[test]
fn the_reference_configuration_names_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/oncegate.toml");
    let text = fs::read_to_string(path).expect("the reference");
    let wrong = text
        .replace("\nlisten =", "\nx = 1\nlisten =")
        .replace("\nformat =", "\nx = 1\nformat =")
        .replace("\ndurability =", "\nx = 1\ndurability =")
        .replace("\ntenant =", "\nx = 1\ntenant =")
        .replace("\ntimeout =", "\nx = 1\ntimeout =")
        .replace("\nsource =", "\nx = 1\nsource =")
        .replace("\nfailures =", "\nx = 1\nfailures =")
        .replace(
            "\nnegative_final_after =",
            "\nx = 1\nnegative_final_after =",
        )
        .replace("\nper = \"session\"", "\nx = 1\nper = \"session\"")
        .replace("\nper_second =", "\nx = 1\nper_second =")
        .replace("\naction =", "\nx = 1\naction =")
        .replace("\nbase =", "\nx = 1\nbase =")
        .replace("\npointer =", "\nx = 1\npointer =")
        .replace(
            "\ntool = \"cancel_order\"",
            "\nx = 1\ntool = \"cancel_order\"",
        )
        .replace("\non_timeout =", "\nx = 1\non_timeout =")
        .replace("\nlag =", "\nx = 1\nlag =")
        .replace("\nmissing =", "\nx = 1\nmissing =");
    let mistakes = read(&wrong, &[]).expect_err("unknown keys");
    assert_eq!(mistakes.len(), 22, "{mistakes:#?}");
    for mistake in &mistakes {
        let (_, known) = mistake
            .split_once("known here: ")
            .unwrap_or_else(|| panic!("{mistake}"));
        for key in known.split(", ") {
            let is_named = text.contains(&format!("\n{key} ="))
                || text.contains(&format!("\n# {key} ="))
                || text.contains(&format!(".{key}]"));
            assert!(is_named, "{key} is not in the reference");
        }
    }
}

#[test]
fn a_redis_is_configured_in_one_line_and_shown_without_its_password() {
    let config = read(
        "[store]\nurl = \"rediss://gate:${PW}@redis.example/1\"\n",
        &[("PW", "s3cret")],
    )
    .expect("good");
    assert_eq!(config.store.to_string(), "rediss://redis.example/1");
    assert!(!format!("{config:?}").contains("s3cret"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let plain = read("[store]\nurl = \"redis://redis.example\"\n", &[]).expect("good");
    assert_eq!(
        plain.warnings,
        ["the store redis://redis.example is on another machine and without TLS"]
    );
    assert!(
        read("[store]\nurl = \"redis://localhost\"\n", &[])
            .expect("good")
            .warnings
            .is_empty()
    );
}

#[test]
fn the_configuration_of_the_composed_gateways_is_good() {
    let redis = ("ONCEGATE_REDIS", "redis://gate:pw@redis:6379");
    let config = read(include_str!("../../config/compose.toml"), &[redis]).expect("good");
    assert_eq!(config.store.to_string(), "redis://redis:6379");
    let compose = include_str!("../../docker-compose.yml");
    let token = compose
        .split("Bearer ")
        .nth(1)
        .and_then(|rest| rest.split('\'').next())
        .expect("a token");
    assert_eq!(
        config.tokens[0].sha256,
        <[u8; 32]>::from(Sha256::digest(token)),
        "the line to try works"
    );
}

#[test]
fn the_demo_configuration_is_good() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = run(root, &["check", "--config", "config/demo.toml"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("\nok: 5 tools, 0 tokens\n"));
}

#[test]
fn the_url_of_a_probe_is_no_less_secret_than_the_tools_own() {
    let tool = |host: &str| {
        let url = format!("http://user:hidden@{host}/hidden/{{key}}?token=hidden");
        let text = format!(
            "[store]\nurl = \"sqlite:oncegate.db\"\n[tools.t]\nurl = \"https://{host}/hidden?token=hidden\"\nprobe = {{ url = \"{url}\" }}\n"
        );
        read(&text, &[]).expect("good")
    };
    let far = tool("tools.example");
    assert_eq!(
        far.warnings,
        ["t: the URL of its probe is plain http:// to another machine"]
    );
    let near = tool("127.0.0.1");
    assert!(near.warnings.is_empty(), "{:?}", near.warnings);
    let printed = format!("{:?}", far.tools[0].endpoint);
    assert!(
        printed.contains("tools.example") && !printed.contains("hidden"),
        "{printed}"
    );
}

#[test]
fn a_reconciliation_that_cannot_be_right_is_refused() {
    let good = format!("{GOOD}{RECONCILED}");
    assert_eq!(read(&good, &[]).expect("good").warnings, [""; 0]);
    let of = |rules: &str, source: &str| {
        let text = good.replace("[[recon", &format!("{rules}\n[[recon"));
        read(&format!("{text}{source}\n"), &[])
    };
    for (rules, source, words) in [
        ("every = \"2h\"", "", "it would fall behind"),
        ("every = \"100ms\"", "", "more often than once a second"),
        ("window = \"0s\"", "", "in no time nothing happens"),
        (
            "window = \"30d\"",
            "",
            "the calls of t would be deleted before",
        ),
        (
            "on = { missing = \"webhook\" }",
            "",
            "there is no [webhook]",
        ),
        (
            "on = { missing = \"compensate\" }",
            "",
            "t declares no compensation",
        ),
        ("on = { missing = \"compensate\" }", "", "t has no probe"),
        ("on = { orphan = \"compensate\" }", "", "s has no id"),
        ("on = { settled = \"report\" }", "", "there is no such key"),
        ("max_items = 2000000", "", "not held in memory"),
        ("", "next = \"/next\"", "pages need both"),
        (
            "",
            "join = \"/business_id\"",
            "begins neither with /args/ nor with /result/",
        ),
        ("", "compare = [1]", "each is a JSON Pointer"),
        (
            "",
            "compare = [{ item = \"/a\" }]",
            "each is a JSON Pointer",
        ),
        ("", "ignore = [\"cancelled\"]", "this needs a status"),
        ("", "tool = \"other\"", "none of the tools"),
        ("", "colour = \"red\"", "there is no such key"),
    ] {
        let mistakes = of(rules, source).expect_err(words);
        assert!(
            mistakes.iter().any(|mistake| mistake.contains(words)),
            "{rules} {source}: {mistakes:#?}"
        );
        assert!(
            mistakes
                .iter()
                .all(|mistake| mistake.contains("reconciliations.r")),
            "{mistakes:#?}"
        );
    }
    for (from, to, words) in [
        ("tools = [\"t\"]", "tools = [\"u\"]", "there is no tool u"),
        ("tools = [\"t\"]", "tools = []", "nothing to compare"),
        ("&b={until}", "", "its query must hold {until}"),
        ("key = \"/k\"", "", "key: this key is missing"),
        ("key = \"/k\"", "key = \"k\"", "no JSON Pointer"),
        ("\"http://127", "\"ftp://127", "no http:// or https:// URL"),
        (
            "[reconciliations.r]",
            "redact = { args = [\"/card\"] }\n[reconciliations.r]\n",
            "",
        ),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good);
        if !words.is_empty() {
            let mistakes = read(&text, &[]).expect_err(words);
            assert!(
                mistakes.iter().any(|mistake| mistake.contains(words)),
                "{to}: {mistakes:#?}"
            );
            continue;
        }
        // What is kept nowhere cannot be compared.
        for source in ["compare = [\"/card/number\"]", "join = \"/args/card\""] {
            let mistakes = read(&format!("{text}{source}\n"), &[]).expect_err(source);
            assert!(
                mistakes
                    .iter()
                    .any(|mistake| mistake.contains("is secret in t")),
                "{mistakes:#?}"
            );
        }
    }
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
    for (lines, said) in [
        (
            "ops_listen = \"9100\"",
            "2:14: server.ops_listen: \"9100\" is no address",
        ),
        (
            "ops_listen = \"127.0.0.1:8080\"",
            "2:14: server.ops_listen: this is server.listen",
        ),
        (
            "ops_token = \"secret\"",
            "2:13: server.ops_token: this must be the SHA-256",
        ),
    ] {
        let mistakes = with(lines).expect_err(lines);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(said),
            "{lines}: {mistakes:#?}"
        );
    }
}

#[test]
fn bounds_of_memory_and_of_addresses_fit_together() {
    let with = |lines: &str| read(&format!("[server]\n{lines}\n{GOOD}"), &[]);
    let good = with(
        "max_memory = \"64MiB\"\nmax_connections = 100\nproxies = [\"10.0.0.7\", \"fd00::/8\"]",
    );
    let good = good.expect("good");
    assert_eq!(
        (good.limits.memory.total(), good.server.bounds.per_address),
        (64 << 20, 50)
    );
    assert!(
        good.memory().contains("at most 64.0 MiB for connections"),
        "{}",
        good.memory()
    );
    assert!(
        good.memory()
            .contains("32.0 MiB, enough for 32 calls at once with results of 1.0 MiB"),
        "{}",
        good.memory()
    );
    assert!(
        with("").expect("good").limits.memory.total() > 0,
        "a share of what there is"
    );
    for (lines, said) in [
        (
            "max_memory = \"8MiB\"",
            "2:14: server.max_memory: this must be at least 16.0 MiB, 8 times max_body",
        ),
        (
            "max_memory = \"64MiB\"\nmax_result = \"32MiB\"",
            "2:14: server.max_memory: this must be at least 264.0 MiB",
        ),
        (
            "max_memory = \"much\"",
            "2:14: server.max_memory: this must be a size",
        ),
        (
            "max_connections_per_address = 0",
            "2:31: server.max_connections_per_address: 0 must be at least 1",
        ),
        (
            "proxies = [\"balancer\"]",
            "2:11: server.proxies: \"balancer\" is no address",
        ),
        (
            "proxies = [\"10.0.0.0/40\"]",
            "2:11: server.proxies: \"10.0.0.0/40\" is no address",
        ),
    ] {
        let mistakes = with(lines).expect_err(lines);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(said),
            "{lines}: {mistakes:#?}"
        );
    }
}
