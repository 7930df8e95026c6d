//! The body of an operation's request: its form, and the schema of its members.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::document::Document;
use super::operations::Operation;
use super::parameters::{Kind, Reason, kind};
use crate::core::request::Lists;

/// How deep `allOf` is followed, and how many parts of one object are read.
const MAX_DEPTH: usize = 8;
const MAX_PARTS: usize = 200;

/// The body as a tool sends it.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) form: Form,
    pub(super) members: Members<'a>,
    /// Sentences about differences from the description.
    pub(super) told: Vec<String>,
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
            Self::Named(named) => {
                let names = named.properties.keys();
                names.map(|name| (*name).to_owned()).collect()
            }
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
) -> Result<Body<'a>, Reason> {
    let none = |told| Body {
        form: Form::None,
        members: Members::Named(Named::default()),
        told,
    };
    let Some(node) = operation.node.get("requestBody") else {
        return Ok(none(Vec::new()));
    };
    let node = document
        .resolve(node)
        .map_err(|why| format!("its body cannot be read: {why}"))?;
    let is_required = node.get("required") == Some(&Value::Bool(true));
    let content = node.get("content").and_then(Value::as_object);
    let content = content.filter(|content| !content.is_empty());
    let Some(content) = content else {
        return match is_required {
            true => Err("its body has no media type".into()),
            false => Ok(none(Vec::new())),
        };
    };
    let (form, media) = form(content)?;
    let mut told = Vec::new();
    let schema = media.get("schema").unwrap_or(&Value::Null);
    let members = members(document, schema)?;
    let is_bare = matches!(&members, Members::Named(named) if named.properties.is_empty());
    if operation.method == "GET" && !is_required {
        if !is_bare {
            told.push("the body is left out: it is not required, and a GET has none".to_owned());
        }
        return Ok(none(told));
    }
    if is_bare && schema.get("additionalProperties") == Some(&Value::Bool(false)) {
        return Ok(none(told));
    }
    if schema.as_object().is_none_or(Map::is_empty) {
        told.push(
            "the description does not say what its body holds: every argument goes into it".into(),
        );
    }
    let form = match form {
        Form::Pairs(_) => Form::Pairs(lists(document, media, &members, &mut told)?),
        other => other,
    };
    Ok(Body {
        form,
        members,
        told,
    })
}

/// The first form that a tool can write.
fn form(content: &Map<String, Value>) -> Result<(Form, &Value), Reason> {
    let essence = |media: &str| {
        let mut parts = media.split(';').map(|part| part.trim().to_lowercase());
        let essence = parts.next().unwrap_or_default();
        // Another parameter than this makes it another type.
        let is_plain = parts.all(|part| part.is_empty() || part.starts_with("charset=utf-8"));
        is_plain.then_some(essence)
    };
    let find = |wanted: &[&str]| {
        let mut media = content.iter();
        media.find(|(media, _)| essence(media).is_some_and(|media| wanted.contains(&&*media)))
    };
    if let Some((_, media)) =
        find(&["application/json"]).or_else(|| find(&["*/*", "application/*"]))
    {
        return Ok((Form::Json, media));
    }
    if let Some((_, media)) = find(&["application/x-www-form-urlencoded"]) {
        return Ok((Form::Pairs(None), media));
    }
    let names: Vec<&str> = content.keys().map(String::as_str).take(3).collect();
    Err(format!(
        "its body is {}, which no tool can write",
        names.join(" or ")
    ))
}

/// The members of an object, or why it is none.
fn members<'a>(document: &'a Document, schema: &'a Value) -> Result<Members<'a>, Reason> {
    if kind(document, schema) == Kind::List && !may_be_object(document, schema) {
        return Err("its body is a list, and arguments are an object".into());
    }
    let resolved = document
        .resolve(schema)
        .map_err(|why| format!("its body cannot be read: {why}"))?;
    if let Some(kind) = resolved.get("type").and_then(Value::as_str)
        && kind != "object"
    {
        return Err(format!(
            "its body is a value of the type {kind}, and arguments are an object"
        ));
    }
    let mut named = Named::default();
    match flatten(document, schema, 0, &mut { MAX_PARTS }, &mut named) {
        true => Ok(Members::Named(named)),
        false if kind(document, schema) == Kind::Plain => {
            Err("its body is not said to be an object, and arguments are one".into())
        }
        false => Ok(Members::Composed(schema)),
    }
}

fn may_be_object(document: &Document, schema: &Value) -> bool {
    let Ok(schema) = document.resolve(schema) else {
        return false;
    };
    let choices = ["anyOf", "oneOf"].into_iter();
    let mut choices = choices
        .filter_map(|word| schema.get(word)?.as_array())
        .flatten();
    choices.any(|choice| kind(document, choice) == Kind::Object)
}

/// Gathers the members of an object and of its parts; false if there are choices in it.
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
                for (name, property) in value.as_object().into_iter().flatten() {
                    let before = named.properties.insert(name, property);
                    if before.is_some_and(|before| before != property) {
                        return false;
                    }
                }
            }
            "required" => {
                let names = value.as_array().into_iter().flatten();
                named.required.extend(names.filter_map(Value::as_str));
            }
            "allOf" => {
                let parts = value.as_array().into_iter().flatten();
                for part in parts {
                    if !flatten(document, part, depth + 1, left, named) {
                        return false;
                    }
                }
            }
            "additionalProperties"
            | "minProperties"
            | "maxProperties"
            | "propertyNames"
            | "patternProperties" => {
                // Beside other parts they are about the part alone.
                if depth > 0 || words.contains_key("allOf") {
                    let says_nothing = *value == Value::Bool(true);
                    if !says_nothing {
                        return false;
                    }
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
    let properties = schema.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flatten();
    names.extend(properties.map(|(name, _)| name.clone()));
    let parts = ["allOf", "anyOf", "oneOf", "if", "then", "else"].into_iter();
    for part in parts.filter_map(|word| schema.get(word)) {
        let parts = part
            .as_array()
            .map_or(std::slice::from_ref(part), Vec::as_slice);
        for part in parts {
            gather(document, part, left, names);
        }
    }
}

/// How lists are written in a form, by the description of each member.
fn lists(
    document: &Document,
    media: &Value,
    members: &Members<'_>,
    told: &mut Vec<String>,
) -> Result<Option<Lists>, Reason> {
    let Members::Named(named) = members else {
        // Which of its members are lists is not known: all are written in the way that OpenAPI has by default.
        return Ok(Some(Lists::Repeat));
    };
    let mut way = None;
    for (name, schema) in &named.properties {
        let encoding = media
            .get("encoding")
            .and_then(|encoding| encoding.get(name));
        let style = encoding.and_then(|encoding| encoding.get("style")?.as_str());
        let explode = encoding.and_then(|encoding| encoding.get("explode")?.as_bool());
        let wanted = match (kind(document, schema), style) {
            (Kind::Plain, _) | (Kind::Object, Some("deepObject")) => continue,
            (Kind::Object, _) => {
                told.push(format!(
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
