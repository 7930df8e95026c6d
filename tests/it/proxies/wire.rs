//! What HTTP itself does to requests and answers that go through a proxy: encodings, lengths, heads.

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::mistakes::{check_said, read, token};
use crate::proxies::requests::api;
use crate::support::{Act, Answer, Gateway, Tool};

/// `{"amount":5,"to":"shop","note":"aa…"}`, as different encoders write it: the encodings and the bytes.
const ENCODED: [(&str, &str); 10] = [
    (
        "gzip",
        "1f8b0800000000000403ab564acccd2fcd2b51b232d5512ac957b2522acec82f50d251cacb2f4905f21289004ab5004adb6ce546000000",
    ),
    (
        "X-Gzip",
        "1f8b08004d00000002ffab564acccd2fcd2b51b232d5512ac957b2522acec82f50d251cacb2f4905f21289004ab5004adb6ce546000000",
    ),
    (
        "deflate",
        "7801014600b9ff7b22616d6f756e74223a352c22746f223a2273686f70222c226e6f7465223a22616161616161616161616161616161616161616161616161616161616161616161616161227d37381813",
    ),
    (
        "deflate",
        "78daab564acccd2fcd2b51b232d5512ac957b2522acec82f50d251cacb2f4905f21289004ab50037381813",
    ),
    (
        "deflate",
        "ab564acccd2fcd2b51b232d5512ac957b2522acec82f50d251cacb2f4905f21289004ab500",
    ),
    (
        "br",
        "8b22000080aaaaaaeaff74a7b35cf522b79b1c14402e2aac002a7a52503880fbd22fc52736800b70f83f62e956e3c368e19cd4c628f5c489b0f803",
    ),
    (
        "br",
        "1b4500f81d07ce697516d2d1c85f84588b84d5eccdb037bad461e983891c2845d2a283e15392537ce9eec372c88914280d",
    ),
    (
        "zstd",
        "28b52ffd204655010034027b22616d6f756e74223a352c22746f223a2273686f70222c226e6f7465223a2261227d0100418227",
    ),
    (
        "zstd",
        "28b52ffd244655010034027b22616d6f756e74223a352c22746f223a2273686f70222c226e6f7465223a2261227d01004182275fdba7e3",
    ),
    (
        "br, identity, GZIP",
        "1f8b0800000000000003013100ceff1b4500f81d07ce697516d2d1c85f84588b84d5eccdb037bad461e983891c2845d2a283e15392537ce9eec372c88914280df77bd8d031000000",
    ),
];

fn bytes(hexed: &str) -> Vec<u8> {
    hex::decode(hexed).expect("hex")
}

/// Writes with these headers and this body, with a key or without.
async fn send(
    gateway: &Gateway,
    key: Option<&str>,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Answer {
    let mut request = gateway.client.post(gateway.url("/proxy/api/v1/charges"));
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::to(request.body(body)).await
}

/// Sends these bytes on a connection of their own, and returns all that comes back.
async fn exchange(gateway: &Gateway, head: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer.to_ascii_lowercase()
}

#[tokio::test]
async fn a_body_that_is_compressed_anew_is_the_same_call() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "unkeyed = \"derive\"")).await;
    for key in [Some("k1"), None] {
        let before = tool.requests();
        for (n, (encoding, body)) in ENCODED.iter().enumerate() {
            let headers = [
                ("content-type", "application/json"),
                ("content-encoding", encoding),
            ];
            let answer = send(&gateway, key, &headers, bytes(body)).await;
            assert_eq!(answer.status, 200, "{encoding} {n}: {}", answer.text);
            let replayed = if n == 0 { "" } else { "true" };
            assert_eq!(
                answer.header("idempotent-replayed"),
                replayed,
                "{encoding} {n}"
            );
        }
        assert_eq!(tool.requests(), before + 1);
    }
    let seen = &tool.seen()[0];
    assert_eq!(seen.header("content-encoding"), "gzip");
    assert_eq!(seen.bytes, bytes(ENCODED[0].1), "the API gets what came");
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_that_cannot_be_decoded_is_compared_as_it_is() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "unkeyed = \"derive\"")).await;
    let mut cut = bytes(ENCODED[0].1);
    cut.pop();
    let mut longer = bytes(ENCODED[0].1);
    longer.push(0);
    let all = [
        ("gzip", bytes(ENCODED[0].1)),
        ("gzip", cut),
        ("gzip", longer),
        ("gzip", b"plain".to_vec()),
        ("br", b"plain".to_vec()),
        ("zstd", b"plain".to_vec()),
        ("unheard-of", bytes(ENCODED[1].1)),
    ];
    for (n, (encoding, body)) in all.iter().enumerate() {
        for replayed in ["", "true"] {
            let url = gateway.url("/proxy/api/x");
            let request = gateway.client.post(url).body(body.clone());
            let answer = Answer::to(request.header("content-encoding", *encoding)).await;
            let is_other_spelling = encoding != &"gzip" && body == b"plain";
            let replayed = if is_other_spelling { "true" } else { replayed };
            assert_eq!(answer.header("idempotent-replayed"), replayed, "{n}");
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_boundary_of_a_multipart_body_never_counts_however_it_is_written() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "unkeyed = \"derive\"")).await;
    for key in [Some("k1"), None] {
        let before = tool.requests();
        for (n, (kind, boundary)) in [
            ("multipart/form-data; boundary=one", "one"),
            ("Multipart/Form-Data; boundary=two", "two"),
            ("multipart/form-data; Boundary=three", "three"),
            ("multipart/form-data; boundary = four", "four"),
            (
                "multipart/form-data;charset=utf-8;BOUNDARY = \"fi ve\"",
                "fi ve",
            ),
            ("multipart/form-data; boundary=\"s\\ix\"", "six"),
            (
                "multipart/form-data; x=\"; boundary=no\"; boundary=seven",
                "seven",
            ),
        ]
        .iter()
        .enumerate()
        {
            let body = format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{boundary}--\r\n"
            );
            let answer = send(&gateway, key, &[("content-type", kind)], body.into()).await;
            assert_eq!(answer.status, 200, "{kind}: {}", answer.text);
            let replayed = if n == 0 { "" } else { "true" };
            assert_eq!(answer.header("idempotent-replayed"), replayed, "{kind}");
        }
        assert_eq!(tool.requests(), before + 1);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn cookies_on_several_lines_reach_the_api_as_one_and_are_one_credential() {
    let tool = Tool::start().await;
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest("agent"));
    let tokens = format!(
        "[[auth.tokens]]\nname = \"agent\"\ntenant = \"a\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    );
    let passing = api(&tool, "pass_authorization = true");
    let gateway = Gateway::start(&format!("{tokens}{passing}")).await;
    let own = ("oncegate-token", "Bearer agent");
    let split = [own, ("cookie", "a=1"), ("cookie", "b=2")];
    let joined = [own, ("cookie", "a=1; b=2")];
    let first = send(&gateway, Some("k1"), &split, b"{}".to_vec()).await;
    assert_eq!(first.status, 200, "{}", first.text);
    assert_eq!(tool.seen()[0].header("cookie"), "a=1; b=2");
    let again = send(&gateway, Some("k1"), &joined, b"{}".to_vec()).await;
    assert_eq!(
        (again.status, again.header("idempotent-replayed")),
        (200, "true"),
        "{}",
        again.text
    );
    // As HTTP/2 clients send them.
    let stream = TcpStream::connect(gateway.address).await;
    let stream = TokioIo::new(stream.expect("a connection"));
    let begun = http2::handshake(TokioExecutor::new(), stream).await;
    let (mut client, connection) = begun.expect("HTTP/2");
    let driven = tokio::spawn(connection);
    let crumbs = hyper::Request::post(gateway.url("/proxy/api/v1/charges"))
        .header("oncegate-token", "Bearer agent")
        .header("idempotency-key", "k2")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body("{}".to_owned());
    let answer = client.send_request(crumbs.expect("a request")).await;
    assert_eq!(answer.expect("an answer").status(), 200);
    assert_eq!(tool.seen()[1].header("cookie"), "a=1; b=2");
    let again = send(&gateway, Some("k2"), &joined, b"{}".to_vec()).await;
    assert_eq!(
        again.header("idempotent-replayed"),
        "true",
        "{}",
        again.text
    );
    driven.abort();
    gateway.stop().await;
}

#[tokio::test]
async fn an_empty_post_that_passes_keeps_its_length_of_zero() {
    let tool = Tool::start().await;
    let rules = "unkeyed = \"pass\"\n[[proxies.api.rules]]\npath = \"/search\"\nas = \"read\"\n";
    let reading = format!(
        "[tools.find]\nurl = \"http://127.0.0.1:{}/find\"\neffect = \"read\"\nbody = \"none\"\nquery = {{ q = \"/q\" }}\ninput_schema = {{ type = \"object\", properties = {{ q = {{ type = \"string\" }} }} }}\n",
        tool.port
    );
    let gateway = Gateway::start(&format!("{}{reading}", api(&tool, rules))).await;
    for method in [Method::POST, Method::PUT, Method::PATCH] {
        for path in ["/search", "/other"] {
            let url = gateway.url(&format!("/proxy/api{path}"));
            let answer = Answer::to(gateway.client.request(method.clone(), url)).await;
            assert_eq!(answer.status, 200);
            let seen = tool.seen().pop().expect("a request");
            assert_eq!(seen.header("content-length"), "0", "{method} {path}");
        }
    }
    let get = gateway.client.get(gateway.url("/proxy/api/search"));
    assert_eq!(Answer::to(get).await.status, 200);
    let seen = tool.seen().pop().expect("a request");
    assert_eq!(seen.header("content-length"), "");
    let found = gateway
        .post("find", &json!({ "args": { "q": "x" } }), &[])
        .await;
    assert_eq!(found.status, 200, "{}", found.text);
    let seen = tool.seen().pop().expect("a request");
    assert_eq!(seen.line, "POST /find?q=x HTTP/1.1");
    assert_eq!(seen.header("content-length"), "0", "a tool that only reads");
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_without_a_body_gets_no_length_that_the_api_did_not_say() {
    let tool = Tool::start().await;
    let rules = "[[proxies.api.rules]]\nmethods = [\"GET\"]\npath = \"/fire\"\nas = \"write\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    // The tool closes the connection after such an answer. The next request must not be sent on it.
    let chunked: &[u8] =
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let sized: &[u8] = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 77\r\n\r\n";
    let unchanged: &[u8] = b"HTTP/1.1 304 Not Modified\r\nconnection: close\r\netag: \"a\"\r\n\r\n";
    for (method, path, answer, length) in [
        ("HEAD", "/x", chunked, None),
        ("HEAD", "/x", sized, Some("77")),
        ("GET", "/x", unchanged, None),
        ("HEAD", "/fire", chunked, None),
    ] {
        tool.then(Act::ExecuteThenSay(answer));
        let head = format!(
            "{method} /proxy/api{path} HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\nconnection: close\r\n\r\n"
        );
        let said = exchange(&gateway, &head).await;
        let status = String::from_utf8_lossy(&answer[..12]).to_ascii_lowercase();
        assert!(said.starts_with(&status), "{method} {path}: {said}");
        let found = said
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        assert_eq!(found, length, "{method} {path}: {said}");
    }
    gateway.stop().await;
}

/// The head and body of an answer with so many headers.
fn with_headers(many: usize) -> &'static [u8] {
    let lines: String = (0..many).map(|n| format!("x-h-{n}: {n}\r\n")).collect();
    let answer =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n{lines}\r\nok");
    answer.into_bytes().leak()
}

#[tokio::test]
async fn an_answer_with_hundreds_of_headers_is_an_answer() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&api(&tool, "")).await;
    for body in ["{}", ""] {
        tool.then(Act::ExecuteThenSay(with_headers(700)));
        for replayed in ["", "true"] {
            let head = format!("idempotency-key: k{}\r\n", body.len());
            let answer = raw(&gateway, "POST /proxy/api/v1/charges", &head, body).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.contains("\r\nx-h-699: 699\r\n"), "{answer}");
            let is_replayed = answer.contains("\r\nidempotent-replayed: true\r\n");
            assert_eq!(is_replayed, !replayed.is_empty(), "{answer}");
        }
    }
    tool.then(Act::ExecuteThenSay(with_headers(700)));
    let read = raw(&gateway, "GET /proxy/api/x", "", "").await;
    assert!(read.starts_with("HTTP/1.1 200 "), "{read}");
    assert!(read.contains("\r\nx-h-699: 699\r\n"), "{read}");
    gateway.stop().await;
}

/// The head of an answer, as it came: the HTTP client of the tests takes a hundred headers at most.
async fn raw(gateway: &Gateway, line: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("connected");
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n{head}\r\n{body}",
        gateway.address
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("read");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn an_unsolicited_101_is_not_passed_on() {
    let tool = Tool::start().await;
    let rules = "[[proxies.api.rules]]\npath = \"/open\"\nas = \"write\"\nunkeyed = \"pass\"\n";
    let gateway = Gateway::start(&api(&tool, rules)).await;
    let switch: &[u8] =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n";
    tool.always(Act::ExecuteThenSay(switch));
    let read = gateway.get("/proxy/api/x").await;
    read.expect_problem("tool-unavailable");
    let open = gateway.client.post(gateway.url("/proxy/api/open"));
    let open = Answer::to(open.body("{}")).await;
    let open = open.expect_problem("not-answered");
    assert_eq!(open.at("/effect"), "unknown");
    let write = send(&gateway, Some("k"), &[], b"{}".to_vec()).await;
    write.expect_problem("outcome-unknown");
    gateway.stop().await;
}

#[tokio::test]
async fn a_location_of_the_api_leads_back_through_the_proxy() {
    let tool = Tool::start().await;
    let port = tool.port;
    let kept = format!(
        "[proxies.as_is]\nupstream = \"http://127.0.0.1:{port}/base\"\nlocations = \"keep\"\n"
    );
    let gateway = Gateway::start(&format!("{}{kept}", api(&tool, ""))).await;
    let absolute = format!("http://127.0.0.1:{port}");
    for (said, back) in [
        (
            "/base/v1/charges/7?a=1#b".to_owned(),
            "/proxy/api/v1/charges/7?a=1#b",
        ),
        (format!("{absolute}/base/v1/x"), "/proxy/api/v1/x"),
        (format!("//127.0.0.1:{port}/base/v1/x"), "/proxy/api/v1/x"),
        (format!("{absolute}/base"), "/proxy/api/"),
        ("7".to_owned(), "/proxy/api/v1/7"),
        ("?page=2".to_owned(), "/proxy/api/v1/charges?page=2"),
        ("../y".to_owned(), "/proxy/api/y"),
        (
            "https://elsewhere.example/base/x".to_owned(),
            "https://elsewhere.example/base/x",
        ),
        // Outside of the proxy's part of the API, and never a path of the gateway itself.
        ("/baseline".to_owned(), &format!("{absolute}/baseline")),
        ("/console".to_owned(), &format!("{absolute}/console")),
    ] {
        let line: &'static str = format!("location: {said}\r\n").leak();
        tool.then(Act::Answer(201, line, b"{}"))
            .then(Act::Answer(201, line, b"{}"))
            .then(Act::Answer(302, line, b""));
        for _ in 0..2 {
            let answer = send(&gateway, Some(&said), &[], b"{}".to_vec()).await;
            assert_eq!(answer.header("location"), back, "{said}");
        }
        let url = gateway.url("/proxy/as_is/v1/charges");
        let as_is = gateway.client.post(url).header("idempotency-key", &said);
        assert_eq!(Answer::to(as_is).await.header("location"), said);
        let read = gateway.get("/proxy/api/v1/charges").await;
        assert_eq!((read.status, read.header("location")), (302, back));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_stored_gzip_answer_is_decoded_for_a_client_that_refuses_gzip() {
    let tool = Tool::start().await;
    let gzip: &'static [u8] = bytes(ENCODED[0].1).leak();
    let head = "content-type: application/json\r\ncontent-encoding: gzip\r\netag: \"a\"\r\n";
    tool.then(Act::Answer(200, head, gzip));
    let gateway = Gateway::start(&api(&tool, "")).await;
    for (accept, is_decoded) in [
        (Some("gzip"), false),
        (None, false),
        (Some("br;q=1.0, *;q=0.1"), false),
        (Some("x-gzip"), false),
        (Some("identity"), true),
        (Some("gzip;q=0"), true),
        (Some("br, deflate"), true),
        (Some(""), true),
        (Some("gzip;q=0, identity;q=0"), false),
    ] {
        let url = gateway.url("/proxy/api/x");
        let mut request = gateway.client.post(url).header("idempotency-key", "k");
        if let Some(accept) = accept {
            request = request.header("accept-encoding", accept);
        }
        let answer = request.send().await.expect("an answer");
        let has_encoding = answer.headers().contains_key("content-encoding");
        assert_eq!(has_encoding, !is_decoded, "{accept:?}");
        let etag = if is_decoded { "W/\"a\"" } else { "\"a\"" };
        assert_eq!(answer.headers()["etag"], etag, "{accept:?}");
        let body = answer.bytes().await.expect("a body");
        match is_decoded {
            true => assert!(body.starts_with(b"{\"amount\":5,"), "{accept:?}"),
            false => assert_eq!(body, gzip, "{accept:?}"),
        }
    }
    assert_eq!(tool.requests(), 1);
    for (n, (encoding, body)) in ENCODED.iter().enumerate() {
        let head: &'static str = format!("content-encoding: {encoding}\r\n").leak();
        tool.then(Act::Answer(200, head, bytes(body).leak()));
        for accept in [*encoding, "identity"] {
            let key = format!("of-{n}");
            let headers = [("accept-encoding", accept)];
            let answer = send(&gateway, Some(&key), &headers, b"{}".to_vec()).await;
            let is_decoded = answer.text.starts_with("{\"amount\":5,");
            assert_eq!(is_decoded, accept == "identity", "{encoding} {n}");
        }
    }
    gateway.stop().await;
}

#[test]
fn a_key_header_that_callers_sign_is_refused_with_its_reason() {
    let config = |header: &str, more: &str| {
        format!(
            "[store]\nurl = \"sqlite:x.db\"\n{}[proxies.api]\nupstream = \"http://127.0.0.1:9/\"\nkey_header = \"{header}\"\n{more}\n",
            token("a", '1', "")
        )
    };
    for header in [
        "X-Amz-Date",
        "x-goog-request-id",
        "X-Ms-Client-Request-Id",
        "Content-MD5",
        "Date",
        "Amz-Sdk-Invocation-Id",
    ] {
        let refused = read(&config(header, "pass_authorization = true"), &[]);
        check_said(&refused.expect_err(header), "callers sign this header");
    }
    for header in ["X-Idempotency", "Idempotency-Key", "PayPal-Request-Id"] {
        let said = read(&config(header, "pass_authorization = true"), &[]);
        assert!(said.is_ok(), "{header}: {said:?}");
    }
    assert!(read(&config("X-Ms-Client-Request-Id", ""), &[]).is_ok());
}
