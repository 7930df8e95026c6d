//! One `tools/call` to one MCP server over streamable HTTP.
//!
//! One POST for one attempt, through the gate; what is asked before it executes nothing. There is no stream to resume,
//! and no request is sent again here.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::body::{chain, read};
use super::gate::{Deadline, Gate, GatedBody};
use crate::core::evidence::McpAnswer;
use crate::core::mcp::evidence::is_response;
use crate::core::mcp::mirrored::{self, Mirrored};
use crate::core::mcp::request::{self, Told};
use crate::core::mcp::revision::{Era, LEGACY, MODERN, encode};
use crate::core::mcp::sse::Decoder;
use crate::core::outcome::Body;

/// The longest answer to a question that executes nothing, in bytes.
const MAX_SMALL: usize = 1 << 20;
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Calls that were sent: no two requests of a process have the same id.
static SENT: AtomicU64 = AtomicU64::new(1);

/// A tool of an MCP server, whose URL is the endpoint's.
#[derive(Debug, Clone)]
pub struct McpTool {
    /// Its name at the server.
    pub name: String,
    /// `None`: the server is asked.
    pub era: Option<Era>,
    /// Arguments that a request repeats in its headers.
    pub mirrored: Vec<Mirrored>,
}

/// What was agreed with a server.
#[derive(Debug, Clone)]
pub(super) enum Spoken {
    Modern,
    Legacy {
        version: &'static str,
        session: Option<HeaderValue>,
    },
}

/// What was agreed on the connections of one pool; its lock is held while it is agreed.
pub(super) type Agreed = tokio::sync::Mutex<Option<Spoken>>;

/// A call to send.
pub(super) struct McpCall {
    pub(super) client: reqwest::Client,
    pub(super) url: Url,
    /// The gateway's own headers for this server.
    pub(super) own: HeaderMap,
    pub(super) tool: McpTool,
    pub(super) headers: HeaderMap,
    pub(super) args: Bytes,
    pub(super) max_result: usize,
}

impl McpCall {
    /// Agrees with the server on a revision if need be, sends the call, and reads until its response.
    ///
    /// # Errors
    /// There is no answer; whether the call was sent says the gate.
    pub(super) async fn send(
        self,
        gate: Gate,
        send_before: Deadline,
        agreed: &Agreed,
    ) -> Result<McpAnswer, String> {
        let spoken = {
            let mut agreed = agreed.lock().await;
            if agreed.is_none() {
                *agreed = Some(self.agree().await?);
            }
            agreed.clone().ok_or("nothing was agreed")?
        };
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let call_id = text("x-call-id");
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", call_id.unwrap_or("oncegate"));
        let told = Told {
            key: text("idempotency-key"),
            call_id,
            fencing_token: text("fencing-token").and_then(|token| token.parse().ok()),
            traceparent: text("traceparent"),
        };
        let is_modern = matches!(spoken, Spoken::Modern);
        let body = request::call(&id, &self.tool.name, &self.args, told, is_modern);
        let mut headers = spoken.headers("tools/call");
        headers.extend(self.headers.clone());
        if is_modern {
            headers.extend(self.mirrored()?);
        }
        let body = reqwest::Body::wrap(GatedBody::new(gate, body, send_before));
        let response = self.post(headers, body).await?;
        let status = response.status().as_u16();
        let has_session = matches!(
            &spoken,
            Spoken::Legacy {
                session: Some(_),
                ..
            }
        );
        // The server may have been replaced by one that speaks another revision, or has lost its sessions.
        if matches!(status, 400 | 404) {
            *agreed.lock().await = None;
        }
        Ok(McpAnswer {
            status,
            body: response_body(response, &id, self.max_result).await,
            has_session,
        })
    }

    /// The headers that name the tool and repeat some of its arguments.
    fn mirrored(&self) -> Result<HeaderMap, String> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        let mut headers = HeaderMap::new();
        headers.insert("mcp-name", value(&encode(&self.tool.name))?);
        if !self.tool.mirrored.is_empty() {
            let args: Value =
                serde_json::from_slice(&self.args).map_err(|error| error.to_string())?;
            for (name, text) in mirrored::headers(&self.tool.mirrored, &args) {
                let name: HeaderName = name
                    .parse()
                    .map_err(|_| "a header of the schema has no name")?;
                headers.insert(name, value(&text)?);
            }
        }
        Ok(headers)
    }

    async fn agree(&self) -> Result<Spoken, String> {
        match self.tool.era {
            Some(Era::Modern) => Ok(Spoken::Modern),
            Some(Era::Legacy) => self.initialize().await,
            None if self.is_modern().await? => Ok(Spoken::Modern),
            None => self.initialize().await,
        }
    }

    /// Whether the server speaks 2026-07-28. One that does not know the question speaks an earlier revision.
    async fn is_modern(&self) -> Result<bool, String> {
        let id = "oncegate-discover";
        let headers = Spoken::Modern.headers("server/discover");
        let (_, answer) = self.ask(headers, request::discover(id), Some(id)).await?;
        let versions = answer["result"]["supportedVersions"].as_array();
        Ok(versions.is_some_and(|versions| versions.iter().any(|version| version == MODERN)))
    }

    /// Begins a conversation with a server of 2025-11-25 or before.
    async fn initialize(&self) -> Result<Spoken, String> {
        let id = "oncegate-initialize";
        let (head, answer) = self
            .ask(HeaderMap::new(), request::initialize(id), Some(id))
            .await?;
        let version = answer["result"]["protocolVersion"].as_str();
        let version = version.ok_or("the server refuses to be initialized")?;
        let known = LEGACY.into_iter().find(|known| *known == version);
        let spoken = Spoken::Legacy {
            version: known.ok_or("the server speaks no revision that is spoken here")?,
            session: head.get(SESSION).cloned(),
        };
        let headers = spoken.headers("notifications/initialized");
        self.ask(headers, request::initialized(), None).await?;
        Ok(spoken)
    }

    /// Asks what executes nothing. Answers with the head and the message, which is null if the server does not know
    /// the question, or has nothing to say.
    ///
    /// # Errors
    /// It cannot be reached, refuses this gateway, or is not well.
    async fn ask(
        &self,
        headers: HeaderMap,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<(HeaderMap, Value), String> {
        let response = self.post(headers, body.into()).await?;
        let (status, head) = (response.status().as_u16(), response.headers().clone());
        if matches!(status, 401 | 403 | 429 | 500..) {
            return Err(format!(
                "the server answered {status} when a revision was to be agreed on"
            ));
        }
        let Some(id) = id else {
            return Ok((head, Value::Null));
        };
        match response_body(response, id, MAX_SMALL).await {
            Body::Whole(bytes) => Ok((head, serde_json::from_slice(&bytes).unwrap_or_default())),
            Body::Broken(why) if (200..300).contains(&status) => Err(why),
            Body::Broken(_) => Ok((head, Value::Null)),
        }
    }

    async fn post(
        &self,
        headers: HeaderMap,
        body: reqwest::Body,
    ) -> Result<reqwest::Response, String> {
        let request = self.client.post(self.url.clone());
        let request = request.header(CONTENT_TYPE, JSON).header(ACCEPT, BOTH);
        let request = request.headers(self.own.clone()).headers(headers);
        request
            .body(body)
            .send()
            .await
            .map_err(|error| chain(&error))
    }
}

impl Spoken {
    /// The headers of the envelope.
    fn headers(&self, method: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self {
            Self::Modern => {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(MODERN));
                headers.insert("mcp-method", HeaderValue::from_static(method));
            }
            Self::Legacy { version, session } => {
                headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version));
                headers.extend(session.clone().map(|session| (SESSION, session)));
            }
        }
        headers
    }
}

/// The response to the request with this id: a body of JSON, or an event of a stream.
async fn response_body(response: reqwest::Response, id: &str, max: usize) -> Body {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let is_success = response.status().is_success();
    if is_stream {
        return event(response, id, max).await;
    }
    match read(response, max).await {
        // What a refusal says is read as far as it can be.
        Body::Whole(bytes) if is_success && !is_response(&bytes, id) => {
            Body::Broken("this is no response to the request".into())
        }
        body => body,
    }
}

/// Other messages of the stream are the server's own: progress, logs, and what it asks of clients that can do more.
async fn event(mut response: reqwest::Response, id: &str, max: usize) -> Body {
    let mut decoder = Decoder::default();
    loop {
        match response.chunk().await {
            Ok(None) => return Body::Broken("the stream ended without a response".into()),
            Err(error) => return Body::Broken(chain(&error)),
            Ok(Some(chunk)) => {
                let ours = decoder
                    .push(&chunk)
                    .into_iter()
                    .find(|data| is_response(data, id));
                if let Some(data) = ours {
                    return Body::Whole(data.into());
                }
                if decoder.held() > max {
                    return Body::Broken(format!("an event is longer than {max} bytes"));
                }
            }
        }
    }
}
