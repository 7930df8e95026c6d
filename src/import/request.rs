//! One operation as the table of a tool: its request, and its arguments.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::address::{self, Part};
use super::body::{self, Form, Members};
use super::credentials;
use super::document::Document;
use super::keys;
use super::operations::Operation;
use super::parameters::{self, Kind, Parameter, Parameters, Place, Reason};
use super::schema::{Schemas, Shared, fit};
use super::values;
use crate::core::request::Lists;

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
    pub(super) key_header: Option<String>,
    /// A guess.
    pub(super) key_hint: Option<String>,
    pub(super) key_body: Option<String>,
    pub(super) schema: Value,
    /// Names of arguments in the path, by the names of the parameters.
    pub(super) places: Vec<(String, String)>,
    /// Sentences about left-out parts, or differences from the description.
    pub(super) told: Vec<String>,
}

impl Request {
    /// The required arguments.
    pub(super) fn required(&self) -> impl Iterator<Item = &str> {
        let required = self.schema.get("required").and_then(Value::as_array);
        required.into_iter().flatten().filter_map(Value::as_str)
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
        return Err("it is no object".into());
    }
    if matches!(&*operation.method, "HEAD" | "OPTIONS" | "TRACE") {
        return Err(format!("no tool has the method {}", operation.method));
    }
    let mut told = Vec::new();
    if operation.node.get("deprecated") == Some(&Value::Bool(true)) {
        told.push("the description calls it deprecated".to_owned());
    }
    if operation.node.get("callbacks").is_some() {
        told.push("the API answers later, by calls of its own (callbacks), which the gateway does not take".to_owned());
    }
    let server = address::server(document, operation, server, &mut told)?;
    let parts = address::parts(operation.path)?;
    let mut parameters = parameters::of(document, operation)?;
    credentials::take(document, &mut parameters);
    let mut body = body::of(document, operation)?;
    let key = keys::take(
        document,
        &mut parameters,
        &mut body,
        operation.method == "GET",
    );
    let left_out = std::mem::take(&mut parameters.left_out);
    told.extend(left_out.into_iter().map(|what| format!("left out: {what}")));
    told.append(&mut body.told);
    told.extend(key.told);
    let names: BTreeSet<String> = body.members.names(document).into_iter().collect();
    place_all(&mut parameters, &parts, &mut told);
    let arguments = name_all(parameters, &names, &mut told);
    let lists = lists(&arguments, body.form)?;
    let schema = schema(document, &arguments, &body.members, body.form, &mut told)?;
    let of_place = |place: Place| {
        let arguments = arguments.iter();
        arguments.filter(move |argument| argument.parameter.place == place)
    };
    let pairs = |place| {
        let pair = |argument: &Argument| {
            (
                argument.parameter.name.clone(),
                format!("/{}", argument.name),
            )
        };
        of_place(place).map(pair).collect::<Vec<_>>()
    };
    let name_of = |place: &str| {
        let found = of_place(Place::Path).find(|argument| argument.parameter.name == place);
        found.map_or_else(|| place.to_owned(), |argument| argument.name.clone())
    };
    let path = parts.iter().map(|part| match part {
        Part::Fixed(text) => text.clone(),
        Part::Place(name) => format!("{{/{}}}", name_of(name)),
    });
    Ok(Request {
        url: format!("{server}{}", path.collect::<String>()),
        query: pairs(Place::Query),
        body: body.form.word(),
        arrays: lists.map(word),
        headers_from: pairs(Place::Header),
        key_header: key.header,
        key_hint: key.hint,
        key_body: key.body,
        schema,
        places: of_place(Place::Path)
            .map(|argument| (argument.parameter.name.clone(), argument.name.clone()))
            .collect(),
        told,
    })
}

/// Gives each place of the path its parameter, and removes those without a place.
fn place_all(parameters: &mut Parameters, parts: &[Part<'_>], told: &mut Vec<String>) {
    let is_place = |name: &str| {
        parts
            .iter()
            .any(|part| matches!(part, Part::Place(place) if *place == name))
    };
    parameters.sent.retain(|parameter| {
        let is_sent = parameter.place != Place::Path || is_place(&parameter.name);
        if !is_sent {
            told.push(format!(
                "left out: the path has no place for its parameter `{}`",
                parameter.name
            ));
        }
        is_sent
    });
    for part in parts {
        let Part::Place(name) = part else { continue };
        let has = |parameter: &Parameter| parameter.place == Place::Path && parameter.name == *name;
        if parameters.sent.iter().any(has) {
            continue;
        }
        told.push(format!(
            "the description does not say what `{name}` in the path is: it is taken for text"
        ));
        parameters.sent.push(Parameter {
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
    parameters: Parameters,
    members: &BTreeSet<String>,
    told: &mut Vec<String>,
) -> Vec<Argument> {
    let mut taken = members.clone();
    // The gateway reads the model's key there.
    taken.insert("idempotency_key".into());
    let mut arguments = Vec::new();
    for parameter in parameters.sent {
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
            told.push(format!(
                "the {place} parameter `{}` is the argument {name}: {}",
                parameter.name,
                if is_whole {
                    "its own name is taken"
                } else {
                    "its own name cannot be one"
                }
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
            // Some queries have a bound behind the name.
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
    let query = arguments
        .iter()
        .find_map(|argument| argument.parameter.lists);
    let body = match form {
        Form::Pairs(lists) => lists,
        _ => None,
    };
    match (query, body) {
        (Some(query), Some(body)) if query != body => {
            // Those of a query and of a form differ if nothing is said.
            let are_usual = query == Lists::Repeat && body == Lists::Indices;
            are_usual
                .then_some(None)
                .ok_or_else(|| "its query and its form write lists in different ways".into())
        }
        (Some(Lists::Repeat), None) if form == Form::Json || form == Form::None => Ok(None),
        (None, Some(Lists::Indices)) => Ok(None),
        (query, body) => Ok(query.or(body)),
    }
}

/// The value for the key `arrays`.
fn word(lists: Lists) -> &'static str {
    match lists {
        Lists::Indices => "indices",
        Lists::Brackets => "brackets",
        Lists::Repeat => "repeat",
        Lists::Comma => "comma",
    }
}

/// The schema of all arguments together.
fn schema(
    document: &Document,
    arguments: &[Argument],
    members: &Members<'_>,
    form: Form,
    told: &mut Vec<String>,
) -> Result<Value, Reason> {
    let mut whole = json!({ "type": "object", "properties": {}, "required": [] });
    let mut beside = None;
    match members {
        Members::Composed(schema) if arguments.is_empty() => {
            let mut words = document
                .resolve(schema)?
                .as_object()
                .cloned()
                .unwrap_or_default();
            words.insert("type".into(), json!("object"));
            whole = words.into();
        }
        Members::Composed(schema) => beside = Some(*schema),
        Members::Named(named) => {
            for (name, property) in &named.properties {
                whole["properties"][*name] = (*property).clone();
            }
            whole["required"] = json!(named.required);
            for (word, value) in &named.others {
                // They would count or name the others, too.
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
    let names: Vec<&str> = arguments
        .iter()
        .map(|argument| argument.name.as_str())
        .collect();
    for Argument { name, parameter } in arguments {
        whole["properties"][name] = property(document, parameter);
        if parameter.is_required
            && let Some(required) = whole["required"].as_array_mut()
        {
            required.push(json!(name));
        }
    }
    let roots = [&whole].into_iter().chain(beside);
    let shared = Shared::of(document, roots);
    let build = |schemas: &mut Schemas<'_>| {
        let root = schemas.convert(&whole, 0);
        let mut root = match root {
            Value::Object(root) => root,
            _ => Map::new(),
        };
        if let Some(beside) = beside {
            let mut part = schemas.convert(beside, 0);
            values::admit(&mut part, &names, 0);
            root.insert("allOf".into(), json!([part]));
        }
        root
    };
    let (mut schema, relaxed) = fit(document, &shared, build)
        .ok_or("its arguments are too many or too large for a tool")?;
    told.extend(relaxed);
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
        words
            .entry("description")
            .or_insert_with(|| json!(description));
    }
    let is_text = parameters::kind(document, &parameter.schema) == Kind::Plain;
    if words.get("type").is_none()
        && is_text
        && words.keys().all(|word| word == "description")
        && parameter.place != Place::Query
    {
        words.insert("type".into(), json!("string"));
    }
    words.into()
}
