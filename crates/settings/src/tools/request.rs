//! How a tool's arguments become its request: URL, query, body, headers and key.

use reqwest::Url;
use serde_json::Value;

use crate::reader::Section;
use oncegate_rules::key::Pointer;
use oncegate_rules::proxy::is_override;
use oncegate_rules::request::{BodyForm, Lists, Shape, Target};
use oncegate_rules::schema::Schema;
use oncegate_rules::tool::{Probe, Tool};
use oncegate_tools::check_header;

/// The request of a tool, and an example of its URL.
///
/// `is_get`: a GET has no body unless the section says so.
pub(super) fn shape(section: &mut Section<'_, '_>, is_get: bool) -> Option<(Shape, Url)> {
    let lists = section.get("arrays");
    let target = target_with(section, lists, &[]);
    let has_places = target
        .as_ref()
        .is_some_and(|(target, _)| target.used().next().is_some());
    let words = [
        ("json", BodyForm::Json),
        ("form", BodyForm::Form(lists.unwrap_or(Lists::Indices))),
        ("none", BodyForm::None),
    ];
    let usual = if is_get && has_places {
        BodyForm::None
    } else {
        BodyForm::Json
    };
    let body = section.word_or("body", &words, usual);
    let set = constants(section);
    let headers = section.entries("headers_from", |name, text| {
        let name = check_header(name, OF_CALLERS)?;
        if is_override(name.as_str()) {
            return Err(format!(
                "the header {name} makes a request one of another method"
            ));
        }
        Ok((name.as_str().to_owned(), text.parse::<Pointer>()?))
    });
    let key_header = section.key_header(OF_CALLERS);
    let why = "an argument gives this header already";
    let is_free = headers.iter().all(|(name, _)| *name != key_header);
    section.check(is_free, "key_header", why);
    let key_body = section.get("key_body");
    let (target, url) = target?;
    let shape = Shape {
        target,
        body,
        set,
        headers,
        key_header,
        key_body,
    };
    Some((shape, url))
}

/// Headers that name the caller. No argument may set them.
const OF_CALLERS: &[&str] = &["authorization", "cookie", "proxy-authorization"];

/// A URL with places, and its query. `names`: arguments that have a place `{name}`.
pub(super) fn target(
    section: &mut Section<'_, '_>,
    names: &[(&str, Pointer)],
) -> Option<(Target, Url)> {
    let lists = section.get("arrays");
    target_with(section, lists, names)
}

fn target_with(
    section: &mut Section<'_, '_>,
    lists: Option<Lists>,
    names: &[(&str, Pointer)],
) -> Option<(Target, Url)> {
    let query = section.entries("query", |name, text| {
        Ok((name.to_owned(), text.parse::<Pointer>()?))
    });
    let text: String = section.need("url")?;
    let target = Target::with_names(&text, names).map_err(|why| section.mistake("url", &why));
    let target = target
        .ok()?
        .with_query(query, lists.unwrap_or(Lists::Repeat));
    let url = section.http_url(&target.example())?;
    Some((target, url))
}

fn constants(section: &mut Section<'_, '_>) -> Vec<(Pointer, Value)> {
    let Some(set) = section.get("set") else {
        return Vec::new();
    };
    let mut leaves = Vec::new();
    if let Value::Object(members) = set {
        for (name, value) in members {
            flatten(&Pointer::to(&[&name]), value, &mut leaves);
        }
    } else {
        section.mistake("set", "constants of a body are a table");
    }
    leaves
}

fn flatten(at: &Pointer, value: Value, leaves: &mut Vec<(Pointer, Value)>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                flatten(&at.below(&name), value, leaves);
            }
        }
        value => leaves.push((at.clone(), value)),
    }
}

/// Whether the request fits the schema of the arguments.
pub(super) fn check(tool: &Tool, section: &Section<'_, '_>) {
    let Some(shape) = tool.request() else {
        return;
    };
    let schema = tool.schema.as_ref();
    check_needed(&shape.target, schema, "url", section);
    for pointer in shape.used() {
        check_named(pointer, schema, section);
        let last = pointer.steps().last().unwrap_or_default();
        let why = format!("{} is a place in a list", pointer.as_str());
        section.check(last.parse::<usize>().is_err(), "url", &why);
    }
    let has_body = shape.body != BodyForm::None;
    section.check(has_body || shape.set.is_empty(), "set", NO_BODY);
    section.check(has_body || shape.key_body.is_none(), "key_body", NO_BODY);
    let set = shape.set.iter().map(|(pointer, _)| ("set", pointer));
    let key = shape.key_body.iter().map(|pointer| ("key_body", pointer));
    for (key, pointer) in set.chain(key) {
        let is_theirs = schema.is_some_and(|schema| schema.at(pointer).is_some());
        let why = format!(
            "input_schema names {}, and no argument may stand there",
            pointer.as_str()
        );
        section.check(!is_theirs, key, &why);
    }
    let properties = schema.and_then(|schema| schema.text().get("properties")?.as_object());
    for name in properties
        .into_iter()
        .flat_map(|properties| properties.keys())
    {
        let is_used = |pointer: &Pointer| pointer.steps().next().as_ref() == Some(name);
        let why =
            format!("input_schema names {name}, and neither url nor query nor headers_from use it");
        section.check(has_body || shape.used().any(is_used), "body", &why);
    }
}

const NO_BODY: &str = "the request has no body";

/// Whether the URL of a probe fits the stored arguments of a call.
pub(super) fn check_probe(tool: &Tool, section: &Section<'_, '_>) {
    let Some(Probe { target, .. }) = tool.probe() else {
        return;
    };
    check_needed(target, tool.schema.as_ref(), "probe", section);
    for pointer in target.used() {
        let is_stored = !tool.redact.args.iter().any(|at| at.overlaps(pointer));
        let why = format!("{} is not stored (redact.args)", pointer.as_str());
        section.check(is_stored, "probe", &why);
        check_named(pointer, tool.schema.as_ref(), section);
    }
}

/// Checks that every call has the arguments that a URL needs.
fn check_needed(target: &Target, schema: Option<&Schema>, key: &str, section: &Section<'_, '_>) {
    for pointer in target.needed() {
        let text = pointer.as_str();
        let is_required = schema.is_some_and(|schema| schema.requires(pointer));
        let why = format!("input_schema does not require {text}");
        section.check(is_required, key, &why);
        if let Some(why) = schema
            .and_then(|schema| schema.at(pointer))
            .and_then(misfit)
        {
            section.mistake(key, &format!("{text}: {why}"));
        }
    }
}

fn check_named(pointer: &Pointer, schema: Option<&Schema>, section: &Section<'_, '_>) {
    let is_named = schema.is_some_and(|schema| schema.at(pointer).is_some());
    let why = format!("input_schema does not name {}", pointer.as_str());
    section.check(is_named, "input_schema", &why);
}

/// Why a value by this schema may not fit into a path.
fn misfit(schema: &Value) -> Option<&'static str> {
    if schema.get("enum").is_some() || schema.get("const").is_some() {
        return None;
    }
    let types = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_scalar = |name: &&str| matches!(*name, "string" | "number" | "integer" | "boolean");
    if types.is_empty() || !types.iter().all(is_scalar) {
        return Some("a URL takes a string, number, integer or boolean, and its type must say so");
    }
    let is_bounded = schema["minLength"]
        .as_u64()
        .is_some_and(|length| length > 0)
        || schema.get("pattern").is_some()
        || schema.get("format").is_some();
    let may_be_empty = types.contains(&"string") && !is_bounded;
    may_be_empty.then_some("it may be empty, and so would the URL; give it minLength = 1")
}
