use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use oncegate::core::ledger::STATES;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::binary::{Process, free_port, log};
use crate::support::gateway::{count, count_where, one_tool};
use crate::support::{Act, Answer, Gateway, Tool, client, until};

#[tokio::test]
async fn a_gateway_that_stops_finishes_what_runs_and_takes_nothing_new() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let gateway = Gateway::with_tool(&tool, "").await;
    let mut begun = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let head = b"POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\ncontent-length: 16\r\nconnection: close\r\n";
    begun.write_all(head).await.expect("written");
    let running = gateway.call(json!({ "n": 1 }));
    let stopping = async {
        until("the tool was asked", async || tool.requests() == 1).await;
        gateway.begin_stop();
        // A request that was begun before is told; a new connection is refused.
        begun
            .write_all(b"\r\n{\"args\":{\"n\":2}}")
            .await
            .expect("written");
        let mut answer = String::new();
        begun.read_to_string(&mut answer).await.expect("an answer");
        drop(hold);
        answer
    };
    let (answer, refused) = tokio::join!(running, stopping);
    answer.expect_ok();
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("/problems/shutting-down"),
        "{refused}"
    );
    assert!(
        refused.contains("\"effect\":\"unknown\""),
        "no one has looked whether it ran before: {refused}"
    );
    assert_eq!(tool.requests(), 1);
    gateway.stop().await;
}

/// A gateway that stops, takes no connection any more, and would wait for long.
async fn stopping(
    folder: &std::path::Path,
    tool: &Tool,
    before: impl AsyncFnOnce(&Process),
) -> Process {
    let patient = [("ONCEGATE_SERVER__SHUTDOWN_GRACE", "60s")];
    let gateway = Process::start_in(folder, free_port(), &one_tool(tool, ""), &patient).await;
    before(&gateway).await;
    gateway.signal("TERM");
    let refused = async || {
        TcpStream::connect(("127.0.0.1", gateway.port))
            .await
            .is_err()
    };
    until("new connections are refused", refused).await;
    gateway
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn connect(gateway: &Process) -> TcpStream {
    TcpStream::connect(("127.0.0.1", gateway.port))
        .await
        .expect("a connection")
}

/// Or a request that is sent just then would get no answer.
#[tokio::test]
async fn an_open_connection_has_one_more_request_when_the_gateway_stops() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let mut open = Vec::new();
    let gateway = stopping(folder.path(), &tool, async |gateway| {
        // One that was of use, and one that was only made.
        let mut used = connect(gateway).await;
        used.write_all(HEALTH).await.expect("written");
        let mut answer = [0; 12];
        used.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
        open.extend([used, connect(gateway).await]);
    })
    .await;
    let began = Instant::now();
    for mut stream in open {
        let call = b"POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\ncontent-length: 11\r\n\r\n{\"args\":{}}";
        stream.write_all(call).await.expect("written");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .expect("an answer, and then the end");
        assert!(
            answer.contains("HTTP/1.1 503") && answer.contains("/problems/shutting-down"),
            "{answer}"
        );
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    assert!(gateway.ended().await, "a good end");
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "no call is left to wait for"
    );
    assert_eq!(tool.requests(), 0);
}

#[tokio::test]
async fn an_open_connection_of_http_2_is_told_to_go_when_the_gateway_stops() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let mut open = None;
    let gateway = stopping(folder.path(), &tool, async |gateway| {
        let handshake =
            http2::handshake(TokioExecutor::new(), TokioIo::new(connect(gateway).await)).await;
        let (mut sender, connection) = handshake.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let request = axum::http::Request::get(gateway.url("/healthz"));
        let request = request.body(axum::body::Body::empty()).expect("a request");
        assert_eq!(
            sender
                .send_request(request)
                .await
                .expect("an answer")
                .status(),
            200
        );
        open = Some((sender, connection));
    })
    .await;
    let (_sender, connection) = open.expect("it was made");
    connection.await.expect("no panic").expect("a good end");
    assert!(gateway.ended().await, "a good end");
}

#[tokio::test]
async fn who_says_nothing_keeps_no_gateway_from_stopping_when_the_grace_is_over() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let mut silent = connect(&gateway).await;
    let url = gateway.url("/metrics");
    let open = async || {
        client()
            .get(&url)
            .send()
            .await
            .expect("an answer")
            .text()
            .await
            .expect("a text")
    };
    until("it is taken", async || {
        open().await.contains("\noncegate_connections 2\n")
    })
    .await;
    gateway.signal("TERM");
    assert!(gateway.ended().await, "a good end");
    assert_eq!(
        silent.read(&mut [0; 1]).await.expect("an end"),
        0,
        "it was closed, and not reset"
    );
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    assert!(
        said.contains("oncegate has stopped") && !said.contains("were cut"),
        "{said}"
    );
}

/// A connection that says nothing would keep it for a minute, and so would a call.
#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_what_runs_is_unknown() {
    for second in ["TERM", "INT"] {
        let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
        tool.then(Act::Hang);
        let mut open = None;
        let gateway = stopping(folder.path(), &tool, async |gateway| {
            let silent = connect(gateway).await;
            let call = call_in_background(gateway);
            until("the tool was asked", async || tool.requests() == 1).await;
            open = Some((silent, call));
        })
        .await;
        let (mut silent, call) = open.expect("made");
        // Sooner it would be the first one, which a launcher forwards.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let began = Instant::now();
        gateway.signal(second);
        call.await
            .expect("a caller")
            .expect_problem("outcome-unknown");
        assert_eq!(
            silent.read(&mut [0; 1]).await.expect("an end"),
            0,
            "it was closed, and not reset"
        );
        assert!(gateway.ended().await, "a good end");
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "half of the grace, on a busy machine"
        );
        let said = std::fs::read_to_string(log(folder.path())).expect("a log");
        assert!(
            said.contains("second stop signal") && !said.contains("the shutdown grace has passed"),
            "{said}"
        );
        let database = folder.path().join("oncegate.db");
        assert_eq!(unknown_by_shutdown(&database), 1);
        let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
        call_in_background(&gateway)
            .await
            .expect("a caller")
            .expect_problem("outcome-unknown");
        assert_eq!(tool.requests(), 1, "it is not sent again");
        gateway.kill();
    }
}

/// A terminal sends Ctrl-C to uvx and to the gateway, and uvx forwards it 200 ms later.
#[tokio::test]
async fn a_signal_that_a_launcher_forwards_as_well_counts_once() {
    let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
    let (hold, held) = Act::held(Act::Numbered);
    tool.then(held);
    let mut call = None;
    let gateway = stopping(folder.path(), &tool, async |gateway| {
        call = Some(call_in_background(gateway));
        until("the tool was asked", async || tool.requests() == 1).await;
        gateway.signal("INT");
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(hold);
    call.expect("made").await.expect("a caller").expect_ok();
    assert!(gateway.ended().await, "a good end");
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    assert!(!said.contains("second stop signal"), "{said}");
}

/// How many calls are unknown because their gateway was stopped.
fn unknown_by_shutdown(database: &std::path::Path) -> u64 {
    let why = "instr(progress, CAST('shutting down' AS BLOB)) > 0";
    let unknown = STATES.iter().position(|state| *state == "unknown");
    let unknown = unknown.expect("a state");
    count_where(
        database,
        &format!("calls WHERE state = {unknown} AND {why}"),
    )
}

fn call_in_background(gateway: &Process) -> JoinHandle<Answer> {
    let url = gateway.url("/v1/tools/act/calls");
    tokio::spawn(async move { Answer::to(client().post(url).body("{\"args\":{}}")).await })
}

#[tokio::test]
async fn what_outlasts_the_grace_is_recorded_as_unknown() {
    let tool = Tool::start().await;
    tool.then(Act::Hang);
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let call = call_in_background(&gateway);
    until("the tool was asked", async || tool.requests() == 1).await;
    let began = Instant::now();
    gateway.signal("TERM");
    call.await
        .expect("a caller")
        .expect_problem("outcome-unknown");
    assert!(gateway.ended().await, "a good end");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "the grace is one second"
    );
    let database = folder.path().join("oncegate.db");
    assert_eq!(unknown_by_shutdown(&database), 1);
    let said = std::fs::read_to_string(log(folder.path())).expect("a log");
    assert!(
        said.contains("the shutdown grace has passed") && said.contains("\"calls\":1"),
        "{said}"
    );
}

#[tokio::test]
async fn a_status_that_was_seen_is_not_forgotten_when_the_grace_ends() {
    let tool = Tool::start().await;
    tool.then(Act::ExecuteThenDrip(
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"drip",
    ));
    let folder = tempfile::tempdir().expect("a folder");
    let gateway = Process::start(folder.path(), free_port(), &one_tool(&tool, "")).await;
    let call = call_in_background(&gateway);
    until("the tool was asked", async || tool.requests() == 1).await;
    gateway.signal("TERM");
    call.await
        .expect("a caller")
        .expect_problem("result-unavailable");
    assert!(gateway.ended().await);
    assert_eq!(count(&folder.path().join("oncegate.db"), "succeeded"), 1);
}

#[tokio::test]
async fn a_call_between_two_attempts_is_not_unknown_when_the_grace_ends() {
    let port = free_port();
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "[tools.act]\nurl = \"http://127.0.0.1:{port}/\"\ntimeout = \"1s\"\ndeadline = \"60s\"\nretry = {{ attempts = 20, base = \"20s\", max = \"20s\" }}\n"
    );
    let gateway = Process::start(folder.path(), free_port(), &config).await;
    let call = call_in_background(&gateway);
    let database = folder.path().join("oncegate.db");
    until("the first attempt has failed", async || {
        let calls = Answer::to(client().get(gateway.url("/v1/calls"))).await;
        calls.at("/calls/0/attempts").as_u64() > Some(1)
    })
    .await;
    gateway.signal("TERM");
    call.await
        .expect("a caller")
        .expect_problem("tool-unreachable");
    assert!(gateway.ended().await);
    assert_eq!(count(&database, "failed"), 1);
}
