//! One HTTP request to one tool, and the evidence of it.
//!
//! Promises: a request is sent at most once (no retries, no redirects, no proxy from the
//! environment, HTTP/1.1 only), never after its deadline, and "nothing was sent" is said only if no
//! byte was and none will be. Must not know what an observation means: that is `core::outcome`'s.

mod body; // reading what came back
mod client; // who waits for a call of an MCP server
mod exchange; // what is observed of one request
mod fresh; // requests without a body
mod gate; // whether the first byte may leave, and whether it did
#[cfg(test)]
pub(crate) mod line; // a network of a simulation
mod mcp; // tools of MCP servers
pub mod outside; // systems that are no tools
mod own_headers; // headers from the configuration
mod passed_headers; // headers that go through as they are
mod pools; // which requests may share a connection
mod proxied; // requests that go through as they are

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use tokio::time::{Instant, timeout_at};

use self::body::chain;
pub use self::client::Client;
pub use self::exchange::Exchange;
use self::exchange::{Reply, answer};
use self::fresh::Bodiless;
pub use self::gate::Deadline;
use self::gate::{Gate, GatedBody};
pub use self::mcp::{About, McpTool, Program, Question};
use self::mcp::{Http, McpCall, Programs, Settings, Way};
pub use self::own_headers::{check_header, secret_header};
pub use self::passed_headers::{as_header, passed};
pub use self::pools::{NoClient, Party};
use self::pools::{Pool, Pools};
use crate::core::evidence::McpAnswer;
use crate::core::outcome::{Body, Evidence};
use crate::core::record::CallId;
use crate::uptime::since_boot;

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
    /// ([`proxy::reply`](crate::core::proxy::reply)).
    pub is_proxy: bool,
    /// The longest answer, in bytes. `None`: the same as for all tools.
    pub max_answer: Option<usize>,
    /// The MCP tool that is asked whether a call was executed.
    pub asked: Option<Box<Endpoint>>,
}

impl Endpoint {
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

/// Prints only the beginning of a URL.
///
/// User, path and query may be secrets.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |url: &Url| {
            format!(
                "{}://{}/…",
                url.scheme(),
                url.host_str().unwrap_or_default()
            )
        };
        let probe = self.probe.as_ref().map(place);
        f.debug_struct("Endpoint")
            .field("method", &self.method)
            .field("url", &place(&self.url))
            .field("headers", &self.headers)
            .field("probe", &probe)
            .field("connection_reuse", &self.connection_reuse)
            .field("mcp", &self.mcp)
            .field("asked", &self.asked)
            .finish()
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
    /// The gate compares this deadline right before the first byte: later nothing is sent.
    pub send_before: Deadline,
}

/// Sends requests to tools, and to systems that are not tools.
#[derive(Debug)]
pub struct Downstream {
    /// The pools stay when tools are swapped.
    pools: Arc<Pools>,
    programs: Programs,
    max_result: usize,
    /// A simulation's network; `None`: the real one.
    #[cfg(test)]
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
    ) -> Result<Self, NoClient> {
        let downstream = Self {
            pools: Arc::default(),
            programs: Programs::default(),
            max_result,
            #[cfg(test)]
            line: None,
        };
        downstream.serve(endpoints)?;
        Ok(downstream)
    }

    /// Sends all requests over a simulated network.
    #[cfg(test)]
    pub(crate) fn over(line: Arc<dyn line::Line>, max_result: usize) -> Self {
        Self {
            pools: Arc::default(),
            programs: Programs::default(),
            max_result,
            line: Some(line),
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
    ) -> Result<(), NoClient> {
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        if endpoints.iter().any(|endpoint| endpoint.is_secure()) {
            self.pools.prepare_tls()?;
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
    /// The tool has no door for it, or did not answer.
    pub async fn probe(
        &self,
        endpoint: &Endpoint,
        party: Party,
        url: &str,
        by: Instant,
    ) -> Result<(u16, Body, Option<Duration>), String> {
        let example = endpoint.probe.as_ref();
        let url = same_origin(url, example.ok_or("the tool has no door for it")?)?;
        #[cfg(test)]
        if let Some(line) = &self.line {
            let asked = timeout_at(by, line.clone().ask(url)).await;
            let response = asked.map_err(|_| "it did not answer in time")??;
            return self.read_probe(response, by).await;
        }
        let client = self
            .pools
            .client(&endpoint.pool(party))
            .map_err(|error| error.to_string())?;
        let asked = client.get(url).headers(endpoint.headers.clone()).send();
        let response = timeout_at(by, asked)
            .await
            .map_err(|_| "it did not answer in time")?;
        let response = response.map_err(|error| chain(&error))?;
        self.read_probe(response, by).await
    }

    /// Reads the answer to a probe.
    async fn read_probe(
        &self,
        response: reqwest::Response,
        by: Instant,
    ) -> Result<(u16, Body, Option<Duration>), String> {
        match answer(response, self.max_result, by).await {
            Evidence::Answer {
                status,
                body,
                retry_after,
                ..
            } => Ok((status, body, retry_after)),
            _ => Err("it did not answer".into()),
        }
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
        let asked = call.send(Gate::new(), send_before);
        timeout_at(by, asked)
            .await
            .unwrap_or_else(|_| Err("it did not answer in time".into()))
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
        let Question {
            method,
            name,
            params,
        } = question;
        let call = self.call_to(endpoint, party, Bytes::new())?;
        let asked = call.forward(method, name, params);
        timeout_at(by, asked)
            .await
            .unwrap_or_else(|_| Err("it did not answer in time".into()))
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
        timeout_at(by, call.about())
            .await
            .unwrap_or_else(|_| Err("it did not answer in time".into()))
    }

    fn call_to(&self, endpoint: &Endpoint, party: Party, args: Bytes) -> Result<McpCall, String> {
        let tool = endpoint.mcp.clone().ok_or("it is no tool of an upstream")?;
        let pool = endpoint.pool(party);
        let client = self.pools.client(&pool);
        let client = client.map_err(|error| error.to_string())?;
        Ok(McpCall {
            way: self.way(endpoint, &tool, &pool, client)?,
            tool,
            headers: HeaderMap::new(),
            args,
            waiting: Client::default(),
            max_result: self.max_result,
        })
    }

    /// How the MCP server of an endpoint is reached; one with a URL by this client.
    ///
    /// # Errors
    /// It is a program that is configured no more.
    fn way(
        &self,
        endpoint: &Endpoint,
        tool: &McpTool,
        pool: &Pool,
        client: reqwest::Client,
    ) -> Result<Way, String> {
        if let Some(start) = tool.start(self.max_result) {
            return self.programs.server(start).map(Way::Program);
        }
        let settings = Settings {
            url: endpoint.url.clone(),
            own: endpoint.headers.clone(),
            era: tool.era,
        };
        Ok(Way::Http(Http {
            client,
            agreed: self.pools.agreed(pool, &settings),
            settings,
        }))
    }

    /// Ends the programs that were started and the sessions that were opened.
    ///
    /// Nothing is sent after that.
    pub async fn close(&self) {
        let sessions = self.pools.take_agreed().into_iter().map(Http::end);
        let ending = async { drop(futures_util::future::join_all(sessions).await) };
        tokio::join!(ending, self.programs.stop());
    }

    /// Begins an exchange. Nothing happens until it is awaited.
    pub fn dispatch(&self, endpoint: &Endpoint, request: Request) -> Exchange {
        let Request {
            party,
            call_id,
            headers,
            body,
            is_write,
            client: waiting,
            send_before,
        } = request;
        let (gate, pool) = (Gate::new(), endpoint.pool(party));
        #[cfg(test)]
        if let Some(line) = self.line.clone() {
            let passing = gate.clone();
            let letter = line::Letter {
                call_id,
                url: endpoint.url.clone(),
                headers: joined(&endpoint.headers, headers),
                body,
                pass: Box::new(move || passing.send(&send_before, since_boot())),
            };
            return Exchange {
                gate,
                reply: Box::pin(async move { line.send(letter).await.map(Reply::Http) }),
                max_result: self.max_result,
                keeps_head: endpoint.is_proxy,
                head: None,
                call_id,
                pool,
                pools: self.pools.clone(),
            };
        }
        let client = self.pools.client_for_call(&pool, call_id);
        let reply: Pin<Box<dyn Future<Output = _> + Send>> = match (client, &endpoint.mcp) {
            (Ok(client), Some(tool)) => {
                let (way, tool) = (self.way(endpoint, tool, &pool, client), tool.clone());
                let (gate, max_result) = (gate.clone(), self.max_result);
                Box::pin(async move {
                    let call = McpCall {
                        way: way?,
                        tool,
                        headers,
                        args: body,
                        waiting,
                        max_result,
                    };
                    call.send(gate, send_before).await.map(Reply::Mcp)
                })
            }
            (Ok(_), None) if body.is_empty() && is_write => {
                let (method, url) = (endpoint.method.clone(), endpoint.url.clone());
                let (tls, gate) = (self.pools.tls_for(&url), gate.clone());
                let headers = joined(&endpoint.headers, headers);
                Box::pin(async move {
                    let tls = tls.map_err(|error| error.to_string())?;
                    let bodiless = Bodiless {
                        method,
                        url,
                        headers,
                        tls,
                    };
                    bodiless.send(gate, send_before).await.map(Reply::Http)
                })
            }
            (Ok(client), None) => {
                let is_gated = !body.is_empty();
                let body = is_gated.then(|| GatedBody::new(gate.clone(), body, send_before));
                let request = client
                    .request(endpoint.method.clone(), endpoint.url.clone())
                    .headers(joined(&endpoint.headers, headers));
                let request = match body {
                    Some(body) => request.body(reqwest::Body::wrap(body)),
                    None => request,
                };
                let send = request.send();
                let gate = (!is_gated).then(|| gate.clone());
                Box::pin(async move {
                    if let Some(gate) = gate {
                        gate.send(&send_before, since_boot())?;
                    }
                    match send.await {
                        Ok(response) => Ok(Reply::Http(response)),
                        Err(error) if !is_gated && error.is_connect() => {
                            Ok(Reply::NotSent(chain(&error)))
                        }
                        Err(error) => Err(chain(&error)),
                    }
                })
            }
            (Err(error), _) => Box::pin(async move { Err(error.to_string()) }),
        };
        Exchange {
            gate,
            reply,
            max_result: endpoint.max_answer.unwrap_or(self.max_result),
            keeps_head: endpoint.is_proxy,
            head: None,
            call_id,
            pool,
            pools: self.pools.clone(),
        }
    }
}

/// A URL with the same host as the example.
///
/// # Errors
/// It does not. The URL is not repeated: it may hold secrets.
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
