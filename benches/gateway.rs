//! What the gateway costs: a tool called directly and through the real binary, side by side.
//!
//! `cargo bench --bench gateway`. The tool and the clients live in this process; the gateway is a
//! process of its own, once over a fresh SQLite file and once over a Redis that syncs every write (if
//! there is a `redis-server`), both on the disk that holds `target`. A row is measured
//! in several rounds, in turn with the others, and every figure is the median of the rounds, for no
//! machine is quiet for long. `ONCEGATE_BENCH_SECONDS` says how long one measurement takes.

use std::error::Error;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing::post};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const CONNECTIONS: [usize; 3] = [1, 16, 64];
const ROUNDS: usize = 3;
/// One per connection: arrivals of one key at the same time would share their question to the store.
const REPLAY_KEYS: usize = 64;
/// The gateway's door to the tool.
const CALLS: &str = "/v1/tools/do/calls";
/// What the tool gets.
const ARGS: &str = r#"{"business_id":"B-1001","sku":"widget-7","quantity":2,"amount_cents":1999}"#;
/// The tool's result without its note.
const RESULT: &str = r#"{"order_id":"ord_7fd1c2","status":"created","total":1999,"note":""#;
/// Linux counts processor time in these, whatever the kernel was built with.
const TICKS_PER_SECOND: f64 = 100.0;
/// Nothing takes longer on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone, Copy, PartialEq)]
enum Row {
    /// The tool without the gateway.
    Direct,
    /// The floor: the gateway's HTTP layer and nothing else.
    Health,
    /// A key that was claimed before; the tool is not called.
    Replay,
    /// A new key: claim, call of the tool, outcome.
    First,
    /// The same two by the MCP door.
    McpReplay,
    McpFirst,
    /// The first arrival of a key that is to be replayed. Not measured.
    Claim,
}

/// In the order in which they are measured and printed, with the number of the gateway.
const ROWS: [(Row, usize, &str); 8] = [
    (Row::Direct, 0, "direct"),
    (Row::Health, 0, "healthz"),
    (Row::Replay, 0, "replay, SQLite"),
    (Row::McpReplay, 0, "replay by MCP"),
    (Row::First, 0, "first, SQLite"),
    (Row::McpFirst, 0, "first by MCP"),
    (Row::Replay, 1, "replay, Redis"),
    (Row::First, 1, "first, Redis"),
];

/// What was asked for by row, and what the tool was asked for.
#[derive(Default)]
struct Counts {
    asked: [AtomicU64; 7],
    tool: AtomicU64,
}

/// The tool: it has done its work as soon as it is asked.
async fn tool(State(counts): State<Arc<Counts>>, _args: Bytes) -> impl IntoResponse {
    counts.tool.fetch_add(1, Relaxed);
    (
        [(CONTENT_TYPE, "application/json")],
        format!("{RESULT}{:.<230}\"}}", "as long as usual "),
    )
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Killed {
    /// The process, once it listens.
    async fn listening(child: Child, address: SocketAddr) -> Fallible<Self> {
        let mut process = Self(child);
        while TcpStream::connect(address).await.is_err() {
            if let Some(status) = process.0.try_wait()? {
                return Err(format!("the process for {address} ended: {status}").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(process)
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The gateway's process. Killed when dropped.
struct Gateway {
    child: Killed,
    address: SocketAddr,
}

impl Gateway {
    async fn start(folder: &Path, tool: SocketAddr, store: &str) -> Fallible<Self> {
        std::fs::create_dir(folder)?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let config = format!(
            "[server]\nlisten = \"{address}\"\nmax_running = 10000\n[log]\nlevel = \"error\"\n\
             [store]\nurl = \"{store}\"\n\
             [tools.do]\nurl = \"http://{tool}/do\"\nconnection_reuse = \"1s\"\n"
        );
        std::fs::write(folder.join("oncegate.toml"), config)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
        command
            .args(["serve", "--config", "oncegate.toml"])
            .current_dir(folder)
            .stdout(Stdio::null());
        let child = Killed::listening(command.spawn()?, address).await?;
        Ok(Self { child, address })
    }

    /// The processor time it has had, in seconds, if the system is one that tells.
    fn cpu_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.0.id())).ok()?;
        // The user's and the system's time are the 12th and 13th behind the name, which may hold anything.
        let mut times = stat
            .rsplit_once(") ")?
            .1
            .split(' ')
            .skip(11)
            .map(str::parse::<f64>);
        Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS_PER_SECOND)
    }
}

/// A Redis that syncs every write before it answers. Killed when dropped.
struct Redis {
    _child: Killed,
    url: String,
}

impl Redis {
    /// `None` where there is no Redis to start.
    async fn start(folder: &Path) -> Fallible<Option<Self>> {
        std::fs::create_dir(folder)?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port"]);
        command.arg(address.port().to_string());
        command
            .args("--appendonly yes --appendfsync always --maxmemory-policy noeviction".split(' '));
        command.args(["--save", ""]);
        let child = match command.current_dir(folder).stdout(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let url = format!("redis://{address}");
        let child = Killed::listening(child, address).await?;
        Ok(Some(Self { _child: child, url }))
    }
}

/// A client with one keep-alive connection. Lean, because it shares the processors with what it measures.
struct Client {
    number: usize,
    stream: TcpStream,
    counts: Arc<Counts>,
    answer: Vec<u8>,
}

impl Client {
    async fn connect(number: usize, address: SocketAddr, counts: &Arc<Counts>) -> Fallible<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            number,
            stream,
            counts: counts.clone(),
            answer: Vec::new(),
        })
    }

    /// One request and its whole answer, which must be a 200, and of the kind that is to be measured.
    async fn ask(&mut self, row: Row) -> Fallible<()> {
        let serial = self.counts.asked[row as usize].fetch_add(1, Relaxed);
        let number = self.number;
        let call =
            || format!(r#"{{"args":{ARGS},"user_id":"u-{number}","session_id":"s-{number}"}}"#);
        let (executed, replayed) = ("gateway-outcome: executed", "gateway-outcome: replayed");
        let (request, proof) = match row {
            Row::Direct => (request("/do", "none", ARGS), ""),
            Row::Health => (
                "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
                "",
            ),
            Row::Replay => (request(CALLS, &format!("r-{number}"), &call()), replayed),
            Row::First => (request(CALLS, &format!("f-{serial}"), &call()), executed),
            Row::McpReplay => (mcp(&format!("r-{number}")), "dev.oncegate/replayed"),
            Row::McpFirst => (mcp(&format!("m-{serial}")), "\"isError\":false"),
            Row::Claim => (request(CALLS, &format!("r-{number}"), &call()), executed),
        };
        self.stream.write_all(request.as_bytes()).await?;
        self.answer.clear();
        let mut whole = None;
        while whole.is_none_or(|length| self.answer.len() < length) {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err("the connection was closed".into());
            }
            whole = whole.or_else(|| whole_length(&self.answer));
        }
        let answer = String::from_utf8_lossy(&self.answer);
        if !answer.starts_with("HTTP/1.1 200") || !answer.contains(proof) {
            self.counts.asked[row as usize].fetch_sub(1, Relaxed);
            return Err(
                format!("a 200 with \"{proof}\" was expected, but this came:\n{answer}").into(),
            );
        }
        Ok(())
    }

    /// One request after the other. How long those took that ended in between, in milliseconds.
    async fn ask_all_the_time(
        mut self,
        row: Row,
        from: Instant,
        until: Instant,
    ) -> Fallible<Vec<f64>> {
        let mut took = Vec::new();
        loop {
            let began = Instant::now();
            if began >= until {
                return Ok(took);
            }
            self.ask(row).await?;
            let ended = Instant::now();
            if (from..until).contains(&ended) {
                took.push((ended - began).as_secs_f64() * 1000.0);
            }
        }
    }
}

fn request(path: &str, key: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nidempotency-key: {key}\r\n\r\n{body}",
        body.len()
    )
}

/// A request of 2026-07-28 for the same call.
fn mcp(key: &str) -> String {
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let params = format!(r#"{{"name":"do","arguments":{ARGS},"_meta":{meta}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let headers =
        "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: do\r\nhost:";
    request("/mcp", key, &body).replacen("host:", headers, 1)
}

/// How long an answer is, head and body, once its head is there. Both servers send `content-length`.
fn whole_length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|at| at == b"\r\n\r\n")?;
    let lines = std::str::from_utf8(&answer[..head]).ok()?.lines();
    let mut fields = lines.filter_map(|line| line.split_once(": "));
    let (_, length) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    Some(head + 4 + length.parse::<usize>().ok()?)
}

/// The figures of one row; times in milliseconds.
struct Figures {
    per_second: f64,
    p50: f64,
    p99: f64,
    /// Requests per second of the gateway's processor time.
    per_cpu_second: Option<f64>,
}

struct Bench {
    /// Over SQLite; and over Redis, if there is one.
    gateways: Vec<Gateway>,
    _redis: Option<Redis>,
    tool: SocketAddr,
    counts: Arc<Counts>,
    time: Duration,
    _folder: TempDir,
}

impl Bench {
    async fn start(time: Duration) -> Fallible<Self> {
        let counts = Arc::new(Counts::default());
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/do", post(tool))
            .with_state(counts.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        // Not in /tmp, which may be memory: an fsync must cost what it costs.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let redis = timeout(PATIENCE, Redis::start(&folder.path().join("redis"))).await??;
        let shared = redis.as_ref().map(|redis| redis.url.as_str());
        let mut gateways = Vec::new();
        for (at, store) in ["sqlite:oncegate.db"].into_iter().chain(shared).enumerate() {
            let folder = folder.path().join(format!("gateway{at}"));
            let gateway = timeout(PATIENCE, Gateway::start(&folder, address, store)).await??;
            let mut client = Client::connect(REPLAY_KEYS, gateway.address, &counts).await?;
            while client.ask(Row::Claim).await.is_err() {} // a Redis is looked at first
            for number in 0..REPLAY_KEYS {
                client.number = number;
                client.ask(Row::Claim).await?;
            }
            gateways.push(gateway);
        }
        Ok(Self {
            gateways,
            tool: address,
            counts,
            time,
            _folder: folder,
            _redis: redis,
        })
    }

    /// The rows that can be measured here.
    fn rows(&self) -> impl Iterator<Item = (Row, usize, &'static str)> {
        let gateways = self.gateways.len();
        ROWS.into_iter().filter(move |(_, at, _)| *at < gateways)
    }

    async fn measure(&self, row: Row, at: usize, connections: usize) -> Fallible<Figures> {
        let gateway = &self.gateways[at];
        let address = if row == Row::Direct {
            self.tool
        } else {
            gateway.address
        };
        let mut clients = Vec::new();
        for number in 0..connections {
            clients.push(Client::connect(number, address, &self.counts).await?);
        }
        let from = Instant::now() + self.time / 4;
        let until = from + self.time;
        let start = |client: Client| tokio::spawn(client.ask_all_the_time(row, from, until));
        let clients: Vec<_> = clients.into_iter().map(start).collect();
        sleep_until(from).await;
        let before = gateway.cpu_seconds();
        sleep_until(until).await;
        let cpu = before
            .zip(gateway.cpu_seconds())
            .map(|(before, after)| after - before);
        let mut took = Vec::new();
        for client in clients {
            took.extend(client.await??);
        }
        took.sort_by(f64::total_cmp);
        let count = took.len() as f64;
        let at = |share: f64| {
            took.get((count * share) as usize)
                .copied()
                .ok_or("nothing was answered in time")
        };
        Ok(Figures {
            per_second: count / self.time.as_secs_f64(),
            p50: at(0.5)?,
            p99: at(0.99)?,
            per_cpu_second: cpu.filter(|_| row != Row::Direct).map(|cpu| count / cpu),
        })
    }

    /// Measures all rows at so many connections, and prints them.
    async fn compare(&self, connections: usize) -> Fallible<()> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut round = Vec::new();
            for (row, at, _) in self.rows() {
                round.push(
                    timeout(self.time * 2 + PATIENCE, self.measure(row, at, connections)).await??,
                );
            }
            rounds.push(round);
        }
        for (at, (_, _, name)) in self.rows().enumerate() {
            // A row is held against the direct calls of its own round.
            let each = |figure: fn(&Figures, &Figures) -> f64| {
                median(
                    rounds
                        .iter()
                        .map(|round| figure(&round[at], &round[0]))
                        .collect(),
                )
            };
            let per_cpu: Option<Vec<f64>> = rounds
                .iter()
                .map(|round| round[at].per_cpu_second)
                .collect();
            say(&format!(
                "{connections:>11}  {name:<14} {:>10.0} {:>9.3} {:>8.3} {:>8.3} {:>9.3} {:>10}",
                each(|row, _| row.per_second),
                each(|row, direct| row.per_second / direct.per_second),
                each(|row, _| row.p50),
                each(|row, _| row.p99),
                each(|row, direct| row.p50 - direct.p50),
                per_cpu.map_or_else(|| "-".to_owned(), |all| format!("{:.0}", median(all))),
            ))?;
        }
        Ok(())
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// In which time the disk takes a write, in milliseconds. A first arrival waits for two.
fn fsync_time() -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut took = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        file.write_all(&[0x5a; 16 << 10])?;
        file.sync_data()?;
        took.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(median(took))
}

/// How long one measurement takes. Only `cargo bench` says `--bench`; else it is seen whether all works.
fn time() -> Fallible<Duration> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a bench is a program of its own, and this is its start"
    )]
    let seconds = std::env::var("ONCEGATE_BENCH_SECONDS").ok();
    let default = if std::env::args().any(|argument| argument == "--bench") {
        2.0
    } else {
        0.1
    };
    let seconds = seconds.map_or(Ok(default), |seconds| seconds.parse());
    let seconds = seconds.map_err(|_| "ONCEGATE_BENCH_SECONDS must be a number of seconds")?;
    Ok(Duration::try_from_secs_f64(seconds)?)
}

async fn run() -> Fallible<()> {
    let fsync = fsync_time()?;
    let bench = Bench::start(time()?).await?;
    say("connections  row            requests/s  x direct   p50 ms   p99 ms  added ms  per CPU-s")?;
    for connections in CONNECTIONS {
        bench.compare(connections).await?;
    }
    let asked = |row| bench.counts.asked[row as usize].load(Relaxed);
    let effects = bench.counts.tool.load(Relaxed) - asked(Row::Direct);
    let wanted = asked(Row::First) + asked(Row::McpFirst) + asked(Row::Claim);
    if effects != wanted {
        return Err(format!("effects: {effects}, but there were {wanted} first arrivals").into());
    }
    say(&format!("effects: {effects}, as many as first arrivals"))?;
    if bench.gateways.len() == 1 {
        say("Redis was left out: there is no redis-server here")?;
    }
    let cores = std::thread::available_parallelism()?;
    say(&format!(
        "{cores} cores for clients, tool and gateway together; 16 KiB and an fsync take {fsync:.2} ms. \
         Compare ratios, not absolute figures."
    ))
}

fn say(line: &str) -> Fallible<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    // Nowhere is left to complain to if standard error is closed.
    drop(writeln!(std::io::stderr(), "{error}"));
    ExitCode::FAILURE
}
