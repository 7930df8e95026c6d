//! The section `[proxies.NAME]`: an API that callers use as it is.

use std::time::Duration;

use reqwest::Url;

use crate::{answers, profiles, tokenless};
use oncegate_engine::ToolAt;
use oncegate_rules::key::{self, Pointer};
use oncegate_rules::proxy::compared_form::{is_of_payment, places, places_of_key};
use oncegate_rules::proxy::payment::is_payment;
use oncegate_rules::proxy::{
    Authority, CREDENTIALS, Compare, Does, Locations, Policy, Rule, SendKey, Unkeyed, names_path,
    paths,
};
use oncegate_rules::redact;
use oncegate_rules::tool::{Dedup, Mode, OnUnknown, Probe, Protocol, Proxy, SessionPolicy, Tool};
use oncegate_settings::Known;
use oncegate_settings::outcomes::outcomes;
use oncegate_settings::reader::{Bytes, Section};
use oncegate_settings::tools::{checks, shared, unknown};
use oncegate_tools::{Endpoint, is_http};

/// How long a request without a key counts as a repetition of an earlier one.
const DERIVED_WINDOW: Duration = Duration::from_secs(60);
/// Attempts of one request: its client repeats it by itself.
const ATTEMPTS: u32 = 1;
/// The longest body of a request or an answer, in bytes.
const LONGEST: usize = 1 << 20;
/// Rules of one proxy.
const MAX_RULES: usize = 100;

/// Reads all proxies of a configuration.
pub fn proxies(root: &mut Section<'_, '_>, known: &Known<'_>) -> Vec<ToolAt> {
    let proxies = root.named("proxies", |name, section| proxy(name, section, known));
    for proxy in &proxies {
        let name = &proxy.tool.name;
        let is_tool = known.tools.iter().any(|at| at.tool.name == *name);
        let why =
            format!("{name} is a tool already, and stands in the ledger and in metrics as one");
        root.check(!is_tool, "proxies", &why);
    }
    proxies
}

/// A proxy, as a tool whose calls are HTTP requests.
fn proxy(name: &str, mut section: Section<'_, '_>, known: &Known<'_>) -> Option<ToolAt> {
    section.check_name(name, "a proxy's");
    let profile = profiles::preset(&mut section);
    let mut policy = policy(&mut section, known.is_open);
    policy.profile = profile;
    let ignore = ignored(&mut section);
    let mut default = Tool::new(name);
    default.strict = known.strict;
    default.timeout = Duration::from_secs(30);
    default.retry.attempts = ATTEMPTS;
    let mut tool = Tool {
        derived_window: Some(section.get_or("derived_window", DERIVED_WINDOW)),
        key: key::Policy {
            ignore,
            places: places_of_keys(&mut section),
            ..key::Policy::default()
        },
        session: SessionPolicy {
            mode: Mode::Shared,
            ..SessionPolicy::default()
        },
        keeps_key_member: true,
        replay_ignore: vec![Pointer::to(&["headers"])],
        ..shared(&mut section, default)
    };
    redaction(section.defaulted("redact"), &mut tool, &mut policy);
    let probe = section.section("probe");
    let probe = probe.and_then(|section| probe_of(section, &mut tool, ""));
    let (probe, probed) = probe.unzip();
    let endpoint = endpoint(&mut section);
    // A header that the gateway replaces is not a credential of the caller.
    let configured = endpoint.iter().flat_map(|endpoint| endpoint.headers.keys());
    let configured = configured.map(|name| name.as_str().to_owned());
    policy.uncounted_headers.extend(configured);
    let rules = section.list_of_sections("rules");
    let why = format!("a proxy has {MAX_RULES} rules at the most");
    section.check(rules.len() <= MAX_RULES, "rules", &why);
    let rules = rules.into_iter().filter_map(rule);
    let (rules, of_rules): (Vec<Rule>, Vec<Section<'_, '_>>) = rules.unzip();
    policy.rules = rules;
    // What the section says holds for all rules; otherwise a rule's probe is asked for its calls.
    let holds = section.has("unknown") && tool.unknown == OnUnknown::Hold;
    if tool.unknown == OnUnknown::Probe && probe.is_none() {
        let has_probe = of_rules.iter().any(|section| section.has("probe"));
        tool.unknown = if has_probe {
            OnUnknown::Hold
        } else {
            tool.unknown
        };
    }
    warn(&tool, &policy, &section);
    tool.protocol = Protocol::Proxy(Proxy {
        policy,
        probe,
        path: None,
    });
    check(&tool, &section);
    let mut endpoint = endpoint?;
    check_key_as_is(&tool, &endpoint, known.tenants, &section);
    tokenless::check(&tool, &endpoint, &mut section);
    endpoint.probe = probed;
    checks::warn(&tool, &endpoint, &section);
    let of_rules = of_rules.into_iter();
    let paths = tool.proxy().into_iter();
    let paths = paths.flat_map(|policy| policy.rules.iter().map(|rule| &*rule.path));
    let by_rule = of_rules
        .zip(paths)
        .map(|(section, path)| of_rule(&tool, &endpoint, section, path, holds));
    let by_rule = by_rule.collect();
    Some(ToolAt::new(tool, endpoint).with_rules(by_rule))
}

fn policy(section: &mut Section<'_, '_>, is_open: bool) -> Policy {
    let key_header = section.key_header(&CREDENTIALS);
    let counted_headers = header_names(section, "counted_headers");
    let is_credential = |name: &String| CREDENTIALS.contains(&name.as_str());
    let is_fit = !counted_headers.iter().any(is_credential);
    let why = "a credential is not part of what a request asks for";
    section.check(is_fit, "counted_headers", why);
    let is_fit = !counted_headers.iter().any(|name| is_payment(name, ""));
    let why = "a payment is not part of what a request asks for: a request that is sent again with one is the same";
    section.check(is_fit, "counted_headers", why);
    let is_valid = !counted_headers.iter().any(|name| names_path(name));
    let why = "a header that names another path is not forwarded";
    section.check(is_valid, "counted_headers", why);
    let uncounted_headers = header_names(section, "uncounted_headers");
    let is_fit = !uncounted_headers.iter().any(is_credential);
    let why = "a forwarded credential always counts";
    section.check(is_fit, "uncounted_headers", why);
    let tokenless = tokenless::settings(section, is_open);
    let passes = section.get_or("pass_authorization", tokenless.is_some());
    let why = "with caller = \"passed\" the API has to get the caller's credential";
    section.check(passes || tokenless.is_none(), "pass_authorization", why);
    let why = "without [[auth.tokens]] callers cannot be told apart";
    section.check(!(passes && is_open), "pass_authorization", why);
    let host: Option<String> = section.get("host");
    let host = host.map(|host| host.to_ascii_lowercase());
    let is_name = |host: &String| {
        !host.is_empty() && !host.contains([':', '/', '@', ' ']) && !host.starts_with('.')
    };
    let why = "this is a name without scheme and port, like \"stripe.internal\"";
    section.check(host.as_ref().is_none_or(is_name), "host", why);
    let why = "without [[auth.tokens]] a gateway has loopback names only";
    section.check(host.is_none() || !is_open, "host", why);
    let why = "this header holds a payment, and the API would get a key in it";
    section.check(!is_payment(&key_header, ""), "key_header", why);
    let send_key: SendKey = section.get("send_key").unwrap_or_default();
    let is_signed = passes && send_key == SendKey::Derived && is_signed(&key_header);
    let why = "callers sign this header, and the API would get another value in it; choose one that their signature does not cover";
    section.check(!is_signed, "key_header", why);
    let locations: Locations = section.get("locations").unwrap_or_default();
    Policy {
        rules: Vec::new(),
        unkeyed: section.get("unkeyed").unwrap_or_default(),
        key_header,
        counted_headers,
        uncounted_headers,
        redact: Vec::new(),
        secret_headers: Vec::new(),
        max_body: section.get_or("max_body", Bytes(LONGEST)).0,
        host,
        passes_authorization: passes,
        tokenless: tokenless.map(Box::new),
        keeps_locations: locations == Locations::Keep,
        key_scope: section.get("key_scope").unwrap_or_default(),
        compare: section.get("compare").unwrap_or_default(),
        send_key,
        authority: section.get("authority").unwrap_or_default(),
        echoes_key: section.get_or("echo_key", false),
        answers: answers(section),
        profile: None,
    }
}

/// The name of the form of the gateway's own answers.
fn answers(section: &mut Section<'_, '_>) -> String {
    let read = |name: &str| answers::named(name).map(|_| name.to_owned());
    section.parsed("answers", read).unwrap_or_default()
}

/// Where a request may have its key, if it has none in its header.
fn places_of_keys(section: &mut Section<'_, '_>) -> Vec<Pointer> {
    let why = "this begins with /body/, /query/ or /payment";
    pointers_to(section, "key_from", places_of_key, why)
}

/// Pointers, each as the places in a compared form that it means. `otherwise`: what is said of one that means none.
fn pointers_to(
    section: &mut Section<'_, '_>,
    key: &'static str,
    places: fn(&Pointer) -> Vec<Pointer>,
    otherwise: &str,
) -> Vec<Pointer> {
    let pointers = section.pointers(key);
    let is_known = |pointer: &Pointer| !places(pointer).is_empty();
    section.check(pointers.iter().all(is_known), key, otherwise);
    pointers.iter().flat_map(places).collect()
}

/// The probe of a proxy or of a rule with this path.
fn probe_of(mut section: Section<'_, '_>, tool: &mut Tool, path: &str) -> Option<(Probe, Url)> {
    let answers = section.get_or("answers", false);
    let names = paths::names_in(path);
    let names: Vec<(&str, Pointer)> = names
        .map(|name| (name, Pointer::to(&[paths::NAMED, name])))
        .collect();
    let why = "only what found names tells whether this is the answer";
    section.check(!answers || section.has("found"), "answers", why);
    let (probe, url) = unknown::probe(section, tool, &names)?;
    Some((Probe { answers, ..probe }, url))
}

/// The keys of several tenants could meet at the API.
fn check_key_as_is(tool: &Tool, endpoint: &Endpoint, tenants: usize, section: &Section<'_, '_>) {
    let policy = tool.proxy();
    let is_as_is = policy.is_some_and(|policy| policy.send_key == SendKey::AsIs);
    let passes = policy.is_some_and(|policy| policy.passes_authorization);
    let is_shared = tenants > 1 && (!passes || endpoint.has_credential());
    let why = "the API cannot tell several tenants apart, and two of them could use the same key";
    section.check(!(is_as_is && is_shared), "send_key", why);
}

/// Whether signatures of requests cover a header, as those of AWS, Google Cloud, Azure and Alibaba Cloud do.
fn is_signed(name: &str) -> bool {
    let of_services = ["x-amz-", "amz-sdk-", "x-goog-", "x-ms-", "x-acs-", "x-oss-"];
    let others = ["content-digest", "content-md5", "date", "digest"];
    others.contains(&name) || of_services.iter().any(|of| name.starts_with(of))
}

/// Names of headers, in lower case.
fn header_names(section: &mut Section<'_, '_>, key: &'static str) -> Vec<String> {
    let names: Vec<String> = section.get(key).unwrap_or_default();
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

/// Parts of a request that change by themselves, as pointers into its compared form.
fn ignored(section: &mut Section<'_, '_>) -> Vec<Pointer> {
    pointers_to(
        section,
        "ignore",
        places,
        "this begins with /query/ or /body/",
    )
}

/// The secret parts of requests and answers.
///
/// The tool gets them as pointers into the stored forms, the policy as the operator wrote them.
fn redaction(mut section: Section<'_, '_>, tool: &mut Tool, policy: &mut Policy) {
    let (request, response) = (section.pointers("request"), section.pointers("response"));
    policy.secret_headers = header_names(&mut section, "headers");
    let below = |root: &str, pointer: &Pointer| Pointer::to(&[root]).followed_by(pointer);
    let json = |pointer: &Pointer| below("json", pointer);
    // What a probe has found, and what an operator has said.
    let others = |pointer: &Pointer| {
        let probed = ["probed", "answered"].map(|name| below(name, pointer));
        [probed.as_slice(), std::slice::from_ref(pointer)].concat()
    };
    // What has no places is masked as a whole.
    let whole = ["text", "base64"].map(|name| Pointer::to(&[name]));
    let whole = whole.into_iter().filter(|_| !response.is_empty());
    let in_answers = response.iter().map(json);
    tool.redact = redact::Policy {
        args: request.iter().map(json).collect(),
        result: in_answers
            .chain(response.iter().flat_map(others))
            .chain(whole)
            .collect(),
    };
    policy.redact = request;
}

fn endpoint(section: &mut Section<'_, '_>) -> Option<Endpoint> {
    let connection_reuse = section.connection_reuse();
    let headers = section.headers();
    let max_result = section.get_or("max_result", Bytes(LONGEST)).0;
    let text: String = section.need("upstream")?;
    // The text may hold a secret, so it is not repeated.
    let url = text.parse::<Url>().ok().filter(|url| {
        is_http(url) && url.query().is_none() && url.fragment().is_none() && !text.contains('{')
    });
    let why = "this is not an http:// or https:// URL without query and fragment";
    section.check(url.is_some(), "upstream", why);
    Some(Endpoint {
        is_proxy: true,
        max_answer: Some(max_result),
        ..Endpoint::new(url?, headers, connection_reuse)
    })
}

/// A rule, and its section, whose further settings differ from those of the proxy.
fn rule<'r, 'a>(mut section: Section<'r, 'a>) -> Option<(Rule, Section<'r, 'a>)> {
    let methods: Vec<String> = section.get("methods").unwrap_or_default();
    let is_method = |name: &String| name.bytes().all(|byte| byte.is_ascii_uppercase());
    let why = "a method is in upper case";
    section.check(methods.iter().all(is_method), "methods", why);
    let path: Option<String> = section.need("path");
    let starts = path.as_ref().is_none_or(|path| path.starts_with('/'));
    section.check(starts, "path", "a path begins with a slash");
    let names = path.iter().flat_map(|path| paths::names_in(path));
    let names: Vec<&str> = names.collect();
    let are_apart = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
    let why = "two segments have the same name";
    section.check(are_apart, "path", why);
    let why = "{key} stands for the key of a call; choose another name";
    section.check(!names.contains(&"key"), "path", why);
    let does: Option<Does> = section.need("as");
    let unkeyed = section.get("unkeyed");
    let is_write = does.is_none_or(|does| does == Does::Write);
    if !is_write {
        let why = "this is for rules with as = \"write\"";
        section.check_absent(&["unkeyed", "outcomes", "probe"], why);
    }
    let rule = Rule {
        methods,
        path: path?,
        does: does?,
        unkeyed,
    };
    Some((rule, section))
}

/// The tool under a rule; `None`: the same as the proxy's. `holds`: the proxy says `unknown = "hold"`.
fn of_rule(
    tool: &Tool,
    endpoint: &Endpoint,
    mut section: Section<'_, '_>,
    path: &str,
    holds: bool,
) -> Option<(Tool, Endpoint)> {
    let (mut tool, mut endpoint) = (tool.clone(), endpoint.clone());
    let own = outcomes(&mut section);
    let probe = section.section("probe");
    let probe = probe.and_then(|section| probe_of(section, &mut tool, path));
    let (probe, probed) = probe.unzip();
    if own.listed.is_empty() && own.strict.is_none() && probe.is_none() {
        return None;
    }
    if let Some(probe) = probe {
        tool.protocol.set_probe(probe);
        if let Protocol::Proxy(proxy) = &mut tool.protocol {
            proxy.path = Some(path.to_owned());
        }
        check_probe(&tool, &section);
        if tool.unknown == OnUnknown::Hold && !holds {
            tool.unknown = OnUnknown::Probe;
        }
    }
    tool.strict = own.strict.unwrap_or(tool.strict);
    tool.outcomes.extend(own.listed);
    endpoint.probe = probed.or(endpoint.probe);
    checks::warn(&tool, &endpoint, &section);
    Some((tool, endpoint))
}

fn check(tool: &Tool, section: &Section<'_, '_>) {
    checks::check_unknown(tool, section);
    checks::check_times(tool, section);
    let policy = tool.proxy();
    let passes = policy.is_some_and(|policy| policy.passes_authorization);
    let is_retry = tool.unknown == OnUnknown::Retry;
    let why = "unknown = \"retry\" cannot send a request again whose credentials are not stored";
    section.check(!(passes && is_retry), "pass_authorization", why);
    if let Some(policy) = policy {
        check_fit(tool, policy, section);
    }
    let window = tool.derived_window.unwrap_or_default();
    let why = "must not be shorter than the deadline of a call";
    section.check(window >= tool.deadline, "derived_window", why);
}

/// Settings of keys that do not fit together.
fn check_fit(tool: &Tool, policy: &Policy, section: &Section<'_, '_>) {
    let is_exact = policy.compare == Compare::Bytes;
    let why = "with compare = \"bytes\" all of a body counts";
    section.check(!is_exact || tool.key.ignore.is_empty(), "ignore", why);
    let is_callers = policy.authority == Authority::Caller;
    let why = "the API gets no other Host of a caller than the proxy's own host, which is missing";
    section.check(!is_callers || policy.host.is_some(), "authority", why);
    let sends_none = policy.send_key == SendKey::Never;
    let why = "the API cannot deduplicate by a key that it does not get";
    section.check(!(sends_none && tool.dedup == Dedup::Key), "dedup", why);
    let stored = |pointer: &Pointer| Pointer::to(&["body", "json"]).followed_by(pointer);
    let is_secret = |place: &Pointer| {
        policy
            .redact
            .iter()
            .any(|secret| stored(secret).overlaps(place))
    };
    let why = "a key is stored, and redact.request says that this value is not";
    section.check(!tool.key.places.iter().any(is_secret), "key_from", why);
    check_probe(tool, section);
    let of_rules = policy.rules.iter().filter_map(|rule| rule.unkeyed);
    let passes_some = of_rules
        .chain([policy.unkeyed])
        .any(|unkeyed| unkeyed == Unkeyed::Pass);
    let why =
        "with key_from each write is guarded: choose refuse or derive for those without a key";
    let are_of_payment = tool.key.places.iter().all(is_of_payment);
    section.check(!passes_some || are_of_payment, "unkeyed", why);
}

/// A probe by a key asks for the key that the API got.
fn check_probe(tool: &Tool, section: &Section<'_, '_>) {
    let sends_none = tool
        .proxy()
        .is_some_and(|policy| policy.send_key == SendKey::Never);
    let has_key = tool.probe().is_some_and(|probe| probe.target.has_key());
    let why = "the API gets no key, so it cannot be asked for {key}";
    section.check(!(sends_none && has_key), "probe", why);
}

fn warn(tool: &Tool, policy: &Policy, section: &Section<'_, '_>) {
    let name = &tool.name;
    let of_rules = policy.rules.iter().filter_map(|rule| rule.unkeyed);
    let all: Vec<Unkeyed> = of_rules.chain([policy.unkeyed]).collect();
    if all.contains(&Unkeyed::Derive) && tool.key.ignore.is_empty() {
        section.warn(format!(
            "{name}: keys are derived from all of a request; list in ignore what changes by itself, such as dates, nonces and signatures, or each repetition is a new call"
        ));
    }
    if all.contains(&Unkeyed::Derive) && tool.dedup == Dedup::Key {
        section.warn(format!(
            "{name}: a derived key is new again after derived_window; if the API remembers it for longer, it answers the new request with the old result"
        ));
    }
    if tool.unknown == OnUnknown::Retry && tool.retry.attempts == 1 {
        section.warn(format!(
            "{name}: a call that becomes unknown is sent again by a recheck alone, and its client is told outcome-unknown until then; with retry.attempts = 3 it need not wait"
        ));
    }
    if all.contains(&Unkeyed::Pass) {
        section.warn(format!(
            "{name}: writes without a key pass, and nothing guards them"
        ));
    }
}
