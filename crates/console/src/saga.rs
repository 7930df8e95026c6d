//! The list of sagas, and one saga: its calls, their compensations, and where it is stuck.

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::calls::many;
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{self, choice, fact, history, state, text, when};
use oncegate_engine::{ErrorKind, SagaAct, SagaAt};
use oncegate_http::compensation;
use oncegate_http::problem::Problem;
use oncegate_rules::many::SeenVersion;
use oncegate_rules::saga::{Phase, Saga, SagaId, State};

pub(crate) async fn list(context: &Context) -> Result<Screen, Problem> {
    let word = context.asked.text("state");
    let filter = State::ALL.into_iter().find(|state| state.as_str() == word);
    let query = context.page_query("cursor", filter)?;
    let sagas = &context.gateway().sagas;
    let (found, next) = sagas.list_sagas(context.caller(), &query).await?;
    let body = html! {
        form.filters action=(address::to(&["sagas"], &[])) {
            (choice("State", "state", State::ALL.map(State::as_str), word))
            @if context.is_admin() {
                label { "Tenant" input type="text" name="tenant" value=(context.asked.text("tenant")); }
            }
            button type="submit" { "Filter" }
        }
        @if found.is_empty() { p { "None." } } @else { (many::of_sagas(context)) (table(&found, context)) }
        (context.older("sagas", "cursor", next))
    };
    Ok(Screen::new("sagas", "Sagas", body))
}

/// A table of sagas.
pub(crate) fn table(sagas: &[Saga], context: &Context) -> Markup {
    let columns = ["State", "Saga", "Begun", "Trouble"];
    let rows = html! {
        @for saga in sagas {
            tr {
                td { (state(saga.state().as_str())) }
                td { (words::saga(&saga.id.tenant, &saga.id.id)) }
                td { (when(saga.created_at, context.now)) }
                td.free { @if let Some(trouble) = &saga.trouble { (text(&trouble.why)) } }
                @if context.is_admin() { td.less { (text(&saga.id.tenant)) } }
            }
        }
    };
    words::table("Sagas", &columns, context.tenant_column(), &rows)
}

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let sagas = &context.gateway().sagas;
    let id = SagaId::new(context.tenant()?, context.asked.text("id"));
    let at = sagas.find_saga(context.caller(), &id).await?;
    let saga = &at.saga;
    let deadline = saga.deadline.map(|at| when(at, context.now));
    let next = saga.work.due.at().map(|at| when(at, context.now));
    let body = html! {
        p { (state(saga.state().as_str())) @if saga.overdue { " " span.mark { "overdue" } } }
        @if let Some(trouble) = &saga.trouble {
            p.failed {
                (text(&trouble.why))
                @if let Some(call_id) = trouble.call_id { " Call " (words::call(call_id)) }
            }
        }
        dl {
            (fact("Tenant", text(&saga.id.tenant)))
            (fact("Begun", when(saga.created_at, context.now)))
            (fact("Changed", when(saga.updated_at, context.now)))
            (fact("Deadline", deadline.unwrap_or_default()))
            (fact("Worked on next", next.unwrap_or_default()))
            (fact("Failed tries in a row", saga.work.tries))
            (fact("Reason", text(&saga.reason)))
        }
        (context.acts(&acts(saga, context)))
        section { h2 { "Its calls, in their order" } (steps(&at)) }
        section { h2 { "What happened" } (history(&saga.events, context.now)) }
    };
    let title = format!("Saga {}: {}", saga.id.id, saga.state().as_str());
    Ok(Screen::new("sagas", title, body))
}

fn steps(at: &SagaAt) -> Markup {
    html! {
        ol.events {
            @for record in at.calls() {
                li {
                    (state(record.state.as_str())) " " (words::tool(&record.intent.tool)) " " (words::call(record.intent.call_id))
                    p.note {
                        "Undone: " (compensation(record, at.compensation_of(record)))
                        @if let Some(by) = record.compensation() { ", by " (words::tool(&by.tool)) " " (words::call(by.call_id)) }
                    }
                }
            }
        }
        @if at.is_cut {
            p.note {
                "There are more calls, or some that cannot be read: "
                a href=(address::to(&["calls"], &[("saga_id", &at.saga.id.id)])) { "all calls of the saga" }
            }
        }
    }
}

/// The acts that fit a saga's state.
pub(crate) fn acts(saga: &Saga, context: &Context) -> Markup {
    let of = [
        ("id", saga.id.id.as_str()),
        ("tenant", saga.id.tenant.as_str()),
    ];
    let to = |act| address::to(&["saga", act], &of);
    let may_end = matches!(saga.phase, Phase::Open | Phase::OpenAtLoss);
    let may_go_on = matches!(saga.phase, Phase::Stuck { .. });
    html! {
        @if may_go_on {
            (context.act(
                &to("retry"), "Try to undo it again",
                "What is stuck is undone with the same key as before.", &[Field::Reason],
            ))
            (context.act(
                &to("skip"), "Skip what is stuck",
                "The call in trouble is not undone: its effect stands. The saga goes on with the others.",
                &[Field::Reason, Field::Seen(&SeenVersion::of_saga(saga).to_hex())],
            ))
        }
        @if may_end {
            (context.act(
                &to("abort"), "Abort: undo its calls",
                "Each of its calls is undone, the newest first.", &[Field::Reason],
            ))
            (context.act(
                &to("complete"), "Complete: keep its calls",
                "None of its calls is undone any more.", &[Field::OptionalReason],
            ))
        }
    }
}

/// The acts on a saga.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/saga/{act}",
    page: |form| Page {
        path: vec!["saga"],
        of: form.id_and_tenant().to_vec(),
    },
    rows: &[
        ("complete", |form| Box::pin(complete(form))),
        ("abort", |form| Box::pin(abort(form))),
        ("retry", |form| Box::pin(act(form, SagaAct::Retry, None))),
        ("skip", |form| Box::pin(skip(form))),
    ],
};

/// The saga of an act.
///
/// A program may end its own saga by the JSON route; an operator needs the scope admin.
fn id_in(form: &Form) -> Result<SagaId, Problem> {
    let [id, tenant] = form.checked_id_and_tenant()?;
    if !form.context.caller().is_admin() {
        return Err(ErrorKind::Forbidden.into());
    }
    Ok(SagaId { tenant, id })
}

async fn complete(form: &Form) -> Result<Done, Problem> {
    let (id, reason) = (id_in(form)?, form.optional_reason()?);
    let (sagas, caller) = (&form.context.gateway().sagas, form.context.caller());
    sagas.complete_saga(caller, &id, &reason).await?;
    Ok(Done::Back)
}

async fn abort(form: &Form) -> Result<Done, Problem> {
    let (id, reason) = (id_in(form)?, form.reason()?);
    let (sagas, caller) = (&form.context.gateway().sagas, form.context.caller());
    sagas.abort_saga(caller, &id, &reason).await?;
    Ok(Done::Back)
}

async fn skip(form: &Form) -> Result<Done, Problem> {
    let seen = form.fields.get("seen").map(SeenVersion::from_hex);
    act(form, SagaAct::Skip, seen).await
}

async fn act(form: &Form, act: SagaAct, seen: Option<SeenVersion>) -> Result<Done, Problem> {
    let (id, reason) = (id_in(form)?, form.reason()?);
    let (sagas, caller) = (&form.context.gateway().sagas, form.context.caller());
    let acting = sagas.act_on_stuck(caller, act, &id, &reason, seen);
    acting.await?;
    Ok(Done::Back)
}
