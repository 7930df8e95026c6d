//! Whether the settings of one tool fit together.

use serde_json::Value;

use crate::common::{is_in_the_open, reads};
use crate::reader::Section;
use oncegate_rules::key::Pointer;
use oncegate_rules::schema::has_type;
use oncegate_rules::tool::{Declared, Dedup, Effect, Mode, OnUnknown, Tool};
use oncegate_rules::{compensation, key};
use oncegate_tools::Endpoint;

pub fn check(tool: &Tool, section: &Section<'_, '_>) {
    check_unknown(tool, section);
    check_times(tool, section);
    check_key_fields(tool, section);
    check_session(tool, section);
}

pub fn check_unknown(tool: &Tool, section: &Section<'_, '_>) {
    let (key, why) = match tool.unknown {
        OnUnknown::Hold | OnUnknown::Elsewhere => return,
        _ if tool.effect == Effect::Read => {
            let why = format!(
                "this is for tools that write; a read is never unknown{}",
                by_method(section)
            );
            return section.mistake("unknown", &why);
        }
        OnUnknown::Probe if tool.probe().is_none() && tool.asks().is_none() => (
            "unknown",
            "\"probe\" needs probe = { url = \"…{key}…\" }, or of an upstream { tool = \"…\", found = \"/…\" }",
        ),
        OnUnknown::Retry if tool.dedup != Dedup::Key => (
            "unknown",
            "\"retry\" needs dedup = \"key\": a tool that does not deduplicate would do it twice",
        ),
        OnUnknown::Retry if tool.is_exclusive() => (
            "unknown",
            "\"retry\" would run beside later calls of an exclusive session",
        ),
        OnUnknown::Retry if !tool.redact.args.is_empty() => (
            "redact",
            "unknown = \"retry\" cannot send arguments again that are not stored",
        ),
        OnUnknown::Probe | OnUnknown::Retry => return,
    };
    section.mistake(key, why);
}

/// Inner times must end before outer ones: attempt, deadline, window, retention.
pub fn check_times(tool: &Tool, section: &Section<'_, '_>) {
    let why = "a timeout must be longer than zero";
    section.check(!tool.timeout.is_zero(), "timeout", why);
    // With full jitter the waits between attempts may be zero, so only the attempts themselves
    // must fit into the deadline. The deadline cuts off the last one.
    let attempts = tool.timeout.saturating_mul(tool.retry.attempts);
    let why = format!(
        "the deadline of {:?} is shorter than {} attempts of {:?}",
        tool.deadline, tool.retry.attempts, tool.timeout
    );
    section.check(tool.deadline >= attempts, "deadline", &why);
    let lasts = |window| window >= tool.deadline;
    let why = "must not be shorter than the deadline of a call";
    section.check(tool.dedup_window.is_none_or(lasts), "dedup_window", why);
    let mut windows = key::Source::ALL.iter().map(|source| tool.window(*source));
    let is_long_enough = windows.all(|window| window <= tool.retention);
    let why = "must not be shorter than the time for which keys are remembered";
    section.check(is_long_enough, "retention", why);
    for (name, time) in [
        ("args_for", tool.args_for),
        ("results_for", tool.results_for),
    ] {
        let is_within = time.is_none_or(|time| !time.is_zero() && time <= tool.retention);
        let why =
            "must be longer than zero, and not longer than the retention: the call would be gone";
        section.check(is_within, name, why);
    }
}

/// Key fields must be required by the schema.
///
/// A field that may be missing would give different intents the same key.
fn check_key_fields(tool: &Tool, section: &Section<'_, '_>) {
    let is_secret = |place: &Pointer| tool.redact.args.iter().any(|at| at.overlaps(place));
    let why = "a key is stored, and redact.args says that the value at from is not";
    section.check(!tool.key.places.iter().any(is_secret), "key", why);
    for field in &tool.key.fields {
        let schema = tool.schema.as_ref();
        let is_required = schema.is_some_and(|schema| schema.requires(field));
        let why = format!("fields: input_schema does not require {}", field.as_str());
        section.check(is_required, "key", &why);
    }
}

/// Whether a schema lets a value pass that is not a key: an empty text, list or object, or null.
fn allows_empty(schema: &Value) -> bool {
    if schema.get("enum").is_some() || schema.get("const").is_some() {
        return false;
    }
    let has_least = |word: &str| schema.get(word).is_some_and(|least| *least != 0);
    let has_form = || {
        ["pattern", "format"]
            .iter()
            .any(|word| schema.get(word).is_some())
    };
    let types = ["string", "array", "object", "null"];
    let allowed: Vec<&str> = match schema.get("type") {
        None => return schema.get("anyOf").is_none() && schema.get("oneOf").is_none(),
        Some(_) => types
            .into_iter()
            .filter(|name| has_type(schema, name))
            .collect(),
    };
    allowed.into_iter().any(|name| match name {
        "string" => !has_least("minLength") && !has_form(),
        "array" => !has_least("minItems"),
        "object" => !has_least("minProperties") && schema.get("required").is_none(),
        _ => true,
    })
}

/// Says why a tool reads, if its section does not say so itself.
fn by_method(section: &Section<'_, '_>) -> &'static str {
    match section.has_taken("effect") {
        true => "",
        false => ", because of its method; if it writes all the same, set effect = \"write\"",
    }
}

/// A tool that reads has no bounds on writes.
fn check_session(tool: &Tool, section: &Section<'_, '_>) {
    if tool.effect == Effect::Read {
        let is_undone = tool.compensation != compensation::Policy::Undeclared;
        for (key, is_set) in [
            ("compensation", is_undone),
            ("session", tool.session.mode != Mode::Fenced),
            ("budget", tool.budget.is_some()),
            ("similar", tool.similar.is_some()),
        ] {
            let why = format!(
                "this is for tools that write; this one reads{}",
                by_method(section)
            );
            section.check(!is_set, key, &why);
        }
    }
    let similar = tool.similar.as_ref();
    let is_long_enough = similar.is_none_or(|similar| similar.window <= tool.retention);
    let why = "the window is longer than the retention: the earlier call would be gone";
    section.check(is_long_enough, "similar", why);
}

/// Warns of settings that are trusted, or not safe. A rule of a proxy repeats no warning of its proxy.
pub fn warn(tool: &Tool, endpoint: &Endpoint, section: &Section<'_, '_>) {
    let name = &tool.name;
    warn_of_effect(tool, endpoint, section);
    for (status, declared) in &tool.outcomes {
        if matches!(
            declared,
            Declared::NotExecuted | Declared::Rejected | Declared::Fenced
        ) {
            section.warn_once(format!(
                "{name}: status {status} is taken as proof that nothing was executed"
            ));
        }
    }
    let success = tool.success.as_ref();
    if success.is_some_and(|test| test.otherwise == Declared::Rejected) {
        section.warn_once(format!(
            "{name}: a 2xx that fails its success test is taken as proof that nothing was executed"
        ));
    }
    if tool.takes_models_keys() && tool.has_property(key::MODEL_MEMBER) {
        section.warn_once(format!(
            "{name}: its schema has {}, which a model makes up anew when it tries again: within the window of derived keys calls with equal other arguments are one call, whatever stands there; key.fields name an intent for longer",
            key::MODEL_MEMBER
        ));
    }
    let may_be_empty = tool.key.fields.iter().filter(|field| {
        let schema = tool.schema.as_ref();
        schema
            .and_then(|schema| schema.at(field))
            .is_some_and(allows_empty)
    });
    for field in may_be_empty {
        section.warn_once(format!(
            "{name}: its input_schema allows {} to be empty, which is refused because it makes the key; give it a type, and a text minLength = 1 or a pattern",
            field.as_str()
        ));
    }
    let may_be_derived = !tool.is_proxy()
        && tool.effect == Effect::Write
        && tool.key.sources().contains(&key::Source::Derived);
    if tool.dedup == Dedup::Key && may_be_derived && tool.dedup_window.is_none() {
        section.warn_once(format!(
            "{name}: a derived key is new again after its window, and a tool that remembers it for longer answers the new call with the old result; set dedup_window as long as the tool remembers keys"
        ));
    }
    if tool.probe().is_some_and(|probe| !probe.target.has_key()) {
        section.warn_once(format!(
            "{name}: its probe has no {{key}}, so it finds the effect of another call with the same arguments, too"
        ));
    }
    for (what, url) in [
        ("its URL", Some(&endpoint.url)),
        ("the URL of its probe", endpoint.probe.as_ref()),
    ] {
        if url.is_some_and(is_in_the_open) {
            section.warn_once(format!(
                "{name}: {what} is plain http:// to another machine"
            ));
        }
    }
}

/// Warns where a tool's effect and its other settings do not go well together.
fn warn_of_effect(tool: &Tool, endpoint: &Endpoint, section: &Section<'_, '_>) {
    let (name, method) = (&tool.name, &endpoint.method);
    if tool.request().is_some() && reads(method) && tool.effect == Effect::Write {
        section.warn_once(format!(
            "{name}: its method is {method}, and effect = \"write\": equal requests are answered with the stored result, whatever has changed since; for a tool that only reads leave effect out"
        ));
    }
    let mut windows = key::Source::ALL.iter().map(|source| tool.window(*source));
    if let Some(time) = tool.results_for
        && windows.any(|window| time < window)
    {
        section.warn_once(format!(
            "{name}: results_for is shorter than the time for which keys are remembered: a repetition after {time:?} is answered 502 result-unavailable, and runs nothing"
        ));
    }
    if tool.dedup_window.is_some() && tool.effect == Effect::Read {
        section.warn_once(format!(
            "{name}: dedup_window counts for nothing: a tool that reads is asked each time"
        ));
    }
}
