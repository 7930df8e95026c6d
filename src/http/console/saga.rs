//! Sagas, and one of them: its steps, what is undone, and where it is stuck.

use maud::{Markup, html};

use super::super::problem::Problem;
use super::super::sagas::compensation;
use super::context::{Context, Field};
use super::page::Screen;
use super::words::{self, fact, history, more, plain, state, text, when};
use super::{address, many};
use crate::core::many::Mark;
use crate::core::position::Position;
use crate::core::saga::{Phase, Saga, SagaId, State};
use crate::gateway::{SagaAt, SagaQuery};

pub(super) async fn list(context: &Context<'_>) -> Result<Screen, Problem> {
    let word = context.asked.text("state");
    let query = SagaQuery {
        tenant: context.named_tenant()?,
        state: State::ALL.into_iter().find(|state| state.as_str() == word),
        before: context.before()?,
        limit: context.limit()?,
    };
    let sagas = &context.http.gateway.sagas;
    let (found, next) = sagas.list_sagas(&context.person.caller, &query).await?;
    let next = next.map(Position::to_cursor);
    let next = next.map(|cursor| context.asked.with(&["sagas"], "cursor", &cursor));
    let body = html! {
        form.filters action=(address::to(&["sagas"], &[])) {
            label { "State" select name="state" {
                option value="" { "any" }
                @for state in State::ALL { option value=(state.as_str()) selected[state.as_str() == word] { (state.as_str()) } }
            } }
            @if context.is_admin() {
                label { "Tenant" input type="text" name="tenant" value=(context.asked.text("tenant")); }
            }
            button type="submit" { "Filter" }
        }
        @if found.is_empty() { p { "None." } } @else { (many::of_sagas(context)) (table(&found, context)) }
        (more(next))
    };
    Ok(Screen {
        title: "Sagas".into(),
        tab: "sagas",
        body,
    })
}

/// A table of sagas.
pub(super) fn table(sagas: &[Saga], context: &Context<'_>) -> Markup {
    html! {
        div.wide role="region" aria-label="Sagas" tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "State" } th scope="col" { "Saga" } th scope="col" { "Begun" }
                    th scope="col" { "Trouble" }
                    @if context.is_admin() { th.less scope="col" { "Tenant" } }
                } }
                tbody {
                    @for saga in sagas {
                        tr {
                            td { (state(saga.state().as_str())) }
                            td { (words::saga(&saga.id.tenant, &saga.id.id)) }
                            td { (when(saga.created_at, context.now)) }
                            td.free { @if let Some(trouble) = &saga.trouble { (text(&trouble.why)) } }
                            @if context.is_admin() { td.less { (text(&saga.id.tenant)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The saga that an address names.
pub(super) fn id(context: &Context<'_>) -> Result<SagaId, Problem> {
    Ok(SagaId::new(context.tenant()?, context.asked.text("id")))
}

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    let sagas = &context.http.gateway.sagas;
    let at = sagas
        .find_saga(&context.person.caller, &id(context)?)
        .await?;
    let saga = &at.saga;
    let deadline = saga
        .deadline
        .map_or_else(|| html! {}, |at| when(at, context.now));
    let next = saga
        .work
        .due
        .at()
        .map_or_else(|| html! {}, |at| when(at, context.now));
    let body = html! {
        p { (state(saga.state().as_str())) @if saga.overdue { " " span.mark { "overdue" } } }
        @if let Some(trouble) = &saga.trouble {
            p.failed {
                (text(&trouble.why))
                @if let Some(call_id) = trouble.call_id { " Call " (words::call(call_id)) }
            }
        }
        dl {
            (fact("Tenant", &plain(&saga.id.tenant)))
            (fact("Begun", &when(saga.created_at, context.now)))
            (fact("Changed", &when(saga.updated_at, context.now)))
            (fact("Deadline", &deadline))
            (fact("Worked on next", &next))
            (fact("Failed tries in a row", &html! { (saga.work.tries) }))
            (fact("Reason", &plain(&saga.reason)))
        }
        section.acts aria-label="What you may do" { (acts(saga, context)) (context.may_not_act()) }
        section { h2 { "Its calls, in their order" } (steps(&at)) }
        section { h2 { "What happened" } (history(&saga.events, context.now)) }
    };
    Ok(Screen {
        title: format!("Saga {}: {}", saga.id.id, saga.state().as_str()),
        tab: "sagas",
        body,
    })
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
pub(super) fn acts(saga: &Saga, context: &Context<'_>) -> Markup {
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
                &[Field::Reason, Field::Seen(&Mark::of_saga(saga).to_hex())],
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
