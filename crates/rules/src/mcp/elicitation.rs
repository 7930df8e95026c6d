//! Rounds: a server answers a call with questions, and another call brings the answers.
//!
//! Source: revision 2026-07-28, "Multi Round-Trip Requests". A server may give no state, so the gateway puts the id of
//! the call that asked before the state that a client sends back: that id names the elicitation.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::members::{Members, object};
use crate::record::{CallId, Content, Record, State};

/// The member of a call's arguments for the elicitation that it answers. Callers may not send it.
pub const MEMBER: &str = "dev.oncegate/round";
/// How long the text of an id is.
const ID: usize = 36;
/// The kinds of questions that a client can answer.
const ANSWERS: [&str; 3] = ["elicitation", "roots", "sampling"];
/// The longest description of a client's abilities, in bytes.
const MAX_ANSWERS: usize = 4 << 10;

/// A result that asks questions.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// The state that the server wants back.
    pub state: Option<String>,
}

/// The answer to an elicitation in a request.
#[derive(Debug)]
pub struct Answer {
    /// The call that asked.
    pub asked_by: CallId,
    /// The server's state.
    pub state: Option<String>,
    /// The answers, as one object.
    pub responses: Option<Box<RawValue>>,
}

impl Answer {
    /// `None`: the gateway did not give this state.
    pub fn read(state: &str, responses: Option<&RawValue>) -> Option<Self> {
        let (id, rest) = state.split_at_checked(ID)?;
        let state = match rest {
            "" => None,
            rest => Some(rest.strip_prefix('.')?.to_owned()),
        };
        Some(Self {
            asked_by: CallId(Uuid::try_parse(id).ok()?),
            state,
            responses: responses.map(ToOwned::to_owned),
        })
    }

    /// The arguments with the answers as one more member.
    pub fn added_to(&self, args: &str) -> String {
        let mut member = json!({ "call": self.asked_by.to_string() });
        if let Some(state) = &self.state {
            member["state"] = state.as_str().into();
        }
        let mut member = member.to_string();
        if let Some(responses) = &self.responses {
            member.truncate(member.len() - 1);
            member.push_str(&format!(",\"responses\":{}}}", responses.get()));
        }
        with(args, &member)
    }
}

/// The arguments with this member.
fn with(args: &str, member: &str) -> String {
    let args = args.trim_end();
    let args = args.strip_suffix('}').unwrap_or(args).trim_end();
    let comma = if args.ends_with('{') { "" } else { "," };
    format!("{args}{comma}{}:{member}}}", json!(MEMBER))
}

/// The state that a client sends back to answer an elicitation.
pub fn state(asked_by: &str, theirs: Option<&str>) -> String {
    match theirs {
        None => asked_by.to_owned(),
        Some(theirs) => format!("{asked_by}.{theirs}"),
    }
}

/// Reads a result that asks questions; `None`: it asks none.
pub fn asked(result: &[u8]) -> Option<Asked> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(rename = "resultType", borrow)]
        kind: Cow<'a, str>,
        #[serde(rename = "requestState")]
        state: Option<String>,
        #[serde(rename = "inputRequests", borrow)]
        requests: Option<&'a RawValue>,
    }
    let head: Head<'_> = object(result)?;
    let requests = head.requests.map(RawValue::get);
    let has_requests = requests.is_some_and(|requests| requests.starts_with('{'));
    (head.kind == "input_required" && (has_requests || head.state.is_some()))
        .then_some(Asked { state: head.state })
}

/// The questions of a call; `None`: it asked none, or they are not kept.
pub fn asked_by(record: &Record) -> Option<Asked> {
    match &record.state {
        State::Succeeded(Content::Stored(json)) => asked(json),
        _ => None,
    }
}

/// The call whose questions these arguments answer.
pub fn answered_by(args: &Value) -> Option<CallId> {
    let id = args.get(MEMBER)?.get("call")?.as_str()?;
    Uuid::try_parse(id).ok().map(CallId)
}

/// The arguments of the first call, with the answers to a later elicitation.
///
/// `before`: the arguments of a call that asked.
pub fn as_asked(args: &str, before: &[u8]) -> String {
    match member_of(before) {
        Some(member) => with(args, member.get()),
        None => args.to_owned(),
    }
}

/// The arguments without the member of the elicitation.
pub fn without(mut args: Value) -> Value {
    if let Some(members) = args.as_object_mut() {
        members.remove(MEMBER);
    }
    args
}

fn member_of(args: &[u8]) -> Option<&RawValue> {
    let Members(members) = serde_json::from_slice(args).ok()?;
    let mut members = members.into_iter();
    members.find_map(|(name, value)| (name == MEMBER).then_some(value))
}

/// The parts of a call's arguments that a server gets as parameters.
#[derive(Default, Deserialize)]
pub(super) struct Parts<'a> {
    #[serde(borrow)]
    pub(super) state: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) responses: Option<&'a RawValue>,
}

/// Splits arguments into the server's arguments and the answers to an elicitation.
pub(super) fn split(args: &[u8]) -> (Cow<'_, [u8]>, Option<Parts<'_>>) {
    let Members(members) = serde_json::from_slice(args).unwrap_or(Members(Vec::new()));
    let (elicitation, others): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|(name, _)| name == MEMBER);
    let Some((_, member)) = elicitation.first() else {
        return (Cow::Borrowed(args), None);
    };
    let others = others.iter();
    let others = others.map(|(name, value)| format!("{}:{}", json!(name), value.get()));
    let others = others.collect::<Vec<_>>().join(",");
    let parts = serde_json::from_str(member.get()).unwrap_or_default();
    (Cow::Owned(format!("{{{others}}}").into()), Some(parts))
}

/// Whether these arguments answer an elicitation.
pub fn is_answer(args: &[u8]) -> bool {
    member_of(args).is_some()
}

/// Whether each of these questions, an object of JSON, is of a kind that a client of these abilities can answer.
pub fn are_answerable(questions: &str, abilities: &Map<String, Value>) -> bool {
    let questions: Option<Map<String, Value>> = serde_json::from_str(questions).ok();
    questions.is_some_and(|questions| {
        questions.values().all(|question| {
            let method = question["method"].as_str().unwrap_or_default();
            let kind = method.split('/').next().unwrap_or_default();
            ANSWERS.contains(&kind) && abilities.contains_key(kind)
        })
    })
}

/// The questions that a client of these capabilities can answer. A server asks no others.
pub fn can_answer(capabilities: Option<&Value>) -> Map<String, Value> {
    let some = ANSWERS.into_iter().filter_map(|name| {
        let value = capabilities?.get(name).filter(|value| value.is_object())?;
        Some((name.to_owned(), value.clone()))
    });
    let some: Map<String, Value> = some.collect();
    let is_short = Value::Object(some.clone()).to_string().len() <= MAX_ANSWERS;
    if is_short { some } else { Map::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a204fb-4781-776a-aa14-a78d6ac6bf9c";

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).expect("JSON")
    }

    #[test]
    fn a_result_asks_only_if_it_has_a_question_or_a_state() {
        for (result, state) in [
            (
                r#"{"resultType":"input_required","requestState":"s"}"#,
                Some("s"),
            ),
            (
                r#" {"resultType":"input_required","inputRequests":{}}"#,
                None,
            ),
            (
                r#"{"inputRequests":{"a":1},"resultType":"input_required","requestState":""}"#,
                Some(""),
            ),
        ] {
            let asked = asked(result.as_bytes()).expect(result);
            assert_eq!(asked.state.as_deref(), state, "{result}");
        }
        for result in [
            r#"{"resultType":"input_required"}"#,
            r#"{"resultType":"input_required","inputRequests":[]}"#,
            r#"{"resultType":"input_required","requestState":1}"#,
            r#"{"resultType":"complete","requestState":"s"}"#,
            r#"{"requestState":"s"}"#,
            "[]",
            "",
        ] {
            assert_eq!(asked(result.as_bytes()), None, "{result}");
        }
    }

    #[test]
    fn a_state_names_the_call_that_asked() {
        for theirs in [None, Some(""), Some("a.b"), Some("\u{e4}")] {
            let answer = Answer::read(&state(ID, theirs), None).expect("an answer");
            assert_eq!(answer.asked_by.to_string(), ID);
            assert_eq!(answer.state.as_deref(), theirs);
        }
        let other = format!("{ID}x");
        for state in ["", "s", &ID[1..], &other, &"\u{e4}".repeat(40)] {
            assert!(Answer::read(state, None).is_none(), "{state}");
        }
    }

    #[test]
    fn the_answer_that_is_added_to_arguments_is_split_off_again() {
        let responses = raw(r#"{"n":{"action":"accept","content":{"x":1.50}}}"#);
        let answer = Answer::read(&state(ID, Some("s\"")), Some(&responses)).expect("an answer");
        for (args, sent) in [
            ("{}", "{}"),
            (" { } ", "{}"),
            (r#"{"b":1.50,"a":"\u00e9"} "#, r#"{"b":1.50,"a":"\u00e9"}"#),
        ] {
            let stored = answer.added_to(args);
            let value: Value = serde_json::from_str(&stored).expect("JSON");
            assert_eq!(
                answered_by(&value).map(|id| id.to_string()).as_deref(),
                Some(ID)
            );
            let (without_it, parts) = split(stored.as_bytes());
            assert_eq!(without_it, sent.as_bytes());
            let parts = parts.expect("an answer");
            assert_eq!(parts.state.map(RawValue::get), Some(r#""s\"""#));
            assert_eq!(parts.responses.map(RawValue::get), Some(responses.get()));
            assert_eq!(
                without(value),
                serde_json::from_str::<Value>(args).expect("JSON")
            );
            assert!(is_answer(stored.as_bytes()));
            assert_eq!(as_asked(args, stored.as_bytes()).trim_end(), stored);
            assert_eq!(as_asked(args, b"{}"), args);
            assert!(split(args.as_bytes()).1.is_none() && !is_answer(args.as_bytes()));
        }
    }

    #[test]
    fn only_questions_that_a_client_can_answer_are_passed_on() {
        let said =
            json!({ "elicitation": { "form": {} }, "roots": true, "sampling": {}, "tasks": {} });
        let forwarded = Value::Object(can_answer(Some(&said)));
        assert_eq!(
            forwarded,
            json!({ "elicitation": { "form": {} }, "sampling": {} })
        );
        let long = json!({ "sampling": { "x": "a".repeat(MAX_ANSWERS) } });
        assert!(can_answer(Some(&long)).is_empty() && can_answer(None).is_empty());
        let abilities = can_answer(Some(&json!({ "elicitation": {} })));
        for (questions, expected) in [
            (r#"{"a":{"method":"elicitation/create"}}"#, true),
            (
                r#"{"a":{"method":"elicitation/create"},"b":{"method":"sampling/createMessage"}}"#,
                false,
            ),
            (r#"{"a":{"method":"roots/list"}}"#, false),
            (r#"{"a":{}}"#, false),
            ("[]", false),
            ("{}", true),
        ] {
            assert_eq!(
                are_answerable(questions, &abilities),
                expected,
                "{questions}"
            );
        }
    }

    #[test]
    fn a_call_asked_only_if_its_kept_result_has_questions() {
        use crate::testing::{failed, succeeded};
        let asking = r#"{"resultType":"input_required","requestState":"s"}"#;
        let record = succeeded(asking);
        let questions = Asked {
            state: Some("s".into()),
        };
        assert_eq!(asked_by(&record), Some(questions));
        let lost = State::Succeeded(Content::Unavailable("too long".into()));
        for state in [lost, failed()] {
            let other = Record {
                state,
                ..record.clone()
            };
            assert_eq!(asked_by(&other), None);
        }
        assert_eq!(asked_by(&succeeded("{}")), None);
    }
}
