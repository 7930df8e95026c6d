//! The rules of MCP: `POST /mcp` for clients, and the messages of MCP servers.
//!
//! Source: the Model Context Protocol, revisions 2025-06-18, 2025-11-25 and 2026-07-28.

pub mod annotations; // what a server says of its tools' effects
pub mod elicitation; // questions of a server, and the calls that answer them
pub mod evidence; // what the answer of an MCP server proves
pub mod lines; // messages of one line each
pub mod members; // objects, and their members as they were written
pub mod mirrored; // arguments that a request repeats in its headers
pub mod payment; // payments in requests, and answers that ask for them
pub mod portable; // JSON that every client can read
pub mod progress; // progress notifications
pub mod remote; // tasks of servers
pub mod request; // requests to MCP servers
pub mod revision; // the revision of a request
pub mod sse; // server-sent events
pub mod tasks; // calls as tasks

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::words::words;

/// Members of `_meta` that are the gateway's own.
pub const KEY: &str = "dev.oncegate/idempotency-key";
pub const SESSION: &str = "dev.oncegate/session";
pub const SAGA: &str = "dev.oncegate/saga";
pub const FENCING_TOKEN: &str = "dev.oncegate/fencing-token";
pub const CONFIRM: &str = "dev.oncegate/confirm-duplicate-of";
/// The client's own id of a call: a further name of it, and never a key.
pub const CLIENT_CALL: &str = "dev.oncegate/client-call-id";
pub const CALL_ID: &str = "dev.oncegate/call-id";
pub const REPLAYED: &str = "dev.oncegate/replayed";
/// In a replay: how long ago the call was first asked for, in milliseconds.
pub const AGE: &str = "dev.oncegate/age-ms";
/// A similar call, made a short while before.
pub const SIMILAR_TO: &str = "dev.oncegate/similar-to";

/// The settings of `POST /mcp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Web origins whose pages may send requests.
    pub origins: Vec<String>,
    /// After this long a call that still runs is answered as running.
    pub answer_within: Duration,
    /// After this long an answer becomes a stream, so that no proxy closes the connection.
    pub stream_after: Duration,
    /// Whether a call may be answered with a task, to clients that know tasks.
    pub tasks: bool,
    /// After this long a call that still runs becomes a task.
    pub task_after: Duration,
    /// At which endpoints the tool `await_call` is listed.
    pub await_tool: AwaitTool,
    /// Places of the session in a request. The first with a text counts.
    pub session: Vec<Source>,
    /// Places of the user in a request.
    pub user: Vec<Source>,
    /// Members of `_meta` that bring an idempotency key, besides [`KEY`].
    pub key_meta: Vec<String>,
    /// Members of `_meta` by which a client names a request. The ledger keeps them; no key is made of
    /// them.
    pub client_ids: Vec<String>,
    /// Places of the client's own id of a call, after [`CLIENT_CALL`] in `_meta`.
    pub client_call_id: Vec<Source>,
    /// Where this machine's user decides about a call that waits for approval, without the call's id. Only `oncegate wrap` has it.
    pub pages: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            origins: Vec::new(),
            answer_within: Duration::from_secs(45),
            stream_after: Duration::from_secs(2),
            tasks: true,
            task_after: Duration::from_secs(2),
            await_tool: AwaitTool::default(),
            session: vec![
                Source::Meta(SESSION.into()),
                Source::Meta("openai/session".into()),
            ],
            user: Vec::new(),
            key_meta: Vec::new(),
            client_ids: vec!["claudecode/toolUseId".into()],
            client_call_id: Vec::new(),
            pages: None,
        }
    }
}

words! {
    /// At which endpoints the tool `await_call` is listed.
    #[derive(Default)]
    pub enum AwaitTool {
        /// At `POST /mcp`, for callers of a tool that may run longer than `answer_within`.
        #[default]
        Auto = "auto",
        /// At every endpoint.
        On = "on",
        Off = "off",
    }
}

/// A place in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `meta:NAME`: a member of `_meta`.
    Meta(String),
    /// `header:NAME`, in lower case.
    Header(String),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("meta", name)) if !name.is_empty() => Ok(Self::Meta(name.to_owned())),
            Some(("header", name)) if is_header_name(name) => {
                Ok(Self::Header(name.to_ascii_lowercase()))
            }
            _ => Err(format!(
                "{text:?} is not a place in a request; one looks like \"meta:{SESSION}\" or \"header:x-user\""
            )),
        }
    }
}

/// Whether a text is a token of RFC 9110, section 5.6.2, as header names are.
fn is_header_name(name: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_of_token)
}

/// The one line of a header; `None`: it is missing, `Err`: several lines, or no text.
pub type HeaderLine = Option<Result<String, ()>>;

/// The longest of a client's names that is kept, in bytes.
const MAX_CLIENT_ID: usize = 256;
pub const MAX_CLIENT_IDS: usize = 8;

/// A client's names of a request, as one JSON object; empty if none fits.
///
/// `client_call` is the text of [`CLIENT_CALL`], wherever the request had it.
pub fn client_ids<'a>(
    client_call: &str,
    names: impl IntoIterator<Item = &'a str>,
    meta: &Map<String, Value>,
) -> String {
    let id = |name: &str| {
        let value = meta.get(name)?;
        let is_id = value.is_string() || value.is_i64() || value.is_u64();
        let is_short = is_id && value.to_string().len() <= MAX_CLIENT_ID;
        is_short.then(|| (name.to_owned(), value.clone()))
    };
    let names = names.into_iter().take(MAX_CLIENT_IDS);
    let mut ids: Map<String, Value> = names.filter_map(id).collect();
    if !client_call.is_empty() && client_call.len() <= MAX_CLIENT_ID {
        ids.insert(CLIENT_CALL.to_owned(), client_call.into());
    }
    match ids.is_empty() {
        true => String::new(),
        false => Value::Object(ids).to_string(),
    }
}

/// The text at the first of these places that has one.
///
/// # Errors
/// A header or a member of `_meta` is not text; the sentence names it.
pub fn first_text<'a>(
    sources: impl IntoIterator<Item = &'a Source>,
    meta: &Map<String, Value>,
    header: impl Fn(&str) -> HeaderLine,
) -> Result<Option<String>, String> {
    for source in sources {
        let found = match source {
            Source::Header(name) => header(name)
                .transpose()
                .map_err(|()| format!("the header {name} must be one line of text"))?,
            Source::Meta(name) => match meta.get(name) {
                None | Some(Value::Null) => None,
                Some(Value::String(text)) => Some(text.clone()),
                Some(_) => return Err(format!("_meta[{name:?}] is not text")),
            },
        };
        if found.as_ref().is_some_and(|text| !text.is_empty()) {
            return Ok(found);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn the_first_place_that_has_a_text_counts() {
        let sources =
            ["meta:a", "header:X-Session", "meta:b"].map(|text| text.parse().expect("a source"));
        let header = |name: &str| (name == "x-session").then(|| Ok("from a header".to_owned()));
        let first = |meta: Value| first_text(&sources, &object(meta), header);
        assert_eq!(first(json!({ "a": "1", "b": "2" })), Ok(Some("1".into())));
        for nothing in [
            json!({ "a": "" }),
            json!({ "a": null }),
            json!({ "b": "2" }),
        ] {
            assert_eq!(first(nothing), Ok(Some("from a header".into())));
        }
        let none = first_text(&sources, &object(json!({ "b": "2" })), |_| None);
        assert_eq!(none, Ok(Some("2".into())));
        assert_eq!(first_text(&sources, &Map::new(), |_| None), Ok(None));
    }

    #[test]
    fn a_value_that_is_no_text_is_refused_with_the_name_of_its_place() {
        let sources = [Source::Meta("a".into())];
        for value in [json!(1), json!(true), json!({}), json!([])] {
            let meta = object(json!({ "a": value }));
            assert_eq!(
                first_text(&sources, &meta, |_| None),
                Err("_meta[\"a\"] is not text".into())
            );
        }
        let twice = first_text(&[Source::Header("x-user".into())], &Map::new(), |_| {
            Some(Err(()))
        });
        assert_eq!(
            twice,
            Err("the header x-user must be one line of text".into())
        );
    }

    #[test]
    fn only_listed_and_short_names_of_a_request_are_kept() {
        let names = ["a", "b", "c", "d"];
        let long = "a".repeat(MAX_CLIENT_ID);
        let meta = object(json!({ "a": "toolu_1", "b": long, "c": { "x": 1 }, "d": 7, "e": "x" }));
        assert_eq!(client_ids("", names, &meta), r#"{"a":"toolu_1","d":7}"#);
        for number in [json!(-7), json!(u64::MAX)] {
            let ids = client_ids("", names, &object(json!({ "a": number })));
            assert_eq!(ids, format!("{{\"a\":{number}}}"));
        }
        assert_eq!(client_ids("", ["b", "c"], &meta), "");
        assert_eq!(client_ids("", [], &meta), "");
        let with_own = client_ids("t:1", ["d"], &meta);
        assert_eq!(with_own, r#"{"d":7,"dev.oncegate/client-call-id":"t:1"}"#);
    }

    #[test]
    fn a_place_has_a_kind_and_a_name() {
        for text in [
            "",
            "meta",
            "meta:",
            "header:",
            "query:a",
            "a",
            "header:a b",
            "header:ä",
            "header:a:b",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text}");
        }
    }
}
