//! Reads server-sent events (HTML Living Standard, section 9.2) piece by piece.

use std::mem;

/// The events of a stream so far.
///
/// Pieces may end anywhere, also inside of a character: lines are bytes here.
#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// Whether the last byte was a carriage return: a line feed right after it ends no other line.
    after_return: bool,
}

impl Decoder {
    /// Takes the next piece; returns the data of the events that it ends.
    pub fn push(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        for &byte in piece {
            let is_second = mem::take(&mut self.after_return) && byte == b'\n';
            match byte {
                _ if is_second => {}
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    events.extend(self.end_line());
                }
                byte => self.line.push(byte),
            }
        }
        events
    }

    /// How many bytes of an unfinished event are held.
    pub fn held(&self) -> usize {
        self.line.len() + self.data.len()
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = mem::take(&mut self.line);
        if line.is_empty() {
            let data = mem::take(&mut self.data);
            return mem::take(&mut self.has_data).then_some(data);
        }
        // The first line may begin with a byte order mark. A line that begins with a colon is a comment.
        let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line);
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        if name == b"data" {
            if mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let mut decoder = Decoder::default();
        let events = pieces.iter().flat_map(|piece| decoder.push(piece));
        let texts = events.map(|data| String::from_utf8(data).expect("UTF-8"));
        texts.collect()
    }

    #[test]
    fn an_event_is_its_lines_of_data_up_to_an_empty_line() {
        for (stream, expected) in [
            ("data: a\n\n", vec!["a"]),
            ("data:a\r\n\r\ndata: b\r\r", vec!["a", "b"]),
            ("data: a\r\ndata: b\r\n\r\n", vec!["a\nb"]),
            (
                "event: message\nid: 7\ndata: a\ndata: b\nretry: 1\n\n",
                vec!["a\nb"],
            ),
            (": keep-alive\n\n:\n\ndata:  two\n\n", vec![" two"]),
            ("data\n\n", vec![""]),
            ("\u{feff}data: a\n\n", vec!["a"]),
            ("event: x\n\nid: 1\n\n", vec![]),
            ("database: a\n\n", vec![]),
            ("data: not ended\n", vec![]),
        ] {
            assert_eq!(events(&[stream.as_bytes()]), expected, "{stream:?}");
        }
    }

    #[test]
    fn the_bytes_of_an_unfinished_event_are_counted() {
        let mut decoder = Decoder::default();
        assert!(decoder.push(b"data: 12345\ndata: 12").is_empty());
        assert_eq!(decoder.held(), 5 + "data: 12".len());
        assert_eq!(decoder.push(b"\n\n").len(), 1);
        assert_eq!(decoder.held(), 0);
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_where_pieces_end(
            texts in prop::collection::vec("[a-zä世:\\{ ]{0,9}", 0..5),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(0..200_usize, 0..9),
        ) {
            let stream: String = texts.iter().map(|text| format!(":c{end}data: {text}{end}{end}")).collect();
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let mut from = 0;
            let pieces: Vec<&[u8]> = cuts.into_iter().map(|to| &bytes[mem::replace(&mut from, to)..to]).collect();
            prop_assert_eq!(events(&pieces), texts);
        }
    }
}
