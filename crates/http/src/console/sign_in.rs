//! A token becomes a session, which a cookie holds. The token itself is not kept.

use std::net::IpAddr;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::response::{AppendHeaders, IntoResponse, IntoResponseParts, Redirect, Response};
use maud::{Markup, html};
use sha2::{Digest, Sha256};

use super::super::problem::Problem;
use super::super::{Http, auth};
use super::address::{self, Asked};
use super::context::{SESSION, cookie as sealed_in, is_over_tls, room};
use super::form::{Form, fields};
use super::page;
use oncegate_rules::sign_in::LASTS;

/// `GET /console/sign-in`
pub(super) async fn show(State(http): State<Http>, request: Request) -> Response {
    if http.tokens.now().is_empty() {
        return Redirect::to(address::ROOT).into_response();
    }
    let asked = Asked::of(request.uri());
    page::plain("Sign in", None, &form(asked.text("next"), None))
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
pub(super) async fn begin(State(http): State<Http>, request: Request) -> Response {
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
    let admitted = http.gateway.sign_ins.admit(client.map(|client| client.0));
    let known = admitted.map_err(Problem::from).and_then(|admitted| {
        auth::by_digest(&parts, &http, &digest, room(&http))?;
        admitted.was_right();
        Ok(())
    });
    if let Err(problem) = known {
        let failed = page::plain("Sign in", None, &form(next, Some(&problem)));
        let wait = problem.retry_after.map(|wait| wait.as_secs().max(1));
        let wait = wait.map(|seconds| (RETRY_AFTER, seconds.to_string()));
        return (problem.slug.row().status, AppendHeaders(wait), failed).into_response();
    }
    let Some(sealed) = http.gateway.sign_ins.begin(digest).await else {
        return page::failure(&Problem::unauthenticated(), None);
    };
    let is_tls = is_over_tls(&http, &parts.headers);
    let kept = cookie(&sealed, LASTS.as_secs(), is_tls);
    (kept, Redirect::to(inside(next))).into_response()
}

/// `POST /console/sign-out`
pub(super) async fn end(State(http): State<Http>, headers: HeaderMap, _: Form) -> Response {
    if let Some(cookie) = sealed_in(&headers) {
        http.gateway.sign_ins.end(cookie).await;
    }
    let form = Redirect::to(&address::to(&["sign-in"], &[]));
    (cookie("", 0, http.is_tls), form).into_response()
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
