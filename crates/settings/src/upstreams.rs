//! The section `[upstreams.NAME]`: MCP servers whose tools stand in `[tools]`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use super::approval;
use super::compensations;
use super::outcomes::usual_outcomes;
use super::reader::Section;
use oncegate_engine::ToolAt;
use oncegate_rules::mcp::mirrored;
use oncegate_rules::mcp::revision::Era;
use oncegate_rules::tool::{AsTask, Effect, Errors, OnCancel, RequestErrors, Tool, ToolError};
use oncegate_tools::{Endpoint, McpTool, Program, UpstreamAt, secret_header};

/// How long derived keys of unlisted tools are remembered.
///
/// A request that is sent again comes soon; a later one is a new intent.
const DEDUP_WINDOW: Duration = Duration::from_mins(10);

/// The timeout of a call of an unlisted tool.
///
/// The gateway does not know how long such a tool takes. Callers are told meanwhile that the call still runs.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Variables that every program gets, as MCP's own clients hand them on.
const ENVIRONMENT: [&str; 9] = [
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER",
];

/// All upstreams by name.
///
/// `None`: the section has mistakes. Its tools are known nevertheless, so they are not further mistakes.
pub(super) type Upstreams = BTreeMap<String, Option<UpstreamAt>>;

pub(super) fn upstreams(root: &mut Section<'_, '_>, strict: bool) -> Upstreams {
    let read = |name: &str, section| Some((name.to_owned(), upstream(name, section, strict)));
    root.named("upstreams", read).into_iter().collect()
}

/// A header of requests to a server; none of those that MCP itself uses.
fn upstream_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let lower = name.to_ascii_lowercase();
    if lower == "accept" || lower.starts_with("mcp-") {
        return Err(format!("the header {name} is the gateway's own"));
    }
    secret_header(name, value)
}

/// The upstream that a tool's section names.
pub(super) fn of<'a>(
    section: &Section<'_, '_>,
    upstreams: &'a Upstreams,
) -> Option<&'a UpstreamAt> {
    upstreams.get(section.text("upstream")?)?.as_ref()
}

fn upstream(name: &str, mut section: Section<'_, '_>, strict: bool) -> Option<UpstreamAt> {
    section.check_name(name, "an upstream's");
    let words = [
        ("auto", None),
        ("modern", Some(Era::Modern)),
        ("legacy", Some(Era::Legacy)),
    ];
    let era = section.word_or("era", &words, None);
    let connection_reuse = section.connection_reuse();
    let headers = section.entries("headers", upstream_header);
    let words = [
        ("write", Some(Effect::Write)),
        ("read", Some(Effect::Read)),
        ("deny", None),
    ];
    let unlisted = section.word_or("unlisted", &words, Some(Effect::Write));
    let trusts_annotations = section.get_or("trust_annotations", true);
    let strict = usual_outcomes(&mut section).unwrap_or(strict);
    let timeout = section.get_or("timeout", TIMEOUT);
    let window = section.get_or("dedup_window", DEDUP_WINDOW);
    let why = "must not be shorter than the deadline of a call";
    section.check(timeout <= window, "dedup_window", why);
    section.check(!timeout.is_zero(), "timeout", "must be longer than zero");
    let task = section.get_or("task", AsTask::Auto);
    let on_cancel = section.get_or("cancel", OnCancel::Keep);
    let repeatable: Vec<String> = section.get("repeatable").unwrap_or_default();
    let approval = section.section("approval").and_then(approval::policy);
    approval::check_of_upstream(approval.as_ref(), &section);
    let program = section.has("command").then(|| program(&mut section));
    let url = match &program {
        Some(_) => of_program(name)?,
        None => section.url(&[])?,
    };
    section.warn_in_the_open(&format!("upstream {name}: its URL"), &url);
    Some(UpstreamAt {
        name: name.to_owned(),
        endpoint: Endpoint {
            mcp: Some(McpTool {
                upstream: name.to_owned(),
                name: String::new(),
                era,
                program: program.map(Arc::new),
                mirrored: Vec::new(),
                is_unlisted: true,
            }),
            ..Endpoint::new(url, headers.into_iter().collect(), connection_reuse)
        },
        unlisted,
        trusts_annotations,
        strict,
        timeout,
        dedup_window: window,
        task,
        on_cancel,
        repeatable: BTreeSet::from_iter(repeatable),
        approval,
        asked_about: BTreeSet::new(),
    })
}

/// Which tools of a server read because it says so. Only the server itself has their names.
pub(super) fn note(at: &UpstreamAt) -> Option<String> {
    let name = &at.name;
    let is_believed = at.trusts_annotations && at.unlisted.is_some();
    is_believed.then(|| {
        format!(
            "upstream {name}: a tool that no section names reads, and is executed each time, if the server marks it with readOnlyHint; the log names these tools when the list is read. With trust_annotations = false they all count as unlisted says"
        )
    })
}

/// Settings of servers with a URL.
const OF_URL: [&str; 3] = ["url", "headers", "connection_reuse"];

/// The URL that stands for a program.
fn of_program(name: &str) -> Option<Url> {
    format!("program:{name}").parse().ok()
}

/// A server that is a program on this machine.
fn program(section: &mut Section<'_, '_>) -> Program {
    let why = "this is for servers that have a URL; this one is a program";
    section.check_absent(&OF_URL, why);
    let command: Vec<String> = section.get("command").unwrap_or_default();
    let is_named = command.first().is_some_and(|name| !name.is_empty());
    let why = "this is a list of texts: the program, and its arguments";
    section.check(is_named, "command", why);
    let is_text = command.iter().all(|text| !text.contains('\0'));
    section.check(is_text, "command", "there is a NUL in it");
    let variable = |name: &str, value: &str| {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        let variable = is_name.then(|| (name.to_owned(), value.to_owned()));
        variable.ok_or_else(|| "this is not a variable".to_owned())
    };
    let always = ENVIRONMENT
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), section.variable(name)?.clone())));
    let mut environment: BTreeMap<String, String> = always.collect();
    environment.extend(section.entries("env", variable));
    let words = [("discard", false), ("inherit", true)];
    Program {
        command,
        environment: environment.into_iter().collect(),
        shows_errors: section.word_or("stderr", &words, false),
    }
}

/// Settings of tools with a URL of their own.
const OF_HTTP: [&str; 12] = [
    "url",
    "query",
    "body",
    "arrays",
    "set",
    "headers_from",
    "key_header",
    "key_body",
    "method",
    "headers",
    "connection_reuse",
    "success",
];

/// The endpoint of an MCP server's tool, and what its errors mean.
pub(super) fn endpoint(
    tool: &Tool,
    section: &mut Section<'_, '_>,
    upstreams: &Upstreams,
) -> Option<Endpoint> {
    let why = "this is for tools that have a URL; this one is a tool of an upstream";
    section.check_absent(&OF_HTTP, why);
    let upstream: String = section.need("upstream")?;
    let of_same_name = tool
        .name
        .strip_prefix(&format!("{upstream}."))
        .map(str::to_owned);
    let why = "a name with a dot is that of the upstream, a dot, and the tool's name there";
    section.check(of_same_name.is_some() || !tool.name.contains('.'), "", why);
    let name = section.get("tool");
    let is_same = name.is_none() || of_same_name.is_none() || name == of_same_name;
    section.check(is_same, "tool", why);
    let name: String = name.or(of_same_name).unwrap_or_else(|| tool.name.clone());
    section.check(!name.is_empty(), "tool", "this is not a name of a tool");
    let Some(upstream) = upstreams.get(&upstream) else {
        section.mistake("upstream", "there is no such section in [upstreams]");
        return None;
    };
    let schema = tool.schema.as_ref();
    let mirrored = schema.map_or_else(Vec::new, |schema| mirrored::mirrored(schema.text()));
    if let Some(why) = mirrored::mistake(&mirrored) {
        section.mistake("input_schema", &format!("x-mcp-header: {why}"));
    }
    Some(upstream.as_ref()?.endpoint_of(&name, mirrored, false))
}

/// Finds the tools that probes call, and notes mistakes in them.
pub(super) fn link_probes(tools: &mut [ToolAt]) -> Vec<String> {
    let mut mistakes = Vec::new();
    for at in 0..tools.len() {
        let Some(asks) = tools[at].tool.asks() else {
            continue;
        };
        let by = tools.iter().find(|other| other.tool.name == asks.by.tool);
        let why = match by {
            None => Some("there is no such tool"),
            Some(by) if !by.is_of_upstream() => Some("it is not a tool of an upstream"),
            Some(by) if by.tool.effect == Effect::Write => {
                Some("it writes; a probe asks a tool with effect = \"read\"")
            }
            Some(_) => None,
        };
        let name = &tools[at].tool.name;
        if let Some(why) = why {
            mistakes.push(format!("{name}.probe: {}: {why}", asks.by.tool));
        }
        let args = by.map(|by| compensations::probe_mistakes(&tools[at].tool, &by.tool, &asks.by));
        for why in args.into_iter().flatten() {
            mistakes.push(format!("{name}.probe: {why}"));
        }
        let asked = by.map(|by| Box::new(by.endpoint.clone()));
        tools[at].endpoint.asked = asked;
    }
    mistakes
}

/// Notes two sections for one tool: at `POST /mcp/{upstream}` either set of rules could hold.
pub(super) fn doubled(tools: &[ToolAt]) -> Vec<String> {
    let mut by_tool = BTreeMap::new();
    let why = |at: &ToolAt| {
        let mcp = at.endpoint.mcp.as_ref()?;
        let other = by_tool.insert(
            (mcp.upstream.clone(), mcp.name.clone()),
            at.tool.name.clone(),
        )?;
        let (name, tool) = (&at.tool.name, &mcp.name);
        Some(format!(
            "{name}: {other} is the tool {tool} of this upstream, too"
        ))
    };
    tools.iter().filter_map(why).collect()
}

/// The meaning of the server's errors for a tool.
pub(super) fn errors(section: &mut Section<'_, '_>) -> Errors {
    let tool_error: Option<ToolError> = section.get("tool_error");
    let request_errors: Option<RequestErrors> = section.get("request_errors");
    let is_of_upstream = section.has("upstream");
    let why = "this is for tools of an upstream";
    section.check(is_of_upstream || tool_error.is_none(), "tool_error", why);
    section.check(
        is_of_upstream || request_errors.is_none(),
        "request_errors",
        why,
    );
    Errors {
        tool_error: tool_error.unwrap_or_default(),
        request_errors: request_errors.unwrap_or_default(),
        ..Errors::default()
    }
}

pub(super) fn check(tool: &Tool, section: &Section<'_, '_>) {
    let says_nothing = |status: &u16| (200..300).contains(status);
    let why = "over MCP the response decides: a server answers 2xx before it executes";
    let holds = !tool.outcomes.keys().any(says_nothing);
    section.check(holds, "outcomes", why);
    let is_hidden = |pointer: &oncegate_rules::key::Pointer| pointer.as_str() == "/content";
    let redacted = &tool.redact.result;
    let holds = redacted.is_empty() || redacted.iter().any(is_hidden);
    let why =
        "result: the texts of an MCP result repeat its structured content; list \"/content\", too";
    section.check(holds, "redact", why);
    let name = &tool.name;
    let is_write = tool.effect == Effect::Write;
    if is_write && tool.errors().tool_error == ToolError::Rejected {
        section.warn(format!(
            "{name}: a result with isError is taken as proof that nothing was executed"
        ));
    }
    if is_write && tool.errors().request_errors == RequestErrors::Rejected {
        section.warn(format!(
            "{name}: JSON-RPC errors about the request are taken as proof that nothing was executed"
        ));
    }
    if tool.errors().tool_error == ToolError::Remember && !tool.key.fields.is_empty() {
        section.warn(format!(
            "{name}: a result with isError is remembered under key.fields; corrected arguments with the same fields are refused"
        ));
    }
}
