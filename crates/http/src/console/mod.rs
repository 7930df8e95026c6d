//! `/console`: pages for the operator who is woken up. They call the services of the JSON routes, and decide nothing.
//!
//! A page has no script or style of its own. Without JavaScript it works too, but is not kept current.

mod acts; // acts by forms
mod address; // addresses of pages, and their parameters
mod anomaly; // one disagreement, and what to do about it
mod assets; // the script, the stylesheet and their addresses
mod audit; // what operators have done
mod call; // one call
mod calls; // many calls
mod chart; // the last hour of a tool
mod context; // a request for a page: who asks, and the parts that pages share
mod form; // forms, and that they come from a page of this session
mod live; // pages that stay current
mod many; // the forms for acts on a whole list
mod many_acts; // the acts of these forms
mod needs; // what needs an operator
mod page; // head, menu and footer
mod person; // who is signed in
mod reconciliations; // where ledger and sources disagree
mod saga; // groups of calls
mod screens; // which address is which screen
mod session; // the branches of one conversation
mod sign_in; // a token becomes a session
mod store; // whether the store takes calls
mod tools; // tools
mod words; // times, states and texts, as people read them

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};

use super::Http;

/// Everything comes from this gateway, and no other site shows its pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Every route of the console. They answer with HTML, so `/openapi.json` has none of them.
pub(super) fn doors() -> Router<Http> {
    Router::new()
        .route("/console", get(screens::show))
        .route("/console/", get(screens::show))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::begin))
        .route("/console/sign-out", post(sign_in::end))
        .route("/console/assets/{name}", get(assets::show))
        .route("/console/live", get(live::listen))
        .route("/console/calls", get(screens::show))
        .route("/console/calls/{id}", get(screens::show))
        .route("/console/calls/{id}/{act}", post(acts::on_call))
        .route("/console/many/calls/{act}", post(many_acts::on_calls))
        .route("/console/many/sagas/{act}", post(many_acts::on_sagas))
        .route("/console/sessions", get(screens::show))
        .route("/console/session", get(screens::show))
        .route("/console/session/{act}", post(acts::on_session))
        .route("/console/sagas", get(screens::show))
        .route("/console/saga", get(screens::show))
        .route("/console/saga/{act}", post(acts::on_saga))
        .route("/console/reconciliations", get(screens::show))
        .route("/console/reconciliation", get(screens::show))
        .route("/console/reconciliation/run", post(acts::run))
        .route("/console/anomaly", get(screens::show))
        .route("/console/anomaly/{act}", post(acts::on_anomaly))
        .route("/console/tools", get(screens::show))
        .route("/console/tool", get(screens::show))
        .route("/console/tool/{act}", post(acts::on_tool))
        .route("/console/store", get(screens::show))
        .route("/console/store/accept-loss", post(acts::accept_loss))
        .route("/console/audit", get(screens::show))
        .route("/console/{*rest}", get(screens::show))
        .method_not_allowed_fallback(page::wrong_method)
        .layer(middleware::from_fn(harden))
}

/// Adds the headers that every answer of the console has.
async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not `no-referrer`: with it browsers send no origin with forms.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(
        "cross-origin-opener-policy",
        HeaderValue::from_static("same-origin"),
    );
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
