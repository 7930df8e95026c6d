//! Which address is which screen.

use axum::response::Response;

use crate::access::context::Context;
use crate::approvals;
use crate::audit;
use crate::calls;
use crate::calls::call;
use crate::frame::address;
use crate::frame::page::{self, Screen};
use crate::needs;
use crate::reconciliations;
use crate::saga;
use crate::session;
use crate::store;
use crate::tools;
use oncegate_http::problem::{self, Problem};

/// Every page that shows something.
pub(crate) async fn show(context: Context) -> Response {
    let operator = &context.operator;
    match screen(&context).await {
        Ok(screen) => {
            // The token shows that a form has just led to this page.
            let is_done = context.asked.text("done") == operator.done_token(context.uri.path());
            page::screen(&screen, operator, address::here(&context.uri), is_done)
        }
        Err(problem) => page::failure(&problem, Some(operator)),
    }
}

/// The screen at the address of a request.
///
/// # Errors
/// The address leads to no screen, the operator may not see it, or the store does not answer.
pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let words = address::words(context.uri.path()).unwrap_or_default();
    match words[..] {
        [] => needs::screen(context).await,
        ["approvals"] => approvals::list(context).await,
        ["approvals", id] => approvals::screen(context, id).await,
        ["calls"] => calls::screen(context).await,
        ["calls", id] => call::screen(context, id).await,
        ["sagas"] => saga::list(context).await,
        ["saga"] => saga::screen(context).await,
        ["sessions"] => session::list(context).await,
        ["session"] => session::screen(context).await,
        ["tools"] => tools::list(context).await,
        ["tool"] => tools::screen(context).await,
        ["store"] => store::screen(context).await,
        ["audit"] => audit::screen(context).await,
        ref words => match reconciliations::screen(context, words).await {
            Some(screen) => screen,
            None => Err(problem::unknown_path().await),
        },
    }
}
