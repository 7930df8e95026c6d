//! Where an operation takes an idempotency key, by what its description names.

use serde_json::{Map, Value};

use super::body::{Body, Form, Members};
use super::parameters::{Parameters, Place};
use crate::core::request::KEY_HEADER;
use crate::core::schema::Schema;

/// A key as tools get it.
const EXAMPLE: &str = "7d0c3f6e9b8a4a51b1c2d3e4f5061728";

/// What is known of an operation's key.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// Instead of `Idempotency-Key`.
    pub(super) header: Option<String>,
    /// A pointer into the body.
    pub(super) body: Option<String>,
    /// Sentences about it.
    pub(super) told: Vec<String>,
}

/// Takes the parameters and the member that are for the key away from what the model gives.
pub(super) fn take(parameters: &mut Parameters, body: &mut Body<'_>, is_read: bool) -> Placement {
    let mut found = Placement::default();
    parameters.sent.retain(|parameter| {
        let description = parameter.description.as_deref().unwrap_or_default();
        let is_key =
            parameter.place == Place::Header && is_key_header(&parameter.name, description);
        if is_key && is_read {
            found.told.push(format!(
                "the header {} is left out: a read has no key",
                parameter.name
            ));
        } else if is_key && found.header.is_none() {
            found
                .told
                .extend(misfit(&parameter.schema, &parameter.name));
            found.header = Some(parameter.name.clone());
        }
        !is_key || (!is_read && found.header.as_ref() != Some(&parameter.name))
    });
    if found
        .header
        .as_deref()
        .is_some_and(|name| name.eq_ignore_ascii_case(KEY_HEADER))
    {
        found
            .told
            .push("the description names the header Idempotency-Key, which has the key".into());
        found.header = None;
    }
    if let Members::Named(named) = &mut body.members
        && body.form != Form::None
        && !is_read
        && let Some(name) = named
            .properties
            .keys()
            .copied()
            .find(|name| is_key_name(name))
    {
        let schema = named.properties.remove(name).unwrap_or(&Value::Null);
        found.told.extend(misfit(schema, name));
        named.required.retain(|required| *required != name);
        found.body = Some(format!("/{name}"));
    }
    found
}

/// `idempotency_key` in any spelling, and what AWS calls it.
fn is_key_name(name: &str) -> bool {
    let letters = name.to_lowercase().replace(['_', '-'], "");
    matches!(&*letters, "idempotencykey" | "idempotencytoken")
}

/// By its name, or, if it is the id of a request, by what is said of it. PayPal says of its own only for how long keys are
/// stored.
fn is_key_header(name: &str, description: &str) -> bool {
    let (name, description) = (name.to_lowercase(), description.to_lowercase());
    let is_said = || description.contains("idempoten");
    name.contains("idempoten")
        || name == "paypal-request-id"
        || name.ends_with("request-id") && is_said()
}

/// What the description asks of a key, if those that the gateway sends do not fit.
fn misfit(schema: &Value, name: &str) -> Option<String> {
    let words = ["maxLength", "minLength", "pattern", "format"].into_iter();
    let asked: Map<String, Value> = words
        .filter_map(|word| Some((word.to_owned(), schema.get(word)?.clone())))
        .collect();
    let is_free = |schema: Schema| schema.mistakes(&EXAMPLE.into()).is_empty();
    if !asked.contains_key("format") && Schema::new(asked.clone().into()).is_ok_and(is_free) {
        return None;
    }
    let asked: Vec<String> = asked
        .iter()
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
    fn a_key_is_known_by_its_name_or_by_what_is_said_of_a_request_id() {
        for name in ["Idempotency-Key", "x-idempotency-key", "Adyen-Idempotence"] {
            assert!(is_key_header(name, ""), "{name}");
        }
        assert!(is_key_header(
            "PayPal-Request-Id",
            "Makes the call idempotent."
        ));
        assert!(!is_key_header("X-Request-Id", "For the log."));
        assert!(is_key_name("idempotency_key") && is_key_name("idempotencyKey"));
        assert!(!is_key_name("idempotency_${}key") && !is_key_name("key"));
    }

    #[test]
    fn a_key_that_the_api_may_refuse_is_told() {
        for (schema, is_told) in [
            (json!({ "type": "string", "maxLength": 255 }), false),
            (json!({ "maxLength": 31 }), true),
            (json!({ "minLength": 36 }), true),
            (json!({ "pattern": "^[0-9a-f]+$" }), false),
            (json!({ "pattern": "^[A-Z]+$" }), true),
            (json!({ "format": "uuid" }), true),
        ] {
            assert_eq!(misfit(&schema, "K").is_some(), is_told, "{schema}");
        }
    }
}
