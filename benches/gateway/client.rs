//! A client with one keep-alive connection. It does little, because it shares the processors with the measured processes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Fallible;

/// The path of the tool's calls at a gateway.
const CALLS: &str = "/v1/tools/do/calls";
/// The same at Restate.
const RESTATE_CALLS: &str = "/Tool/do";
/// The arguments of each call.
const ARGS: &str = r#"{"business_id":"B-1001","sku":"widget-7","quantity":2,"amount_cents":1999}"#;

/// A kind of request.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Ask {
    /// `POST /do`, to the tool or to a program that passes it on.
    Do,
    /// A call with the client's own key, which was claimed before. The tool is not called.
    Replay,
    /// A call with a new key: claim, call of the tool, outcome.
    First,
    /// `Replay` and `First` by MCP.
    McpReplay,
    McpFirst,
    /// The first call with the client's own key, before it is replayed. Not measured.
    Claim,
}

/// Counts the new keys. Each must have one effect.
#[derive(Default)]
pub(super) struct Serials(AtomicU64);

impl Serials {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

pub(super) struct Client {
    pub(super) number: usize,
    stream: TcpStream,
    serials: Arc<Serials>,
    answer: Vec<u8>,
    /// Whether the other side is Restate, which does not say whether it executed a call or repeats an answer.
    is_restate: bool,
}

impl Client {
    pub(super) async fn connect(
        number: usize,
        address: SocketAddr,
        serials: &Arc<Serials>,
    ) -> Fallible<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            number,
            stream,
            serials: serials.clone(),
            answer: Vec::new(),
            is_restate: false,
        })
    }

    pub(super) fn of_restate(self) -> Self {
        Self {
            is_restate: true,
            ..self
        }
    }

    /// Sends one request and reads its answer. An error unless it is a 200 of the expected kind (executed or replayed).
    pub(super) async fn ask(&mut self, ask: Ask) -> Fallible<()> {
        let number = self.number;
        let (request, proof) = match ask {
            Ask::Do => (post("/do", "none", ARGS), ""),
            Ask::Replay => (call(number, &format!("r-{number}")), "replayed"),
            Ask::First => {
                let key = format!("f-{}", self.serials.next());
                (call(number, &key), "executed")
            }
            Ask::Claim => {
                self.serials.next();
                (call(number, &format!("r-{number}")), "executed")
            }
            Ask::McpReplay => (mcp(&format!("r-{number}")), "dev.oncegate/replayed"),
            Ask::McpFirst => {
                let key = format!("m-{}", self.serials.next());
                (mcp(&key), "\"isError\":false")
            }
        };
        if self.is_restate {
            let request = request.replacen(CALLS, RESTATE_CALLS, 1);
            self.send(&request).await?;
        } else {
            self.send(&request).await?;
        }
        let proof = if self.is_restate { "" } else { proof };
        let answer = String::from_utf8_lossy(&self.answer);
        let is_proven = match proof {
            "executed" | "replayed" => answer.contains(&format!("gateway-outcome: {proof}\r\n")),
            proof => answer.contains(proof),
        };
        if !answer.starts_with("HTTP/1.1 200") || !is_proven {
            let why = format!("a 200 with \"{proof}\" was expected, but this came:\n{answer}");
            return Err(why.into());
        }
        Ok(())
    }

    /// The body of the answer to a GET.
    pub(super) async fn get(&mut self, path: &str) -> Fallible<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.send(&request).await?;
        let answer = String::from_utf8_lossy(&self.answer).into_owned();
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        Ok(body.to_owned())
    }

    /// Sends a call of the slow tool, and does not wait for its answer.
    pub(super) async fn begin_slow(&mut self, key: &str) -> Fallible<()> {
        let request = call(self.number, key).replacen("/do/", "/slow/", 1);
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    async fn send(&mut self, request: &str) -> Fallible<()> {
        self.stream.write_all(request.as_bytes()).await?;
        self.answer.clear();
        let mut whole = None;
        while whole.is_none_or(|length| self.answer.len() < length) {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err("the connection was closed".into());
            }
            whole = whole.or_else(|| whole_length(&self.answer));
        }
        Ok(())
    }

    /// Sends one request after the other. Returns the times in milliseconds of those that ended between `from` and `until`.
    pub(super) async fn ask_all_the_time(
        mut self,
        ask: Ask,
        from: Instant,
        until: Instant,
    ) -> Fallible<Vec<f64>> {
        let mut took = Vec::new();
        loop {
            let began = Instant::now();
            if began >= until {
                return Ok(took);
            }
            self.ask(ask).await?;
            let ended = Instant::now();
            if (from..until).contains(&ended) {
                took.push((ended - began).as_secs_f64() * 1000.0);
            }
        }
    }
}

fn call(number: usize, key: &str) -> String {
    let body = format!(r#"{{"args":{ARGS},"user_id":"u-{number}","session_id":"s-{number}"}}"#);
    post(CALLS, key, &body)
}

fn post(path: &str, key: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nidempotency-key: {key}\r\n\r\n{body}",
        body.len()
    )
}

/// The same call as an MCP request of revision 2026-07-28.
fn mcp(key: &str) -> String {
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let params = format!(r#"{{"name":"do","arguments":{ARGS},"_meta":{meta}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let headers =
        "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: do\r\nhost:";
    post("/mcp", key, &body).replacen("host:", headers, 1)
}

/// The length of an answer with its head. `None`: the head is not complete. All servers here send `content-length`.
fn whole_length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|at| at == b"\r\n\r\n")?;
    let lines = std::str::from_utf8(&answer[..head]).ok()?.lines();
    let mut fields = lines.filter_map(|line| line.split_once(": "));
    let (_, length) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    Some(head + 4 + length.parse::<usize>().ok()?)
}
