//! Splits a stream into messages of one line each, as MCP's stdio has them.

use std::borrow::Cow;
use std::mem;

use serde::Deserialize;
use serde_json::value::RawValue;

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
    /// An answer to the request with this id, if that is a text.
    Answers(Option<Cow<'a, str>>),
    /// A question to the client, which waits for an answer with this id.
    Asks {
        id: &'a RawValue,
        method: Cow<'a, str>,
    },
    /// A notification: progress, a log line, a changed list.
    Tells,
    /// The line is no message of JSON-RPC.
    Nothing,
}

impl<'a> Said<'a> {
    pub fn read(line: &'a [u8]) -> Self {
        #[derive(Deserialize)]
        struct Message<'a> {
            #[serde(borrow)]
            id: Option<&'a RawValue>,
            #[serde(borrow)]
            method: Option<Cow<'a, str>>,
        }
        match object::<Message<'_>>(line) {
            Some(Message {
                id: Some(id),
                method: Some(method),
            }) => Self::Asks { id, method },
            Some(Message {
                id: None,
                method: Some(_),
            }) => Self::Tells,
            Some(Message { id, method: None }) => {
                let text = |id: &'a RawValue| serde_json::from_str(id.get()).ok();
                Self::Answers(id.and_then(text))
            }
            None => Self::Nothing,
        }
    }
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
        let answers =
            |line, id: &str| matches!(read(line), Said::Answers(Some(said)) if said == id);
        assert!(answers(
            r#"{"jsonrpc":"2.0","id":"a\u0062","result":{}}"#,
            "ab"
        ));
        assert!(answers(r#"{"id":"a"}"#, "a"));
        for unnamed in [
            r#"{"id":7,"result":{}}"#,
            r#"{"id":null,"error":{}}"#,
            r#"{"error":{}}"#,
        ] {
            assert!(matches!(read(unnamed), Said::Answers(None)), "{unnamed}");
        }
        let asks = read(r#"{"id":[1],"method":"roots/list"}"#);
        assert!(
            matches!(asks, Said::Asks { id, method } if id.get() == "[1]" && method == "roots/list")
        );
        assert!(matches!(
            read(r#"{"method":"notifications/message","params":{"id":"a"}}"#),
            Said::Tells
        ));
        for nothing in [
            "",
            "Listening on stdio",
            "[]",
            r#"["id"]"#,
            r#"{"id":"a","id":"b","result":{}}"#,
            r#"{"id":"a","result""#,
        ] {
            assert!(matches!(read(nothing), Said::Nothing), "{nothing}");
        }
        assert!(matches!(Said::read(b"{\"id\":\"\xe4\"}"), Said::Nothing));
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
