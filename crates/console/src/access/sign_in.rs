//! A token becomes a session, which a cookie holds. The token itself is not kept.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::response::{AppendHeaders, IntoResponse, IntoResponseParts, Redirect, Response};
use maud::{Markup, html};
use sha2::{Digest, Sha256};

use super::pass::LASTS;
use crate::access::context::{SESSION, cookie as sealed_in, is_over_tls, page_memory};
use crate::access::form::{Form, fields};
use crate::frame::address::{self, Asked};
use crate::frame::page;
use crate::services::Console;
use oncegate_http::problem::Problem;
use oncegate_http::{Http, auth};

/// `GET /console/sign-in`
pub(crate) async fn show(
    State(http): State<Http>,
    Extension(console): Extension<Arc<Console>>,
    request: Request,
) -> Response {
    if http.tokens.now().is_empty() {
        return Redirect::to(address::ROOT).into_response();
    }
    if console.links.is_way_in() {
        let body = html! { p { "The command " code { "oncegate approvals link" } " prints a link that leads in." } };
        return page::plain("Sign in", None, &body);
    }
    let asked = Asked::of(request.uri());
    page::plain("Sign in", None, &form(asked.text("next"), None))
}

/// `GET /console/enter/{code}`: a link that signs in once. It leads to the calls that wait for approval.
pub(crate) async fn enter(
    State(http): State<Http>,
    Extension(console): Extension<Arc<Console>>,
    Path(code): Path<String>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let client = parts.extensions.get::<ConnectInfo<IpAddr>>();
    let admitted = console.sign_ins.admit(client.map(|client| client.0));
    let known = admitted.map_err(Problem::from).and_then(|admitted| {
        let token = console.links.take(&code);
        let token = token.ok_or_else(Problem::unauthenticated)?;
        auth::by_digest(&parts, &http, &token, page_memory(&http))?;
        admitted.was_right();
        Ok(token)
    });
    let sealed = match known {
        Ok(token) => console.sign_ins.begin(token).await,
        Err(problem) => return page::failure(&problem, None),
    };
    let Some(sealed) = sealed else {
        return page::failure(&Problem::unauthenticated(), None);
    };
    let is_tls = is_over_tls(&http, &parts.headers);
    let set_cookie = cookie(&sealed, LASTS.as_secs(), is_tls);
    let to_calls = Redirect::to(&address::to(&["approvals"], &[]));
    (set_cookie, to_calls).into_response()
}

fn form(next: &str, failed: Option<&Problem>) -> Markup {
    html! {
        @if let Some(problem) = failed {
            p.failed role="alert" { (problem.slug.row().title) ". Look at the token, and at the names in the configuration." }
        }
        form.sign-in method="post" action=(address::to(&["sign-in"], &[])) {
            input type="hidden" name="next" value=(next);
            label {
                "A bearer token of this gateway"
                input type="password" name="token" required autofocus autocomplete="current-password" spellcheck="false";
            }
            button type="submit" { "Sign in" }
        }
        p.note {
            "With the scope " code { "read" } " it shows the calls of its tenant, with " code { "admin" }
            " all, and lets act. A session ends after " (LASTS.as_secs() / 3_600) " hours, or when its token is removed."
        }
    }
}

/// `POST /console/sign-in`
pub(crate) async fn begin(
    State(http): State<Http>,
    Extension(console): Extension<Arc<Console>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    if http.tokens.now().is_empty() {
        let why = "this gateway has no tokens to sign in with";
        return page::failure(&Problem::forbidden(why), None);
    }
    let fields = match fields(&http, &parts, body).await {
        Ok(fields) => fields,
        Err(problem) => return page::failure(&problem, None),
    };
    let next = fields.text("next");
    let digest: [u8; 32] = Sha256::digest(fields.text("token").trim()).into();
    let client = parts.extensions.get::<ConnectInfo<IpAddr>>();
    let admitted = console.sign_ins.admit(client.map(|client| client.0));
    let known = admitted.map_err(Problem::from).and_then(|admitted| {
        auth::by_digest(&parts, &http, &digest, page_memory(&http))?;
        admitted.was_right();
        Ok(())
    });
    if let Err(problem) = known {
        let failed = page::plain("Sign in", None, &form(next, Some(&problem)));
        let wait = problem.retry_after.map(|wait| wait.as_secs().max(1));
        let wait = wait.map(|seconds| (RETRY_AFTER, seconds.to_string()));
        return (problem.slug.row().status, AppendHeaders(wait), failed).into_response();
    }
    let Some(sealed) = console.sign_ins.begin(digest).await else {
        return page::failure(&Problem::unauthenticated(), None);
    };
    let is_tls = is_over_tls(&http, &parts.headers);
    let set_cookie = cookie(&sealed, LASTS.as_secs(), is_tls);
    (set_cookie, Redirect::to(inside(next))).into_response()
}

/// `POST /console/sign-out`
pub(crate) async fn end(State(http): State<Http>, headers: HeaderMap, form: Form) -> Response {
    if let Some(cookie) = sealed_in(&headers) {
        form.context.console.sign_ins.end(cookie).await;
    }
    let to_sign_in = Redirect::to(&address::to(&["sign-in"], &[]));
    (cookie("", 0, http.is_tls), to_sign_in).into_response()
}

/// The page after the sign-in; the first screen unless `next` is a page of the console.
fn inside(next: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_control() && byte != b'\\';
    let path = next.split('?').next().unwrap_or_default();
    if next.bytes().all(is_plain) && address::words(path).is_some() {
        next
    } else {
        address::ROOT
    }
}

/// The cookie of a session: not for scripts, not for other sites, not for other paths.
fn cookie(value: &str, seconds: u64, is_tls: bool) -> impl IntoResponseParts {
    let secure = if is_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{SESSION}={value}; Path=/console; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
    );
    AppendHeaders([(SET_COOKIE, cookie)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_goes_on_with_a_page_of_the_console_and_no_other() {
        for good in ["/console", "/console/calls?state=unknown", "/console/"] {
            assert_eq!(inside(good), good);
        }
        for bad in [
            "",
            "//evil.example",
            "https://evil.example/console",
            "/consoles",
            "/v1/calls",
            "/console\\..",
            "/console\r\nx: y",
        ] {
            assert_eq!(inside(bad), "/console", "{bad:?}");
        }
    }
}
