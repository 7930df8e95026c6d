//! The failure of a call in words for a model: what may have happened, and what to do next.

use jiff::Timestamp;

use oncegate_http::problem::{Effect, KeyAction, Problem, Slug};
use oncegate_rules::key::MODEL_MEMBER;
use oncegate_rules::mcp;
use oncegate_rules::mcp::tasks::AWAIT_CALL;
use oncegate_rules::record::CallId;
use oncegate_rules::time::elapsed_ms;

/// Reminds that a tool remembers a key for a limited time only.
const SOON: &str = " Do that soon: a call that ended longer ago than its tool remembers may be taken for a new one; later look up what became of it, or ask an operator.";

/// How a client asks for a call that still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AsksBy {
    /// It sends the same call again.
    Repetition,
    /// By the tool `await_call`, too.
    Await,
    /// By the id of its task.
    Task,
}

pub(super) fn text(problem: &Problem, now: Timestamp, asks_by: AsksBy) -> String {
    let seconds = problem.wait_seconds();
    let after = seconds.map_or_else(String::new, |seconds| format!(" after {seconds} s"));
    let again = match seconds {
        Some(_) => format!(" Repeat the same call with exactly the same arguments{after}."),
        None => String::new(),
    };
    let title = problem.slug.row().title;
    match problem.slug {
        Slug::CallInProgress
            if asks_by == AsksBy::Await
                && let Some(call_id) = problem.call_id =>
        {
            format!(
                "Still running, not failed. Call the tool {AWAIT_CALL} with call_id = \"{call_id}\": it waits for the result and executes nothing. Or repeat the same call with exactly the same arguments: it gets the result and runs nothing twice.{SOON}"
            )
        }
        Slug::CallInProgress if problem.call_id.is_some() => format!(
            "Still running, not failed. Repeat the same call with exactly the same arguments{after}: it gets the result and runs nothing twice.{SOON}"
        ),
        Slug::CallInProgress => format!(
            "Waiting for its turn: this request has executed nothing yet. Repeat the same call with exactly the same arguments{after}, or it may not run. If it repeats an earlier call, that one may have been executed."
        ),
        Slug::ApprovalRequired => {
            let next = match (asks_by, problem.call_id) {
                (AsksBy::Await, Some(call_id)) => format!(
                    "Call the tool {AWAIT_CALL} with call_id = \"{call_id}\", or repeat the same call with exactly the same arguments{after}"
                ),
                _ => format!("Repeat the same call with exactly the same arguments{after}"),
            };
            format!(
                "Nothing was executed yet: an approver has to approve exactly this call, and does so elsewhere. Tell the user. {next}: it gets the outcome once an approver has decided. Do NOT use other arguments or another tool for the same effect."
            )
        }
        Slug::ApprovalLapsed if problem.key_action == KeyAction::Reuse => {
            "Nothing was executed: it was not approved in time, or it was taken back. If it is still needed, repeat the same call with exactly the same arguments: approvers are asked once more.".to_owned()
        }
        Slug::OutcomeUnknown => {
            let next = match (seconds, problem.call_id) {
                (Some(seconds), _) => format!(" (next check in {seconds} s)."),
                (None, Some(call_id)) => format!(". {}", ask_operator(call_id)),
                (None, None) => ".".to_owned(),
            };
            format!(
                "It may have happened: nothing proves whether the tool executed this call. Do NOT try with other arguments or another tool. Repeating the same call with exactly the same arguments is safe: it executes nothing twice, and tells the outcome once it is known{next}{SOON}"
            )
        }
        Slug::PossibleDuplicate => possible_duplicate(problem, now, &again),
        Slug::KeyReused => key_reused(problem),
        Slug::KeyMissing => format!(
            "Nothing was executed: this tool requires an idempotency key. Call it again with the same arguments and the argument {MODEL_MEMBER}: a new unique text, such as a UUID. Give the same one whenever you repeat that call."
        ),
        Slug::ToolPaused => format!(
            "Nothing was executed. An operator has paused this tool for the time being. Do not look for another way to the same effect.{again}"
        ),
        Slug::RateLimited | Slug::StoreUnavailable | Slug::ShuttingDown
            if problem.effect == Effect::Unknown =>
        {
            format!(
                "{title}: this request executed nothing. If it repeats an earlier call, that one may have been executed; do not change its arguments.{again}"
            )
        }
        Slug::ToolUnreachable
        | Slug::ToolUnavailable
        | Slug::BudgetExceeded
        | Slug::SessionBusy
        | Slug::RateLimited
        | Slug::StoreUnavailable => format!("Nothing was executed. {title}.{again}"),
        _ => problem.detail.clone(),
    }
}

fn ask_operator(call_id: impl std::fmt::Display) -> String {
    format!(
        "No check is planned: tell the user that an operator has to look into the tool's own system and settle call {call_id}."
    )
}

/// The text if a similar call has another key.
///
/// Only the model's runtime can confirm both calls, because it writes `_meta`.
fn possible_duplicate(problem: &Problem, now: Timestamp, again: &str) -> String {
    let Some(call_id) = problem.similar_to else {
        return problem.detail.clone();
    };
    let found = format!(
        "This request executed nothing: call {call_id} asked for the same {}, under another key",
        since(call_id, now)
    );
    if problem.effect == Effect::None {
        return format!(
            "{found}. If this request repeats that call, do not send it again. If both are meant, tell the user: an operator or your runtime confirms it with _meta[{:?}] = \"{call_id}\".",
            mcp::CONFIRM
        );
    }
    let next = if again.is_empty() {
        format!(" {}", ask_operator(call_id))
    } else {
        again.to_owned()
    };
    format!(
        "{found}, and that call may have been executed: its outcome is not known yet.{next} Do not choose a new {MODEL_MEMBER}: once that call has succeeded, this one gets its result."
    )
}

/// How long ago a call was made, in words.
fn since(call_id: CallId, now: Timestamp) -> String {
    match call_id.made_at() {
        Some(made_at) => format!("{} s ago", elapsed_ms(made_at, now).div_ceil(1_000)),
        None => "a short while ago".to_owned(),
    }
}

/// The text if another call has the key.
fn key_reused(problem: &Problem) -> String {
    let Some(call_id) = problem.call_id else {
        return problem.detail.clone();
    };
    let differ = match &problem.differs[..] {
        [] => String::new(),
        places => format!(" (they differ at {})", places.join(", ")),
    };
    match (problem.key_action, problem.effect) {
        _ if problem.is_of_elicitation() => problem.detail.clone(),
        (KeyAction::Rotate, _) => format!(
            "This request executed nothing: its key stands for an earlier call, {call_id}, with other arguments{differ}. That call may have been executed. If you mean the same, send exactly the arguments of that call: you get its result. Choose a new {MODEL_MEMBER} only for a new intent."
        ),
        (_, Effect::Unknown) => format!(
            "This request executed nothing: an earlier call, {call_id}, has its key, and the arguments of the two can no longer be compared. It may be the same call, and may have been executed. Do not send this request again, with this key or another; ask an operator what became of call {call_id}."
        ),
        _ => format!(
            "This request executed nothing: an earlier call, {call_id}, has the same business id and other arguments{differ}. A new {MODEL_MEMBER} would find the same call. If you mean to repeat that call, send exactly its arguments: you get its result. Otherwise ask an operator."
        ),
    }
}
