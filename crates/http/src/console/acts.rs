//! Acts by forms. Each calls the service that the JSON route of the same act calls.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Path;
use axum::response::Response;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::super::problem::{self, Problem};
use super::super::read::identity;
use super::call;
use super::form::Form;
use oncegate_engine::reconcile::Period;
use oncegate_engine::{CallAct, ErrorKind, SagaAct};
use oncegate_rules::many::Mark;
use oncegate_rules::reconcile::anomaly::Request;
use oncegate_rules::record::{CallId, Content};
use oncegate_rules::saga::SagaId;
use oncegate_rules::session::SessionId;
use oncegate_rules::unknown::Resolution;

/// How long a page waits for a run of a reconciliation. The run goes on, and its page shows it.
const WAITS: Duration = Duration::from_secs(2);

/// The session or saga of an act. Without a tenant in the address, it is of the operator's own tenant.
fn about(form: &Form) -> [(&str, &str); 2] {
    let asked = &form.context.asked;
    let tenant = asked.get("tenant");
    let tenant = tenant.unwrap_or(&form.context.caller().tenant);
    [("id", asked.text("id")), ("tenant", tenant)]
}

fn id_and_tenant(form: &Form) -> Result<[String; 2], Problem> {
    let [(_, id), (_, tenant)] = about(form);
    Ok([
        identity("the id", id.to_owned())?,
        identity("tenant", tenant.to_owned())?,
    ])
}

/// `POST /console/calls/{id}/{act}`
pub(super) async fn on_call(Path((id, act)): Path<(String, String)>, form: Form) -> Response {
    let call_id = match call::id_of(&id) {
        Ok(call_id) => call_id,
        Err(problem) => return form.page(Err(problem)),
    };
    if act == "verify" {
        return form.page(call::verify(&form.context, call_id).await);
    }
    let done = do_on_call(&form, call_id, &act).await;
    form.answer(done, &["calls", &call_id.to_string()], &[])
}

async fn do_on_call(form: &Form, call_id: CallId, act: &str) -> Result<(), Problem> {
    let (gateway, caller) = (form.context.gateway(), form.context.caller());
    // Since the page was loaded, the call may run again or be undone: then a resolution must not settle it.
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
    let acting = operator.act_on_call(caller, act, call_id, &reason, seen);
    acting.await?;
    Ok(())
}

/// The result that an operator wrote, without the spaces around it.
pub(super) fn result(json: &str) -> Result<Bytes, Problem> {
    let read: Result<&RawValue, _> = serde_json::from_str(json);
    let read = read.map_err(|error| {
        let why =
            format!("the result is not JSON ({error}); write null where the tool answers nothing");
        Problem::invalid_request(&why)
    })?;
    Ok(Bytes::copy_from_slice(read.get().as_bytes()))
}

/// `POST /console/session/{act}`
pub(super) async fn on_session(Path(act): Path<String>, form: Form) -> Response {
    let done = do_on_session(&form, &act).await;
    form.answer(done, &["session"], &about(&form))
}

async fn do_on_session(form: &Form, act: &str) -> Result<(), Problem> {
    let [id, tenant] = id_and_tenant(form)?;
    let id = SessionId { tenant, id };
    let (sessions, caller) = (&form.context.gateway().sessions, form.context.caller());
    let reason = form.reason()?;
    match act {
        "freeze" => sessions.set_frozen(caller, &id, true, &reason).await?,
        "thaw" => sessions.set_frozen(caller, &id, false, &reason).await?,
        "unlock" => {
            let seen = Mark::from_hex(form.fields.text("seen"));
            let unlocking = sessions.unlock_session(caller, &id, &reason, Some(seen));
            unlocking.await?;
        }
        _ => return Err(problem::unknown_path().await),
    }
    Ok(())
}

/// `POST /console/saga/{act}`
pub(super) async fn on_saga(Path(act): Path<String>, form: Form) -> Response {
    let done = do_on_saga(&form, &act).await;
    form.answer(done, &["saga"], &about(&form))
}

async fn do_on_saga(form: &Form, act: &str) -> Result<(), Problem> {
    let [id, tenant] = id_and_tenant(form)?;
    let id = SagaId { tenant, id };
    let (sagas, caller) = (&form.context.gateway().sagas, form.context.caller());
    // A program may end its own saga by the JSON route; an operator needs the scope admin.
    if !caller.is_admin() {
        return Err(ErrorKind::Forbidden.into());
    }
    let (act, seen) = match act {
        "complete" => {
            let reason = form.optional_reason()?;
            sagas.complete_saga(caller, &id, &reason).await?;
            return Ok(());
        }
        "abort" => {
            sagas.abort_saga(caller, &id, &form.reason()?).await?;
            return Ok(());
        }
        "retry" => (SagaAct::Retry, None),
        "skip" => (SagaAct::Skip, form.fields.get("seen").map(Mark::from_hex)),
        _ => return Err(problem::unknown_path().await),
    };
    let reason = form.reason()?;
    let acting = sagas.act_on_stuck(caller, act, &id, &reason, seen);
    acting.await?;
    Ok(())
}

/// `POST /console/tool/{act}`
pub(super) async fn on_tool(Path(act): Path<String>, form: Form) -> Response {
    let done = do_on_tool(&form, &act).await;
    let of = [("name", form.context.asked.text("name"))];
    form.answer(done, &["tool"], &of)
}

async fn do_on_tool(form: &Form, act: &str) -> Result<(), Problem> {
    let (pauses, caller) = (&form.context.gateway().pauses, form.context.caller());
    let name = identity("the id", form.context.asked.text("name").to_owned())?;
    let (pause, reason) = match act {
        "pause" => (true, form.reason()?),
        "resume" => (false, form.optional_reason()?),
        _ => return Err(problem::unknown_path().await),
    };
    pauses.set_paused(caller, &name, pause, &reason).await?;
    Ok(())
}

/// `POST /console/reconciliation/run`
pub(super) async fn run(form: Form) -> Response {
    let name = form.context.asked.text("name");
    let (reconciler, caller) = (&form.context.gateway().reconciler, form.context.caller());
    let running = reconciler.reconcile_now(caller, name, Period::default());
    let done = match timeout(WAITS, running).await {
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(_)) | Err(_) => Ok(()),
    };
    form.answer(done, &["reconciliation"], &[("name", name)])
}

/// `POST /console/anomaly/{act}`
pub(super) async fn on_anomaly(Path(act): Path<String>, form: Form) -> Response {
    let done = do_on_anomaly(&form, &act).await;
    let asked = &form.context.asked;
    let of = [("name", asked.text("name")), ("id", asked.text("id"))];
    form.answer(done, &["anomaly"], &of)
}

async fn do_on_anomaly(form: &Form, act: &str) -> Result<(), Problem> {
    let mut requests = Request::ALL.into_iter();
    let Some(request) = requests.find(|request| request.as_str() == act) else {
        return Err(problem::unknown_path().await);
    };
    let (reconciler, caller) = (&form.context.gateway().reconciler, form.context.caller());
    let asked = &form.context.asked;
    let (name, id) = (asked.text("name"), asked.text("id"));
    let reason = form.reason()?;
    let acting = reconciler.act_on_anomaly(caller, name, id, request, &reason);
    acting.await?;
    Ok(())
}

/// `POST /console/store/accept-loss`
pub(super) async fn accept_loss(form: Form) -> Response {
    let done = do_accept_loss(&form).await;
    form.answer(done, &["store"], &[])
}

async fn do_accept_loss(form: &Form) -> Result<(), Problem> {
    let (loss, caller) = (&form.context.gateway().loss, form.context.caller());
    let accepting = loss.begin_to_accept_loss(caller.clone(), form.reason()?);
    // The store's page says whether it is done, or what it waits for.
    accepting.await?;
    Ok(())
}
