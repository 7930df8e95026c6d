//! Server-sent events that tell the browser when a page has changed. The browser then loads the page again.

pub(crate) mod watches; // pages that stay current

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::Instant;

use self::watches::Watch;
use crate::access::context::Context;
use crate::frame::address::{self, Asked};
use crate::frame::page;
use crate::screens;
use oncegate_engine::ErrorKind;
use oncegate_http::auth::still_known;
use oncegate_http::problem;

/// The shortest time between two looks at a page.
const EVERY: Duration = Duration::from_secs(1);
/// Looks at a slow page take at most this fraction of the time: one part of so many.
const SHARE: u32 = 10;
/// Looks without a change until something is sent, so that no proxy closes the connection.
const QUIET: u32 = 15;

/// `GET /console/live?at=…&seen=…`
pub(crate) async fn listen(context: Context) -> Response {
    let at = context.asked.text("at").parse::<Uri>().ok();
    let at = at.filter(|at| at.authority().is_none() && address::words(at.path()).is_some());
    let Some(at) = at else {
        return page::failure(&problem::unknown_path().await, Some(&context.operator));
    };
    let Some(watch) = context.console.watches.watch(context.caller()) else {
        return page::failure(&ErrorKind::RateLimited.into(), Some(&context.operator));
    };
    let watching = Watching {
        seen: context.asked.text("seen").to_owned(),
        wait: Duration::ZERO,
        quiet: QUIET,
        watch,
        context: Context {
            asked: Asked::of(&at),
            uri: at,
            ..context
        },
    };
    let events = stream::unfold(watching, Watching::next);
    let head = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        ("x-accel-buffering", "no"),
    ];
    (head, Body::from_stream(events)).into_response()
}

/// One page that is kept current.
struct Watching {
    /// A request for the page.
    context: Context,
    watch: Watch,
    /// The digest of the page that the browser shows.
    seen: String,
    wait: Duration,
    /// Looks since the last bytes were sent.
    quiet: u32,
}

impl Watching {
    /// The next event, or a comment. `None`: the session or the stream has ended.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            if !self.watch.rest(self.wait).await || !self.renew_operator() {
                return None;
            }
            // A look counts against the rate limit of its token, as a request does.
            let throttle = &self.context.gateway().throttle;
            if throttle.admit_request(self.context.caller()).is_err() {
                self.wait = EVERY * SHARE;
                continue;
            }
            let began = Instant::now();
            let digest = self.look().await;
            self.wait = EVERY.max(began.elapsed() * SHARE);
            if digest != self.seen {
                self.seen = digest;
                self.quiet = 0;
                return Some((Ok(Bytes::from_static(b"event: changed\ndata:\n\n")), self));
            }
            self.quiet += 1;
            if self.quiet >= QUIET {
                self.quiet = 0;
                return Some((Ok(Bytes::from_static(b":\n\n")), self));
            }
        }
    }

    /// Whether the session still holds. The operator gets the scopes that the token has now.
    fn renew_operator(&mut self) -> bool {
        let context = &mut self.context;
        let sign_in = &context.operator.sign_in;
        let is_over = sign_in.until <= context.http.gateway.base.wall_time();
        match still_known(&context.http, Some(&sign_in.token)) {
            Some(caller) if !is_over => {
                context.operator.caller = caller;
                true
            }
            _ => false,
        }
    }

    /// The digest of the page as it is now.
    async fn look(&mut self) -> String {
        self.context.now = self.context.gateway().base.wall_time();
        match screens::screen(&self.context).await {
            Ok(screen) => page::digest(&screen),
            // A failure is sent once; the browser keeps the page as it was, and says so.
            Err(problem) => problem.slug.as_str().to_owned(),
        }
    }
}
