//! The body of an operation's request: its form and its members.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::document::{Document, is_true, items, members as members_of, text};
use super::operations::Operation;
use super::parameters::{Kind, Reason, kind};
use oncegate_rules::request::Lists;

/// How deep `allOf` is followed, and how many parts of one object are read.
const MAX_DEPTH: usize = 8;
const MAX_PARTS: usize = 200;

/// The body as a tool sends it.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) form: Form,
    pub(super) members: Members<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    None,
    Json,
    /// A form, with the described way of lists.
    Pairs(Option<Lists>),
}

impl Form {
    /// The value for the key `body`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Json => "json",
            Self::Pairs(_) => "form",
        }
    }
}

/// The described members of a body.
#[derive(Debug)]
pub(super) enum Members<'a> {
    /// One object that names them.
    Named(Named<'a>),
    /// A schema with choices in it.
    Composed(&'a Value),
}

#[derive(Debug, Default)]
pub(super) struct Named<'a> {
    pub(super) properties: BTreeMap<&'a str, &'a Value>,
    pub(super) required: Vec<&'a str>,
    /// Keywords about the object as a whole, such as `additionalProperties`.
    pub(super) others: Map<String, Value>,
}

impl Members<'_> {
    /// The names of all described members.
    pub(super) fn names(&self, document: &Document) -> Vec<String> {
        match self {
            Self::Named(named) => named.properties.keys().map(|name| (*name).into()).collect(),
            Self::Composed(schema) => {
                let mut names = Vec::new();
                gather(document, schema, &mut { MAX_PARTS }, &mut names);
                names
            }
        }
    }
}

/// The body of an operation, or why no tool can send it.
pub(super) fn of<'a>(
    document: &'a Document,
    operation: &Operation<'a>,
    notes: &mut Vec<String>,
) -> Result<Body<'a>, Reason> {
    let none = Body {
        form: Form::None,
        members: Members::Named(Named::default()),
    };
    let Some(node) = operation.node.get("requestBody") else {
        return Ok(none);
    };
    let node = resolved(document, node)?;
    let is_required = is_true(node, "required");
    let content = node.get("content").and_then(Value::as_object);
    let content = match content.filter(|content| !content.is_empty()) {
        Some(content) => content,
        None if is_required => return Err("its body has no media type".into()),
        None => return Ok(none),
    };
    let (form, media) = form(content)?;
    let schema = media.get("schema").unwrap_or(&Value::Null);
    let members = members(document, schema)?;
    let is_bare = matches!(&members, Members::Named(named) if named.properties.is_empty());
    if operation.method == "GET" && !is_required {
        if !is_bare {
            notes.push("the body is left out: it is not required, and a GET has none".to_owned());
        }
        return Ok(none);
    }
    if is_bare && schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        return Ok(none);
    }
    if schema.as_object().is_none_or(Map::is_empty) {
        notes.push(
            "the description does not say what its body holds: every argument goes into it".into(),
        );
    }
    let form = match form {
        Form::Pairs(_) => Form::Pairs(lists(document, media, &members, notes)?),
        other => other,
    };
    Ok(Body { form, members })
}

fn resolved<'a>(document: &'a Document, value: &'a Value) -> Result<&'a Value, Reason> {
    let found = document.resolve(value);
    found.map_err(|why| format!("its body cannot be read: {why}"))
}

/// The first form that a tool can write.
fn form(content: &Map<String, Value>) -> Result<(Form, &Value), Reason> {
    let essence = |media: &str| {
        let mut parts = media.split(';').map(|part| part.trim().to_lowercase());
        let essence = parts.next().unwrap_or_default();
        // Any parameter but this charset makes it another media type.
        let is_plain = parts.all(|part| part.is_empty() || part.starts_with("charset=utf-8"));
        is_plain.then_some(essence)
    };
    let find = |wanted: &[&str]| {
        let mut media = content.iter();
        media.find(|(media, _)| essence(media).is_some_and(|media| wanted.contains(&&*media)))
    };
    let forms: [(&[&str], Form); 3] = [
        (&["application/json"], Form::Json),
        (&["*/*", "application/*"], Form::Json),
        (&["application/x-www-form-urlencoded"], Form::Pairs(None)),
    ];
    let found = forms.into_iter().find_map(|(wanted, form)| {
        let (_, media) = find(wanted)?;
        Some((form, media))
    });
    found.ok_or_else(|| {
        let names: Vec<&str> = content.keys().map(String::as_str).take(3).collect();
        format!(
            "its body is {}, which no tool can write",
            names.join(" or ")
        )
    })
}

/// The members of an object, or why the body is not an object.
fn members<'a>(document: &'a Document, schema: &'a Value) -> Result<Members<'a>, Reason> {
    let kind = kind(document, schema);
    if kind == Kind::List && !may_be_object(document, schema) {
        return Err("its body is a list, and arguments are an object".into());
    }
    if let Some(kind) = text(resolved(document, schema)?, "type")
        && kind != "object"
    {
        return Err(format!(
            "its body is a value of the type {kind}, and arguments are an object"
        ));
    }
    let mut named = Named::default();
    match flatten(document, schema, 0, &mut { MAX_PARTS }, &mut named) {
        true => Ok(Members::Named(named)),
        false if kind == Kind::Plain => {
            Err("its body is not said to be an object, and arguments are one".into())
        }
        false => Ok(Members::Composed(schema)),
    }
}

fn may_be_object(document: &Document, schema: &Value) -> bool {
    let Ok(schema) = document.resolve(schema) else {
        return false;
    };
    let mut choices = ["anyOf", "oneOf"]
        .into_iter()
        .flat_map(|word| items(schema, word));
    choices.any(|choice| kind(document, choice) == Kind::Object)
}

/// Gathers the members of an object and of its parts; false if the schema has choices.
fn flatten<'a>(
    document: &'a Document,
    schema: &'a Value,
    depth: usize,
    left: &mut usize,
    named: &mut Named<'a>,
) -> bool {
    if depth == MAX_DEPTH || *left == 0 {
        return false;
    }
    *left -= 1;
    let Ok(schema) = document.resolve(schema) else {
        return false;
    };
    let Some(words) = schema.as_object() else {
        return schema.is_null() || *schema == Value::Bool(true);
    };
    for (word, value) in words {
        match word.as_str() {
            "properties" => {
                for (name, property) in members_of(schema, word) {
                    let before = named.properties.insert(name, property);
                    if before.is_some_and(|before| before != property) {
                        return false;
                    }
                }
            }
            "required" => {
                let names = items(schema, word).iter();
                named.required.extend(names.filter_map(Value::as_str));
            }
            "allOf" => {
                let mut parts = items(schema, word).iter();
                if !parts.all(|part| flatten(document, part, depth + 1, left, named)) {
                    return false;
                }
            }
            "additionalProperties"
            | "minProperties"
            | "maxProperties"
            | "propertyNames"
            | "patternProperties" => {
                // In a part of an `allOf`, or beside one, the keyword is about that part alone.
                let is_of_part = depth > 0 || words.contains_key("allOf");
                if is_of_part && *value != Value::Bool(true) {
                    return false;
                }
                named.others.insert(word.clone(), value.clone());
            }
            "anyOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "enum"
            | "const"
            | "dependentSchemas"
            | "dependentRequired"
            | "unevaluatedProperties"
            | "$dynamicRef" => return false,
            _ => {}
        }
    }
    true
}

/// The names of members in all parts about the same object.
fn gather(document: &Document, schema: &Value, left: &mut usize, names: &mut Vec<String>) {
    let Ok(schema) = document.resolve(schema) else {
        return;
    };
    if *left == 0 {
        return;
    }
    *left -= 1;
    names.extend(members_of(schema, "properties").map(|(name, _)| name.clone()));
    for word in ["allOf", "anyOf", "oneOf", "if", "then", "else"] {
        match schema.get(word) {
            Some(Value::Array(parts)) => {
                (parts.iter()).for_each(|part| gather(document, part, left, names));
            }
            Some(part) => gather(document, part, left, names),
            None => {}
        }
    }
}

/// How lists are written in a form, by the description of each member.
fn lists(
    document: &Document,
    media: &Value,
    members: &Members<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<Lists>, Reason> {
    let Members::Named(named) = members else {
        // Any member may be a list, so all lists are written as OpenAPI writes them by default.
        return Ok(Some(Lists::Repeat));
    };
    let mut way = None;
    for (name, schema) in &named.properties {
        let encoding = media.get("encoding").and_then(|all| all.get(name));
        let style = encoding.and_then(|encoding| text(encoding, "style"));
        let explode = encoding.and_then(|encoding| encoding.get("explode")?.as_bool());
        let wanted = match (kind(document, schema), style) {
            (Kind::Plain, _) | (Kind::Object, Some("deepObject")) => continue,
            (Kind::Object, _) => {
                notes.push(format!(
                    "`{name}` is an object in a form, and is written as {name}[…]=…"
                ));
                continue;
            }
            (Kind::List, Some("deepObject")) => Lists::Indices,
            (Kind::List, _) if explode == Some(false) => Lists::Comma,
            (Kind::List, _) => Lists::Repeat,
        };
        if way.is_some_and(|way| way != wanted) {
            return Err("its form writes lists in more than one way".into());
        }
        way = Some(wanted);
    }
    Ok(way)
}
