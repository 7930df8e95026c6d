//! Clients that take memory and give nothing. The budget holds, others are served, and no result is lost.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::bounds::attacked::{Attacked, MIB, SLACK_MIB, frame, large, token, with_shut_windows};
use crate::support::gateway::one_tool;
use crate::support::stores::{Stores, on_both_stores};
use crate::support::{Act, Answer, Gateway, Tool, until};

on_both_stores![
    a_call_without_room_for_its_result_is_refused_before_it_is_claimed,
    a_result_for_which_there_is_no_room_is_kept_and_given_later,
];

#[tokio::test]
async fn shut_windows_of_strangers_hold_no_memory() {
    let mut attacked = Attacked::start().await;
    let before = attacked.mib();
    let paths = (0..100).map(|n| {
        if n % 2 == 0 {
            "/openapi.json"
        } else {
            "/metrics"
        }
    });
    let _held = attacked.say(100, &with_shut_windows(paths)).await;
    for _ in 0..20 {
        attacked.quiet_is_served().await;
    }
    attacked.check("shut windows", before);
}

#[tokio::test]
async fn unread_answers_of_one_token_stop_at_its_share() {
    let mut attacked = Attacked::start().await;
    let id = attacked.large().await;
    let before = attacked.mib();
    let said = |head: String| {
        format!("{head} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer greedy\r\n")
            .into_bytes()
    };
    let mut show = said(format!("GET /v1/calls/{id}"));
    show.extend(b"\r\n");
    let mut replay = said("POST /v1/tools/act/calls".into());
    replay.extend(b"content-length: 11\r\n\r\n{\"args\":{}}");
    let _held = (
        attacked.say(100, &show).await,
        attacked.say(100, &replay).await,
    );
    for _ in 0..20 {
        attacked.quiet_is_served().await;
    }
    attacked.check("unread answers", before);
}

#[tokio::test]
async fn stalled_bodies_of_one_token_stop_at_its_share() {
    let mut attacked = Attacked::start().await;
    let before = attacked.mib();
    let mut said =
        b"POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer greedy\r\n\
        content-length: 1000000\r\n\r\n{\"args\":{\"a\":\""
            .to_vec();
    said.extend(vec![b'a'; 700_000]);
    let _held = attacked.say(200, &said).await;
    for _ in 0..20 {
        attacked.quiet_is_served().await;
    }
    attacked.check("stalled bodies", before);
}

#[tokio::test]
async fn stalled_heads_hold_little_and_give_way() {
    let mut attacked = Attacked::start().await;
    let before = attacked.mib();
    let mut said = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec();
    said.extend(vec![b'a'; 58_000]);
    let _held = attacked.say(3_000, &said).await;
    for _ in 0..20 {
        attacked.quiet_is_served().await;
    }
    attacked.check("stalled heads", before);
    // Those that are refused are closed, and few are open at once.
    assert!(attacked.mib() <= before + SLACK_MIB, "{}", attacked.mib());
}

/// A gateway in which a tenant has room for a few results: half of 16 MiB, of 1 MiB each.
async fn with_little_memory(stores: &Stores, tool: &Tool) -> Gateway {
    let tokens = token("shop") + &token("bank");
    stores
        .gateway(&format!(
            "[server]\nmax_memory = \"16MiB\"\n{tokens}{}",
            one_tool(tool, "")
        ))
        .await
}

pub async fn call(gateway: &Gateway, tenant: &str, n: usize) -> Answer {
    let bearer = format!("Bearer {tenant}");
    gateway
        .post(
            "act",
            &json!({ "args": { "n": n } }),
            &[("authorization", &bearer)],
        )
        .await
}

async fn a_call_without_room_for_its_result_is_refused_before_it_is_claimed(stores: &Stores) {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let gateway = std::sync::Arc::new(with_little_memory(stores, &tool).await);
    let mut running = Vec::new();
    let refused = loop {
        let (gateway, n) = (gateway.clone(), running.len());
        assert!(n < 16, "nothing is refused");
        let asked = tokio::spawn(async move { call(&gateway, "shop", n).await });
        until("it is at the tool, or refused", async || {
            tool.requests() > n || asked.is_finished()
        })
        .await;
        if tool.requests() == n {
            break asked.await.expect("no panic");
        }
        running.push(asked);
    };
    assert!(running.len() >= 4, "{}", running.len());
    let refused = refused.expect_problem("rate-limited");
    assert_eq!(
        (
            refused.status,
            refused.at("/effect"),
            refused.at("/key_action")
        ),
        (429, "none".into(), "reuse".into())
    );
    assert_eq!(refused.header("gateway-outcome"), "not-executed");
    // Another tenant has room.
    let requests = tool.requests();
    let other = {
        let gateway = gateway.clone();
        tokio::spawn(async move { call(&gateway, "bank", 0).await })
    };
    until("it is at the tool", async || {
        tool.requests() == requests + 1
    })
    .await;
    drop(hold);
    for asked in running {
        asked.await.expect("no panic").expect_ok();
    }
    other.await.expect("no panic").expect_ok();
    let again = requests;
    call(&gateway, "shop", again).await.expect_ok();
    assert_eq!(
        tool.effects(),
        requests + 2,
        "what was refused has not run, and runs now"
    );
}

async fn a_result_for_which_there_is_no_room_is_kept_and_given_later(stores: &Stores) {
    let tool = Tool::start().await;
    tool.then(large(900_000));
    let gateway = std::sync::Arc::new(with_little_memory(stores, &tool).await);
    let first = call(&gateway, "shop", 0).await.expect_ok();
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let mut running = Vec::new();
    for n in 1..16 {
        let gateway = gateway.clone();
        running.push(tokio::spawn(async move { call(&gateway, "shop", n).await }));
    }
    until("all are at the tool, or refused", async || {
        let refused = running.iter().filter(|asked| asked.is_finished()).count();
        refused > 0 && tool.requests() - 1 + refused == running.len()
    })
    .await;
    let refused = call(&gateway, "shop", 0)
        .await
        .expect_problem("rate-limited");
    assert_eq!(
        (refused.at("/effect"), refused.at("/key_action")),
        ("unknown".into(), "reuse".into())
    );
    drop(hold);
    for asked in running {
        asked.await.expect("no panic");
    }
    let again = call(&gateway, "shop", 0).await.expect_ok();
    assert_eq!(
        (again.at("/replayed"), again.result()),
        (true.into(), first.result())
    );
    assert_eq!(
        gateway.metric("oncegate_unknown_calls{tool=\"act\"}").await,
        0.0
    );
    assert!(gateway.metric("oncegate_memory_refused_total").await > 0.0);
}

#[tokio::test]
async fn what_was_held_is_free_again_when_all_is_answered() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&format!(
        "[server]\nmax_memory = \"64MiB\"\n{}",
        one_tool(&tool, "")
    ))
    .await;
    tool.then(large(900_000));
    gateway
        .call(json!({ "n": 0, "much": "a".repeat(900_000) }))
        .await
        .expect_ok();
    gateway.get("/v1/calls").await.expect_ok();
    let mut cut = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    cut.write_all(
        b"POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{",
    )
    .await
    .expect("written");
    drop(cut);
    assert_eq!(
        gateway.metric("oncegate_memory_budget_bytes").await,
        (64 * MIB) as f64
    );
    // This question's own connection and request.
    until("it is free", async || {
        gateway.metric("oncegate_memory_held_bytes").await <= 64.0 * 1024.0
    })
    .await;
    gateway.stop().await;
}

/// What is answered to this, over a connection from this address, until it ends.
async fn from(gateway: &Gateway, address: &str, said: &[u8]) -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(format!("{address}:0").parse().expect("an address"))
        .expect("bound");
    let mut stream = socket.connect(gateway.address).await.expect("a connection");
    drop(stream.write_all(said).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    String::from_utf8_lossy(&answer).into_owned()
}

const LIST: &[u8] = b"GET /v1/tools HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test]
#[cfg(target_os = "linux")]
async fn an_address_has_a_bound_of_its_own_unless_it_is_a_balancers() {
    let tool = Tool::start().await;
    for (proxies, is_bound) in [("[]", true), ("[\"127.0.0.1\", \"10.0.0.0/8\"]", false)] {
        let server = format!("max_connections_per_address = 2\nproxies = {proxies}");
        let gateway = Gateway::start(&format!("[server]\n{server}\n{}", one_tool(&tool, ""))).await;
        let (hold, held) = Act::held(Act::Numbered);
        tool.then(held.clone()).then(held);
        let before = tool.requests();
        let mut busy = Vec::new();
        for n in 0..2 {
            let mut stream = TcpStream::connect(gateway.address)
                .await
                .expect("a connection");
            let body = format!("{{\"args\":{{\"n\":{n}}}}}");
            let head = "POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\n";
            let call = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(call.as_bytes()).await.expect("written");
            busy.push(stream);
        }
        until("both are under way", async || tool.requests() == before + 2).await;
        let third = from(&gateway, "127.0.0.1", LIST).await;
        assert_eq!(third.starts_with("HTTP/1.1 429 "), is_bound, "{third}");
        let elsewhere = from(&gateway, "127.0.0.2", LIST).await;
        assert!(elsewhere.starts_with("HTTP/1.1 200 "), "{elsewhere}");
        drop((hold, busy));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn who_has_gone_longest_without_a_token_gives_way() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&format!(
        "[server]\nmax_connections = 3\n{}",
        one_tool(&tool, "")
    ))
    .await;
    let list = b"GET /v1/tools HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut known = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    known.write_all(list).await.expect("written");
    let mut first = [0; 12];
    known.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200");
    // They came later, and one of them even speaks.
    let mut drips = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    drips
        .write_all(b"GET /healthz HTTP/1.1\r\nx: ")
        .await
        .expect("written");
    let _silent = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    until("a further one is served", async || {
        from(&gateway, "127.0.0.1", LIST)
            .await
            .starts_with("HTTP/1.1 200 ")
    })
    .await;
    let mut rest = Vec::new();
    drips.read_to_end(&mut rest).await.expect("an end");
    assert!(
        rest.is_empty(),
        "the oldest unauthenticated client is closed, and not answered"
    );
    known.write_all(list).await.expect("written");
    until("it is answered on the same connection", async || {
        let mut part = [0; 16 * 1024];
        let read = known.read(&mut part).await.expect("it is open");
        assert!(read > 0, "it is open");
        String::from_utf8_lossy(&part[..read]).contains("HTTP/1.1 200")
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_stranger_has_few_streams_and_loses_the_others() {
    let tool = Tool::start().await;
    let gateway = Gateway::start(&one_tool(&tool, "")).await;
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    stream
        .write_all(&with_shut_windows((0..50).map(|_| "/problems")))
        .await
        .expect("written");
    let mut said = Vec::new();
    // RST_STREAM with REFUSED_STREAM: safe to send again.
    let refused = frame(3, 0, 0, &[0, 0, 0, 7]);
    let count = |said: &[u8]| {
        said.windows(13)
            .filter(|part| part[..5] == refused[..5] && part[9..] == refused[9..])
            .count()
    };
    until("all but a few are refused", async || {
        stream.read_buf(&mut said).await.expect("it is open");
        count(&said) == 50 - 8
    })
    .await;
    gateway.stop().await;
}
