//! Which address is which screen.

use axum::response::Response;

use super::super::problem::{self, Problem};
use super::address;
use super::context::Context;
use super::page::{self, Screen};
use super::{anomaly, audit, call, calls, needs, reconciliations, saga, session, store, tools};

/// Every page that shows something.
pub(super) async fn show(context: Context) -> Response {
    let person = &context.person;
    match screen(&context).await {
        Ok(screen) => {
            // The mark shows that a form has just led to this page.
            let is_done = context.asked.text("done") == person.done_mark(context.uri.path());
            page::screen(&screen, person, address::here(&context.uri), is_done)
        }
        Err(problem) => page::failure(&problem, Some(person)),
    }
}

/// The screen at the address of a request.
///
/// # Errors
/// The address leads to no screen, the operator may not see it, or the store does not answer.
pub(super) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let words = address::words(context.uri.path()).unwrap_or_default();
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
