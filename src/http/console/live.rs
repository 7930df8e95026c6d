//! Server-sent events that say when a page has changed. The page is then asked for as before.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::Instant;

use super::super::Http;
use super::super::auth::still_known;
use super::super::problem;
use super::address::{self, Asked};
use super::context::Context;
use super::page;
use super::person::Person;
use super::screens;
use crate::gateway::{ErrorKind, Watch};

/// How often a page is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// A page that takes long is looked at less often: it takes one part of so many of the time.
const SHARE: u32 = 10;
/// Looks without a change until something is sent, so that no proxy closes the connection.
const QUIET: u32 = 15;

/// `GET /console/live?at=…&seen=…`
pub(super) async fn listen(
    State(http): State<Http>,
    person: Person,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let asked = Asked::of(&uri);
    let at = asked.text("at").parse::<Uri>().ok();
    let at = at.filter(|at| at.authority().is_none() && address::words(at.path()).is_some());
    let Some(at) = at else {
        return page::failure(&problem::unknown_path().await, Some(&person.around()));
    };
    let Some(watch) = http.gateway.watches.watch(&person.caller) else {
        return page::failure(&ErrorKind::RateLimited.into(), Some(&person.around()));
    };
    let watching = Watching {
        origin: screens::origin(&http, &uri, &headers),
        asked: Asked::of(&at),
        seen: asked.text("seen").to_owned(),
        wait: Duration::ZERO,
        quiet: QUIET,
        http,
        person,
        at,
        watch,
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
    http: Http,
    person: Person,
    at: Uri,
    asked: Asked,
    origin: String,
    watch: Watch,
    /// The digest of the page as the browser has it.
    seen: String,
    wait: Duration,
    /// Looks since something was sent.
    quiet: u32,
}

impl Watching {
    /// The next event, or a comment. `None`: the session is over, or the stream is.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            if !self.watch.rest(self.wait).await || !self.renew_person() {
                return None;
            }
            // A look is a request of its token, also to its bound.
            let throttle = &self.http.gateway.throttle;
            if throttle.admit_request(&self.person.caller).is_err() {
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

    /// Whether the session still holds. Its scopes are those of now.
    fn renew_person(&mut self) -> bool {
        let sign_in = &self.person.sign_in;
        let is_over = sign_in.until <= self.http.gateway.base.wall_time();
        match still_known(&self.http, Some(&sign_in.token)) {
            Some(caller) if !is_over => {
                self.person.caller = caller;
                true
            }
            _ => false,
        }
    }

    /// The digest of the page as it is now.
    async fn look(&self) -> String {
        let context = Context {
            http: &self.http,
            person: &self.person,
            now: self.http.gateway.base.wall_time(),
            asked: &self.asked,
            origin: &self.origin,
        };
        match screens::screen(&context, self.at.path()).await {
            Ok(screen) => page::digest(&screen),
            // That is told once; the browser keeps the page as it was, and says so.
            Err(problem) => problem.slug.as_str().to_owned(),
        }
    }
}
