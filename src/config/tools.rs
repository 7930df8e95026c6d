//! The section `[tools.NAME]`.

pub(super) mod checks; // whether the settings of a tool fit together
mod request; // how its arguments become a request
pub(super) mod unknown; // what is done about its unknown calls, and its probe

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;

use super::common::args;
use super::reader::{Count, Section, Spot, Switch};
use super::upstreams::{self, Upstreams};
use crate::core::compensation::{self, Template};
use crate::core::key;
use crate::core::request::Shape;
use crate::core::schema::Schema;
use crate::core::tool::{Budget, Declared, Dedup, Effect, Mode, OnSimilar, Per};
use crate::core::tool::{SessionPolicy, Similar, SuccessTest, Tool};
use crate::core::{breaker, redact};
use crate::downstream::Endpoint;
use crate::gateway::ToolAt;

/// Most attempts of one call.
pub(super) const MAX_ATTEMPTS: u32 = 20;
/// The longest wait for a session: a waiting call holds a connection.
const MAX_SESSION_WAIT: Duration = Duration::from_secs(600);
/// The largest budget: each call in it is remembered for the window.
const MAX_BUDGET: u32 = 10_000;

/// A tool, and the place of its `compensation`.
///
/// That is checked when all tools are known.
pub(super) fn tool(
    name: &str,
    mut section: Section<'_, '_>,
    upstreams: &Upstreams,
    warnings: &mut Vec<String>,
) -> Option<(ToolAt, Spot)> {
    let is_upstreams = section.has("upstream");
    if !is_upstreams || !name.contains('.') {
        section.check_name(name, "a tool's");
    }
    let default = Tool::new(name);
    let mut tool = Tool {
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
        derived_window: None,
        keeps_key_member: false,
        may_ask: false,
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
        retry: section.retry(default.retry, MAX_ATTEMPTS, Duration::MAX),
        breaker: section
            .section("breaker")
            .map_or(default.breaker, breaker_policy),
        dedup: dedup(&mut section).unwrap_or(default.dedup),
        unknown: unknown::policy(&mut section),
        recheck: section
            .section("recheck")
            .map_or(default.recheck, unknown::schedule),
        session: session_policy(&mut section),
        budget: section.section("budget").and_then(budget),
        similar: section.section("similar").and_then(similar),
        outcomes: outcomes(&mut section),
        success: section.section("success").and_then(success_test),
        errors: upstreams::errors(&mut section),
        request: None,
        probe: None,
        probe_found: None,
        proxy: None,
        asks: None,
        remember_rejections: section.get_or("remember_rejections", default.remember_rejections),
        replay_ignore: section
            .section("replay")
            .map(|mut replay| replay.pointers("ignore"))
            .unwrap_or_default(),
        redact: section
            .section("redact")
            .map(redact_policy)
            .unwrap_or_default(),
        compensation: compensation(&mut section),
    };
    let probe = section.section("probe");
    let probe = if is_upstreams {
        probe.and_then(unknown::probe_by_tool)
    } else {
        probe.and_then(unknown::probe)
    };
    let endpoint = if is_upstreams {
        upstreams::check(&tool, &section, warnings);
        upstreams::endpoint(&tool, &mut section, upstreams)
    } else {
        let (endpoint, shape) = endpoint(&mut section, probe.as_ref()).unzip();
        tool.request = shape;
        endpoint
    };
    let tool = unknown::with_probe(tool, probe.as_ref());
    request::check(&tool, &section);
    request::check_probe(&tool, &section);
    checks::check(&tool, probe.is_some(), &section);
    let undone = section.spot("compensation");
    let endpoint = endpoint?;
    checks::warn(&tool, &endpoint, warnings);
    Some((ToolAt::new(tool, endpoint), undone))
}

fn endpoint(
    section: &mut Section<'_, '_>,
    probe: Option<&unknown::Probe>,
) -> Option<(Endpoint, Shape)> {
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
    let headers = section.headers();
    let shape = request::shape(section, method == Method::GET);
    let probe = probe.and_then(unknown::Probe::url);
    let (shape, url) = shape?;
    let endpoint = Endpoint {
        method,
        url,
        headers,
        probe: probe.map(|(_, url)| url.clone()),
        connection_reuse: reuse.0,
        mcp: None,
        asked: None,
        is_proxy: false,
        max_answer: None,
    };
    Some((endpoint, shape))
}

pub(super) fn dedup(section: &mut Section<'_, '_>) -> Option<Dedup> {
    section.word("dedup", &[("none", Dedup::None), ("key", Dedup::Key)])
}

fn redact_policy(mut section: Section<'_, '_>) -> redact::Policy {
    redact::Policy {
        args: section.pointers("args"),
        result: section.pointers("result"),
    }
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
        let why = "there is no compensation";
        section.check(sends.is_none(), "compensate_unknown", why);
        return compensation::Policy::Undeclared;
    };
    let tool: Option<String> = inner.need("tool");
    let args = args(&mut inner);
    let undoes_unknown = sends.unwrap_or(false);
    tool.map_or(compensation::Policy::Undeclared, |tool| {
        compensation::Policy::By(Template {
            tool,
            args,
            undoes_unknown,
        })
    })
}

pub(super) fn breaker_policy(mut section: Section<'_, '_>) -> breaker::Policy {
    let default = breaker::Policy::default();
    let Count(failures) = section.get_or("failures", Count(default.failures));
    breaker::Policy {
        failures,
        cooldown: section.get_or("cooldown", default.cooldown),
    }
}

fn key_policy(mut section: Section<'_, '_>) -> key::Policy {
    let required = section
        .word("source", &[("derived", false), ("required", true)])
        .unwrap_or(false);
    let (fields, ignore) = (section.pointers("fields"), section.pointers("ignore"));
    let words = [
        ("business", key::Prefer::Business),
        ("runtime", key::Prefer::Runtime),
    ];
    let prefer = section.word("prefer", &words);
    let words = [("user", key::Per::User), ("tenant", key::Per::Tenant)];
    let per = section.word("per", &words);
    let has_key = !fields.is_empty();
    let why = "without fields there is nothing to prefer";
    section.check(has_key || prefer.is_none(), "prefer", why);
    let why = "without fields there is no business key";
    section.check(has_key || per.is_none(), "per", why);
    key::Policy {
        required,
        fields,
        prefer: prefer.unwrap_or_default(),
        per: per.unwrap_or_default(),
        ignore,
    }
}

fn session_policy(section: &mut Section<'_, '_>) -> SessionPolicy {
    let default = SessionPolicy::default();
    let modes = [
        ("exclusive", Mode::Exclusive),
        ("fenced", Mode::Fenced),
        ("shared", Mode::Shared),
    ];
    let wait = section.get_or("session_wait", default.wait);
    let why = "a call waits for its session for ten minutes at the most";
    section.check(wait <= MAX_SESSION_WAIT, "session_wait", why);
    SessionPolicy {
        mode: section.word("session", &modes).unwrap_or(default.mode),
        wait,
    }
}

fn budget(mut section: Section<'_, '_>) -> Option<Budget> {
    section.require("per");
    let per = section.word("per", &[("session", Per::Session), ("user", Per::User)]);
    let max = section.need("max").map(|Count(max)| max);
    let why = format!("a budget of more than {MAX_BUDGET} bounds nothing");
    section.check(max.is_none_or(|max| max <= MAX_BUDGET), "max", &why);
    let window = window(&mut section);
    Some(Budget {
        per: per?,
        max: max?,
        window: window?,
    })
}

fn similar(mut section: Section<'_, '_>) -> Option<Similar> {
    let fields = section.pointers("fields");
    let why = "without a field that they have in common nothing is similar";
    section.check(!fields.is_empty(), "fields", why);
    let window = window(&mut section);
    let words = [
        ("flag", OnSimilar::Flag),
        ("refuse", OnSimilar::Refuse),
        ("replay", OnSimilar::Replay),
    ];
    let action = section.word("action", &words);
    Some(Similar {
        fields,
        window: window?,
        action: action.unwrap_or(OnSimilar::Flag),
    })
}

fn window(section: &mut Section<'_, '_>) -> Option<Duration> {
    let window: Option<Duration> = section.need("window");
    let why = "in no time nothing is counted";
    section.check(window != Some(Duration::ZERO), "window", why);
    window
}

const DECLARED: [(&str, Declared); 5] = [
    ("executed", Declared::Executed),
    ("not_executed", Declared::NotExecuted),
    ("rejected", Declared::Rejected),
    ("fenced", Declared::Fenced),
    ("unknown", Declared::Unknown),
];

pub(super) fn outcomes(section: &mut Section<'_, '_>) -> BTreeMap<u16, Declared> {
    let read = |status: &str, word: &str| {
        let known = status.parse().ok();
        let known = known.filter(|status| (200..=599).contains(status));
        let status = known.ok_or_else(|| format!("{status} is no status from 200 to 599"))?;
        let declared = DECLARED.iter().find(|(name, _)| *name == word);
        let (_, declared) = declared.ok_or_else(|| {
            let words = DECLARED.map(|(word, _)| word).join(", ");
            format!("{word:?} is none of {words}")
        })?;
        Ok((status, *declared))
    };
    section.entries("outcomes", read).into_iter().collect()
}

fn success_test(mut section: Section<'_, '_>) -> Option<SuccessTest> {
    section.require("pointer");
    let pointer = section.parsed("pointer", str::parse);
    let equals = section.need("equals");
    let words = [
        ("rejected", Declared::Rejected),
        ("unknown", Declared::Unknown),
    ];
    let otherwise = section.word("otherwise", &words);
    Some(SuccessTest {
        pointer: pointer?,
        equals: equals?,
        otherwise: otherwise.unwrap_or(Declared::Unknown),
    })
}
