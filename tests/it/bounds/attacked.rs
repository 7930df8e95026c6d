//! A gateway with a small budget, and clients that speak HTTP/2 wrongly.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::proxies::requests::api;
use crate::support::binary::{Process, free_port};
use crate::support::gateway::one_tool;
use crate::support::{Act, Answer, Tool, client};

pub const MIB: usize = 1 << 20;
/// What the processes below may hold; in `make abuse` it is more.
const BUDGET_MIB: usize = 64;
/// What a process may take beside its budget.
pub const SLACK_MIB: usize = 64;

pub fn token(tenant: &str) -> String {
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(tenant));
    format!(
        "[[auth.tokens]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{digest}\"\n\
         scopes = [\"call\", \"read\"]\n"
    )
}

/// An answer of so many letters.
pub fn large(letters: usize) -> Act {
    large_text(format!("\"{}\"", "a".repeat(letters)))
}

/// An answer that is this text.
pub fn large_text(text: String) -> Act {
    Act::Ok(text.leak())
}

/// A process with a small budget and two tenants, of which one is greedy.
pub struct Attacked {
    pub process: Process,
    pub tool: Tool,
    pub client: reqwest::Client,
    pub calls: u32,
    pub _folder: tempfile::TempDir,
}

impl Attacked {
    pub async fn start() -> Self {
        let (tool, folder) = (Tool::start().await, tempfile::tempdir().expect("a folder"));
        let config = format!(
            "{}{}{}{}",
            token("greedy"),
            token("quiet"),
            one_tool(&tool, ""),
            api(&tool, "max_body = \"2MiB\"")
        );
        let budget = format!("{BUDGET_MIB}MiB");
        let environment = [
            ("ONCEGATE_SERVER__MAX_MEMORY", &*budget),
            ("ONCEGATE_SERVER__MAX_CONNECTIONS", "6000"),
            // More than the system keeps of an answer by itself.
            ("ONCEGATE_SERVER__MAX_RESULT", "7MiB"),
        ];
        let process = Process::start_in(folder.path(), free_port(), &config, &environment).await;
        let mut attacked = Self {
            process,
            tool,
            client: client(),
            calls: 0,
            _folder: folder,
        };
        attacked.quiet_is_served().await;
        attacked
    }

    pub async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        // So that little of an answer is anywhere but in the gateway.
        socket.set_recv_buffer_size(4_096).expect("set");
        let address = format!("127.0.0.1:{}", self.process.port)
            .parse()
            .expect("an address");
        socket.connect(address).await.expect("a connection")
    }

    /// Connections on which this was said; some may have been closed by now.
    pub async fn say(&self, connections: usize, said: &[u8]) -> Vec<TcpStream> {
        let mut open = Vec::new();
        for _ in 0..connections {
            let mut stream = self.connect().await;
            // What is refused is not read to its end.
            drop(tokio::time::timeout(Duration::from_secs(5), stream.write_all(said)).await);
            open.push(stream);
        }
        open
    }

    /// The tenant that does no harm makes a call.
    pub async fn quiet_is_served(&mut self) {
        self.calls += 1;
        let body = format!("{{\"args\":{{\"n\":{}}}}}", self.calls);
        // A connection may be closed as a request comes on it: a client asks again, with the same arguments.
        for _ in 0..3 {
            let request = self
                .client
                .post(self.process.url("/v1/tools/act/calls"))
                .bearer_auth("quiet")
                .body(body.clone());
            if let Some(answer) = Answer::within(Duration::from_secs(60), request).await {
                answer.expect_ok();
                return;
            }
        }
        panic!("the quiet tenant is not served");
    }

    /// A stored call of the greedy tenant with a result of seven megabytes.
    pub async fn large(&self) -> String {
        self.tool.then(large(7_000_000));
        let request = self
            .client
            .post(self.process.url("/v1/tools/act/calls"))
            .bearer_auth("greedy");
        let answer = Answer::to(request.body("{\"args\":{}}")).await;
        answer
            .expect_ok()
            .at("/call_id")
            .as_str()
            .expect("an id")
            .to_owned()
    }

    /// The memory of the process, if this system says it.
    pub fn mib(&self) -> usize {
        let status = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(status).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap_or("0 kB");
        line.trim()
            .trim_end_matches(" kB")
            .parse::<usize>()
            .expect("a number")
            / 1024
    }

    #[track_caller]
    #[expect(
        clippy::print_stderr,
        reason = "figures for who runs it with --nocapture"
    )]
    pub fn check(&self, what: &str, before: usize) {
        let most = self.mib();
        eprintln!("{what}: {before} -> {most} MiB at most");
        assert!(
            most <= BUDGET_MIB + SLACK_MIB + before,
            "{what}: {most} MiB"
        );
    }
}

/// A frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The beginning of HTTP/2 with windows of 0, and GETs of these paths.
pub fn with_shut_windows<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for (n, path) in paths.into_iter().enumerate() {
        // :method GET, :scheme http, :path, :authority localhost
        let mut fields = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
        fields.extend(path.as_bytes());
        fields.extend([0x01, 9]);
        fields.extend(b"localhost");
        said.extend(frame(1, 5, 2 * u32::try_from(n).expect("few") + 1, &fields));
    }
    said
}
