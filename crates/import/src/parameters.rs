//! Parameters of an operation: the place of each, and how it is written.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{Document, is_true, items, text};
use super::operations::Operation;
use oncegate_rules::proxy::OVERRIDES;
use oncegate_rules::request::{KEY_HEADER, Lists};
use oncegate_rules::schema::has_type;
use oncegate_tools::check_header;

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
#[derive(Debug, Clone)]
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

impl Parameter {
    pub(super) fn description(&self) -> &str {
        self.description.as_deref().unwrap_or_default()
    }
}

/// The kind of a value, on which its notation depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    List,
    Object,
}

/// Why an operation cannot be a tool, in words that follow its name.
pub(super) type Reason = String;

/// Header parameters that OpenAPI ignores, because other parts of a description give them.
const SAID_ELSEWHERE: [&str; 3] = ["accept", "authorization", "content-type"];

/// Headers that would name the caller.
const OF_CALLERS: [&str; 2] = ["cookie", "proxy-authorization"];

/// Most parts of a schema that are searched for its kind.
const MAX_PARTS: usize = 200;

/// Most parameters of one operation.
const MAX_PARAMETERS: usize = 500;

/// All parameters of an operation: its own, and those of its path.
pub(super) fn of(
    document: &Document,
    operation: &Operation<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Parameter>, Reason> {
    let mut merged: BTreeMap<(String, String), &Value> = BTreeMap::new();
    for owner in [operation.item, operation.node] {
        for parameter in items(owner, "parameters") {
            let parameter = document
                .resolve(parameter)
                .map_err(|why| format!("a parameter cannot be read: {why}"))?;
            let (Some(place), Some(name)) = (text(parameter, "in"), text(parameter, "name")) else {
                return Err("a parameter has no name or no place".into());
            };
            merged.insert((place.to_owned(), name.to_owned()), parameter);
        }
    }
    let mut found: Vec<Parameter> = Vec::new();
    for ((place, name), node) in &merged {
        if merged.len() + found.len() > MAX_PARAMETERS {
            return Err(format!("it has more than {MAX_PARAMETERS} parameters"));
        }
        let is_required = place == "path" || is_true(node, "required");
        let is_twice = |new: &Parameter| {
            let is_same = |old: &Parameter| (old.place, &old.name) == (new.place, &new.name);
            let is_direct = |(place, other): &(String, String)| {
                *other == new.name && other != name && *place == new.place.word()
            };
            found.iter().any(is_same) || merged.keys().any(is_direct)
        };
        let sent = read(document, place, name, node, is_required);
        let why = match sent {
            Ok(sent) if !sent.iter().any(is_twice) => {
                found.extend(sent);
                continue;
            }
            Ok(_) => "is written as its members, and another parameter is called like one".into(),
            Err(why) => why,
        };
        let what = format!("the {place} parameter `{name}` {why}");
        if is_required && never_sent(place, name).is_none() {
            return Err(what);
        }
        notes.push(format!("left out: {what}"));
    }
    one_way_of_lists(&mut found, notes)?;
    Ok(found)
}

/// Why a parameter is never sent, even where it is required; `None`: it may be.
fn never_sent(place: &str, name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    if place != "header" {
        None
    } else if SAID_ELSEWHERE.contains(&&*name) {
        Some("is not read, as OpenAPI says: headers like it come from other parts")
    } else if OVERRIDES.contains(&&*name) {
        Some("names another method than the tool's")
    } else {
        None
    }
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
    let never_sent = never_sent(place, name);
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
    if let Some(why) = never_sent {
        return Err(why.into());
    }
    if place == Place::Header && name.to_lowercase() != KEY_HEADER {
        check_header(name, &OF_CALLERS).map_err(|why| format!("cannot be sent: {why}"))?;
    }
    if let Some(content) = node.get("content").and_then(Value::as_object) {
        let media = content.keys().next().map_or("nothing", String::as_str);
        return Err(format!("is written as {media}, which no tool can"));
    }
    let schema = node.get("schema").cloned();
    let schema = schema.unwrap_or_else(|| schema_of_2_0(node));
    let style = text(node, "style").unwrap_or(match place {
        Place::Query => "form",
        Place::Path | Place::Header => "simple",
    });
    let explode = node.get("explode").and_then(Value::as_bool);
    let explode = explode.unwrap_or(style == "form");
    let lists = match (place, style, kind(document, &schema)) {
        (Place::Path | Place::Header, "simple", Kind::Plain) => None,
        (Place::Path | Place::Header, "simple", _) => {
            return Err("is a list or an object, and only one value can stand there".into());
        }
        (Place::Query, "form" | "pipeDelimited" | "spaceDelimited", Kind::List) if explode => {
            Some(Lists::Repeat)
        }
        (Place::Query, "form", Kind::List) => Some(Lists::Comma),
        (Place::Query, "deepObject", Kind::List) => Some(Lists::Indices),
        (Place::Query, "deepObject", _) | (Place::Query, "form", Kind::Plain) => None,
        (Place::Query, "form", Kind::Object) if explode => {
            let members = members(document, &schema, is_required);
            return members.ok_or_else(|| "is an object whose members are not named".into());
        }
        _ => return Err(format!("has the style {style}, which no tool can write")),
    };
    Ok(vec![Parameter {
        place,
        name: name.to_owned(),
        schema,
        description: text(node, "description").map(str::to_owned),
        is_required,
        lists,
    }])
}

/// The members of an object, each as a parameter; `None`: they are not named, or one is an object.
fn members(document: &Document, schema: &Value, is_required: bool) -> Option<Vec<Parameter>> {
    let schema = document.resolve(schema).ok()?;
    let properties = schema.get("properties")?.as_object()?;
    let required = items(schema, "required");
    let member = |(name, schema): (&String, &Value)| {
        let lists = match kind(document, schema) {
            Kind::Plain => None,
            Kind::List => Some(Lists::Repeat),
            Kind::Object => return None,
        };
        let is_listed = required.contains(&json!(name));
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
fn one_way_of_lists(sent: &mut Vec<Parameter>, notes: &mut Vec<String>) -> Result<(), Reason> {
    let required = sent.iter().filter(|parameter| parameter.is_required);
    let mut required: Vec<Lists> = required.filter_map(|parameter| parameter.lists).collect();
    required.dedup();
    let way = match required[..] {
        [] => sent.iter().find_map(|parameter| parameter.lists),
        [way] => Some(way),
        _ => return Err("its query writes lists in more than one way".into()),
    };
    let differs = |one: &mut Parameter| one.lists.is_some() && one.lists != way;
    for Parameter { name, .. } in sent.extract_if(.., differs) {
        notes.push(format!(
            "left out: the query parameter `{name}` writes lists in another way than the others"
        ));
    }
    Ok(())
}

/// The kind of a schema's values; of several the most complex one.
pub(super) fn kind(document: &Document, schema: &Value) -> Kind {
    kind_of(document, schema, &mut { MAX_PARTS })
}

fn kind_of(document: &Document, schema: &Value, left: &mut usize) -> Kind {
    let Ok(schema) = document.resolve(schema) else {
        return Kind::Plain;
    };
    let is_untyped = schema.get("type").is_none();
    let is =
        |kind: &str, word: &str| has_type(schema, kind) || is_untyped && schema.get(word).is_some();
    if is("object", "properties") {
        return Kind::Object;
    }
    if is("array", "items") {
        return Kind::List;
    }
    let mut found = Kind::Plain;
    for part in ["allOf", "anyOf", "oneOf"]
        .into_iter()
        .flat_map(|word| items(schema, word))
    {
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
