//! The section `[tools.NAME]`.

pub mod checks; // whether the settings of a tool fit together
mod request; // how its arguments become a request
pub mod unknown; // what is done about its unknown calls, and its probe

use std::time::Duration;

use reqwest::{Method, Url};

use super::approval;
use super::common::{reads, template};
use super::outcomes::outcomes;
use super::reader::{Section, Spot, meaning};
use super::upstreams::{self, Upstreams};
use oncegate_engine::ToolAt;
use oncegate_rules::compensation;
use oncegate_rules::key::{self, Pointer};
use oncegate_rules::request::Shape;
use oncegate_rules::schema::Schema;
use oncegate_rules::tool::{
    AsTask, Budget, Declared, Effect, Http, Mcp, OnCancel, OnSimilar, Protocol,
};
use oncegate_rules::tool::{SessionPolicy, Similar, SuccessTest, Tool};
use oncegate_rules::words::Words;
use oncegate_rules::{breaker, redact};
use oncegate_tools::Endpoint;

/// Most attempts of one call.
const MAX_ATTEMPTS: u32 = 20;
/// The longest wait for a session: a waiting call holds a connection.
const MAX_SESSION_WAIT: Duration = Duration::from_secs(600);
/// The largest budget: each call in it is remembered for the window.
const MAX_BUDGET: u32 = 10_000;

/// A tool, and the place of its `compensation`.
///
/// The compensation is checked later, when all tools are known.
pub(super) fn tool(
    name: &str,
    mut section: Section<'_, '_>,
    upstreams: &Upstreams,
    strict: bool,
) -> Option<(ToolAt, Spot)> {
    let is_upstreams = section.has("upstream");
    let of_upstream = upstreams::of(&section, upstreams);
    let method = method(&mut section);
    if !is_upstreams || !name.contains('.') {
        section.check_name(name, "a tool's");
    }
    let default = Tool {
        strict: of_upstream.map_or(strict, |upstream| upstream.strict),
        // By HTTP (RFC 9110, section 9.2.1) these methods only read.
        effect: match reads(&method) && !is_upstreams {
            true => Effect::Read,
            false => Effect::Write,
        },
        ..Tool::new(name)
    };
    let shared = shared(&mut section, default);
    let mut tool = Tool {
        description: section.get("description").unwrap_or_default(),
        effect: section.get_or("effect", shared.effect),
        schema: schema(&mut section),
        task: section.get_or("task", AsTask::Auto),
        on_cancel: section.get_or("cancel", OnCancel::Keep),
        key: key_policy(section.defaulted("key")),
        session: session_policy(&mut section),
        budget: section.section("budget").and_then(budget),
        similar: section.section("similar").and_then(similar),
        success: section.section("success").and_then(success_test),
        protocol: Protocol::Mcp(Mcp {
            errors: upstreams::errors(&mut section),
            asks: None,
        }),
        replay_ignore: section.defaulted("replay").pointers("ignore"),
        redact: redact_policy(section.defaulted("redact")),
        approval: section.section("approval").and_then(approval::policy),
        compensation: compensation(&mut section),
        ..shared
    };
    let probe = section.section("probe");
    let endpoint = if is_upstreams {
        let asks = probe.and_then(|probe| unknown::probe_by_tool(probe, &mut tool));
        if let Protocol::Mcp(mcp) = &mut tool.protocol {
            mcp.asks = asks;
        }
        upstreams::check(&tool, &section);
        upstreams::endpoint(&tool, &mut section, upstreams)
    } else {
        let probe = probe.and_then(|probe| unknown::probe(probe, &mut tool, &[]));
        let (probe, url) = probe.unzip();
        let (endpoint, request) = endpoint(&mut section, method, url).unzip();
        tool.protocol = Protocol::Http(Http { request, probe });
        endpoint
    };
    request::check(&tool, &section);
    request::check_probe(&tool, &section);
    checks::check(&tool, &section);
    approval::check(&tool, &section);
    let undone = section.spot("compensation");
    let endpoint = endpoint?;
    checks::warn(&tool, &endpoint, &section);
    Some((ToolAt::new(tool, endpoint), undone))
}

/// Most tools that a note names.
const NAMED: usize = 5;

/// What `check` says of tools that have the default timeout; `None`: there are none.
pub(super) fn note(tools: &[ToolAt]) -> Option<String> {
    let default = Tool::new("").timeout;
    let all = tools.iter().filter(|at| at.tool.timeout == default);
    let mut names: Vec<&str> = all.map(|at| &*at.tool.name).collect();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let others = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let named = names.join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "{named}{others}: the timeout is the default of {default:?}; the result of a call that takes longer is lost, and its outcome is unknown. With a gateway that serves, --calls URL compares it with the newest calls"
        )
    })
}

/// The settings that tools and proxies have in common; all others are as in `default`.
pub fn shared(section: &mut Section<'_, '_>, default: Tool) -> Tool {
    let outcomes = outcomes(section);
    let remember = section.get_or("remember_rejections", default.remember_rejections);
    Tool {
        timeout: section.get_or("timeout", default.timeout),
        deadline: section.get_or("deadline", default.deadline),
        dedup_window: section.get("dedup_window"),
        retention: section.get_or("retention", default.retention),
        args_for: section.get("args_for"),
        results_for: section.get("results_for"),
        retry: section.retry(default.retry, MAX_ATTEMPTS, Duration::MAX),
        breaker: breaker_policy(section.defaulted("breaker")),
        dedup: section.get_or("dedup", default.dedup),
        unknown: unknown::policy(section),
        recheck: unknown::schedule(section.defaulted("recheck")),
        strict: outcomes.strict.unwrap_or(default.strict),
        outcomes: outcomes.listed,
        never_keep: never_keep(section, remember),
        remember_rejections: remember,
        expired: section.get_or("expired", default.expired),
        ..default
    }
}

/// Statuses of rejections that are not stored all the same. `remember`: others are.
fn never_keep(section: &mut Section<'_, '_>, remember: bool) -> Vec<u16> {
    let statuses: Vec<u16> = section.get("never_keep").unwrap_or_default();
    let are_refusals = statuses.iter().all(|status| (400..=599).contains(status));
    let why = "these are statuses of refusals, 400 to 599";
    section.check(are_refusals, "never_keep", why);
    let why = "without remember_rejections no rejection is kept";
    section.check(statuses.is_empty() || remember, "never_keep", why);
    statuses
}

fn schema(section: &mut Section<'_, '_>) -> Option<Schema> {
    let schema = Schema::new(section.get("input_schema")?);
    let refused =
        |why| section.mistake("input_schema", &format!("this is not a JSON Schema: {why}"));
    schema.map_err(refused).ok()
}

fn method(section: &mut Section<'_, '_>) -> Method {
    let methods = [
        ("POST", Method::POST),
        ("PUT", Method::PUT),
        ("PATCH", Method::PATCH),
        ("DELETE", Method::DELETE),
        ("GET", Method::GET),
        ("HEAD", Method::HEAD),
    ];
    section.word_or("method", &methods, Method::POST)
}

fn endpoint(
    section: &mut Section<'_, '_>,
    method: Method,
    probe: Option<Url>,
) -> Option<(Endpoint, Shape)> {
    let connection_reuse = section.connection_reuse();
    let headers = section.headers();
    let (shape, url) = request::shape(section, reads(&method))?;
    let endpoint = Endpoint {
        method,
        probe,
        ..Endpoint::new(url, headers, connection_reuse)
    };
    Some((endpoint, shape))
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
        let words = [("none", compensation::Policy::Needless)];
        return section.word_or("compensation", &words, compensation::Policy::Undeclared);
    }
    let sends = section.word("compensate_unknown", &[("wait", false), ("send", true)]);
    let Some(mut inner) = section.section("compensation") else {
        let why = "there is no compensation";
        section.check(sends.is_none(), "compensate_unknown", why);
        return compensation::Policy::Undeclared;
    };
    let by = template(&mut inner, sends.unwrap_or(false));
    by.map_or(compensation::Policy::Undeclared, compensation::Policy::By)
}

fn breaker_policy(mut section: Section<'_, '_>) -> breaker::Policy {
    let default = breaker::Policy::default();
    breaker::Policy {
        failures: section.get_or("failures", default.failures),
        cooldown: section.get_or("cooldown", default.cooldown),
    }
}

fn key_policy(mut section: Section<'_, '_>) -> key::Policy {
    let words = [("derived", false), ("required", true)];
    let required = section.word_or("source", &words, false);
    let places = section.pointers("from");
    let (fields, ignore) = (section.pointers("fields"), section.pointers("ignore"));
    let prefer: Option<key::Prefer> = section.get("prefer");
    let per: Option<key::Per> = section.get("per");
    let fold = fold(&mut section, &fields);
    let has_key = !fields.is_empty();
    let why = "without fields there is nothing to prefer";
    section.check(has_key || prefer.is_none(), "prefer", why);
    let why = "without fields there is no business key";
    section.check(has_key || per.is_none(), "per", why);
    key::Policy {
        required,
        fold,
        places,
        fields,
        prefer: prefer.unwrap_or_default(),
        per: per.unwrap_or_default(),
        ignore,
    }
}

/// The fields of which not every character counts: `fold = [{ field = "/id", ignore = ["case"] }]`.
fn fold(section: &mut Section<'_, '_>, fields: &[Pointer]) -> Vec<key::Folded> {
    let mut folded: Vec<key::Folded> = Vec::new();
    for mut one in section.list_of_sections("fold") {
        let field: Option<Pointer> = one.need("field");
        let ignored = one.each_parsed("ignore", |word| meaning(word, key::Fold::WORDS));
        let Some(field) = field else { continue };
        one.check(
            fields.contains(&field),
            "field",
            "this is not one of the fields",
        );
        let is_new = folded.iter().all(|other| other.field != field);
        one.check(is_new, "field", "this field is there twice");
        one.check(
            !ignored.is_empty(),
            "ignore",
            "must name one of case, space, nfc",
        );
        let fold = key::Fold::ALL.into_iter();
        let fold = fold.filter(|fold| ignored.contains(fold)).collect();
        folded.push(key::Folded { field, fold });
    }
    folded
}

fn session_policy(section: &mut Section<'_, '_>) -> SessionPolicy {
    let default = SessionPolicy::default();
    let wait = section.get_or("session_wait", default.wait);
    let why = "must be at most ten minutes";
    section.check(wait <= MAX_SESSION_WAIT, "session_wait", why);
    SessionPolicy {
        mode: section.get_or("session", default.mode),
        wait,
    }
}

fn budget(mut section: Section<'_, '_>) -> Option<Budget> {
    let per = section.need("per");
    let max: Option<u32> = section.need("max");
    let why = format!("must be at most {MAX_BUDGET}");
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
    let action = section.get_or("action", OnSimilar::Flag);
    Some(Similar {
        fields,
        window: window?,
        action,
    })
}

fn window(section: &mut Section<'_, '_>) -> Option<Duration> {
    let window: Option<Duration> = section.need("window");
    let why = "must be longer than zero";
    section.check(window != Some(Duration::ZERO), "window", why);
    window
}

fn success_test(mut section: Section<'_, '_>) -> Option<SuccessTest> {
    let pointer = section.need("pointer");
    let equals = section.need("equals");
    let words = [
        ("rejected", Declared::Rejected),
        ("unknown", Declared::Unknown),
    ];
    let otherwise = section.word_or("otherwise", &words, Declared::Unknown);
    Some(SuccessTest {
        pointer: pointer?,
        equals: equals?,
        otherwise,
    })
}
