//! The moment before the first byte.
//!
//! The HTTP library writes a request's head into a buffer, asks the body for its first frame, and
//! flushes both; if the body refuses, the connection is closed and the buffer is dropped. So the
//! body's first frame is the last moment at which nothing has left, and it is where we ask whether
//! the request may go: whether its deadline has passed, and whether it was withdrawn.
//! `tests/it/calls/downstream.rs` holds the library to that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use oncegate_hooks::uptime::since_boot;

/// A time after which nothing may be sent.
///
/// It counts the time in which the machine was suspended.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    pub at: Instant,
    /// The same time by [`since_boot`].
    by: Duration,
}

impl Deadline {
    /// The deadline so long from now.
    pub fn after(span: Duration) -> Self {
        Self {
            at: Instant::now() + span,
            by: since_boot() + span,
        }
    }

    /// Until when a late answer is read: the margin after the deadline, and a second at least.
    ///
    /// An answer may have come while the process was stopped, and is not read yet.
    pub fn late_by(&self, margin: Duration) -> Instant {
        let at_least = Instant::now() + Duration::from_secs(1);
        (self.at + margin).max(at_least)
    }

    fn is_over(&self, since_boot: Duration) -> bool {
        Instant::now() >= self.at || since_boot >= self.by
    }
}

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

    /// Passes the gate, unless it is withdrawn or too late; then nothing was sent, and nothing will be.
    ///
    /// # Errors
    /// The deadline has passed, or the request was withdrawn.
    pub(super) fn send(&self, before: &Deadline, since_boot: Duration) -> Result<(), &'static str> {
        oncegate_hooks::crash::point("before_first_byte");
        if before.is_over(since_boot) {
            self.withdraw();
        }
        let is_sent = self.pass(SENT);
        is_sent
            .then_some(())
            .ok_or("the call's deadline passed before the request could be sent")
    }

    fn pass(&self, direction: u8) -> bool {
        self.0
            .compare_exchange(WAITING, direction, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// A request body that goes through the gate first.
pub(super) struct GatedBody {
    gate: Gate,
    bytes: Option<Bytes>,
    send_before: Deadline,
    since_boot: fn() -> Duration,
}

impl GatedBody {
    /// `bytes` must not be empty: an empty body is never polled for a frame.
    pub(super) fn new(gate: Gate, bytes: Bytes, send_before: Deadline) -> Self {
        debug_assert!(!bytes.is_empty(), "an empty body never reaches the gate");
        Self {
            gate,
            bytes: Some(bytes),
            send_before,
            since_boot,
        }
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(bytes) = self.bytes.take() else {
            return Poll::Ready(None);
        };
        let is_sent = self.gate.send(&self.send_before, (self.since_boot)());
        let frame = is_sent.map(|()| Frame::data(bytes));
        Poll::Ready(Some(frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// Whether a body is sent whose machine slept past the deadline.
    async fn sent(since_boot: fn() -> Duration) -> (Gate, bool) {
        let gate = Gate::new();
        let send_before = Deadline {
            by: Duration::from_secs(1_000),
            ..Deadline::after(Duration::from_secs(30))
        };
        let body = GatedBody {
            since_boot,
            ..GatedBody::new(gate.clone(), "{}".into(), send_before)
        };
        let is_sent = body.collect().await.is_ok();
        (gate, is_sent)
    }

    #[tokio::test]
    async fn what_was_to_be_sent_before_the_machine_was_suspended_is_withdrawn() {
        let (gate, is_sent) = sent(|| Duration::from_secs(999)).await;
        assert!(is_sent && gate.is_sent());
        let (gate, is_sent) = sent(|| Duration::from_secs(1_000)).await;
        assert!(
            !is_sent && !gate.is_sent() && gate.withdraw(),
            "not one byte leaves"
        );
    }

    #[test]
    fn the_clock_since_boot_goes_on() {
        let began = since_boot();
        assert!(began > Duration::ZERO);
        let deadline = Deadline::after(Duration::from_secs(3_600));
        assert!(
            deadline.by >= began + Duration::from_secs(3_600) && !deadline.is_over(since_boot())
        );
    }
}
