use serde_json::json;

use super::*;

fn at(text: &str) -> Pointer {
    text.parse().expect("a pointer")
}

fn shape(url: &str) -> Shape {
    Shape {
        target: Target::read(url).expect("a URL"),
        body: BodyForm::Json,
        set: Vec::new(),
        headers: Vec::new(),
        key_header: KEY_HEADER.to_owned(),
        key_body: None,
    }
}

fn made(shape: &Shape, args: &Value) -> (String, String) {
    let made = shape.make(&args.to_string().into(), "k1");
    let sent = made.unwrap_or_else(|mistakes| panic!("{args}: {mistakes:?}"));
    let body = String::from_utf8(sent.body.to_vec()).expect("text");
    (sent.url.unwrap_or_default(), body)
}

/// The places of the mistakes.
fn refused(shape: &Shape, args: &Value) -> Vec<String> {
    let made = shape.make(&args.to_string().into(), "k1");
    assert_eq!(
        made.as_ref().err().cloned().unwrap_or_default(),
        shape.mistakes(args)
    );
    let mistakes = made.expect_err("a refusal");
    mistakes.into_iter().map(|(place, _)| place).collect()
}

#[test]
fn without_templates_the_body_is_the_arguments_byte_by_byte() {
    let args = Bytes::from("{ \"b\" : 1.0, \"a\":2 }");
    let sent = shape("http://h/x?y={key}")
        .make(&args, "k1")
        .expect("a request");
    assert_eq!(
        (sent.url.as_deref(), &sent.body),
        (Some("http://h/x?y=k1"), &args)
    );
    assert_eq!(sent.content_type, Some("application/json"));
    let sent = shape("http://h/x").make(&args, "k1").expect("a request");
    assert_eq!(sent.url, None);
}

#[test]
fn an_argument_in_the_path_is_one_segment_and_leaves_the_body() {
    let shape = shape("https://h:1/v1/{/a/id}/x-{/n}?of={/b}&key={key}");
    let args = json!({ "a": { "id": "x/ü?#%2e", "kept": 1 }, "n": 5, "b": true, "c": "d" });
    let (url, body) = made(&shape, &args);
    assert_eq!(
        url,
        "https://h:1/v1/x%2F%C3%BC%3F%23%252e/x-5?of=true&key=k1"
    );
    assert_eq!(body, r#"{"a":{"kept":1},"c":"d"}"#);
}

/// An API may get its callers' own keys.
#[test]
fn a_key_is_one_segment_too() {
    let target = Target::read("https://h/by-key/{key}").expect("a target");
    let url = |key| target.url(&Value::Null, key);
    assert_eq!(
        url("a/b?c#d%2e"),
        Ok("https://h/by-key/a%2Fb%3Fc%23d%252e".into())
    );
    for key in ["..", "a/../b"] {
        assert!(url(key).is_err(), "{key}");
    }
}

#[test]
fn an_argument_that_would_leave_its_segment_is_refused() {
    let shape = shape("https://h/v1/{/id}/x");
    for id in [
        json!(""),
        json!("."),
        json!(".."),
        json!("../x"),
        json!("a/.."),
        json!("a\\..\\b"),
        json!("a\nb"),
        json!("\u{0}"),
        json!(null),
        json!([]),
        json!({}),
        json!("x".repeat(MAX_URL)),
    ] {
        refused(&shape, &json!({ "id": id }));
    }
    assert_eq!(refused(&shape, &json!({})), ["/id"]);
    assert_eq!(refused(&shape, &json!({ "id": "[redacted]" })), ["/id"]);
    assert_eq!(
        made(&shape, &json!({ "id": "..." })).0,
        "https://h/v1/.../x"
    );
    let fits = "x".repeat(MAX_URL - "https://h/v1//x".len());
    assert_eq!(made(&shape, &json!({ "id": fits })).0.len(), MAX_URL);
    assert_eq!(refused(&shape, &json!({ "id": format!("{fits}x") })), [""]);
}

#[test]
fn only_path_and_query_have_places() {
    for url in [
        "https://{/host}/x",
        "{/x}",
        "https://h:{/port}/",
        "https://h{/x}/",
        "https://{/user}@h/",
        "https://h/x#{/a}",
        "https://h/{/a}#x",
        "https://h/{order_id}",
        "https://h/{",
        "https://h/{a b}",
        "https://h/{/a",
        "https://h/{/~2}",
        "https://h/%2{/a}",
        "https://h/%{key}",
        "https://h/a/{/x}/..",
        "https://h/%2e%2E/{/x}",
        "https://h/%252e/{/x}",
        "https://h\\\\a/{/x}",
        "https://h?{x}",
    ] {
        assert!(Target::read(url).is_err(), "{url}");
    }
    for url in [
        "https://h/{/a}",
        "https://h/a%20{/a}",
        "https://h?x={key}",
        "https://h/x#y",
        "https://h",
    ] {
        assert!(Target::read(url).is_ok(), "{url}");
    }
    let why = Target::read("https://h/{order_id}").expect_err("no place");
    assert!(
        why.starts_with("{order_id} would be sent as it stands") && why.ends_with("{/order_id}"),
        "{why}"
    );
    let why = Target::read("https://h/{se cret}").expect_err("no place");
    assert!(!why.contains("cret"), "{why}");
}

#[test]
fn a_query_leaves_out_missing_arguments() {
    let query = vec![
        ("expand".to_owned(), at("/expand")),
        ("f[x]".to_owned(), at("/f")),
    ];
    let mut shape = shape("https://h/x?v=1");
    shape.body = BodyForm::None;
    let mut with = |lists| shape.target = shape.target.clone().with_query(query.clone(), lists);
    with(Lists::Repeat);
    for (lists, written) in [
        (Lists::Repeat, "expand=a%20b&expand=2"),
        (Lists::Brackets, "expand%5B%5D=a%20b&expand%5B%5D=2"),
        (Lists::Indices, "expand%5B0%5D=a%20b&expand%5B1%5D=2"),
        (Lists::Comma, "expand=a%20b,2"),
    ] {
        let target = shape.target.clone().with_query(query.clone(), lists);
        let of_this = Shape {
            target,
            ..shape.clone()
        };
        let (url, body) = made(&of_this, &json!({ "expand": ["a b", 2], "f": null }));
        assert_eq!(url, format!("https://h/x?v=1&{written}"));
        assert_eq!(body, "");
    }
    assert_eq!(made(&shape, &json!({})).0, "https://h/x?v=1");
    assert_eq!(
        made(&shape, &json!({ "f": { "a": 1 } })).0,
        "https://h/x?v=1&f%5Bx%5D%5Ba%5D=1"
    );
    assert_eq!(refused(&shape, &json!({ "expand": [] })), ["/expand"]);
    assert_eq!(refused(&shape, &json!({ "expand": [[1]] })), ["/expand"]);
    assert_eq!(
        refused(&shape, &json!({ "other": 1, "a/b": 2 })),
        ["/a~1b", "/other"]
    );
    let none = shape.make(&Bytes::from("{}"), "k").expect("a request");
    assert_eq!((none.content_type, none.body), (None, Bytes::new()));
}

#[test]
fn a_form_has_nested_names_and_lists_as_configured() {
    let mut shape = shape("https://h/v1/{/id}");
    shape.body = BodyForm::Form(Lists::Indices);
    let args = json!({ "id": 1, "a": { "b": "c d&=", "e": [{ "f": 1.5 }, true] }, "n": null });
    let (_, body) = made(&shape, &args);
    assert_eq!(
        body,
        "a%5Bb%5D=c%20d%26%3D&a%5Be%5D%5B0%5D%5Bf%5D=1.5&a%5Be%5D%5B1%5D=true&n="
    );
    for (args, place) in [
        (
            json!({ "id": 1, "metadata[source]": "x" }),
            "/metadata[source]",
        ),
        (json!({ "id": 1, "a": { "b]": 1 } }), "/a"),
        (json!({ "id": 1, "": 1 }), "/"),
        (json!({ "id": 1, "a": {} }), "/a"),
        (json!({ "id": 1, "a": { "b": [] } }), "/a"),
    ] {
        assert_eq!(refused(&shape, &args), [place], "{args}");
    }
    shape.body = BodyForm::Form(Lists::Brackets);
    assert_eq!(
        refused(&shape, &args),
        ["/a"],
        "objects in a list need indices"
    );
}

#[test]
fn constants_and_the_key_stand_where_no_argument_may() {
    let mut shape = shape("https://h/");
    shape.set = vec![
        (at("/currency"), json!("eur")),
        (at("/meta/source"), json!("agent")),
    ];
    shape.key_body = Some(at("/meta/key"));
    let (_, body) = made(&shape, &json!({ "amount": 1, "meta": { "a": 2 } }));
    assert_eq!(
        body,
        r#"{"amount":1,"currency":"eur","meta":{"a":2,"key":"k1","source":"agent"}}"#
    );
    for (args, place) in [
        (json!({ "currency": "usd" }), "/currency"),
        (json!({ "currency": null }), "/currency"),
        (json!({ "meta": { "source": "x" } }), "/meta/source"),
        (json!({ "meta": { "key": "x" } }), "/meta/key"),
        (json!({ "meta": "x" }), "/meta/source"),
    ] {
        assert_eq!(refused(&shape, &args), [place], "{args}");
    }
}

#[test]
fn a_header_takes_visible_text_of_one_line() {
    let mut shape = shape("https://h/");
    shape.headers = vec![("stripe-account".to_owned(), at("/account"))];
    let sent = |args: Value| shape.make(&args.to_string().into(), "k");
    let full = sent(json!({ "account": "acct 1", "a": 1 })).expect("a request");
    assert_eq!(
        full.headers,
        [("stripe-account".to_owned(), "acct 1".to_owned())]
    );
    assert_eq!(full.body, r#"{"a":1}"#);
    assert_eq!(
        sent(json!({ "account": null })).expect("a request").headers,
        []
    );
    let long = "x".repeat(MAX_HEADER);
    assert!(sent(json!({ "account": long })).is_ok());
    for account in [
        json!(""),
        json!(" a"),
        json!("a\r\nx: y"),
        json!("ü"),
        json!([]),
        json!(long + "x"),
    ] {
        assert_eq!(
            refused(&shape, &json!({ "account": account })),
            ["/account"]
        );
    }
}

#[test]
fn a_body_is_written_anew_if_any_rule_is_about_it() {
    let args = Bytes::from("{ \"b\" : 1.0, \"a\":2 }");
    let plain = shape("https://h/x");
    let body = |change: &dyn Fn(&mut Shape)| {
        let mut shape = plain.clone();
        change(&mut shape);
        let sent = shape.make(&args, "k1").expect("a request");
        String::from_utf8(sent.body.to_vec()).expect("text")
    };
    assert_eq!(body(&|_| {}).as_bytes(), args);
    type Change<'a> = &'a dyn Fn(&mut Shape);
    let changes: [(Change<'_>, &str); 5] = [
        (
            &|shape| shape.set = vec![(at("/c"), json!(3))],
            r#"{"a":2,"b":1.0,"c":3}"#,
        ),
        (
            &|shape| shape.key_body = Some(at("/key")),
            r#"{"a":2,"b":1.0,"key":"k1"}"#,
        ),
        (
            &|shape| shape.headers = vec![("x-b".to_owned(), at("/b"))],
            r#"{"a":2}"#,
        ),
        (
            &|shape| shape.target = Target::read("https://h/{/a}").expect("a URL"),
            r#"{"b":1.0}"#,
        ),
        (
            &|shape| shape.body = BodyForm::Form(Lists::Repeat),
            "a=2&b=1.0",
        ),
    ];
    for (change, expected) in changes {
        assert_eq!(body(change), expected);
    }
}

#[test]
fn places_may_follow_each_other_at_once() {
    let shape = shape("https://host/{/long_name}{/b}{key}?{/c}");
    let (url, _) = made(&shape, &json!({ "long_name": 1, "b": 2, "c": 3 }));
    assert_eq!(url, "https://host/12k1?3");
}

#[test]
fn an_example_of_a_url_has_a_plain_character_in_each_place() {
    for (url, example, has_key) in [
        ("https://h/x?y=1", "https://h/x?y=1", false),
        ("https://h/{/a}/x?k={key}", "https://h/0/x?k=0", true),
        ("https://h/{/key}", "https://h/0", false),
    ] {
        let target = Target::read(url).expect(url);
        assert_eq!(
            (target.example().as_str(), target.has_key()),
            (example, has_key)
        );
    }
}

#[test]
fn a_wrong_place_is_quoted_up_to_40_characters() {
    let why = |place: &str| Target::read(&format!("https://h/{{{place}}}")).expect_err("no place");
    let name = "n".repeat(40);
    assert!(why(&name).starts_with(&format!("{{{name}}} would be sent")));
    assert!(why(&format!("{name}n")).starts_with("{ would be sent"));
}
