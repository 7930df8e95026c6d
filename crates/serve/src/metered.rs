//! A request's body, which is charged to its connection as it comes in.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use oncegate_budget::Guest;

/// Bytes that a part of a body takes beside its own.
const PART: usize = 64;

/// The body, and the account that it is charged to.
pub(super) struct Metered {
    pub(super) body: Incoming,
    pub(super) guest: Guest,
}

impl http_body::Body for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        // Twice: as it came, and as it was read.
        if bytes > 0
            && let Err(exhausted) = self.guest.grow(2 * bytes + PART)
        {
            return Poll::Ready(Some(Err(axum::Error::new(exhausted))));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
