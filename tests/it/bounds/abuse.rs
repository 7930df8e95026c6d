use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{join, select};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Gateway, Tool, until};

/// A tool that is one answer behind on each connection: it answers a request with the arguments of the one before.
struct OutOfStep {
    url: String,
    arrived: Arc<AtomicUsize>,
    /// How many more requests it may answer.
    answers: Arc<Semaphore>,
}

impl OutOfStep {
    /// `names_calls`: whether its answers name the call that they belong to.
    async fn start(names_calls: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/do", listener.local_addr().expect("an address"));
        let tool = Self {
            url,
            arrived: Arc::default(),
            answers: Arc::new(Semaphore::new(1_000)),
        };
        let (arrived, answers) = (tool.arrived.clone(), tool.answers.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (arrived, answers) = (arrived.clone(), answers.clone());
                tokio::spawn(serve_out_of_step(stream, names_calls, arrived, answers));
            }
        });
        tool
    }

    /// Holds its answers until it is told.
    fn hold(&self) {
        self.answers.forget_permits(1_000);
    }

    async fn has_got(&self, requests: usize) {
        until("the requests are at the tool", async || {
            self.arrived.load(Ordering::SeqCst) == requests
        })
        .await;
    }

    async fn gateway(&self) -> Gateway {
        let tokens: String = ["shop", "bank"].map(token).concat();
        let tool = format!(
            "[tools.act]\nurl = \"{}\"\nconnection_reuse = \"60s\"\n",
            self.url
        );
        Gateway::start(&format!("{tokens}{tool}")).await
    }
}

fn token(tenant: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(tenant));
    format!(
        "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\nscopes = [\"call\"]\n"
    )
}

async fn serve_out_of_step(
    mut stream: TcpStream,
    names_calls: bool,
    arrived: Arc<AtomicUsize>,
    answers: Arc<Semaphore>,
) {
    let mut last: Option<(String, String)> = None;
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            let text = String::from_utf8_lossy(&buffer).into_owned();
            if let Some(body) = text.split_once("\r\n\r\n").map(|(_, body)| body)
                && body.ends_with('}')
            {
                let head = text.to_ascii_lowercase();
                let id = head
                    .lines()
                    .find_map(|line| line.strip_prefix("x-call-id: "));
                break (id.expect("a call id").to_owned(), body.to_owned());
            }
            if stream.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        };
        buffer.clear();
        arrived.fetch_add(1, Ordering::SeqCst);
        answers.acquire().await.expect("it is open").forget();
        let (id, body) = last.replace(end.clone()).unwrap_or(end);
        let named = if names_calls {
            format!("x-call-id: {id}\r\n")
        } else {
            String::new()
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\n{named}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn call(gateway: &Gateway, tenant: &str, n: u32) -> Answer {
    let bearer = format!("Bearer {tenant}");
    let body = json!({ "args": { "of": tenant, "n": n } });
    gateway
        .post("act", &body, &[("authorization", &bearer)])
        .await
}

#[tokio::test]
async fn a_tool_that_answers_out_of_step_never_gives_one_tenant_the_result_of_another() {
    let tool = OutOfStep::start(false).await;
    let gateway = tool.gateway().await;
    for n in 0..30 {
        for tenant in ["shop", "bank"] {
            let answer = call(&gateway, tenant, n).await.expect_ok();
            assert_eq!(
                answer.at("/result/of"),
                tenant,
                "round {n}: {}",
                answer.text
            );
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_names_another_call_proves_nothing_of_this_one() {
    let tool = OutOfStep::start(true).await;
    let gateway = tool.gateway().await;
    call(&gateway, "shop", 0).await.expect_ok();
    call(&gateway, "shop", 1)
        .await
        .expect_problem("outcome-unknown");
    // Its connection is not used again.
    let third = call(&gateway, "shop", 2).await.expect_ok();
    assert_eq!(third.at("/result/n"), 2);
    gateway.stop().await;
}

/// Two connections are out of step at once: the first that is noticed says nothing about what the second has sent.
#[tokio::test]
async fn answers_that_name_other_calls_on_two_connections_prove_nothing_of_either() {
    let tool = OutOfStep::start(true).await;
    let gateway = tool.gateway().await;
    tool.hold();
    let in_step = join(call(&gateway, "shop", 0), call(&gateway, "shop", 1));
    let both_answered = async {
        tool.has_got(2).await;
        tool.answers.add_permits(2);
    };
    let ((first, second), ()) = join(in_step, both_answered).await;
    first.expect_ok();
    second.expect_ok();
    let [first, second] = [2, 3].map(|n| Box::pin(call(&gateway, "shop", n)));
    let one_answered = async {
        tool.has_got(4).await;
        tool.answers.add_permits(1);
    };
    let (answered, ()) = join(select(first, second), one_answered).await;
    let (one, other) = answered.into_inner();
    tool.answers.add_permits(1);
    for answer in [one, other.await] {
        answer.expect_problem("outcome-unknown");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_that_no_request_asked_for_ends_its_connection() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "connection_reuse = \"60s\"").await;
    for n in 0..30 {
        tool.then(Act::ExecuteThenSay(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"surplus\":1}",
        ));
        tool.then(Act::Numbered);
        gateway.call(json!({ "first": n })).await.expect_ok();
        let second = gateway.call(json!({ "second": n })).await.expect_ok();
        assert_eq!(
            second.at("/result/effect"),
            f64::from(2 * n + 1),
            "{}",
            second.text
        );
    }
    gateway.stop().await;
}

/// What is answered to these lines of a request over HTTP/1.1.
async fn raw(gateway: &Gateway, lines: &[&str]) -> String {
    let mut stream = TcpStream::connect(gateway.address)
        .await
        .expect("a connection");
    let request = format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn a_page_that_reaches_loopback_by_another_name_reads_nothing_without_tokens() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    let port = gateway.address.port();
    for host in [
        "evil.example".to_owned(),
        format!("localhost.evil.example:{port}"),
        "0.0.0.0".to_owned(),
    ] {
        let answer = raw(
            &gateway,
            &["GET /v1/calls HTTP/1.1", &format!("host: {host}")],
        )
        .await;
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("forbidden"),
            "{host}: {answer}"
        );
    }
    for host in [
        format!("LocalHost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        let answer = raw(
            &gateway,
            &["GET /v1/calls HTTP/1.1", &format!("host: {host}")],
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    for (site, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ] {
        let lines = [
            "GET /v1/calls HTTP/1.1",
            "host: localhost",
            &format!("sec-fetch-site: {site}"),
        ];
        let answer = raw(&gateway, &lines).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{site}: {answer}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_without_one_host_is_refused() {
    let tool = Tool::start().await;
    let gateway = Gateway::with_tool(&tool, "").await;
    for hosts in [
        &[][..],
        &["host: localhost", "host: localhost"],
        &["host: localhost", "host: evil.example"],
    ] {
        let lines: Vec<_> = ["GET /healthz HTTP/1.1"]
            .iter()
            .chain(hosts)
            .copied()
            .collect();
        let answer = raw(&gateway, &lines).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("invalid-request"),
            "{hosts:?}: {answer}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn poisoned_calls_of_one_tenant_close_a_tool_for_no_other() {
    let tool = Tool::start().await;
    tool.choose(|seen, _| {
        if seen.body.contains("\"of\":\"shop\"") {
            Act::ExecuteThenDrop
        } else {
            Act::Numbered
        }
    });
    let tokens: String = ["shop", "bank"].map(token).concat();
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 5, cooldown = \"1h\" }\n";
    let gateway = Gateway::start(&format!("{tokens}{}", one_tool(&tool, rules))).await;
    call(&gateway, "bank", 0).await.expect_ok();
    for n in 0..5 {
        call(&gateway, "shop", n)
            .await
            .expect_problem("outcome-unknown");
    }
    for n in 5..10 {
        call(&gateway, "shop", n)
            .await
            .expect_problem("tool-unavailable");
        call(&gateway, "bank", n).await.expect_ok();
    }
    assert_eq!(tool.requests(), 1 + 5 + 5);
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_hangs_makes_few_unknown_calls_of_each_tenant() {
    let tool = Tool::start().await;
    tool.always(Act::ExecuteThenDrop);
    let tenants: Vec<String> = (0..8).map(|n| format!("tenant-{n}")).collect();
    let tokens: String = tenants.iter().map(|tenant| token(tenant)).collect();
    let rules = "retry = { attempts = 1 }\nbreaker = { failures = 5, cooldown = \"1h\" }\n";
    let gateway = Gateway::start(&format!("{tokens}{}", one_tool(&tool, rules))).await;
    for tenant in &tenants {
        for n in 0..10 {
            call(&gateway, tenant, n).await;
        }
    }
    assert_eq!(tool.requests(), 8 * 5, "five of each");
    gateway.stop().await;
}
