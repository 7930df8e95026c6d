//! Calls that a client asks for by their ids: `tasks/get`, `tasks/update`, `tasks/cancel`, and the tool `await_call`.
//!
//! None of them executes anything. A task is a call, and its id is the call's: it exists as soon as the call is claimed, on
//! every gateway of the store.

use axum::body::Bytes;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::answer::{self, CallAnswer, Reader, server_info};
use super::call::{is_of_upstream, respond};
use super::events::Waiting;
use super::forwarded::Written;
use super::message::{INTERNAL_ERROR, RpcError};
use super::state::Mcp;
use super::task;
use super::text::AsksBy;
use oncegate_engine::{AskFor, Asked, Error, ErrorKind, Unheard};
use oncegate_http::problem::{Problem, Slug};
use oncegate_rules::caller::Caller;
use oncegate_rules::mcp::revision::Era;
use oncegate_rules::mcp::tasks::{self, Status};
use oncegate_rules::record::{CallId, State};
use oncegate_rules::words::words;

words! {
    /// A method for one task.
    pub enum TaskMethod {
        Get = "tasks/get",
        /// Answers to questions of a task: those of an MCP server that works on the call.
        Update = "tasks/update",
        /// The wish that a task ends. A call that waits for approval is taken back. One that was sent may have taken effect,
        /// so nothing is broken off.
        Cancel = "tasks/cancel",
    }
}

/// A request for a task.
pub(super) struct TaskRequest {
    pub(super) method: TaskMethod,
    pub(super) task_id: String,
    /// Answers to questions of the server that works on the call.
    pub(super) answers: Option<Box<RawValue>>,
    /// The kinds of questions that the client can answer.
    pub(super) can_answer: Map<String, Value>,
}

/// Answers a request for a task.
pub(super) async fn answer(
    mcp: &Mcp,
    caller: &Caller,
    request: TaskRequest,
    id: &RawValue,
) -> Response {
    let (method, sender) = (request.method, &mcp.http.gateway.sender);
    let asked = match id_of(&request.task_id) {
        Some(call_id) => {
            let engine = &mcp.http.gateway.engine;
            engine.ask_for(caller, call_id, AskFor::default()).await
        }
        None => Err(ErrorKind::UnknownCall.alone()),
    };
    if let (Ok(asked), TaskMethod::Cancel) = (&asked, method)
        && asked.record.state.waits_for_approval()
    {
        // Only its maker may. A call that was sent is not taken back: there this is a wish.
        let (approvals, call_id) = (&mcp.http.gateway.approvals, asked.record.intent.call_id);
        drop(approvals.withdraw(caller, call_id).await);
    }
    if let (Ok(asked), TaskMethod::Cancel) = (&asked, method)
        && matches!(asked.record.state, State::Running | State::Unknown(_))
        && sender.cancel(caller, &asked.record).await.is_err()
    {
        let why = "The store did not take the wish to cancel: further attempts may follow. Send it again.";
        let problem = Some(Slug::StoreUnavailable);
        return RpcError::new(INTERNAL_ERROR, why).answer_as(problem, Some(id), Era::Modern);
    }
    let mut questions = None;
    let mut forwarded = Ok(());
    if let Ok(asked) = &asked {
        // One request to a server for one of the client: bounded as all that are forwarded.
        let permit = mcp.http.gateway.engine.permit_for(caller);
        let (abilities, record) = (&request.can_answer, &asked.record);
        match (method, &request.answers) {
            (TaskMethod::Get, _) if permit.is_some() && !abilities.is_empty() => {
                questions = sender.task_questions(caller, record, abilities).await;
            }
            (TaskMethod::Update, Some(answers)) if permit.is_some() => {
                forwarded = sender.answer_task(caller, record, answers).await;
            }
            (TaskMethod::Update, Some(_)) => {
                let why = "Too many requests are under way: the answers were not forwarded. Send them again.";
                let problem = Some(Slug::RateLimited);
                return RpcError::new(INTERNAL_ERROR, why).answer_as(
                    problem,
                    Some(id),
                    Era::Modern,
                );
            }
            (TaskMethod::Get | TaskMethod::Update | TaskMethod::Cancel, _) => {}
        }
    }
    let now = mcp.http.gateway.now();
    let (result, word) = match (asked, method) {
        (Ok(_), _) if let Err(why) = forwarded => {
            let error = match why {
                Unheard::Refused => {
                    let error = RpcError::params("the server refused the answers");
                    (error, Slug::ToolRejected)
                }
                Unheard::Unknown(why) => {
                    let why = format!(
                        "It is not known whether the server has the answers: {why}. Ask for the task, and send them again if it still asks."
                    );
                    (RpcError::new(INTERNAL_ERROR, why), Slug::NotAnswered)
                }
            };
            (Err(error), "unavailable")
        }
        (Ok(asked), TaskMethod::Get) if let Some(questions) = questions => {
            (Ok(asks(&asked, now, questions)), "input_required")
        }
        (Ok(asked), TaskMethod::Get) => {
            let status = tasks::status(&asked.record, now);
            (Ok(got(mcp, asked, now)), status.as_str())
        }
        (Ok(_), TaskMethod::Update | TaskMethod::Cancel) => (Ok(acknowledged()), "acknowledged"),
        (Err(error), _) => match error.kind {
            ErrorKind::UnknownCall => {
                let error = RpcError::params("there is no such task");
                (Err((error, Slug::UnknownCall)), "unknown")
            }
            _ => (Err(no_answer(error)), "unavailable"),
        },
    };
    let counted = &mcp.http.gateway.base.metrics.task_requests;
    counted.with_label_values(&[method.as_str(), word]).inc();
    match result {
        Ok(answer) => answer.respond(id),
        Err((error, problem)) => error.answer_as(Some(problem), Some(id), Era::Modern),
    }
}

/// The call of a task. `None`: no task has such an id.
fn id_of(task_id: &str) -> Option<CallId> {
    let call_id = CallId(Uuid::try_parse(task_id).ok()?);
    // One spelling, so that a client may compare ids.
    (call_id.to_string() == task_id).then_some(call_id)
}

/// An error that says nothing of the task: the client asks again.
fn no_answer(error: Error) -> (RpcError, Slug) {
    let Problem { slug, detail, .. } = Problem::from(error);
    let why = format!("The task could not be read: {detail}");
    (RpcError::new(INTERNAL_ERROR, why), slug)
}

fn acknowledged() -> CallAnswer {
    let nothing = Bytes::new();
    let mut result = Written::result(&nothing, Era::Modern);
    result.text("_meta", json!(server_info()).to_string());
    CallAnswer::of(result.end(), 0)
}

/// The result of `tasks/get` while the server of the call waits for answers.
fn asks(asked: &Asked, now: Timestamp, questions: String) -> CallAnswer {
    let nothing = Bytes::new();
    let mut task = Written::result(&nothing, Era::Modern);
    task::write(
        &mut task,
        &asked.record,
        now,
        server_info(),
        Some(questions),
    );
    CallAnswer::of(task.end(), 0)
}

/// The result of `tasks/get`: the task, and what `tools/call` would answer once it is completed.
fn got(mcp: &Mcp, asked: Asked, now: Timestamp) -> CallAnswer {
    let nothing = Bytes::new();
    let mut task = Written::result(&nothing, Era::Modern);
    task::write(&mut task, &asked.record, now, server_info(), None);
    if tasks::status(&asked.record, now) != Status::Completed {
        return CallAnswer::of(task.end(), 0);
    }
    let reader = Reader {
        era: Era::Modern,
        now,
        is_forwarded: is_of_upstream(mcp, &asked.record.intent.tool),
        is_of_call: false,
        asks_by: AsksBy::Task,
        pages: mcp.settings.pages.as_deref(),
    };
    let answer = answer::answer_to(asked.answer, reader);
    let problem = answer.problem();
    let (result, shared) = answer.into_result();
    task.parts("result", result);
    CallAnswer::of(task.end(), shared).with_problem(problem)
}

/// The call that the arguments of `await_call` name.
///
/// # Errors
/// They name none.
pub(super) fn awaited(args: Option<&RawValue>) -> Result<CallId, RpcError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Args {
        call_id: Uuid,
    }
    let args = args.map_or("{}", RawValue::get);
    let args: Args =
        serde_json::from_str(args).map_err(|error| RpcError::params(&error.to_string()))?;
    Ok(CallId(args.call_id))
}

/// Answers a call of `await_call`: with the answer of the call that it names, once that has an outcome.
pub(super) async fn await_call(
    mcp: &Mcp,
    caller: Caller,
    call_id: CallId,
    id: Box<RawValue>,
    era: Era,
    waiting: Waiting,
) -> Response {
    let here = mcp.clone();
    let how = AskFor {
        wait: mcp.settings.answer_within,
        ..AskFor::default()
    };
    let awaiting = async move {
        let gateway = &here.http.gateway;
        let (is_forwarded, answer) = match gateway.engine.ask_for(&caller, call_id, how).await {
            Ok(asked) => {
                let tool = &asked.record.intent.tool;
                (is_of_upstream(&here, tool), asked.answer)
            }
            Err(error) => (false, Err(error)),
        };
        let reader = Reader {
            era,
            now: gateway.base.now(),
            is_forwarded,
            is_of_call: false,
            asks_by: AsksBy::Await,
            pages: here.settings.pages.as_deref(),
        };
        answer::answer_to(answer, reader)
    };
    respond(mcp, awaiting, None, id, waiting).await
}
