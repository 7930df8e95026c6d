//! Answers as a stream of server-sent events (HTML Living Standard, section 9.2).

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::parts::Parts;
use crate::core::mcp::progress::Asked;

/// How often a waiting stream sends a comment, so that no proxy closes the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// How many bytes are searched for line ends, and perhaps copied, at once.
const AT_ONCE: usize = 16 << 10;

/// The progress of a call for its caller.
pub(super) struct Heard {
    pub(super) asked: Asked,
    pub(super) notes: mpsc::Receiver<String>,
}

/// The next progress notification.
///
/// It never comes for a caller that did not ask, or if there will be no more.
pub(super) async fn heard(heard: &mut Option<Heard>) -> String {
    while let Some(Heard { asked, notes }) = heard {
        match notes.recv().await {
            None => *heard = None,
            Some(params) => {
                if let Some(note) = asked.told(&params) {
                    return note;
                }
            }
        }
    }
    std::future::pending().await
}

/// The state of a stream with one answer.
enum Sending<F> {
    /// A notification is being sent.
    Note(String, Pin<Box<F>>, Option<Heard>),
    Waiting(Pin<Box<F>>, Option<Heard>),
    /// The rest of one part, and the parts after it.
    Body(Bytes, Parts),
    Ended,
}

/// A stream that tells of progress and ends with one answer, sent piece by piece.
pub(super) fn one(
    coming: impl Future<Output = Parts> + Send + 'static,
    note: Option<String>,
    progress: Option<Heard>,
) -> Response {
    let begin = match note {
        Some(note) => Sending::Note(note, Box::pin(coming), progress),
        None => Sending::Waiting(Box::pin(coming), progress),
    };
    let pieces = stream::unfold(begin, async |sending| {
        Some(match sending {
            Sending::Note(note, coming, progress) => {
                (event(&note), Sending::Waiting(coming, progress))
            }
            Sending::Waiting(mut coming, mut progress) => tokio::select! {
                // What was heard before the answer is told before it.
                biased;
                note = heard(&mut progress) => (event(&note), Sending::Waiting(coming, progress)),
                body = &mut coming => {
                    let begun = Bytes::from_static(b"event: message\ndata: ");
                    (begun, Sending::Body(Bytes::new(), body))
                }
                () = sleep(KEEP_ALIVE) => (COMMENT, Sending::Waiting(coming, progress)),
            },
            Sending::Body(part, mut body) => {
                let part = if part.is_empty() {
                    body.next()
                } else {
                    Some(part)
                };
                match part {
                    Some(mut part) => {
                        let piece = part.split_to(part.len().min(AT_ONCE));
                        (one_line(piece), Sending::Body(part, body))
                    }
                    None => (Bytes::from_static(b"\n\n"), Sending::Ended),
                }
            }
            Sending::Ended => return None,
        })
    });
    response(pieces)
}

/// A stream of events, each of them JSON; `None` is a comment.
pub(super) fn many(events: impl Stream<Item = Option<String>> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    response(events.map(|json| match json {
        Some(json) => event(&json),
        None => COMMENT,
    }))
}

fn event(json: &str) -> Bytes {
    format!("event: message\ndata: {json}\n\n").into()
}

fn response(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let head = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    let body = Body::from_stream(pieces.map(Ok::<_, Infallible>));
    let mut response = (head, body).into_response();
    // Proxies pass it on at once.
    let no = HeaderValue::from_static("no");
    response.headers_mut().insert("x-accel-buffering", no);
    response
}

/// JSON without line ends, which would end the event.
///
/// They stand between its values only: in its strings they are escaped.
fn one_line(bytes: Bytes) -> Bytes {
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if !bytes.iter().any(is_end) {
        return bytes;
    }
    let without = bytes
        .iter()
        .map(|byte| if is_end(byte) { b' ' } else { *byte });
    without.collect()
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_long_answer_is_sent_on_one_line_in_short_pieces() {
        let long = "[1,\r\n2]\n".repeat(AT_ONCE);
        let parts = Parts::new([long.clone().into(), Bytes::from_static(b"3")]);
        let body = one(async { parts }, None, None)
            .into_body()
            .into_data_stream();
        let pieces: Vec<Bytes> = body.map(|piece| piece.expect("bytes")).collect().await;
        assert!(pieces.iter().all(|piece| piece.len() <= AT_ONCE));
        let wanted = format!("{}3", long.replace(['\r', '\n'], " "));
        let wanted = format!("event: message\ndata: {wanted}\n\n");
        assert!(pieces.concat() == wanted.as_bytes());
    }
}
