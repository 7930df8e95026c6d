//! The revision of MCP that a request speaks. Its headers must agree with its body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::HeaderLine;

/// The revision in which each request says all that it needs.
pub const MODERN: &str = "2026-07-28";
/// Revisions that begin with `initialize`, the newest first.
///
/// Clients of 2025-03-26 may send batches; those are refused, and nothing is run.
pub const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Whether a revision has the header `MCP-Protocol-Version`.
pub fn has_header(version: &str) -> bool {
    // Their names are dates.
    version >= "2025-06-18"
}

/// The member of `_meta` with a request's revision.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// The methods that name a task.
pub const TASKS: [&str; 3] = ["tasks/get", "tasks/update", "tasks/cancel"];
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// The form of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 2025-11-25 and before.
    Legacy,
    /// 2026-07-28.
    Modern,
}

/// Why a request is malformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Malformed {
    /// A header is missing, or differs from the body.
    Header(String),
    /// This gateway does not speak this revision.
    Version(String),
    /// A member is missing.
    Params(String),
}

/// The parts of a request's body that headers repeat.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    pub method: &'a str,
    /// `params.name`, `params.uri` or `params.taskId`, for the methods that have it.
    pub name: Option<&'a str>,
    pub meta: &'a Map<String, Value>,
}

/// The revisions that the gateway speaks, for an error message.
pub fn supported() -> Vec<&'static str> {
    [&[MODERN], &LEGACY[..]].concat()
}

/// The revision in the answer to `initialize`.
pub fn negotiated(wanted: &str) -> &'static str {
    LEGACY
        .into_iter()
        .find(|version| *version == wanted)
        .unwrap_or(LEGACY[0])
}

/// The era of a request whose headers agree with its body.
///
/// # Errors
/// They do not, or the gateway does not speak the request's revision.
pub fn era(header: impl Fn(&str) -> HeaderLine, said: Said<'_>) -> Result<Era, Malformed> {
    const IN_HEADER: &str = "MCP-Protocol-Version";
    let mismatch = |name: &str, why: &str| Malformed::Header(format!("{name} {why}"));
    let line = |name: &'static str| {
        let line = header(name).transpose();
        line.map_err(|()| mismatch(name, "must be one line of text"))
    };
    let required = |name: &'static str| line(name)?.ok_or_else(|| mismatch(name, "is missing"));
    let version = line(IN_HEADER)?;
    let in_body = match said.meta.get(VERSION) {
        None => None,
        Some(Value::String(version)) => Some(version),
        Some(_) => return Err(Malformed::Params(format!("_meta[{VERSION:?}] is not text"))),
    };
    let Some(version) = version else {
        return match in_body {
            None => Ok(Era::Legacy),
            Some(_) => Err(mismatch(IN_HEADER, "is missing")),
        };
    };
    if in_body.is_some_and(|in_body| *in_body != version) {
        return Err(mismatch(IN_HEADER, "is not what the body says"));
    }
    if LEGACY.contains(&&*version) {
        return Ok(Era::Legacy);
    }
    if version != MODERN {
        return Err(Malformed::Version(version));
    }
    for (name, is_there) in [
        (VERSION, in_body.is_some()),
        (
            CAPABILITIES,
            said.meta.get(CAPABILITIES).is_some_and(Value::is_object),
        ),
    ] {
        if !is_there {
            return Err(Malformed::Params(format!("_meta[{name:?}] is missing")));
        }
    }
    if required("Mcp-Method")? != said.method {
        return Err(mismatch("Mcp-Method", "is not the method of the body"));
    }
    if let Some(name) = said.name {
        let in_header = decode(&required("Mcp-Name")?);
        let in_header = in_header.ok_or_else(|| mismatch("Mcp-Name", "cannot be decoded"))?;
        if in_header != name {
            return Err(mismatch("Mcp-Name", "is not the name of the body"));
        }
    }
    Ok(Era::Modern)
}

/// The headers of a message from standard input; none if it names no revision.
pub fn headers_of(message: &Value) -> Vec<(&'static str, String)> {
    let params = &message["params"];
    let Some(version) = params["_meta"][VERSION].as_str() else {
        return Vec::new();
    };
    let method = message["method"].as_str().unwrap_or_default();
    let name = match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        _ if TASKS.contains(&method) => params["taskId"].as_str(),
        _ => None,
    };
    let mut headers = vec![
        ("mcp-protocol-version", encode(version)),
        ("mcp-method", encode(method)),
    ];
    headers.extend(name.map(|name| ("mcp-name", encode(name))));
    headers
}

/// A text as the value of a header: itself if it is plain, else in `=?base64?…?=`.
pub fn encode(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain && text.trim() == text && !text.starts_with("=?base64?") {
        return text.to_owned();
    }
    format!("=?base64?{}?=", BASE64.encode(text))
}

/// Decodes a header value: itself, or a text in `=?base64?…?=`. `None`: it cannot be decoded.
pub fn decode(value: &str) -> Option<String> {
    let encoded = value
        .strip_prefix("=?base64?")
        .and_then(|rest| rest.strip_suffix("?="));
    match encoded {
        None => Some(value.to_owned()),
        Some(encoded) => String::from_utf8(BASE64.decode(encoded).ok()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Headers {
        version: HeaderLine,
        method: HeaderLine,
        name: HeaderLine,
    }

    fn asked(
        version: Option<&str>,
        meta: Value,
        change: impl Fn(&mut Headers),
    ) -> Result<Era, Malformed> {
        let text = |value: &str| Some(Ok(value.to_owned()));
        let mut headers = Headers {
            version: version.and_then(text),
            method: text("tools/call"),
            name: text("act"),
        };
        change(&mut headers);
        let meta = meta.as_object().cloned().expect("an object");
        let header = |name: &str| match name {
            "MCP-Protocol-Version" => headers.version.clone(),
            "Mcp-Method" => headers.method.clone(),
            "Mcp-Name" => headers.name.clone(),
            _ => panic!("{name}"),
        };
        era(
            header,
            Said {
                method: "tools/call",
                name: Some("act"),
                meta: &meta,
            },
        )
    }

    fn modern() -> Value {
        json!({ VERSION: MODERN, CAPABILITIES: {} })
    }

    #[test]
    fn the_version_of_a_request_decides_its_era() {
        let same = |_: &mut Headers| {};
        assert_eq!(asked(Some(MODERN), modern(), same), Ok(Era::Modern));
        assert_eq!(asked(None, json!({}), same), Ok(Era::Legacy));
        for version in LEGACY {
            assert_eq!(asked(Some(version), json!({}), same), Ok(Era::Legacy));
            assert_eq!(
                asked(Some(version), json!({ VERSION: version }), same),
                Ok(Era::Legacy)
            );
        }
        for version in ["1999-01-01", "2025-03-27", ""] {
            assert_eq!(
                asked(Some(version), json!({}), same),
                Err(Malformed::Version(version.into()))
            );
            let meta = json!({ VERSION: version, CAPABILITIES: {} });
            assert_eq!(
                asked(Some(version), meta, same),
                Err(Malformed::Version(version.into()))
            );
        }
    }

    #[test]
    fn a_modern_request_needs_version_and_capabilities_in_its_body() {
        let same = |_: &mut Headers| {};
        let is_params = |result| matches!(result, Err(Malformed::Params(_)));
        assert!(is_params(asked(Some(MODERN), json!({}), same)));
        assert!(is_params(asked(
            Some(MODERN),
            json!({ VERSION: MODERN }),
            same
        )));
        let text = json!({ VERSION: MODERN, CAPABILITIES: "all" });
        assert!(is_params(asked(Some(MODERN), text, same)));
        assert!(is_params(asked(Some(MODERN), json!({ VERSION: 1 }), same)));
    }

    #[test]
    fn headers_must_agree_with_the_body() {
        let is_header = |result| matches!(result, Err(Malformed::Header(_)));
        assert!(is_header(asked(None, modern(), |_| {})));
        assert!(is_header(asked(Some("2025-11-25"), modern(), |_| {})));
        assert!(is_header(asked(Some(MODERN), modern(), |headers| {
            headers.version = Some(Err(()))
        })));
        for wrong in [
            None,
            Some(Ok("tools/list".into())),
            Some(Ok("Tools/Call".into())),
            Some(Err(())),
        ] {
            let changed = |headers: &mut Headers| headers.method.clone_from(&wrong);
            assert!(
                is_header(asked(Some(MODERN), modern(), changed)),
                "{wrong:?}"
            );
        }
        for wrong in [
            None,
            Some(Ok("other".into())),
            Some(Ok("=?base64?_?=".into())),
            Some(Err(())),
        ] {
            let changed = |headers: &mut Headers| headers.name.clone_from(&wrong);
            assert!(
                is_header(asked(Some(MODERN), modern(), changed)),
                "{wrong:?}"
            );
        }
        let encoded = |headers: &mut Headers| headers.name = Some(Ok("=?base64?YWN0?=".into()));
        assert_eq!(asked(Some(MODERN), modern(), encoded), Ok(Era::Modern));
    }

    #[test]
    fn an_encoded_header_is_decoded_to_the_same_text() {
        for text in [
            "",
            "a b",
            " a",
            "a\n",
            "世界",
            "=?base64?YQ==?=",
            "=?base64?",
        ] {
            let value = encode(text);
            assert!(
                value.bytes().all(|byte| matches!(byte, b' '..=b'~')),
                "{value}"
            );
            assert_eq!(value.trim(), value);
            assert_eq!(decode(&value).as_deref(), Some(text));
        }
        assert_eq!(encode("a b"), "a b");
    }

    #[test]
    fn a_value_may_be_encoded() {
        assert_eq!(decode("a b").as_deref(), Some("a b"));
        assert_eq!(
            decode("=?base64?SGVsbG8sIOS4lueVjA==?=").as_deref(),
            Some("Hello, 世界")
        );
        assert_eq!(
            decode("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=").as_deref(),
            Some("=?base64?literal?=")
        );
        assert_eq!(decode("=?base64?/w==?="), None, "it is not UTF-8");
        assert_eq!(decode("=?base64?").as_deref(), Some("=?base64?"));
    }

    #[test]
    fn initialize_gets_the_revision_that_it_asks_for_or_the_newest() {
        assert_eq!(negotiated("2025-06-18"), "2025-06-18");
        for older in ["2025-03-26", "2024-11-05"] {
            assert_eq!(negotiated(older), older);
            assert!(!has_header(older));
        }
        assert!(has_header("2025-06-18") && has_header(MODERN));
        assert_eq!(negotiated("2024-10-07"), "2025-11-25");
        assert_eq!(negotiated(MODERN), "2025-11-25");
        assert_eq!(supported()[..3], [MODERN, "2025-11-25", "2025-06-18"]);
        assert_eq!(supported()[3..], ["2025-03-26", "2024-11-05"]);
    }

    #[test]
    fn a_message_without_headers_gets_those_that_agree_with_it() {
        let of = |method: &str, params: Value| {
            let mut message = json!({ "method": method, "params": params });
            message["params"]["_meta"] = modern();
            let headers = headers_of(&message);
            headers
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect::<Vec<_>>()
        };
        let both = |method: &str| {
            vec![
                format!("mcp-protocol-version: {MODERN}"),
                format!("mcp-method: {method}"),
            ]
        };
        let params = json!({ "name": "é", "uri": "a:b" });
        for (method, name) in [
            ("tools/call", Some("=?base64?w6k=?=")),
            ("prompts/get", Some("=?base64?w6k=?=")),
            ("resources/read", Some("a:b")),
            ("tools/list", None),
        ] {
            let mut expected = both(method);
            expected.extend(name.map(|name| format!("mcp-name: {name}")));
            assert_eq!(of(method, params.clone()), expected);
        }
        assert_eq!(of("tools/call", json!({})), both("tools/call"));
        let older = json!({ "method": "tools/call", "params": { "name": "a" } });
        assert_eq!(headers_of(&older), []);
    }
}
