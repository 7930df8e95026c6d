//! Forms that do something. Each asks a service, as the JSON door of the same act does.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::super::Http;
use super::super::problem::{self, Problem};
use super::super::read::identity;
use super::address::Asked;
use super::call;
use super::form::{Act, Form};
use crate::core::many::Mark;
use crate::core::reconcile::anomaly::Request;
use crate::core::record::{CallId, Content};
use crate::core::saga::SagaId;
use crate::core::session::SessionId;
use crate::core::unknown::Resolution;
use crate::gateway::reconcile::Period;
use crate::gateway::{CallAct, ErrorKind, SagaAct};

/// How long a page waits for a run of a reconciliation. The run goes on, and its page shows it.
const WAITS: Duration = Duration::from_secs(2);

/// The session or saga that a form is about. Without a tenant it is one of the person's own.
fn about(act: &Act) -> [(&str, &str); 2] {
    let tenant = act.asked.get("tenant");
    let tenant = tenant.unwrap_or(&act.form.person.caller.tenant);
    [("id", act.asked.text("id")), ("tenant", tenant)]
}

fn id_and_tenant(act: &Act) -> Result<[String; 2], Problem> {
    let [(_, id), (_, tenant)] = about(act);
    Ok([
        identity("the id", id.to_owned())?,
        identity("tenant", tenant.to_owned())?,
    ])
}

/// `POST /console/calls/{id}/{act}`
pub(super) async fn on_call(
    State(http): State<Http>,
    Path((id, act)): Path<(String, String)>,
    form: Form,
) -> Response {
    let call_id = match call::id_of(&id) {
        Ok(call_id) => call_id,
        Err(problem) => return form.failure(&problem),
    };
    if act == "verify" {
        return call::verify(&http, &form.person, call_id).await;
    }
    let done = do_on_call(&http, &form, call_id, &act).await;
    form.answer(done, &["calls", &call_id.to_string()], &[])
}

async fn do_on_call(http: &Http, form: &Form, call_id: CallId, act: &str) -> Result<(), Problem> {
    let (gateway, caller) = (&http.gateway, &form.person.caller);
    // A resolution means something else for a call that runs again or is being undone since.
    let as_shown = || Some(Mark::from_hex(form.fields.text("seen")));
    let (act, seen) = match act {
        "succeeded" => {
            let content = Content::Kept(result(form.fields.text("result"))?);
            let resolution = Resolution::Succeeded(content);
            (CallAct::Resolve(resolution), as_shown())
        }
        "failed" => (CallAct::Resolve(Resolution::Failed), as_shown()),
        "probe" => (CallAct::Probe, None),
        "compensate" => {
            let reason = form.reason()?;
            gateway.sagas.compensate(caller, call_id, &reason).await?;
            return Ok(());
        }
        _ => return Err(problem::unknown_path().await),
    };
    let (operator, reason) = (&gateway.operator, form.reason()?);
    operator
        .act_on_call(caller, act, call_id, &reason, seen)
        .await?;
    Ok(())
}

/// The result that a person says, as it was written but for the spaces around it.
pub(super) fn result(json: &str) -> Result<Bytes, Problem> {
    let read: Result<&RawValue, _> = serde_json::from_str(json);
    let read = read.map_err(|error| {
        let why =
            format!("the result is no JSON ({error}); write null where the tool answers nothing");
        Problem::invalid_request(&why)
    })?;
    Ok(Bytes::copy_from_slice(read.get().as_bytes()))
}

/// `POST /console/session/{act}`
pub(super) async fn on_session(act: Act) -> Response {
    let done = do_on_session(&act).await;
    act.form.answer(done, &["session"], &about(&act))
}

async fn do_on_session(act: &Act) -> Result<(), Problem> {
    let [id, tenant] = id_and_tenant(act)?;
    let id = SessionId { tenant, id };
    let (sessions, form) = (&act.http.gateway.sessions, &act.form);
    let (caller, reason) = (&form.person.caller, form.reason()?);
    match &act.word[..] {
        "freeze" => sessions.set_frozen(caller, &id, true, &reason).await?,
        "thaw" => sessions.set_frozen(caller, &id, false, &reason).await?,
        "unlock" => {
            let seen = form.fields.get("seen").map(call::id_of).transpose()?;
            let unlocking = sessions.unlock_session(caller, &id, &reason, seen);
            unlocking.await?;
        }
        _ => return Err(problem::unknown_path().await),
    }
    Ok(())
}

/// `POST /console/saga/{act}`
pub(super) async fn on_saga(act: Act) -> Response {
    let done = do_on_saga(&act).await;
    act.form.answer(done, &["saga"], &about(&act))
}

async fn do_on_saga(act: &Act) -> Result<(), Problem> {
    let [id, tenant] = id_and_tenant(act)?;
    let id = SagaId { tenant, id };
    let (sagas, form) = (&act.http.gateway.sagas, &act.form);
    let caller = &form.person.caller;
    // A program may end its own saga; here a person does.
    if !caller.is_admin() {
        return Err(ErrorKind::Forbidden.into());
    }
    match &act.word[..] {
        "complete" => {
            sagas
                .complete_saga(caller, &id, &form.optional_reason()?)
                .await?
        }
        "abort" => sagas.abort_saga(caller, &id, &form.reason()?).await?,
        "retry" => {
            let reason = form.reason()?;
            sagas
                .act_on_stuck(caller, SagaAct::Retry, &id, &reason, None)
                .await?
        }
        "skip" => {
            let seen = form.fields.get("seen").map(Mark::from_hex);
            let reason = form.reason()?;
            sagas
                .act_on_stuck(caller, SagaAct::Skip, &id, &reason, seen)
                .await?
        }
        _ => return Err(problem::unknown_path().await),
    };
    Ok(())
}

/// `POST /console/tool/{act}`
pub(super) async fn on_tool(act: Act) -> Response {
    let done = do_on_tool(&act).await;
    let of = [("name", act.asked.text("name"))];
    act.form.answer(done, &["tool"], &of)
}

async fn do_on_tool(act: &Act) -> Result<(), Problem> {
    let (pauses, form) = (&act.http.gateway.pauses, &act.form);
    let caller = &form.person.caller;
    let name = identity("the id", act.asked.text("name").to_owned())?;
    match &act.word[..] {
        "pause" => {
            let reason = form.reason()?;
            pauses.set_paused(caller, &name, true, &reason).await?
        }
        "resume" => {
            let reason = form.optional_reason()?;
            pauses.set_paused(caller, &name, false, &reason).await?
        }
        _ => return Err(problem::unknown_path().await),
    };
    Ok(())
}

/// `POST /console/reconciliation/run`
pub(super) async fn run(State(http): State<Http>, uri: Uri, form: Form) -> Response {
    let asked = Asked::of(&uri);
    let name = asked.text("name");
    let (reconciler, caller) = (&http.gateway.reconciler, &form.person.caller);
    let period = Period {
        since: None,
        until: None,
    };
    let running = timeout(WAITS, reconciler.reconcile_now(caller, name, period)).await;
    let done = match running {
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(_)) | Err(_) => Ok(()),
    };
    form.answer(done, &["reconciliation"], &[("name", name)])
}

/// `POST /console/anomaly/{act}`
pub(super) async fn on_anomaly(act: Act) -> Response {
    let done = do_on_anomaly(&act).await;
    let (name, id) = (act.asked.text("name"), act.asked.text("id"));
    act.form
        .answer(done, &["anomaly"], &[("name", name), ("id", id)])
}

async fn do_on_anomaly(act: &Act) -> Result<(), Problem> {
    let mut requests = Request::ALL.into_iter();
    let request = requests.find(|request| request.as_str() == act.word);
    let Some(request) = request else {
        return Err(problem::unknown_path().await);
    };
    let (reconciler, caller) = (&act.http.gateway.reconciler, &act.form.person.caller);
    let (name, id) = (act.asked.text("name"), act.asked.text("id"));
    let reason = act.form.reason()?;
    let acting = reconciler.act_on_anomaly(caller, name, id, request, &reason);
    acting.await?;
    Ok(())
}

/// `POST /console/store/accept-loss`
pub(super) async fn accept_loss(State(http): State<Http>, form: Form) -> Response {
    let done = async {
        let (loss, caller) = (&http.gateway.loss, form.person.caller.clone());
        loss.accept_loss(caller, form.reason()?).await?;
        Ok(())
    };
    let done = done.await;
    form.answer(done, &["store"], &[])
}
