//! What a good configuration reads as, and what it warns of.

use std::fs;
use std::path::Path;
use std::time::Duration;

use oncegate::config::{Config, Environment, Place};
use oncegate::core::compensation::Policy::By;
use oncegate::core::tool::{Effect, Tool};
use oncegate::reconcile::Reconciliation;
use sha2::{Digest, Sha256};

use crate::config::mistakes::{GOOD, RECONCILED, cases, check_said, read, token};
use crate::support::binary::run;

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
    check_said(&mistakes, "this is a third");
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
            "a token of old has expired at 2026-12-01T00:00:00Z: it is not accepted any more",
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
        &reference.wings.reconciliations,
        read(&minimal_one, &[]).expect("good").wings.reconciliations,
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
        .replace("\ngood_for =", "\nx = 1\ngood_for =")
        .replace("\nmax_open =", "\nx = 1\nmax_open =")
        .replace("\nstderr =", "\nx = 1\nstderr =")
        .replace("\ntool_error =", "\nx = 1\ntool_error =")
        .replace("\nas = \"write\"", "\nx = 1\nas = \"write\"")
        .replace("\nmissing =", "\nx = 1\nmissing =");
    let mistakes = read(&wrong, &[]).expect_err("unknown keys");
    assert_eq!(mistakes.len(), 31, "{mistakes:#?}");
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

#[cfg(feature = "postgres")]
#[test]
fn the_configuration_of_the_gateways_composed_over_postgres_is_good() {
    let compose = include_str!("../../../docker-compose.yml");
    let named = |line: &&str| line.trim().starts_with("ONCEGATE_STORE__URL: ");
    let line = compose.lines().find(named).expect("the address");
    let (name, url) = line.trim().split_once(": ").expect("an address");
    let config = read(include_str!("../../../config/compose.toml"), &[(name, url)]);
    let store = config.expect("good").store.to_string();
    assert!(
        store.contains("postgres") && !store.contains("change-this"),
        "{store}"
    );
}

#[test]
fn the_configuration_of_the_composed_gateways_is_good() {
    let redis = ("ONCEGATE_REDIS", "redis://gate:pw@redis:6379");
    let config = read(include_str!("../../../config/compose.toml"), &[redis]).expect("good");
    assert_eq!(config.store.to_string(), "redis://redis:6379");
    let compose = include_str!("../../../docker-compose.yml");
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
    for [lines, said] in &cases(
        r#"
        max_memory = "8MiB" => 2:14: server.max_memory: this must be at least 16.0 MiB, 8 times max_body
        max_memory = "64MiB"\nmax_result = "32MiB" => 2:14: server.max_memory: this must be at least 264.0 MiB
        max_memory = "much" => 2:14: server.max_memory: this must be a size
        max_connections_per_address = 0 => 2:31: server.max_connections_per_address: 0 must be at least 1
        proxies = ["balancer"] => 2:11: server.proxies: "balancer" is not an address
        proxies = ["10.0.0.0/40"] => 2:11: server.proxies: "10.0.0.0/40" is not an address
        "#,
    ) {
        let mistakes = with(lines).expect_err(lines);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(said),
            "{lines}: {mistakes:#?}"
        );
    }
}

#[test]
fn an_empty_variable_is_refused_and_each_refusal_names_the_variable() {
    let tool = |line: &str, value: &str| {
        let mistakes = read(&format!("{GOOD}{line}\n"), &[("TOKEN", value)]);
        mistakes.map(drop).map_err(|mistakes| mistakes.join("\n"))
    };
    let header = "headers = { Authorization = \"Bearer ${TOKEN}\" }";
    assert_eq!(tool(header, "secret"), Ok(()));
    for empty in ["", " ", "\n"] {
        let said = tool(header, empty).expect_err("empty");
        assert!(
            said.contains("the environment variable TOKEN is empty"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for (line, value) in [
        (header, "a\nb"),
        ("timeout = \"${TOKEN}\"", "soon"),
        ("timeout = \"${TOKEN}\"", ""),
        ("timeout = '${TOKEN}s'", "x"),
        ("session = \"${TOKEN}\"", "mine"),
        ("probe = { url = \"${TOKEN}\" }", "nonsense"),
        ("headers = { \"X-A\" = \"\"\"${TOKEN}\"\"\" }", "\u{7f}"),
        ("success = { pointer = \"${TOKEN}\", equals = 1 }", "ok"),
    ] {
        let said = tool(line, value).expect_err(line);
        assert!(said.contains("TOKEN"), "{line}: {said}");
    }
    // A value of another key on the same line is not blamed.
    let said = tool("timeout = \"soon\" # ${TOKEN}", "x").expect_err("no time");
    assert!(!said.contains("TOKEN"), "{said}");
}
