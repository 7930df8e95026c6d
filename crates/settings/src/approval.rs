//! The settings of approval: `approval` of a tool, and the section `[approvals]`.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Url;
use serde_json::{Map, Value};

use super::reader::Section;
use oncegate_engine::ToolAt;
use oncegate_rules::approval::notice::MAX_SHOWN;
use oncegate_rules::approval::{Limits, Policy, When};
use oncegate_rules::caller::{Scope, Token};
use oncegate_rules::compensation;
use oncegate_rules::key::Pointer;
use oncegate_rules::tool::{Effect, OnSimilar, Tool};
use oncegate_tools::{UpstreamAt, is_http};

/// The shortest and the longest time to decide.
const EXPIRES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_hours(30 * 24));
/// Most calls that may wait: each ask counts all of them, and one look at the store finds no more.
const MAX_OPEN: u32 = 2_000;
/// What `when` may have.
const CONDITION: &str = "a condition is \"always\", \"similar\", \"over_budget\", { pointer = \"/…\", above = NUMBER }, { pointer = \"/…\", in = [..] } or { pointer = \"/…\", not_in = [..] }";

/// The section `approval` of a tool or an upstream.
pub(super) fn policy(mut section: Section<'_, '_>) -> Option<Policy> {
    section.require("when");
    let when: Option<Value> = section.get("when");
    let when = when.map(|value| conditions(&section, value));
    let expires = section.get_or("expires", Duration::from_secs(3_600));
    let why = "must be from one minute to 30 days";
    section.check((EXPIRES.0..=EXPIRES.1).contains(&expires), "expires", why);
    let good_for = section.get_or("good_for", Duration::from_secs(300));
    let why = "must be longer than zero, and not longer than expires";
    section.check(!good_for.is_zero() && good_for <= expires, "good_for", why);
    let approvals = section.get_or("approvals", 1_u32);
    section.check((1..=2).contains(&approvals), "approvals", "must be 1 or 2");
    let from = section.get_or("from", Vec::new());
    let show = section.pointers("show");
    let why = format!("must be at most {} pointers", MAX_SHOWN.0);
    section.check(show.len() <= MAX_SHOWN.0, "show", &why);
    Some(Policy {
        when: when?,
        expires,
        good_for,
        approvals: u8::try_from(approvals).unwrap_or(2),
        from,
        show,
    })
}

fn conditions(section: &Section<'_, '_>, value: Value) -> Vec<When> {
    let Value::Array(items) = value else {
        section.mistake("when", &format!("this must be a list; {CONDITION}"));
        return Vec::new();
    };
    section.check(
        !items.is_empty(),
        "when",
        "without a condition nothing is asked",
    );
    let mut conditions = Vec::with_capacity(items.len());
    for item in items {
        match condition(item) {
            Ok(when) => conditions.push(when),
            Err(why) => section.mistake("when", &why),
        }
    }
    conditions
}

fn condition(item: Value) -> Result<When, String> {
    let wrong = || CONDITION.to_owned();
    let mut members: Map<String, Value> = match item {
        Value::String(word) if word == "always" => return Ok(When::Always),
        Value::String(word) if word == "similar" => return Ok(When::Similar),
        Value::String(word) if word == "over_budget" => return Ok(When::OverBudget),
        Value::Object(members) => members,
        _ => return Err(wrong()),
    };
    let pointer = match members.remove("pointer") {
        Some(Value::String(text)) => text.parse::<Pointer>()?,
        _ => return Err(wrong()),
    };
    let mut rest = members.into_iter();
    match (rest.next(), rest.next()) {
        (Some((word, Value::Number(above))), None) if word == "above" => {
            Ok(When::Above { pointer, above })
        }
        (Some((word, Value::Array(values))), None) if word == "in" && !values.is_empty() => {
            Ok(When::In { pointer, values })
        }
        (Some((word, Value::Array(values))), None) if word == "not_in" => {
            Ok(When::NotIn { pointer, values })
        }
        _ => Err(wrong()),
    }
}

/// Whether an upstream's rule asks only what its tools have: neither budgets nor similar calls.
pub(super) fn check_of_upstream(rule: Option<&Policy>, section: &Section<'_, '_>) {
    let asks = rule.is_some_and(|rule| rule.asks_about_similar() || rule.asks_over_budget());
    let why = "\"similar\" and \"over_budget\" are for tools that have a section of their own";
    section.check(!asks, "approval", why);
}

/// Whether a tool's rule about approval fits its other settings.
pub(super) fn check(tool: &Tool, section: &Section<'_, '_>) {
    let Some(rule) = &tool.approval else {
        return;
    };
    let (similar, budget) = (tool.similar.as_ref(), tool.budget.as_ref());
    let why = "when = [\"similar\"] needs the section similar of the same tool";
    let is_there = !rule.asks_about_similar() || similar.is_some();
    section.check(is_there, "approval", why);
    let why = "when = [\"similar\"] and similar.action = \"replay\" do not fit: a similar call gets the earlier result, and nothing is asked";
    let is_replayed = similar.is_some_and(|similar| similar.action == OnSimilar::Replay);
    let fits = !rule.asks_about_similar() || !is_replayed;
    section.check(fits, "approval", why);
    let why = "when = [\"over_budget\"] needs the section budget of the same tool";
    let is_there = !rule.asks_over_budget() || budget.is_some();
    section.check(is_there, "approval", why);
    let writes = tool.effect == Effect::Write;
    let why = "this is for tools that write: a read changes nothing";
    section.check(writes, "approval", why);
    let why = "an approver has to see all arguments, and redact.args hides some";
    section.check(tool.redact.args.is_empty(), "approval", why);
    for pointer in &rule.show {
        let mut secret = tool.redact.args.iter();
        let is_secret = secret.any(|place| place.overlaps(pointer));
        let why = format!("show has {}, which redact.args hides", pointer.as_str());
        section.check(!is_secret, "approval", &why);
    }
}

/// What does not fit together: approvers, and the tools that need them.
pub(super) fn mistakes<'a>(
    tools: &'a [ToolAt],
    upstreams: impl Iterator<Item = &'a UpstreamAt>,
    tokens: &[Token],
) -> Vec<String> {
    let of_tools = tools
        .iter()
        .map(|at| (at.tool.name.clone(), at.tool.approval.as_ref()));
    // Only the server has the names of its tools.
    let of_upstreams = upstreams.map(|at| (format!("{}.", at.name), at.approval.as_ref()));
    let rules = of_tools.chain(of_upstreams);
    let rules = rules.filter_map(|(name, policy)| Some((name, policy?)));
    rules
        .flat_map(|(name, policy)| mistakes_of(&name, policy, tokens))
        .collect()
}

fn mistakes_of(name: &str, policy: &Policy, tokens: &[Token]) -> Vec<String> {
    if tokens.is_empty() {
        return vec![format!(
            "{name}: approval needs [[auth.tokens]]: without tokens an approver cannot be told from the agent"
        )];
    }
    let may = |token: &&Token| {
        let caller = &token.caller;
        let is_named = policy.from.is_empty() || policy.from.contains(&caller.name);
        let is_its = |scope: &Scope| match scope {
            Scope::Approve => true,
            Scope::ApproveTool(tool) => {
                tool == name || name.ends_with('.') && tool.starts_with(name)
            }
            _ => false,
        };
        is_named && caller.scopes.iter().any(is_its)
    };
    let names = tokens.iter().filter(may).map(|token| &*token.caller.name);
    let approvers: BTreeSet<&str> = names.collect();
    let mut mistakes = Vec::new();
    if approvers.len() < usize::from(policy.approvals) {
        mistakes.push(format!(
            "{name}: approval needs {} approvers, and {} names of tokens may approve it",
            policy.approvals,
            approvers.len()
        ));
    }
    let unknown = policy
        .from
        .iter()
        .filter(|one| !approvers.contains(&***one));
    mistakes.extend(unknown.map(|unknown| {
        format!("{name}: approval.from names {unknown}, and no token of this name may approve it")
    }));
    mistakes
}

/// The warning that calls which the gateway makes itself are not asked about.
pub(super) fn warnings(tools: &[ToolAt]) -> Vec<String> {
    let undoes = |name: &str| {
        tools.iter().any(|at| match &at.tool.compensation {
            compensation::Policy::By(template) => template.tool == name,
            compensation::Policy::Undeclared | compensation::Policy::Needless => false,
        })
    };
    let asks = tools.iter().filter(|at| at.tool.approval.is_some());
    let asks = asks.filter(|at| undoes(&at.tool.name));
    asks.map(|at| {
        format!(
            "{}: compensations are sent without approval, although calls of this tool need it",
            at.tool.name
        )
    })
    .collect()
}

/// Warns of what is set for notices that are never sent.
pub(super) fn warn_without_webhook(
    tools: &[ToolAt],
    console: Option<&Url>,
    root: &Section<'_, '_>,
) {
    let rules = tools.iter().filter_map(|at| at.tool.approval.as_ref());
    if console.is_some() || rules.into_iter().any(|rule| !rule.show.is_empty()) {
        let why = "approval.show and approvals.console are for notices, and there is no [webhook] that would be told";
        root.warn(why.to_owned());
    }
}

/// The section `[approvals]`: the bounds, and the base of the links to the console.
pub(super) fn limits(mut section: Section<'_, '_>) -> (Limits, Option<Url>) {
    let default = Limits::default();
    let max_open = section.get_or("max_open", default.max_open);
    let max_open_per_session = section.get_or("max_open_per_session", default.max_open_per_session);
    let why = format!("must be at most {MAX_OPEN}");
    section.check(max_open <= MAX_OPEN, "max_open", &why);
    let console: String = section.get_or("console", String::new());
    let console = match console.as_str() {
        "" => None,
        text => {
            let url = text.parse::<Url>().ok().filter(is_base);
            let why = "this is not the http:// or https:// base of the console, without query and credentials";
            section.check(url.is_some(), "console", why);
            url
        }
    };
    let limits = Limits {
        max_open,
        max_open_per_session,
        ..default
    };
    (limits, console)
}

/// Whether the path of a page can follow a URL.
fn is_base(url: &Url) -> bool {
    let has_more = url.query().is_some() || url.fragment().is_some();
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    is_http(url) && !has_more && !has_credentials
}
