//! Whether compensations can be made, as far as the configuration shows it.
//!
//! A mistake that shows only when a call is undone leaves its saga stuck.

use serde_json::Value;

use oncegate_engine::ToolAt;
use oncegate_rules::compensation::{Part, Policy, Template};
use oncegate_rules::key::Pointer;
use oncegate_rules::tool::{Effect, Tool};

/// Mistakes in a tool's `compensation`.
pub(super) fn mistakes(at: &ToolAt, tools: &[ToolAt]) -> Vec<String> {
    let tool = &at.tool;
    let Policy::By(template) = &tool.compensation else {
        return Vec::new();
    };
    let name = &template.tool;
    let Some(by) = tools
        .iter()
        .find(|at| at.tool.name == *name)
        .map(|at| &at.tool)
    else {
        return vec![format!("{name} is not a tool")];
    };
    let found = [
        (by.effect == Effect::Read).then(|| format!("{name} only reads, so it undoes nothing")),
        (by.name == tool.name).then(|| "a tool does not undo itself".to_owned()),
        lacks_session(tool, by),
        lacks_result(template),
        lacks_what_is_not_stored(tool, template),
        lacks_what_is_required(by, template),
    ];
    found.into_iter().flatten().collect()
}

/// Arguments of the compensation that would show in the ledger what `redact.result` hides there.
pub(super) fn shown_secrets(at: &ToolAt, tools: &[ToolAt]) -> Option<String> {
    let Policy::By(template) = &at.tool.compensation else {
        return None;
    };
    let mut by = tools.iter().map(|other| &other.tool);
    let by = by.find(|by| by.name == template.tool)?;
    let result = Pointer::to(&["result"]);
    let secrets = at.tool.redact.result.iter();
    let secrets: Vec<Pointer> = secrets.map(|secret| result.followed_by(secret)).collect();
    let is_secret = |taken: &Pointer| secrets.iter().any(|secret| secret.overlaps(taken));
    let is_hidden = |name: &String| {
        let place = Pointer::to(&[name]);
        by.redact.args.iter().any(|hidden| hidden.overlaps(&place))
    };
    let shows = |part: &Part| part.pointers().iter().any(|taken| is_secret(taken));
    let shown = template.args.iter();
    let shown = shown.filter(|(name, part)| shows(part) && !is_hidden(name));
    let shown: Vec<&str> = shown.map(|(name, _)| name.as_str()).collect();
    (!shown.is_empty()).then(|| {
        format!(
            "{}: redact.result hides what {} gets as {}, and the ledger shows that; list it in redact.args there",
            at.tool.name, by.name, shown.join(", ")
        )
    })
}

/// Mistakes in the arguments of a probe by another tool.
pub(super) fn probe_mistakes(tool: &Tool, by: &Tool, template: &Template) -> Vec<String> {
    const NAMES: [&[&str]; 4] = [
        &["call", "tool_key"],
        &["call", "key"],
        &["call", "call_id"],
        &["args"],
    ];
    let taken = template.pointers();
    let is_below = |place: &[&str]| {
        let place = Pointer::to(place);
        taken.iter().any(|pointer| place.holds(pointer))
    };
    let names_no_call = || {
        let why = "args: nothing in them names the call, such as \"/call/tool_key\" or a place below \"/args\"";
        (!NAMES.into_iter().any(is_below)).then(|| why.to_owned())
    };
    let has_result =
        || is_below(&["result"]).then(|| "args: an unknown call has no result".to_owned());
    let found = [
        names_no_call(),
        has_result(),
        lacks_what_is_not_stored(tool, template),
        lacks_what_is_required(by, template),
    ];
    found.into_iter().flatten().collect()
}

/// Whether the compensation lacks a session: it runs in the session of the call that it undoes.
fn lacks_session(tool: &Tool, by: &Tool) -> Option<String> {
    let may_lack = by.is_exclusive() && !tool.is_exclusive();
    may_lack.then(|| {
        format!(
            "{} is exclusive and is never called without a session_id; this tool may be",
            by.name
        )
    })
}

fn lacks_result(template: &Template) -> Option<String> {
    let result = Pointer::to(&["result"]);
    let mut taken = template.pointers().into_iter();
    let from_result = taken.find(|pointer| result.holds(pointer))?;
    template.undoes_unknown.then(|| {
        format!(
            "there is nothing at {} where it is unknown whether a call was executed, and compensate_unknown = \
             \"send\" undoes such calls, too",
            from_result.as_str()
        )
    })
}

/// Arguments of the compensation that are kept only as a mask.
fn lacks_what_is_not_stored(tool: &Tool, template: &Template) -> Option<String> {
    let args = Pointer::to(&["args"]);
    let secrets = tool.redact.args.iter();
    let secrets: Vec<Pointer> = secrets.map(|secret| args.followed_by(secret)).collect();
    let is_masked = |pointer: &&Pointer| secrets.iter().any(|secret| secret.overlaps(pointer));
    let taken = template.pointers().into_iter().find(is_masked)?;
    Some(format!(
        "what stands at {} is not stored: see redact.args of this tool",
        taken.as_str()
    ))
}

fn lacks_what_is_required(by: &Tool, template: &Template) -> Option<String> {
    let missing = missing_in(by.schema.as_ref()?.text(), &template.args, "")?;
    Some(format!(
        "args: the input_schema of {} requires {missing}",
        by.name
    ))
}

/// The first required member of a schema that the template does not give.
fn missing_in(schema: &Value, members: &[(String, Part)], path: &str) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten();
    let is_said = |name: &&str| members.iter().any(|(said, _)| said == name);
    let mut required = required.filter_map(Value::as_str);
    let missing = required.find(|name| !is_said(name));
    missing.map(|name| format!("{path}/{name}")).or_else(|| {
        members.iter().find_map(|(name, part)| match part {
            Part::Members(inner) => missing_in(
                &schema["properties"][name],
                inner,
                &format!("{path}/{name}"),
            ),
            Part::Taken(_) | Part::Given(_) | Part::Items(_) => None,
        })
    })
}
