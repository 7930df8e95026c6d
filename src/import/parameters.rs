//! Parameters of an operation: where each one goes, and how it is written.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::Document;
use super::operations::Operation;
use crate::core::proxy::OVERRIDES;
use crate::core::request::{KEY_HEADER, Lists};
use crate::downstream::check_header;

/// Where a parameter goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Path,
    Query,
    Header,
}

impl Place {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::Query => "query",
            Self::Header => "header",
        }
    }
}

/// A parameter that a tool can send.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) place: Place,
    /// The name at the API.
    pub(super) name: String,
    pub(super) schema: Value,
    pub(super) description: Option<String>,
    pub(super) is_required: bool,
    /// How it is written, if it is a list.
    pub(super) lists: Option<Lists>,
}

/// The parameters of an operation.
#[derive(Debug, Default)]
pub(super) struct Parameters {
    pub(super) sent: Vec<Parameter>,
    /// Sentences about left-out parameters.
    pub(super) left_out: Vec<String>,
}

/// The kind of a value, as far as its notation depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    List,
    Object,
}

/// Why an operation cannot be a tool, in words that follow its name.
pub(super) type Reason = String;

/// Header parameters that OpenAPI ignores: other parts of a description say them.
const SAID_ELSEWHERE: [&str; 3] = ["accept", "authorization", "content-type"];

/// Headers that would name the caller.
const OF_CALLERS: [&str; 2] = ["cookie", "proxy-authorization"];

/// Most parts of a schema that are searched for its kind.
const MAX_PARTS: usize = 200;

/// Most parameters of one operation.
const MAX_PARAMETERS: usize = 500;

/// All parameters of an operation: its own, and those of its path.
pub(super) fn of(document: &Document, operation: &Operation<'_>) -> Result<Parameters, Reason> {
    let mut merged: BTreeMap<(String, String), &Value> = BTreeMap::new();
    for owner in [operation.item, operation.node] {
        let listed = owner.get("parameters").and_then(Value::as_array);
        for parameter in listed.into_iter().flatten() {
            let parameter = document
                .resolve(parameter)
                .map_err(|why| format!("a parameter cannot be read: {why}"))?;
            let text = |word: &str| parameter.get(word).and_then(Value::as_str);
            let (Some(place), Some(name)) = (text("in"), text("name")) else {
                return Err("a parameter has no name or no place".into());
            };
            merged.insert((place.to_owned(), name.to_owned()), parameter);
        }
    }
    let mut found = Parameters::default();
    for ((place, name), node) in &merged {
        if merged.len() + found.sent.len() > MAX_PARAMETERS {
            return Err(format!("it has more than {MAX_PARAMETERS} parameters"));
        }
        let (place, name) = (place.as_str(), name.as_str());
        let is_required = place == "path" || node.get("required") == Some(&Value::Bool(true));
        let sent = read(document, place, name, node, is_required).and_then(|sent| {
            let is_twice = |new: &Parameter| {
                let is_same = |old: &Parameter| (old.place, &old.name) == (new.place, &new.name);
                let is_direct = |(place, other): &(String, String)| {
                    *other == new.name && other != name && *place == new.place.word()
                };
                found.sent.iter().any(is_same) || merged.keys().any(is_direct)
            };
            match sent.iter().any(is_twice) {
                true => Err(
                    "is written as its members, and another parameter is called like one".into(),
                ),
                false => Ok(sent),
            }
        });
        match sent {
            Ok(parameters) => found.sent.extend(parameters),
            Err(why) if is_required && !is_never_sent(place, name) => {
                return Err(format!("the {place} parameter `{name}` {why}"));
            }
            Err(why) => found
                .left_out
                .push(format!("the {place} parameter `{name}` {why}")),
        }
    }
    one_way_of_lists(&mut found)?;
    Ok(found)
}

/// Whether a parameter is never sent, even where it is required.
fn is_never_sent(place: &str, name: &str) -> bool {
    is_said_elsewhere(place, name) || names_method(place, name)
}

fn names_method(place: &str, name: &str) -> bool {
    place == "header" && OVERRIDES.contains(&name.to_lowercase().as_str())
}

fn is_said_elsewhere(place: &str, name: &str) -> bool {
    place == "header" && SAID_ELSEWHERE.contains(&name.to_lowercase().as_str())
}

/// A parameter as a tool sends it, or why it cannot be sent.
///
/// An object that is written as its members becomes these.
fn read(
    document: &Document,
    place: &str,
    name: &str,
    node: &Value,
    is_required: bool,
) -> Result<Vec<Parameter>, Reason> {
    let place = match place {
        "path" => Place::Path,
        "query" => Place::Query,
        "header" => Place::Header,
        "cookie" => return Err("goes into a cookie, which no tool sends".into()),
        _ => return Err("has a place that OpenAPI 3 does not have".into()),
    };
    if name.is_empty() {
        return Err("has no name".into());
    }
    if is_said_elsewhere(place.word(), name) {
        return Err("is not read, as OpenAPI says: headers like it come from other parts".into());
    }
    if names_method(place.word(), name) {
        return Err("names another method than the tool's".into());
    }
    if place == Place::Header && name.to_lowercase() != KEY_HEADER {
        check_header(name, &OF_CALLERS).map_err(|why| format!("cannot be sent: {why}"))?;
    }
    if let Some(content) = node.get("content").and_then(Value::as_object) {
        let media = content.keys().next().map_or("nothing", String::as_str);
        return Err(format!("is written as {media}, which no tool can"));
    }
    let schema = match node.get("schema") {
        Some(schema) => schema.clone(),
        None => schema_of_2_0(node),
    };
    let text = |word: &str| node.get(word).and_then(Value::as_str);
    let style = text("style").unwrap_or(match place {
        Place::Query => "form",
        Place::Path | Place::Header => "simple",
    });
    let explode = node.get("explode").and_then(Value::as_bool);
    let explode = explode.unwrap_or(style == "form");
    let kind = kind(document, &schema);
    let parameter = |lists| Parameter {
        place,
        name: name.to_owned(),
        schema: schema.clone(),
        description: text("description").map(str::to_owned),
        is_required,
        lists,
    };
    match (place, style, kind) {
        (Place::Path | Place::Header, "simple", Kind::Plain) => Ok(vec![parameter(None)]),
        (Place::Path | Place::Header, "simple", _) => {
            Err("is a list or an object, and only one value can stand there".into())
        }
        (Place::Query, "form" | "pipeDelimited" | "spaceDelimited", Kind::List) if explode => {
            Ok(vec![parameter(Some(Lists::Repeat))])
        }
        (Place::Query, "form", Kind::List) => Ok(vec![parameter(Some(Lists::Comma))]),
        (Place::Query, "deepObject", Kind::List) => Ok(vec![parameter(Some(Lists::Indices))]),
        (Place::Query, "deepObject", _) | (Place::Query, "form", Kind::Plain) => {
            Ok(vec![parameter(None)])
        }
        (Place::Query, "form", Kind::Object) if explode => {
            let members = members(document, &schema, is_required);
            let members = members.ok_or("is an object whose members are not named")?;
            Ok(members)
        }
        _ => Err(format!("has the style {style}, which no tool can write")),
    }
}

/// The members of an object that is written as such, each as a parameter.
fn members(document: &Document, schema: &Value, is_required: bool) -> Option<Vec<Parameter>> {
    let schema = document.resolve(schema).ok()?;
    let properties = schema.get("properties")?.as_object()?;
    let required = schema.get("required").and_then(Value::as_array);
    let member = |(name, schema): (&String, &Value)| {
        let lists = match kind(document, schema) {
            Kind::Plain => None,
            Kind::List => Some(Lists::Repeat),
            Kind::Object => return None,
        };
        let is_listed = required.is_some_and(|required| required.contains(&json!(name)));
        Some(Parameter {
            place: Place::Query,
            name: name.clone(),
            schema: schema.clone(),
            description: None,
            is_required: is_required && is_listed,
            lists,
        })
    };
    properties.iter().map(member).collect()
}

/// One way for all lists of a tool: that of required parameters, or of the first one.
fn one_way_of_lists(found: &mut Parameters) -> Result<(), Reason> {
    let ways = |required: bool| {
        let sent = found.sent.iter();
        let mut ways: Vec<Lists> = sent
            .filter(|parameter| parameter.is_required || !required)
            .filter_map(|parameter| parameter.lists)
            .collect();
        ways.dedup();
        ways
    };
    let way = match ways(true)[..] {
        [] => ways(false).first().copied(),
        [way] => Some(way),
        _ => return Err("its query writes lists in more than one way".into()),
    };
    let (sent, others) = std::mem::take(&mut found.sent)
        .into_iter()
        .partition(|parameter| parameter.lists.is_none() || parameter.lists == way);
    found.sent = sent;
    for parameter in others {
        found.left_out.push(format!(
            "the query parameter `{}` writes lists in another way than the others",
            parameter.name
        ));
    }
    Ok(())
}

/// The kind of a schema's values. Of several the most complex one counts.
pub(super) fn kind(document: &Document, schema: &Value) -> Kind {
    kind_of(document, schema, &mut { MAX_PARTS })
}

fn kind_of(document: &Document, schema: &Value, left: &mut usize) -> Kind {
    let Ok(schema) = document.resolve(schema) else {
        return Kind::Plain;
    };
    let is_of = |kind: &str| match schema.get("type") {
        Some(Value::String(one)) => one == kind,
        Some(Value::Array(several)) => several.contains(&json!(kind)),
        _ => false,
    };
    if is_of("object") {
        return Kind::Object;
    }
    if is_of("array") {
        return Kind::List;
    }
    let is_untyped = schema.get("type").is_none();
    if is_untyped && schema.get("properties").is_some() {
        return Kind::Object;
    }
    if is_untyped && schema.get("items").is_some() {
        return Kind::List;
    }
    let inner = ["allOf", "anyOf", "oneOf"].into_iter();
    let inner = inner.filter_map(|word| schema.get(word)?.as_array());
    let mut found = Kind::Plain;
    for part in inner.flatten() {
        if *left == 0 {
            break;
        }
        *left -= 1;
        match kind_of(document, part, left) {
            Kind::Plain => {}
            Kind::Object => return Kind::Object,
            Kind::List => found = Kind::List,
        }
    }
    found
}

/// The schema of a parameter in the style of Swagger 2.0.
fn schema_of_2_0(node: &Value) -> Value {
    let words = node.as_object().into_iter().flatten();
    let is_about_values = |word: &str| {
        matches!(
            word,
            "type" | "format" | "enum" | "items" | "pattern" | "default"
        )
    };
    let words: Map<String, Value> = words
        .filter(|(word, _)| is_about_values(word))
        .map(|(word, value)| (word.clone(), value.clone()))
        .collect();
    words.into()
}
