use proptest::prelude::*;
use serde_json::{Value, json};

use super::compared_form::{CREDENTIAL, DECODED, compared_form, places, with_headers};
use super::reply::Reply;
use super::stored_form::{message, target};
use super::*;

pub(super) fn at(text: &str) -> Pointer {
    text.parse().expect("a pointer")
}

pub(super) fn post(kind: &str, body: &str) -> Message {
    Message {
        method: "POST".into(),
        path: "/v1/charges".into(),
        headers: vec![("content-type".into(), kind.into())],
        body: body.to_owned().into(),
        ..Message::default()
    }
}

pub(super) fn rule(methods: &[&str], path: &str, does: Does) -> Rule {
    Rule {
        methods: methods.iter().map(|&one| one.to_owned()).collect(),
        path: path.into(),
        does,
        unkeyed: None,
    }
}

pub(super) const FORM: &str = "application/x-www-form-urlencoded";

#[test]
fn reads_pass_and_what_may_write_is_a_call() {
    let policy = Policy::default();
    for (method, does) in [
        ("GET", Does::Read),
        ("HEAD", Does::Read),
        ("OPTIONS", Does::Read),
        ("POST", Does::Write),
        ("PUT", Does::Write),
        ("PATCH", Does::Write),
        ("DELETE", Does::Write),
        ("PROPFIND", Does::Write),
        ("get", Does::Write),
    ] {
        assert_eq!(policy.decide(method, "/x"), (None, does), "{method}");
    }
}

#[test]
fn headers_that_name_another_path_are_known() {
    for name in ["x-original-url", "x_rewrite_url", "x-original-uri"] {
        assert!(names_path(name), "{name}");
    }
    assert!(!names_path("x-original"));
}

#[test]
fn a_request_that_names_another_method_is_no_read() {
    let named = |name: &str, method: &str| Message {
        method: "GET".into(),
        headers: vec![(name.into(), method.into())],
        ..post("", "")
    };
    let mut policy = Policy::default();
    assert_eq!(policy.decide_on(&named("x", "DELETE")).0, Does::Read);
    for name in [
        "x-http-method-override",
        "x_http_method",
        "x-method_override",
    ] {
        assert_eq!(policy.decide_on(&named(name, "DELETE")).0, Does::Write);
        let counted = |method: &str| with_headers(compared_form(&named(name, method), ""), &[]);
        assert_ne!(counted("DELETE"), counted("PATCH"));
    }
    policy.unkeyed = Unkeyed::Pass;
    assert_eq!(policy.decide_on(&post("", "")).1, Unkeyed::Pass);
    let named = named("x-http-method", "DELETE");
    assert_eq!(
        policy.decide_on(&named).1,
        Unkeyed::Refuse,
        "nothing unguarded"
    );
}

#[test]
fn the_first_rule_that_fits_counts_however_the_path_is_written() {
    let policy = Policy {
        rules: vec![
            rule(&["POST"], "/v1/search", Does::Read),
            rule(&[], "/v1/admin", Does::Deny),
            rule(&["GET"], "/v1/", Does::Write),
        ],
        ..Policy::default()
    };
    for (method, path, rule, does) in [
        ("POST", "/v1/search", Some(0), Does::Read),
        ("POST", "/v1/search/x", Some(0), Does::Read),
        ("POST", "/v1/searches", None, Does::Write),
        ("PUT", "/v1/search", None, Does::Write),
        ("GET", "/v1/admin", Some(1), Does::Deny),
        ("GET", "/v1/%61dmin/x", Some(1), Does::Deny),
        ("GET", "//v1///admin", Some(1), Does::Deny),
        ("GET", "/v1/administrator", Some(2), Does::Write),
        ("GET", "/v1", Some(2), Does::Write),
        ("GET", "/", None, Does::Read),
    ] {
        assert_eq!(policy.decide(method, path), (rule, does), "{method} {path}");
    }
}

#[test]
fn a_path_that_a_server_may_read_otherwise_is_not_passed_on() {
    for path in [
        "/a/../b",
        "/a/%2e%2E/b",
        "/a/%2e",
        "/..",
        "/a%2f..%2fb",
        "/a\\b",
        "/a%5cb",
        "/a%0ab",
    ] {
        assert!(paths::mistake(path).is_some(), "{path}");
    }
    for path in ["/", "/a.b/..c", "/a//b", "/a%20b/%C3%BC", "/a;b=c"] {
        assert_eq!(paths::mistake(path), None, "{path}");
    }
}

#[test]
fn one_request_in_two_spellings_has_one_view() {
    let counted = |message: &Message| with_headers(compared_form(message, ""), &[]);
    let same = |a: &Message, b: &Message| counted(a) == counted(b);
    let json = "application/json";
    assert!(same(
        &post(json, r#"{"a":1,"b":[2]}"#),
        &post(json, r#"{ "b": [2], "a": 1 }"#)
    ));
    assert!(!same(&post(json, r#"{"a":1}"#), &post(json, r#"{"a":2}"#)));
    assert!(
        !same(&post(json, r#"{"a":1,"a":2}"#), &post(json, r#"{"a":2}"#)),
        "a member twice"
    );
    assert!(!same(
        &post(json, "9007199254740993"),
        &post(json, "9007199254740992")
    ));
    assert!(!same(&post(json, "[\"a\"]"), &post(FORM, "a")));
    assert!(same(&post(FORM, "a=b+c&d="), &post(FORM, "a=b%20c&d")));
    assert!(!same(&post(FORM, "a=1&b=2"), &post(FORM, "a=1")));
    assert!(!same(&post("text/plain", ""), &post("text/plain", " ")));
    let part = |boundary: &str| {
        let body = format!("--{boundary}\r\n\r\nhello\r\n--{boundary}--");
        post(&format!("multipart/form-data; boundary={boundary}"), &body)
    };
    assert!(
        same(&part("abc"), &part("xyz")),
        "the boundary is another one each time"
    );
    for change in [
        |m: &mut Message| m.method = "PUT".into(),
        |m: &mut Message| m.path = "/v1/other".into(),
        |m: &mut Message| m.query = Some("a=b".into()),
        |m: &mut Message| m.body = Bytes::from_static(b"\xff"),
    ] {
        let (base, mut other) = (post(json, "{}"), post(json, "{}"));
        change(&mut other);
        assert!(!same(&base, &other), "{other:?}");
    }
    let binary = |bytes: &'static [u8]| Message {
        body: Bytes::from_static(bytes),
        ..post("x/y", "")
    };
    assert!(!same(&binary(b"\xff\x00"), &binary(b"\xff\x01")));
}

#[test]
fn parts_that_differ_by_themselves_do_not_count() {
    let ignored: Vec<Pointer> = ["/query/ts", "/body/meta/nonce", "/body/b"]
        .iter()
        .flat_map(|place| places(&at(place)))
        .collect();
    let counted = |message: &Message| {
        let mut compared_form = compared_form(message, "");
        ignored
            .iter()
            .for_each(|place| place.remove_from(&mut compared_form));
        compared_form
    };
    let same = |a: &Message, b: &Message| counted(a) == counted(b);
    let ask = |query: &str, kind: &str, body: &str| Message {
        query: Some(query.into()),
        ..post(kind, body)
    };
    let json = "application/json";
    assert!(same(
        &ask("a=1&ts=5", json, r#"{"meta":{"nonce":1,"c":2},"b":1}"#),
        &ask("ts=6&a=1", json, r#"{"meta":{"nonce":2,"c":2},"b":{}}"#)
    ));
    assert!(same(
        &ask("", FORM, "meta[nonce]=1&a=2&b[]=1&meta[c]=3"),
        &ask(
            "",
            FORM,
            "a=2&meta%5Bnonce%5D=3&b[x]=2&meta[nonce][y]=1&meta[c]=3"
        )
    ));
    assert!(!same(
        &ask("", FORM, "meta[c]=1&a=2"),
        &ask("", FORM, "a=2")
    ));
    assert!(!same(&ask("ts[]=1", FORM, ""), &ask("tx=1", FORM, "")));
    for place in ["/x", "/query", "/body", "/headers/a"] {
        assert_eq!(places(&at(place)), [], "{place}");
    }
}

#[test]
fn no_two_forms_are_taken_for_one() {
    let forms = [
        "a=1",
        "a=1&a=2",
        "a=2&a=1",
        "a[]=1",
        "a[0]=1",
        "a[b]=1",
        "a[b=1",
        "a]=1",
        "a[b]]=1",
        "a[[b]]=1",
        "a[b][]=1",
        "a[]=1&a=",
        "1=a",
        "[a]=1",
        "=1",
        "a=",
        "a[b]=1&a=2",
        "",
        "a%00=1",
        "a=1&b",
        "a[1]=1",
        "a[1][a]=1",
    ];
    for (n, one) in forms.iter().enumerate() {
        for other in &forms[n + 1..] {
            assert_ne!(
                compared_form(&post(FORM, one), ""),
                compared_form(&post(FORM, other), ""),
                "{one} {other}"
            );
        }
    }
}

#[test]
fn named_headers_and_a_credential_count() {
    let with = |account: &str| {
        let mut message = post("application/json", "{}");
        message
            .headers
            .push(("stripe-account".into(), account.into()));
        compared_form(&message, "")
    };
    let counted = |compared_form: Value, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        with_headers(compared_form, &names)
    };
    assert_ne!(
        counted(with("a"), &["stripe-account"]),
        counted(with("b"), &["stripe-account"])
    );
    assert_eq!(counted(with("a"), &[]), counted(with("b"), &[]));
    assert_eq!(counted(with("a"), &["x"])["headers"], json!({ "x": null }));
    let message = post("application/json", "{}");
    assert_ne!(compared_form(&message, "x"), compared_form(&message, "y"));
    assert_eq!(compared_form(&message, "").get(CREDENTIAL), None);
}

#[test]
fn secrets_are_not_kept() {
    let mut asked = post(
        "application/json",
        r#"{ "card": { "number": "4242" }, "amount": 5 }"#,
    );
    for name in [
        "authorization",
        "cookie",
        "x-api-key",
        "x-auth-token",
        "x-signature",
    ] {
        asked.headers.push((name.into(), "hunter2".into()));
    }
    let open = Policy::default();
    let stored_form = |policy: &Policy, message: &Message| {
        String::from_utf8(policy.stored_form(message).to_vec()).expect("text")
    };
    let text = stored_form(&open, &asked);
    assert!(!text.contains("hunter2") && text.contains("4242"), "{text}");
    assert_eq!(
        message(text.as_bytes()),
        None,
        "it cannot be sent from what is stored"
    );
    let target = target(text.as_bytes()).expect("a place");
    assert_eq!(
        (target.method.as_str(), target.path.as_str()),
        ("POST", "/v1/charges")
    );
    let policy = Policy {
        redact: vec![at("/card")],
        ..Policy::default()
    };
    let text: Value = serde_json::from_str(&stored_form(&policy, &asked)).expect("JSON");
    assert_eq!(text["json"], json!({ "card": "[redacted]", "amount": 5 }));
    for (kind, body) in [
        (FORM, "card[number]=4242&amount=5"),
        (FORM, "%63ard%5Bnumber%5D=4242"),
        (FORM, "card=4242"),
        ("multipart/form-data; boundary=x", "--x\r\n4242"),
        ("text/plain", "no 4242"),
        ("application/json", "{\"card\":4242"),
    ] {
        let text = stored_form(&policy, &post(kind, body));
        assert!(!text.contains("4242"), "{text}");
    }
    let text = stored_form(&policy, &post(FORM, "cards=7&amount=5"));
    assert!(
        message_of(&text).is_some(),
        "nothing of it is secret: {text}"
    );
    let binary = Message {
        body: Bytes::from_static(b"\xff4242"),
        ..post("x/y", "")
    };
    assert!(
        !stored_form(&policy, &binary).contains("/z"),
        "masked as a whole"
    );
}

fn message_of(text: &str) -> Option<Message> {
    message(text.as_bytes())
}

proptest! {
    #[test]
    fn requests_and_answers_come_back_byte_by_byte(
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "[ \\n]?\\{ ?\"a\": ?1.0 ?\\}[ \\n]?".prop_map(String::into_bytes),
            any::<String>().prop_map(String::into_bytes),
        ],
        value in "[ -~\u{80}-\u{ff}]{0,20}",
        query in proptest::option::of("[a-z=&%20]{0,20}"),
    ) {
        let sent = Message {
            method: "PATCH".into(),
            path: "/a%20b".into(),
            query,
            headers: vec![("x-a".into(), value.clone()), ("x-a".into(), "b".into())],
            body: body.clone().into(),
        };
        prop_assume!(body != b"[redacted]" && value != "[redacted]");
        let stored_form = Policy::default().stored_form(&sent);
        prop_assume!(crate::redact::is_whole(&stored_form));
        prop_assert_eq!(message(&stored_form), Some(sent));
        let reply = Reply { status: 201, headers: vec![("x-a".into(), value)], body: body.into() };
        prop_assert_eq!(Reply::read(&reply.keep()), Some(reply));
    }
}

#[test]
fn a_header_that_names_another_method_takes_the_stricter_of_two_treatments() {
    let deletes = Rule {
        unkeyed: Some(Unkeyed::Derive),
        ..rule(&["DELETE"], "/v1", Does::Write)
    };
    let named = |method: &str| Message {
        headers: vec![("x-http-method".into(), method.into())],
        ..post("", "")
    };
    let mut policy = Policy {
        rules: vec![deletes, rule(&["PURGE"], "/v1", Does::Deny)],
        ..Policy::default()
    };
    for (unkeyed, method, decided) in [
        (Unkeyed::Derive, "DELETE", (Does::Write, Unkeyed::Derive)),
        (Unkeyed::Derive, "PUT", (Does::Write, Unkeyed::Derive)),
        (Unkeyed::Refuse, "DELETE", (Does::Write, Unkeyed::Refuse)),
        (Unkeyed::Refuse, "PUT", (Does::Write, Unkeyed::Refuse)),
        (Unkeyed::Pass, "DELETE", (Does::Write, Unkeyed::Refuse)),
        (Unkeyed::Pass, "PUT", (Does::Write, Unkeyed::Refuse)),
        (Unkeyed::Derive, "PURGE", (Does::Deny, Unkeyed::Derive)),
        (Unkeyed::Derive, "put, purge", (Does::Deny, Unkeyed::Derive)),
    ] {
        policy.unkeyed = unkeyed;
        assert_eq!(policy.decide_on(&named(method)), decided, "{method}");
    }
}

#[test]
fn a_target_is_path_and_query_as_they_were_written() {
    let plain = post("", "");
    assert_eq!(plain.target(), "/v1/charges");
    for query in ["", "a=%20b"] {
        let asked = Message {
            query: Some(query.into()),
            ..plain.clone()
        };
        assert_eq!(asked.target(), format!("/v1/charges?{query}"));
    }
}

#[test]
fn a_credential_that_goes_through_is_part_of_the_intent() {
    let mut policy = Policy {
        counted_headers: vec!["stripe-account".into()],
        ..Policy::default()
    };
    assert_eq!(
        policy.counted(),
        ["stripe-account", DECODED, credentials::ALL]
    );
    policy.passes_authorization = true;
    assert_eq!(
        policy.counted(),
        ["stripe-account", DECODED, CREDENTIAL, credentials::ALL]
    );
}

#[test]
fn a_rule_that_reads_fits_only_a_path_that_every_server_reads_alike() {
    let policy = Policy {
        rules: vec![rule(&["POST"], "/v1/search", Does::Read)],
        ..Policy::default()
    };
    for (path, does) in [
        ("/v1/search", Does::Read),
        ("/v1/%73earch", Does::Read),
        ("/v1//search", Does::Write),
        ("/v1%2fsearch", Does::Write),
        ("/v1%2Fsearch", Does::Write),
        ("/V1/search", Does::Write),
    ] {
        assert_eq!(policy.decide("POST", path).1, does, "{path}");
    }
}

#[test]
fn headers_of_one_connection_are_told_from_others() {
    let named = ["x-hop".to_owned()];
    for (name, is) in [
        ("te", true),
        ("host", true),
        ("upgrade", true),
        ("x-hop", true),
        ("x-other", false),
        ("content-type", false),
    ] {
        assert_eq!(is_of_connection(name, &named), is, "{name}");
    }
    assert!(!is_of_connection("x-hop", &[]));
}

#[test]
fn a_name_of_many_steps_is_never_read_as_another_name() {
    let name = |steps: usize, last: &str| {
        let inner = "[x]".repeat(steps - 2);
        format!("a{inner}[{last}]=1")
    };
    let form = |name: &str| compared_form(&post(FORM, name), "");
    for steps in [2, 31, 32, 33, 34, 40] {
        let (one, other) = (form(&name(steps, "y")), form(&name(steps, "z")));
        assert_ne!(one, other, "{steps}");
    }
    // A name of at most 32 steps is split into them; a longer name is one step.
    let steps = |steps: usize| {
        let names = [&["a"], &vec!["x"; steps - 2][..], &["y"]].concat();
        let pointer = Pointer::to(&[&["body"], &names[..]].concat());
        let places = places(&pointer);
        form(&name(steps, "y")).pointer(places[1].as_str()).cloned()
    };
    assert_eq!(steps(32), Some(json!([["1"], {}])));
    assert_eq!(steps(33), None);
    let whole = form(&name(33, "y"));
    let (written, _) = name(33, "y")
        .split_once('=')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a name");
    assert_eq!(
        whole["body"]["form"],
        json!([[], { (written): [["1"], {}] }])
    );
}
