//! Schemas that ask for a key, and schemas that strict mode can hold.

use super::*;
use crate::testing::tool;

fn with_schema(schema: Value) -> Tool {
    let mut tool = tool("t");
    tool.set_schema(schema);
    tool
}

#[test]
fn a_key_is_asked_for_where_one_more_member_fits() {
    let named = json!({ "properties": { "idempotency_key": {} } });
    for (schema, asks) in [
        (json!({}), true),
        (
            json!({ "properties": { "a": {} }, "additionalProperties": false }),
            true,
        ),
        (json!({ "unevaluatedProperties": false }), true),
        (
            json!({ "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
            true,
        ),
        (
            json!({ "allOf": [{ "properties": { "a": {} }, "additionalProperties": false }] }),
            false,
        ),
        (json!({ "maxProperties": 2 }), false),
        (json!({ "propertyNames": { "maxLength": 3 } }), false),
        (json!({ "properties": { "child": { "$ref": "#" } } }), false),
        (
            json!({ "$ref": "#/$defs/x", "$defs": { "x": { "additionalProperties": false } } }),
            false,
        ),
        (named.clone(), false),
        (json!({ "allOf": [named.clone()] }), false),
        (
            json!({ "$ref": "#/$defs/x", "$defs": { "x": named } }),
            false,
        ),
    ] {
        let tool = with_schema(schema.clone());
        let shown = input_schema(&tool, Keys::Model);
        let required = shown["required"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(MODEL_MEMBER)));
        let own = tool.has_property(MODEL_MEMBER);
        assert_eq!(required && !own, asks, "{schema}");
        assert_eq!(shown["type"], "object");
    }
    let open = json!({ "type": "object", "properties": {}, "additionalProperties": true });
    assert_eq!(
        input_schema(&tool("t"), Keys::Model),
        open,
        "a key alone would look like all that the tool takes"
    );
    let mut needs = tool("t");
    needs.key.required = true;
    let shown = input_schema(&needs, Keys::Model);
    assert_eq!(shown["required"], json!([MODEL_MEMBER]));
    assert_eq!(shown["additionalProperties"], true);
}

#[test]
fn strict_mode_is_used_only_for_schemas_that_it_can_hold() {
    let of = |part: Value| json!({ "properties": { "a": part }, "required": ["a"] });
    let text = || json!({ "type": "string" });
    for (schema, is_strict) in [
        (of(text()), true),
        (json!({ "additionalProperties": false }), true),
        (json!({ "properties": { "a": text() } }), false),
        (
            json!({ "properties": { "a": { "type": ["string", "null"] } } }),
            true,
        ),
        (
            json!({ "properties": { "a": { "type": ["string", "null"], "enum": ["x"] } } }),
            false,
        ),
        (
            json!({ "properties": { "a": { "anyOf": [{ "type": "null" }, text()] } } }),
            true,
        ),
        (
            json!({ "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": { "type": "null" } } }),
            true,
        ),
        (
            json!({ "properties": { "a": { "$ref": "#/$defs/n" } }, "$defs": { "n": text() } }),
            false,
        ),
        (json!({}), false),
        (
            json!({ "type": "object", "additionalProperties": text() }),
            false,
        ),
        (of(json!({ "type": "object" })), false),
        (
            of(json!({ "type": "object", "properties": { "b": text() } })),
            false,
        ),
        (of(of(text())), false),
        (
            of(json!({ "type": "object", "properties": { "b": text() }, "required": ["b"] })),
            true,
        ),
        (
            of(json!({ "type": "object", "properties": { "b": text() }, "required": ["b", "c"] })),
            false,
        ),
        (
            of(json!({ "type": "array", "items": text(), "minItems": 1 })),
            true,
        ),
        (of(json!({ "type": "array" })), false),
        (of(json!({ "type": "string", "minLength": 1 })), false),
        (of(json!({ "type": "string", "format": "uri" })), false),
        (
            of(json!({ "type": "string", "format": "date-time", "default": "x" })),
            true,
        ),
        (of(json!({ "type": "string", "pattern": "^(?!x)" })), false),
        (of(json!({ "enum": ["x"] })), false),
        (of(json!({})), false),
        (of(json!(true)), false),
        (
            json!({ "properties": { "a": text() }, "required": ["a"], "allOf": [{}] }),
            false,
        ),
        (
            json!({ "properties": { "a": text() }, "required": ["a"], "anyOf": [{}] }),
            false,
        ),
    ] {
        assert_eq!(
            strict(&with_schema(schema.clone()), Keys::Model).is_some(),
            is_strict,
            "{schema}"
        );
    }
}

#[test]
fn in_strict_mode_every_object_is_closed_and_every_property_required() {
    let inner = json!({ "type": "object", "properties": { "c": { "type": "null" }, "d": { "type": "integer" } }, "required": ["d"] });
    let tool = with_schema(json!({
        "properties": { "b": inner.clone(), "a": { "type": "array", "items": inner } },
        "required": ["a", "b"],
    }));
    let shown = strict(&tool, Keys::Model).expect("it can be said");
    let names = json!(["c", "d"]);
    assert_eq!(
        shown["required"],
        json!(["a", "b", CONFIRM_MEMBER, MODEL_MEMBER])
    );
    for place in ["", "/properties/b", "/properties/a/items"] {
        let object = shown.pointer(place).expect("an object");
        assert_eq!(object["additionalProperties"], false, "{place}");
        assert!(place.is_empty() || object["required"] == names, "{place}");
    }
    let sent = json!({ "a": [{ "c": null, "d": 1 }], "b": { "c": null, "d": 2 },
        MODEL_MEMBER: "k", CONFIRM_MEMBER: null });
    assert_eq!(Schema::new(shown).expect("a schema").mistakes(&sent), []);
    assert_eq!(tool.schema.expect("its own").mistakes(&sent), []);
}

#[test]
fn a_schema_that_is_too_large_for_strict_mode_is_served_without_it() {
    let wide: Map<String, Value> = (0..101)
        .map(|n| (format!("p{n}"), json!({ "type": ["string", "null"] })))
        .collect();
    assert_eq!(
        strict(&with_schema(json!({ "properties": wide })), Keys::Model),
        None
    );
    let deep = (0..6).fold(
        json!({ "type": "string" }),
        |inner, _| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] }),
    );
    assert_eq!(strict(&with_schema(deep), Keys::Model), None);
}

#[test]
fn keywords_that_are_refused_at_the_root_are_removed_and_told() {
    let choice = json!([{ "required": ["a"] }, { "required": ["b"] }]);
    let (schema, taken) = plain_root(input_schema(
        &with_schema(json!({ "oneOf": choice.clone() })),
        Keys::Model,
    ));
    assert_eq!(schema.get("oneOf"), None);
    assert_eq!(Value::Object(taken), json!({ "oneOf": choice }));
}

#[test]
fn only_schemas_of_writes_ask_a_model_for_a_key() {
    let write = with_schema(json!({}));
    let mut reading = write.clone();
    reading.effect = Effect::Read;
    let asks = |tool: &Tool, keys| {
        let schema = input_schema(tool, keys);
        schema["properties"].get(MODEL_MEMBER).is_some()
    };
    assert!(asks(&write, Keys::Model));
    assert!(!asks(&write, Keys::Runtime));
    assert!(!asks(&reading, Keys::Model) && !asks(&reading, Keys::Runtime));
}

#[test]
fn a_model_is_told_that_a_new_key_makes_no_second_call_of_a_tool_with_a_key_of_its_own() {
    let schema = json!({ "type": "object", "required": ["idempotency_key"], "properties": {
        "idempotency_key": { "type": "string", "description": "Must be unique for every request." }, "n": {} } });
    let own = with_schema(schema.clone());
    let shown = input_schema(&own, Keys::Model);
    let listed = json!({ "name": "pay", "inputSchema": schema, "annotations": { "title": "Pay" } });
    let exported = described(&listed.to_string(), true).expect("it has such an argument");
    let exported: Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(exported["inputSchema"], shown, "the same at every door");
    assert_eq!(exported["annotations"], listed["annotations"]);
    let text = shown["properties"][MODEL_MEMBER]["description"].to_string();
    assert!(
        !text.contains("unique") && text.contains(CONFIRM_MEMBER),
        "{text}"
    );
    assert!(shown["properties"].get(CONFIRM_MEMBER).is_some());
    // Where the runtime brings the keys, and in lists of tools without such an argument, nothing is said.
    assert_eq!(
        input_schema(&own, Keys::Runtime)["properties"],
        schema["properties"]
    );
    for other in [
        json!({}),
        json!({ "properties": { "n": { "title": MODEL_MEMBER } } }),
    ] {
        let listed = json!({ "name": "pay", "inputSchema": other });
        assert_eq!(described(&listed.to_string(), true), None);
    }
    // A tool that has the other argument itself keeps it, and so does one whose similar calls are refused.
    let schema =
        json!({ "properties": { MODEL_MEMBER: {}, CONFIRM_MEMBER: { "type": "integer" } } });
    let shown = input_schema(&with_schema(schema), Keys::Model);
    assert_eq!(
        shown["properties"][CONFIRM_MEMBER],
        json!({ "type": "integer" })
    );
}

#[test]
fn a_model_is_told_which_fields_make_the_key_if_there_are_any() {
    let exported = |tool: &Tool| {
        let schema = input_schema(tool, Keys::Model);
        let exported = &schema["properties"][MODEL_MEMBER]["description"];
        exported.as_str().expect("a text").to_owned()
    };
    let mut business = with_schema(json!({}));
    assert!(!exported(&business).contains("also recognised"));
    business.key.fields = vec!["/order".parse().expect("a pointer")];
    let words = "Repetitions of a call are also recognised by /order: a new intent needs";
    assert!(exported(&business).contains(words));
}

/// A schema within so many others.
fn nested(inner: Value, times: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..times).fold(inner, |inner, _| wrap(inner))
}

#[test]
fn parts_of_a_schema_are_looked_into_down_to_a_bound() {
    let asks = |levels| {
        let schema = nested(json!({}), levels, |inner| json!({ "allOf": [inner] }));
        let shown = input_schema(&with_schema(schema), Keys::Model);
        shown["properties"].get(MODEL_MEMBER).is_some()
    };
    assert!(asks(0) && asks(MAX_STRICT_DEPTH) && !asks(MAX_STRICT_DEPTH + 1));
}

/// Strict mode's schema for an object with this one required property.
fn strict_property(part: Value) -> Option<Value> {
    let schema = json!({ "properties": { "a": part }, "required": ["a"] });
    let shown = strict(&with_schema(schema), Keys::Runtime)?;
    Some(shown["properties"]["a"].clone())
}

#[test]
fn strict_mode_keeps_known_keywords_and_refuses_unknown_values() {
    for part in [
        json!({ "type": "string", "enum": ["x", "y"] }),
        json!({ "type": "string", "const": "x" }),
        json!({ "type": "integer", "minimum": 1, "maximum": 9 }),
        json!({ "type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 9 }),
        json!({ "type": "number", "multipleOf": 0.5, "description": "halves", "title": "n" }),
        json!({ "type": "string", "pattern": "^x" }),
        json!({ "type": "array", "items": { "type": "null" }, "minItems": 1, "maxItems": 2 }),
    ] {
        assert_eq!(strict_property(part.clone()), Some(part));
    }
    let object = |more: Value| {
        let mut part = json!({ "type": "object", "properties": {} });
        let words = part.as_object_mut().expect("an object");
        words.extend(more.as_object().expect("an object").clone());
        part
    };
    for part in [
        json!({ "type": "string", "enum": ["x", ["y"]] }),
        json!({ "type": "string", "enum": [{}] }),
        json!({ "type": "object", "properties": {}, "const": {} }),
        json!({ "type": "string", "const": ["x"] }),
        object(json!({ "additionalProperties": true })),
        object(json!({ "additionalProperties": { "type": "null" } })),
        // These keywords say nothing about a value that is not an object.
        json!({ "type": "string", "properties": {} }),
        json!({ "type": "string", "required": [] }),
        json!({ "type": "string", "additionalProperties": false }),
    ] {
        assert_eq!(strict_property(part.clone()), None, "{part}");
    }
    let closed = object(json!({ "required": [], "additionalProperties": false }));
    assert_eq!(
        strict_property(object(json!({ "additionalProperties": false }))),
        Some(closed)
    );
}

#[test]
fn strict_mode_holds_five_levels_of_whatever_kind() {
    let text = || json!({ "type": "string" });
    let wraps: [fn(Value) -> Value; 3] = [
        |inner| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"] }),
        |inner| json!({ "type": "array", "items": inner }),
        |inner| json!({ "anyOf": [inner] }),
    ];
    for wrap in wraps {
        // The property itself is the first level.
        let is_strict = |levels| strict_property(nested(text(), levels - 1, wrap)).is_some();
        assert!(is_strict(MAX_STRICT_DEPTH), "{}", wrap(text()));
        assert!(!is_strict(MAX_STRICT_DEPTH + 1), "{}", wrap(text()));
    }
}

#[test]
fn whether_null_fits_is_looked_up_behind_references_down_to_a_bound() {
    let reference = |n: usize| json!({ "$ref": format!("#/$defs/n{n}") });
    // An optional property, and a chain of references to null.
    let is_strict = |length: usize, link: fn(Value) -> Value| {
        let mut defs = Map::new();
        for n in 0..length {
            defs.insert(format!("n{n}"), link(reference(n + 1)));
        }
        defs.insert(format!("n{length}"), json!({ "type": "null" }));
        let first = link(reference(0));
        let schema = json!({ "properties": { "a": first }, "$defs": defs });
        strict(&with_schema(schema), Keys::Runtime).is_some()
    };
    let plainly = |reference| reference;
    assert!(is_strict(4, plainly) && !is_strict(5, plainly));
    // A choice is a step, too.
    let by_choice = |reference| json!({ "anyOf": [reference] });
    assert!(is_strict(1, by_choice) && !is_strict(2, by_choice));
    let endless = json!({ "properties": { "a": reference(0) }, "$defs": { "n0": reference(0) } });
    assert_eq!(strict(&with_schema(endless), Keys::Runtime), None);
}
