//! The console's pages: what callers and tools wrote is text on all of them, what is secret is on none, and they are small.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::console::pages::{call, unknown, with_tokens};
use crate::reconcile::runs::{config, report};
use crate::support::books::Books;
use crate::support::browser::Browser;
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Gateway, Tool, until};

/// Markup, a line of a terminal, and letters that turn others around.
const HOSTILE: &str =
    "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&lt;{{7*7}}\u{202e}\u{feff}";
/// The same without what an id or a reason may not have.
const NAME: &str = "'\"><script>alert(1)</script><img/src=x>&\u{202e}%2e../";
/// The same in visible ASCII, as a key has to be.
const KEY: &str = "'\"><script>alert(1)</script><img/src=x/onerror=alert(2)>";

/// Every screen, for these things.
fn screens(of: &[(&str, &str)]) -> Vec<String> {
    let mut all: Vec<String> = [
        "",
        "/calls",
        "/sessions",
        "/sagas",
        "/reconciliations",
        "/tools",
        "/store",
        "/audit",
        "/calls?state=unknown",
        "/tool?name=act",
        "/reconciliation?name=books",
        "/anomaly?name=books&id=1",
        "/sagas?state=stuck",
        "/calls?duplicates_min=1",
        "/nothing",
    ]
    .map(|path| format!("/console{path}"))
    .into();
    for (kind, id) in of {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let path = match *kind {
            "call" => format!("/console/calls/{id}"),
            "find" => format!("/console/calls?{}", query.append_pair("find", id).finish()),
            kind => format!(
                "/console/{kind}?{}",
                query
                    .append_pair("id", id)
                    .append_pair("tenant", "shop")
                    .finish()
            ),
        };
        all.push(path);
    }
    all
}

/// Looks for anything on a page that is not the page's own.
#[track_caller]
fn is_clean(path: &str, page: &Answer) {
    let text = &page.text;
    let kind = page.header("content-type");
    assert!(kind.starts_with("text/html"), "{path}: {kind}");
    assert_eq!(text.matches("<script").count(), 2, "{path}: {text}");
    for markup in [
        "<img",
        "onerror=a",
        " style=",
        "<style",
        "javascript:",
        "alert(1)</script>",
    ] {
        let is_text = markup == "onerror=a" && text.contains("&gt;");
        assert!(
            is_text || !text.contains(markup),
            "{path}: {markup}: {text}"
        );
    }
    let hidden =
        |letter: char| letter.is_control() && letter != '\n' || "\u{202e}\u{feff}".contains(letter);
    let found = text.find(hidden).map(|at| &text[at.saturating_sub(80)..]);
    assert_eq!(found, None, "{path}");
    // Links stay on this site: attributes that hold an address begin with a path.
    for attribute in [
        "href=\"",
        "src=\"",
        "action=\"",
        "hx-get=\"",
        "data-live=\"",
    ] {
        for rest in text.split(attribute).skip(1) {
            assert!(
                rest.starts_with('/') && !rest.starts_with("//") || rest.starts_with("#main"),
                "{path}: {rest}"
            );
        }
    }
    let policy = page.header("content-security-policy");
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
    ] {
        assert!(policy.contains(rule), "{path}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let headers = [
        "x-content-type-options",
        "referrer-policy",
        "cache-control",
        "cross-origin-opener-policy",
    ];
    let said = headers.map(|name| page.header(name));
    assert_eq!(
        said,
        ["nosniff", "same-origin", "no-store", "same-origin"],
        "{path}"
    );
}

/// An operator has looked, and someone else settles the call, which then runs again.
#[tokio::test]
async fn a_form_of_an_earlier_run_settles_nothing() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&with_tokens(&one_tool(
        &tool,
        "timeout = \"1s\"\ndeadline = \"1s\"\nretry = { attempts = 1 }\n",
    )))
    .await;
    let id = unknown(&gateway, "k").await;
    let ops = Browser::sign_in(&gateway, "ops").await;
    let page = format!("/console/calls/{id}");
    let failed = format!("{page}/failed");
    let seen = ops.seen(&page).await;
    until("its request cannot arrive any more", async || {
        let fields = [("reason", "the shop has nothing"), ("seen", &seen)];
        ops.submit(&failed, &fields).await.status == 303
    })
    .await;
    // The key runs again, and is unknown again.
    assert_eq!(unknown(&gateway, "k").await, id);
    for old in [&seen[..], "", "0"] {
        let fields = [("reason", "the shop has nothing"), ("seen", old)];
        let refused = ops.submit(&failed, &fields).await;
        assert_eq!(refused.status, 409, "{}", refused.text);
        assert!(
            refused.text.contains("not as it was shown"),
            "{}",
            refused.text
        );
    }
    assert!(ops.see(&page).await.text.contains("data-state=\"unknown\""));
    assert_ne!(ops.seen(&page).await, seen);
    gateway.stop().await;
}

#[tokio::test]
async fn hostile_data_is_text_on_every_screen() {
    let tool = Tool::start().await;
    let answer = json!({ "note": HOSTILE, HOSTILE: [HOSTILE] }).to_string();
    let answer: &'static str = Box::leak(answer.into_boxed_str());
    tool.then(Act::Ok(answer))
        .then(Act::ExecuteThenDrop)
        .then(Act::Answer(422, "", answer.as_bytes()))
        .always(Act::ExecuteThenSay(
            b"HTTP/1.1 200 <b>\x1b[2J\r\ncontent-length: zzz\r\n\r\n",
        ));
    let more = "description = \"<script>alert(1)</script>\"\nretry = { attempts = 1 }\n";
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, more))).await;
    let (mut ids, mut of) = (
        Vec::new(),
        vec![
            ("session", NAME),
            ("saga", NAME),
            ("find", NAME),
            ("find", HOSTILE),
        ],
    );
    for n in 0..4 {
        let key = format!("{KEY}{n}");
        let body = json!({
            "args": { "note": HOSTILE, HOSTILE: n }, "idempotency_key": key,
            "session_id": NAME, "saga_id": NAME, "user_id": NAME, "trace_id": NAME,
        });
        let answer = call(&gateway, "reads", &body).await;
        let id = answer.at("/call_id");
        ids.push(
            id.as_str()
                .unwrap_or_else(|| panic!("{}", answer.text))
                .to_owned(),
        );
        call(&gateway, "reads", &body).await;
    }
    of.extend(ids.iter().map(|id| ("call", id.as_str())));
    let ops = Browser::sign_in(&gateway, "ops").await;
    let query = |id| {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("id", id)
            .append_pair("tenant", "shop")
            .finish()
    };
    for act in [
        "/console/tool/pause?name=act",
        &format!("/console/session/freeze?{}", query(NAME)),
        &format!("/console/saga/abort?{}", query(NAME)),
    ] {
        let done = ops.submit(act, &[("reason", NAME)]).await;
        assert_eq!(done.status, 303, "{act}: {}", done.text);
    }
    let mut seen = BTreeSet::new();
    for path in screens(&of) {
        let page = ops.see(&path).await;
        is_clean(&path, &page);
        if page.text.contains("&lt;script&gt;alert(1)") && page.text.contains("\\u{202e}") {
            seen.insert(path);
        }
    }
    assert!(seen.len() >= 10, "the test shows nothing hostile: {seen:?}");
    // Failures and acts tell what was wrong, and nothing of it is markup.
    for (path, fields) in [
        (
            format!("/console/session/{}?id=S", "dance"),
            vec![("reason", NAME)],
        ),
        (
            format!("/console/calls/{}/succeeded", ids[1]),
            vec![("result", HOSTILE), ("reason", NAME)],
        ),
        (
            "/console/tool/pause?name=%3Cscript%3E".into(),
            vec![("reason", NAME)],
        ),
        (
            "/console/session/freeze?id=a%1b%0a".into(),
            vec![("reason", "R")],
        ),
    ] {
        let failed = ops.submit(&path, &fields).await;
        assert!(
            (400..500).contains(&failed.status),
            "{path}: {}",
            failed.status
        );
        is_clean(&path, &failed);
    }
    for path in [
        "/console/calls?state=%3Cscript%3Ealert(1)%3C/script%3E",
        "/console/calls?cursor=%00",
        "/console/calls/%3Cb%3E",
    ] {
        let failed = ops.see(path).await;
        assert!(
            (400..500).contains(&failed.status),
            "{path}: {}",
            failed.status
        );
        is_clean(path, &failed);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn no_page_has_what_is_redacted() {
    let tool = Tool::start().await;
    let secret = "{\"token\":\"R-SECRET\",\"id\":7}";
    tool.then(Act::Ok(secret))
        .then(Act::Answer(422, "", secret.as_bytes()));
    let more = "redact = { args = [\"/card\"], result = [\"/token\"] }\nretry = { attempts = 1 }\ndedup = \"key\"\n";
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, more))).await;
    let mut of = vec![("session", "S".to_owned()), ("find", "S".to_owned())];
    for n in 0..2 {
        let body = json!({ "args": { "card": "A-SECRET", "n": n }, "idempotency_key": format!("k{n}"), "session_id": "S" });
        let answer = call(&gateway, "reads", &body).await;
        of.push((
            "call",
            answer.at("/call_id").as_str().expect("an id").to_owned(),
        ));
    }
    let ops = Browser::sign_in(&gateway, "ops").await;
    let of: Vec<(&str, &str)> = of.iter().map(|(kind, id)| (*kind, id.as_str())).collect();
    let mut masked = 0;
    for path in screens(&of) {
        let page = ops.see(&path).await.text;
        assert!(!page.contains("SECRET"), "{path}: {page}");
        masked += page.matches("[redacted]").count();
    }
    assert_eq!(masked, 4, "arguments and answers of both calls");
    tool.always(Act::Ok(secret));
    // Only a call whose arguments are all kept can be compared.
    let body = json!({ "args": { "n": 2 }, "idempotency_key": "k2", "session_id": "S" });
    let answer = call(&gateway, "reads", &body).await;
    let id = answer.at("/call_id");
    let verify = format!("/console/calls/{}/verify", id.as_str().expect("an id"));
    let compared = ops.submit(&verify, &[]).await.expect_ok();
    assert!(!compared.text.contains("SECRET"), "{}", compared.text);
    assert!(compared.text.contains("[redacted]"), "{}", compared.text);
    gateway.stop().await;
}

/// The scripts, the stylesheet and the icon that a page names.
fn assets(page: &str) -> BTreeSet<String> {
    let named = page
        .split('"')
        .filter(|text| text.starts_with("/console/assets/"));
    named.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_page_and_all_that_it_loads_weigh_a_hundred_kilobytes_at_most() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let gateway = Gateway::start(&with_tokens(&one_tool(
        &tool,
        "retry = { attempts = 1 }\nbreaker = { failures = 100000 }\n",
    )))
    .await;
    let mut id = String::new();
    for n in 0..60 {
        let key = format!("01a1fd22-7ff2-763d-af29-53b91f0784{n:02}");
        let body = json!({ "args": { "n": n }, "idempotency_key": key, "session_id": format!("session-{n}") });
        id = call(&gateway, "reads", &body)
            .await
            .at("/call_id")
            .as_str()
            .expect("an id")
            .to_owned();
    }
    let ops = Browser::sign_in(&gateway, "ops").await;
    let first = ops.see("/console").await.expect_ok();
    let mut loaded = 0;
    for address in assets(&first.text) {
        let asset = ops.see(&address).await.expect_ok();
        assert_eq!(
            asset.header("cache-control"),
            "public, max-age=31536000, immutable"
        );
        assert_eq!(asset.header("x-content-type-options"), "nosniff");
        if !address.contains("htmx") {
            let is_own = |rest: &str| rest.starts_with("www.w3.org/2000/svg");
            assert!(
                asset.text.split("://").skip(1).all(is_own),
                "{address} names another host"
            );
        }
        loaded += asset.text.len();
    }
    assert_eq!(assets(&first.text).len(), 4);
    for path in screens(&[("call", &id), ("session", "session-1")]) {
        let page = ops.see(&path).await.text;
        assert_eq!(assets(&page), assets(&first.text), "{path}");
        assert!(
            page.len() + loaded <= 100_000,
            "{path}: {} and {loaded}",
            page.len()
        );
    }
    ops.see("/console/assets/none.js")
        .await
        .expect_problem("unknown-path");
    gateway.stop().await;
}

#[tokio::test]
async fn a_pasted_text_is_found_as_what_it_is() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let body = json!({ "args": {}, "idempotency_key": "K-1", "session_id": "S-1", "user_id": "U-1", "trace_id": trace });
    let id = call(&gateway, "reads", &body).await.expect_ok().id();
    let ops = Browser::sign_in(&gateway, "ops").await;
    let traceparent = format!("00-{trace}-00f067aa0ba902b7-01");
    for (pasted, kind) in [
        (id.as_str(), "As call"),
        (trace, "As trace_id"),
        (traceparent.as_str(), "As trace_id"),
        ("%20K-1%20", "As key"),
        ("S-1", "As session_id"),
        ("U-1", "As user_id"),
    ] {
        let page = ops
            .see(&format!("/console/calls?find={pasted}"))
            .await
            .expect_ok()
            .text;
        assert!(
            page.contains(kind) && page.contains(&id),
            "{pasted}: {page}"
        );
    }
    let page = ops
        .see("/console/calls?find=nothing")
        .await
        .expect_ok()
        .text;
    assert!(page.contains("Nothing of this name"), "{page}");
    let bank = Browser::sign_in(&gateway, "bank").await;
    let page = bank
        .see(&format!("/console/calls?find={id}"))
        .await
        .expect_ok()
        .text;
    assert!(
        page.contains("Nothing of this name"),
        "another tenant's: {page}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn calls_are_filtered_by_the_address_and_paged() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&with_tokens(&one_tool(&tool, ""))).await;
    for n in 0..5 {
        let body = json!({ "args": {}, "idempotency_key": format!("key-{n}"), "session_id": format!("S{}", n % 2) });
        call(&gateway, "reads", &body).await.expect_ok();
    }
    let ops = Browser::sign_in(&gateway, "ops").await;
    let (mut keys, mut next) = (
        Vec::new(),
        Some("/console/calls?limit=2&session_id=S0".to_owned()),
    );
    while let Some(path) = next {
        let page = ops.see(&path).await.expect_ok().text;
        let found = page.split("<td class=\"less\">key-").skip(1);
        keys.extend(found.map(|rest| rest[..1].to_owned()));
        let older = page
            .split("href=\"")
            .find(|rest| rest.contains("rel=\"next\""));
        next = older
            .and_then(|rest| rest.split('"').next())
            .map(|path| path.replace("&amp;", "&"));
    }
    assert_eq!(keys, ["4", "2", "0"], "newest first, page after page");
    for query in ["state=dance", "limit=0", "since=yesterday", "colour=red"] {
        let refused = ops.see(&format!("/console/calls?{query}")).await;
        assert_eq!(refused.status, 400, "{query}");
    }
    // An empty field of the form filters nothing.
    let all = ops
        .see("/console/calls?state=&tool=&session_id=&since=")
        .await
        .expect_ok()
        .text;
    assert!(all.contains("key-0") && all.contains("key-4"), "{all}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_reconciliation_runs_now_and_shows_what_it_has_found() {
    let books = Books::open().await;
    let gateway = Gateway::start(&config(
        &books,
        "on = { missing = \"report\", orphan = \"report\" }",
        "",
    ))
    .await;
    gateway.plan(1, "missing").await;
    gateway.plan(2, "").await;
    let here = Browser::with_cookie(&gateway, "");
    let before = here
        .see("/console/reconciliation?name=books")
        .await
        .expect_ok()
        .text;
    assert!(before.contains("It has not run yet"), "{before}");
    let ran = here
        .submit("/console/reconciliation/run?name=books", &[])
        .await;
    assert_eq!(ran.status, 303, "{}", ran.text);
    until("its report is there", async || {
        let page = here.see("/console/reconciliation?name=books").await.text;
        page.contains("1 missing") && page.contains("data-state=\"done\"")
    })
    .await;
    let found = report(&gateway).await;
    let call_id = found.at("/anomalies/0/call_id");
    let needs = here.see("/console").await.expect_ok().text;
    assert!(needs.contains(call_id.as_str().expect("an id")), "{needs}");
    let id = found.at("/anomalies/0/id");
    let page = format!(
        "/console/anomaly?name=books&id={}",
        id.as_str().expect("an id")
    );
    let shown = here.see(&page).await.expect_ok().text;
    assert!(shown.contains("Anomaly: missing, reported"), "{shown}");
    let list: Value = gateway.get("/v1/audit?act=reconcile").await.at("/acts");
    assert_eq!(list.as_array().map(Vec::len), Some(2));
}
