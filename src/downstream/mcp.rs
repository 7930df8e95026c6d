//! One `tools/call` to one MCP server over streamable HTTP.
//!
//! One POST for one attempt, through the gate; what is asked before it executes nothing. There is no stream to resume,
//! and no request is sent again here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::sync::Mutex;

use super::body::{chain, read};
use super::gate::{Deadline, Gate, GatedBody};
use crate::core::evidence::McpAnswer;
use crate::core::mcp::evidence::{Match, OWN_ID, ends_agreement, matches};
use crate::core::mcp::members::Members;
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
    /// The name of the server's section.
    pub upstream: String,
    /// Its name at the server.
    pub name: String,
    /// `None`: the server is asked.
    pub era: Option<Era>,
    /// Arguments that a request repeats in its headers.
    pub mirrored: Vec<Mirrored>,
    /// No section of `[tools]` names it.
    pub is_unlisted: bool,
}

/// What a server is asked that executes nothing.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    pub method: &'static str,
    /// `params.name` or `params.uri`, for the methods that have it.
    pub name: Option<&'a str>,
    pub params: &'a Members<'a>,
}

/// What was agreed with a server.
#[derive(Debug)]
pub(super) enum Spoken {
    Modern,
    Legacy {
        version: &'static str,
        session: Option<HeaderValue>,
    },
}

/// What a server has said of itself, as it answered `server/discover` or `initialize`.
#[derive(Debug, Clone)]
pub(super) struct Agreement {
    spoken: Arc<Spoken>,
    about: Arc<About>,
}

/// What clients of a server are told of it.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Of its capabilities, those that are passed on.
    pub capabilities: Vec<&'static str>,
    pub instructions: String,
}

/// What the gateway passes on beside the calls of tools.
const PASSED_ON: [&str; 4] = ["tools", "resources", "prompts", "completions"];
/// The longest instructions that are kept, in bytes.
const MAX_INSTRUCTIONS: usize = 16 << 10;

impl About {
    fn of(result: &Value) -> Self {
        let theirs = &result["capabilities"];
        let passed_on = PASSED_ON
            .into_iter()
            .filter(|name| theirs[name].is_object());
        let instructions = result["instructions"].as_str().unwrap_or_default();
        let end = instructions.floor_char_boundary(MAX_INSTRUCTIONS);
        Self {
            capabilities: passed_on.collect(),
            instructions: instructions[..end].to_owned(),
        }
    }
}

/// Why a body is broken that belongs to another request on the same connection.
pub(super) const ANOTHER: &str = "the server answered another request";

/// What was agreed on the connections of one pool; its lock is held while it is agreed.
pub(super) type Agreed = Mutex<Option<Agreement>>;

/// By which settings a server is asked.
#[derive(Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) url: Url,
    /// The gateway's own headers for this server.
    pub(super) own: HeaderMap,
    pub(super) era: Option<Era>,
}

/// A call to send.
pub(super) struct McpCall {
    pub(super) client: reqwest::Client,
    pub(super) settings: Settings,
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
        let spoken = self.spoken(agreed).await?;
        let text = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let call_id = text("x-call-id");
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{OWN_ID}{}-{number}", call_id.unwrap_or("probe"));
        let told = Told {
            key: text("idempotency-key"),
            call_id,
            fencing_token: text("fencing-token").and_then(|token| token.parse().ok()),
            traceparent: text("traceparent"),
        };
        let is_modern = matches!(*spoken, Spoken::Modern);
        let body = request::call(&id, &self.tool.name, &self.args, told, is_modern);
        let mut headers = spoken.headers("tools/call");
        headers.extend(self.headers.clone());
        if is_modern {
            headers.extend(self.mirrored()?);
        }
        let body = reqwest::Body::wrap(GatedBody::new(gate, body, send_before));
        let response = self.post(headers, body).await?;
        let answer = self.answer(response, &spoken, &id).await;
        forget_if_refused(agreed, &spoken, &answer);
        Ok(answer)
    }

    /// Sends a request that executes nothing, and reads until its response. A forgotten session is opened again.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn forward(
        self,
        method: &'static str,
        name: Option<&str>,
        params: &Members<'_>,
        agreed: &Agreed,
    ) -> Result<McpAnswer, String> {
        let mut is_again = false;
        loop {
            let spoken = self.spoken(agreed).await?;
            let id = format!("{OWN_ID}{}", SENT.fetch_add(1, Ordering::Relaxed));
            let is_modern = matches!(*spoken, Spoken::Modern);
            let mut headers = spoken.headers(method);
            if let Some(name) = name.filter(|_| is_modern) {
                headers.insert("mcp-name", header(&encode(name))?);
            }
            let body = request::forward(&id, method, params, is_modern);
            let response = self.post(headers, body.into()).await?;
            let answer = self.answer(response, &spoken, &id).await;
            forget_if_refused(agreed, &spoken, &answer);
            if is_again || !ends_agreement(&answer) {
                return Ok(answer);
            }
            is_again = true;
        }
    }

    async fn answer(&self, response: reqwest::Response, spoken: &Spoken, id: &str) -> McpAnswer {
        let status = response.status().as_u16();
        let body = response_body(response, id, self.max_result).await;
        McpAnswer {
            status,
            has_session: spoken.has_session(),
            names_request: matches!(&body, Body::Whole(bytes) if matches(bytes, id) == Match::Ours),
            body,
        }
    }

    /// What is agreed with the server; if nothing is, it is asked.
    async fn spoken(&self, agreed: &Agreed) -> Result<Arc<Spoken>, String> {
        Ok(self.agreement(agreed).await?.spoken)
    }

    async fn agreement(&self, agreed: &Agreed) -> Result<Agreement, String> {
        let mut agreed = agreed.lock().await;
        match &*agreed {
            Some(agreement) => Ok(agreement.clone()),
            None => Ok(agreed.insert(self.agree().await?).clone()),
        }
    }

    /// What the server says of itself.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn about(&self, agreed: &Agreed) -> Result<Arc<About>, String> {
        Ok(self.agreement(agreed).await?.about)
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

    async fn agree(&self) -> Result<Agreement, String> {
        if self.settings.era != Some(Era::Legacy)
            && let Some(agreement) = self.discover().await?
        {
            return Ok(agreement);
        }
        if self.settings.era == Some(Era::Modern) {
            return Err("the server does not speak 2026-07-28".into());
        }
        self.initialize().await
    }

    /// Asks for what a server of 2026-07-28 says. One that does not know the question speaks an earlier revision.
    async fn discover(&self) -> Result<Option<Agreement>, String> {
        let id = "oncegate-discover";
        let headers = Spoken::Modern.headers("server/discover");
        let (_, answer) = self.ask(headers, request::discover(id), Some(id)).await?;
        let versions = answer["result"]["supportedVersions"].as_array();
        let is_modern =
            versions.is_some_and(|versions| versions.iter().any(|version| version == MODERN));
        Ok(is_modern.then(|| Agreement {
            spoken: Arc::new(Spoken::Modern),
            about: Arc::new(About::of(&answer["result"])),
        }))
    }

    /// Begins a conversation with a server of 2025-11-25 or before.
    async fn initialize(&self) -> Result<Agreement, String> {
        let id = "oncegate-initialize";
        let (head, answer) = self
            .ask(HeaderMap::new(), request::initialize(id), Some(id))
            .await?;
        let version = answer["result"]["protocolVersion"].as_str();
        let version = version.ok_or("the server refuses to be initialized")?;
        let known = LEGACY.into_iter().find(|known| *known == version);
        let spoken = Spoken::Legacy {
            version: known.ok_or("the server speaks no revision that is spoken here")?,
            session: head.get(SESSION).cloned().map(secret),
        };
        let headers = spoken.headers("notifications/initialized");
        self.ask(headers, request::initialized(), None).await?;
        Ok(Agreement {
            spoken: Arc::new(spoken),
            about: Arc::new(About::of(&answer["result"])),
        })
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
        let request = self.client.post(self.settings.url.clone());
        let request = request.header(CONTENT_TYPE, JSON).header(ACCEPT, BOTH);
        let request = request.headers(self.settings.own.clone()).headers(headers);
        request
            .body(body)
            .send()
            .await
            .map_err(|error| chain(&error))
    }
}

/// Another server may stand there by now, or one that has lost its sessions: what was agreed is agreed on again, unless
/// another request has done so meanwhile.
fn forget_if_refused(agreed: &Agreed, with: &Arc<Spoken>, answer: &McpAnswer) {
    if !ends_agreement(answer) {
        return;
    }
    // If another request holds the lock, it agrees anew, or the next refusal finds the lock free.
    if let Ok(mut agreed) = agreed.try_lock()
        && agreed
            .as_ref()
            .is_some_and(|agreement| Arc::ptr_eq(&agreement.spoken, with))
    {
        *agreed = None;
    }
}

/// A value that is never printed.
fn secret(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

fn header(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|error| error.to_string())
}

impl Spoken {
    fn has_session(&self) -> bool {
        matches!(
            self,
            Self::Legacy {
                session: Some(_),
                ..
            }
        )
    }

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
    let kind = kind.map_or(&[][..], |kind| kind.as_bytes());
    let (kind, stream) = (kind.to_ascii_lowercase(), b"text/event-stream");
    let is_refusal = response.status().as_u16() >= 400;
    if kind.starts_with(stream) {
        return event(response, id, max).await;
    }
    let body = read(response, max).await;
    let Body::Whole(bytes) = &body else {
        return body;
    };
    match matches(bytes, id) {
        Match::Ours => body,
        Match::Another => Body::Broken(ANOTHER.into()),
        // What refuses a request need not have read it, and may be no server of MCP.
        Match::Nameless | Match::None if is_refusal => body,
        Match::Nameless | Match::None => Body::Broken("this is no response to the request".into()),
    }
}

/// Other messages of the stream are the server's own: progress, logs, and what it asks of clients that can do more.
async fn event(mut response: reqwest::Response, id: &str, max: usize) -> Body {
    let mut decoder = Decoder::default();
    loop {
        let events = match response.chunk().await {
            Ok(None) => return Body::Broken("the stream ended without a response".into()),
            Err(error) => return Body::Broken(chain(&error)),
            Ok(Some(chunk)) => decoder.push(&chunk),
        };
        if decoder.held() > max || events.iter().any(|data| data.len() > max) {
            return Body::Broken(format!("an event is longer than {max} bytes"));
        }
        for data in events {
            match matches(&data, id) {
                Match::Ours => return Body::Whole(data.into()),
                Match::Another => return Body::Broken(ANOTHER.into()),
                Match::Nameless | Match::None => {}
            }
        }
    }
}
