//! What an operator says of one tool.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use serde_json::Value;

use super::reader::{Count, Section, Spot, Switch};
use crate::core::compensation::{self, Template};
use crate::core::key::{self, Pointer};
use crate::core::schema::Schema;
use crate::core::tool::{Budget, Mode, OnSimilar, OnUnknown, Per, SessionPolicy, Similar};
use crate::core::tool::{Declared, Effect, SuccessTest, Tool};
use crate::core::tool::{Dedup, Recheck};
use crate::core::{breaker, redact, retry};
use crate::downstream::{Endpoint, secret_header};
use crate::gateway::ToolAt;

/// Attempts of one call, at the most.
const MAX_ATTEMPTS: u32 = 20;
/// Unknown calls are not worked on more often than this.
const MIN_RECHECK: Duration = Duration::from_millis(100);
/// The longest wait for a session: what waits holds a connection.
const MAX_SESSION_WAIT: Duration = Duration::from_secs(600);
/// The largest budget: each call in it is remembered for the window.
const MAX_BUDGET: u32 = 10_000;

/// A tool, and where it is said how its calls are undone: what is wrong with that is known only when all tools are.
pub(super) fn tool(
    name: &str,
    mut section: Section<'_, '_>,
    warnings: &mut Vec<String>,
) -> Option<(ToolAt, Spot)> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if !plain || name.is_empty() || name.len() > 64 {
        section.mistake(
            "",
            "a tool's name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -",
        );
    }
    let default = Tool::new(name);
    let tool = Tool {
        name: name.to_owned(),
        description: section.get_or("description", default.description),
        effect: section
            .word(
                "effect",
                &[("read", Effect::Read), ("write", Effect::Write)],
            )
            .unwrap_or(default.effect),
        timeout: section.get_or("timeout", default.timeout),
        deadline: section.get_or("deadline", default.deadline),
        lease_margin: default.lease_margin,
        dedup_window: section.get("dedup_window"),
        retention: section.get_or("retention", default.retention),
        schema: section.get("input_schema").and_then(|text| {
            Schema::new(text)
                .map_err(|why| {
                    section.mistake("input_schema", &format!("this is no JSON Schema: {why}"))
                })
                .ok()
        }),
        key: section.section("key").map(key_policy).unwrap_or_default(),
        retry: section.section("retry").map_or(default.retry, retry_policy),
        breaker: section
            .section("breaker")
            .map_or(default.breaker, breaker_policy),
        dedup: section
            .word("dedup", &[("none", Dedup::None), ("key", Dedup::Key)])
            .unwrap_or(default.dedup),
        unknown: unknown_policy(&mut section),
        recheck: section.section("recheck").map_or(default.recheck, schedule),
        session: session_policy(&mut section),
        budget: section.section("budget").and_then(budget),
        similar: section.section("similar").and_then(similar),
        outcomes: outcomes(&mut section),
        success: section.section("success").and_then(success_test),
        remember_rejections: section.get_or("remember_rejections", default.remember_rejections),
        replay_ignore: section
            .section("replay")
            .map(replay_ignore)
            .unwrap_or_default(),
        redact: section
            .section("redact")
            .map(redact_policy)
            .unwrap_or_default(),
        compensation: compensation(&mut section),
    };
    let probe = section.section("probe").and_then(probe);
    let endpoint = endpoint(&mut section, probe.as_ref());
    let tool = with_probe(tool, probe.as_ref());
    check_unknown(&tool, probe.is_some(), &section);
    check_times(&tool, &section);
    check_key_fields(&tool, &section);
    check_session(&tool, &section);
    let undone = section.spot("compensation");
    section.finish();
    let endpoint = endpoint?;
    warn(&tool, &endpoint, warnings);
    Some((ToolAt::new(tool, endpoint), undone))
}

fn endpoint(section: &mut Section<'_, '_>, probe: Option<&Probe>) -> Option<Endpoint> {
    let methods = [
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::GET,
    ];
    let methods: Vec<(&str, &Method)> = methods
        .iter()
        .map(|method| (method.as_str(), method))
        .collect();
    let method = section
        .word("method", &methods)
        .cloned()
        .unwrap_or(Method::POST);
    let reuse = section.get_or("connection_reuse", Switch(Some(Duration::from_secs(1))));
    let headers: HeaderMap = section
        .entries("headers", secret_header)
        .into_iter()
        .collect();
    let url = section
        .need::<String>("url")
        .and_then(|text| match text.parse::<Url>() {
            Ok(_) if let Some(place) = placeholder(&text, &[]) => {
                section.mistake(
                    "url",
                    &format!(
                        "{place} would be sent as it stands: a tool's URL has no placeholders"
                    ),
                );
                None
            }
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Some(url),
            // The text may hold a secret, so it is not repeated.
            _ => {
                section.mistake("url", "this is no http:// or https:// URL");
                None
            }
        });
    let probe = probe.map(|probe| probe.url.clone());
    Some(Endpoint {
        method,
        url: url?,
        headers,
        probe,
        connection_reuse: reuse.0,
    })
}

/// A `{name}` in a URL that nothing fills in. Braces without a plain name between them are not repeated: the text
/// may hold a secret.
pub(super) fn placeholder(url: &str, known: &[&str]) -> Option<String> {
    let rest = known
        .iter()
        .fold(url.to_owned(), |url, known| url.replace(known, ""));
    let (_, inside) = rest.split_once('{')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = inside.split_once('}').map(|(name, _)| name);
    let name = name.filter(|name| (1..=40).contains(&name.len()) && name.chars().all(is_plain));
    Some(name.map_or_else(|| "{".to_owned(), |name| format!("{{{name}}}")))
}

/// How a tool is asked whether it knows a key.
struct Probe {
    /// With `{key}` in it.
    url: String,
    negative_final_after: Option<Duration>,
}

fn probe(mut section: Section<'_, '_>) -> Option<Probe> {
    let url = section.need::<String>("url").and_then(|text| {
        let example = text.replace("{key}", "0123456789abcdef").parse::<Url>();
        let is_good =
            example.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if !is_good || !text.contains("{key}") {
            section.mistake("url", "this is no http:// or https:// URL with {key} in it");
            return None;
        }
        if let Some(place) = placeholder(&text, &["{key}"]) {
            section.mistake(
                "url",
                &format!("{place} would be sent as it stands: only {{key}} is filled in"),
            );
            return None;
        }
        Some(text)
    });
    let after = section.get_or("negative_final_after", Switch(None));
    section.finish();
    Some(Probe {
        url: url?,
        negative_final_after: after.0,
    })
}

fn unknown_policy(section: &mut Section<'_, '_>) -> OnUnknown {
    let probe = OnUnknown::Probe {
        negative_final_after: None,
    };
    let words = [
        ("hold", OnUnknown::Hold),
        ("probe", probe),
        ("retry", OnUnknown::Retry),
    ];
    section.word("unknown", &words).unwrap_or(OnUnknown::Hold)
}

fn redact_policy(mut section: Section<'_, '_>) -> redact::Policy {
    let policy = redact::Policy {
        args: pointers(&mut section, "args"),
        result: pointers(&mut section, "result"),
    };
    section.finish();
    policy
}

/// `"none"`, or how the tool's calls are undone.
fn compensation(section: &mut Section<'_, '_>) -> compensation::Policy {
    if section.is_text("compensation") {
        let needless = section.word("compensation", &[("none", ())]);
        return needless.map_or(compensation::Policy::Undeclared, |()| {
            compensation::Policy::Needless
        });
    }
    let sends = section.word("compensate_unknown", &[("wait", false), ("send", true)]);
    let Some(mut inner) = section.section("compensation") else {
        if sends.is_some() {
            section.mistake("compensate_unknown", "there is no compensation");
        }
        return compensation::Policy::Undeclared;
    };
    let tool: Option<String> = inner.need("tool");
    let args = match inner.get("args") {
        None => Ok(Vec::new()),
        Some(Value::Object(args)) => compensation::read_members(args),
        Some(_) => Err("the arguments of a call are a table".to_owned()),
    };
    let args = args
        .map_err(|why| inner.mistake("args", &why))
        .unwrap_or_default();
    inner.finish();
    let undoes_unknown = sends.unwrap_or(false);
    tool.map_or(compensation::Policy::Undeclared, |tool| {
        compensation::Policy::By(Template {
            tool,
            args,
            undoes_unknown,
        })
    })
}

fn replay_ignore(mut section: Section<'_, '_>) -> Vec<Pointer> {
    let ignore = pointers(&mut section, "ignore");
    section.finish();
    ignore
}

fn breaker_policy(mut section: Section<'_, '_>) -> breaker::Policy {
    let default = breaker::Policy::default();
    let policy = breaker::Policy {
        failures: section
            .get("failures")
            .map_or(default.failures, |Count(count)| count),
        cooldown: section.get_or("cooldown", default.cooldown),
    };
    section.finish();
    policy
}

fn schedule(mut section: Section<'_, '_>) -> Recheck {
    let default = Recheck::default();
    let schedule = Recheck {
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
        give_up_after: section.get_or("give_up_after", default.give_up_after),
    };
    if schedule.base < MIN_RECHECK {
        section.mistake(
            "base",
            "an unknown call is not worked on more often than every 100 ms",
        );
    }
    if schedule.base > schedule.max {
        section.mistake("base", "the first wait is longer than the longest");
    }
    if schedule.give_up_after <= schedule.base {
        section.mistake(
            "give_up_after",
            "it would be given up before it was worked on",
        );
    }
    section.finish();
    schedule
}

/// A tool that is asked has the door's rules.
fn with_probe(tool: Tool, probe: Option<&Probe>) -> Tool {
    match (tool.unknown, probe) {
        (OnUnknown::Probe { .. }, Some(probe)) => {
            let negative_final_after = probe.negative_final_after;
            Tool {
                unknown: OnUnknown::Probe {
                    negative_final_after,
                },
                ..tool
            }
        }
        _ => tool,
    }
}

fn check_unknown(tool: &Tool, has_probe: bool, section: &Section<'_, '_>) {
    match tool.unknown {
        OnUnknown::Hold | OnUnknown::Elsewhere => {}
        _ if tool.effect == Effect::Read => {
            section.mistake(
                "unknown",
                "this is for tools that write; a read is never unknown",
            );
        }
        OnUnknown::Probe { .. } if !has_probe => {
            section.mistake("unknown", "\"probe\" needs probe = { url = \"…{key}…\" }");
        }
        OnUnknown::Retry if tool.dedup != Dedup::Key => {
            section.mistake(
                "unknown",
                "\"retry\" needs dedup = \"key\": a tool that does not deduplicate would do it twice",
            );
        }
        OnUnknown::Retry if tool.is_exclusive() => {
            section.mistake(
                "unknown",
                "\"retry\" would run beside later calls of an exclusive session",
            );
        }
        OnUnknown::Retry if !tool.redact.args.is_empty() => {
            section.mistake(
                "redact",
                "unknown = \"retry\" cannot send arguments again that are not kept",
            );
        }
        OnUnknown::Probe { .. } | OnUnknown::Retry => {}
    }
}

fn key_policy(mut section: Section<'_, '_>) -> key::Policy {
    let required = section
        .word("source", &[("derived", false), ("required", true)])
        .unwrap_or(false);
    let (fields, ignore) = (
        pointers(&mut section, "fields"),
        pointers(&mut section, "ignore"),
    );
    let words = [
        ("business", key::Prefer::Business),
        ("runtime", key::Prefer::Runtime),
    ];
    let prefer = section.word("prefer", &words);
    if prefer.is_some() && fields.is_empty() {
        section.mistake("prefer", "without fields there is nothing to prefer");
    }
    let per = section.word(
        "per",
        &[("user", key::Per::User), ("tenant", key::Per::Tenant)],
    );
    if per.is_some() && fields.is_empty() {
        section.mistake("per", "without fields there is no business key");
    }
    let (prefer, per) = (prefer.unwrap_or_default(), per.unwrap_or_default());
    let policy = key::Policy {
        required,
        fields,
        prefer,
        per,
        ignore,
    };
    section.finish();
    policy
}

fn session_policy(section: &mut Section<'_, '_>) -> SessionPolicy {
    let default = SessionPolicy::default();
    let modes = [
        ("exclusive", Mode::Exclusive),
        ("fenced", Mode::Fenced),
        ("shared", Mode::Shared),
    ];
    let wait = section.get_or("session_wait", default.wait);
    if wait > MAX_SESSION_WAIT {
        section.mistake(
            "session_wait",
            "nobody waits for a session for more than ten minutes",
        );
    }
    SessionPolicy {
        mode: section.word("session", &modes).unwrap_or(default.mode),
        wait,
    }
}

fn budget(mut section: Section<'_, '_>) -> Option<Budget> {
    if !section.has("per") {
        section.mistake("per", "this key is missing");
    }
    let per = section.word("per", &[("session", Per::Session), ("user", Per::User)]);
    let max = section.need("max").map(|Count(max)| max);
    if max.is_some_and(|max| max > MAX_BUDGET) {
        section.mistake(
            "max",
            &format!("a budget of more than {MAX_BUDGET} bounds nothing"),
        );
    }
    let window = window(&mut section);
    section.finish();
    Some(Budget {
        per: per?,
        max: max?,
        window: window?,
    })
}

fn similar(mut section: Section<'_, '_>) -> Option<Similar> {
    let fields = pointers(&mut section, "fields");
    if fields.is_empty() {
        section.mistake(
            "fields",
            "without a field that they have in common nothing is similar",
        );
    }
    let window = window(&mut section);
    let words = [
        ("flag", OnSimilar::Flag),
        ("refuse", OnSimilar::Refuse),
        ("replay", OnSimilar::Replay),
    ];
    let action = section.word("action", &words);
    section.finish();
    Some(Similar {
        fields,
        window: window?,
        action: action.unwrap_or(OnSimilar::Flag),
    })
}

fn window(section: &mut Section<'_, '_>) -> Option<Duration> {
    let window: Option<Duration> = section.need("window");
    if window.is_some_and(|window| window.is_zero()) {
        section.mistake("window", "in no time nothing is counted");
    }
    window
}

fn pointers(section: &mut Section<'_, '_>, key: &'static str) -> Vec<Pointer> {
    let texts: Vec<String> = section.get(key).unwrap_or_default();
    let read = |text: &String| {
        text.parse::<Pointer>()
            .map_err(|why| section.mistake(key, &why))
            .ok()
    };
    texts.iter().filter_map(read).collect()
}

fn retry_policy(mut section: Section<'_, '_>) -> retry::Policy {
    let default = retry::Policy::default();
    let policy = retry::Policy {
        attempts: section
            .get("attempts")
            .map_or(default.attempts, |Count(count)| count),
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
    };
    if policy.attempts > MAX_ATTEMPTS {
        section.mistake(
            "attempts",
            &format!("more than {MAX_ATTEMPTS} attempts help nobody"),
        );
    }
    if policy.base > policy.max {
        section.mistake("base", "the first wait is longer than the longest");
    }
    section.finish();
    policy
}

const DECLARED: [(&str, Declared); 5] = [
    ("executed", Declared::Executed),
    ("not_executed", Declared::NotExecuted),
    ("rejected", Declared::Rejected),
    ("fenced", Declared::Fenced),
    ("unknown", Declared::Unknown),
];

fn outcomes(section: &mut Section<'_, '_>) -> BTreeMap<u16, Declared> {
    let read = |status: &str, word: &str| {
        let known: Option<u16> = status
            .parse()
            .ok()
            .filter(|status| (200..=599).contains(status));
        let status = known.ok_or_else(|| format!("{status} is no status from 200 to 599"))?;
        let declared = DECLARED
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, declared)| *declared);
        let declared = declared.ok_or_else(|| {
            let words = DECLARED.map(|(word, _)| word).join(", ");
            format!("{word:?} is none of {words}")
        })?;
        Ok((status, declared))
    };
    section.entries("outcomes", read).into_iter().collect()
}

fn success_test(mut section: Section<'_, '_>) -> Option<SuccessTest> {
    if !section.has("pointer") {
        section.mistake("pointer", "this key is missing");
    }
    let pointer = section.parsed("pointer", str::parse);
    let equals = section.need("equals");
    let otherwise = section.word(
        "otherwise",
        &[
            ("rejected", Declared::Rejected),
            ("unknown", Declared::Unknown),
        ],
    );
    section.finish();
    Some(SuccessTest {
        pointer: pointer?,
        equals: equals?,
        otherwise: otherwise.unwrap_or(Declared::Unknown),
    })
}

/// The times of a tool must fit into each other, or an inner one ends after an outer one.
fn check_times(tool: &Tool, section: &Section<'_, '_>) {
    if tool.timeout.is_zero() {
        section.mistake("timeout", "no tool answers in no time");
    }
    // With full jitter the waits between attempts may be as short as nothing, so the attempts
    // themselves are what the deadline must have room for; the last is cut off at the deadline.
    let attempts = tool.timeout.saturating_mul(tool.retry.attempts);
    if tool.deadline < attempts {
        let message = format!(
            "the deadline of {:?} is shorter than {} attempts of {:?}",
            tool.deadline, tool.retry.attempts, tool.timeout
        );
        section.mistake("deadline", &message);
    }
    if let Some(window) = tool.dedup_window
        && window < tool.deadline
    {
        section.mistake(
            "dedup_window",
            "a key would be forgotten before its call's deadline",
        );
    }
    let windows = key::Source::ALL.map(|source| tool.window(source));
    if windows.into_iter().any(|window| window > tool.retention) {
        section.mistake(
            "retention",
            "records would be deleted while their keys are remembered",
        );
    }
}

/// A field that may be missing would give different intents the same key.
fn check_key_fields(tool: &Tool, section: &Section<'_, '_>) {
    for field in &tool.key.fields {
        if !tool
            .schema
            .as_ref()
            .is_some_and(|schema| schema.requires(field))
        {
            section.mistake(
                "key",
                &format!("fields: input_schema does not require {}", field.as_str()),
            );
        }
    }
}

/// What bounds the writes of a session means nothing for a read, which waits for nobody.
fn check_session(tool: &Tool, section: &Section<'_, '_>) {
    if tool.effect == Effect::Read {
        let is_undone = tool.compensation != compensation::Policy::Undeclared;
        let said = [
            ("compensation", is_undone),
            ("session", tool.session.mode != Mode::Fenced),
            ("budget", tool.budget.is_some()),
            ("similar", tool.similar.is_some()),
        ];
        for (key, _) in said.iter().filter(|(_, is_said)| *is_said) {
            section.mistake(key, "this is for tools that write; this one reads");
        }
    }
    if tool
        .similar
        .as_ref()
        .is_some_and(|similar| similar.window > tool.retention)
    {
        section.mistake(
            "similar",
            "the window is longer than the retention: the earlier call would be gone",
        );
    }
}

fn warn(tool: &Tool, endpoint: &Endpoint, warnings: &mut Vec<String>) {
    let name = &tool.name;
    for (status, declared) in &tool.outcomes {
        if matches!(
            declared,
            Declared::NotExecuted | Declared::Rejected | Declared::Fenced
        ) {
            warnings.push(format!(
                "{name}: status {status} is taken as proof that nothing was executed"
            ));
        }
    }
    if tool
        .success
        .as_ref()
        .is_some_and(|test| test.otherwise == Declared::Rejected)
    {
        warnings.push(format!(
            "{name}: a 2xx that fails its success test is taken as proof that nothing was executed"
        ));
    }
    let probe = endpoint
        .probe
        .as_ref()
        .and_then(|url| url.replace("{key}", "0").parse::<Url>().ok());
    for (what, url) in [
        ("its URL", Some(&endpoint.url)),
        ("the URL of its probe", probe.as_ref()),
    ] {
        if url.is_some_and(is_in_the_open) {
            warnings.push(format!(
                "{name}: {what} is plain http:// to another machine"
            ));
        }
    }
}

/// Whether what is sent there, credentials among it, can be read on the way.
pub(super) fn is_in_the_open(url: &Url) -> bool {
    let is_local = match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => false,
    };
    url.scheme() == "http" && !is_local
}
