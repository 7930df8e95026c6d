//! The moment before the first byte.
//!
//! The HTTP library writes a request's head into a buffer, asks the body for its first frame, and
//! flushes both; if the body refuses, the connection is closed and the buffer is dropped. So the
//! body's first frame is the last moment at which nothing has left, and it is where we ask whether
//! the request may go: whether its deadline has passed, and whether somebody has withdrawn it.
//! `tests/it/downstream.rs` holds the library to that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

const WAITING: u8 = 0;
const SENT: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Passed once, in one of two directions: sent, or withdrawn.
#[derive(Clone)]
pub(super) struct Gate(Arc<AtomicU8>);

impl Gate {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(WAITING)))
    }

    /// Closes the gate if nothing has passed it. True: no byte was sent, and none will be.
    pub(super) fn withdraw(&self) -> bool {
        self.pass(WITHDRAWN) || self.0.load(Ordering::SeqCst) == WITHDRAWN
    }

    /// Whether the first byte has left.
    pub(super) fn is_sent(&self) -> bool {
        self.0.load(Ordering::SeqCst) == SENT
    }

    fn send(&self) -> bool {
        self.pass(SENT)
    }

    fn pass(&self, direction: u8) -> bool {
        self.0.compare_exchange(WAITING, direction, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// A request body that goes through the gate first.
pub(super) struct GatedBody {
    gate: Gate,
    bytes: Option<Bytes>,
    send_before: Instant,
}

impl GatedBody {
    /// `bytes` must not be empty: of an empty body no frame is asked.
    pub(super) fn new(gate: Gate, bytes: Bytes, send_before: Instant) -> Self {
        debug_assert!(!bytes.is_empty(), "an empty body never reaches the gate");
        Self { gate, bytes: Some(bytes), send_before }
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(bytes) = self.bytes.take() else { return Poll::Ready(None) };
        crate::crash::point("before_first_byte");
        if Instant::now() >= self.send_before {
            self.gate.withdraw();
        }
        Poll::Ready(Some(if self.gate.send() {
            Ok(Frame::data(bytes))
        } else {
            Err(io::Error::other("the call's deadline passed before the request could be sent"))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
