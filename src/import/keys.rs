//! The place of an operation's idempotency key, by names in the description.

use serde_json::{Map, Value};

use super::body::{Body, Form, Members};
use super::document::Document;
use super::parameters::{Kind, Parameter, Parameters, Place, kind};
use crate::core::request::KEY_HEADER;
use crate::core::schema::Schema;

/// An example of a key for a tool.
const EXAMPLE: &str = "7d0c3f6e9b8a4a51b1c2d3e4f5061728";

/// Where an operation takes its key.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// A header other than `Idempotency-Key`.
    pub(super) header: Option<String>,
    /// A header that may be for the key. The model gives it until a person decides.
    pub(super) hint: Option<String>,
    /// A pointer into the body.
    pub(super) body: Option<String>,
    /// Sentences about it.
    pub(super) told: Vec<String>,
}

/// Removes the parameters and the member of the key from the arguments.
pub(super) fn take(
    document: &Document,
    parameters: &mut Parameters,
    body: &mut Body<'_>,
    is_read: bool,
) -> Placement {
    let mut found = Placement::default();
    headers(document, parameters, is_read, &mut found);
    if is_read || body.form == Form::None {
        return found;
    }
    match &mut body.members {
        Members::Named(named) => {
            let names: Vec<&str> = named.properties.keys().copied().collect();
            for name in names.into_iter().filter(|name| is_key_name(name)) {
                let schema = named.properties.get(name).copied().unwrap_or(&Value::Null);
                if found.body.is_some() || !is_text(document, schema) {
                    found.told.push(format!(
                        "`{name}` in the body is not taken for the key: the model gives it"
                    ));
                    continue;
                }
                found.told.extend(misfit(document, schema, name));
                named.properties.remove(name);
                named.required.retain(|required| *required != name);
                found.body = Some(format!("/{name}"));
            }
        }
        composed @ Members::Composed(_) => {
            let names = composed.names(document).into_iter();
            if let Some(name) = names.into_iter().find(|name| is_key_name(name)) {
                found.told.push(format!(
                    "`{name}` is in a body with choices: the tool has no key_body, and the model gives it"
                ));
            }
        }
    }
    found
}

/// The headers that may be for the key.
fn headers(document: &Document, parameters: &mut Parameters, is_read: bool, found: &mut Placement) {
    let is_for_key = |parameter: &Parameter| {
        let is_exact = parameter.name.eq_ignore_ascii_case(KEY_HEADER);
        parameter.place == Place::Header
            && is_key_header(&parameter.name)
            && (is_exact || is_text(document, &parameter.schema))
    };
    if is_read {
        parameters.sent.retain(|parameter| {
            let is_key = is_for_key(parameter);
            if is_key {
                found.told.push(format!(
                    "the header {} is left out: a read has no key",
                    parameter.name
                ));
            }
            !is_key
        });
        return;
    }
    let is_exact = |parameter: &&Parameter| parameter.name.eq_ignore_ascii_case(KEY_HEADER);
    let candidates: Vec<&Parameter> = parameters.sent.iter().filter(|p| is_for_key(p)).collect();
    let chosen = candidates.iter().copied().find(is_exact);
    let Some(chosen) = chosen.or(candidates.first().copied()) else {
        let may_be = |parameter: &&Parameter| {
            let description = parameter.description.as_deref().unwrap_or_default();
            parameter.place == Place::Header
                && is_text(document, &parameter.schema)
                && may_be_key_header(&parameter.name, description)
        };
        found.hint = parameters
            .sent
            .iter()
            .find(may_be)
            .map(|hint| hint.name.clone());
        found.told.extend(found.hint.iter().map(|name| {
            format!(
                "{name} may be for the key: if it is, take it out of headers_from and the schema"
            )
        }));
        return;
    };
    let name = chosen.name.clone();
    found.told.extend(misfit(document, &chosen.schema, &name));
    parameters.sent.retain(|parameter| {
        parameter.place != Place::Header || !parameter.name.eq_ignore_ascii_case(&name)
    });
    match name.eq_ignore_ascii_case(KEY_HEADER) {
        true => found
            .told
            .push("the description names the header Idempotency-Key, which has the key".into()),
        false => found.header = Some(name),
    }
}

/// Whether any text may be a value.
fn is_text(document: &Document, schema: &Value) -> bool {
    let schema = document.resolve(schema).unwrap_or(schema);
    let is_typed = match schema.get("type") {
        None => kind(document, schema) == Kind::Plain,
        Some(Value::Array(kinds)) => kinds.contains(&"string".into()),
        Some(kind) => kind == "string",
    };
    is_typed && schema.get("enum").is_none() && schema.get("const").is_none()
}

/// Whether a name is `idempotency_key` in any spelling, or AWS's word for it.
fn is_key_name(name: &str) -> bool {
    let letters = name.to_lowercase().replace(['_', '-'], "");
    matches!(&*letters, "idempotencykey" | "idempotencytoken")
}

/// Whether a header's name alone says that it is for a key.
fn is_key_header(name: &str) -> bool {
    let letters = name.to_lowercase().replace(['_', '-'], "");
    let ends = ["idempotencykey", "idempotencekey", "idempotencytoken"];
    ends.iter().any(|end| letters.ends_with(end)) || letters == "paypalrequestid"
}

/// Whether a header may be for a key, by its name or its description.
fn may_be_key_header(name: &str, description: &str) -> bool {
    let (name, description) = (name.to_lowercase(), description.to_lowercase());
    name.contains("idempoten") || name.ends_with("request-id") && description.contains("idempoten")
}

/// The description's demand on a key that the gateway's keys do not meet.
fn misfit(document: &Document, schema: &Value, name: &str) -> Option<String> {
    let schema = document.resolve(schema).unwrap_or(schema);
    let words = [
        "type",
        "enum",
        "maxLength",
        "minLength",
        "pattern",
        "format",
    ]
    .into_iter();
    let asked: Map<String, Value> = words
        .filter_map(|word| Some((word.to_owned(), schema.get(word)?.clone())))
        .collect();
    let is_free = |schema: Schema| schema.mistakes(&EXAMPLE.into()).is_empty();
    if !asked.contains_key("format") && Schema::new(asked.clone().into()).is_ok_and(is_free) {
        return None;
    }
    let asked: Vec<String> = asked
        .iter()
        .filter(|(_, value)| *value != "string")
        .map(|(word, value)| format!("{word} = {value}"))
        .collect();
    Some(format!(
        "the API may refuse the keys in {name}: it asks for {}; they are 32 hex digits",
        asked.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_is_known_by_its_name_and_guessed_by_what_is_said_of_a_request_id() {
        for name in ["Idempotency-Key", "x-idempotency-key", "PayPal-Request-Id"] {
            assert!(is_key_header(name), "{name}");
        }
        for name in ["Idempotency-Mode", "Idempotency-Expiry", "X-Request-Id"] {
            assert!(!is_key_header(name), "{name}");
        }
        let said = "Makes the call idempotent.";
        assert!(may_be_key_header("X-Request-Id", said));
        assert!(!may_be_key_header("X-Request-Id", "For the log."));
        assert!(is_key_name("idempotency_key") && is_key_name("idempotencyKey"));
        assert!(!is_key_name("idempotency_${}key") && !is_key_name("key"));
    }

    #[test]
    fn a_key_that_the_api_may_refuse_is_told() {
        let document = Document::read(r#"{ "openapi": "3.1.0" }"#).expect("a description");
        for (schema, is_told) in [
            (json!({ "type": "string", "maxLength": 255 }), false),
            (json!({ "maxLength": 31 }), true),
            (json!({ "minLength": 36 }), true),
            (json!({ "pattern": "^[0-9a-f]+$" }), false),
            (json!({ "pattern": "^[A-Z]+$" }), true),
            (json!({ "format": "uuid" }), true),
            (json!({ "type": "integer" }), true),
            (json!({ "enum": ["a"] }), true),
        ] {
            assert_eq!(
                misfit(&document, &schema, "K").is_some(),
                is_told,
                "{schema}"
            );
        }
    }
}
