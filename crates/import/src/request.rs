//! One operation as a tool: its request and the schema of its arguments.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::address::{self, Part};
use super::body::{self, Form, Members};
use super::credentials;
use super::document::{Document, is_true, items};
use super::keys::{self, Placement};
use super::operations::Operation;
use super::parameters::{self, Kind, Parameter, Place, Reason};
use super::schema::{Schemas, Shared, fit};
use super::values;
use oncegate_rules::key::MODEL_MEMBER;
use oncegate_rules::request::Lists;

/// The longest name of an argument outside of the body.
const MAX_NAME: usize = 60;

/// An operation that a tool can send.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) url: String,
    /// Names in the query, and pointers.
    pub(super) query: Vec<(String, String)>,
    pub(super) body: &'static str,
    pub(super) arrays: Option<&'static str>,
    pub(super) headers_from: Vec<(String, String)>,
    pub(super) key: Placement,
    pub(super) schema: Value,
    /// Names in the path, and pointers.
    pub(super) places: Vec<(String, String)>,
    /// Sentences about left-out parts, or differences from the description.
    pub(super) notes: Vec<String>,
}

impl Request {
    /// The required arguments.
    pub(super) fn required(&self) -> impl Iterator<Item = &str> {
        let required = items(&self.schema, "required").iter();
        required.filter_map(Value::as_str)
    }
}

/// A parameter, and its name among the arguments.
struct Argument {
    name: String,
    parameter: Parameter,
}

/// The request for an operation, or why there is none.
pub(super) fn of(
    document: &Document,
    operation: &Operation<'_>,
    server: Option<&str>,
) -> Result<Request, Reason> {
    if !operation.node.is_object() {
        return Err("it is not an object".into());
    }
    if matches!(&*operation.method, "HEAD" | "OPTIONS" | "TRACE") {
        return Err(format!("no tool has the method {}", operation.method));
    }
    let mut notes = Vec::new();
    if is_true(operation.node, "deprecated") {
        notes.push("the description calls it deprecated".to_owned());
    }
    if operation.node.get("callbacks").is_some() {
        notes.push("the API answers later, by calls of its own (callbacks), which the gateway does not take".to_owned());
    }
    let server = address::server(document, operation, server, &mut notes)?;
    let parts = address::parts(operation.path)?;
    let mut sent = parameters::of(document, operation, &mut notes)?;
    credentials::take(document, &mut sent, &mut notes);
    let mut body = body::of(document, operation, &mut notes)?;
    let is_read = operation.method == "GET";
    let key = keys::take(document, &mut sent, &mut body, is_read, &mut notes);
    let names: BTreeSet<String> = body.members.names(document).into_iter().collect();
    place_all(&mut sent, &parts, &mut notes);
    let arguments = name_all(sent, &names, &mut notes);
    let lists = lists(&arguments, body.form)?;
    let schema = schema(document, &arguments, &body.members, body.form, &mut notes)?;
    let pairs = |place: Place| -> Vec<(String, String)> {
        let of_place = arguments.iter().filter(|one| one.parameter.place == place);
        of_place
            .map(|one| (one.parameter.name.clone(), format!("/{}", one.name)))
            .collect()
    };
    let places = pairs(Place::Path);
    let path = parts.iter().map(|part| match part {
        Part::Fixed(text) => text.clone(),
        Part::Place(name) => {
            let own = places.iter().find(|(place, _)| place == name);
            own.map_or_else(String::new, |(_, pointer)| format!("{{{pointer}}}"))
        }
    });
    Ok(Request {
        url: format!("{server}{}", path.collect::<String>()),
        query: pairs(Place::Query),
        body: body.form.word(),
        arrays: lists.map(Lists::as_str),
        headers_from: pairs(Place::Header),
        key,
        schema,
        places,
        notes,
    })
}

/// Gives each place of the path its parameter, and removes parameters without a place.
fn place_all(sent: &mut Vec<Parameter>, parts: &[Part<'_>], notes: &mut Vec<String>) {
    let has_no_place = |one: &mut Parameter| {
        one.place == Place::Path && !parts.contains(&Part::Place(one.name.as_str()))
    };
    for Parameter { name, .. } in sent.extract_if(.., has_no_place) {
        notes.push(format!(
            "left out: the path has no place for its parameter `{name}`"
        ));
    }
    for part in parts {
        let Part::Place(name) = part else { continue };
        let has = |parameter: &Parameter| parameter.place == Place::Path && parameter.name == *name;
        if sent.iter().any(has) {
            continue;
        }
        notes.push(format!(
            "the description does not say what `{name}` in the path is: it is taken for text"
        ));
        sent.push(Parameter {
            place: Place::Path,
            name: (*name).to_owned(),
            schema: json!({ "type": "string" }),
            description: None,
            is_required: true,
            lists: None,
        });
    }
}

/// Gives each parameter a name of its own, unlike any body member's.
fn name_all(
    sent: Vec<Parameter>,
    members: &BTreeSet<String>,
    notes: &mut Vec<String>,
) -> Vec<Argument> {
    let mut taken = members.clone();
    // The gateway reads the model's key from this argument.
    taken.insert(MODEL_MEMBER.into());
    let mut arguments = Vec::new();
    for parameter in sent {
        let plain = plain(&parameter.name);
        let place = parameter.place.word();
        let is_whole = !plain.is_empty() && plain.bytes().any(|byte| !byte.is_ascii_digit());
        let mut name = match is_whole && !taken.contains(&plain) {
            true => plain.clone(),
            false => format!("{place}_{plain}"),
        };
        let mut number = 1;
        while taken.contains(&name) {
            number += 1;
            name = format!("{place}_{plain}_{number}");
        }
        if name != plain {
            let why = match is_whole {
                true => "its own name is taken",
                false => "its own name cannot be one",
            };
            notes.push(format!(
                "the {place} parameter `{}` is the argument {name}: {why}",
                parameter.name
            ));
        }
        taken.insert(name.clone());
        arguments.push(Argument { name, parameter });
    }
    arguments
}

/// A name that models and JSON Pointers take unchanged.
fn plain(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' => out.push(letter),
            // Names such as `created<` stand for a bound.
            '<' => out.push_str("_lt"),
            '>' => out.push_str("_gt"),
            _ if out.ends_with('_') => {}
            _ => out.push('_'),
        }
    }
    out.truncate(MAX_NAME);
    out.trim_matches('_').to_owned()
}

/// The tool's one way of lists, if it is not the usual one.
fn lists(arguments: &[Argument], form: Form) -> Result<Option<Lists>, Reason> {
    let query = arguments.iter().find_map(|one| one.parameter.lists);
    let body = match form {
        Form::Pairs(lists) => lists,
        _ => None,
    };
    match (query, body) {
        // These are the defaults of a tool's query and form.
        (Some(Lists::Repeat), Some(Lists::Indices)) => Ok(None),
        (Some(query), Some(body)) if query != body => {
            Err("its query and its form write lists in different ways".into())
        }
        (Some(Lists::Repeat), None) if form == Form::Json || form == Form::None => Ok(None),
        (None, Some(Lists::Indices)) => Ok(None),
        (query, body) => Ok(query.or(body)),
    }
}

/// The schema of all arguments together.
fn schema(
    document: &Document,
    arguments: &[Argument],
    members: &Members<'_>,
    form: Form,
    notes: &mut Vec<String>,
) -> Result<Value, Reason> {
    let mut whole = json!({ "type": "object", "properties": {}, "required": [] });
    let mut beside = None;
    match members {
        Members::Composed(schema) if arguments.is_empty() => {
            let words = document.resolve(schema)?.as_object().cloned();
            whole = words.unwrap_or_default().into();
            whole["type"] = json!("object");
        }
        Members::Composed(schema) => beside = Some(*schema),
        Members::Named(named) => {
            for (name, property) in &named.properties {
                whole["properties"][*name] = (*property).clone();
            }
            whole["required"] = json!(named.required);
            for (word, value) in &named.others {
                // The other keywords would also count or name the arguments outside of the body.
                if arguments.is_empty()
                    || matches!(&**word, "additionalProperties" | "patternProperties")
                {
                    whole[word] = value.clone();
                }
            }
        }
    }
    if form == Form::None {
        whole["additionalProperties"] = json!(false);
    }
    let names: Vec<&str> = arguments.iter().map(|one| one.name.as_str()).collect();
    for Argument { name, parameter } in arguments {
        whole["properties"][name] = property(document, parameter);
        if parameter.is_required
            && let Some(required) = whole["required"].as_array_mut()
        {
            required.push(json!(name));
        }
    }
    let shared = Shared::of(document, [&whole].into_iter().chain(beside));
    let build = |schemas: &mut Schemas<'_>| {
        let mut root = schemas.convert(&whole, 0);
        if let Some(beside) = beside {
            let mut part = schemas.convert(beside, 0);
            values::admit(&mut part, &names, 0);
            root["allOf"] = json!([part]);
        }
        root
    };
    let (mut schema, relaxed) = fit(document, &shared, build)
        .ok_or("its arguments are too many or too large for a tool")?;
    notes.extend(relaxed);
    if beside.is_some() {
        let definitions = schema.get_mut("$defs").and_then(Value::as_object_mut);
        for definition in definitions.into_iter().flat_map(Map::values_mut) {
            values::admit(definition, &names, 0);
        }
    }
    for Argument { name, parameter } in arguments {
        if parameter.place == Place::Path {
            values::stand_in_a_path(&mut schema["properties"][name]);
        }
    }
    Ok(schema)
}

/// The schema of an argument that is a parameter.
fn property(document: &Document, parameter: &Parameter) -> Value {
    let resolved = document.resolve(&parameter.schema).unwrap_or(&Value::Null);
    let mut words = resolved.as_object().cloned().unwrap_or_default();
    words.remove("readOnly");
    if let Some(description) = &parameter.description {
        let own = words.entry("description");
        own.or_insert_with(|| json!(description));
    }
    let is_text = parameters::kind(document, &parameter.schema) == Kind::Plain;
    let is_bare = words.keys().all(|word| word == "description");
    if is_text && is_bare && parameter.place != Place::Query {
        words.insert("type".into(), json!("string"));
    }
    words.into()
}
