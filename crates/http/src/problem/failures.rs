//! The text of each failure: `detail` is written for a model that decides what to do next.

use std::time::Duration;

use serde_json::value::RawValue;

use super::{ApprovalTimes, Effect, KeyAction, Mistake, Problem, RETRY_RUNNING, Slug};
use crate::ledger::time;
use oncegate_engine::{Differs, Error, ErrorKind, Reused};
use oncegate_rules::key;
use oncegate_rules::mcp::payment;
use oncegate_rules::record::Failure;
use oncegate_rules::session::Refusal;

/// When to ask again if the gateway or its store must recover first.
const RETRY_GATEWAY: Duration = Duration::from_secs(2);
/// When to try a paused tool again.
const RETRY_PAUSED: Duration = Duration::from_secs(30);
/// When to try a tool again, if the tool named no time.
const RETRY_TOOL: Duration = Duration::from_secs(5);

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let problem = Self::from(error.kind);
        // A guessed key must not lead to a call of another tenant.
        let may_name_call = problem.slug != Slug::KeyExpired;
        Self {
            call_id: error.call_id.or(problem.call_id).filter(|_| may_name_call),
            key: error.key,
            replayed: error.replayed,
            ..problem
        }
    }
}

impl From<ErrorKind> for Problem {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidRequest(why) => Self::invalid_request(&why),
            ErrorKind::Key(refused @ key::Refused::Missing) => {
                Self::new(Slug::KeyMissing, format!("Nothing was run: {refused}. Choose a key for this intent and send the request again with it in the Idempotency-Key header."))
            }
            ErrorKind::Key(refused @ (key::Refused::Invalid(..) | key::Refused::Reserved)) => Self::new(Slug::KeyInvalid, format!("Nothing was run: {refused}. Send the request again with a valid key, and the same one with every repetition.")),
            ErrorKind::Key(refused @ key::Refused::Conflict) => {
                Self::new(Slug::KeyConflict, format!("Nothing was run: {refused}. Send the same key in both, or in one only."))
            }
            ErrorKind::Key(refused @ key::Refused::FieldMissing(_)) => Self::invalid_request(&refused.to_string()),
            ErrorKind::Forbidden => Self::forbidden("this token may not do that"),
            ErrorKind::Unauthenticated(why) => Self::new(Slug::Unauthenticated, format!("This request ran nothing: {why}. Send it again with a credential that the API takes, with the same key.")),
            ErrorKind::NotChecked => Self::new(Slug::CallerNotChecked, "This request ran nothing: the gateway could not find out whether to let its caller in. Wait, then send the same request again with the same key; do not use another key.").waiting(RETRY_TOOL),
            ErrorKind::UnknownTool => Self::new(Slug::UnknownTool, "Nothing was run: there is no tool of this name. Do not repeat the request; choose a tool that exists."),
            ErrorKind::UnknownCall => Self::new(Slug::UnknownCall, "There is no call with this id among those that you may read."),
            ErrorKind::UnknownSaga => Self::new(Slug::UnknownSaga, "There is no saga of this name; it begins with the first call that names it."),
            ErrorKind::UnknownReconciliation => Self::new(Slug::UnknownReconciliation, "There is no reconciliation of this name, or no such report or anomaly of it."),
            ErrorKind::InvalidArguments(mistakes) => {
                let errors: Vec<Mistake> = mistakes.into_iter().map(|(pointer, detail)| Mistake { pointer, detail }).collect();
                let named: Vec<String> = errors.iter().map(|mistake| format!("{} {}", mistake.pointer, mistake.detail).trim().to_owned()).collect();
                let detail = format!("Nothing was run: the arguments do not fit the tool's schema ({}). Correct them and call again with a new key.", named.join("; "));
                Self { errors: Some(errors), ..Self::new(Slug::InvalidArguments, detail) }
            }
            ErrorKind::CallInProgress { retry_after } => Self::new(
                Slug::CallInProgress,
                "An earlier request with this key is still running. Do not use another key. Wait, then send exactly the same request again; it will get the result.",
            )
            .waiting(retry_after),
            ErrorKind::JustChanged => Self::new(
                Slug::CallInProgress,
                "Nothing was sent: the call has just changed, most likely because another request or a check works on it too. Wait, then send the same request again.",
            )
            .not_run()
            .waiting(RETRY_RUNNING),
            ErrorKind::ApprovalRequired { asked_at, expires_at, retry_after } => {
                let problem = Self::new(
                    Slug::ApprovalRequired,
                    "Nothing was run yet: an approver has to approve exactly this call, and does so elsewhere. Tell the user. Wait as long as retry_after_ms says, then send the same request again, with the same key and the same arguments: it gets the result once the call was approved and has run. Never send it with other arguments, and do not look for another way to the same effect.",
                );
                let approval = ApprovalTimes { asked_at: time(asked_at), expires_at: time(expires_at) };
                Self { approval: Some(approval), ..problem }.waiting(retry_after)
            }
            ErrorKind::ApprovalDeclined { tell } => {
                let said = match tell.as_str() {
                    "" => String::new(),
                    tell => format!(" The approver says: {tell}"),
                };
                Self::new(
                    Slug::ApprovalDeclined,
                    format!("Nothing was run: an approver has declined this call. Tell the user. Do not send it again, neither with this key nor with a new one, and do not look for another way to the same effect.{said}"),
                )
            }
            ErrorKind::ApprovalLapsed { may_ask_again: true } => Self::new(
                Slug::ApprovalLapsed,
                "Nothing was run: it was not approved in time, it did not begin in time, or it was taken back. If it is still needed, send the same request again with the same key: approvers are asked once more.",
            ),
            ErrorKind::ApprovalLapsed { may_ask_again: false } => Self::new(
                Slug::ApprovalLapsed,
                "Nothing was run: it was not approved in time, and it was asked about so often that it is not asked about any more. Tell the user; do not send it again.",
            )
            .stop(),
            ErrorKind::TooManyProposals { retry_after } => Self::new(
                Slug::RateLimited,
                "Nothing was run: this call needs approval, and too many calls wait for one already. Tell the user. Wait, then send the same request again with the same key.",
            )
            .not_run()
            .waiting(retry_after),
            ErrorKind::NotAsShown => Self::new(
                Slug::NotConfirmed,
                "Nothing was done: what would be sent now is not what was shown, or another approver has decided meanwhile. Look at the call again, and decide about that.",
            ),
            ErrorKind::NotConfirmed(different) => Self::new(
                Slug::NotConfirmed,
                format!("Nothing was done: {different}. Send the same request without confirm, look at what it answers, and confirm that."),
            ),
            ErrorKind::OutcomeUnknown { retry_after: Some(retry_after) } => Self::new(
                Slug::OutcomeUnknown,
                "The tool may or may not have executed this call; the gateway is finding out. Wait as long as retry_after_ms says, then send the same request again, with the same key and the same arguments: that never executes it twice, and gets the outcome when it is known. Never send it with a new key or with other arguments.",
            )
            .waiting(retry_after),
            ErrorKind::OutcomeUnknown { retry_after: None } => Self::new(
                Slug::OutcomeUnknown,
                "The tool may or may not have executed this call, and the gateway plans no further check. Tell the user, and ask an operator to look into the tool's own system and to settle the call that call_id names. Sending the same request again, with the same key and the same arguments, never executes it twice, and gets the outcome when it is known. Never send it with a new key or with other arguments.",
            ),
            ErrorKind::OutcomeUnwritten { retry_after } => Self::new(
                Slug::OutcomeUnknown,
                "The tool may or may not have executed this call: the gateway's store does not take the outcome, which is offered to it again and again. Wait as long as retry_after_ms says, then send the same request again, with the same key and the same arguments: that never executes it twice, and gets the outcome when it is written down. Never send it with a new key or with other arguments.",
            )
            .waiting(retry_after),
            ErrorKind::KeyReused { call_id, reused, differs } => Self {
                call_id: Some(call_id),
                ..key_reused(&reused, differs)
            },
            ErrorKind::UnknownElicitation => Self::new(
                Slug::KeyReused,
                "This request was not run: its requestState was not issued for a call of this user with these arguments. Send requestState and arguments unchanged, or call the tool without answers.",
            )
            .stop(),
            ErrorKind::InputRequired => Self::new(
                Slug::InputRequired,
                "Nothing was executed: the tool asks questions before it executes this call, and you cannot be asked them here. Sending the call again asks nothing else. Tell the user: it takes a client of MCP 2026-07-28 that can be asked.",
            ),
            ErrorKind::WrongState(why) => Self::new(Slug::WrongState, format!("Nothing was changed: {why}.")),
            ErrorKind::ReplayUnsafe(why) => Self::new(Slug::ReplayUnsafe, format!("Nothing was sent: {why}. Look at the stored result instead.")),
            ErrorKind::KeyExpired { is_repetition: true } => Self::new(
                Slug::KeyExpired,
                "This request was not run: the same call was made with this key before, too long ago for its result to be remembered. It may have been executed then, so do not send it again, neither with this key nor with a new one. Look into the tool's own system, or ask an operator.",
            )
            .stop(),
            ErrorKind::KeyExpired { is_repetition: false } => Self::new(
                Slug::KeyExpired,
                "This request was not run: this key was used for a call with other arguments, longer ago than results are remembered. If this is a new intent, send it with a new key; if it repeats that call in other words, do not send it, and ask an operator what became of that call.",
            ),
            ErrorKind::ToolRejected(failure)
                if failure.body.as_deref().is_some_and(payment::is_demanded) =>
            {
                let detail = "Nothing was executed: the tool asks for a payment first, and tool_body says how. A client that pays sends the same request again with the payment, and with the same key.";
                Self { tool_status: failure.status, tool_body: body_of(&failure), key_action: KeyAction::Reuse, ..Self::new(Slug::ToolRejected, detail) }
            }
            ErrorKind::ToolRejected(failure) => {
                let status = failure.status.map_or_else(String::new, |status| format!(" (status {status})"));
                let detail = format!("The tool says that it rejected the call{status}; that is its word, and tool_body has it. Read it. If it shows that something was done all the same, tell the user, and do not send the call again. Otherwise correct the request, and send it with a new key.");
                Self { tool_status: failure.status, tool_body: body_of(&failure), ..Self::new(Slug::ToolRejected, detail) }
            }
            ErrorKind::Fenced(failure) => {
                let detail = "The tool says that it rejected the call: it has seen a newer branch of this session, which has taken over. Do not repeat the request; stop this branch and tell the user.";
                Self { tool_status: failure.status, tool_body: body_of(&failure), ..Self::new(Slug::StaleFencingToken, detail) }
            }
            ErrorKind::Refused(refusal) => refused(&refusal),
            ErrorKind::ToolUnreachable(failure) => Self::new(
                Slug::ToolUnreachable,
                "Nothing was run: the tool could not be reached. Wait, then send the same request again with the same key.",
            )
            .waiting(failure.retry_after.unwrap_or(RETRY_TOOL)),
            ErrorKind::ToolUnavailable(failure) => {
                let said = match failure.status {
                    Some(status) => format!("The tool says that it could not take the call now (status {status})"),
                    None => "Nothing was changed: the tool could not take the call now".to_owned(),
                };
                let detail = format!("{said}. Wait, then send the same request again with the same key.");
                let problem = Self::new(Slug::ToolUnavailable, detail);
                Self { tool_status: failure.status, ..problem }.waiting(failure.retry_after.unwrap_or(RETRY_TOOL))
            }
            ErrorKind::BreakerOpen { retry_after } => Self::new(
                Slug::ToolUnavailable,
                "Nothing was run: the tool keeps failing, so it is left alone for a while. Wait, then send the same request again with the same key.",
            )
            .waiting(retry_after),
            ErrorKind::ResultUnavailable(_) => Self::new(
                Slug::ResultUnavailable,
                "The tool has executed this call, but its answer could not be read. The effect is done: do not call again. Look up the result in the tool's own system if you need it.",
            ),
            ErrorKind::NotAnswered { is_read: true } => Self::new(
                Slug::ToolUnavailable,
                "Nothing was changed: this was a read, and the API has not answered it. Wait, then send the same request again.",
            )
            .waiting(RETRY_TOOL),
            ErrorKind::NotAnswered { is_read: false } => Self::new(
                Slug::NotAnswered,
                "The request went to the API without a key and was not answered, so it may have been executed. Do not send it again. Tell the user; look into the API's own system for what it did.",
            ),
            ErrorKind::RateLimited => Self::new(Slug::RateLimited, "Nothing was run: the gateway is busy. Wait, then send the same request again with the same key.").not_run().waiting(RETRY_RUNNING),
            ErrorKind::NoMemory => Self::new(
                Slug::RateLimited,
                "This request began nothing: the gateway has no memory left for it or for its answer. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(RETRY_RUNNING),
            ErrorKind::TooFast { retry_after } => Self::new(
                Slug::RateLimited,
                "This request was not looked at: there were too many requests with this token. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(retry_after),
            ErrorKind::TooManyNewKeys { retry_after } => Self::new(
                Slug::RateLimited,
                "Nothing was run: there were too many new calls with this token; only repetitions of earlier calls are answered now. Ask yourself whether this call is really needed. Wait, then send the same request again with the same key.",
            )
            .not_run()
            .waiting(retry_after),
            ErrorKind::StoreUnavailable => Self::new(
                Slug::StoreUnavailable,
                "This request was not run, because the gateway's store does not answer. Wait, then send the same request again with the same key; do not use another key.",
            )
            .waiting(RETRY_GATEWAY),
            ErrorKind::KeysSettle { retry_after } => Self::new(
                Slug::StoreUnavailable,
                "Nothing was run: the settings of this tool's keys have just changed, and not every gateway may know them yet. Wait, then send the same request again with the same key.",
            )
            .not_run()
            .waiting(retry_after),
            ErrorKind::ShuttingDown => Self::new(Slug::ShuttingDown, "This request was not looked at: the gateway is shutting down. If it repeats an earlier one, that one may have been executed. Wait, then send the same request again with the same key; do not use another key.").waiting(RETRY_GATEWAY),
            ErrorKind::ToolPaused => Self::new(
                Slug::ToolPaused,
                "Nothing was run: an operator has paused this tool for the time being. Do not look for another way to the same effect. Wait, then send the same request again with the same key.",
            )
            .waiting(RETRY_PAUSED),
        }
    }
}

/// The problem of a call that may not begin, by its session, its budget or its similarity.
fn refused(refusal: &Refusal) -> Problem {
    match refusal {
        Refusal::Frozen => Problem::new(
            Slug::SessionFrozen,
            "Nothing was run: an operator has frozen this session. Stop calling tools in it and tell the user; only an operator can thaw it.",
        ),
        Refusal::Stale => Problem::new(
            Slug::StaleFencingToken,
            "Nothing was run: the session has given out a newer fencing token, so another branch has taken over. Do not repeat the request; stop this branch and tell the user.",
        ),
        Refusal::NotGiven => Problem::invalid_request(
            "this session has not given out fencing_token, or has been idle for a week; leave it out, or send the one of the session's newest answer",
        ),
        Refusal::Busy { retry_after } => Problem::new(
            Slug::SessionBusy,
            "Nothing was run: another call of this session is still under way, or its outcome is not known yet. Wait, then send the same request again with the same key.",
        )
        .waiting(*retry_after),
        Refusal::Spent { retry_after } => Problem::new(
            Slug::BudgetExceeded,
            format!(
                "Nothing was run: this tool has been called as often as it may be for now. There is room again in {} seconds. Ask yourself whether this call is really needed; then send the same request with the same key.",
                retry_after.as_millis().div_ceil(1000)
            ),
        )
        .waiting(*retry_after),
        Refusal::Similar { call_id } => {
            let detail = format!(
                "Nothing was run: call {call_id} asked for the same a short while ago, with another key. If this repeats that call, do not send it again: GET /v1/calls/{call_id} says what became of it. Only if both are meant, send it again with \"confirm_duplicate_of\": \"{call_id}\"."
            );
            Problem { similar_to: Some(*call_id), ..Problem::new(Slug::PossibleDuplicate, detail) }
        }
        Refusal::SimilarPending { call_id, retry_after } => {
            let detail = match retry_after {
                Some(_) => format!(
                    "This request was not run: call {call_id} asked for the same a short while ago, with another key, and its outcome is not known yet. Wait as long as retry_after_ms says, then send the same request again with the same key: if that call has succeeded, you get its result. Do not use a new key."
                ),
                None => format!(
                    "This request was not run: call {call_id} asked for the same a short while ago, with another key, and it may or may not have been executed. The gateway plans no further check. Tell the user, and ask an operator to look into the tool's own system and to settle that call; after that the same request, with the same key, gets its result. Do not use a new key."
                ),
            };
            let problem = Problem::new(Slug::PossibleDuplicate, detail);
            Problem {
                similar_to: Some(*call_id),
                effect: Effect::Unknown,
                key_action: KeyAction::Wait,
                retry_after: *retry_after,
                ..problem
            }
        }
    }
}

/// The problem of a key that an earlier call has.
fn key_reused(reused: &Reused, differs: Differs) -> Problem {
    let named = match &differs.places[..] {
        [] => String::new(),
        places => format!(" (they differ at {})", places.join(", ")),
    };
    let problem = |detail: String| Problem {
        differs: differs.places,
        ..Problem::new(Slug::KeyReused, detail)
    };
    match reused {
        Reused::Other => problem(format!("This request was not run: this key stands for an earlier call, which call_id names, with other arguments{named}. That call may have been executed. If you mean the same thing in other words, do not use a new key: send exactly the arguments of that call, and you get its result. Use a new key only for a new intent.")),
        Reused::SameFields => problem(format!("This request was not run: an earlier call, which call_id names, has the same business id and other arguments{named}. A new key would find the same call, so do not send this request again. If you meant to repeat that call, send exactly its arguments; that gets its result. Otherwise ask an operator.")).stop(),
        Reused::Answered => problem(format!("This request was not run: the tool's questions were answered before, by the call that call_id names, and otherwise{named}. That call may have been executed. Questions are answered once: send exactly those answers to get its result. For a new intent call the tool without answers, with a new key.")).stop(),
        Reused::Unclear => Problem {
            effect: Effect::Unknown,
            ..Problem::new(Slug::KeyReused, "This request was not run: an earlier call, which call_id names, has this key, and its arguments can no longer be compared with yours. It may be the same call, and may have been executed. Do not send this request again, neither with this key nor with a new one; ask an operator what became of that call.")
        }
        .stop(),
    }
}

fn body_of(failure: &Failure) -> Option<Box<RawValue>> {
    failure
        .body
        .as_deref()
        .and_then(|json| serde_json::from_slice(json).ok())
}
