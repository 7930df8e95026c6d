//! One HTTP request to one tool, and the evidence of it.
//!
//! Promises: a request is sent at most once (no retries, no redirects, no proxy from the
//! environment, HTTP/1.1 only), never after its deadline, and "nothing was sent" is said only if no
//! byte was and none will be. Must not know what an observation means: that is `rules::outcome`'s.
//!
//! An argument in a URL cannot lead a call, and the credentials with it, to another host:
//!
//! ```
//! use oncegate_tools::Endpoint;
//! use reqwest::header::HeaderMap;
//!
//! let url = "https://shop.example/orders/{id}".parse()?;
//! let endpoint = Endpoint::new(url, HeaderMap::new(), None);
//! assert!(endpoint.for_call("https://shop.example/orders/7").is_ok());
//! assert!(endpoint.for_call("https://elsewhere.example/orders/7").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body; // sending once, and reading what came back
mod client; // who waits for a call of an MCP server
mod exchange; // what is observed of one request
mod fresh; // requests without a body
mod gate; // whether the first byte may leave, and whether it did
mod headers; // headers from the configuration, and those that go through as they are
#[cfg(any(test, feature = "simulate"))]
pub mod line; // a network of a simulation
mod mcp; // tools of MCP servers
pub mod outside; // systems that are not tools
mod pools; // which requests may share a connection
mod proxied; // requests that go through as they are
mod signed; // signatures of events

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use tokio::time::{Instant, timeout_at};

use self::body::{chain, read_until, retry_after, send};
pub use self::client::Client;
pub use self::exchange::Exchange;
use self::exchange::Reply;
pub use self::gate::Deadline;
use self::gate::{Gate, GatedBody};
pub use self::headers::{as_header, check_header, forwardable, secret_header};
pub use self::mcp::{About, McpTool, Program, Question, UpstreamAt};
use self::mcp::{Http, McpCall, Programs, Settings, Way};
pub use self::pools::Party;
use self::pools::{Pool, Pools, Sent};
use oncegate_hooks::uptime::since_boot;
use oncegate_rules::evidence::McpAnswer;
use oncegate_rules::outcome::Body;
use oncegate_rules::record::CallId;

/// The scheme of URLs over TLS.
const SECURE: &str = "https";

/// The address of a tool, and how to talk to it.
#[derive(Clone)]
pub struct Endpoint {
    pub method: Method,
    pub url: Url,
    /// The tool's own headers. Credentials among them are marked sensitive.
    pub headers: HeaderMap,
    /// An example of the probe's URL.
    pub probe: Option<Url>,
    /// The longest idle time of a pooled connection that is reused.
    ///
    /// `None`: none is reused.
    pub connection_reuse: Option<Duration>,
    /// The tool of an MCP server, which gets POST requests.
    pub mcp: Option<McpTool>,
    /// Whether callers use the API as it is: then status and headers of an answer are kept, too
    /// ([`proxy::reply`](oncegate_rules::proxy::reply)).
    pub is_proxy: bool,
    /// The longest answer, in bytes. `None`: the same as for all tools.
    pub max_answer: Option<usize>,
    /// The MCP tool that is asked whether a call was executed.
    pub asked: Option<Box<Endpoint>>,
}

impl Endpoint {
    /// An endpoint that gets POST requests.
    pub fn new(url: Url, headers: HeaderMap, connection_reuse: Option<Duration>) -> Self {
        Self {
            method: Method::POST,
            url,
            headers,
            probe: None,
            connection_reuse,
            mcp: None,
            is_proxy: false,
            max_answer: None,
            asked: None,
        }
    }

    fn is_secure(&self) -> bool {
        let probe = self.probe.as_ref();
        self.url.scheme() == SECURE || probe.is_some_and(|url| url.scheme() == SECURE)
    }

    /// The same, with the URL of one call.
    ///
    /// # Errors
    /// It leads to another host than that of the configuration.
    pub fn for_call(&self, url: &str) -> Result<Self, String> {
        let url = same_origin(url, &self.url)?;
        Ok(Self {
            url,
            ..self.clone()
        })
    }

    fn pool(&self, party: Party) -> Pool {
        Pool {
            party,
            reuse: self.connection_reuse,
            is_secure: self.is_secure(),
        }
    }
}

/// Prints only the origin of the URL.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&origin_only(&self.url))
    }
}

/// The request of one attempt, beside the endpoint's own headers.
#[derive(Debug)]
pub struct Request {
    /// Its connection is shared with no other party.
    pub party: Party,
    /// The call of this request.
    pub call_id: CallId,
    /// The headers, with the type of the body.
    pub headers: HeaderMap,
    /// The body; for the tool of an MCP server, one JSON object.
    pub body: Bytes,
    /// A request that only reads needs no gate.
    pub is_write: bool,
    /// The MCP client that waits for the call, if there is one.
    pub client: Client,
    /// Whether the call was sent again already, because an MCP server had forgotten a session.
    pub is_sent_again: bool,
    /// Whether an MCP server may answer with a task.
    pub takes_task: bool,
    /// The gate compares this deadline right before the first byte: later nothing is sent.
    pub send_before: Deadline,
}

/// Sends requests to tools, and to systems that are not tools.
#[derive(Default)]
pub struct Downstream {
    /// The pools stay when tools are swapped.
    pools: Arc<Pools>,
    programs: Programs,
    max_result: usize,
    /// A simulation's network; `None`: the real one.
    #[cfg(any(test, feature = "simulate"))]
    line: Option<Arc<dyn line::Line>>,
}

impl Downstream {
    /// `max_result` is in bytes: a longer answer is not read to its end.
    ///
    /// # Errors
    /// An endpoint needs TLS, and no roots to trust are found.
    pub fn new<'a>(
        endpoints: impl IntoIterator<Item = &'a Endpoint>,
        max_result: usize,
    ) -> Result<Self, String> {
        let downstream = Self {
            max_result,
            ..Self::default()
        };
        downstream.serve(endpoints)?;
        Ok(downstream)
    }

    /// Sends all requests over a simulated network.
    #[cfg(any(test, feature = "simulate"))]
    pub fn over(line: Arc<dyn line::Line>, max_result: usize) -> Self {
        Self {
            max_result,
            line: Some(line),
            ..Self::default()
        }
    }

    /// The longest result, in bytes.
    pub fn max_result(&self) -> usize {
        self.max_result
    }

    /// Sets the endpoints that can be asked from now on. Other programs end.
    ///
    /// # Errors
    /// One needs TLS, and no roots to trust are found.
    pub fn serve<'a>(
        &self,
        endpoints: impl IntoIterator<Item = &'a Endpoint>,
    ) -> Result<(), String> {
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        if endpoints.iter().any(|endpoint| endpoint.is_secure()) {
            // A lack of trusted roots is noticed at the start.
            self.pools.tls()?;
        }
        let tools = endpoints.iter().filter_map(|at| at.mcp.as_ref());
        let programs = tools.filter_map(|tool| tool.start(self.max_result));
        self.programs.keep(programs.collect());
        Ok(())
    }

    /// Probes a tool: GETs this URL with the tool's own credentials.
    ///
    /// Answers with status, body and how long the tool asks to wait, or says why there is no answer
    /// by then.
    ///
    /// # Errors
    /// The tool has no probe, or did not answer.
    pub async fn probe(
        &self,
        endpoint: &Endpoint,
        party: Party,
        url: &str,
        by: Instant,
    ) -> Result<(u16, Body, Option<Duration>), String> {
        let example = endpoint.probe.as_ref();
        let url = same_origin(url, example.ok_or("the tool has no endpoint for it")?)?;
        let asked = async {
            #[cfg(any(test, feature = "simulate"))]
            if let Some(line) = &self.line {
                return line.clone().ask(url).await;
            }
            let client = self.pools.client(&endpoint.pool(party))?;
            send(client.get(url).headers(endpoint.headers.clone())).await
        };
        let response = in_time(by, asked).await?;
        let status = response.status().as_u16();
        let wait = retry_after(response.headers());
        Ok((
            status,
            read_until(by, response, self.max_result).await,
            wait,
        ))
    }

    /// Calls a tool of an MCP server that only reads, without a key.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn ask(
        &self,
        endpoint: &Endpoint,
        party: Party,
        args: Bytes,
        by: Instant,
    ) -> Result<McpAnswer, String> {
        let call = self.call_to(endpoint, party, args)?;
        let send_before = Deadline::after(by.saturating_duration_since(Instant::now()));
        in_time(by, call.send(Gate::new(), send_before)).await
    }

    /// Sends an MCP server a request that executes nothing.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn forward(
        &self,
        endpoint: &Endpoint,
        party: Party,
        question: Question<'_>,
        by: Instant,
    ) -> Result<McpAnswer, String> {
        let call = self.call_to(endpoint, party, Bytes::new())?;
        in_time(by, call.forward(question)).await
    }

    /// An MCP server's description of itself.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn about(
        &self,
        endpoint: &Endpoint,
        party: Party,
        by: Instant,
    ) -> Result<Arc<About>, String> {
        let call = self.call_to(endpoint, party, Bytes::new())?;
        in_time(by, call.about()).await
    }

    fn call_to(&self, endpoint: &Endpoint, party: Party, args: Bytes) -> Result<McpCall, String> {
        let pool = endpoint.pool(party);
        let client = self.pools.client(&pool)?;
        self.mcp_call(endpoint, &pool, client, args)
    }

    /// A request to an MCP server: by this client, or to its program.
    ///
    /// # Errors
    /// The endpoint is of no MCP server, or of a program that is not configured any more.
    fn mcp_call(
        &self,
        endpoint: &Endpoint,
        pool: &Pool,
        client: reqwest::Client,
        args: Bytes,
    ) -> Result<McpCall, String> {
        let tool = endpoint
            .mcp
            .clone()
            .ok_or("it is not a tool of an upstream")?;
        let way = if let Some(start) = tool.start(self.max_result) {
            Way::Program(self.programs.server(start)?)
        } else {
            let settings = Settings {
                url: endpoint.url.clone(),
                own: endpoint.headers.clone(),
                era: tool.era,
            };
            Way::Http(Http {
                client,
                agreed: self.pools.agreed(pool, &settings),
                settings,
            })
        };
        Ok(McpCall {
            way,
            tool,
            headers: HeaderMap::new(),
            args,
            waiting: Client::default(),
            max_result: self.max_result,
            is_sent_again: false,
            takes_task: false,
        })
    }

    /// Ends the programs that were started and the sessions that were opened.
    ///
    /// Nothing is sent after that.
    pub async fn close(&self) {
        let sessions = self.pools.take_agreed().into_iter().map(Http::end);
        tokio::join!(join_all(sessions), self.programs.stop());
    }

    /// Begins an exchange. Nothing happens until it is awaited.
    pub fn dispatch(&self, endpoint: &Endpoint, request: Request) -> Exchange {
        let (gate, call_id) = (Gate::new(), request.call_id);
        let pool = endpoint.pool(request.party.clone());
        let (reply, sent) = self.reply(endpoint, request, gate.clone(), &pool);
        Exchange {
            reply,
            sent,
            gate,
            max_result: endpoint.max_answer.unwrap_or(self.max_result),
            keeps_head: endpoint.is_proxy,
            head: None,
            call_id,
            pool,
            pools: self.pools.clone(),
        }
    }

    /// Sends a request when it is awaited, and only through the gate. Also says which calls the connections of its pool have sent.
    fn reply(
        &self,
        endpoint: &Endpoint,
        request: Request,
        gate: Gate,
        pool: &Pool,
    ) -> (BoxFuture<'static, Result<Reply, String>>, Sent) {
        #[cfg(any(test, feature = "simulate"))]
        if let Some(line) = self.line.clone() {
            let send_before = request.send_before;
            let letter = line::Letter {
                call_id: request.call_id,
                url: endpoint.url.clone(),
                headers: joined(&endpoint.headers, request.headers),
                body: request.body,
                pass: Box::new(move || gate.send(&send_before, since_boot())),
            };
            let reply = Box::pin(async move { line.send(letter).await.map(Reply::Http) });
            return (reply, Sent::default());
        }
        match self.pools.client_for_call(pool, request.call_id) {
            Ok((client, sent)) => (self.reply_by(client, endpoint, request, gate, pool), sent),
            Err(why) => (Box::pin(async { Err(why) }), Sent::default()),
        }
    }

    fn reply_by(
        &self,
        client: reqwest::Client,
        endpoint: &Endpoint,
        request: Request,
        gate: Gate,
        pool: &Pool,
    ) -> BoxFuture<'static, Result<Reply, String>> {
        let Request {
            headers,
            body,
            is_write,
            client: waiting,
            is_sent_again,
            takes_task,
            send_before,
            ..
        } = request;
        if endpoint.mcp.is_some() {
            let call = self.mcp_call(endpoint, pool, client, body);
            return Box::pin(async move {
                let call = McpCall {
                    headers,
                    waiting,
                    is_sent_again,
                    takes_task,
                    ..call?
                };
                call.send(gate, send_before).await.map(Reply::Mcp)
            });
        }
        let mut headers = joined(&endpoint.headers, headers);
        if body.is_empty() {
            fresh::say_empty(&endpoint.method, &mut headers);
        }
        let request = client
            .request(endpoint.method.clone(), endpoint.url.clone())
            .headers(headers);
        if !body.is_empty() {
            let body = reqwest::Body::wrap(GatedBody::new(gate, body, send_before));
            return Box::pin(async { send(request.body(body)).await.map(Reply::Http) });
        }
        if is_write {
            let is_secure = endpoint.url.scheme() == SECURE;
            let tls = is_secure.then(|| self.pools.tls()).transpose();
            return Box::pin(async move {
                let request = request.build().map_err(|error| chain(&error))?;
                let answered = fresh::send(request, tls?, gate, send_before).await;
                answered.map(Reply::Http)
            });
        }
        Box::pin(async move {
            gate.send(&send_before, since_boot())?;
            match request.send().await {
                Ok(response) => Ok(Reply::Http(response)),
                Err(error) if error.is_connect() => Ok(Reply::NotSent(chain(&error))),
                Err(error) => Err(chain(&error)),
            }
        })
    }
}

/// Waits for an answer until `by`.
async fn in_time<T>(
    by: Instant,
    answer: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let answered = timeout_at(by, answer).await;
    answered.unwrap_or_else(|_| Err("it did not answer in time".into()))
}

/// Scheme, host and port of a URL. Its user, path and query may be secrets.
pub fn origin_only(url: &Url) -> String {
    format!("{}/…", url.origin().ascii_serialization())
}

/// Whether a URL is of http or https, with a host.
pub fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | SECURE) && url.has_host()
}

/// A URL with the same origin as the example.
///
/// # Errors
/// It has another one. The URL is not repeated: it may hold secrets.
fn same_origin(url: &str, example: &Url) -> Result<Url, String> {
    let url: Url = url.parse().map_err(|_| "its URL cannot be read")?;
    if url.origin() != example.origin() {
        return Err("its URL leads to another host".into());
    }
    Ok(url)
}

/// The tool's own headers, replaced by those of one call.
fn joined(own: &HeaderMap, of_call: HeaderMap) -> HeaderMap {
    let mut all = own.clone();
    all.extend(of_call);
    all
}
