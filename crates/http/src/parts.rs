//! A response body of several buffers in order. Shared buffers are not copied.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};

/// How many bytes of a text are escaped at a time.
const ESCAPED_AT_ONCE: usize = 16 << 10;
/// The longest escaped piece, in bytes: each control character becomes six.
const LONGEST_PIECE: u64 = 6 * ESCAPED_AT_ONCE as u64;

/// One part of a body.
#[derive(Debug, Clone)]
pub enum Part {
    Plain(Bytes),
    /// A UTF-8 text, which is escaped for the inside of a JSON string as it is sent.
    Escaped(Bytes),
}

impl Part {
    fn bytes(&self) -> &Bytes {
        match self {
            Self::Plain(bytes) | Self::Escaped(bytes) => bytes,
        }
    }

    /// The length as sent, in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Plain(bytes) => bytes.len() as u64,
            Self::Escaped(bytes) => bytes.iter().map(|byte| escaped_len(*byte)).sum(),
        }
    }

    /// How many sent bytes take no memory of their own: all but the longest escaped piece.
    pub fn shared(&self) -> u64 {
        match self {
            Self::Plain(bytes) => bytes.len() as u64,
            Self::Escaped(_) => self.length().saturating_sub(LONGEST_PIECE),
        }
    }
}

/// The parts that are still to be sent.
#[derive(Debug, Clone)]
pub struct Parts(VecDeque<Part>);

impl Parts {
    pub fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self::of(parts.into_iter().map(Part::Plain))
    }

    pub fn of(parts: impl IntoIterator<Item = Part>) -> Self {
        let parts = parts.into_iter();
        Self(parts.filter(|part| !part.bytes().is_empty()).collect())
    }

    /// The next bytes to send.
    pub fn next_piece(&mut self) -> Option<Bytes> {
        match self.0.pop_front()? {
            Part::Plain(bytes) => Some(bytes),
            Part::Escaped(mut bytes) => {
                let now = bytes.split_to(bytes.len().min(ESCAPED_AT_ONCE));
                if !bytes.is_empty() {
                    self.0.push_front(Part::Escaped(bytes));
                }
                Some(escaped(&now))
            }
        }
    }

    #[cfg(test)]
    fn into_bytes(mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        while let Some(bytes) = self.next_piece() {
            whole.extend_from_slice(&bytes);
        }
        whole
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next_piece().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(Part::length).sum())
    }
}

fn escaped_len(byte: u8) -> u64 {
    match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    }
}

/// Escapes a piece of UTF-8 for a JSON string (RFC 8259, section 7).
fn escaped(bytes: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    for byte in bytes {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_shared_bytes_of_an_escaped_text_leave_out_its_longest_piece() {
        let text = Part::Escaped(vec![1; 5 * ESCAPED_AT_ONCE].into());
        let (all, shared) = (text.length(), text.shared());
        let mut parts = Parts::of([text]);
        let pieces = std::iter::from_fn(|| parts.next_piece()).map(|piece| piece.len() as u64);
        assert_eq!(pieces.max(), Some(all - shared));
        let short = Part::Escaped(Bytes::from_static(b"short"));
        assert_eq!(short.shared(), 0);
    }

    proptest! {
        #[test]
        fn an_escaped_text_parses_to_itself_and_has_the_announced_length(text: String, times in 1..600_usize) {
            let text = text.repeat(times);
            let quote = || Part::Plain(Bytes::from_static(b"\""));
            let parts = Parts::of([quote(), Part::Escaped(text.clone().into()), quote()]);
            let announced = parts.size_hint().exact();
            let whole = parts.into_bytes();
            prop_assert_eq!(announced, Some(whole.len() as u64));
            prop_assert_eq!(serde_json::from_slice::<String>(&whole).ok(), Some(text));
        }
    }
}
