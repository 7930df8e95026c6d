//! Progress notifications, passed from a server to the caller.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::members::Members;

/// The member of `_meta` by which a caller asks for notifications.
pub const TOKEN: &str = "progressToken";
const METHOD: &str = "notifications/progress";
/// The longest notification that is forwarded, in bytes.
const MAX_NOTE: usize = 4 << 10;
/// The longest token of a caller, in bytes.
const MAX_TOKEN: usize = 256;

#[derive(Deserialize)]
struct Note<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "progressToken", borrow)]
    token: Cow<'a, str>,
}

/// The token and the parameters of a progress notification; `None`: another message.
///
/// The token is the id of the gateway's request.
pub fn read(message: &[u8]) -> Option<(Cow<'_, str>, &str)> {
    if message.len() > MAX_NOTE {
        return None;
    }
    let note: Note<'_> = serde_json::from_slice(message).ok()?;
    let params = note.params.get();
    let Params { token } = serde_json::from_str(params).ok()?;
    (note.method == METHOD).then_some((token, params))
}

/// A caller that asked for progress.
#[derive(Debug)]
pub struct Asked {
    /// The caller's own token, as it was written.
    token: String,
    /// The progress in the last notification. Each notification must have a greater one.
    last: Option<f64>,
}

impl Asked {
    /// `None`: the token is neither a text nor a whole number.
    pub fn new(token: &serde_json::Value) -> Option<Self> {
        let is_token = token.is_string() || token.is_i64() || token.is_u64();
        let token = token.to_string();
        (is_token && token.len() <= MAX_TOKEN).then_some(Self { token, last: None })
    }

    /// The notification for this caller; `None`: no progress, or it does not rise.
    pub fn notification(&mut self, params: &str) -> Option<String> {
        let Members(members) = serde_json::from_str(params).ok()?;
        let progress = members.iter().find(|(name, _)| name == "progress")?.1;
        let progress: f64 = progress.get().parse().ok()?;
        if self.last.is_some_and(|last| progress <= last) {
            return None;
        }
        self.last = Some(progress);
        let others = members.iter().filter(|(name, _)| name != TOKEN);
        let others = others.map(|(name, value)| format!(",{}:{}", json!(name), value.get()));
        Some(format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"{METHOD}\",\"params\":{{\"{TOKEN}\":{}{}}}}}",
            self.token,
            others.collect::<String>()
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_caller_gets_rising_progress_under_its_own_token() {
        let mut asked = Asked::new(&json!("a \"token\"")).expect("a token");
        let mut notification = |progress: &str| {
            let note = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":{progress},"progressToken":"ours","message":"m","new":1.50}}}}"#
            );
            let (token, params) = read(note.as_bytes()).expect("a note");
            assert_eq!(token, "ours");
            asked.notification(params)
        };
        let first = notification("0").expect("a notification");
        assert!(first.contains(r#""new":1.50"#) && !first.contains("ours"));
        let first: Value = serde_json::from_str(&first).expect("JSON");
        assert_eq!(first["method"], METHOD);
        assert_eq!(first["params"]["progressToken"], "a \"token\"");
        assert_eq!(first["params"]["message"], "m");
        assert_eq!(
            (notification("0"), notification("-1"), notification("\"1\"")),
            (None, None, None)
        );
        assert!(
            notification("0.5").is_some()
                && notification("0.25").is_none()
                && notification("1e2").is_some()
        );
    }

    #[test]
    fn other_messages_are_no_progress() {
        let long = format!(
            r#"{{"method":"notifications/progress","params":{{"progressToken":"a","progress":1,"message":"{}"}}}}"#,
            "a".repeat(MAX_NOTE)
        );
        for message in [
            "",
            "[]",
            r#"{"method":"notifications/progress"}"#,
            r#"{"method":"notifications/progress","params":{"progress":1}}"#,
            r#"{"method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#,
            r#"{"method":"notifications/message","params":{"progressToken":"a"}}"#,
            &long,
        ] {
            assert_eq!(read(message.as_bytes()), None, "{message}");
        }
        let around = long.len() - MAX_NOTE;
        let note =
            |length: usize| long.replacen(&"a".repeat(MAX_NOTE), &"a".repeat(length - around), 1);
        assert!(read(note(MAX_NOTE).as_bytes()).is_some());
        assert_eq!(read(note(MAX_NOTE + 1).as_bytes()), None);
        for token in [
            json!(1.5),
            json!(null),
            json!({}),
            json!("a".repeat(MAX_TOKEN)),
        ] {
            assert!(Asked::new(&token).is_none(), "{token}");
        }
        assert!(Asked::new(&json!(7)).is_some());
    }
}
