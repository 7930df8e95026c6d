//! What persons have done, newest first.

use maud::{Markup, html};

use super::super::problem::Problem;
use super::context::Context;
use super::page::Screen;
use super::words::{self, more, state, text, when};
use super::{address, anomaly};
use crate::core::audit::{Audited, Deed, Target};
use crate::core::position::Position;
use crate::core::record::CallId;
use crate::gateway::AuditQuery;

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    let word = context.asked.text("act");
    let deed = Deed::ALL.into_iter().find(|deed| deed.as_str() == word);
    let query = AuditQuery {
        tenant: context.named_tenant()?,
        deed,
        before: context.before()?,
        limit: context.limit()?,
    };
    let ledger = &context.http.gateway.ledger;
    let (acts, next) = ledger.list_acts(&context.person.caller, &query).await?;
    let next = next.map(Position::to_cursor);
    let next = next.map(|cursor| context.asked.with(&["audit"], "cursor", &cursor));
    let body = html! {
        form.filters action=(address::to(&["audit"], &[])) {
            label { "Act" select name="act" {
                option value="" { "any" }
                @for deed in Deed::ALL { option value=(deed.as_str()) selected[deed.as_str() == word] { (deed.as_str()) } }
            } }
            button type="submit" { "Filter" }
        }
        @if acts.is_empty() { p { "None." } } @else { (table(&acts, context)) }
        (more(next))
    };
    Ok(Screen {
        title: "Audit".into(),
        tab: "audit",
        body,
    })
}

fn table(acts: &[Audited], context: &Context<'_>) -> Markup {
    html! {
        div.wide role="region" aria-label="Acts" tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "When" } th scope="col" { "By token" } th scope="col" { "Act" }
                    th scope="col" { "On" } th scope="col" { "Outcome" } th scope="col" { "Reason" }
                } }
                tbody {
                    @for audited in acts {
                        tr {
                            td { (when(audited.at, context.now)) }
                            td { (text(&audited.act.by)) }
                            td { b { (audited.act.deed.as_str()) } }
                            td { (target(&audited.act.target, &audited.act.tenant)) }
                            td { (state(audited.outcome.as_str())) }
                            td.free { (text(&audited.act.reason)) }
                        }
                    }
                }
            }
        }
    }
}

fn target(target: &Target, tenant: &str) -> Markup {
    html! {
        @match target {
            Target::Tool(name) => { "tool " (words::tool(name)) }
            Target::Session(id) => { "session " (words::session(tenant, id)) }
            Target::Saga(id) => { "saga " (words::saga(tenant, id)) }
            Target::Call { call_id, tool } => { "call of " (words::tool(tool)) " " (words::call(CallId(*call_id))) }
            Target::Anomaly { reconciliation, id } => {
                "anomaly " a href=(anomaly::to(reconciliation, id)) { (text(id)) } " of "
                a href=(address::to(&["reconciliation"], &[("name", reconciliation)])) { (text(reconciliation)) }
            }
            Target::Reconciliation(name) => {
                "reconciliation " a href=(address::to(&["reconciliation"], &[("name", name)])) { (text(name)) }
            }
            Target::Store => a href=(address::to(&["store"], &[])) { "the store" },
            Target::Calls { filter, count } => { (count) " calls: " code { (text(filter)) } },
            Target::Sagas { filter, count } => { (count) " sagas: " code { (text(filter)) } },
        }
    }
}
