//! The options of a trial, read and checked before anything is sent.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value;
use uuid::Uuid;

use crate::config::Config;
use crate::core::compensation::Policy;
use crate::core::key::Pointer;
use crate::core::record::CallId;
use crate::core::tool::{Effect, Tool};
use crate::core::trial::Naming;
use crate::core::{json, redact};
use crate::downstream::Endpoint;
use crate::gateway::ToolAt;

/// Most rounds of two requests at once.
const MAX_ROUNDS: u32 = 20;

/// The options of `verify-tool`, as given.
#[derive(Debug)]
pub struct TrialOptions {
    pub tool: String,
    pub args: String,
    /// Other arguments, which are sent under a used key.
    pub other_args: Option<String>,
    /// Pointer to the id of the effect in a result.
    pub id: Option<String>,
    /// Pointer to the id of the effect in a result of the compensation.
    pub undo_id: Option<String>,
    /// Pointer to a text in the arguments that is made different for each key.
    pub fresh: Option<String>,
    /// Where to read a count of the effects. `{key}` in it is the key.
    pub count_url: Option<String>,
    /// Pointer to the count in that answer: a whole number, or a list.
    pub count: Option<String>,
    /// Pointer to the count of the compensation's effects.
    pub undo_count: Option<String>,
    /// How long after the first answer its key is sent once more.
    pub after: String,
    pub rounds: u32,
}

/// Where to read the operator's counts.
pub(super) struct Count {
    /// `{key}` in it is the key of a step.
    pub(super) url: String,
    pub(super) endpoint: Endpoint,
    /// Pointer to the count of the tool's effects.
    pub(super) at: Option<Pointer>,
    /// Pointer to the count of the compensation's effects.
    pub(super) at_undone: Option<Pointer>,
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
    /// A new key. `made`: texts that were made for it.
    pub(super) fn new(args: Bytes, made: Vec<String>) -> Self {
        // As long as the keys that a gateway gives to its tools.
        let (key, call_id) = (Uuid::new_v4().simple().to_string(), CallId(Uuid::new_v4()));
        let mut sent = made;
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
    pub(super) config: Config,
    pub(super) name: String,
    pub(super) args: Value,
    pub(super) raw_args: Bytes,
    pub(super) other_args: Option<Value>,
    pub(super) naming: Naming,
    pub(super) undo_id: Option<Pointer>,
    pub(super) fresh: Option<Pointer>,
    pub(super) count: Option<Count>,
    pub(super) after: Duration,
    pub(super) rounds: u32,
}

fn pointer(name: &str, text: Option<String>) -> Result<Option<Pointer>, String> {
    let parsed = text.map(|text| text.parse::<Pointer>()).transpose();
    parsed.map_err(|why| format!("{name}: {why}"))
}

/// The arguments as a caller would send them.
fn arguments(tool: &Tool, name: &str, text: &str) -> Result<Value, String> {
    let args = json::parse(text).map_err(|error| format!("{name}: {error}"))?;
    if !args.is_object() || !redact::is_whole(text.trim_start().as_bytes()) {
        return Err(format!("{name}: the arguments are one JSON object"));
    }
    let of_schema = tool.schema.iter().flat_map(|schema| schema.mistakes(&args));
    let of_request = tool.request.iter().flat_map(|shape| shape.mistakes(&args));
    match of_schema.chain(of_request).next() {
        Some((place, why)) => Err(format!("{name}: {place}: {why}")),
        None => Ok(args.clone()),
    }
}

impl TrialPlan {
    /// Reads and checks the options. Nothing is sent.
    ///
    /// # Errors
    /// It cannot be done, and why.
    pub fn new(config: Config, options: TrialOptions) -> Result<Self, String> {
        let name = options.tool;
        let at = find(&config, &name).ok_or_else(|| format!("there is no tool {name:?}"))?;
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
        if tool.proxy.is_some() {
            return Err(format!(
                "{name} is a proxy, whose calls have no arguments: describe the operation as a tool to try it"
            ));
        }
        if let Policy::By(by) = &tool.compensation
            && find(&config, &by.tool).is_some_and(ToolAt::is_of_upstream)
        {
            return Err(format!(
                "{}, which undoes {name}, is a tool of an MCP server: verify-tool asks tools that have a URL",
                by.tool
            ));
        }
        let args = arguments(tool, "--args", &options.args)?;
        let other_args = options
            .other_args
            .map(|text| arguments(tool, "--other-args", &text));
        let other_args = other_args.transpose()?;
        if other_args.as_ref() == Some(&args) {
            return Err("--other-args: these are the same arguments".into());
        }
        let fresh = pointer("--fresh", options.fresh)?;
        if let Some(place) = &fresh
            && ![Some(&args), other_args.as_ref()]
                .into_iter()
                .flatten()
                .all(|args| args.pointer(place.as_str()).is_some_and(Value::is_string))
        {
            return Err(format!("--fresh: there is no text at {}", place.as_str()));
        }
        let naming = Naming {
            id: pointer("--id", options.id)?,
            ignore: tool.replay_ignore.clone(),
            hidden: tool.redact.result.clone(),
        };
        let undo_id = pointer("--undo-id", options.undo_id)?;
        let at_count = pointer("--count", options.count)?;
        let at_undone = pointer("--undo-count", options.undo_count)?;
        let count = match options.count_url {
            Some(_) if at_count.is_none() && at_undone.is_none() => {
                return Err(
                    "--count-url needs --count, a JSON Pointer to the count in its answer".into(),
                );
            }
            Some(url) => Some(Count {
                endpoint: count_endpoint(&at.endpoint, &url)?,
                url,
                at: at_count,
                at_undone,
            }),
            None if at_count.is_some() || at_undone.is_some() => {
                return Err("--count and --undo-count need --count-url".into());
            }
            None => None,
        };
        let after = options.after.parse::<jiff::SignedDuration>();
        let after = after.ok().and_then(|after| Duration::try_from(after).ok());
        let after = after.ok_or("--after: this is no duration; one looks like \"5s\", \"10m\"")?;
        if !(1..=MAX_ROUNDS).contains(&options.rounds) {
            return Err(format!("--rounds: 1 to {MAX_ROUNDS}"));
        }
        Ok(Self {
            name,
            raw_args: Bytes::from(options.args.trim().to_owned()),
            args,
            other_args,
            naming,
            undo_id,
            fresh,
            count,
            after,
            rounds: options.rounds,
            config,
        })
    }

    /// The effects of the trial, for the person who has to confirm it.
    pub fn warning(&self) -> String {
        let Some(at) = find(&self.config, &self.name) else {
            return String::new();
        };
        let keys = 1 + self.rounds + u32::from(self.other_args.is_some());
        let undo = match &at.tool.compensation {
            Policy::By(by) => {
                let second = if self.undo_id.is_some() {
                    ", and the effect of a second key, once"
                } else {
                    ""
                };
                let at = find(&self.config, &by.tool)
                    .map_or_else(String::new, |at| format!(" at {}", place(&at.endpoint.url)));
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
            self.name,
            place(&at.endpoint.url),
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
pub(super) fn find<'a>(config: &'a Config, name: &str) -> Option<&'a ToolAt> {
    config.tools.iter().find(|at| at.tool.name == name)
}

/// The endpoint of a count, asked like a probe.
///
/// The tool's credentials go to the tool's own host only.
fn count_endpoint(tool: &Endpoint, url: &str) -> Result<Endpoint, String> {
    let parsed = url.replace("{key}", "0").parse::<Url>();
    let parsed = parsed
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or("--count-url: this is no http:// or https:// URL")?;
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

/// The scheme and host of a URL. User, path and query may be secrets.
pub(super) fn place(url: &Url) -> String {
    format!("{}/…", url.origin().ascii_serialization())
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
    use reqwest::header::{AUTHORIZATION, HeaderValue};

    use super::*;

    fn tool(url: &str) -> Endpoint {
        Endpoint {
            method: reqwest::Method::POST,
            url: url.parse().expect("a URL"),
            headers: [(
                AUTHORIZATION,
                HeaderValue::from_static("Bearer secret-of-shop"),
            )]
            .into_iter()
            .collect(),
            probe: None,
            connection_reuse: None,
            mcp: None,
            asked: None,
            is_proxy: false,
            max_answer: None,
        }
    }

    #[test]
    fn numbers_and_texts_of_arguments_are_known() {
        let args = serde_json::json!({ "id": 4711, "of": ["a", ""], "is": true });
        let mut found = texts(&args);
        found.sort();
        assert_eq!(found, ["4711", "a"]);
    }

    #[test]
    fn a_count_gets_the_tools_credentials_at_the_tools_own_place_only() {
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
