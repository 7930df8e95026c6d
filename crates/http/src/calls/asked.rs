//! `GET /v1/calls/{id}/answer`: the answer to a call, for a caller that was told that the call runs.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{MAX_WAIT, OF_A_CALL, accepted, patience, result};
use crate::openapi::Route;
use crate::problem::{Problem, Slug};
use crate::read::{On, Target, query_of};
use oncegate_engine::{Answer, AskFor};
use oncegate_rules::caller::Caller;
use oncegate_rules::record::{CallId, State};

/// The route of answers.
pub(crate) fn routes() -> Vec<Route> {
    let about = "The answer that a repetition of the call would get; nothing is executed";
    let route = Route::get("/v1/calls/{id}/answer", "call_answer", about, answer)
        .path("id", "The call's id.")
        .params::<Wanted>()
        .problems(&[Slug::UnknownCall, Slug::InvalidRequest])
        .problems(&OF_A_CALL);
    vec![super::with_answers(route)]
}

#[derive(Clone, Copy, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// How long to wait for the outcome, in seconds; at most 60. `Prefer: wait=SECONDS` says the same.
    #[param(inline, maximum = 60)]
    wait: Option<u64>,
}

/// A call, and how long to wait for it.
struct WantedCall(CallId, Wanted);

impl Target for WantedCall {
    async fn read(parts: &mut Parts, caller: &Caller) -> Result<Self, Problem> {
        let call_id = CallId::read(parts, caller).await?;
        let wanted: Wanted = query_of(&parts.uri)?;
        if wanted.wait.is_some_and(|wait| wait > MAX_WAIT.as_secs()) {
            return Err(Problem::invalid_request("wait is at most 60 seconds"));
        }
        Ok(Self(call_id, wanted))
    }
}

/// `GET /v1/calls/{id}/answer`
async fn answer(on: On<WantedCall>, headers: HeaderMap) -> Result<Response, Problem> {
    let WantedCall(call_id, wanted) = on.target;
    let seconds = wanted.wait.map(Duration::from_secs);
    let how = AskFor {
        wait: seconds.or(patience(&headers).wait).unwrap_or_default(),
        as_replay: true,
        ..AskFor::default()
    };
    let engine = &on.http.gateway.engine;
    let asked = engine.ask_for(&on.caller, call_id, how).await?;
    if matches!(asked.record.state, State::Running) {
        return Ok(accepted(&asked.record, asked.retry_after));
    }
    match asked.answer? {
        Answer::Result(stored) => Ok(result(&stored)),
        Answer::Accepted(record) => Ok(accepted(&record, asked.retry_after)),
    }
}
