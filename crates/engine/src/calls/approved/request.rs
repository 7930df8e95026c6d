//! The request of a call as its tool would get it: what an approver sees, and what an approval binds.

use bytes::Bytes;

use crate::calls::outgoing::ToolRequest;
use crate::tools::ToolAt;
use oncegate_rules::proxy::is_secret;
use oncegate_rules::record::Record;
use oncegate_rules::redact;

/// What is shown in place of a credential.
const HIDDEN: &str = "[hidden]";

/// A request for a tool, without credentials, attempt and fencing token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltRequest {
    pub method: String,
    /// Without user information; the values of members that sound like credentials are hidden.
    pub url: String,
    /// Names in lower case, in order. Values from the configuration, and what sounds like credentials, are hidden.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// Headers that are not shown, because the configuration may have secrets in any of them. Only those that sound like
    /// credentials may change after an approval.
    unshown: Vec<(String, String)>,
    /// The MCP server and its tool, which gets the body as its arguments.
    pub mcp: Option<(String, String)>,
}

impl BuiltRequest {
    /// The request of a stored call by today's configuration.
    ///
    /// # Errors
    /// It makes no request, or its arguments are not stored as a whole.
    pub(super) fn of(at: &ToolAt, record: &Record) -> Result<Self, String> {
        let intent = &record.intent;
        if at.tool.proxy().is_some() || !redact::is_whole(&intent.args) {
            return Err("not all of its arguments are stored".into());
        }
        if !at.tool.redact.args.is_empty() {
            return Err(
                "some of its arguments are secret by now, so no approver can see all of them"
                    .into(),
            );
        }
        let key = intent.lookup.for_tool();
        let made = ToolRequest::new(at, &intent.args, &key, intent.call_id)?;
        let (mut headers, mut unshown) = (Vec::new(), Vec::new());
        for (name, value) in made.endpoint.headers.iter().chain(&made.headers) {
            let is_credential = is_secret(name.as_str()) && *value != key;
            let name = name.as_str().to_owned();
            if value.is_sensitive() && !is_credential {
                unshown.push((name.clone(), hex::encode(value.as_bytes())));
            }
            let value = match value.is_sensitive() || is_credential {
                true => HIDDEN.to_owned(),
                false => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            };
            headers.push((name, value));
        }
        if !intent.session_id.is_empty() {
            headers.push(("x-session-id".into(), intent.session_id.clone()));
        }
        let mcp = made.endpoint.mcp.as_ref();
        // Another command is another destination.
        if let Some(program) = mcp.and_then(|mcp| mcp.program.as_ref()) {
            let command = serde_json::json!(program.command).to_string();
            unshown.push(("oncegate:command".to_owned(), command));
        }
        headers.sort();
        unshown.sort();
        Ok(Self {
            method: made.endpoint.method.to_string(),
            url: shown_url(&made.endpoint.url),
            headers,
            body: made.body,
            unshown,
            mcp: mcp.map(|mcp| (mcp.upstream.clone(), mcp.name.clone())),
        })
    }

    /// One text for each request: what an approval binds.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mcp = self.mcp.as_ref();
        let (upstream, tool) = mcp.map_or(("", ""), |(upstream, tool)| (upstream, tool));
        let head = serde_json::json!([
            self.method,
            self.url,
            self.headers,
            self.unshown,
            upstream,
            tool
        ]);
        [head.to_string().as_bytes(), b"\n", &self.body].concat()
    }
}

/// A URL without credentials.
fn shown_url(url: &reqwest::Url) -> String {
    let mut shown = url.clone();
    // Only a URL without a host has no place for them.
    if shown.set_username("").is_err() || shown.set_password(None).is_err() {
        return HIDDEN.to_owned();
    }
    if url.query_pairs().any(|(name, _)| is_secret(&name)) {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .map(|(name, value)| match is_secret(&name) {
                true => (name.into_owned(), HIDDEN.to_owned()),
                false => (name.into_owned(), value.into_owned()),
            })
            .collect();
        shown.query_pairs_mut().clear().extend_pairs(pairs);
    }
    shown.to_string()
}
