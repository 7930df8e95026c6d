//! Answers as a stream of server-sent events (HTML Living Standard, section 9.2).

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::sleep;

use oncegate_http::parts::Parts;
use oncegate_http::problem::refusals::Asker;
use oncegate_rules::mcp::progress::Asked;

/// How often an idle stream sends a comment, so that no proxy closes the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// How many bytes are searched for line ends, and perhaps copied, at a time.
const AT_ONCE: usize = 16 << 10;

/// Who waits for the answer to a request.
pub(super) struct Waiting {
    pub(super) asker: Asker,
    /// Whether a late answer may be a stream.
    pub(super) takes_stream: bool,
}

/// The progress of a call, for a caller that asked for it.
pub(super) struct Progress {
    pub(super) asked: Asked,
    pub(super) notes: mpsc::Receiver<String>,
}

/// Waits for the next progress notification.
///
/// It waits for ever if the caller asked for none, or if no more will come.
pub(super) async fn next_note(progress: &mut Option<Progress>) -> String {
    while let Some(Progress { asked, notes }) = progress {
        match notes.recv().await {
            None => *progress = None,
            Some(params) => {
                if let Some(note) = asked.notification(&params) {
                    return note;
                }
            }
        }
    }
    std::future::pending().await
}

/// The state of a stream with one answer.
enum Sending<F> {
    Waiting(Pin<Box<F>>, Option<Progress>),
    /// The rest of one part, and the parts after it.
    Body(Bytes, Parts),
    Ended,
}

/// A stream of progress notifications that ends with one answer, sent piece by piece.
pub(super) fn one(
    answer: impl Future<Output = Parts> + Send + 'static,
    note: Option<String>,
    progress: Option<Progress>,
) -> Response {
    let first = stream::iter(note.map(|note| event(&note)));
    let waiting = Sending::Waiting(Box::pin(answer), progress);
    let pieces = stream::unfold(waiting, async |sending| {
        Some(match sending {
            Sending::Waiting(mut answer, mut progress) => tokio::select! {
                // Progress that came before the answer is sent before it.
                biased;
                note = next_note(&mut progress) => (event(&note), Sending::Waiting(answer, progress)),
                body = &mut answer => {
                    let begun = Bytes::from_static(b"event: message\ndata: ");
                    (begun, Sending::Body(Bytes::new(), body))
                }
                () = sleep(KEEP_ALIVE) => (COMMENT, Sending::Waiting(answer, progress)),
            },
            Sending::Body(part, mut body) => {
                let part = if part.is_empty() {
                    body.next_piece()
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
    response(first.chain(pieces))
}

/// A stream of JSON events; `None` becomes a comment.
pub(super) fn many(events: impl Stream<Item = Option<String>> + Send + 'static) -> Response {
    response(events.map(|json| match json {
        Some(json) => event(&json),
        None => COMMENT,
    }))
}

fn event(json: &str) -> Bytes {
    format!("event: message\ndata: {json}\n\n").into()
}

fn response(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let head = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        // Proxies must not buffer the stream.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::from_stream(pieces.map(Ok::<_, Infallible>));
    (head, body).into_response()
}

/// JSON without line ends, because a line end would end the event.
///
/// In JSON they occur only between values, so a space can replace each.
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
