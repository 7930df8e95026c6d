//! Requests to MCP servers, as JSON-RPC.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::members::Members;
use super::revision::{self, MODERN};
use super::{CALL_ID, FENCING_TOKEN, KEY};
use super::{elicitation, progress, tasks};
use crate::json;

/// The members of `_meta` for the server.
#[derive(Debug, Clone, Copy)]
pub struct CallMeta<'a> {
    pub key: Option<&'a str>,
    pub call_id: Option<&'a str>,
    pub fencing_token: Option<u64>,
    pub traceparent: Option<&'a str>,
    /// The caller wants progress notifications.
    pub with_progress: bool,
    /// The questions that the caller can answer.
    pub can_answer: &'a Map<String, Value>,
    /// Whether the server may answer with a task.
    pub takes_task: bool,
    /// The caller's payments.
    pub payments: &'a Map<String, Value>,
}

/// A `tools/call`.
///
/// The arguments are one JSON object, and keep their bytes. Only the answers to an elicitation become
/// parameters of their own.
pub fn call(id: &str, tool: &str, args: &[u8], sent: CallMeta<'_>, is_modern: bool) -> Bytes {
    let mut meta = meta(is_modern, sent.can_answer, sent.takes_task);
    for (name, value) in [
        (KEY, sent.key.map(Value::from)),
        (CALL_ID, sent.call_id.map(Value::from)),
        ("traceparent", sent.traceparent.map(Value::from)),
        (progress::TOKEN, sent.with_progress.then(|| id.into())),
        (FENCING_TOKEN, sent.fencing_token.map(Value::from)),
    ] {
        meta.extend(value.map(|value| (name.to_owned(), value)));
    }
    meta.extend(sent.payments.clone());
    let (id, tool) = (json!(id), json!(tool));
    let meta = Value::Object(meta);
    let (args, answers) = elicitation::split(args);
    let mut before = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":{tool},\"_meta\":{meta},"
    );
    if let Some(answers) = answers {
        for (name, value) in [
            ("inputResponses", answers.responses),
            ("requestState", answers.state),
        ] {
            let value = value.map(|value| format!("\"{name}\":{},", value.get()));
            before.push_str(&value.unwrap_or_default());
        }
    }
    before.push_str("\"arguments\":");
    [before.as_bytes(), &args, b"}}"].concat().into()
}

/// A request that executes nothing, with the parameters of another client.
///
/// Its `_meta` holds only the questions that the client can answer. In a request for a task it says that tasks are known.
pub fn forward(id: &str, method: &str, params: &Members<'_>, is_modern: bool) -> Bytes {
    let mut written = String::from("{");
    let mut can_answer = Map::new();
    for (name, value) in &params.0 {
        if name == "_meta" {
            let said = json::read(value.get().as_bytes()).unwrap_or_default();
            can_answer = elicitation::can_answer(said.get(revision::CAPABILITIES));
        } else {
            written.push_str(&format!("{}:{},", json!(name), value.get()));
        }
    }
    let meta = Value::Object(meta(is_modern, &can_answer, method.starts_with("tasks/")));
    let (id, method) = (json!(id), json!(method));
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{written}\"_meta\":{meta}}}}}").into()
}

/// Asks a server of 2026-07-28 for its capabilities.
pub fn discover(id: &str) -> Bytes {
    request(
        id,
        "server/discover",
        json!({ "_meta": meta(true, &Map::new(), false) }),
    )
}

/// Asks whether a server is there, in a session of an earlier revision.
pub fn ping(id: &str) -> Bytes {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
    message.to_string().into()
}

/// Begins a conversation with a server of an earlier revision.
pub fn initialize(id: &str) -> Bytes {
    let params = json!({
        "protocolVersion": revision::LEGACY[0],
        "capabilities": {},
        "clientInfo": client_info(),
    });
    request(id, "initialize", params)
}

/// The notification that the answer to `initialize` has come.
pub fn initialized() -> Bytes {
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    message.to_string().into()
}

fn request(id: &str, method: &str, params: Value) -> Bytes {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    message.to_string().into()
}

/// The `_meta` of a request: since 2026-07-28 it names revision and sender.
fn meta(is_modern: bool, can_answer: &Map<String, Value>, knows_tasks: bool) -> Map<String, Value> {
    if !is_modern {
        return Map::new();
    }
    let mut abilities = can_answer.clone();
    if knows_tasks {
        abilities.insert("extensions".into(), json!({ (tasks::EXTENSION): {} }));
    }
    Map::from_iter([
        (revision::VERSION.to_owned(), MODERN.into()),
        (revision::CAPABILITIES.to_owned(), abilities.into()),
        (
            "io.modelcontextprotocol/clientInfo".to_owned(),
            client_info(),
        ),
    ])
}

fn client_info() -> Value {
    json!({ "name": "oncegate", "version": env!("CARGO_PKG_VERSION") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_request_keeps_its_parameters_but_not_the_clients_meta() {
        let params = r#"{"uri":"a:b","_meta":{"secret":1},"n":1.50}"#;
        let params = serde_json::from_str(params).expect("an object");
        for is_modern in [true, false] {
            let sent = forward("1", "resources/read", &params, is_modern);
            let message: Value = serde_json::from_slice(&sent).expect("JSON");
            assert_eq!(message["method"], "resources/read");
            assert_eq!(message["params"]["uri"], "a:b");
            assert_eq!(message["params"]["_meta"].get("secret"), None);
            let is_said = message["params"]["_meta"].get(revision::VERSION).is_some();
            assert_eq!(is_said, is_modern);
            assert!(sent.windows(8).any(|part| part == b"\"n\":1.50"));
        }
    }

    #[test]
    fn a_call_has_its_arguments_byte_for_byte_and_its_key() {
        let sent = CallMeta {
            key: Some("k"),
            call_id: Some("c"),
            fencing_token: Some(7),
            traceparent: None,
            with_progress: true,
            can_answer: &Map::new(),
            takes_task: true,
            payments: &Map::from_iter([("x402/payment".to_owned(), json!({ "x402Version": 2 }))]),
        };
        let args = br#"{"b":1.50, "a":"\u00e9"}"#;
        let modern = call("1", "a \"tool\"", args, sent, true);
        assert!(modern.windows(args.len()).any(|part| part == args));
        let message: Value = serde_json::from_slice(&modern).expect("JSON");
        assert_eq!(message["params"]["name"], "a \"tool\"");
        let meta = &message["params"]["_meta"];
        assert_eq!(
            (&meta[KEY], &meta[CALL_ID], &meta[FENCING_TOKEN]),
            (&json!("k"), &json!("c"), &json!(7))
        );
        assert_eq!(meta[revision::VERSION], MODERN);
        assert_eq!(meta[progress::TOKEN], "1", "not the caller's own");
        assert_eq!(meta["x402/payment"]["x402Version"], 2);
        assert_eq!(
            meta[revision::CAPABILITIES],
            json!({ "extensions": { (tasks::EXTENSION): {} } })
        );
        let legacy: Value =
            serde_json::from_slice(&call("1", "t", b"{}", sent, false)).expect("JSON");
        assert_eq!(legacy["params"]["_meta"].get(revision::VERSION), None);
        assert_eq!(legacy["params"]["_meta"][KEY], "k");
    }

    #[test]
    fn the_gateways_own_requests_have_this_text() {
        let read = |sent: &[u8]| serde_json::from_slice::<Value>(sent).expect("JSON");
        let client = json!({ "name": "oncegate", "version": env!("CARGO_PKG_VERSION") });
        assert_eq!(
            read(&discover("1")),
            json!({ "jsonrpc": "2.0", "id": "1", "method": "server/discover", "params": { "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": client,
            } } })
        );
        assert_eq!(
            read(&initialize("2")),
            json!({ "jsonrpc": "2.0", "id": "2", "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client,
            } })
        );
        assert_eq!(
            read(&initialized()),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
        );
    }
}
