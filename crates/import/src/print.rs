//! Prints a tool as TOML, with a comment for each decision of an operator.

use serde_json::Value;

use super::document::{Document, members, text};
use super::operations::Operation;
use super::request::Request;
use super::text::{cut, key, line, string, value};
use super::{credentials, hints};

/// The longest description of a tool: some model providers take no more than 1,024 characters.
const MAX_DESCRIPTION: usize = 900;

/// The table of one tool. `all`: the operations that may undo it.
pub(super) fn tool(
    document: &Document,
    all: &[Operation<'_>],
    operation: &Operation<'_>,
    request: &Request,
) -> String {
    let is_read = operation.method == "GET";
    let name = &operation.name;
    let credentials = credentials::of(document, operation);
    let fields = hints::key_fields(operation, request);
    let fields: Vec<String> = fields.iter().map(|field| string(field)).collect();
    let fields = (!fields.is_empty()).then(|| format!("{{ fields = [{}] }}", fields.join(", ")));
    let effect = if is_read { "read" } else { "write" };
    let optional = |text: &Option<String>| text.as_deref().map(string);
    let settings = [
        ("description", Some(string(&description(operation)))),
        ("effect", Some(string(effect))),
        ("method", Some(string(&operation.method))),
        ("url", Some(string(&request.url))),
        ("query", pairs(&request.query)),
        ("body", Some(string(request.body))),
        ("arrays", request.arrays.map(string)),
        ("headers_from", pairs(&request.headers_from)),
        ("key_header", optional(&request.key.header)),
        ("# key_header", optional(&request.key.hint)),
        ("key_body", optional(&request.key.body)),
        ("# headers", pairs(&credentials.headers)),
        ("# key", fields),
        (
            "# compensation",
            hints::compensation(all, operation, request),
        ),
        ("# dedup", (!is_read).then(|| string("key"))),
    ];
    let mut out = format!("[tools.{name}]\n# {}\n", line(&operation.title()));
    for (key, value) in settings {
        out.extend(value.map(|value| format!("{key} = {value}\n")));
    }
    let notes = credentials.notes.iter();
    let notes = notes.map(|what| format!("credentials: {what}"));
    for what in notes.chain(request.notes.iter().cloned()) {
        out.push_str(&format!("# NOTE {}\n", line(&what)));
    }
    out.push('\n');
    schema(name, &request.schema, &mut out);
    out
}

/// The schema of the arguments, with a line for each of them.
fn schema(tool: &str, schema: &Value, out: &mut String) {
    let tables = ["properties", "$defs"];
    let words = || schema.as_object().into_iter().flatten();
    out.push_str(&format!("[tools.{tool}.input_schema]\n"));
    for (word, what) in words().filter(|(word, _)| !tables.contains(&word.as_str())) {
        out.push_str(&format!("{} = {}\n", key(word), value(what)));
    }
    for (word, _) in words().filter(|(word, _)| tables.contains(&word.as_str())) {
        out.push_str(&format!("\n[tools.{tool}.input_schema.{}]\n", key(word)));
        for (name, part) in members(schema, word) {
            out.push_str(&format!("{} = {}\n", key(name), value(part)));
        }
    }
}

/// An inline table; `None`: no pairs.
fn pairs(pairs: &[(String, String)]) -> Option<String> {
    let pair = |(name, value): &(String, String)| format!("{} = {}", key(name), string(value));
    let all: Vec<String> = pairs.iter().map(pair).collect();
    (!all.is_empty()).then(|| format!("{{ {} }}", all.join(", ")))
}

/// The description for models, in which `${` is not a variable of the environment.
fn description(operation: &Operation<'_>) -> String {
    let text = |word: &str| text(operation.node, word).map_or("", str::trim);
    let summary = Some(text("summary")).filter(|summary| operation.id != Some(*summary));
    let whole = match (summary.unwrap_or_default(), text("description")) {
        ("", "") => operation.title(),
        (summary, "") => summary.to_owned(),
        (summary, description) if description.starts_with(summary) => description.to_owned(),
        (summary, description) => format!("{summary}\n{description}"),
    };
    cut(&whole, MAX_DESCRIPTION).replace("${", "$ {")
}
