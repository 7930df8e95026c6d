//! The person who is signed in: the caller that a session's token stands for.

use axum::extract::FromRequestParts;
use axum::http::header::COOKIE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use super::super::problem::{Problem, Slug};
use super::super::{Http, auth, host};
use super::page::Around;
use super::{address, page};
use crate::core::caller::Caller;
use crate::core::sign_in::SignIn;

/// The name of the cookie.
pub(super) const SESSION: &str = "oncegate_console";

/// The address of streams, each of which takes this much memory as long as it is open, in bytes.
const LIVE: &str = "/console/live";
const STREAM: usize = 64 << 10;

/// A person with a session.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) caller: Caller,
    pub(super) sign_in: SignIn,
    /// What each of its forms has.
    pub(super) form_token: String,
}

impl FromRequestParts<Http> for Person {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, http: &Http) -> Result<Self, Response> {
        let room = match parts.uri.path() {
            LIVE => STREAM,
            _ => room(http),
        };
        if http.tokens.now().is_empty() {
            let known = host::asks_this_machine(parts).and_then(|()| auth::open(parts, room));
            let caller = known.map_err(|problem| page::failure(&problem, None))?;
            return Ok(Self::with(http, caller, SignIn::OPEN));
        }
        let Some(sign_in) = session(http, &parts.headers) else {
            return Err(refused(parts));
        };
        match auth::by_digest(parts, http, &sign_in.token, room) {
            Ok(caller) => Ok(Self::with(http, caller, sign_in)),
            // Its token was removed or has expired.
            Err(problem) if problem.slug == Slug::Unauthenticated => Err(refused(parts)),
            Err(problem) => Err(page::failure(&problem, None)),
        }
    }
}

impl Person {
    fn with(http: &Http, caller: Caller, sign_in: SignIn) -> Self {
        let form_token = http.gateway.sign_ins.form_token(&sign_in);
        Self {
            caller,
            sign_in,
            form_token,
        }
    }

    /// The person, as the menu shows them.
    pub(super) fn around(&self) -> Around<'_> {
        Around {
            name: &self.caller.name,
            form_token: &self.form_token,
            may_sign_out: self.sign_in != SignIn::OPEN,
        }
    }
}

/// A page asks to sign in; a form says that it was not taken, and a stream ends: a browser takes no page for one.
fn refused(parts: &Parts) -> Response {
    if parts.method == Method::GET && parts.uri.path() != LIVE {
        ask_first(parts)
    } else {
        page::failure(&Problem::unauthenticated(), None)
    }
}

/// Sends a person without a session to the form, and from there back.
///
/// A link on another site brings no cookie, though there may be one: the page is asked for once more, by itself.
fn ask_first(parts: &Parts) -> Response {
    let here = parts
        .uri
        .path_and_query()
        .map_or(address::ROOT, |here| here.as_str());
    if host::is_from_another_site(&parts.headers) {
        let body = html! { p { a href=(here) { "Go on to the page" } } };
        let again = [("refresh", format!("0; url={here}"))];
        return (again, page::plain("One moment", None, &body)).into_response();
    }
    Redirect::to(&address::to(&["sign-in"], &[("next", here)])).into_response()
}

/// The memory for a page, in bytes: lists come without the texts of calls, and a call has one of each.
pub(super) fn room(http: &Http) -> usize {
    2 * (http.max_body.bytes + http.gateway.engine.memory.max_result)
}

/// The session of the one cookie of its name.
fn session(http: &Http, headers: &HeaderMap) -> Option<SignIn> {
    let lines = headers.get_all(COOKIE).iter();
    let pairs = lines.filter_map(|line| line.to_str().ok());
    let mut values = pairs
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(name, _)| *name == SESSION)
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (Some(cookie), None) => http.gateway.sign_ins.open(cookie),
        _ => None,
    }
}
