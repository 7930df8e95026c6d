//! The request that an attempt sends: what the call's arguments become, and what the gateway says about the call.

use std::borrow::Cow;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::prepared::PreparedCall;
use crate::core::record::Record;
use crate::core::redact;
use crate::core::request::{KEY_HEADER, Mistakes, Sent};
use crate::core::tool::{Effect, Tool};
use crate::downstream::{Deadline, Endpoint, Party, Request};

/// Where an attempt goes, and what it sends. `trace` are headers.
///
/// # Errors
/// By today's configuration the arguments make no request.
pub(super) fn outgoing<'a>(
    call: &'a PreparedCall,
    record: &Record,
    trace: Vec<(&'static str, String)>,
    send_before: Deadline,
) -> Result<(Cow<'a, Endpoint>, Request), String> {
    let (tool, intent) = (&call.at.tool, &record.intent);
    // What was not kept is there only with the request itself.
    let args = if redact::is_whole(&intent.args) {
        &intent.args
    } else {
        &call.args
    };
    let mut endpoint = Cow::Borrowed(&call.at.endpoint);
    let (mut headers, body);
    match &tool.request {
        // Of an MCP server.
        None => {
            headers = about(record, KEY_HEADER, trace);
            body = args.clone();
        }
        Some(shape) => {
            let sent = shape.make(args, &intent.lookup.for_tool());
            let sent = sent.map_err(|mistakes| in_words(&mistakes))?;
            headers = about(record, &shape.key_header, trace);
            add(&mut headers, &sent)?;
            if let Some(url) = &sent.url {
                endpoint = Cow::Owned(endpoint.for_call(url)?);
            }
            body = sent.body;
        }
    }
    let request = Request {
        party: Party::tool(&intent.tenant, &intent.tool),
        call_id: intent.call_id,
        headers,
        body,
        is_write: tool.effect == Effect::Write,
        client: call.client.clone(),
        send_before,
    };
    Ok((endpoint, request))
}

/// Where the tool is asked whether it knows a call.
///
/// # Errors
/// It cannot be asked, or what is kept of the call makes no URL.
pub(super) fn probe_url(tool: &Tool, record: &Record) -> Result<String, String> {
    let target = tool.probe.as_ref().ok_or("the tool has no door for it")?;
    let args: Value = match target.used().next() {
        Some(_) => serde_json::from_slice(&record.intent.args)
            .map_err(|_| "its arguments are not kept".to_owned())?,
        None => Value::Null,
    };
    let url = target.url(&args, &record.intent.lookup.for_tool());
    url.map_err(|mistakes| in_words(&mistakes))
}

fn in_words(mistakes: &Mistakes) -> String {
    let said = mistakes
        .iter()
        .map(|(place, why)| format!("{place}: {why}"));
    said.collect::<Vec<_>>().join("; ")
}

fn add(headers: &mut HeaderMap, sent: &Sent) -> Result<(), String> {
    if let Some(content_type) = sent.content_type {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    for (name, value) in &sent.headers {
        let name: HeaderName = name.parse().map_err(|_| "a header has no name")?;
        let value = HeaderValue::from_str(value).map_err(|_| "a header has no value")?;
        headers.insert(name, value);
    }
    Ok(())
}

/// What the gateway says to the tool about a call. Nothing of the caller's own headers.
fn about(record: &Record, key_header: &str, trace: Vec<(&'static str, String)>) -> HeaderMap {
    let intent = &record.intent;
    let mut headers = HeaderMap::new();
    let mut say = |name: &str, value: &str| {
        // Values were checked when they came in; one that fits no header is left out.
        let value = HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value) {
            headers.insert(name, value);
        }
    };
    say(key_header, &intent.lookup.for_tool());
    say("x-call-id", &intent.call_id.to_string());
    if let Some(token) = record.fencing {
        say("fencing-token", &token.to_string());
    }
    if !intent.session_id.is_empty() {
        say("x-session-id", &intent.session_id);
    }
    for (name, value) in trace {
        say(name, &value);
    }
    headers
}
