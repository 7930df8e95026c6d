//! One HTTP request to one tool, and what was observed of it.
//!
//! Promises: a request is sent at most once (no retries, no redirects, no proxy from the
//! environment, HTTP/1.1 only), never after its deadline, and "nothing was sent" is said only if no
//! byte was and none will be. Must not know what an observation means: that is `core::outcome`'s.

mod body; // reading what came back
mod client; // who waits for a call of an MCP server
mod gate; // whether the first byte may leave, and whether it did
mod mcp; // tools of MCP servers
pub mod outside; // systems that are no tools
mod own_headers; // headers from the configuration
mod pools; // which requests may share a connection

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::{Method, Url};
use tokio::time::{Instant, timeout_at};

use self::body::{chain, read, retry_after};
pub use self::client::Client;
pub use self::gate::Deadline;
use self::gate::{Gate, GatedBody};
use self::mcp::{ANOTHER, Http, McpCall, Programs, Settings, Way};
pub use self::mcp::{About, McpTool, Program, Question};
pub use self::own_headers::secret_header;
pub use self::pools::{NoClient, Party};
use self::pools::{Pool, Pools};
use crate::core::evidence::McpAnswer;
use crate::core::outcome::{Body, Evidence};
use crate::core::record::CallId;

/// The scheme over TLS.
const SECURE: &str = "https";

/// Where a tool lives.
#[derive(Clone)]
pub struct Endpoint {
    pub method: Method,
    pub url: Url,
    /// The tool's own credentials among them; those are marked sensitive.
    pub headers: HeaderMap,
    /// The probe's URL, with `{key}` in it.
    pub probe: Option<String>,
    /// The longest idle time of a pooled connection that is reused.
    ///
    /// `None`: none is reused.
    pub connection_reuse: Option<Duration>,
    /// The tool of an MCP server, which is asked by POST.
    pub mcp: Option<McpTool>,
    /// The tool of an MCP server that is asked whether a call was executed.
    pub asked: Option<Box<Endpoint>>,
}

impl Endpoint {
    fn is_secure(&self) -> bool {
        let probe = self
            .probe
            .as_ref()
            .and_then(|probe| probe.get(..SECURE.len()));
        self.url.scheme() == SECURE
            || probe.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SECURE))
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
        let probe = self
            .probe
            .as_ref()
            .map(|url| url.parse().map_or("…".to_owned(), |url| place(&url)));
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

/// What one attempt sends, beside the endpoint's own headers.
#[derive(Debug)]
pub struct Request {
    /// Its connection is shared with no other party.
    pub party: Party,
    /// The call that is sent.
    pub call_id: CallId,
    pub headers: HeaderMap,
    /// One JSON object.
    pub body: Bytes,
    /// The client that waits for it, if the tool is one of an MCP server.
    pub client: Client,
    /// Right before the first byte the clock is asked once more; later than this nothing is sent.
    pub send_before: Deadline,
}

/// In an answer: the newest token that the tool has seen of the session.
const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// In an answer: the call that it is for, if the tool says so.
const CALL_ID: HeaderName = HeaderName::from_static("x-call-id");

/// Sends requests to tools, and to systems that are not tools.
#[derive(Debug)]
pub struct Downstream {
    /// They stay when tools are swapped.
    pools: Arc<Pools>,
    programs: Programs,
    max_result: usize,
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
        };
        downstream.serve(endpoints)?;
        Ok(downstream)
    }

    /// The longest result, in bytes.
    pub fn max_result(&self) -> usize {
        self.max_result
    }

    /// From now on these can be asked. Programs that are not among them end.
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

    /// Asks a tool whether it knows this key: a GET with the tool's own credentials. Answers with status,
    /// body and how long the tool asks to wait, or says why there is no answer by then.
    ///
    /// # Errors
    /// The tool has no door for it, or did not answer.
    pub async fn probe(
        &self,
        endpoint: &Endpoint,
        party: Party,
        key: &str,
        by: Instant,
    ) -> Result<(u16, Body, Option<Duration>), String> {
        let url = endpoint.probe.as_ref().map(|url| url.replace("{key}", key));
        let url = url.ok_or("the tool has no door for it")?;
        let url: Url = url.parse().map_err(|_| "its URL cannot be read")?;
        let client = self
            .pools
            .client(&endpoint.pool(party))
            .map_err(|error| error.to_string())?;
        let asked = client.get(url).headers(endpoint.headers.clone()).send();
        let response = timeout_at(by, asked)
            .await
            .map_err(|_| "it did not answer in time")?;
        match answer(
            response.map_err(|error| chain(&error))?,
            self.max_result,
            by,
        )
        .await
        {
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

    /// Asks an MCP server what executes nothing.
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

    /// What an MCP server says of itself.
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

    /// The MCP server of an endpoint; one that has a URL is asked by this client.
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

    /// Ends the programs that were started, and the sessions that were opened. Nothing is asked any more.
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
            client: waiting,
            send_before,
        } = request;
        let (gate, pool) = (Gate::new(), endpoint.pool(party));
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
            (Ok(client), None) => {
                let body = GatedBody::new(gate.clone(), body, send_before);
                let send = client
                    .request(endpoint.method.clone(), endpoint.url.clone())
                    .header(CONTENT_TYPE, "application/json")
                    .headers(endpoint.headers.clone())
                    .headers(headers)
                    .body(reqwest::Body::wrap(body))
                    .send();
                Box::pin(async {
                    let response = send.await.map_err(|error| chain(&error));
                    response.map(Reply::Http)
                })
            }
            (Err(error), _) => Box::pin(async move { Err(error.to_string()) }),
        };
        let pools = self.pools.clone();
        Exchange {
            gate,
            reply,
            max_result: self.max_result,
            head: None,
            call_id,
            pool,
            pools,
        }
    }
}

/// What came back.
enum Reply {
    /// A status line; the body is still to come.
    Http(reqwest::Response),
    /// A response, read to its end.
    Mcp(McpAnswer),
}

/// A request under way. Dropping it closes its connection; what was sent stays sent.
pub struct Exchange {
    gate: Gate,
    reply: Pin<Box<dyn Future<Output = Result<Reply, String>> + Send>>,
    max_result: usize,
    /// The status and the tool's newest fencing token, at once.
    head: Option<(u16, Option<u64>)>,
    call_id: CallId,
    pool: Pool,
    pools: Arc<Pools>,
}

impl Exchange {
    /// What came of the request; `None`: no status line at `head_by`, or of an MCP server no response.
    ///
    /// Then it may be asked again. The body of an answer is read until `body_by`.
    pub async fn until(&mut self, head_by: Instant, body_by: Instant) -> Option<Evidence> {
        Some(match timeout_at(head_by, &mut self.reply).await.ok()? {
            // The answer to this request may still come: nothing is known of it.
            Ok(Reply::Http(response)) if self.is_for_another_call(&response) => {
                self.pools.close(&self.pool);
                Evidence::NoAnswer {
                    why: "the tool answered another call than it was sent".into(),
                }
            }
            Ok(Reply::Http(response)) => {
                self.head = Some((response.status().as_u16(), newest_token(&response)));
                answer(response, self.max_result, body_by).await
            }
            Ok(Reply::Mcp(answer)) => {
                // The answer to this request may still come, and meet the next one there.
                if matches!(&answer.body, Body::Broken(why) if why == ANOTHER) {
                    self.pools.close(&self.pool);
                }
                Evidence::Mcp(answer)
            }
            Err(why) => self.give_up(&why),
        })
    }

    /// Whether the tool names an earlier call of these connections.
    ///
    /// An id that was never sent there may be the tool's own.
    fn is_for_another_call(&self, response: &reqwest::Response) -> bool {
        let named = response
            .headers()
            .get(CALL_ID)
            .and_then(|id| id.to_str().ok()?.trim().parse().ok());
        named.is_some_and(|named| {
            CallId(named) != self.call_id && self.pools.has_sent(&self.pool, CallId(named))
        })
    }

    /// Tells whether the first byte has left.
    pub fn watch_sending(&self) -> impl Fn() -> bool + use<> {
        let gate = self.gate.clone();
        move || gate.is_sent()
    }

    /// What is observed of a request that one waits for no longer. If its first byte has not left,
    /// it never will.
    pub fn give_up(&self, why: &str) -> Evidence {
        let why = why.to_owned();
        match self.head {
            Some((status, newest_token)) => Evidence::Answer {
                status,
                body: Body::Broken(why),
                retry_after: None,
                newest_token,
            },
            None if self.gate.withdraw() => Evidence::NotSent { why },
            None => Evidence::NoAnswer { why },
        }
    }
}

async fn answer(response: reqwest::Response, max_result: usize, body_by: Instant) -> Evidence {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(retry_after);
    let newest_token = newest_token(&response);
    let body = match timeout_at(body_by, read(response, max_result)).await {
        Ok(body) => body,
        Err(_) => Body::Broken("it did not end in time".into()),
    };
    Evidence::Answer {
        status,
        body,
        retry_after,
        newest_token,
    }
}

/// The newest token that the tool says it has seen.
fn newest_token(response: &reqwest::Response) -> Option<u64> {
    response
        .headers()
        .get(FENCING_TOKEN)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}
