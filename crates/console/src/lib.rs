//! `/console`: pages for the operator who is woken up. They call the services of the JSON routes, and decide nothing.
//!
//! A page has no script or style of its own. Without JavaScript it works too, but is not kept current.
//!
//! A session is stored sealed with what only its cookie holds:
//!
//! ```
//! use jiff::Timestamp;
//! use oncegate_console::{NONCE, SignIn};
//! use oncegate_rules::secret::Secret;
//!
//! let (now, cookie) = (Timestamp::UNIX_EPOCH, Secret::new([7; 32]));
//! let session = SignIn::begin([1; 16], [2; 32], now);
//! let sealed = session.seal(&cookie, [3; NONCE]).expect("sealed");
//! assert_eq!(SignIn::open(&sealed, &cookie, now), Some(session));
//! assert_eq!(SignIn::open(&sealed, &Secret::new([8; 32]), now), None);
//! ```

mod access; // who asks: sessions, cookies and forms
mod acts; // acts by forms: rows over one handler
mod approvals; // calls that wait for approval
mod audit; // what operators have done
mod calls; // many calls, one call, and acts on a whole list
mod frame; // what every page has
mod live; // pages that stay current
mod needs; // what needs an operator
#[cfg(feature = "reconcile")]
mod reconciliations; // where ledger and sources disagree
#[cfg(not(feature = "reconcile"))]
#[path = "without_reconciliations.rs"]
mod reconciliations;
mod saga; // groups of calls
mod screens; // which address is which screen
mod services; // what the pages need beside the services of the kernel
mod session; // the branches of one conversation
mod store; // whether the store takes calls
mod tools; // tools

use std::sync::Arc;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};

pub use self::access::pass::{NONCE, SignIn};
use self::access::sign_in;
use self::acts::Acts;
use self::calls::{call, many_acts, user};
pub use self::frame::words::plain;
use self::frame::{assets, page};
pub use self::services::{Console, Reconciliations};
pub use self::tools::samples::SAMPLE_EVERY;
use oncegate_http::Http;

/// Everything comes from this gateway, and no other site shows its pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The addresses of screens.
const SCREENS: [&str; 18] = [
    "/console",
    "/console/",
    "/console/approvals",
    "/console/approvals/{id}",
    "/console/calls",
    "/console/calls/{id}",
    "/console/sessions",
    "/console/session",
    "/console/sagas",
    "/console/saga",
    "/console/reconciliations",
    "/console/reconciliation",
    "/console/anomaly",
    "/console/tools",
    "/console/tool",
    "/console/store",
    "/console/audit",
    "/console/{*rest}",
];

/// The acts of all pages.
fn acts() -> impl Iterator<Item = &'static Acts> {
    let of_kernel = [
        &call::ACTS,
        &approvals::ACTS,
        &many_acts::ON_CALLS,
        &many_acts::ON_SAGAS,
        &user::ACTS,
        &session::ACTS,
        &saga::ACTS,
        &tools::ACTS,
        &store::ACTS,
    ];
    of_kernel.into_iter().chain(reconciliations::ACTS)
}

/// Every route of the console. They answer with HTML, so `/openapi.json` has none of them.
pub fn routes(console: Arc<Console>) -> Router<Http> {
    let screens = Router::new()
        .route("/console/sign-in", get(sign_in::show).post(sign_in::begin))
        .route("/console/enter/{code}", get(sign_in::enter))
        .route("/console/sign-out", post(sign_in::end))
        .route("/console/assets/{name}", get(assets::show))
        .route("/console/live", get(live::listen));
    let screens = SCREENS.into_iter().fold(screens, |router, path| {
        router.route(path, get(screens::show))
    });
    let with_acts = acts().fold(screens, |router, acts| {
        router.route(acts.path, acts::on(acts))
    });
    with_acts
        .method_not_allowed_fallback(page::wrong_method)
        .layer(middleware::from_fn(harden))
        .layer(Extension(console))
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
