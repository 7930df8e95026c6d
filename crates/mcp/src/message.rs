//! JSON-RPC 2.0 on the wire: one request or notification in, one response out.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use oncegate_http::parts::{Part, Parts};
use oncegate_http::problem::{MALFORMED, NO_SUCH_METHOD, Slug};
use oncegate_http::read::{Members, given};
use oncegate_rules::json;
use oncegate_rules::mcp::revision::{Era, Malformed, supported};
use oncegate_rules::mcp::tasks;

pub(super) const PARSE_ERROR: i32 = -32_700;
pub(crate) const INVALID_REQUEST: i32 = -32_600;
pub(super) const METHOD_NOT_FOUND: i32 = -32_601;
pub(super) const INVALID_PARAMS: i32 = -32_602;
pub(crate) const INTERNAL_ERROR: i32 = -32_603;
const HEADER_MISMATCH: i32 = -32_020;
const MISSING_CAPABILITY: i32 = -32_021;
const UNSUPPORTED_VERSION: i32 = -32_022;

/// The longest id of a request, in bytes, because answers repeat it.
const MAX_ID: usize = 1_024;
/// How much of a caller's text an error repeats, in bytes.
const MAX_QUOTED: usize = 200;

/// One message of JSON-RPC.
#[derive(Deserialize, ToSchema)]
#[schema(as = McpMessage)]
pub(crate) struct Message<'a> {
    #[schema(pattern = "^2\\.0$")]
    jsonrpc: String,
    /// A string or a whole number; a notification has none.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Option<Value>)]
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: String,
    #[serde(borrow)]
    #[schema(value_type = Option<Object>)]
    pub(super) params: Option<&'a RawValue>,
}

/// Why a message is answered with an error.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RpcError {
    code: i32,
    #[serde(default)]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

impl RpcError {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn params(why: &str) -> Self {
        Self::new(INVALID_PARAMS, format!("Invalid params: {}", short(why)))
    }

    /// A request about tasks by a client that does not say that it knows them.
    pub(super) fn no_tasks() -> Self {
        let extensions = Map::from_iter([(tasks::EXTENSION.to_owned(), json!({}))]);
        Self {
            data: Some(json!({ "requiredCapabilities": { "extensions": extensions } })),
            ..Self::new(
                MISSING_CAPABILITY,
                "Missing required client capability: the request does not say that the client knows tasks",
            )
        }
    }

    /// The error that an MCP server has answered.
    pub(super) fn of_server(error: &[u8]) -> Self {
        let unreadable = "The server answered with an error that cannot be read";
        serde_json::from_slice(error).unwrap_or_else(|_| Self::new(INTERNAL_ERROR, unreadable))
    }

    /// The HTTP status.
    ///
    /// Before 2026-07-28 an error has status 200, and 404 means that a session has ended.
    fn status(&self, era: Era) -> StatusCode {
        match (era, self.code) {
            (
                _,
                PARSE_ERROR | INVALID_REQUEST | HEADER_MISMATCH | MISSING_CAPABILITY
                | UNSUPPORTED_VERSION,
            )
            | (Era::Modern, INVALID_PARAMS) => MALFORMED,
            (Era::Modern, METHOD_NOT_FOUND) => NO_SUCH_METHOD,
            _ => StatusCode::OK,
        }
    }

    /// The problem that it would be over HTTP. `None`: only its maker knows.
    fn problem(&self) -> Option<Slug> {
        match self.code {
            METHOD_NOT_FOUND => Some(Slug::UnknownPath),
            INTERNAL_ERROR => None,
            _ => Some(Slug::InvalidRequest),
        }
    }

    /// The gateway's own answer.
    pub(super) fn answer(&self, id: Option<&RawValue>, era: Era) -> Response {
        self.answer_as(self.problem(), id, era)
    }

    /// The same, if it stands for another problem, or for none: a server's error is not the gateway's.
    pub(super) fn answer_as(
        &self,
        problem: Option<Slug>,
        id: Option<&RawValue>,
        era: Era,
    ) -> Response {
        let body = Parts::new([self.text(id).into()]);
        (self.status(era), problem.map(Extension), json(body)).into_response()
    }

    /// The whole response as JSON.
    pub(super) fn text(&self, id: Option<&RawValue>) -> String {
        #[derive(Serialize)]
        struct Answer<'a> {
            jsonrpc: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a RawValue>,
            error: &'a RpcError,
        }
        let answer = Answer {
            jsonrpc: "2.0",
            id,
            error: self,
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }
}

impl From<Malformed> for RpcError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Header(why) => Self::new(HEADER_MISMATCH, format!("Header mismatch: {why}")),
            Malformed::Params(why) => Self::params(&why),
            Malformed::Version(requested) => Self {
                data: Some(json!({ "supported": supported(), "requested": short(&requested) })),
                ..Self::new(UNSUPPORTED_VERSION, "Unsupported protocol version")
            },
        }
    }
}

/// The beginning of a text, as far as an error repeats it.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_QUOTED)]
}

/// The id of a malformed message, if it has a readable one.
pub(super) fn readable_id(bytes: &[u8]) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Identified<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let Members(Identified { id }) = serde_json::from_slice(bytes).ok()?;
    is_id(id.get()).then_some(id)
}

impl<'a> Message<'a> {
    /// Reads one message.
    ///
    /// # Errors
    /// The bytes are not JSON, or neither a request nor a notification of JSON-RPC 2.0.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, RpcError> {
        let invalid = |why: &str| RpcError::new(INVALID_REQUEST, format!("Invalid request: {why}"));
        json::bound_message(bytes).map_err(|error| invalid(&error.to_string()))?;
        let whole: &RawValue = serde_json::from_slice(bytes)
            .map_err(|error| RpcError::new(PARSE_ERROR, format!("Parse error: {error}")))?;
        match whole.get().as_bytes().first() {
            Some(b'{') => {}
            Some(b'[') => {
                return Err(invalid(
                    "one message per request; batches are not supported",
                ));
            }
            _ => return Err(invalid("a message is an object")),
        }
        let message: Self = serde_json::from_str(whole.get())
            .map_err(|error| invalid(short(&error.to_string())))?;
        if message.jsonrpc != "2.0" {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        if message.id.is_some_and(|id| !is_id(id.get())) {
            return Err(invalid("id must be a text or a whole number"));
        }
        if message
            .params
            .is_some_and(|params| !params.get().starts_with('{'))
        {
            return Err(invalid("params must be an object"));
        }
        Ok(message)
    }
}

fn is_id(raw: &str) -> bool {
    let is_whole = || {
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    raw.len() <= MAX_ID && (raw.starts_with('"') || is_whole())
}

/// A response whose result is in parts, so that a tool's answer is not copied.
pub(super) fn response(id: &RawValue, result: Vec<Part>) -> Parts {
    let before = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":", id.get());
    let before = Part::Plain(before.into());
    let after = Part::Plain(Bytes::from_static(b"}"));
    Parts::of([before].into_iter().chain(result).chain([after]))
}

/// An HTTP response with a JSON body.
pub(super) fn json(body: Parts) -> Response {
    ([(CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Result<bool, i32> {
        Message::read(text.as_bytes())
            .map(|message| message.id.is_some())
            .map_err(|error| error.code)
    }

    #[test]
    fn a_message_is_one_request_or_one_notification() {
        for id in ["1", "-7", "0", "\"a\"", "\"\"", "99999999999999999999"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            assert_eq!(code(&text), Ok(true), "{id}");
        }
        assert_eq!(
            code(r#" {"jsonrpc":"2.0","method":"notifications/initialized","params":{}} "#),
            Ok(false)
        );
    }

    #[test]
    fn the_id_for_an_error_is_read_from_an_object_only() {
        let id = |text: &'static str| readable_id(text.as_bytes()).map(RawValue::get);
        assert_eq!(id(r#"{"jsonrpc":"1.0","id":7}"#), Some("7"));
        assert_eq!(id("[1]"), None, "a list has no members");
        assert_eq!(id("{\"id\":[1]}"), None);
    }

    #[test]
    fn a_malformed_message_is_refused_with_the_right_code_of_json_rpc() {
        for text in ["", "{", "{\"jsonrpc\":\"2.0\",}", "\u{feff}{}", "nul"] {
            assert_eq!(code(text), Err(PARSE_ERROR), "{text}");
        }
        for id in ["null", "1.5", "1e3", "true", "{}", "[1]"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
            assert_eq!(code(&text), Err(INVALID_REQUEST), "{id}");
        }
        for text in [
            "[]",
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            "1",
            "null",
            "{}",
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert_eq!(code(text), Err(INVALID_REQUEST), "{text}");
        }
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
            "a".repeat(MAX_ID)
        );
        assert_eq!(code(&long), Err(INVALID_REQUEST), "answers would repeat it");
    }
}
