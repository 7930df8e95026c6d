//! How long a connection may be idle, and an answer may stand still.
//!
//! HTTP/1 and HTTP/2 alike. What the libraries watch by themselves leaves gaps, such as a
//! connection that never says a word, or a client that does not take its answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::bounds::Bounds;
use oncegate_budget::{self as budget, Charge, Guest};

/// Most bytes of a ping or an acknowledgement.
const MAX_PING_BYTES: usize = 64;

/// The watch of one connection.
pub(super) struct Watch {
    /// `header_timeout` and `idle_timeout`.
    times: (Duration, Duration),
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Requests that are not answered to the end.
    under_way: usize,
    /// Requests being answered, and those whose answer is being made.
    answers: usize,
    making: usize,
    /// When something was last written.
    wrote_at: Instant,
    /// Since when no request is under way.
    idle_since: Instant,
    /// When the first byte of the next request came.
    head_since: Option<Instant>,
    /// Whether there was a request already.
    has_served: bool,
    is_multiplexed: bool,
    /// When the waiter for silence looks again by itself; `None`: it waits to be notified.
    looks_at: Option<Instant>,
    /// Whether every change matters, because the connection is to end.
    is_ending: bool,
}

impl State {
    /// When the connection will have been silent for too long; `None`: not while a call runs, or an answer is made.
    fn expires_at(&self, (header_timeout, idle_timeout): (Duration, Duration)) -> Option<Instant> {
        match self.head_since {
            // A call may run for long, and a long list may be made for long.
            _ if self.under_way > self.answers || self.making > 0 => None,
            _ if self.under_way > 0 => Some(self.wrote_at + idle_timeout),
            _ if !self.has_served => Some(self.idle_since + header_timeout),
            Some(head_since) if !self.is_multiplexed => Some(head_since + header_timeout),
            _ => Some(self.silent_since() + idle_timeout),
        }
    }

    /// Since when nothing was served or written.
    ///
    /// The bytes of an answer may be on their way for long after the last of them was made.
    fn silent_since(&self) -> Instant {
        self.idle_since.max(self.wrote_at)
    }
}

impl Watch {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let now = Instant::now();
        let state = State {
            under_way: 0,
            answers: 0,
            making: 0,
            wrote_at: now,
            idle_since: now,
            head_since: None,
            has_served: false,
            is_multiplexed: false,
            looks_at: None,
            is_ending: false,
        };
        let times = (bounds.header_timeout, bounds.idle_timeout);
        Self {
            times,
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// Notes that bytes were read, or the end of them.
    pub(super) fn note_read(&self, is_something: bool) {
        let mut state = self.state();
        if is_something && state.under_way == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
            self.notify(state);
        }
    }

    /// Notes that so many bytes were written.
    ///
    /// On a multiplexed connection a few bytes are a ping, which is not a sign of a request or an answer.
    pub(super) fn note_written(&self, bytes: usize) {
        let mut state = self.state();
        if !state.is_multiplexed || bytes > MAX_PING_BYTES {
            state.wrote_at = Instant::now();
        }
    }

    /// Waits until a request shows that the connection is multiplexed.
    pub(super) async fn becomes_multiplexed(&self) {
        let now = Instant::now();
        self.state().is_ending = true;
        self.until(|state| state.is_multiplexed.then_some(now))
            .await;
    }

    /// Whether the connection is silent after a request.
    pub(super) fn is_between_requests(&self) -> bool {
        let state = self.state();
        state.has_served
            && state.under_way == 0
            && (state.head_since.is_none() || state.is_multiplexed)
    }

    /// Waits until the connection was silent for too long.
    ///
    /// It had no request, or nothing of an answer was read.
    pub(super) async fn expired(&self) {
        self.until(|state| {
            state.looks_at = state.expires_at(self.times);
            state.looks_at
        })
        .await;
    }

    /// Waits until no request was under way for this long.
    pub(super) async fn has_been_idle_for(&self, time: Duration) {
        let now = Instant::now();
        self.state().is_ending = true;
        self.until(|state| (state.under_way == 0).then(|| state.silent_since().max(now) + time))
            .await;
    }

    /// Waits until a time, which events may change; `None`: for ever.
    async fn until(&self, time: impl Fn(&mut State) -> Option<Instant>) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the state is read, so that no later change is missed.
            changed.as_mut().enable();
            let at = time(&mut self.state());
            if at.is_some_and(|at| at <= Instant::now()) {
                return;
            }
            let reached = async {
                match at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // A change may have moved the time.
            tokio::select! {
                () = reached => {}
                () = changed => {}
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.notify(state);
    }

    /// Notifies the waiter, if it would look too late by itself.
    ///
    /// The waiter is a part of the connection's task, and waking that task with each request costs time.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let at = state.expires_at(self.times);
        let is_nearer = at.is_some_and(|at| state.looks_at.is_none_or(|looks_at| at < looks_at));
        let must_look = is_nearer || state.is_ending;
        drop(state);
        if must_look {
            self.changed.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request; dropped, it is answered.
pub(super) struct UnderWay(Arc<Watch>);

impl UnderWay {
    /// Begins one. On a multiplexed connection bytes between requests may be pings.
    pub(super) fn begin(watch: &Arc<Watch>, is_multiplexed: bool) -> Self {
        watch.change(|state| {
            state.under_way += 1;
            state.has_served = true;
            state.head_since = None;
            state.is_multiplexed = is_multiplexed;
        });
        Self(watch.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.under_way -= 1;
            state.idle_since = Instant::now();
        });
    }
}

/// An answer's body, whose end ends the request.
pub(super) struct Watched {
    body: Body,
    is_making: bool,
    /// The charge of its bytes; `None`: it is small.
    charge: Option<(Guest, Arc<Charge>)>,
    under_way: UnderWay,
}

impl Watched {
    pub(super) fn new(
        body: Body,
        charge: Option<(Guest, Arc<Charge>)>,
        under_way: UnderWay,
    ) -> Self {
        under_way.0.change(|state| {
            state.answers += 1;
            // Making the answer may have taken long.
            state.wrote_at = Instant::now();
        });
        Self {
            body,
            is_making: false,
            charge,
            under_way,
        }
    }

    /// Notes whether the next piece is being made now.
    fn makes(&mut self, is_making: bool) {
        if is_making == self.is_making {
            return;
        }
        self.is_making = is_making;
        self.under_way.0.change(|state| {
            if is_making {
                state.making += 1;
            } else {
                state.making -= 1;
            }
            state.wrote_at = Instant::now();
        });
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.makes(false);
        // `under_way` is dropped next, and notifies.
        self.under_way.0.state().answers -= 1;
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.makes(frame.is_pending());
        // The connection may hold them long after the body has ended.
        let charged = |bytes| match &self.charge {
            Some((_, charge)) => budget::attach(bytes, charge),
            None => bytes,
        };
        frame.map_ok(|frame| frame.map_data(charged))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
