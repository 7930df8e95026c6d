//! An MCP server over streamable HTTP: one POST for one request. No stream is resumed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::super::body::{chain, read, send};
use super::super::client::Client;
use super::agreement::{Agreement, SESSION, envelope};
use oncegate_rules::evidence::McpAnswer;
use oncegate_rules::json;
use oncegate_rules::mcp::evidence::{ANOTHER, Match, ends_agreement, is_same_refusal, matches};
use oncegate_rules::mcp::lines::batched;
use oncegate_rules::mcp::request;
use oncegate_rules::mcp::revision::{Era, MODERN};
use oncegate_rules::mcp::sse::Decoder;
use oncegate_rules::outcome::Body;

/// How long a server may take to say whether it knows a session.
const KNOWN_BY: Duration = Duration::from_secs(5);
/// How long the end of a session may take.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The longest answer to a request that executes nothing, in bytes.
const MAX_SMALL: usize = 1 << 20;
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The agreement on the connections of one pool. Its lock is held while it is made.
pub(crate) type Agreed = Mutex<Option<Arc<Agreement>>>;

/// The settings by which a server is asked.
#[derive(Clone, PartialEq)]
pub(crate) struct Settings {
    pub url: Url,
    /// The gateway's own headers for this server.
    pub own: HeaderMap,
    pub era: Option<Era>,
}

/// A server that is asked over HTTP.
pub(crate) struct Http {
    pub client: reqwest::Client,
    pub settings: Settings,
    pub agreed: Arc<Agreed>,
}

impl Http {
    /// The agreement with the server, made if there is none.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) async fn agreement(&self) -> Result<Arc<Agreement>, String> {
        let mut agreed = self.agreed.lock().await;
        match &*agreed {
            Some(agreement) => Ok(agreement.clone()),
            None => Ok(agreed.insert(Arc::new(self.agree().await?)).clone()),
        }
    }

    /// Sends one request, and reads until the response with this id.
    ///
    /// Meanwhile the client hears of its progress.
    ///
    /// # Errors
    /// There is no answer; whether the request was sent says the gate of its body.
    pub(super) async fn send(
        &self,
        agreement: &Arc<Agreement>,
        headers: HeaderMap,
        body: reqwest::Body,
        (id, waiting): (&str, &Client),
        max_result: usize,
    ) -> Result<McpAnswer, String> {
        let response = self.post(headers, body).await?;
        let status = response.status().as_u16();
        let body = response_body(response, (id, waiting), max_result).await;
        let answer = McpAnswer {
            status,
            has_session: agreement.has_session(),
            names_request: matches!(&body, Body::Whole(bytes) if matches(bytes, id) == Match::Ours),
            is_forgotten: false,
            body,
        };
        if answer.names_request && (200..300).contains(&status) {
            agreement.served();
        }
        Ok(answer)
    }

    /// Whether the server refuses a question that executes nothing in the same way as a call.
    pub(super) async fn has_forgotten(&self, agreement: &Arc<Agreement>, call: &McpAnswer) -> bool {
        let id = "oncegate-known";
        let (method, message) = if agreement.is_modern() {
            ("server/discover", request::discover(id))
        } else {
            ("ping", request::ping(id))
        };
        let headers = agreement.headers(method);
        let client = Client::default();
        let asked = self.send(agreement, headers, message.into(), (id, &client), MAX_SMALL);
        let answer = timeout(KNOWN_BY, asked).await;
        matches!(answer, Ok(Ok(answer)) if is_same_refusal(&answer, call))
    }

    /// Ends the session, if there is one. A server that does not answer ends it at some time.
    pub(crate) async fn end(self) {
        let agreement = self.agreed.lock().await.take();
        let Some(agreement) = agreement.filter(|with| with.has_session()) else {
            return;
        };
        let ending = self.client.delete(self.settings.url.clone());
        let ending = ending.headers(self.settings.own.clone());
        let ending = ending.headers(agreement.headers("")).send();
        timeout(LAST_WORDS, ending).await.ok();
    }

    /// Drops an agreement that the server refuses, unless another request has renewed it.
    ///
    /// Another server may stand there by now, or one that has lost its sessions.
    pub(super) fn forget_if_refused(&self, with: &Arc<Agreement>, answer: &McpAnswer) {
        if !ends_agreement(answer) {
            return;
        }
        // If another request holds the lock, it agrees anew, or the next refusal finds the lock free.
        if let Ok(mut agreed) = self.agreed.try_lock()
            && agreed
                .as_ref()
                .is_some_and(|agreement| Arc::ptr_eq(agreement, with))
        {
            *agreed = None;
        }
    }

    async fn agree(&self) -> Result<Agreement, String> {
        if self.settings.era != Some(Era::Legacy)
            && let Some(agreement) = self.discover().await?
        {
            return Ok(agreement);
        }
        if self.settings.era == Some(Era::Modern) {
            return Err("the server does not support 2026-07-28".into());
        }
        self.initialize().await
    }

    /// Asks a server with `server/discover`.
    ///
    /// One that does not know it speaks an earlier revision.
    async fn discover(&self) -> Result<Option<Agreement>, String> {
        let id = "oncegate-discover";
        let headers = envelope(MODERN, "server/discover");
        let (_, answer) = self.ask(headers, request::discover(id), Some(id)).await?;
        Ok(Agreement::modern(&answer))
    }

    /// Begins a conversation with a server of 2025-11-25 or before.
    async fn initialize(&self) -> Result<Agreement, String> {
        let id = "oncegate-initialize";
        let (head, answer) = self
            .ask(HeaderMap::new(), request::initialize(id), Some(id))
            .await?;
        let agreement = Agreement::legacy(&answer, head.get(SESSION).cloned().map(secret))?;
        let headers = agreement.headers("notifications/initialized");
        self.ask(headers, request::initialized(), None).await?;
        Ok(agreement)
    }

    /// Sends a request that executes nothing.
    ///
    /// Answers with the head and the message, which is null if the server does not know the method,
    /// or has nothing to say.
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
        if let Some(why) = referred(status, &response) {
            return Err(why);
        }
        let Some(id) = id else {
            return Ok((head, Value::Null));
        };
        match response_body(response, (id, &Client::default()), MAX_SMALL).await {
            Body::Whole(bytes) => Ok((head, json::read(&bytes).unwrap_or_default())),
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
        send(request.body(body)).await
    }
}

/// A value that is never printed.
fn secret(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

/// The response to the request with this id: a body of JSON, or an event of a stream.
async fn response_body(
    response: reqwest::Response,
    (id, waiting): (&str, &Client),
    max: usize,
) -> Body {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.map_or(&[][..], |kind| kind.as_bytes());
    let (kind, stream) = (kind.to_ascii_lowercase(), b"text/event-stream");
    let is_refusal = response.status().as_u16() >= 400;
    if kind.starts_with(stream) {
        return event(response, (id, waiting), max).await;
    }
    if let Some(why) = referred(response.status().as_u16(), &response) {
        return Body::Broken(why);
    }
    let body = read(response, max).await;
    let Body::Whole(bytes) = &body else {
        return body;
    };
    if let Some(ours) = ours_of(bytes, id) {
        return Body::Whole(bytes.slice_ref(ours));
    }
    match matches(bytes, id) {
        Match::Ours => body,
        Match::Another => Body::Broken(ANOTHER.into()),
        // What refuses a request need not have read it, and may be no server of MCP.
        Match::Nameless | Match::None if is_refusal => body,
        Match::Nameless | Match::None => {
            Body::Broken("this is not a response to the request".into())
        }
    }
}

/// The response to the request with this id in a batch, as servers of 2025-03-26 may send one.
fn ours_of<'a>(bytes: &'a [u8], id: &str) -> Option<&'a [u8]> {
    let mut messages = batched(bytes).into_iter();
    messages.find(|message| matches(message, id) == Match::Ours)
}

/// Where a server refers to, in words. Redirects are never followed.
///
/// The user, the password and the query of the address may be secrets.
fn referred(status: u16, response: &reqwest::Response) -> Option<String> {
    if !(300..400).contains(&status) {
        return None;
    }
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let mut url = response.url().join(location).ok()?;
    url.set_query(None);
    url.set_fragment(None);
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some(format!(
        "the server answered {status} with the Location {url}; redirects are not followed: if that is the server, set it as the url of the upstream"
    ))
}

/// Handles another message: only progress is forwarded.
///
/// The rest are the server's own: logs, and questions to clients that can do more.
async fn event(
    mut response: reqwest::Response,
    (id, waiting): (&str, &Client),
    max: usize,
) -> Body {
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
            if let Some(ours) = ours_of(&data, id) {
                return Body::Whole(Bytes::copy_from_slice(ours));
            }
            match matches(&data, id) {
                Match::Ours => return Body::Whole(data.into()),
                Match::Another => return Body::Broken(ANOTHER.into()),
                Match::Nameless | Match::None => waiting.notify_progress(&data, id),
            }
        }
    }
}
