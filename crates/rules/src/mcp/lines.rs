//! Splits a stream into messages of one line each, as MCP's stdio has them.

use std::borrow::Cow;
use std::mem;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::evidence::{Match, matches};
use super::members::object;

/// How many bytes of each end of a line that is too long are kept.
const ENDS: usize = 4 << 10;

/// A whole line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Vec<u8>),
    /// Longer than the bound: its beginning and its end.
    TooLong(Vec<u8>),
}

/// The lines of a stream so far.
///
/// Pieces may end anywhere, also inside of a character.
#[derive(Debug)]
pub struct Lines {
    max: usize,
    line: Vec<u8>,
    is_too_long: bool,
}

impl Lines {
    /// `max`: the longest line, in bytes.
    pub fn new(max: usize) -> Self {
        Self {
            max: max.max(2 * ENDS),
            line: Vec::new(),
            is_too_long: false,
        }
    }

    /// Takes the next piece; returns the lines that it ends. Empty lines are left out.
    pub fn push(&mut self, piece: &[u8]) -> Vec<Line> {
        let mut ended = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            match part.strip_suffix(b"\n") {
                Some(last) => {
                    self.add(last);
                    ended.extend(self.end());
                }
                None => self.add(part),
            }
        }
        ended
    }

    /// The unfinished line at the end of the stream.
    pub fn end(&mut self) -> Option<Line> {
        let mut line = mem::take(&mut self.line);
        if mem::take(&mut self.is_too_long) {
            return Some(Line::TooLong(line));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        (!line.is_empty()).then_some(Line::Whole(line))
    }

    fn add(&mut self, part: &[u8]) {
        for part in part.chunks(ENDS) {
            self.line.extend_from_slice(part);
            self.is_too_long |= self.line.len() > self.max;
            if self.is_too_long {
                // Only the beginning and the end of the line are kept.
                self.line.drain(ENDS..self.line.len() - ENDS);
                self.line.shrink_to(4 * ENDS);
            }
        }
    }
}

/// The kind of a server's message.
#[derive(Debug)]
pub enum Said<'a> {
    /// The response to the request with this id.
    Answers(Cow<'a, str>),
    /// A question to the client, which waits for an answer with this id.
    Asks {
        id: &'a RawValue,
        method: Cow<'a, str>,
    },
    /// A notification: progress, a log line, a changed list.
    Tells,
    /// Anything else, such as a log line, also if it has the id of a request.
    Noise,
}

impl<'a> Said<'a> {
    pub fn read(line: &'a [u8]) -> Self {
        #[derive(Deserialize)]
        struct Message<'a> {
            #[serde(borrow)]
            jsonrpc: Option<&'a RawValue>,
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            #[serde(borrow)]
            method: Option<Cow<'a, str>>,
        }
        match object::<Message<'_>>(line) {
            Some(Message {
                id: Some(id),
                method: Some(method),
                ..
            }) => Self::Asks { id, method },
            Some(Message {
                id: None,
                method: Some(_),
                ..
            }) => Self::Tells,
            Some(Message {
                jsonrpc: Some(_),
                id: Some(id),
                method: None,
            }) => match serde_json::from_str::<Cow<'_, str>>(id.get()) {
                Ok(id) if matches(line, &id) == Match::Ours => Self::Answers(id),
                _ => Self::Noise,
            },
            _ => Self::Noise,
        }
    }
}

/// The messages of a batch; none if these bytes are not a list.
///
/// Since 2025-06-18 there are no batches any more.
pub fn batched(bytes: &[u8]) -> Vec<&[u8]> {
    let is_list = bytes.trim_ascii_start().starts_with(b"[");
    let messages = is_list.then(|| serde_json::from_slice::<Vec<&RawValue>>(bytes).ok());
    let messages = messages.flatten().unwrap_or_default();
    messages
        .into_iter()
        .map(|message| message.get().as_bytes())
        .collect()
}

/// Whether a response to the request with this id has these ends: a long one, of which the middle was not kept.
///
/// Servers write the id before the result, or after it as the last member but one or the last.
pub fn is_end_of_response(ends: &[u8], id: &str) -> bool {
    let id: &str = &format!("\"id\":\"{id}\"");
    let is_begun = |members: [&str; 3]| {
        let begin = format!("{{{},{},\"{}\":", members[0], members[1], members[2]);
        ends.starts_with(begin.as_bytes())
    };
    let (version, ends) = ("\"jsonrpc\":\"2.0\"", ends.trim_ascii_end());
    ["result", "error"].into_iter().any(|answer| {
        let is_last = ends.starts_with(format!("{{\"{answer}\":").as_bytes())
            && [[version, id], [id, version]]
                .into_iter()
                .any(|[one, other]| ends.ends_with(format!(",{one},{other}}}").as_bytes()));
        is_last || is_begun([version, id, answer]) || is_begun([id, version, answer])
    })
}

/// A message as one line. Line ends become spaces: in JSON they stand only between values.
pub fn one_line(message: &[u8]) -> Vec<u8> {
    let is_end = |byte: u8| matches!(byte, b'\n' | b'\r');
    let bytes = message
        .iter()
        .map(|byte| if is_end(*byte) { b' ' } else { *byte });
    bytes.chain([b'\n']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn a_line_is_the_text_before_its_end() {
        let mut lines = Lines::new(1 << 20);
        assert_eq!(
            lines.push("{\"a\":1}\r\n\n \n世".as_bytes()),
            [whole("{\"a\":1}"), whole(" ")]
        );
        assert_eq!(lines.end(), Some(whole("世")), "what does not end is there");
        assert_eq!(lines.end(), None);
    }

    #[test]
    fn only_both_ends_of_a_line_that_is_too_long_are_kept() {
        let mut lines = Lines::new(100_000);
        let mut long = b"begin".to_vec();
        long.resize(10_000_000, b'x');
        assert!(lines.push(&long).is_empty());
        assert!(lines.line.len() <= 3 * ENDS, "no more of it is held");
        let ended = lines.push(b"the end\n{}\n");
        let [Line::TooLong(ends), next] = &ended[..] else {
            panic!("{}", ended.len());
        };
        assert!(ends.starts_with(b"begin") && ends.ends_with(b"the end"));
        assert!(ends.len() <= 2 * ENDS);
        assert_eq!(*next, whole("{}"), "the next line is read as ever");
    }

    #[test]
    fn a_line_is_whole_up_to_its_bound() {
        for (max, bound) in [(10_000, 10_000), (0, 2 * ENDS)] {
            let mut lines = Lines::new(max);
            let mut line = vec![b'x'; bound];
            let whole = Line::Whole(line.clone());
            line.push(b'\n');
            assert_eq!(lines.push(&line), [whole]);
            line.insert(0, b'y');
            let mut ends = vec![b'x'; 2 * ENDS];
            ends[0] = b'y';
            assert_eq!(lines.push(&line), [Line::TooLong(ends)]);
        }
    }

    #[test]
    fn a_line_is_a_message_of_one_kind_or_none() {
        let read = |line: &'static str| Said::read(line.as_bytes());
        let answers = |line, id: &str| matches!(read(line), Said::Answers(said) if said == id);
        assert!(answers(
            r#"{"jsonrpc":"2.0","id":"a\u0062","result":{}}"#,
            "ab"
        ));
        assert!(answers(r#"{"error":{},"jsonrpc":"2.0","id":"a"}"#, "a"));
        let asks = read(r#"{"id":[1],"method":"roots/list"}"#);
        assert!(
            matches!(asks, Said::Asks { id, method } if id.get() == "[1]" && method == "roots/list")
        );
        assert!(matches!(
            read(r#"{"method":"notifications/message","params":{"id":"a"}}"#),
            Said::Tells
        ));
        for noise in [
            r#"{"level":30,"id":"a"}"#,
            r#"{"id":"a","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"a"}"#,
            r#"{"jsonrpc":"2.0","id":"a","result":{},"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
            r#"{"error":{}}"#,
            "",
            "Listening on stdio",
            "[]",
            r#"["id"]"#,
            r#"{"id":"a","id":"b","result":{}}"#,
            r#"{"id":"a","result""#,
        ] {
            assert!(matches!(read(noise), Said::Noise), "{noise}");
        }
        assert!(matches!(Said::read(b"{\"id\":\"\xe4\"}"), Said::Noise));
    }

    #[test]
    fn the_messages_of_a_batch_keep_their_bytes() {
        let batch = br#" [{"a" :1.50}, 2]"#;
        assert_eq!(batched(batch), [&br#"{"a" :1.50}"#[..], b"2"]);
        for none in [&b"{}"[..], b"[", b"[1] 2", b"[]", b""] {
            assert!(batched(none).is_empty());
        }
    }

    #[test]
    fn a_response_that_is_too_long_is_known_by_its_ends() {
        let is = |ends: &str| is_end_of_response(ends.as_bytes(), "a");
        for response in [
            r#"{"jsonrpc":"2.0","id":"a","result":{"text":"xx xx"}}"#,
            r#"{"id":"a","jsonrpc":"2.0","error":{"code":1 xx"}}"#,
            r#"{"result":{"text":"xx xx"},"jsonrpc":"2.0","id":"a"}"#,
            r#"{"error":{"text":"xx xx"},"id":"a","jsonrpc":"2.0"} "#,
        ] {
            assert!(is(response), "{response}");
        }
        for other in [
            r#"{"level":30,"id":"a","msg":"xx xx"}"#,
            r#"{"req":{"jsonrpc":"2.0","id":"a","result":{}},"msg":"xx xx"}"#,
            r#"{"jsonrpc":"2.0","id":"b","result":{"text":"xx xx"}}"#,
            r#"{"jsonrpc":"2.0","id":"a","method":"ping xx xx"}"#,
            r#"{"result":{"text":"xx xx"},"jsonrpc":"2.0","id":"b"}"#,
            "handling request \"a\"",
        ] {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn a_message_becomes_one_line() {
        assert_eq!(one_line(b"{\r\n\"a\": \"\\n\"}"), b"{  \"a\": \"\\n\"}\n");
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_where_pieces_end(
            texts in prop::collection::vec("[a-zä世 ]{1,9}", 0..5),
            cuts in prop::collection::vec(0..200_usize, 0..9),
        ) {
            let stream: String = texts.iter().map(|text| format!("{text}\n")).collect();
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut from, mut lines, mut read) = (0, Lines::new(1 << 20), Vec::new());
            for to in cuts {
                read.extend(lines.push(&bytes[from..to]));
                from = to;
            }
            let expected: Vec<Line> = texts.iter().map(|text| whole(text)).collect();
            prop_assert_eq!(read, expected);
        }
    }
}
