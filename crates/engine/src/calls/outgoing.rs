//! The request of an attempt: the call's arguments, and headers about the call.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::prepared::PreparedCall;
use crate::tools::ToolAt;
use oncegate_rules::proxy::{paths, stored_form};
use oncegate_rules::record::{CallId, Record};
use oncegate_rules::redact;
use oncegate_rules::request::{KEY_HEADER, Mistakes};
use oncegate_rules::tool::{Effect, Tool};
use oncegate_tools::{Deadline, Endpoint, Party, Request};

/// A call as its tool gets it. An attempt adds further headers about the call.
pub struct ToolRequest<'a> {
    pub endpoint: Cow<'a, Endpoint>,
    /// The headers, with the key and the call's id.
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl<'a> ToolRequest<'a> {
    /// The request of these arguments under a key.
    ///
    /// # Errors
    /// By today's configuration the arguments make no request.
    pub fn new(at: &'a ToolAt, args: &Bytes, key: &str, call_id: CallId) -> Result<Self, String> {
        let Some(shape) = at.tool.request() else {
            // A tool of an MCP server gets the arguments as they are.
            return Ok(Self {
                endpoint: Cow::Borrowed(&at.endpoint),
                headers: about(key, KEY_HEADER, call_id),
                body: args.clone(),
            });
        };
        let sent = shape.make(args, key);
        let sent = sent.map_err(|mistakes| in_words(&mistakes))?;
        let mut headers = about(key, &shape.key_header, call_id);
        if let Some(content_type) = sent.content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        for (name, value) in &sent.headers {
            let name: HeaderName = name.parse().map_err(|_| "a header has no name")?;
            let value = HeaderValue::from_str(value).map_err(|_| "a header has no value")?;
            headers.insert(name, value);
        }
        let endpoint = match &sent.url {
            Some(url) => Cow::Owned(at.endpoint.for_call(url)?),
            None => Cow::Borrowed(&at.endpoint),
        };
        let body = sent.body;
        Ok(Self {
            endpoint,
            headers,
            body,
        })
    }
}

/// The endpoint and the request of an attempt. `trace` are headers.
///
/// `is_sent_again`: an MCP server had forgotten the session of an earlier attempt of this run. `key_sent`: the key that an API gets
/// whose callers use it as it is.
///
/// # Errors
/// By today's configuration the arguments make no request.
pub(super) fn outgoing<'a>(
    call: &'a PreparedCall,
    record: &Record,
    trace: Vec<(&'static str, String)>,
    send_before: Deadline,
    is_sent_again: bool,
    key_sent: Option<String>,
) -> Result<(Cow<'a, Endpoint>, Request), String> {
    let (tool, intent) = (&call.at.tool, &record.intent);
    // Masked arguments are known only from the request itself.
    let args = if redact::is_whole(&intent.args) {
        &intent.args
    } else {
        &call.args
    };
    let key = intent.lookup.for_tool();
    let made = match tool.proxy() {
        Some(policy) => proxied(call, record, &policy.key_header, key_sent)?,
        None => {
            let mut made = ToolRequest::new(&call.at, args, &key, intent.call_id)?;
            let headers = &mut made.headers;
            if let Some(token) = record.fencing {
                add_header(headers, "fencing-token", &token.to_string());
            }
            if !intent.session_id.is_empty() {
                add_header(headers, "x-session-id", &intent.session_id);
            }
            for (name, value) in trace {
                add_header(headers, name, &value);
            }
            made
        }
    };
    let request = Request {
        party: Party::tool(&intent.tenant, &intent.tool),
        call_id: intent.call_id,
        headers: made.headers,
        body: made.body,
        is_write: tool.effect == Effect::Write,
        client: call.client.clone(),
        is_sent_again,
        takes_task: false,
        send_before,
    };
    Ok((made.endpoint, request))
}

/// A caller's request to an API, as it came, with the call's key.
///
/// # Errors
/// The request itself is gone, and only a part of it is stored.
fn proxied<'a>(
    call: &'a PreparedCall,
    record: &Record,
    key_header: &str,
    key: Option<String>,
) -> Result<ToolRequest<'a>, String> {
    let intent = &record.intent;
    let stored = || stored_form::message(&intent.args).map(Arc::new);
    let message = call.message.clone().or_else(stored);
    let message = message.ok_or("the request is not stored as a whole")?;
    let (endpoint, mut headers) = call.at.endpoint.for_message(&message)?;
    if let Some(key) = key {
        add_header(&mut headers, key_header, &key);
    }
    Ok(ToolRequest {
        endpoint: Cow::Owned(endpoint),
        headers,
        body: message.body.clone(),
    })
}

/// The URL of a probe, from the stored arguments.
///
/// # Errors
/// The tool has no probe, or the arguments make no URL.
pub fn probe_url(tool: &Tool, args: &Bytes, key: &str) -> Result<String, String> {
    let probe = tool.probe().ok_or("the tool has no endpoint for it")?;
    let target = &probe.target;
    let mut args: Value = match target.used().next() {
        Some(_) => {
            serde_json::from_slice(args).map_err(|_| "its arguments are not stored".to_owned())?
        }
        None => Value::Null,
    };
    if let (Some(rule), Some(path)) = (tool.rule_path(), args["path"].as_str()) {
        let named = paths::named_segments(rule, path);
        let named = named.ok_or("servers may read its path in different ways")?;
        for (name, segment) in named {
            args[paths::NAMED][name] = segment.into();
        }
    }
    let url = target.url(&args, key);
    url.map_err(|mistakes| in_words(&mistakes))
}

fn in_words(mistakes: &Mistakes) -> String {
    let words = mistakes
        .iter()
        .map(|(place, why)| format!("{place}: {why}"));
    words.collect::<Vec<_>>().join("; ")
}

/// The gateway's headers about a call, without any of the caller's own.
fn about(key: &str, key_header: &str, call_id: CallId) -> HeaderMap {
    let mut headers = HeaderMap::new();
    add_header(&mut headers, key_header, key);
    add_header(&mut headers, "x-call-id", &call_id.to_string());
    headers
}

/// Adds a header. Values were checked when they came in; a value that fits no header is left out.
fn add_header(headers: &mut HeaderMap, name: &str, value: &str) {
    let value = HeaderValue::from_bytes(value.as_bytes());
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value) {
        headers.insert(name, value);
    }
}
