use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oncegate::core::outcome::{Body, Evidence};
use oncegate::core::record::CallId;
use oncegate::downstream::{Deadline, Downstream, Endpoint, Exchange, Party, Request};
use reqwest::header::HeaderMap;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

use crate::support::binary::{Process, free_port};
use crate::support::{Act, Answer, Gateway, Tool, client};

fn endpoint(url: &str, reuse_ms: Option<u64>) -> Endpoint {
    let reuse = reuse_ms.map(Duration::from_millis);
    Endpoint::new(url.parse().expect("a URL"), HeaderMap::new(), reuse)
}

fn dispatch(endpoint: &Endpoint, send_before: Instant) -> Exchange {
    dispatch_body(endpoint, "{}", send_before)
}

fn dispatch_body(endpoint: &Endpoint, body: &'static str, send_before: Instant) -> Exchange {
    drop(client());
    let downstream = Downstream::new([endpoint], 1 << 20).expect("a client");
    downstream.dispatch(endpoint, request_with("t", body, send_before))
}

fn request_of(tenant: &str, send_before: Instant) -> Request {
    request_with(tenant, "{}", send_before)
}

fn request_with(tenant: &str, body: &'static str, send_before: Instant) -> Request {
    let send_before = Deadline::after(send_before.saturating_duration_since(Instant::now()));
    let (party, call_id) = (Party::tool(tenant, "act"), CallId(Uuid::new_v4()));
    Request {
        party,
        call_id,
        headers: HeaderMap::new(),
        body: body.into(),
        is_write: true,
        is_sent_again: false,
        takes_task: false,
        client: Default::default(),
        send_before,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Accepts connections and counts the bytes that come in, answering nothing.
async fn listener_that_counts() -> (String, tokio::sync::mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (count, counted) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = Vec::new();
            // A reset is an end, too.
            drop(stream.read_to_end(&mut bytes).await);
            count.send(bytes.len()).expect("somebody counts");
        }
    });
    (url, counted)
}

#[tokio::test]
async fn after_the_deadline_not_one_byte_leaves() {
    for body in ["{}", ""] {
        let (url, mut counted) = listener_that_counts().await;
        let mut exchange = dispatch_body(&endpoint(&url, None), body, Instant::now());
        let evidence = exchange.until(soon(), soon()).await.expect("an end");
        assert!(matches!(evidence, Evidence::NotSent { .. }), "{evidence:?}");
        assert_eq!(
            counted.recv().await,
            Some(0),
            "a connection was made, and nothing sent over it"
        );
    }
}

#[tokio::test]
async fn a_withdrawn_request_is_never_sent() {
    for body in ["{}", ""] {
        withdraw(body).await;
    }
}

async fn withdraw(body: &'static str) {
    // A listener whose queue is full keeps the client connecting.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a port");
    let listener = socket.listen(1).expect("a queue of one");
    let address = listener.local_addr().expect("an address");
    let mut fill = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(
        Duration::from_millis(100),
        tokio::net::TcpStream::connect(address),
    )
    .await
    {
        fill.push(stream);
    }
    let endpoint = endpoint(&format!("http://{address}/"), None);
    let mut exchange = dispatch_body(&endpoint, body, soon());
    let silent = exchange
        .until(Instant::now() + Duration::from_millis(50), soon())
        .await;
    assert_eq!(silent, None);
    assert!(matches!(
        exchange.give_up("enough"),
        Evidence::NotSent { .. }
    ));
    // Now there is room, and the connection comes about; but the gate is shut.
    let counting = tokio::spawn(async move {
        let mut bytes = 0;
        while let Ok(Ok((mut stream, _))) =
            tokio::time::timeout(Duration::from_secs(2), listener.accept()).await
        {
            drop(fill.pop());
            let mut all = Vec::new();
            drop(
                tokio::time::timeout(Duration::from_millis(200), stream.read_to_end(&mut all))
                    .await,
            );
            bytes += all.len();
        }
        bytes
    });
    let evidence = exchange
        .until(Instant::now() + Duration::from_secs(4), soon())
        .await;
    assert!(
        matches!(evidence, Some(Evidence::NotSent { .. }) | None),
        "{evidence:?}"
    );
    assert_eq!(counting.await.expect("counted"), 0);
}

#[tokio::test]
async fn once_sent_it_cannot_be_withdrawn() {
    for body in ["{}", ""] {
        let (url, _counted) = listener_that_counts().await;
        let mut exchange = dispatch_body(&endpoint(&url, None), body, soon());
        assert_eq!(
            exchange
                .until(Instant::now() + Duration::from_millis(200), soon())
                .await,
            None
        );
        assert!(matches!(
            exchange.give_up("enough"),
            Evidence::NoAnswer { .. }
        ));
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (tool, elsewhere) = (Tool::start().await, Tool::start().await);
    for status in [301, 302, 303, 307, 308] {
        let location: &'static str = format!("location: {}\r\n", elsewhere.url()).leak();
        tool.then(Act::Answer(status, location, b"{}"));
        let evidence = dispatch(&endpoint(&tool.url(), None), soon())
            .until(soon(), soon())
            .await;
        assert!(
            matches!(evidence, Some(Evidence::Answer { status: got, .. }) if got == status),
            "{evidence:?}"
        );
    }
    assert_eq!((tool.requests(), elsewhere.requests()), (5, 0));
}

#[tokio::test]
async fn a_connection_that_was_idle_too_long_carries_nothing() {
    let tool = Tool::start().await;
    for (reuse, expected) in [(Some(60_000), 1), (Some(20), 3), (None, 3)] {
        let before = tool.connections();
        let endpoint = endpoint(&tool.url(), reuse);
        drop(client());
        let downstream = Downstream::new([&endpoint], 1 << 20).expect("a client");
        for _ in 0..3 {
            let evidence = downstream
                .dispatch(&endpoint, request_of("t", soon()))
                .until(soon(), soon())
                .await;
            let whole = Evidence::Answer {
                status: 200,
                body: Body::Whole("{\"ok\":true}".into()),
                retry_after: None,
                newest_token: None,
            };
            assert_eq!(evidence, Some(whole));
            sleep(Duration::from_millis(60)).await;
        }
        assert_eq!(tool.connections() - before, expected, "reuse {reuse:?}");
    }
}

#[tokio::test]
async fn a_pooled_connection_that_the_tool_closed_is_never_a_second_request() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "connection_reuse = \"60s\"").await;
    // Answers, and closes right behind: the next request may meet the closing.
    tool.always(Act::ExecuteThenSay(
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ));
    for n in 0..300 {
        let answer = gateway.call(json!({ "n": n })).await;
        assert!(
            matches!(answer.problem().as_str(), "" | "outcome-unknown"),
            "{}",
            answer.text
        );
    }
    assert!(tool.effects_by_key().values().all(|effects| *effects == 1));
    gateway.stop().await;
}

#[tokio::test]
async fn the_tool_gets_its_own_credentials_and_none_of_the_callers() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(
        &tool,
        "method = \"PUT\"\nheaders = { Authorization = \"Bearer the-tools\" }",
    )
    .await;
    let headers = [
        ("authorization", "Bearer the-callers"),
        ("cookie", "session=1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-call-id", "forged"),
        ("fencing-token", "1"),
        ("idempotency-key", "the-callers-key"),
    ];
    gateway
        .post("act", &json!({ "args": { "a": 1 } }), &headers)
        .await
        .expect_ok();
    let seen = &tool.seen()[0];
    assert!(seen.line.starts_with("PUT /do "), "{}", seen.line);
    assert_eq!(seen.header("authorization"), "Bearer the-tools");
    assert_eq!(seen.header("content-type"), "application/json");
    assert_ne!(seen.header("x-call-id"), "forged");
    assert_ne!(seen.header("fencing-token"), "1");
    assert_ne!(seen.header("idempotency-key"), "the-callers-key");
    for name in ["cookie", "x-forwarded-for", "x-session-id"] {
        assert_eq!(seen.header(name), "", "{name}");
    }
    gateway.stop().await;
}

/// A tool over TLS with a certificate of its own, which is written to this file. Answers once per connection.
async fn tool_over_tls(certificate: &Path) -> u16 {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    std::fs::write(certificate, made.cert.pem()).expect("a file");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let server = server.expect("versions").with_no_client_auth();
    let server = server
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a server");
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust us breaks off in the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut request = vec![0; 4096];
            if stream
                .read(&mut request)
                .await
                .is_ok_and(|length| length > 0)
            {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                drop(stream.write_all(answer).await);
                drop(stream.shutdown().await);
            }
        }
    });
    port
}

#[tokio::test]
async fn a_tool_over_tls_is_called_if_its_certificate_is_trusted_and_else_surely_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = folder.path().join("tool.pem");
    let port = tool_over_tls(&certificate).await;
    let url = format!("https://localhost:{port}/do");
    for (trusted, expected) in [(true, ""), (false, "tool-unreachable")] {
        let config = format!("[tools.act]\nurl = \"{url}\"\nretry = {{ attempts = 1 }}\n");
        let roots = certificate.to_str().expect("a path");
        let environment = if trusted {
            vec![("SSL_CERT_FILE", roots)]
        } else {
            Vec::new()
        };
        let gateway = Process::start_in(folder.path(), free_port(), &config, &environment).await;
        let body = json!({ "args": { "trusted": trusted } }).to_string();
        let answer = client()
            .post(gateway.url("/v1/tools/act/calls"))
            .body(body)
            .send()
            .await
            .expect("an answer");
        let answer = Answer::read(answer).await;
        assert_eq!(answer.problem(), expected, "{}", answer.text);
        gateway.kill();
    }
}
