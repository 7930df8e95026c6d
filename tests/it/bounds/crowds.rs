//! Thousands of silent clients, or of requests for one call: other requests are answered, and memory is bounded.

use std::sync::Arc;
use std::time::Duration;

use oncegate::serve;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client, until};

const HEAD: &str = "POST /v1/tools/act/calls HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";

/// Connections that are made at the same time: as many as the operating system keeps for a server.
const AT_ONCE: usize = 100;
/// The most memory for a connection and all that waits for it, in bytes, in a debug build.
const PER_CONNECTION: f64 = 64.0 * 1024.0;

/// A process with its tool.
struct Crowded {
    gateway: Process,
    tool: Tool,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl Crowded {
    async fn start(environment: &[(&str, &str)]) -> Self {
        // The test itself opens thousands of connections.
        assert!(
            serve::at_most(usize::MAX) >= 8_000,
            "the test needs more files: ulimit -n"
        );
        let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
        let config = one_tool(
            &tool,
            "timeout = \"60s\"\ndeadline = \"60s\"\nretry = { attempts = 1 }\n",
        );
        // All connections come from one address.
        let one_address = ("ONCEGATE_SERVER__MAX_CONNECTIONS_PER_ADDRESS", "9000");
        let environment = [environment, &[one_address]].concat();
        let gateway = Process::start_in(folder.path(), free_port(), &config, &environment).await;
        let crowded = Self {
            gateway,
            tool,
            client: client(),
            _folder: folder,
        };
        crowded.others_are_answered(0).await;
        crowded
    }

    /// The memory of the gateway, in bytes.
    async fn memory(&self) -> f64 {
        let text = self.get("/metrics").await.expect_ok().text;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
        line.expect("the metric").parse().expect("a number")
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::to(self.client.get(self.gateway.url(path))).await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.gateway.port))
            .await
            .expect("a connection")
    }

    /// Checks that new calls and the pages for operators are answered soon. Returns the slowest time.
    async fn others_are_answered(&self, round: usize) -> Duration {
        let mut slowest = Duration::ZERO;
        for n in 0..20 {
            let began = Instant::now();
            let body = json!({ "args": { "round": round, "n": n } }).to_string();
            let request = self
                .client
                .post(self.gateway.url("/v1/tools/act/calls"))
                .body(body);
            Answer::to(request).await.expect_ok();
            slowest = slowest.max(began.elapsed());
        }
        for door in ["/healthz", "/readyz", "/metrics"] {
            let began = Instant::now();
            self.get(door).await.expect_ok();
            slowest = slowest.max(began.elapsed());
        }
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
        slowest
    }

    /// Prints and checks how much memory these additional connections have taken.
    #[expect(
        clippy::print_stderr,
        reason = "figures for who runs it with --nocapture"
    )]
    async fn report(&self, what: &str, connections: usize, before: f64, slowest: Duration) {
        let after = self.memory().await;
        let each = (after - before) / connections as f64;
        eprintln!(
            "{what}: {connections} connections, {:.0} -> {:.0} MiB, {:.1} KiB each; the slowest of the others {slowest:?}",
            before / 1_048_576.0,
            after / 1_048_576.0,
            each / 1024.0
        );
        assert!(
            each < PER_CONNECTION,
            "{what}: {each} bytes for each connection"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_slow_clients_delay_no_other_request() {
    let crowd = Crowded::start(&[
        ("ONCEGATE_SERVER__HEADER_TIMEOUT", "6s"),
        ("ONCEGATE_SERVER__BODY_TIMEOUT", "6s"),
    ])
    .await;
    let requests = crowd.tool.requests();
    let before = crowd.memory().await;
    let mut all = Vec::new();
    for n in 0..3_000 {
        let mut stream = crowd.connect().await;
        let begin = match n {
            0..2_000 => String::new(),
            2_000..2_500 => format!("{HEAD}x-drip: "),
            _ => format!("{HEAD}content-length: 100000\r\n\r\n"),
        };
        stream.write_all(begin.as_bytes()).await.expect("written");
        all.push((stream, n < 2_000));
    }
    let mut dripping = JoinSet::new();
    for (stream, is_silent) in all {
        dripping.spawn(async move {
            let (mut reading, mut writing) = stream.into_split();
            let drips = async {
                while !is_silent && writing.write_all(b"a").await.is_ok() {
                    sleep(Duration::from_millis(200)).await;
                }
                std::future::pending::<()>().await;
            };
            let mut answer = Vec::new();
            tokio::select! {
                read = reading.read_to_end(&mut answer) => drop(read),
                () = drips => {}
            }
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 ")
        });
    }
    let slowest = crowd.others_are_answered(1).await;
    crowd
        .report("silent and dripping", 3_000, before, slowest)
        .await;
    let given_up = async {
        dripping
            .join_all()
            .await
            .into_iter()
            .filter(|is_so| *is_so)
            .count()
    };
    let given_up = tokio::time::timeout(Duration::from_secs(20), given_up)
        .await
        .expect("an end for each");
    assert_eq!(given_up, 3_000);
    assert_eq!(crowd.tool.requests(), requests + 20, "nothing else was run");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_requests_that_wait_for_one_call_get_its_answer_and_delay_no_other() {
    let crowd = Arc::new(Crowded::start(&[]).await);
    let (hold, held) = Act::held(Act::Numbered);
    crowd.tool.then(held);
    let (requests, effects) = (crowd.tool.requests(), crowd.tool.effects());
    let before = crowd.memory().await;
    let (mut waiting, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for _ in 0..5_000 {
        let (crowd, places) = (crowd.clone(), places.clone());
        waiting.spawn(async move {
            let mut stream = {
                let _place = places.acquire().await.expect("a place");
                let mut stream = crowd.connect().await;
                let body = "{\"args\":{\"one\":true}}";
                let length = body.len();
                let request = format!(
                    "{HEAD}prefer: wait=60\r\nidempotency-key: one\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                stream.write_all(request.as_bytes()).await.expect("written");
                stream
            };
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            answer
        });
    }
    until("the tool was asked", async || {
        crowd.tool.requests() == requests + 1
    })
    .await;
    until("all of them are there", async || {
        let files = crowd.get("/metrics").await.text;
        let open = files
            .lines()
            .find_map(|line| line.strip_prefix("process_open_fds "));
        open.expect("the metric").parse::<f64>().expect("a number") > 5_000.0
    })
    .await;
    let slowest = crowd.others_are_answered(1).await;
    crowd
        .report("waiting for one call", 5_000, before, slowest)
        .await;
    drop(hold);
    let answers = waiting.join_all().await;
    let result = |answer: &str| {
        answer
            .split("\"result\":")
            .nth(1)
            .and_then(|rest| rest.split('}').next().map(str::to_owned))
    };
    let first = result(&answers[0]).expect("a result");
    for answer in &answers {
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert_eq!(result(answer).as_ref(), Some(&first));
    }
    assert_eq!(
        answers
            .iter()
            .filter(|answer| answer.contains("\"replayed\":false"))
            .count(),
        1
    );
    assert_eq!(
        crowd.tool.effects(),
        effects + 21,
        "one, and those of the others"
    );
}
