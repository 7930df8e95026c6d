//! Schemas of a description, converted.

use serde_json::{Value, json};

use super::{MAX_BYTES, Shared, fit};
use crate::document::Document;

/// The converted schema of a document with these definitions, and the sentences about it.
fn converted(version: &str, schema: Value, schemas: &Value) -> (Value, Vec<String>) {
    let text = json!({ "openapi": version, "components": { "schemas": schemas } }).to_string();
    let document = Document::read(&text).expect("a description");
    let shared = Shared::of(&document, [&schema].into_iter());
    let fitted = fit(&document, &shared, |schemas| schemas.convert(&schema, 0));
    let (schema, notes) = fitted.expect("it is small enough");
    (schema, notes.into_iter().collect())
}

#[test]
fn keywords_of_openapi_3_0_become_json_schema() {
    for (said, means) in [
        (
            json!({ "type": "string", "nullable": true }),
            json!({ "type": ["string", "null"] }),
        ),
        (
            json!({ "nullable": true, "anyOf": [{}] }),
            json!({ "anyOf": [{ "type": "null" }, { "anyOf": [{}] }] }),
        ),
        (json!({ "nullable": true }), json!({})),
        (
            json!({ "type": "string", "enum": ["a", null, "a"], "description": "d" }),
            json!({ "anyOf": [{ "type": "null" }, { "type": "string", "enum": ["a"] }], "description": "d" }),
        ),
        (
            json!({ "type": "string", "enum": [1, true] }),
            json!({ "type": "string", "enum": ["1", "true"] }),
        ),
        (json!({ "const": null }), json!({ "type": "null" })),
        (
            json!({ "minimum": 1, "exclusiveMinimum": true }),
            json!({ "exclusiveMinimum": 1 }),
        ),
        (
            json!({ "maximum": 1, "exclusiveMaximum": false }),
            json!({ "maximum": 1 }),
        ),
        (
            json!({ "required": ["a", "b"], "properties": { "a": { "readOnly": true }, "b": { "writeOnly": true } } }),
            json!({ "required": ["b"], "properties": { "b": {} } }),
        ),
        (
            json!({ "example": 1, "xml": {}, "x-a": 1, "discriminator": {}, "default": null }),
            json!({}),
        ),
    ] {
        let (schema, notes) = converted("3.0.0", said.clone(), &json!({}));
        assert_eq!((schema, notes), (means, Vec::new()), "{said}");
    }
}

#[test]
fn invalid_keywords_are_left_out_and_told() {
    for (said, rest) in [
        (json!({ "type": "file" }), json!({})),
        (json!({ "pattern": "(" }), json!({})),
        (
            json!({ "minLength": -1, "maxLength": 1 }),
            json!({ "maxLength": 1 }),
        ),
        (json!({ "items": 1 }), json!({})),
        (json!({ "allOf": [] }), json!({})),
        (json!({ "enum": [{ "a": null }] }), json!({})),
        (
            json!({ "properties": { "a": 1 } }),
            json!({ "properties": { "a": {} } }),
        ),
        (json!({ "$ref": "other.yaml#/A" }), json!({})),
    ] {
        let (schema, notes) = converted("3.1.0", said.clone(), &json!({}));
        assert_eq!((schema, notes.len()), (rest, 1), "{said} {notes:?}");
    }
}

#[test]
fn a_reference_stands_in_place_or_is_a_definition_if_it_is_used_twice() {
    let schemas = json!({
        "Once": { "type": "string" },
        "Twice": { "type": "integer" },
        "Tree": { "properties": { "inner": { "$ref": "#/components/schemas/Tree" } } }
    });
    let place = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let whole = json!({ "properties": {
        "a": place("Once"), "b": place("Twice"), "c": place("Twice"), "d": place("Tree")
    } });
    let (schema, _) = converted("3.1.0", whole, &schemas);
    let twice = json!({ "$ref": "#/$defs/Twice" });
    let tree = json!({ "$ref": "#/$defs/Tree" });
    assert_eq!(
        schema,
        json!({
            "properties": { "a": { "type": "string" }, "b": twice, "c": twice, "d": tree },
            "$defs": { "Twice": { "type": "integer" }, "Tree": { "properties": { "inner": tree } } }
        })
    );
}

#[test]
fn words_beside_a_reference_count_in_3_1_only() {
    let schemas = json!({ "A": { "type": "string" } });
    let beside = json!({ "$ref": "#/components/schemas/A", "maxLength": 3, "description": "d" });
    let (schema, _) = converted("3.0.0", beside.clone(), &schemas);
    assert_eq!(schema, json!({ "type": "string", "description": "d" }));
    let (schema, _) = converted("3.1.0", beside, &schemas);
    assert_eq!(
        schema,
        json!({ "allOf": [{ "type": "string" }], "maxLength": 3, "description": "d" })
    );
}

/// With looser parts, several parts of a `oneOf` may fit.
#[test]
fn a_loosened_schema_refuses_no_value_that_fitted() {
    let hidden = json!({ "properties": { "id": { "readOnly": true } }, "required": ["id"] });
    let (schema, _) = converted(
        "3.0.0",
        json!({ "oneOf": [hidden, {}], "not": hidden }),
        &json!({}),
    );
    assert_eq!(schema, json!({ "anyOf": [{ "properties": {} }, {}] }));
}

#[test]
fn a_schema_that_is_too_large_loses_descriptions_then_depth() {
    let wide = |inner: Value| {
        let members = (0..200).map(|at| (format!("p{at}"), inner.clone()));
        json!({ "type": "object", "properties": members.collect::<serde_json::Map<_, _>>() })
    };
    let text = json!({ "type": "string", "description": "d".repeat(300) });
    let described = json!({ "properties": { "a": { "properties": { "b": wide(text) } } } });
    let (schema, notes) = converted("3.1.0", described, &json!({}));
    let named = &schema["properties"]["a"]["properties"]["b"]["properties"];
    assert_eq!(
        (&named["p0"], notes.len()),
        (&json!({ "type": "string" }), 0)
    );
    let deep = wide(wide(json!({ "type": "string", "format": "date" })));
    let (schema, notes) = converted("3.1.0", deep, &json!({}));
    assert_eq!(
        (&schema["properties"]["p0"], notes.len()),
        (&json!({ "type": "object" }), 1)
    );
    assert!(schema.to_string().len() <= MAX_BYTES);
}
