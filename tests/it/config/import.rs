//! Descriptions of APIs as tools: what is printed can be used, and nothing is dropped without a word.

use std::fs;
use std::path::Path;

use oncegate::config::Config;
use oncegate::import::{Asked, Printed, openapi};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::config::mistakes::read;
use crate::support::binary::run;
use crate::support::{Gateway, Tool};

/// OpenAPI 3.0 in YAML.
const SHOP: &str = include_str!("import/shop.yaml");
/// OpenAPI 3.1 in JSON.
const NOTES: &str = include_str!("import/notes.json");

fn printed(text: &str) -> Printed {
    openapi(text, &Asked::default()).expect("a description")
}

fn asked(operations: &[&str], tags: &[&str]) -> Asked {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Asked {
        operations: owned(operations),
        tags: owned(tags),
        server: None,
    }
}

/// What is printed as a configuration, with its credentials.
fn configured(printed: &Printed) -> Config {
    let text = printed.text.replace("\n# headers = ", "\nheaders = ");
    let lines = text.lines().filter(|line| line.starts_with("headers = "));
    let variables = lines.flat_map(|line| line.split("${").skip(1));
    let names = variables.filter_map(|rest| Some(rest.split_once('}')?.0));
    let credentials: Vec<(&str, &str)> = names.map(|name| (name, "secret")).collect();
    let text = format!("[store]\nurl = \"sqlite:x.db\"\n{text}");
    read(&text, &credentials).expect("it can be used")
}

#[test]
fn a_description_of_3_0_in_yaml_is_printed_as_tools() {
    insta::assert_snapshot!("shop", printed(SHOP).text);
    assert_eq!(configured(&printed(SHOP)).tools.len(), 6);
}

#[test]
fn a_description_of_3_1_in_json_is_printed_as_tools() {
    insta::assert_snapshot!("notes", printed(NOTES).text);
    assert_eq!(configured(&printed(NOTES)).tools.len(), 2);
}

#[tokio::test]
async fn a_printed_tool_sends_what_the_description_says() {
    let tool = Tool::start().await;
    let asked = Asked {
        server: Some(tool.url()),
        ..asked(&["refundOrder"], &[])
    };
    let printed = openapi(SHOP, &asked).expect("a description");
    let gateway = Gateway::start(&printed.text).await;
    let args = json!({ "orderId": "o/1", "amount": 5, "tags": ["a b"], "metadata": { "x": "1" } });
    let answer = gateway
        .post("refundOrder", &json!({ "args": args }), &[])
        .await;
    answer.expect_ok();
    let seen = tool.seen().remove(0);
    let key = seen.header("idempotency-key").to_owned();
    assert_eq!(seen.line, "POST /do/orders/o%2F1/refunds HTTP/1.1");
    assert_eq!(
        seen.body,
        format!("amount=5&idempotency_key={key}&metadata%5Bx%5D=1&tags%5B0%5D=a%20b")
    );
    gateway.stop().await;
}

#[test]
fn operations_are_chosen_by_their_names_and_tags() {
    let names = |operations: &[&str], tags: &[&str]| {
        let printed = openapi(SHOP, &asked(operations, tags)).expect("a description");
        let tools = configured(&printed).tools;
        let mut names: Vec<String> = tools.into_iter().map(|at| at.tool.name).collect();
        names.sort();
        names
    };
    assert_eq!(names(&["getOrder"], &[]), ["getOrder"]);
    assert_eq!(names(&["delete /orders/{orderId}"], &[]), ["cancelOrder"]);
    let tagged = ["createOrder", "getOrder", "listOrders"];
    assert_eq!(names(&[], &["orders"]), tagged);
    assert_eq!(names(&["putOrder"], &["orders"]).len(), 4, "both count");
    let only = openapi(SHOP, &asked(&["getOrder"], &[])).expect("a description");
    assert!(
        !only.text.contains("Not imported"),
        "others were not asked for"
    );
}

#[test]
fn the_command_says_what_it_did_by_its_status() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |text: &str, more: &[&str]| {
        fs::write(folder.path().join("api"), text).expect("a file");
        let output = run(
            folder.path(),
            &[&["import", "openapi", "api"], more].concat(),
        );
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (status, out, remarks) = said(SHOP, &[]);
    assert_eq!((status, out), (Some(0), printed(SHOP).text));
    assert_eq!(remarks.lines().collect::<Vec<_>>(), printed(SHOP).remarks);
    for (text, more, sentence) in [
        (
            SHOP,
            &["--operation", "refundOrders"][..],
            "there is no operation \"refundOrders\"; near are: refundOrder",
        ),
        (
            SHOP,
            &["--tag", "order"],
            "there is no tag \"order\"; near are: orders",
        ),
        (SHOP, &["--operation", "lost"], "no operation was imported"),
        ("swagger: '2.0'", &[], "this is Swagger 2.0"),
        ("openapi: 4.0.0", &[], "this is OpenAPI \"4.0.0\""),
        ("[]", &[], "it is not an object"),
        ("{ \"openapi\": ", &[], "this is not JSON"),
        ("openapi: [", &[], "this is not YAML"),
        ("openapi: 3.1.0", &[], "no operation was imported"),
    ] {
        let (status, _, remarks) = said(text, more);
        assert_eq!(status, Some(1), "{remarks}");
        assert!(remarks.contains(sentence), "{remarks}");
    }
    let (status, _, remarks) = said(&" ".repeat(33 << 20), &[]);
    assert!(
        status == Some(1) && remarks.contains("larger than 32 MiB"),
        "{remarks}"
    );
    let nowhere = run(folder.path(), &["import", "openapi", "nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1));
}

#[test]
fn descriptions_that_grow_without_end_are_bounded() {
    let deep =
        |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    let bomb = (1..40).fold(
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(),
        |text, level| {
            let alias = format!("*a{}, ", level - 1).repeat(9);
            format!("{text}a{level}: &a{level} [{alias}]\n")
        },
    );
    for hostile in [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        format!("a: {}", deep("[", "]")),
        (0..5_000)
            .map(|depth| format!("{}a:\n", " ".repeat(depth)))
            .collect(),
        bomb,
    ] {
        openapi(&hostile, &Asked::default()).expect_err("it is refused");
    }
}

/// A description of one operation whose body is `S`.
fn described(schemas: Value) -> String {
    let body = json!({ "content": { "application/json": { "schema": { "$ref": "#/components/schemas/S" } } } });
    json!({
        "openapi": "3.0.0", "servers": [{ "url": "https://a.example" }], "components": { "schemas": schemas },
        "paths": { "/{id}": { "post": { "operationId": "act", "requestBody": body } } }
    })
    .to_string()
}

#[test]
fn a_description_with_too_many_operations_is_refused() {
    let paths = (0..30_001).map(|at| {
        (
            format!("/{at}"),
            json!({ "get": { "operationId": "same" } }),
        )
    });
    let paths: serde_json::Map<_, _> = paths.collect();
    let text = json!({ "openapi": "3.0.0", "paths": paths }).to_string();
    let why = openapi(&text, &Asked::default()).expect_err("too many");
    assert!(why.contains("more than 30000 operations"), "{why}");
}

#[test]
fn circles_of_references_come_to_an_end() {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let chain = |length: usize| {
        let link = |at: usize| json!({ "type": "object", "properties": { "next": reference(&format!("S{}", at + 1)) } });
        let mut links: serde_json::Map<String, Value> =
            (0..length).map(|at| (format!("S{at}"), link(at))).collect();
        links.insert("S".into(), link(0));
        links.insert(format!("S{length}"), json!({}));
        Value::Object(links)
    };
    let wide: Value = (0..20_000)
        .map(|at| (format!("p{at}"), json!({ "type": "string" })))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for (schemas, imported) in [
        (json!({ "S": reference("S") }), 0),
        (json!({ "S": reference("T"), "T": reference("S") }), 0),
        (
            json!({ "S": { "allOf": [reference("S")], "properties": { "a": {} } } }),
            1,
        ),
        (
            json!({ "S": { "properties": { "a": { "anyOf": [reference("S"), { "not": reference("S") }] } } } }),
            1,
        ),
        (chain(30), 1),
        (chain(5_000), 1),
        (
            json!({ "S": { "allOf": vec![reference("S"); 1_000], "properties": { "a": {} } } }),
            1,
        ),
        (
            json!({ "S": { "type": "object", "anyOf": vec![reference("T"); 1_000] }, "T": { "oneOf": vec![reference("S"); 1_000] } }),
            1,
        ),
        (json!({ "S": { "properties": wide } }), 0),
        (
            json!({ "S": { "properties": { "a": { "properties": wide } } } }),
            1,
        ),
    ] {
        let printed = printed(&described(schemas.clone()));
        let shown: String = printed.text.chars().take(2_000).collect();
        assert_eq!(printed.imported, imported, "{shown}");
        assert_eq!(printed.imported + refused(&printed), 1);
        assert!(printed.text.len() < 100_000);
    }
}

/// A POST with these headers, this query, and a body by this schema, as a tool.
fn posted(headers: &[Value], query: &[&str], body: &Value) -> String {
    let of = |place: &str, parameter: Value| {
        let mut parameter = parameter;
        parameter["in"] = json!(place);
        parameter
    };
    let text = |name: &&str| json!({ "name": name, "schema": { "type": "string" } });
    let headers = headers.iter().map(|header| of("header", header.clone()));
    let query = query.iter().map(|name| of("query", text(name)));
    let parameters: Vec<Value> = headers.chain(query).collect();
    let body = json!({ "content": { "application/json": { "schema": body } } });
    let act = json!({ "operationId": "act", "parameters": parameters, "requestBody": body });
    let document = json!({
        "openapi": "3.1.0", "servers": [{ "url": "https://a.example" }], "paths": { "/a": { "post": act } }
    });
    let printed = printed(&document.to_string());
    assert_eq!(configured(&printed).tools.len(), 1, "{}", printed.text);
    printed.text
}

fn header(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "description": description, "schema": schema, "required": true })
}

#[test]
fn a_key_header_is_chosen_by_an_exact_name_and_hinted_by_another() {
    let text = || json!({ "type": "string" });
    let none = json!({ "type": "object", "properties": { "a": {} } });
    let expiry = header("Idempotency-Expiry", "", text());
    let exact = header("Idempotency-Key", "", text());
    let out = posted(&[expiry, exact], &[], &none);
    assert!(
        out.contains("\nheaders_from = { Idempotency-Expiry ="),
        "{out}"
    );
    assert!(!out.contains("\nkey_header"), "{out}");
    assert!(out.contains("names the header Idempotency-Key"), "{out}");
    let mode = header(
        "Idempotency-Mode",
        "",
        json!({ "type": "string", "enum": ["strict", "off"] }),
    );
    let out = posted(&[mode], &[], &none);
    assert!(!out.contains("key_header ="), "{out}");
    let said = "NOT idempotent; for tracing";
    let out = posted(
        &[header("X-Correlation-Request-Id", said, text())],
        &[],
        &none,
    );
    assert!(
        out.contains("\n# key_header = \"X-Correlation-Request-Id\""),
        "{out}"
    );
    assert!(
        out.contains("\nheaders_from = { X-Correlation-Request-Id"),
        "{out}"
    );
    let out = posted(&[header("PayPal-Request-Id", "", text())], &[], &none);
    assert!(
        out.contains("\nkey_header = \"PayPal-Request-Id\""),
        "{out}"
    );
}

#[test]
fn a_key_in_a_body_is_a_text_and_not_in_a_choice() {
    let of =
        |schema: Value| json!({ "type": "object", "properties": { "idempotency_key": schema } });
    let out = posted(&[], &[], &of(json!({ "type": "string" })));
    assert!(out.contains("\nkey_body = \"/idempotency_key\""), "{out}");
    let out = posted(&[], &[], &of(json!({ "type": "object" })));
    assert!(!out.contains("\nkey_body"), "{out}");
    assert!(
        out.contains("# NOTE `idempotency_key` in the body is not taken"),
        "{out}"
    );
    let out = posted(
        &[],
        &[],
        &json!({ "oneOf": [of(json!({ "type": "string" }))] }),
    );
    assert!(!out.contains("\nkey_body"), "{out}");
    assert!(
        out.contains("# NOTE `idempotency_key` is in a body with choices"),
        "{out}"
    );
}

#[test]
fn no_model_gives_a_credential_or_another_method() {
    let names = [
        "X-Api-Key",
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
    ];
    let headers = names.map(|name| header(name, "", json!({ "type": "string" })));
    let out = posted(
        &headers,
        &["token", "apikey", "author", "page_token"],
        &json!({ "type": "object" }),
    );
    for name in names.iter().chain(&["token", "apikey"]) {
        assert!(
            out.contains(&format!("parameter `{name}` ")),
            "{name}: {out}"
        );
    }
    assert!(!out.contains("headers_from"), "{out}");
    let query = "\nquery = { author = \"/author\", page_token = \"/page_token\" }";
    assert!(out.contains(query), "{out}");
}

#[test]
fn an_address_that_leads_elsewhere_is_no_tool() {
    for (server, path, what) in [
        (
            "https://a.example",
            "/a/{x}{y}/..",
            "its path has `.` or `..`",
        ),
        (
            "https://a.example\\evil.com",
            "/a",
            "host is not a plain name",
        ),
        ("https://a.exa\nmple", "/a", "host is not a plain name"),
        ("https://a.example:{port}", "/a", "address has `.` or `..`"),
    ] {
        let variables = json!({ "port": { "default": "8443/..%2f" } });
        let document = json!({
            "openapi": "3.1.0", "servers": [{ "url": server, "variables": variables }],
            "paths": { path: { "get": { "operationId": "act" } } }
        });
        let printed = printed(&document.to_string());
        assert_eq!(printed.imported, 0, "{}", printed.text);
        assert!(printed.text.contains(what), "{}", printed.text);
    }
}

fn refused(printed: &Printed) -> usize {
    let remarks = printed.remarks.iter();
    remarks
        .filter(|remark| remark.starts_with("not imported: "))
        .count()
}

/// Each value in a document, counted from 1, is replaced if its number is this.
fn replace(value: &mut Value, left: &mut usize, by: &Value) {
    *left = left.saturating_sub(1);
    if *left == 0 {
        *value = by.clone();
        *left = usize::MAX;
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, left, by)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| replace(member, left, by)),
        _ => {}
    }
}

fn shop() -> Value {
    serde_saphyr::from_str(SHOP).expect("YAML")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A value anywhere in a description may be anything.
    #[test]
    fn a_description_with_something_else_in_it_is_imported_or_named(
        places in prop::collection::vec((1..600_usize, 0..18_usize), 1..5),
        text in "\\PC{0,20}",
    ) {
        let others = [
            json!(null), json!(true), json!(-1), json!(1e300), json!(u64::MAX), json!([]), json!({}), json!([[null]]), json!(text),
            json!("${HOME}"), json!("a\"\n]\u{202e}\u{7}"), json!({ "$ref": "#/components/schemas/Line" }), json!({ "$ref": "#" }),
            json!({ "$ref": "#/paths" }), json!({ "type": "array" }), json!({ text.clone(): { "enum": [null, 1, text] } }),
            json!({ "name": text, "in": "path" }), json!([{ "name": text, "in": "query", "schema": { "type": text } }]),
        ];
        for document in [shop(), serde_json::from_str(NOTES).expect("JSON")] {
            let mut document = document;
            for (place, other) in &places {
                replace(&mut document, &mut place.clone(), &others[*other]);
            }
            let Ok(printed) = openapi(&document.to_string(), &Asked::default()) else { continue };
            let named = operations(&document);
            prop_assert!(printed.imported + refused(&printed) >= named, "{}", printed.text);
            let lines = printed.text.lines().filter(|line| line.starts_with("description = ") || line.starts_with("url = "));
            for line in lines {
                prop_assert!(!line.contains("${"), "{line}");
            }
            prop_assert_eq!(configured(&printed).tools.len(), printed.imported);
        }
    }

    /// Nor does text that is none any more stop the process.
    #[test]
    fn a_description_with_other_letters_in_it_is_read_or_refused(cuts in prop::collection::vec((0..6_000_usize, "\\PC{0,3}"), 1..4)) {
        for text in [SHOP, NOTES] {
            let mut text = text.to_owned();
            for (at, other) in &cuts {
                let at = text.floor_char_boundary(at % text.len());
                let end = text.floor_char_boundary((at + 4).min(text.len()));
                text.replace_range(at..end, other);
            }
            if let Ok(printed) = openapi(&text, &Asked::default()) {
                configured(&printed);
            }
        }
    }
}

/// How many operations there are in paths that are not references.
fn operations(document: &Value) -> usize {
    let paths = document["paths"].as_object().into_iter().flatten();
    let items = paths.filter(|(path, item)| !path.starts_with("x-") && item.get("$ref").is_none());
    let methods = [
        "get", "put", "post", "delete", "head", "patch", "options", "trace",
    ];
    items
        .map(|(_, item)| {
            methods
                .iter()
                .filter(|method| item.get(**method).is_some())
                .count()
        })
        .sum()
}

#[test]
fn the_crate_opens_no_file_and_asks_no_server() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/import/src");
    let entries = fs::read_dir(&root).expect("the crate");
    let files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert!(files.len() > 10, "the test reads nothing");
    for file in files.iter().filter(|file| file.is_file()) {
        let source = fs::read_to_string(file).expect("a source");
        for word in ["std::fs", "std::env", "reqwest", "tokio"] {
            assert!(!source.contains(word), "{} knows {word}", file.display());
        }
    }
}
