//! Connections that speak too slowly, too much or not at all block no others.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::{OPS_TOKEN, count_where, one_tool};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

const HEAD: &str = "POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\n";

/// A gateway with one tool and these bounds of its server.
async fn bounded(tool: &Tool, server: &str) -> Gateway {
    Gateway::start(&format!("[server]\n{server}\n{}", one_tool(tool, ""))).await
}

/// What is answered to these bytes until the connection ends.
async fn say(gateway: &Gateway, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    // It may be closed before everything is written.
    drop(stream.write_all(bytes).await);
    heard(&mut stream).await
}

async fn heard(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends it, too.
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8(answer).expect("text")
}

/// One byte after the other, until the other side has enough; answers what it said.
async fn drip(gateway: &Gateway, begin: &str) -> (String, Duration) {
    let began = Instant::now();
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    stream.write_all(begin.as_bytes()).await.expect("written");
    let (mut reading, mut writing) = stream.into_split();
    let dripping = async {
        while writing.write_all(b"a").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        read = reading.read_to_end(&mut answer) => drop(read),
        () = dripping => {}
        () = sleep(Duration::from_secs(20)) => panic!("it is never given up"),
    }
    (String::from_utf8(answer).expect("text"), began.elapsed())
}

/// A connection that begins with HTTP/2, and how it ends.
async fn http_2(gateway: &Gateway) -> (http2::SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(gateway.address).await;
    let stream = TokioIo::new(stream.expect("a connection"));
    let begun = http2::handshake(TokioExecutor::new(), stream).await;
    let (sender, connection) = begun.expect("HTTP/2");
    (sender, tokio::spawn(connection))
}

#[tokio::test]
async fn http_2_is_spoken_by_who_begins_with_it_and_told_to_go_when_the_gateway_stops() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = bounded(&tool, "").await;
    let (mut sender, connection) = http_2(&gateway).await;
    let call = |n: u32| {
        let request = axum::http::Request::post(gateway.url("/v1/tools/act/calls"));
        request
            .body(Body::from(json!({ "args": { "n": n } }).to_string()))
            .expect("a request")
    };
    let running = sender.send_request(call(1));
    until("the tool was asked", async || tool.requests() == 1).await;
    gateway.begin_stop();
    drop(hold);
    let answer = running.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let body = answer
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    assert!(body.starts_with(b"{\"call_id\""), "{body:?}");
    connection.await.expect("no panic").expect("a good end");
    assert!(sender.ready().await.is_err(), "it takes no more requests");
    gateway.stop().await;
}

#[tokio::test]
async fn a_head_that_drips_in_is_given_up() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "header_timeout = \"300ms\"").await;
    for begin in ["", "POST", HEAD, "PRI * HTTP/2.0"] {
        let (answer, took) = drip(&gateway, begin).await;
        assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
        assert!(took < Duration::from_secs(5), "{begin}: {took:?}");
    }
    // Nor is there anything to wait for where nothing comes at all, or no TLS.
    assert_eq!(say(&gateway, b"").await, "");
    assert_eq!(count_where(&gateway.database(), "calls"), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_a_while_and_one_with_a_slow_call_is_not() {
    let tool = Tool::start().await;
    tool.then(Act::after_ms(700, Act::Numbered));
    let gateway = bounded(
        &tool,
        "idle_timeout = \"300ms\"\nheader_timeout = \"300ms\"",
    )
    .await;
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let body = "{\"args\":{\"n\":1}}";
    let call = format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len());
    let began = Instant::now();
    stream.write_all(call.as_bytes()).await.expect("written");
    let answer = heard(&mut stream).await;
    let took = began.elapsed();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with('}'),
        "{answer}"
    );
    assert!(
        took >= Duration::from_millis(1_000),
        "the call, and then the silence: {took:?}"
    );
    gateway.stop().await;
}

/// How many connections the gateway counts, this question's own with them.
async fn open(gateway: &Gateway) -> f64 {
    gateway.metric("oncegate_connections").await
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
    let tool = Tool::start().await;
    let server = "idle_timeout = \"2s\"\nmax_body = \"4MiB\"";
    let gateway = bounded(&tool, server).await;
    // More than the operating systems keep of an answer that is not read.
    for n in 0..8 {
        gateway
            .call(json!({ "n": n, "much": "a".repeat(3 << 20) }))
            .await
            .expect_ok();
    }
    let before = open(&gateway).await;
    let mut http_1 = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let export =
        "GET /v1/calls HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n";
    http_1.write_all(export.as_bytes()).await.expect("written");

    let stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let shake = builder
        .initial_stream_window_size(16)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = shake.await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let request = axum::http::Request::get(gateway.url("/openapi.json"));
    let unread = sender
        .send_request(request.body(Body::empty()).expect("a request"))
        .await
        .expect("a head");
    assert_eq!(unread.status().as_u16(), 200);

    until("both are closed", async || open(&gateway).await <= before).await;
    drop((http_1, unread));
    connection.abort();

    // Who reads slowly, but reads, gets all of it, whether it is made piece by piece or at once.
    let page = "GET /v1/calls HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for (door, at_once, all) in [(export, 1 << 20, 24 << 20), (page, 32 << 10, 8 << 20)] {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(64 << 10).expect("a small one");
        let mut slow = socket.connect(gateway.address).await.expect("a connection");
        let asked = door.replace("host:", "connection: close\r\nhost:");
        slow.write_all(asked.as_bytes()).await.expect("written");
        let (mut bytes, mut some, began) = (0, vec![0; at_once], Instant::now());
        loop {
            match slow.read(&mut some).await.expect("it is not cut off") {
                0 => break,
                read => bytes += read,
            }
            sleep(Duration::from_millis(30)).await;
        }
        assert!(
            bytes > all && began.elapsed() > Duration::from_secs(4),
            "{bytes} in {:?}",
            began.elapsed()
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_that_drips_in_is_refused_and_nothing_is_claimed() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "body_timeout = \"300ms\"").await;
    for length in ["content-length: 100000", "transfer-encoding: chunked"] {
        let (answer, took) = drip(&gateway, &format!("{HEAD}{length}\r\n\r\n")).await;
        if length.starts_with("content") {
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(
                answer.contains("/problems/request-timeout")
                    && answer.contains("\"effect\":\"none\"")
            );
        }
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    gateway.call(json!({ "n": 1 })).await.expect_ok();
    assert_eq!(
        (count_where(&gateway.database(), "calls"), tool.requests()),
        (1, 1)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_head_with_too_many_lines_or_bytes_is_refused() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "").await;
    let lines: String = (0..10_000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "a".repeat(100_000));
    for head in [&lines, &long, &lines[..2_000]] {
        let answer = say(&gateway, format!("{HEAD}{head}\r\n").as_bytes()).await;
        // Who goes on to write may lose the answer to a reset.
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
    }
    let few = say(
        &gateway,
        format!("{HEAD}{}\r\n", &lines[..2_000]).as_bytes(),
    )
    .await;
    assert!(
        few.starts_with("HTTP/1.1 431 "),
        "what was read to its end is answered: {few}"
    );

    let (mut sender, connection) = http_2(&gateway).await;
    let mut request = axum::http::Request::post(gateway.url("/v1/tools/act/calls"));
    for n in 0..10_000 {
        request = request.header(format!("x-{n}"), "1");
    }
    let answer = sender
        .send_request(request.body(Body::empty()).expect("a request"))
        .await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status() == 431));
    connection.abort();
    gateway.call(json!({ "n": 1 })).await.expect_ok();
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_that_will_stop_is_not_ready_first_and_takes_calls_as_before() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "drain_delay = \"2s\"").await;
    assert_eq!(
        gateway
            .call(json!({ "n": 1 }))
            .await
            .expect_ok()
            .header("connection"),
        ""
    );
    let began = Instant::now();
    gateway.begin_stop();
    until("it is not ready", async || {
        gateway.get("/readyz").await.status == 503
    })
    .await;
    assert!(gateway.reasons().await.contains("shutting down"));
    // Its clients are sent away with the answer, so that none is cut off later.
    let answer = gateway.call(json!({ "n": 2 })).await.expect_ok();
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "the test is too slow to say anything"
    );
    assert_eq!(answer.header("connection"), "close");
    until("nothing is taken", async || {
        TcpStream::connect(gateway.address).await.is_err()
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    gateway.stop().await;
}

#[tokio::test]
async fn beyond_the_bound_a_connection_is_told_so_but_shows_how_the_gateway_is() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "max_connections = 2").await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held.clone()).then(held);
    let mut first = Vec::new();
    for n in 10..12 {
        let mut stream = TcpStream::connect(gateway.address)
            .await
            .expect("a connection");
        let body = format!("{{\"args\":{{\"n\":{n}}}}}");
        let call = format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(call.as_bytes()).await.expect("written");
        first.push(stream);
    }
    until("both are under way", async || tool.requests() == 2).await;
    let body = "{\"args\":{\"n\":1}}";
    let call = format!("{HEAD}content-length: {}\r\n\r\n{body}", body.len());
    let answer = say(&gateway, call.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    assert!(
        answer.contains("connection: close") && answer.contains("/problems/rate-limited"),
        "{answer}"
    );
    assert!(
        answer.contains("\"effect\":\"unknown\"") && answer.contains("retry-after: 1"),
        "{answer}"
    );
    for door in ["/healthz", "/readyz", "/metrics"] {
        let head = format!(
            "GET {door} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPS_TOKEN}\r\n\r\n"
        );
        let answer = say(&gateway, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(tool.requests(), 2);
    drop((hold, first));
    until("there is a place again", async || {
        let call = call.replace("host: localhost", "host: localhost\r\nconnection: close");
        say(&gateway, call.as_bytes())
            .await
            .starts_with("HTTP/1.1 200 ")
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn silent_connections_give_way_to_those_that_speak() {
    let tool = Tool::start().await;
    let gateway = bounded(&tool, "max_connections = 4").await;
    let mut silent = Vec::new();
    // Every place that there is, and some that wait for one.
    for _ in 0..100 {
        silent.push(
            TcpStream::connect(gateway.address)
                .await
                .expect("a connection"),
        );
    }
    for n in 0..8 {
        let body = format!("{{\"args\":{{\"n\":{n}}}}}");
        let call = format!(
            "{HEAD}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        until("it is answered", async || {
            say(&gateway, call.as_bytes())
                .await
                .starts_with("HTTP/1.1 200 ")
        })
        .await;
    }
    assert_eq!(tool.effects(), 8);
    gateway.stop().await;
}

/// As few files as a process may have on a small machine, and more silent connections than that.
#[tokio::test]
async fn with_few_file_descriptors_those_who_speak_are_answered() {
    let tool = Tool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let long = [
        ("ONCEGATE_SERVER__HEADER_TIMEOUT", "10m"),
        ("ONCEGATE_SERVER__IDLE_TIMEOUT", "10m"),
    ];
    let config = one_tool(&tool, "");
    let process = Process::start_with_files(folder.path(), free_port(), &config, 256, &long).await;
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(
            TcpStream::connect(("127.0.0.1", process.port))
                .await
                .expect("a connection"),
        );
    }
    for n in 0..20 {
        let request = client()
            .post(process.url("/v1/tools/act/calls"))
            .timeout(Duration::from_secs(60));
        let request = request.body(json!({ "args": { "n": n } }).to_string());
        let answer = Answer::to(request).await;
        // Until silent connections have been so for long enough a call may be told to come back.
        if answer.problem() == "rate-limited" {
            sleep(Duration::from_millis(100)).await;
        } else {
            answer.expect_ok();
        }
    }
    assert!(tool.effects() >= 5, "{}", tool.effects());
    let log = std::fs::read_to_string(log(folder.path())).expect("a log");
    assert!(
        !log.contains("a connection cannot be accepted"),
        "it has run out of files"
    );
}
