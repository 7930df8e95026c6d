//! Which address is which screen.

use axum::extract::State;
use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;

use super::super::Http;
use super::super::problem::{self, Problem};
use super::address::{self, Asked};
use super::context::Context;
use super::page::{self, Screen};
use super::person::Person;
use super::{
    anomaly, audit, call, calls, form, needs, reconciliations, saga, session, sign_in, store, tools,
};

/// Every page that shows something.
pub(super) async fn show(
    State(http): State<Http>,
    person: Person,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let asked = Asked::of(&uri);
    let origin = origin(&http, &uri, &headers);
    let context = Context {
        http: &http,
        person: &person,
        now: http.gateway.base.wall_time(),
        asked: &asked,
        origin: &origin,
    };
    let around = person.around();
    match screen(&context, uri.path()).await {
        Ok(screen) => {
            let here = uri
                .path_and_query()
                .map_or(address::ROOT, |here| here.as_str());
            page::screen(&screen, &around, here, is_done(&context, uri.path()))
        }
        Err(problem) => page::failure(&problem, Some(&around)),
    }
}

/// Whether a form has just led to this page.
fn is_done(context: &Context<'_>, path: &str) -> bool {
    context.asked.text("done") == form::done(&context.person.form_token, path)
}

/// The screen at a path.
///
/// # Errors
/// There is none, the person may not see it, or the store does not answer.
pub(super) async fn screen(context: &Context<'_>, path: &str) -> Result<Screen, Problem> {
    let words = address::words(path).unwrap_or_default();
    match words[..] {
        [] => needs::screen(context).await,
        ["calls"] => calls::screen(context).await,
        ["calls", id] => call::screen(context, id).await,
        ["sagas"] => saga::list(context).await,
        ["saga"] => saga::screen(context).await,
        ["sessions"] => session::list(context).await,
        ["session"] => session::screen(context).await,
        ["reconciliations"] => reconciliations::list(context).await,
        ["reconciliation"] => reconciliations::screen(context).await,
        ["anomaly"] => anomaly::screen(context).await,
        ["tools"] => tools::list(context).await,
        ["tool"] => tools::screen(context).await,
        ["store"] => store::screen(context).await,
        ["audit"] => audit::screen(context).await,
        _ => Err(problem::unknown_path().await),
    }
}

/// The address of this gateway as the browser knows it, for commands that a page shows.
pub(super) fn origin(http: &Http, uri: &Uri, headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(|authority| authority.as_str()).or(host);
    let is_plain = |host: &&str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
        host.bytes().all(is_plain)
    };
    let scheme = if http.is_tls || sign_in::is_over_tls(headers) {
        "https"
    } else {
        "http"
    };
    let host = host.filter(is_plain).unwrap_or("127.0.0.1:8080");
    format!("{scheme}://{host}")
}
