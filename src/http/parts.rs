//! A body of a few buffers, one after the other. What is shared is not copied.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};

/// The buffers that are still to come, the last of them first.
pub(super) struct Parts(Vec<Bytes>);

impl Parts {
    pub(super) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let mut parts: Vec<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.reverse();
        Self(parts)
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
