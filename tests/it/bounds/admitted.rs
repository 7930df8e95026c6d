//! All work is admitted before it is read: reads through a proxy, large forms and lists, and connections without a token.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::bounds::attacked::{Attacked, large_text, token, with_shut_windows};
use crate::proxies::requests::api;
use crate::support::{Act, Answer, Gateway, Tool, until};

/// The answer to a GET through the proxy of a gateway.
async fn read(gateway: &Gateway, tenant: &str, n: usize) -> reqwest::Response {
    let url = gateway.url(&format!("/proxy/api/{tenant}/{n}"));
    let asked = gateway.client.get(url).bearer_auth(tenant).send().await;
    asked.expect("an answer")
}

async fn two_tenants(tool: &Tool, server: &str) -> std::sync::Arc<Gateway> {
    let tokens = token("greedy") + &token("quiet");
    let config = format!("[server]\n{server}\n{tokens}{}", api(tool, ""));
    std::sync::Arc::new(Gateway::start(&config).await)
}

#[tokio::test]
async fn reads_through_a_proxy_take_places_as_calls_do() {
    let tool = Tool::start().await;
    let (hold, held) = Act::held(Act::Numbered);
    tool.always(held);
    let gateway = two_tenants(&tool, "max_running = 16").await;
    let mut reading = Vec::new();
    for n in 0..40 {
        let gateway = gateway.clone();
        reading.push(tokio::spawn(
            async move { read(&gateway, "greedy", n).await },
        ));
    }
    until("each is at the API, or refused", async || {
        let refused = reading.iter().filter(|asked| asked.is_finished()).count();
        tool.requests() + refused == reading.len()
    })
    .await;
    let taken = tool.requests();
    assert!((8..16).contains(&taken), "{taken} reads of one token");
    let other = {
        let gateway = gateway.clone();
        tokio::spawn(async move { read(&gateway, "quiet", 0).await })
    };
    until("another tenant's is there", async || {
        tool.requests() == taken + 1
    })
    .await;
    drop(hold);
    assert_eq!(other.await.expect("no panic").status(), 200);
    let mut statuses = Vec::new();
    for asked in reading {
        statuses.push(asked.await.expect("no panic").status().as_u16());
    }
    let refused = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!(refused, 40 - taken, "{statuses:?}");
    // Their places are free again.
    tool.always(Act::Numbered);
    for n in 0..20 {
        assert_eq!(read(&gateway, "greedy", n).await.status(), 200);
    }
}

#[tokio::test]
async fn unread_answers_of_reads_stop_at_their_tenants_share() {
    let tool = Tool::start().await;
    // The answer never ends.
    tool.always(Act::ExecuteThenDrip(
        b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ));
    let gateway = two_tenants(&tool, "max_memory = \"32MiB\"").await;
    let mut open = Vec::new();
    let refused = loop {
        assert!(open.len() < 200, "nothing is refused");
        let answer = read(&gateway, "greedy", open.len()).await;
        if answer.status() != 200 {
            break answer;
        }
        open.push(answer);
    };
    assert!(open.len() > 8, "{}", open.len());
    let refused = Answer::read(refused).await.expect_problem("rate-limited");
    assert_eq!(refused.at("/effect"), "none");
    assert_eq!(read(&gateway, "quiet", 0).await.status(), 200);
    drop(open);
    until("it is free", async || {
        gateway.metric("oncegate_memory_held_bytes").await <= 256.0 * 1024.0
    })
    .await;
    assert_eq!(read(&gateway, "greedy", 0).await.status(), 200);
}

/// Three writes through the proxy at once with this body, whose answers are these.
async fn written(what: &str, kind: &str, body: String, answer: Act) {
    let mut attacked = Attacked::start().await;
    let before = attacked.mib();
    attacked.tool.always(answer);
    let posts = (0..3).map(|n| {
        let request = attacked
            .client
            .post(attacked.process.url("/proxy/api/orders"))
            .bearer_auth("greedy")
            .header("idempotency-key", format!("{kind}-{n}"))
            .header("content-type", kind)
            .body(body.clone());
        Answer::within(Duration::from_secs(120), request)
    });
    let answers = join_all(posts).await;
    attacked.tool.always(Act::Numbered);
    for answer in answers.iter().flatten() {
        assert!(matches!(answer.status, 200 | 400 | 429), "{}", answer.text);
    }
    attacked.quiet_is_served().await;
    attacked.check(what, before);
}

#[tokio::test]
async fn a_form_of_many_names_holds_little_memory() {
    let names = (0..50_000).map(|n| format!("a{n}[b][c][d][e]=1"));
    let form = names.collect::<Vec<_>>().join("&");
    let kind = "application/x-www-form-urlencoded";
    written("a form", kind, form, Act::Numbered).await;
}

#[tokio::test]
async fn a_list_of_many_objects_holds_little_memory() {
    let list = format!("[{}0]", "{\"\":0},".repeat(140_000));
    let kind = "application/json";
    written("a list", kind, list, Act::Numbered).await;
}

#[tokio::test]
async fn an_answer_of_many_objects_holds_little_memory() {
    let answer = large_text(format!("[{}0]", "{\"\":0},".repeat(145_000)));
    written("an answer", "application/json", "{}".into(), answer).await;
}

/// A connection to the process from this address.
async fn connect(attacked: &Attacked, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(format!("{from}:0").parse().expect("an address"))
        .expect("bound");
    let to = format!("127.0.0.1:{}", attacked.process.port);
    let open = socket.connect(to.parse().expect("an address"));
    open.await.expect("a connection")
}

/// How many of so many new connections with a valid token are not served.
async fn refused_of(attacked: &Attacked, all: usize) -> usize {
    let mut refused = 0;
    for _ in 0..all {
        let mut stream = connect(attacked, "127.0.0.1").await;
        let asked = b"GET /v1/tools HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
            authorization: Bearer quiet\r\n\r\n";
        drop(stream.write_all(asked).await);
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer).await);
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            refused += 1;
        }
    }
    refused
}

/// Keeps so many connections of one address on which this was said. What is closed is opened again.
async fn keep_saying(attacked: &Attacked, connections: usize, said: &[u8]) {
    let keep = (0..connections).map(async |_| {
        loop {
            let mut stream = connect(attacked, "127.0.1.1").await;
            drop(stream.write_all(said).await);
            // Nothing is read; half a second later it is said anew.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    join_all(keep).await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn streams_of_strangers_keep_no_new_connection_of_another_address_out() {
    let attacked = Attacked::start().await;
    let said = with_shut_windows((0..100).map(|_| "/metrics"));
    let refused = tokio::select! {
        () = keep_saying(&attacked, 40, &said) => unreachable!("it goes on"),
        refused = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            refused_of(&attacked, 50).await
        } => refused,
    };
    assert_eq!(refused, 0);
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn unfinished_heads_keep_no_new_connection_of_another_address_out() {
    let attacked = Attacked::start().await;
    let mut said = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec();
    said.extend(vec![b'a'; 14_000]);
    let refused = tokio::select! {
        () = keep_saying(&attacked, 1_000, &said) => unreachable!("it goes on"),
        refused = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            refused_of(&attacked, 50).await
        } => refused,
    };
    assert_eq!(refused, 0);
}
