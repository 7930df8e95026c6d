//! The words that the tests are written in.

pub mod arguments; // arguments of verbs, copied for later
pub mod binary; // the real binary as a process that can be killed
pub mod books; // a system that keeps books of what it has made
pub mod browser; // an operator with a browser
#[cfg(target_os = "linux")]
pub mod clock; // a wall clock that can be set
#[cfg(feature = "otel")]
pub mod collector; // takes spans
pub mod faulty; // a store that goes wrong
pub mod gateway; // a gateway in this process
pub mod mcp; // a client that speaks MCP
pub mod memory; // a store in memory that can lose its newest writes
pub mod net; // lines and ports between gateways and servers
#[cfg(feature = "postgres")]
pub mod postgres; // real PostgreSQL servers
pub mod program; // an MCP server that is a program, and counts its effects in a file
pub mod redis; // real Redis servers
pub mod rounds; // one round of a worker
pub mod search; // what a gateway has written, searched for secrets
pub mod shop; // the demo's shop as a process
pub mod stores; // a gateway on each store, and calls of one session
pub mod timings; // how fast gateways look at things
pub mod tool; // a tool that counts its effects and misbehaves on request
pub mod upstream; // an MCP server that does so

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

pub use self::gateway::Gateway;
pub use self::net::{far, line, ports};
pub use self::tool::{Act, Tool};

/// Trusts no server. Read roots, or made for each client, it would take longer than many a test.
static NO_TLS: LazyLock<rustls::ClientConfig> = LazyLock::new(|| {
    drop(rustls::crypto::ring::default_provider().install_default());
    let builder = rustls::ClientConfig::builder();
    builder
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
});

/// A client without retries, redirects and proxies.
#[expect(clippy::disallowed_methods, reason = "the agents of the tests")]
pub fn client() -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .retry(reqwest::retry::never())
        .no_proxy()
        .tls_backend_preconfigured(NO_TLS.clone());
    builder
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client")
}

/// What an endpoint answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Answer {
    /// The answer to a request.
    pub async fn to(request: reqwest::RequestBuilder) -> Self {
        Self::read(request.send().await.expect("an answer")).await
    }

    /// The answer to a request, if it comes whole within this time.
    pub async fn within(time: Duration, request: reqwest::RequestBuilder) -> Option<Self> {
        let whole = async {
            let response = request.send().await.ok()?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let text = response.text().await.ok()?;
            Some(Self {
                status,
                headers,
                text,
            })
        };
        timeout(time, whole).await.ok()?
    }

    pub async fn read(response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        Self {
            status,
            headers,
            text: response.text().await.expect("a body"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// A member of the body, by JSON Pointer; null if it is not there.
    pub fn at(&self, pointer: &str) -> Value {
        self.json().pointer(pointer).cloned().unwrap_or_default()
    }

    /// The bytes of the member `result`, as they came.
    pub fn result(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Body<'a> {
            #[serde(borrow)]
            result: &'a serde_json::value::RawValue,
        }
        let body: Body<'_> = serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text));
        body.result.get().to_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("ASCII"))
    }

    /// The id of the call that it is about.
    pub fn id(&self) -> String {
        let id = self.at("/call_id");
        id.as_str().expect("a call id").to_owned()
    }

    /// The names of the events in a history, in their order.
    pub fn events(&self) -> Vec<String> {
        let events = self.at("/events");
        let events = events.as_array().expect("a list").iter();
        let names = events.map(|event| event["event"].as_str().expect("a word"));
        names.map(str::to_owned).collect()
    }

    /// The name of the problem; empty for a success.
    pub fn problem(&self) -> String {
        self.at("/type")
            .as_str()
            .unwrap_or_default()
            .trim_start_matches("/problems/")
            .to_owned()
    }

    #[track_caller]
    pub fn expect_ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.text);
        self
    }

    #[track_caller]
    pub fn expect_problem(self, slug: &str) -> Self {
        assert_eq!(self.problem(), slug, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/problem+json");
        self
    }
}

/// How often something is tried: so many times, and in `make soak` as often again as `SOAK` says.
#[expect(
    clippy::disallowed_methods,
    reason = "how long a run of the tests may take"
)]
pub fn times(few: usize) -> usize {
    let soak = std::env::var("SOAK").map_or(1, |times| times.parse().expect("SOAK is a number"));
    few * soak
}

/// How long anything may take that must happen, on however busy a machine. A test that has waited for longer ends with the words
/// "not in time": `scripts/again` reads them.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a test that waits for something waits between two looks, at first and at most. Each look is often a request, and many
/// tests wait at once.
pub const PAUSE: Duration = Duration::from_millis(30);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Waits for a condition instead of sleeping for as long as it may take.
pub async fn until<F: AsyncFnMut() -> bool>(what: &str, mut holds: F) {
    let patience = Instant::now() + PATIENCE;
    let mut pause = PAUSE;
    while !holds().await {
        assert!(Instant::now() < patience, "not in time: {what}");
        sleep(pause).await;
        // Most waits are short, and the long ones take the processor from all others.
        pause = pause.mul_f64(1.3).min(LONGEST_PAUSE);
    }
}

/// Asks again while the answer is that it is under way.
pub async fn at_its_end(ask: impl AsyncFn() -> Answer) -> Answer {
    let patience = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if answer.status != 202 || Instant::now() > patience {
            return answer;
        }
        sleep(PAUSE).await;
    }
}

/// Waits until a gateway is ready, by the URL of its `/readyz`.
pub async fn until_ready(url: &str) {
    until("it is ready", async || {
        let answer = client().get(url).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

/// Whether this is a reason why nothing is claimed.
pub fn has_reason(readiness: &oncegate::store::Readiness, code: &str) -> bool {
    readiness.reasons.iter().any(|reason| reason.code == code)
}
