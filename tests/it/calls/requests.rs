//! What arguments become on the wire, byte by byte.

use serde_json::{Value, json};

use crate::config::mistakes::{check_said, read};
use crate::support::tool::Seen;
use crate::support::{Act, Gateway, Tool, until};

/// A tool whose URL ends in this, with more lines of its section.
fn tool_at(tool: &Tool, path: &str, more: &str) -> String {
    format!(
        "[tools.act]\nurl = \"http://127.0.0.1:{}{path}\"\n{more}",
        tool.port
    )
}

const BY_ID: &str = r#"
input_schema = { type = "object", required = ["id"], properties = { id = { type = "string", minLength = 1 }, note = {}, account = {}, expand = {}, amount = {} } }
"#;

/// The only request that the tool got.
fn only(tool: &Tool) -> Seen {
    let seen = tool.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen[0].clone()
}

async fn sent(path: &str, more: &str, args: Value) -> Seen {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&tool_at(&tool, path, more)).await;
    gateway.call(args.clone()).await.expect_ok();
    let again = gateway.call(args).await.expect_ok();
    assert_eq!(again.header("idempotent-replayed"), "true");
    gateway.stop().await;
    only(&tool)
}

#[tokio::test]
async fn arguments_go_to_path_query_header_and_the_rest_to_the_body() {
    let more = format!(
        "{BY_ID}query = {{ expand = \"/expand\" }}\nheaders_from = {{ Stripe-Account = \"/account\" }}"
    );
    let args = json!({ "id": "a/b c", "expand": ["x", "y"], "account": "acct_1", "note": { "b": 1.5, "a": null } });
    let seen = sent("/v1/orders/{/id}/refunds", &more, args).await;
    assert_eq!(
        seen.line,
        "POST /v1/orders/a%2Fb%20c/refunds?expand=x&expand=y HTTP/1.1"
    );
    assert_eq!(seen.header("stripe-account"), "acct_1");
    assert_eq!(seen.header("content-type"), "application/json");
    assert_eq!(seen.body, r#"{"note":{"a":null,"b":1.5}}"#);
}

#[tokio::test]
async fn a_form_is_nested_and_has_the_key_and_constants_in_it() {
    let more = format!(
        "{BY_ID}body = \"form\"\nset = {{ currency = \"eur\", meta = {{ source = \"agent\" }} }}\nkey_body = \"/meta/key\"\nkey_header = \"PayPal-Request-Id\""
    );
    let args = json!({ "id": "o 1", "amount": { "value": 10, "lines": [{ "a": "b&" }] } });
    let seen = sent("/v1/orders/{/id}", &more, args).await;
    let key = seen.header("paypal-request-id");
    assert_eq!((key.len(), seen.header("idempotency-key")), (32, ""));
    assert_eq!(
        seen.header("content-type"),
        "application/x-www-form-urlencoded"
    );
    assert_eq!(
        seen.body,
        format!(
            "amount%5Blines%5D%5B0%5D%5Ba%5D=b%26&amount%5Bvalue%5D=10&currency=eur&meta%5Bkey%5D={key}&meta%5Bsource%5D=agent"
        )
    );
}

#[tokio::test]
async fn a_write_without_a_body_sends_none_and_says_so() {
    for (method, length) in [("DELETE", ""), ("POST", "0"), ("PUT", "0")] {
        let more = format!(
            "method = \"{method}\"\nbody = \"none\"\ninput_schema = {{ required = [\"id\"], properties = {{ id = {{ type = \"integer\" }} }} }}"
        );
        let seen = sent("/v1/orders/{/id}?by={key}", &more, json!({ "id": 7 })).await;
        let key = seen.header("idempotency-key");
        assert_eq!(
            seen.line,
            format!("{method} /v1/orders/7?by={key} HTTP/1.1")
        );
        assert_eq!(seen.header("content-length"), length, "{method}");
        assert_eq!(
            (
                seen.header("content-type"),
                seen.header("transfer-encoding"),
                seen.body.as_str()
            ),
            ("", "", "")
        );
        assert!(seen.header("host").starts_with("127.0.0.1:"), "{seen:?}");
    }
}

#[tokio::test]
async fn a_read_with_a_query_has_no_body_and_stays_a_read() {
    let schema = r#"input_schema = { required = ["id"], properties = { id = { type = "string", minLength = 1 }, expand = {} } }"#;
    let more = format!(
        "{schema}\neffect = \"read\"\nmethod = \"GET\"\nquery = {{ expand = \"/expand\" }}"
    );
    let tool = Tool::start().await;
    let gateway = Gateway::start(&tool_at(&tool, "/v1/orders/{/id}", &more)).await;
    for times in 1..=2 {
        gateway
            .call(json!({ "id": "o", "expand": { "a": 1 } }))
            .await
            .expect_ok();
        assert_eq!(tool.requests(), times, "each time anew");
    }
    let seen = tool.seen().remove(0);
    assert_eq!(seen.line, "GET /v1/orders/o?expand%5Ba%5D=1 HTTP/1.1");
    assert_eq!(
        (seen.body.as_str(), seen.header("content-length")),
        ("", "")
    );
    let refused = gateway.call(json!({ "id": "o", "note": 1 })).await;
    let refused = refused.expect_problem("invalid-arguments");
    assert!(refused.text.contains("/note"), "{}", refused.text);
    gateway.stop().await;
}

/// A tool that passes `check` can be called: what holds nothing any more is left out.
#[tokio::test]
async fn an_object_whose_members_all_went_to_path_query_or_header_leaves_the_body_too() {
    let page = "page = { type = \"object\", properties = { size = {}, at = {} } }";
    let id = "{ type = \"string\", minLength = 1 }";
    let nested = format!(
        "input_schema = {{ type = \"object\", required = [\"customer\"], properties = {{ {page}, customer = {{ type = \"object\", required = [\"id\"], properties = {{ id = {id} }} }}, a = {{ type = \"object\", properties = {{ b = {{ type = \"object\", properties = {{ c = {{}} }} }} }} }}, note = {{}} }} }}\n"
    );
    let args = json!({ "page": { "size": 5 }, "customer": { "id": "c1" }, "a": { "b": { "c": "x" } }, "note": "n" });
    let more = format!(
        "{nested}query = {{ \"page[size]\" = \"/page/size\" }}\nheaders_from = {{ X-C = \"/a/b/c\" }}\n"
    );
    let json = sent("/v1/{/customer/id}/notes", &more, args.clone()).await;
    assert_eq!(
        (json.line.as_str(), json.body.as_str()),
        (
            "POST /v1/c1/notes?page%5Bsize%5D=5 HTTP/1.1",
            "{\"note\":\"n\"}"
        )
    );
    let form = sent(
        "/v1/{/customer/id}/notes",
        &format!("{more}body = \"form\"\n"),
        args,
    )
    .await;
    assert_eq!(form.body, "note=n");
    // An object that held nothing, and a member beside those that went, stay.
    let args = json!({ "page": { "size": 5, "at": 2 }, "customer": { "id": "c1" }, "a": {} });
    let kept = sent("/v1/{/customer/id}/notes", &more, args).await;
    assert_eq!(kept.body, "{\"a\":{},\"page\":{\"at\":2}}");
    let none = format!(
        "input_schema = {{ type = \"object\", properties = {{ {page} }} }}\nmethod = \"DELETE\"\nquery = {{ \"page[size]\" = \"/page/size\", at = \"/page/at\" }}\n"
    );
    let args = json!({ "page": { "size": 5 } });
    let none = sent("/v1/x", &format!("{none}body = \"none\"\n"), args).await;
    assert_eq!(none.line, "DELETE /v1/x?page%5Bsize%5D=5 HTTP/1.1");
}

#[tokio::test]
async fn arguments_that_make_no_request_are_refused_before_anything_is_claimed() {
    let tool = Tool::start().await;
    let more = format!("{BY_ID}set = {{ amount_of = 1 }}");
    let gateway = Gateway::start(&tool_at(&tool, "/v1/{/id}", &more)).await;
    for args in [
        json!({ "id": "../admin" }),
        json!({ "id": "a\nb" }),
        json!({ "id": "x".repeat(10_000) }),
        json!({ "id": "o", "amount_of": 2 }),
    ] {
        gateway.call(args).await.expect_problem("invalid-arguments");
    }
    let listed = gateway.get("/v1/calls").await.expect_ok();
    assert_eq!((listed.at("/calls"), tool.requests()), (json!([]), 0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_probe_takes_arguments_as_the_request_does() {
    let tool = Tool::start().await;
    let more = format!(
        "{BY_ID}unknown = \"probe\"\nrecheck = {{ base = \"100ms\" }}\nprobe = {{ url = \"http://127.0.0.1:{}/v1/{{/id}}/by/{{key}}\", query = {{ expand = \"/expand\" }} }}",
        tool.port
    );
    tool.then(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&tool_at(&tool, "/v1/{/id}", &more)).await;
    let unknown = gateway.call(json!({ "id": "a b", "expand": "x" })).await;
    let id = unknown.expect_problem("outcome-unknown").id();
    until("the probe has settled it", async || {
        let call = gateway.get(&format!("/v1/calls/{id}")).await;
        call.at("/state") == "succeeded"
    })
    .await;
    let seen = tool.seen();
    let key = seen[0].header("idempotency-key");
    assert_eq!(
        seen[1].line,
        format!("GET /v1/a%20b/by/{key}?expand=x HTTP/1.1")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_probe_by_search_finds_the_effect_in_a_list() {
    let tool = Tool::start().await;
    let more = format!(
        "unknown = \"probe\"\nrecheck = {{ base = \"100ms\" }}\nprobe = {{ url = \"http://127.0.0.1:{}/search?key={{key}}\", found = \"/data/0\" }}",
        tool.port
    );
    tool.then(Act::ExecuteThenDrop)
        .then(Act::Ok("{\"data\":[]}"))
        .then(Act::Ok("{\"data\":[{\"id\":\"o1\"}]}"));
    let gateway = Gateway::start(&tool_at(&tool, "/v1", &more)).await;
    let unknown = gateway.call(json!({ "a": 1 })).await;
    let id = unknown.expect_problem("outcome-unknown").id();
    until("the search has found it", async || {
        gateway.get(&format!("/v1/calls/{id}")).await.at("/state") == "succeeded"
    })
    .await;
    assert_eq!(tool.requests(), 3, "an empty list proves nothing");
    let again = gateway.call(json!({ "a": 1 })).await.expect_ok();
    assert_eq!(again.result(), r#"{"id":"o1"}"#);
    gateway.stop().await;
}

#[tokio::test]
async fn a_compensation_takes_its_place_in_a_path_from_the_result() {
    let tool = Tool::start().await;
    tool.then(Act::Ok(r#"{"id":"order/1"}"#));
    let more = "compensation = { tool = \"undo\", args = { id = \"/result/id\" } }\n";
    let undo = format!(
        "[tools.undo]\nmethod = \"DELETE\"\nbody = \"none\"\nurl = \"http://127.0.0.1:{}/v1/orders/{{/id}}\"\ninput_schema = {{ required = [\"id\"], properties = {{ id = {{ type = \"string\", minLength = 1 }} }} }}\n",
        tool.port
    );
    let gateway = Gateway::start(&format!("{}{undo}", tool_at(&tool, "/v1/orders", more))).await;
    let done = gateway.call(json!({})).await.expect_ok();
    let undone = gateway
        .post_to(
            &format!("/v1/calls/{}/compensate", done.id()),
            &json!({ "reason": "test" }),
        )
        .await;
    assert!(undone.status < 300, "{}", undone.text);
    until("it is undone", async || tool.requests() == 2).await;
    assert_eq!(tool.seen()[1].line, "DELETE /v1/orders/order%2F1 HTTP/1.1");
    gateway.stop().await;
}

#[test]
fn a_request_that_does_not_fit_its_schema_is_a_mistake() {
    let section = |url: &str, more: &str| format!("[tools.t]\nurl = \"https://h{url}\"\n{more}\n");
    let schema = |required: &str, properties: &str| {
        format!("input_schema = {{ required = [{required}], properties = {{ {properties} }} }}")
    };
    let id = schema("\"id\"", "id = { type = \"string\", minLength = 1 }");
    for (url, more, said) in [
        ("/{/id}", String::new(), "input_schema does not require /id"),
        (
            "/{/id}",
            schema("", "id = { type = \"integer\" }"),
            "input_schema does not require /id",
        ),
        (
            "/{/id}",
            schema("\"id\"", "id = { type = \"string\" }"),
            "it may be empty",
        ),
        (
            "/{/id}",
            schema(
                "\"id\"",
                "id = { type = [\"string\", \"null\"], minLength = 1 }",
            ),
            "a URL takes",
        ),
        (
            "/{/id}",
            schema("\"id\"", "id = {}"),
            "its type must say so",
        ),
        (
            "/x",
            format!("{id}\nquery = {{ a = \"/b\" }}"),
            "input_schema does not name /b",
        ),
        (
            "/x",
            format!("{id}\nheaders_from = {{ a = \"/b\" }}"),
            "input_schema does not name /b",
        ),
        (
            "/x",
            format!("{id}\nheaders_from = {{ Authorization = \"/id\" }}"),
            "says who calls",
        ),
        (
            "/x",
            format!("{id}\nheaders_from = {{ Host = \"/id\" }}"),
            "the gateway's own",
        ),
        (
            "/x",
            format!("{id}\nkey_header = \"cookie\""),
            "says who calls",
        ),
        (
            "/x",
            format!("{id}\nheaders_from = {{ X-Key = \"/id\" }}\nkey_header = \"x-key\""),
            "an argument gives this header",
        ),
        (
            "/x",
            format!("{id}\nset = {{ id = 1 }}"),
            "input_schema names /id",
        ),
        (
            "/x",
            format!("{id}\nkey_body = \"/id\""),
            "input_schema names /id",
        ),
        (
            "/{/id}",
            format!("{id}\nbody = \"none\"\nset = {{ a = 1 }}"),
            "the request has no body",
        ),
        (
            "/{/id}",
            format!("{id}\nbody = \"none\"\nkey_body = \"/a\""),
            "the request has no body",
        ),
        (
            "/x",
            format!("{id}\nbody = \"none\""),
            "input_schema names id, and neither",
        ),
        ("/{/id/0}", id.clone(), "is a place in a list"),
        ("/{id}", id.clone(), "{id} would be sent as it stands"),
        (":{/id}/", id.clone(), "only path and query"),
        (
            "/{/id}",
            format!(
                "{id}\nredact = {{ args = [\"/id\"] }}\nprobe = {{ url = \"https://h/{{/id}}\" }}"
            ),
            "/id is not stored",
        ),
        (
            "/x",
            format!("{id}\nprobe = {{ url = \"https://h/x\" }}"),
            "a probe asks for one call",
        ),
        (
            "/x",
            format!("{id}\nset = 1"),
            "constants of a body are a table",
        ),
        ("/x", format!("{id}\narrays = \"csv\""), "arrays"),
    ] {
        let text = section(url, &more);
        let mistakes = read(&text, &[]).expect_err(&text);
        check_said(&mistakes, said);
    }
    let good = section(
        "/{/id}?k={key}",
        &format!("{id}\nkey_header = \"Idempotency-Key\"\nset = {{ a = {{ b = 1 }} }}"),
    );
    read(&format!("[store]\nurl = \"sqlite:x.db\"\n{good}"), &[]).expect("good");
    let of_upstream =
        "[upstreams.u]\nurl = \"https://h/mcp\"\n[tools.t]\nupstream = \"u\"\nbody = \"form\"\n";
    check_said(
        &read(of_upstream, &[]).expect_err("no URL"),
        "a tool of an upstream",
    );
}
