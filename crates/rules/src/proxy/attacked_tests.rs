//! Attempts of servers, callers and operators to deceive a proxy.

use serde_json::{Value, json};

use super::compared_form::{bytes_to_compare, compared_form, places, with_headers};
use super::reply::Reply;
use super::stored_form::{message, target};
use super::tests::{FORM, at, post, rule};
use super::*;
use crate::json::MAX_VALUES;

#[test]
fn the_stricter_treatment_counts_where_servers_differ() {
    let policy = Policy {
        rules: vec![
            rule(&["DELETE"], "/v1", Does::Deny),
            rule(&[], "/v1/admin", Does::Deny),
            rule(&["GET"], "/v1/fire", Does::Write),
            rule(&[], "/v1/search", Does::Read),
        ],
        ..Policy::default()
    };
    let does = |method: &str, path: &str| policy.decide(method, path).1;
    for path in [
        "/v1/ADMIN",
        "/v1/admin;a=b",
        "/v1/admin;a=b/x",
        "/V1;x/Admin",
    ] {
        assert_eq!(does("GET", path), Does::Deny, "{path}");
    }
    assert_eq!(does("HEAD", "/v1/fire"), Does::Write);
    assert_eq!(
        does("POST", "/v1/Search"),
        Does::Write,
        "a rule that lets pass is taken at its word"
    );
    for method in ["TRACE", "CONNECT"] {
        assert_eq!(does(method, "/v1/search"), Does::Deny);
    }
    let overridden = |method: &str, named: &str, path: &str| Message {
        method: method.into(),
        path: path.into(),
        headers: vec![("x-method-override".into(), named.into())],
        ..Message::default()
    };
    assert_eq!(
        policy.decide_on(&overridden("POST", "delete", "/v1/x")).0,
        Does::Deny
    );
    assert_eq!(
        policy.decide_on(&overridden("DELETE", "GET", "/v1/x")).0,
        Does::Deny
    );
    assert_eq!(
        policy.decide_on(&overridden("POST", "GET", "/v1/search")).0,
        Does::Write
    );
    let asked = |method: &str, path: &str| Message {
        method: method.into(),
        path: path.into(),
        ..Message::default()
    };
    for (method, path) in [
        ("delete", "/x"),
        ("GET", "/v1/search/..;/charges"),
        ("GET", "/a/.;x=1/b"),
        ("GET", "/a/%252e%252e/b"),
        ("GET", "/a%255cb"),
    ] {
        assert!(mistake(&asked(method, path)).is_some(), "{method} {path}");
    }
    assert_eq!(mistake(&asked("GET", "/a;b=c/d")), None);
}

#[test]
fn the_same_values_in_other_groups_are_another_form() {
    let one = post(FORM, "i[][id]=1&i[][qty]=2&i[][id]=3");
    let other = post(FORM, "i[][id]=1&i[][id]=3&i[][qty]=2");
    assert_ne!(compared_form(&one, ""), compared_form(&other, ""));
    assert_eq!(
        compared_form(&post(FORM, "a=1&i[]=1&i[]=2"), ""),
        compared_form(&post(FORM, "i[]=1&i[]=2&a=1"), "")
    );
}

#[test]
fn an_ignored_member_is_ignored_in_every_kind_of_body() {
    let counted = |kind: &str, body: &str| {
        let mut compared_form = with_headers(compared_form(&post(kind, body), ""), &[]);
        for place in places(&at("/body/nonce")) {
            place.remove_from(&mut compared_form);
        }
        compared_form
    };
    for (kind, one, other) in [
        (FORM, "a[][b]=1&nonce=1", "a[][b]=1&nonce=2"),
        (
            "Application/X-WWW-Form-Urlencoded; charset=utf-8",
            "nonce=1&b=1",
            "b=1&nonce=2",
        ),
        ("application/JSON", r#"{"nonce":1}"#, r#"{"nonce":2}"#),
    ] {
        assert_eq!(counted(kind, one), counted(kind, other), "{kind}");
    }
}

#[test]
fn no_boundary_makes_two_bodies_one() {
    let body = |boundary: &str, amount: &str| {
        let body = format!("--{boundary}\r\n\r\namount={amount}\r\n--{boundary}--");
        let kind = format!("multipart/form-data; boundary={boundary}");
        with_headers(compared_form(&post(&kind, &body), ""), &[])
    };
    assert_eq!(body("x1", "5"), body("x2", "5"));
    assert_ne!(body("7", "17"), body("8", "18"));
    assert_ne!(body("7", "--7"), body("8", "--8"));
}

#[test]
fn only_json_is_read_as_json() {
    let counted = |kind: &str, body: &str| {
        crate::json::canonical(&with_headers(compared_form(&post(kind, body), ""), &[]))
    };
    assert_eq!(
        counted("application/json", "1"),
        counted("application/json", "1.0")
    );
    assert_eq!(counted("application/problem+json", "1"), counted("", "1.0"));
    assert_ne!(counted("text/plain", "1"), counted("text/plain", "1.0"));
}

#[test]
fn deep_names_and_values_make_a_readable_view_and_image() {
    for steps in [31, 32, 33, 20_000] {
        let name = format!("a{}", "[b]".repeat(steps));
        let asked = Message {
            query: Some(format!("{name}=1")),
            ..post(FORM, &format!("{name}=1"))
        };
        let text = compared_form(&asked, "").to_string();
        assert!(crate::json::parse(&text).is_ok(), "{steps}");
        let policy = Policy {
            redact: vec![at("/a")],
            ..Policy::default()
        };
        assert!(
            message(&policy.stored_form(&asked)).is_none(),
            "its name is secret at any depth"
        );
    }
    for depth in [50, 99, 100, 125, 127, 10_000] {
        let body = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let asked = post("application/json", &body);
        assert!(
            crate::json::parse(&compared_form(&asked, "").to_string()).is_ok(),
            "{depth}"
        );
        let stored_form = Policy::default().stored_form(&asked);
        assert!(
            serde_json::from_slice::<Value>(&stored_form).is_ok(),
            "{depth}"
        );
        assert_eq!(message(&stored_form), Some(asked));
    }
}

#[test]
fn an_image_is_json_that_every_reader_takes() {
    for body in [
        "null",
        " null",
        "1e999",
        "{\"a\":1e999}",
        "\"\\ud800\"",
        "{\"a\":1,\"a\":2}",
        "-0",
        "\u{1}\u{2}",
    ] {
        let asked = post("application/json", body);
        let stored_form = Policy::default().stored_form(&asked);
        assert!(
            serde_json::from_slice::<Value>(&stored_form).is_ok(),
            "{body}"
        );
        assert_eq!(message(&stored_form), Some(asked), "{body}");
        assert!(target(&stored_form).is_some());
        let reply = Reply {
            status: 200,
            headers: vec![],
            body: body.to_owned().into(),
        };
        assert_eq!(Reply::read(&reply.keep()), Some(reply), "{body}");
    }
    let odd = "\u{1}".repeat(1_000);
    assert!(
        Policy::default()
            .stored_form(&post("text/plain", &odd))
            .len()
            < 2_000,
        "not six bytes for each"
    );
}

#[test]
fn secrets_of_a_query_are_not_kept_either() {
    let policy = Policy {
        redact: vec![at("/card")],
        secret_headers: vec!["x-own".into()],
        ..Policy::default()
    };
    let stored = |query: &str, header: &str| {
        let mut asked = Message {
            query: Some(query.into()),
            ..post("", "")
        };
        asked.headers.push((header.into(), "hunter2".into()));
        String::from_utf8(policy.stored_form(&asked).to_vec()).expect("text")
    };
    for query in [
        "a=1&access_token=hunter2",
        "API_KEY=hunter2",
        "%61pi_key=hunter2",
        "card[number]=hunter2",
        "card.number=hunter2",
        "a=%ff&b=hunter2",
    ] {
        let stored = stored(query, "x-own");
        assert!(!stored.contains("hunter2"), "{stored}");
    }
    assert!(stored("limit=3", "date").contains("limit=3"));
    for header in [
        "ocp-apim-subscription-key",
        "x-session-id",
        "x-amz-credential",
    ] {
        assert!(!stored("", header).contains("hunter2"), "{header}");
    }
    let form = post(FORM, "card.number=hunter2");
    assert!(!String::from_utf8_lossy(&policy.stored_form(&form)).contains("hunter2"));
    let reply = Reply {
        status: 200,
        headers: vec![
            ("x-subject-token".into(), "hunter2".into()),
            ("x-own".into(), "hunter2".into()),
        ],
        body: "{}".into(),
    };
    let shown = policy.shown(&reply.keep());
    assert!(!String::from_utf8_lossy(&shown).contains("hunter2"));
    assert_eq!(
        Reply::read(&reply.keep()),
        Some(reply),
        "but duplicates get all of it"
    );
}

#[test]
fn a_body_without_secrets_is_kept_byte_by_byte() {
    let policy = Policy {
        redact: vec![at("/card")],
        ..Policy::default()
    };
    for (body, is_whole) in [
        ("{ \"b\":1, \"a\":1.50 }", true),
        ("{\"card\":1}", false),
        ("{\"b\":1,\"b\":2}", false),
        ("[1]", true),
    ] {
        let asked = post("application/json", body);
        let stored = message(&policy.stored_form(&asked));
        assert_eq!(stored, is_whole.then_some(asked), "{body}");
    }
}

#[test]
fn a_result_given_by_an_operator_has_no_headers_of_the_connection() {
    let said = |status: u16, name: &str| {
        let json = json!({ "status": status, "headers": [[name, "2"], ["x-a", "1"]], "json": { "id": "a longer one" } });
        Reply::read(json.to_string().as_bytes())
    };
    for name in [
        "content-length",
        "Transfer-Encoding",
        "connection",
        "set-cookie",
    ] {
        assert_eq!(
            said(200, name).expect("an answer").headers,
            [("x-a".to_owned(), "1".to_owned())],
            "{name}"
        );
    }
    for status in [0, 101, 199, 600, 65_535] {
        assert_eq!(said(status, "x-b"), None, "{status}");
    }
}

#[test]
fn json_that_is_too_deep_for_readers_is_kept_as_a_text() {
    let nested = |levels: usize, (open, close): (&str, &str)| {
        format!("{}0{}", open.repeat(levels), close.repeat(levels))
    };
    for pair in [("[", "]"), ("{\"a\":", "}")] {
        for (levels, member) in [(99, "json"), (100, "text"), (120, "text")] {
            let asked = post("application/json", &nested(levels, pair));
            let stored_form = Policy::default().stored_form(&asked);
            let stored: Value = serde_json::from_slice(&stored_form).expect("JSON");
            let has = |name: &str| stored.get(name).is_some();
            assert!(has(member), "{levels} of {pair:?}: {stored}");
            assert!(has("json") != has("text"), "{levels} of {pair:?}");
            assert_eq!(message(&stored_form), Some(asked));
        }
    }
}

#[test]
fn a_request_without_a_body_keeps_none_under_every_policy() {
    let policy = Policy {
        redact: vec![at("/card")],
        ..Policy::default()
    };
    let asked = Message {
        method: "DELETE".into(),
        ..post("application/json", "")
    };
    assert_eq!(message(&policy.stored_form(&asked)), Some(asked));
}

#[test]
fn a_kept_answer_is_shown_without_its_secrets_and_otherwise_whole() {
    let policy = Policy {
        secret_headers: vec!["x-own".into()],
        ..Policy::default()
    };
    let with = |own: &str, token: &str| Reply {
        status: 201,
        headers: [("x-own", own), ("x-token", token), ("date", "today")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        body: "{\"a\":1.50}".into(),
    };
    let masked = with("[redacted]", "[redacted]");
    assert_eq!(policy.shown(&with("a", "b").keep()), masked.keep());
    assert_eq!(policy.shown(b"by an operator"), "by an operator");
}

#[test]
fn a_request_that_names_many_methods_is_denied_before_each_is_looked_at() {
    let policy = Policy::default();
    let naming = |many: usize| Message {
        query: Some((0..many).map(|n| format!("_method=M{n}&")).collect()),
        ..post(FORM, "_method=M0&_method=M0")
    };
    assert_eq!(policy.decide_on(&naming(8)).0, Does::Write);
    assert_eq!(policy.decide_on(&naming(9)).0, Does::Deny);
}

#[test]
fn a_form_of_too_many_values_is_compared_as_it_is_written() {
    let form = |names: usize| {
        let names = (0..names).map(|n| format!("a{n}[b][c][d][e]=1"));
        Message {
            headers: vec![(
                "content-type".into(),
                "application/x-www-form-urlencoded".into(),
            )],
            body: names.collect::<Vec<_>>().join("&").into(),
            ..Message::default()
        }
    };
    let small = compared_form(&form(5_000), "");
    assert!(small["body"]["form"][1]["a0"].is_array());
    let large = compared_form(&form(7_000), "");
    assert!(
        large["body"]["bytes"].is_string(),
        "three values for each step"
    );
    let one = Message {
        body: vec![b'&'; MAX_VALUES].into(),
        ..form(0)
    };
    assert!(compared_form(&one, "")["body"]["bytes"].is_string());
    for message in [form(5_000), form(7_000)] {
        assert!(bytes_to_compare(&message) > 20 * message.body.len());
    }
}
