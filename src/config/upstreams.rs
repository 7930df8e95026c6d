//! The section `[upstreams.NAME]`: MCP servers whose tools stand in `[tools]`.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, Url};

use super::common::is_in_the_open;
use super::reader::{Section, Switch};
use crate::core::mcp::mirrored;
use crate::core::mcp::revision::Era;
use crate::core::tool::{Effect, Tool, ToolError};
use crate::downstream::{Endpoint, McpTool};
use crate::gateway::ToolAt;

/// An MCP server over streamable HTTP.
#[derive(Debug)]
pub(super) struct Upstream {
    url: Url,
    headers: HeaderMap,
    era: Option<Era>,
    connection_reuse: Option<Duration>,
}

/// All of them by name; one that cannot be read is `None`, so that its tools are no further mistakes.
pub(super) type Upstreams = BTreeMap<String, Option<Upstream>>;

pub(super) fn upstreams(root: &mut Section<'_, '_>, warnings: &mut Vec<String>) -> Upstreams {
    let named = root.named_sections("upstreams").into_iter();
    named
        .map(|(name, section)| {
            let upstream = upstream(&name, section, warnings);
            (name, upstream)
        })
        .collect()
}

fn upstream(
    name: &str,
    mut section: Section<'_, '_>,
    warnings: &mut Vec<String>,
) -> Option<Upstream> {
    section.check_name(name, "an upstream's");
    let words = [
        ("auto", None),
        ("modern", Some(Era::Modern)),
        ("legacy", Some(Era::Legacy)),
    ];
    let era = section.word("era", &words).flatten();
    let reuse = section.get_or("connection_reuse", Switch(Some(Duration::from_secs(1))));
    let headers = section.headers();
    let url = section.url(&[])?;
    if is_in_the_open(&url) {
        warnings.push(format!(
            "upstream {name}: its URL is plain http:// to another machine"
        ));
    }
    Some(Upstream {
        url,
        headers,
        era,
        connection_reuse: reuse.0,
    })
}

/// Settings that are for tools of their own URL.
const OF_HTTP: [&str; 6] = [
    "url",
    "method",
    "headers",
    "connection_reuse",
    "outcomes",
    "success",
];

/// Where the tool of an upstream is asked, and what its errors mean.
pub(super) fn endpoint(
    tool: &Tool,
    section: &mut Section<'_, '_>,
    upstreams: &Upstreams,
) -> Option<Endpoint> {
    for key in OF_HTTP {
        let why = "this is for tools that have a URL; this one is a tool of an upstream";
        section.check(!section.has(key) && !section.has_taken(key), key, why);
    }
    let upstream: String = section.need("upstream")?;
    let name = section.get_or("tool", tool.name.clone());
    section.check(!name.is_empty(), "tool", "this is no name of a tool");
    let Some(upstream) = upstreams.get(&upstream) else {
        section.mistake("upstream", "there is no such section in [upstreams]");
        return None;
    };
    let upstream = upstream.as_ref()?;
    let schema = tool.schema.as_ref();
    Some(Endpoint {
        method: Method::POST,
        url: upstream.url.clone(),
        headers: upstream.headers.clone(),
        probe: None,
        connection_reuse: upstream.connection_reuse,
        mcp: Some(McpTool {
            name,
            era: upstream.era,
            mirrored: schema.map_or_else(Vec::new, |schema| mirrored::mirrored(schema.text())),
        }),
        asked: None,
    })
}

/// Finds the tools that probes ask, and says what is wrong with them.
pub(super) fn link_probes(tools: &mut [ToolAt]) -> Vec<String> {
    let mut mistakes = Vec::new();
    for at in 0..tools.len() {
        let Some(asks) = &tools[at].tool.asks else {
            continue;
        };
        let by = tools.iter().find(|other| other.tool.name == asks.by.tool);
        let why = match by {
            None => Some("there is no such tool"),
            Some(by) if !by.is_of_upstream() => Some("it is no tool of an upstream"),
            Some(by) if by.tool.effect == Effect::Write => Some("it writes; add effect = \"read\""),
            Some(_) => None,
        };
        if let Some(why) = why {
            let name = &tools[at].tool.name;
            mistakes.push(format!("{name}.probe: {}: {why}", asks.by.tool));
        }
        let asked = by.map(|by| Box::new(by.endpoint.clone()));
        tools[at].endpoint.asked = asked;
    }
    mistakes
}

pub(super) fn tool_error(section: &mut Section<'_, '_>) -> ToolError {
    let words = [
        ("remember", ToolError::Remember),
        ("rejected", ToolError::Rejected),
        ("unknown", ToolError::Unknown),
    ];
    let word = section.word("tool_error", &words);
    let why = "this is for tools of an upstream";
    section.check(word.is_none() || section.has("upstream"), "tool_error", why);
    word.unwrap_or_default()
}

pub(super) fn check(tool: &Tool, section: &Section<'_, '_>, warnings: &mut Vec<String>) {
    let is_hidden = |pointer: &crate::core::key::Pointer| pointer.as_str() == "/content";
    let redacted = &tool.redact.result;
    let why =
        "result: the texts of an MCP result repeat its structured content; list \"/content\", too";
    section.check(
        redacted.is_empty() || redacted.iter().any(is_hidden),
        "redact",
        why,
    );
    let name = &tool.name;
    if tool.effect == Effect::Write && tool.tool_error == ToolError::Rejected {
        warnings.push(format!(
            "{name}: a result with isError is taken as proof that nothing was executed"
        ));
    }
    if tool.tool_error == ToolError::Remember && !tool.key.fields.is_empty() {
        warnings.push(format!(
            "{name}: a result with isError is remembered under key.fields; corrected arguments with the same fields are refused"
        ));
    }
}
