//! What an attempt proved: one table from evidence to outcome.
//!
//! The rule: unknown unless there is positive evidence. Must not know what is done with an outcome.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};

use super::record::{Content, Failure, FailureKind, Record, State};
use super::tool::{Declared, SuccessTest, Tool};

/// What was observed of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// No byte of the request was handed to a connection, and none will be.
    NotSent { why: String },
    /// The request was handed to a connection, and there is no complete status line.
    NoAnswer { why: String },
    /// The gateway that made the attempt is gone and wrote no outcome.
    Lost { why: String },
    /// The tool answered.
    Answer {
        status: u16,
        body: Body,
        retry_after: Option<Duration>,
        /// The newest fencing token that the tool says it has seen.
        newest_token: Option<u64>,
    },
}

impl Evidence {
    /// Whether the tool is there and does its work, whatever that proves of the call: also a refusal is a
    /// sign of life, but not "too many" or "too late".
    pub fn is_sign_of_life(&self) -> bool {
        match self {
            Self::Answer { status, .. } => *status < 500 && !matches!(status, 408 | 425 | 429),
            Self::NotSent { .. } | Self::NoAnswer { .. } | Self::Lost { .. } => false,
        }
    }

    /// How long the tool asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Answer { retry_after, .. } => *retry_after,
            Self::NotSent { .. } | Self::NoAnswer { .. } | Self::Lost { .. } => None,
        }
    }
}

/// The body of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    Whole(Bytes),
    /// It could not be read whole, and why.
    Broken(String),
}

/// What is known of the attempt that evidence is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// An earlier attempt of the same call may have been executed.
    pub doubted: bool,
    /// The fencing token that it was sent with.
    pub fencing: Option<u64>,
}

impl Sent {
    /// What a call's newest attempt was sent with.
    ///
    /// What is sent once more of a call that has succeeded settles nothing.
    pub fn of(record: &Record) -> Self {
        Self {
            doubted: record.doubted && !matches!(record.state, State::Succeeded(_)),
            fencing: record.fencing,
        }
    }
}

/// What an attempt proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Executed(Content),
    NotExecuted(Failure),
    /// It may have been executed.
    Unknown,
}

impl Outcome {
    /// Whether the tool has said something definite, as it is declared for it.
    pub fn is_healthy(&self) -> bool {
        match self {
            Self::Executed(_) => true,
            Self::NotExecuted(failure) => {
                matches!(failure.kind, FailureKind::Rejected | FailureKind::Fenced)
            }
            Self::Unknown => false,
        }
    }

    /// All words for it.
    pub const WORDS: [&str; 3] = ["executed", "not_executed", "unknown"];

    /// The word for it in the ledger and in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Executed(_) => "executed",
            Self::NotExecuted(_) => "not_executed",
            Self::Unknown => "unknown",
        }
    }
}

/// What the evidence means for this tool, and a sentence that says why.
///
/// If an earlier attempt of the same call may have been executed, nothing that the tool says of a later
/// one proves that the call was not ("already exists" may be us).
pub fn classify(tool: &Tool, evidence: &Evidence, sent: Sent) -> (Outcome, String) {
    let (outcome, why) = match evidence {
        Evidence::NotSent { why } => {
            let failure = Failure {
                kind: FailureKind::Unreachable,
                status: None,
                body: None,
                retry_after: None,
                why: why.clone(),
            };
            (
                Outcome::NotExecuted(failure),
                format!("nothing was sent: {why}"),
            )
        }
        Evidence::NoAnswer { why } => (
            Outcome::Unknown,
            format!("the request was sent and not answered: {why}"),
        ),
        Evidence::Lost { why } => (
            Outcome::Unknown,
            format!("nobody has seen how the attempt ended: {why}"),
        ),
        Evidence::Answer {
            status,
            body,
            retry_after,
            newest_token,
        } => {
            let is_stale = is_stale(*status, sent.fencing, *newest_token);
            // Callers are not sent away for longer than a call may take, whatever the tool says.
            let told = retry_after.map(|wait| wait.min(tool.deadline));
            let (outcome, rule) = answered(tool, *status, body, told, is_stale);
            (
                outcome,
                format!("the tool answered {status} with {}{rule}", describe(body)),
            )
        }
    };
    match outcome {
        Outcome::NotExecuted(_) if sent.doubted => (
            Outcome::Unknown,
            format!("{why}; but an earlier attempt may have been executed"),
        ),
        outcome => (outcome, why),
    }
}

fn describe(body: &Body) -> String {
    match body {
        Body::Whole(bytes) => format!("{} bytes", bytes.len()),
        Body::Broken(why) => format!("a body that could not be read ({why})"),
    }
}

/// Whether the tool has refused our fencing token: it names a newer one, or says that a precondition
/// does not hold, of which we send no other.
fn is_stale(status: u16, ours: Option<u64>, newest: Option<u64>) -> bool {
    let Some(ours) = ours else { return false };
    status == 412 || (status == 409 && newest.is_some_and(|newest| newest > ours))
}

/// The table, and which row it was where that is not plain.
fn answered(
    tool: &Tool,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
    is_stale: bool,
) -> (Outcome, &'static str) {
    if let Some(declared) = tool.outcomes.get(&status) {
        return (
            by_declaration(*declared, status, body, retry_after),
            ", as declared for this tool",
        );
    }
    match status {
        200..=299 => match tool.success.as_ref().map(|test| (test, passes(test, body))) {
            None | Some((_, Some(true))) => (Outcome::Executed(keep(body)), ""),
            Some((test, Some(false))) => {
                let outcome = by_declaration(test.otherwise, status, body, retry_after);
                (outcome, ", which fails the tool's success test")
            }
            Some((_, None)) => (
                Outcome::Unknown,
                ", in which the tool's success test finds nothing",
            ),
        },
        303 => (Outcome::Executed(keep(body)), ""),
        _ if is_stale => (
            by_declaration(Declared::Fenced, status, body, retry_after),
            ": the session's fencing token is not the newest",
        ),
        400..=406 | 409..=417 | 421 | 422 | 424 | 426 | 428 | 431 | 451 | 501 | 505 => (
            by_declaration(Declared::Rejected, status, body, retry_after),
            "",
        ),
        425 | 429 => (
            by_declaration(Declared::NotExecuted, status, body, retry_after),
            "",
        ),
        300..=399 => (Outcome::Unknown, "; redirects are never followed"),
        _ => (
            Outcome::Unknown,
            "; that does not prove that it was not executed",
        ),
    }
}

fn by_declaration(
    declared: Declared,
    status: u16,
    body: &Body,
    retry_after: Option<Duration>,
) -> Outcome {
    let failure = |kind, body| Failure {
        kind,
        status: Some(status),
        body,
        retry_after,
        why: format!("the tool answered {status}"),
    };
    match declared {
        Declared::Executed => Outcome::Executed(keep(body)),
        Declared::NotExecuted => Outcome::NotExecuted(failure(FailureKind::Unavailable, None)),
        Declared::Rejected | Declared::Fenced => {
            let body = match keep(body) {
                Content::Kept(json) => Some(json),
                Content::Unavailable(_) => None,
            };
            let is_fenced = declared == Declared::Fenced;
            let kind = if is_fenced {
                FailureKind::Fenced
            } else {
                FailureKind::Rejected
            };
            Outcome::NotExecuted(failure(kind, body))
        }
        Declared::Unknown => Outcome::Unknown,
    }
}

/// Whether the body holds what the test asks for; `None` if there is nothing to be tested: the body
/// is cut off or no JSON, or nothing stands at the pointer. That proves neither.
pub(super) fn passes(test: &SuccessTest, body: &Body) -> Option<bool> {
    let Body::Whole(bytes) = body else {
        return None;
    };
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let found = value.pointer(test.pointer.as_str())?;
    Some(match (found, &test.equals) {
        (Value::Number(found), Value::Number(asked)) => found.as_f64() == asked.as_f64(),
        (found, asked) => found == asked,
    })
}

/// A body as one JSON text: JSON byte for byte, text as `{"text": …}`, anything else as `{"base64": …}`.
pub(super) fn keep(body: &Body) -> Content {
    match body {
        Body::Broken(why) => Content::Unavailable(why.clone()),
        Body::Whole(bytes) => {
            let is_json = serde_json::from_slice::<&serde_json::value::RawValue>(bytes).is_ok();
            if is_json {
                return Content::Kept(bytes.clone());
            }
            let wrapped = match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "text": text }),
                Err(_) => json!({ "base64": BASE64.encode(bytes) }),
            };
            Content::Kept(wrapped.to_string().into())
        }
    }
}

#[cfg(test)]
#[path = "outcome_life_tests.rs"]
mod life;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tool::tests::tool;
    use proptest::prelude::*;

    fn answer(status: u16, body: &'static str) -> Evidence {
        Evidence::Answer {
            status,
            body: Body::Whole(body.into()),
            retry_after: None,
            newest_token: None,
        }
    }

    /// The outcome in one word, a failure by its kind.
    fn word(tool: &Tool, evidence: &Evidence, doubted: bool) -> &'static str {
        match classify(
            tool,
            evidence,
            Sent {
                doubted,
                fencing: None,
            },
        )
        .0
        {
            Outcome::NotExecuted(failure) => failure.kind.as_str(),
            outcome => outcome.as_str(),
        }
    }

    #[test]
    fn the_default_table() {
        let tool = tool("t");
        let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
        for status in 200..=599 {
            let word = word(&tool, &answer(status, "{}"), false);
            match rows.last_mut() {
                Some((last, range)) if *last == word => range.push(status.to_string()),
                _ => rows.push((word, vec![status.to_string()])),
            }
        }
        let table: String = rows
            .iter()
            .map(|(word, range)| match range.as_slice() {
                [one] => format!("{one} {word}\n"),
                [first, .., last] => format!("{first}-{last} {word}\n"),
                [] => String::new(),
            })
            .collect();
        insta::assert_snapshot!(table, @r"
        200-299 executed
        300-302 unknown
        303 executed
        304-399 unknown
        400-406 rejected
        407-408 unknown
        409-417 rejected
        418-420 unknown
        421-422 rejected
        423 unknown
        424 rejected
        425 unavailable
        426 rejected
        427 unknown
        428 rejected
        429 unavailable
        430 unknown
        431 rejected
        432-450 unknown
        451 rejected
        452-500 unknown
        501 rejected
        502-504 unknown
        505 rejected
        506-599 unknown
        ");
    }

    #[test]
    fn only_what_was_surely_not_sent_is_not_executed_without_an_answer() {
        let tool = tool("t");
        assert_eq!(
            word(
                &tool,
                &Evidence::NotSent {
                    why: "refused".into()
                },
                false
            ),
            "unreachable"
        );
        assert_eq!(
            word(
                &tool,
                &Evidence::NoAnswer {
                    why: "reset".into()
                },
                false
            ),
            "unknown"
        );
        assert_eq!(
            word(
                &tool,
                &Evidence::Lost {
                    why: "killed".into()
                },
                false
            ),
            "unknown"
        );
    }

    #[test]
    fn a_tool_may_declare_single_statuses() {
        let mut tool = tool("t");
        tool.outcomes = BTreeMap::from([
            (503, Declared::NotExecuted),
            (404, Declared::Unknown),
            (500, Declared::Executed),
            (200, Declared::Rejected),
        ]);
        let words =
            [503, 404, 500, 200, 502].map(|status| word(&tool, &answer(status, "{}"), false));
        assert_eq!(
            words,
            ["unavailable", "unknown", "executed", "rejected", "unknown"]
        );
    }

    #[test]
    fn a_stale_token_is_told_from_other_conflicts() {
        let tool = tool("t");
        let refused = |status, ours, newest_token, doubted| {
            let body = Body::Whole("{}".into());
            let evidence = Evidence::Answer {
                status,
                body,
                retry_after: None,
                newest_token,
            };
            match classify(
                &tool,
                &evidence,
                Sent {
                    doubted,
                    fencing: ours,
                },
            )
            .0
            {
                Outcome::NotExecuted(failure) => failure.kind.as_str(),
                outcome => outcome.as_str(),
            }
        };
        assert_eq!(refused(409, Some(7), Some(8), false), "fenced");
        assert_eq!(
            refused(409, Some(7), Some(7), false),
            "rejected",
            "it has seen nothing newer"
        );
        assert_eq!(
            refused(409, Some(7), None, false),
            "rejected",
            "any conflict may be meant"
        );
        assert_eq!(
            refused(409, None, Some(8), false),
            "rejected",
            "none was sent"
        );
        assert_eq!(
            refused(412, Some(7), None, false),
            "fenced",
            "no other precondition was sent"
        );
        assert_eq!(refused(422, Some(7), Some(8), false), "rejected");
        assert_eq!(refused(200, Some(7), Some(8), false), "executed");
        assert_eq!(
            refused(412, Some(7), Some(8), true),
            "unknown",
            "the first attempt may have been executed"
        );
    }

    #[test]
    fn a_2xx_that_fails_the_success_test_is_what_the_tool_declares() {
        let mut tool = tool("t");
        let test = SuccessTest {
            pointer: "/status".parse().expect("a pointer"),
            equals: json!("ok"),
            otherwise: Declared::Rejected,
        };
        tool.success = Some(test.clone());
        let cut = Evidence::Answer {
            status: 200,
            body: Body::Broken("cut".into()),
            retry_after: None,
            newest_token: None,
        };
        assert_eq!(
            word(&tool, &answer(200, r#"{"status":"ok"}"#), false),
            "executed"
        );
        assert_eq!(
            word(&tool, &answer(200, r#"{"status":"failed"}"#), false),
            "rejected"
        );
        assert_eq!(
            word(&tool, &cut, false),
            "unknown",
            "what cannot be read cannot be told"
        );
        for body in ["{}", "no JSON", "", "{\"status\":"] {
            assert_eq!(word(&tool, &answer(200, body), false), "unknown", "{body}");
        }
        tool.success = Some(SuccessTest {
            otherwise: Declared::Unknown,
            ..test.clone()
        });
        assert_eq!(
            word(&tool, &answer(200, r#"{"status":"failed"}"#), false),
            "unknown"
        );
        tool.success = Some(SuccessTest {
            equals: json!(0),
            ..test
        });
        assert_eq!(
            word(&tool, &answer(200, r#"{"status":0.0}"#), false),
            "executed",
            "numbers are compared by value"
        );
    }

    #[test]
    fn results_are_kept_byte_for_byte_and_what_is_no_json_is_wrapped() {
        let kept = |bytes: &'static [u8]| match keep(&Body::Whole(bytes.into())) {
            Content::Kept(json) => json,
            Content::Unavailable(why) => panic!("{why}"),
        };
        assert_eq!(
            kept(b" {\"b\":1.0, \"a\":2,\"a\":3}\n"),
            " {\"b\":1.0, \"a\":2,\"a\":3}\n"
        );
        assert_eq!(kept(b"null"), "null");
        assert_eq!(kept(b"thank \"you\""), r#"{"text":"thank \"you\""}"#);
        assert_eq!(kept(b""), r#"{"text":""}"#);
        assert_eq!(kept(b"\xff\x00"), r#"{"base64":"/wA="}"#);
        assert_eq!(kept(b"\"\xff\""), r#"{"base64":"Iv8i"}"#);
        assert_eq!(
            keep(&Body::Broken("cut".into())),
            Content::Unavailable("cut".into())
        );
    }

    proptest! {
        #[test]
        fn after_a_doubt_nothing_proves_that_it_was_not_executed(status in 100..700_u16, sent: bool) {
            let evidence = if sent { answer(status, "{}") } else { Evidence::NotSent { why: "refused".into() } };
            let word = word(&tool("t"), &evidence, true);
            prop_assert!(word == "executed" || word == "unknown", "{word}");
        }

        #[test]
        fn what_is_kept_is_always_one_json_text(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let Content::Kept(json) = keep(&Body::Whole(bytes.into())) else { panic!("must be kept") };
            prop_assert!(serde_json::from_slice::<Value>(&json).is_ok());
        }
    }

    use std::collections::BTreeMap;
}
