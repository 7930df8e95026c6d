//! Prints a tool as TOML, with a comment for each decision of a person.

use serde_json::Value;

use super::credentials::Credentials;
use super::operations::Operation;
use super::request::Request;
use super::text::{cut, key, line, string, value};

/// The longest description of a tool: some model providers take no more than 1,024 characters.
const MAX_DESCRIPTION: usize = 900;

/// Guesses about a tool that writes.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    pub(super) credentials: Credentials,
    pub(super) key_fields: Vec<String>,
    pub(super) compensation: Option<String>,
}

/// The table of one tool.
pub(super) fn tool(operation: &Operation<'_>, request: &Request, guesses: &Guesses) -> String {
    let is_read = operation.method == "GET";
    let name = &operation.name;
    let mut out = format!("[tools.{name}]\n# {}\n", line(&operation.title()));
    let mut put = |key: &str, value: &str| out.push_str(&format!("{key} = {value}\n"));
    put("description", &string(&description(operation)));
    put("effect", if is_read { "\"read\"" } else { "\"write\"" });
    put("method", &string(&operation.method));
    put("url", &string(&request.url));
    if !request.query.is_empty() {
        put("query", &pairs(&request.query));
    }
    put("body", &string(request.body));
    if let Some(arrays) = request.arrays {
        put("arrays", &string(arrays));
    }
    if !request.headers_from.is_empty() {
        put("headers_from", &pairs(&request.headers_from));
    }
    if let Some(header) = &request.key_header {
        put("key_header", &string(header));
    }
    if let Some(header) = &request.key_hint {
        put("# key_header", &string(header));
    }
    if let Some(pointer) = &request.key_body {
        put("key_body", &string(pointer));
    }
    let Guesses {
        credentials,
        key_fields,
        compensation,
    } = guesses;
    if !credentials.headers.is_empty() {
        put("# headers", &pairs(&credentials.headers));
    }
    if !key_fields.is_empty() {
        let fields: Vec<String> = key_fields.iter().map(|field| string(field)).collect();
        put("# key", &format!("{{ fields = [{}] }}", fields.join(", ")));
    }
    if let Some(compensation) = compensation {
        put("# compensation", compensation);
    }
    if !is_read {
        put("# dedup", "\"key\"");
    }
    let told = credentials
        .told
        .iter()
        .map(|what| format!("credentials: {what}"));
    for what in told.chain(request.told.iter().cloned()) {
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
    for (word, what) in words().filter(|(word, _)| tables.contains(&word.as_str())) {
        let parts = what.as_object().into_iter().flatten();
        out.push_str(&format!("\n[tools.{tool}.input_schema.{}]\n", key(word)));
        for (name, part) in parts {
            out.push_str(&format!("{} = {}\n", key(name), value(part)));
        }
    }
}

fn pairs(pairs: &[(String, String)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{} = {}", key(name), string(value)))
        .collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// The description for models. Nothing of it is taken from the environment.
fn description(operation: &Operation<'_>) -> String {
    let text = |word: &str| {
        operation
            .node
            .get(word)
            .and_then(Value::as_str)
            .map(str::trim)
    };
    let is_name = |text: &&str| Some(*text) == operation.id;
    let (summary, description) = (
        text("summary")
            .filter(|summary| !is_name(summary))
            .unwrap_or_default(),
        text("description").unwrap_or_default(),
    );
    let whole = match (summary, description) {
        ("", "") => operation.title(),
        (summary, "") => summary.to_owned(),
        ("", description) => description.to_owned(),
        (summary, description) if description.starts_with(summary) => description.to_owned(),
        (summary, description) => format!("{summary}\n{description}"),
    };
    cut(&whole, MAX_DESCRIPTION).replace("${", "$ {")
}
