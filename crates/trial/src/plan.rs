//! The options of a trial, read and checked before anything is sent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value;
use uuid::Uuid;

use oncegate_engine::ToolAt;
use oncegate_rules::compensation::Policy;
use oncegate_rules::key::Pointer;
use oncegate_rules::record::CallId;
use oncegate_rules::tool::{Effect, Tool};
use oncegate_rules::trial::Naming;
use oncegate_rules::{json, redact};
use oncegate_tools::{Endpoint, is_http, origin_only};

/// Most rounds of two requests at once.
const MAX_ROUNDS: u32 = 20;

/// The options of `verify-tool`, as given.
#[derive(Debug, Args)]
pub struct TrialOptions {
    /// The tool, as in [tools.NAME].
    name: String,
    /// A file with the arguments of a call, which is executed: a JSON object.
    #[arg(long, value_name = "FILE")]
    args: PathBuf,
    /// A file with other arguments, to see whether the tool refuses them under a used key.
    #[arg(long, value_name = "FILE")]
    other_args: Option<PathBuf>,
    /// The place of the effect's id in a result, as a JSON Pointer like /order_id.
    #[arg(long, value_name = "POINTER")]
    id: Option<String>,
    /// The place of the effect's id in a result of the compensation.
    #[arg(long, value_name = "POINTER")]
    undo_id: Option<String>,
    /// A text in the arguments that must differ for each new effect. A suffix is appended to it.
    #[arg(long, value_name = "POINTER")]
    fresh: Option<String>,
    /// The URL of a count of effects: asked by GET before and after each step. {key} is the step's key.
    #[arg(long, value_name = "URL")]
    count_url: Option<String>,
    /// The place of the count in that answer: a whole number, or a list.
    #[arg(long, value_name = "POINTER")]
    count: Option<String>,
    /// The place of the count of the compensation's effects.
    #[arg(long, value_name = "POINTER")]
    undo_count: Option<String>,
    /// How long after the first answer its key is sent once more.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    after: String,
    /// How often two requests are sent at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    rounds: u32,
}

/// Where to read the operator's counts.
pub(super) struct Count {
    /// `{key}` in it is the key of a step.
    pub(super) url: String,
    pub(super) endpoint: Endpoint,
}

/// One key with what is sent under it.
#[derive(Clone)]
pub(super) struct Intent {
    pub(super) key: String,
    pub(super) call_id: CallId,
    pub(super) args: Bytes,
    /// Texts of the request that the tool may repeat in its answer.
    pub(super) sent: Vec<String>,
}

impl Intent {
    /// A new key. `sent`: texts that were made for it.
    pub(super) fn new(args: Bytes, mut sent: Vec<String>) -> Self {
        // As long as the keys that a gateway gives to its tools.
        let (key, call_id) = (Uuid::new_v4().simple().to_string(), CallId(Uuid::new_v4()));
        sent.extend([key.clone(), call_id.to_string()]);
        Self {
            key,
            call_id,
            args,
            sent,
        }
    }
}

/// A checked plan of a trial.
pub struct TrialPlan {
    /// The tools of the configuration: another one may undo what the tool does.
    pub(super) tools: Vec<ToolAt>,
    /// The longest answer of a tool, in bytes.
    pub(super) max_result: usize,
    /// The index of the tool among them.
    index: usize,
    pub(super) args: Value,
    raw_args: Bytes,
    pub(super) other_args: Option<Value>,
    pub(super) naming: Naming,
    pub(super) undo_id: Option<Pointer>,
    pub(super) fresh: Option<Pointer>,
    pub(super) count: Option<Count>,
    /// Pointer to the count of the tool's effects.
    pub(super) count_at: Option<Pointer>,
    /// Pointer to the count of the compensation's effects.
    pub(super) undo_count_at: Option<Pointer>,
    pub(super) after: Duration,
    pub(super) rounds: u32,
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn pointer(name: &str, text: Option<String>) -> Result<Option<Pointer>, String> {
    let parsed = text.map(|text| text.parse::<Pointer>()).transpose();
    parsed.map_err(|why| format!("{name}: {why}"))
}

/// Reads and checks arguments as if a caller had sent them.
fn arguments(tool: &Tool, name: &str, text: &str) -> Result<Value, String> {
    let args = json::parse(text).map_err(|error| format!("{name}: {error}"))?;
    if !args.is_object() || !redact::is_whole(text.trim_start().as_bytes()) {
        return Err(format!("{name}: the arguments are one JSON object"));
    }
    let of_schema = tool.schema.iter().flat_map(|schema| schema.mistakes(&args));
    let request = tool.request().into_iter();
    let of_request = request.flat_map(|shape| shape.mistakes(&args));
    match of_schema.chain(of_request).next() {
        Some((place, why)) => Err(format!("{name}: {place}: {why}")),
        None => Ok(args),
    }
}

impl TrialPlan {
    /// Reads and checks the options. Nothing is sent.
    ///
    /// `tools`: all of the configuration. `max_result`: the longest answer of one, in bytes.
    ///
    /// # Errors
    /// Why the trial cannot be run.
    pub fn new(
        tools: Vec<ToolAt>,
        max_result: usize,
        options: TrialOptions,
    ) -> Result<Self, String> {
        let args_text = read(&options.args)?;
        let other_text = options.other_args.as_deref().map(read).transpose()?;
        let name = options.name;
        let index = tools.iter().position(|at| at.tool.name == name);
        let index = index.ok_or_else(|| format!("there is no tool {name:?}"))?;
        let at = &tools[index];
        let tool = &at.tool;
        if tool.effect == Effect::Read {
            return Err(format!(
                "{name} only reads: it has no effect that could be doubled"
            ));
        }
        if at.is_of_upstream() {
            return Err(format!(
                "{name} is a tool of an MCP server: verify-tool asks tools that have a URL"
            ));
        }
        if tool.is_proxy() {
            return Err(format!(
                "{name} is a proxy, whose calls have no arguments: describe the operation as a tool to try it"
            ));
        }
        if let Policy::By(by) = &tool.compensation
            && find(&tools, &by.tool).is_some_and(ToolAt::is_of_upstream)
        {
            return Err(format!(
                "{}, which undoes {name}, is a tool of an MCP server: verify-tool asks tools that have a URL",
                by.tool
            ));
        }
        let args = arguments(tool, "--args", &args_text)?;
        let other_args = other_text.map(|text| arguments(tool, "--other-args", &text));
        let other_args = other_args.transpose()?;
        if other_args.as_ref() == Some(&args) {
            return Err("--other-args: these are the same arguments".into());
        }
        let fresh = pointer("--fresh", options.fresh)?;
        if let Some(place) = fresh.as_ref().map(Pointer::as_str) {
            let has_text = |args: &Value| args.pointer(place).is_some_and(Value::is_string);
            if !has_text(&args) || !other_args.as_ref().is_none_or(has_text) {
                return Err(format!("--fresh: there is no text at {place}"));
            }
        }
        let naming = Naming {
            id: pointer("--id", options.id)?,
            ignore: tool.replay_ignore.clone(),
            hidden: tool.redact.result.clone(),
        };
        let undo_id = pointer("--undo-id", options.undo_id)?;
        let count_at = pointer("--count", options.count)?;
        let undo_count_at = pointer("--undo-count", options.undo_count)?;
        let has_permit = count_at.is_some() || undo_count_at.is_some();
        let count = match options.count_url {
            Some(_) if !has_permit => {
                return Err(
                    "--count-url needs --count, a JSON Pointer to the count in its answer".into(),
                );
            }
            Some(url) => Some(Count {
                endpoint: count_endpoint(&at.endpoint, &url)?,
                url,
            }),
            None if has_permit => return Err("--count and --undo-count need --count-url".into()),
            None => None,
        };
        let after = options.after.parse::<jiff::SignedDuration>();
        let after = after.ok().and_then(|after| Duration::try_from(after).ok());
        let after =
            after.ok_or("--after: this is not a duration; one looks like \"5s\", \"10m\"")?;
        if !(1..=MAX_ROUNDS).contains(&options.rounds) {
            return Err(format!("--rounds: 1 to {MAX_ROUNDS}"));
        }
        Ok(Self {
            index,
            raw_args: Bytes::from(args_text.trim().to_owned()),
            args,
            other_args,
            naming,
            undo_id,
            fresh,
            count,
            count_at,
            undo_count_at,
            after,
            rounds: options.rounds,
            tools,
            max_result,
        })
    }

    /// The tool of the trial.
    pub(super) fn at(&self) -> &ToolAt {
        &self.tools[self.index]
    }

    /// The effects of the trial, for the operator who has to confirm it.
    pub fn warning(&self) -> String {
        let at = self.at();
        let keys = 1 + self.rounds + u32::from(self.other_args.is_some());
        let undo = match &at.tool.compensation {
            Policy::By(by) => {
                let second = if self.undo_id.is_some() {
                    ", and the effect of a second key, once"
                } else {
                    ""
                };
                let at = find(&self.tools, &by.tool).map_or_else(String::new, |at| {
                    format!(" at {}", origin_only(&at.endpoint.url))
                });
                format!(
                    "\nThen {}{at} is called to undo the first effect, at least twice under one key{second}.",
                    by.tool
                )
            }
            Policy::Undeclared | Policy::Needless => String::new(),
        };
        format!(
            "{} at {} is called with real effects: {keys} keys, each of them sent at least twice.\n\
             A tool that does not deduplicate takes effect each time.{undo}\n",
            at.tool.name,
            origin_only(&at.endpoint.url),
        )
    }

    /// A new key, with the arguments that are sent under it.
    pub(super) fn intent(&self, args: &Value) -> Intent {
        let Some(place) = &self.fresh else {
            let is_first = *args == self.args;
            let raw = is_first.then(|| self.raw_args.clone());
            return Intent::new(raw.unwrap_or_else(|| args.to_string().into()), Vec::new());
        };
        let mut args = args.clone();
        let suffix = &Uuid::new_v4().simple().to_string()[..8];
        let mut made = Vec::new();
        if let Some(Value::String(text)) = args.pointer_mut(place.as_str()) {
            *text = format!("{text}-{suffix}");
            made.push(text.clone());
        }
        Intent::new(args.to_string().into(), made)
    }
}

/// A tool by its name.
pub(super) fn find<'a>(tools: &'a [ToolAt], name: &str) -> Option<&'a ToolAt> {
    tools.iter().find(|at| at.tool.name == name)
}

/// The endpoint of a count, asked like a probe.
///
/// The tool's credentials go to the tool's own host only.
fn count_endpoint(tool: &Endpoint, url: &str) -> Result<Endpoint, String> {
    let parsed = url.replace("{key}", "0").parse::<Url>();
    let parsed = parsed
        .ok()
        .filter(is_http)
        .ok_or("--count-url: this is not an http:// or https:// URL")?;
    let headers = if parsed.origin() == tool.url.origin() {
        tool.headers.clone()
    } else {
        HeaderMap::new()
    };
    Ok(Endpoint {
        headers,
        url: parsed.clone(),
        probe: Some(parsed),
        ..tool.clone()
    })
}

/// All texts and numbers in a value, as texts.
pub(super) fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if !text.is_empty() => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(members) => members.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::tool;

    #[test]
    fn texts_holds_each_text_and_number_of_a_value() {
        let args = serde_json::json!({ "id": 4711, "of": ["a", ""], "is": true });
        let mut found = texts(&args);
        found.sort();
        assert_eq!(found, ["4711", "a"]);
    }

    #[test]
    fn only_a_count_at_the_tools_own_origin_gets_the_tools_credentials() {
        let tool = tool("https://shop.internal/orders");
        for (url, is_same) in [
            ("https://shop.internal/stats?key={key}", true),
            ("https://shop.internal:443/stats", true),
            ("http://shop.internal/stats", false),
            ("https://shop.internal:8443/stats", false),
            ("https://shop.internal.example.com/stats", false),
            ("https://user@elsewhere/shop.internal", false),
        ] {
            let endpoint = count_endpoint(&tool, url).expect("a URL");
            assert_eq!(!endpoint.headers.is_empty(), is_same, "{url}");
        }
        for url in ["ftp://shop.internal/stats", "stats", "http://"] {
            assert!(count_endpoint(&tool, url).is_err(), "{url}");
        }
    }
}
