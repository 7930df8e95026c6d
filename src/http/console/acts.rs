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
use super::form::Form;
use super::{call, page};
use crate::core::many::Mark;
use crate::core::reconcile::anomaly::Request;
use crate::core::record::{CallId, Content};
use crate::core::saga::SagaId;
use crate::core::session::SessionId;
use crate::core::unknown::Resolution;
use crate::gateway::ErrorKind;
use crate::gateway::reconcile::Period;

/// How long a page waits for a run of a reconciliation. The run goes on, and its page shows it.
const WAITS: Duration = Duration::from_secs(2);

/// What a form is about: the parameters of its address.
struct About {
    id: String,
    tenant: String,
}

impl About {
    fn of(uri: &Uri, form: &Form) -> Result<Self, Problem> {
        let asked = Asked::read(uri.query().unwrap_or_default().as_bytes());
        let tenant = asked.owned("tenant");
        let tenant = tenant.unwrap_or_else(|| form.person.caller.tenant.clone());
        let id = asked.get("id").or(asked.get("name")).unwrap_or_default();
        Ok(Self {
            id: identity("the id", id.to_owned())?,
            tenant: identity("tenant", tenant)?,
        })
    }

    fn parameters(&self) -> [(&str, &str); 2] {
        [("id", &self.id), ("tenant", &self.tenant)]
    }
}

/// `POST /console/calls/{id}/{act}`
pub(super) async fn on_call(
    State(http): State<Http>,
    Path((id, act)): Path<(String, String)>,
    form: Form,
) -> Response {
    let call_id = match call::id_of(&id) {
        Ok(call_id) => call_id,
        Err(problem) => return page::failure(&problem, Some(&form.person.around())),
    };
    if act == "verify" {
        return call::verify(&http, &form.person, call_id).await;
    }
    let done = do_on_call(&http, &form, call_id, &act).await;
    form.answer(done, &["calls", &call_id.to_string()], &[])
}

async fn do_on_call(http: &Http, form: &Form, call_id: CallId, act: &str) -> Result<(), Problem> {
    let (gateway, caller) = (&http.gateway, &form.person.caller);
    let resolution = match act {
        "succeeded" => Resolution::Succeeded(Content::Kept(result(form.fields.text("result"))?)),
        "failed" => Resolution::Failed,
        "compensate" => {
            let reason = form.reason()?;
            gateway.sagas.compensate(caller, call_id, &reason).await?;
            return Ok(());
        }
        "probe" => {
            let reason = form.reason()?;
            gateway.operator.probe(caller, call_id, &reason).await?;
            return Ok(());
        }
        _ => return Err(problem::unknown_path().await),
    };
    let (operator, reason) = (&gateway.operator, form.reason()?);
    // The same act means something else for a call that runs again or is being undone since.
    let seen = Some(Mark::from_hex(form.fields.text("seen")));
    operator
        .resolve(caller, call_id, &reason, &resolution, seen)
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
pub(super) async fn on_session(
    State(http): State<Http>,
    Path(act): Path<String>,
    uri: Uri,
    form: Form,
) -> Response {
    let about = match About::of(&uri, &form) {
        Ok(about) => about,
        Err(problem) => return form.answer(Err(problem), &["sessions"], &[]),
    };
    let done = do_on_session(&http, &form, &about, &act).await;
    form.answer(done, &["session"], &about.parameters())
}

async fn do_on_session(http: &Http, form: &Form, about: &About, act: &str) -> Result<(), Problem> {
    let (sessions, caller) = (&http.gateway.sessions, &form.person.caller);
    let id = SessionId {
        tenant: about.tenant.clone(),
        id: about.id.clone(),
    };
    let reason = form.reason()?;
    match act {
        "freeze" => sessions.freeze_session(caller, &id, &reason).await?,
        "thaw" => sessions.thaw_session(caller, &id, &reason).await?,
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
pub(super) async fn on_saga(
    State(http): State<Http>,
    Path(act): Path<String>,
    uri: Uri,
    form: Form,
) -> Response {
    let about = match About::of(&uri, &form) {
        Ok(about) => about,
        Err(problem) => return form.answer(Err(problem), &["sagas"], &[]),
    };
    let done = do_on_saga(&http, &form, &about, &act).await;
    form.answer(done, &["saga"], &about.parameters())
}

async fn do_on_saga(http: &Http, form: &Form, about: &About, act: &str) -> Result<(), Problem> {
    let (sagas, caller) = (&http.gateway.sagas, &form.person.caller);
    // A program may end its own saga; here a person does.
    if !caller.is_admin() {
        return Err(ErrorKind::Forbidden.into());
    }
    let id = SagaId::new(&about.tenant, &about.id);
    match act {
        "complete" => {
            sagas
                .complete_saga(caller, &id, &form.optional_reason()?)
                .await?
        }
        "abort" => sagas.abort_saga(caller, &id, &form.reason()?).await?,
        "retry" => sagas.retry_saga(caller, &id, &form.reason()?).await?,
        "skip" => {
            let seen = form.fields.get("seen").map(Mark::from_hex);
            sagas.skip_stuck(caller, &id, &form.reason()?, seen).await?
        }
        _ => return Err(problem::unknown_path().await),
    };
    Ok(())
}

/// `POST /console/tool/{act}`
pub(super) async fn on_tool(
    State(http): State<Http>,
    Path(act): Path<String>,
    uri: Uri,
    form: Form,
) -> Response {
    let done = do_on_tool(&http, &form, &uri, &act).await;
    let name = Asked::read(uri.query().unwrap_or_default().as_bytes());
    form.answer(done, &["tool"], &[("name", name.text("name"))])
}

async fn do_on_tool(http: &Http, form: &Form, uri: &Uri, act: &str) -> Result<(), Problem> {
    let (pauses, caller) = (&http.gateway.pauses, &form.person.caller);
    let About { id: name, .. } = About::of(uri, form)?;
    match act {
        "pause" => pauses.pause_tool(caller, &name, &form.reason()?).await?,
        "resume" => {
            pauses
                .resume_tool(caller, &name, &form.optional_reason()?)
                .await?
        }
        _ => return Err(problem::unknown_path().await),
    };
    Ok(())
}

/// `POST /console/reconciliation/run`
pub(super) async fn run(State(http): State<Http>, uri: Uri, form: Form) -> Response {
    let name = Asked::read(uri.query().unwrap_or_default().as_bytes());
    let name = name.text("name");
    let (reconciler, caller) = (&http.gateway.reconciler, &form.person.caller);
    let asked = Period {
        since: None,
        until: None,
    };
    let running = timeout(WAITS, reconciler.reconcile_now(caller, name, asked)).await;
    let done = match running {
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(_)) | Err(_) => Ok(()),
    };
    form.answer(done, &["reconciliation"], &[("name", name)])
}

/// `POST /console/anomaly/{act}`
pub(super) async fn on_anomaly(
    State(http): State<Http>,
    Path(act): Path<String>,
    uri: Uri,
    form: Form,
) -> Response {
    let asked = Asked::read(uri.query().unwrap_or_default().as_bytes());
    let of = [("name", asked.text("name")), ("id", asked.text("id"))];
    let done = do_on_anomaly(&http, &form, of, &act).await;
    form.answer(done, &["anomaly"], &of)
}

async fn do_on_anomaly(
    http: &Http,
    form: &Form,
    [(_, name), (_, id)]: [(&str, &str); 2],
    act: &str,
) -> Result<(), Problem> {
    let asked = Request::ALL.into_iter().find(|asked| asked.as_str() == act);
    let Some(asked) = asked else {
        return Err(problem::unknown_path().await);
    };
    let (reconciler, caller) = (&http.gateway.reconciler, &form.person.caller);
    let reason = form.reason()?;
    let acting = reconciler.act_on_anomaly(caller, name, id, asked, &reason);
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
