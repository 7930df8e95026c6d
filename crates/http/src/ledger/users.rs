//! `DELETE /v1/users/{id}`: erases what the ledger holds of a user.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::time;
use crate::openapi::Route;
use crate::problem::{Problem, Slug};
use crate::read::{On, TenantQuery, UserId};
use oncegate_rules::erasure::{Erasure, Progress, Waiting};

/// The route of erasures.
pub(crate) fn routes() -> Vec<Route> {
    let about = "Erase arguments, results and names of a user's calls: of ended ones now, of others when they have ended";
    vec![
        Route::delete("/v1/users/{id}", "erase_user", about, erase)
            .path("id", "The user's id, as calls name it.")
            .params::<TenantQuery>()
            .problems(&[
                Slug::InvalidRequest,
                Slug::WrongState,
                Slug::StoreUnavailable,
            ])
            .json::<ErasureView<'_>>("What was erased, what is kept, and what is still to come."),
    ]
}

/// `DELETE /v1/users/{id}`
async fn erase(on: On<UserId>) -> Result<Response, Problem> {
    let UserId { tenant, id } = &on.target;
    let erasures = &on.http.gateway.erasures;
    let (wish, erased) = erasures.erase_user(&on.caller, tenant, id).await?;
    Ok(Json(ErasureView {
        user_id: id,
        tenant,
        state: wish.progress().as_str(),
        erased,
        stays: StaysView {
            calls: wish.erased,
            what: STAYS,
            until: wish.stored_until.map(time),
        },
        waiting: WaitingView::of(wish.waiting),
        next: next_step(&wish),
    })
    .into_response())
}

/// What stays of an erased call.
pub const STAYS: &str = "key, lookup keys, fingerprint, state, outcome, times, tool, token, saga and history: without them a \
                        repetition would be executed again";

/// What an operator may expect, and do.
pub fn next_step(wish: &Erasure) -> &'static str {
    match wish.progress() {
        Progress::Done if wish.erased == 0 => {
            "No call of this user is stored. Check the tenant and the spelling of the id."
        }
        Progress::Done => {
            "Nothing is left to do. The gateway looks again once a day for calls that come back from a backup or a lost store."
        }
        Progress::Waiting => {
            "Nothing is left to do for calls that end by themselves: each is erased within a minute of its end. Settle the \
             unknown ones, and end their sagas."
        }
        Progress::GoingOn => "The gateway goes on by itself. Ask again to see how far it is.",
    }
}

/// How far the erasure of a user is.
#[derive(Serialize, ToSchema)]
#[schema(as = Erasure)]
struct ErasureView<'a> {
    user_id: &'a str,
    /// The tenant of the user: the caller's own, unless the request names one.
    tenant: &'a str,
    /// `going_on`: not all calls were looked at yet. `waiting`: some have not ended. `done`: nothing of the user is left.
    #[schema(pattern = "^(going_on|waiting|done)$")]
    state: &'static str,
    /// How many calls this request has erased.
    erased: u64,
    #[serde(rename = "kept")]
    stays: StaysView,
    waiting: WaitingView,
    /// What happens next, and what an operator may do.
    next: &'static str,
}

/// What stays of the erased calls.
#[derive(Serialize, ToSchema)]
#[schema(as = ErasureKept)]
struct StaysView {
    /// How many calls were erased since the user was first asked for.
    calls: u64,
    what: &'static str,
    /// Until when the last of them is kept; null if none is.
    #[schema(required, format = DateTime)]
    until: Option<String>,
}

/// Calls that were looked at and have not ended.
#[derive(Serialize, ToSchema)]
#[schema(as = ErasureWaiting)]
struct WaitingView {
    running: u64,
    unknown: u64,
    /// They are being undone, or their saga has not ended: it may need their arguments to undo them.
    in_saga: u64,
    /// They cannot be read; the log names them.
    unreadable: u64,
}

impl WaitingView {
    fn of(waiting: Waiting) -> Self {
        let Waiting {
            running,
            unknown,
            in_saga,
            unreadable,
        } = waiting;
        Self {
            running,
            unknown,
            in_saga,
            unreadable,
        }
    }
}
