//! Where an operation takes its idempotency key, by names in the description.

use serde_json::{Map, Value};

use super::body::{Body, Form, Members};
use super::document::Document;
use super::parameters::{Kind, Parameter, Place, kind};
use oncegate_rules::request::KEY_HEADER;
use oncegate_rules::schema::Schema;

/// An example of a key for a tool.
const EXAMPLE: &str = "7d0c3f6e9b8a4a51b1c2d3e4f5061728";

/// Where an operation takes its key.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// A header other than `Idempotency-Key`.
    pub(super) header: Option<String>,
    /// A header that may be for the key. Until an operator decides, the model fills it in.
    pub(super) hint: Option<String>,
    /// A pointer into the body.
    pub(super) body: Option<String>,
}

/// Removes the parameters and the member of the key from the arguments.
pub(super) fn take(
    document: &Document,
    sent: &mut Vec<Parameter>,
    body: &mut Body<'_>,
    is_read: bool,
    notes: &mut Vec<String>,
) -> Placement {
    let mut found = headers(document, sent, is_read, notes);
    if is_read || body.form == Form::None {
        return found;
    }
    match &mut body.members {
        Members::Named(named) => {
            let properties = named.properties.clone().into_iter();
            for (name, schema) in properties.filter(|(name, _)| is_key_name(name)) {
                if found.body.is_some() || !is_text(document, schema) {
                    notes.push(format!(
                        "`{name}` in the body is not taken for the key: the model gives it"
                    ));
                    continue;
                }
                notes.extend(misfit(document, schema, name));
                named.properties.remove(name);
                named.required.retain(|required| *required != name);
                found.body = Some(format!("/{name}"));
            }
        }
        composed @ Members::Composed(_) => {
            let mut names = composed.names(document).into_iter();
            if let Some(name) = names.find(|name| is_key_name(name)) {
                notes.push(format!(
                    "`{name}` is in a body with choices: the tool has no key_body, and the model gives it"
                ));
            }
        }
    }
    found
}

/// Removes the header for the key from the parameters, or finds one that may be for it.
fn headers(
    document: &Document,
    sent: &mut Vec<Parameter>,
    is_read: bool,
    notes: &mut Vec<String>,
) -> Placement {
    let mut found = Placement::default();
    let is_exact = |parameter: &Parameter| parameter.name.eq_ignore_ascii_case(KEY_HEADER);
    let is_text = |parameter: &Parameter| is_text(document, &parameter.schema);
    let is_for_key = |parameter: &Parameter| {
        parameter.place == Place::Header
            && is_key_header(&parameter.name)
            && (is_exact(parameter) || is_text(parameter))
    };
    if is_read {
        for Parameter { name, .. } in sent.extract_if(.., |one| is_for_key(one)) {
            notes.push(format!("the header {name} is left out: a read has no key"));
        }
        return found;
    }
    let at = sent.iter().position(|one| is_for_key(one) && is_exact(one));
    let Some(at) = at.or_else(|| sent.iter().position(is_for_key)) else {
        let may_be = |parameter: &&Parameter| {
            parameter.place == Place::Header
                && is_text(parameter)
                && may_be_key_header(&parameter.name, parameter.description())
        };
        found.hint = sent.iter().find(may_be).map(|hint| hint.name.clone());
        notes.extend(found.hint.iter().map(|name| {
            format!(
                "{name} may be for the key: if it is, take it out of headers_from and the schema"
            )
        }));
        return found;
    };
    let Parameter { name, schema, .. } = sent[at].clone();
    notes.extend(misfit(document, &schema, &name));
    if is_exact(&sent[at]) {
        notes.push("the description names the header Idempotency-Key, which has the key".into());
    } else {
        found.header = Some(name.clone());
    }
    sent.retain(|one| one.place != Place::Header || !one.name.eq_ignore_ascii_case(&name));
    found
}

/// Whether every text is a value of the schema.
fn is_text(document: &Document, schema: &Value) -> bool {
    let schema = document.resolve(schema).unwrap_or(schema);
    let is_typed = match schema.get("type") {
        None => kind(document, schema) == Kind::Plain,
        Some(Value::Array(kinds)) => kinds.contains(&"string".into()),
        Some(kind) => kind == "string",
    };
    is_typed && schema.get("enum").is_none() && schema.get("const").is_none()
}

/// A name in small letters, without what parts its words.
fn letters(name: &str) -> String {
    name.to_lowercase().replace(['_', '-'], "")
}

/// Whether a name is `idempotency_key` in any spelling, or AWS's word for it.
fn is_key_name(name: &str) -> bool {
    let letters = letters(name);
    matches!(&*letters, "idempotencykey" | "idempotencytoken")
}

/// Whether a header's name alone says that it is for a key.
fn is_key_header(name: &str) -> bool {
    let letters = letters(name);
    let ends = ["idempotencykey", "idempotencekey", "idempotencytoken"];
    ends.iter().any(|end| letters.ends_with(end)) || letters == "paypalrequestid"
}

/// Whether a header may be for a key, by its name or its description.
fn may_be_key_header(name: &str, description: &str) -> bool {
    let (name, description) = (name.to_lowercase(), description.to_lowercase());
    name.contains("idempoten") || name.ends_with("request-id") && description.contains("idempoten")
}

/// Says what the description asks of a key that the gateway's keys may not meet.
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
    let asked = asked.iter().filter(|(_, value)| *value != "string");
    let asked: Vec<String> = asked
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
    fn a_key_is_known_by_its_name_and_guessed_by_the_description_of_a_request_id() {
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
    fn a_schema_that_the_gateways_keys_may_not_fit_is_told() {
        let document = Document::read(r#"{ "openapi": "3.1.0" }"#).expect("a description");
        for (schema, is_noted) in [
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
                is_noted,
                "{schema}"
            );
        }
    }
}
