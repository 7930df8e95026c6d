//! Requests to MCP servers, over HTTP or to a program's standard input.
//!
//! One message for one attempt, through the gate; what is asked before it executes nothing. No request is sent again
//! here, but for questions that execute nothing.

mod agreement; // revision, session, and what there is
mod http; // servers that have a URL
mod pipe; // messages over standard input and output
mod program; // servers that are programs of this machine
mod programs; // which of them there are
mod upstream; // a server, as the configuration has it

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

pub use self::agreement::About;
pub(super) use self::http::{Agreed, Http, Settings};
pub use self::program::Program;
use self::program::{Running, Server, Start};
pub(super) use self::programs::Programs;
pub use self::upstream::UpstreamAt;
use super::client::Client;
use super::gate::{Deadline, Gate, GatedBody};
use oncegate_rules::evidence::{Body, McpAnswer};
use oncegate_rules::mcp::elicitation;
use oncegate_rules::mcp::evidence::{OWN_ID, ends_agreement, may_have_forgotten};
use oncegate_rules::mcp::members::Members;
use oncegate_rules::mcp::mirrored::{self, Mirrored};
use oncegate_rules::mcp::request::{self, CallMeta};
use oncegate_rules::mcp::revision::{Era, encode};

/// The number of requests so far, for their ids.
///
/// No two requests of a process have the same id.
static SENT: AtomicU64 = AtomicU64::new(1);

/// A tool of an MCP server. The endpoint has the server's URL, if it has one.
#[derive(Clone)]
pub struct McpTool {
    /// The name of the server's section.
    pub upstream: String,
    /// The tool's name on the server.
    pub name: String,
    /// `None`: the server is asked for it.
    pub era: Option<Era>,
    /// The program on this machine, if the server is one.
    pub program: Option<Arc<Program>>,
    /// Arguments that a request repeats in its headers.
    pub mirrored: Vec<Mirrored>,
    /// Whether no section of `[tools]` names the tool.
    pub is_unlisted: bool,
}

impl McpTool {
    /// How to start the server, if it is a program.
    pub(super) fn start(&self, max_line: usize) -> Option<Start> {
        Some(Start {
            name: self.upstream.clone(),
            program: self.program.clone()?,
            era: self.era,
            max_line,
        })
    }
}

/// A request that executes nothing.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub method: &'static str,
    /// `params.name` or `params.uri`, for the methods that have it.
    pub name: Option<&'a str>,
    pub params: &'a Members<'a>,
}

/// How a server is reached.
pub(super) enum Way {
    Http(Http),
    Program(Arc<Server>),
}

/// A request to a server.
pub(super) struct McpCall {
    pub(super) way: Way,
    pub(super) tool: McpTool,
    pub(super) headers: HeaderMap,
    pub(super) args: Bytes,
    /// The client that waits for the call.
    pub(super) waiting: Client,
    pub(super) max_result: usize,
    /// Whether the call was sent again already, because the server had forgotten a session.
    pub(super) is_sent_again: bool,
    /// Whether the server may answer with a task.
    pub(super) takes_task: bool,
}

impl McpCall {
    /// Agrees with the server if need be, sends the call, and reads its response.
    ///
    /// # Errors
    /// There is no answer; whether the call was sent says the gate.
    pub(super) async fn send(self, gate: Gate, send_before: Deadline) -> Result<McpAnswer, String> {
        let http = match &self.way {
            Way::Http(http) => http,
            Way::Program(server) => {
                let running = server.ready().await?;
                let (id, message) = self.message(running.agreement.is_modern())?;
                let gate = Some((gate, send_before));
                return ask(&running, &id, &message, gate, self.waiting).await;
            }
        };
        let agreement = http.agreement().await?;
        let (id, message) = self.message(agreement.is_modern())?;
        let mut headers = agreement.headers("tools/call");
        headers.extend(self.headers.clone());
        if agreement.is_modern() {
            headers.extend(self.mirrored()?);
        }
        let body = reqwest::Body::wrap(GatedBody::new(gate, message, send_before));
        let (request, max) = ((&*id, &self.waiting), self.max_result);
        let sent = http.send(&agreement, headers, body, request, max);
        let mut answer = sent.await?;
        // Whether the server has executed the call, its word about a lost session does not say.
        let is_alive =
            if may_have_forgotten(&answer) && !self.is_sent_again && agreement.has_served() {
                answer.is_forgotten = http.has_forgotten(&agreement, &answer).await;
                !answer.is_forgotten
            } else {
                false
            };
        if !is_alive {
            http.forget_if_refused(&agreement, &answer);
        }
        Ok(answer)
    }

    /// Sends a request that executes nothing, and reads its response.
    ///
    /// If the server has forgotten the session, another one is opened.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn forward(self, question: Question<'_>) -> Result<McpAnswer, String> {
        let id = format!("{OWN_ID}{}", SENT.fetch_add(1, Ordering::Relaxed));
        let http = match &self.way {
            Way::Http(http) => http,
            Way::Program(server) => {
                let running = server.ready().await?;
                let is_modern = running.agreement.is_modern();
                let message = request::forward(&id, question.method, question.params, is_modern);
                return ask(&running, &id, &message, None, self.waiting).await;
            }
        };
        let mut is_again = false;
        loop {
            let agreement = http.agreement().await?;
            let is_modern = agreement.is_modern();
            let mut headers = agreement.headers(question.method);
            if let Some(name) = question.name.filter(|_| is_modern) {
                headers.insert("mcp-name", header(&encode(name))?);
            }
            let body = request::forward(&id, question.method, question.params, is_modern);
            let sent = http.send(
                &agreement,
                headers,
                body.into(),
                (&id, &self.waiting),
                self.max_result,
            );
            let answer = sent.await?;
            http.forget_if_refused(&agreement, &answer);
            if is_again || !ends_agreement(&answer) {
                return Ok(answer);
            }
            is_again = true;
        }
    }

    /// The server's description of itself.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn about(&self) -> Result<Arc<About>, String> {
        Ok(match &self.way {
            Way::Http(http) => http.agreement().await?.about.clone(),
            Way::Program(server) => server.ready().await?.agreement.about.clone(),
        })
    }

    /// The message of the call, and its id, which is unique in this process.
    ///
    /// # Errors
    /// The call answers what the server asked, in a revision that it does not speak any more.
    fn message(&self, is_modern: bool) -> Result<(String, Bytes), String> {
        if !is_modern && elicitation::is_answer(&self.args) {
            return Err("the server no longer supports the revision in which it asked".into());
        }
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let call_id = text("x-call-id");
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{OWN_ID}{}-{number}", call_id.unwrap_or("probe"));
        let nothing = Map::new();
        let sent = CallMeta {
            key: text("idempotency-key"),
            call_id,
            fencing_token: text("fencing-token").and_then(|token| token.parse().ok()),
            traceparent: text("traceparent"),
            with_progress: self.waiting.progress.is_some(),
            can_answer: self.waiting.can_answer.as_deref().unwrap_or(&nothing),
            takes_task: self.takes_task,
            payments: &self.waiting.payments,
        };
        let message = request::call(&id, &self.tool.name, &self.args, sent, is_modern);
        Ok((id, message))
    }

    /// The headers that name the tool and repeat some of its arguments.
    fn mirrored(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert("mcp-name", header(&encode(&self.tool.name))?);
        if !self.tool.mirrored.is_empty() {
            let args: Value =
                serde_json::from_slice(&self.args).map_err(|error| error.to_string())?;
            for (name, text) in mirrored::headers(&self.tool.mirrored, &args) {
                let name: HeaderName = name
                    .parse()
                    .map_err(|_| "a header of the schema has no name")?;
                headers.insert(name, header(&text)?);
            }
        }
        Ok(headers)
    }
}

fn header(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|error| error.to_string())
}

/// Asks a program.
///
/// It has no status and no session, and its answer names the request.
async fn ask(
    running: &Running,
    id: &str,
    message: &Bytes,
    gate: Option<(Gate, Deadline)>,
    client: Client,
) -> Result<McpAnswer, String> {
    let body = running.pipe.ask(id, message, gate, client).await?;
    Ok(McpAnswer {
        status: 200,
        has_session: false,
        names_request: matches!(body, Body::Whole(_)),
        is_forgotten: false,
        body,
    })
}
