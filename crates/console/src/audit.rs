//! The audit: acts of operators, newest first.

use maud::{Markup, html};

use crate::access::context::Context;
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{self, choice, state, text, when};
use oncegate_http::problem::Problem;
use oncegate_rules::audit::{Action, Audited, Target};
use oncegate_rules::record::CallId;

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let word = context.asked.text("act");
    let action = Action::ALL
        .into_iter()
        .find(|action| action.as_str() == word);
    let query = context.page_query("cursor", action)?;
    let ledger = &context.gateway().ledger;
    let (acts, next) = ledger.list_acts(context.caller(), &query).await?;
    let body = html! {
        form.filters action=(address::to(&["audit"], &[])) {
            (choice("Act", "act", Action::ALL.map(Action::as_str), word))
            button type="submit" { "Filter" }
        }
        @if acts.is_empty() { p { "None." } } @else { (table(&acts, context)) }
        (context.older("audit", "cursor", next))
    };
    Ok(Screen::new("audit", "Audit", body))
}

fn table(acts: &[Audited], context: &Context) -> Markup {
    let columns = ["When", "By token", "Act", "On", "Outcome", "Reason"];
    let rows = html! {
        @for audited in acts {
            tr {
                td { (when(audited.at, context.now)) }
                td { (text(&audited.act.by)) }
                td { b { (audited.act.action.as_str()) } }
                td { (target(&audited.act.target, &audited.act.tenant)) }
                td { (state(audited.outcome.as_str())) }
                td.free { (text(&audited.act.reason)) }
            }
        }
    };
    words::table("Acts", &columns, &[], &rows)
}

fn target(target: &Target, tenant: &str) -> Markup {
    html! {
        @match target {
            Target::Tool(name) => { "tool " (words::tool(name)) }
            Target::Session(id) => { "session " (words::session(tenant, id)) }
            Target::Saga(id) => { "saga " (words::saga(tenant, id)) }
            Target::Call { call_id, tool } => { "call of " (words::tool(tool)) " " (words::call(CallId(*call_id))) }
            Target::Anomaly { reconciliation, id } => {
                "anomaly " a href=(address::of_anomaly(reconciliation, id)) { (text(id)) } " of "
                a href=(address::to(&["reconciliation"], &[("name", reconciliation)])) { (text(reconciliation)) }
            }
            Target::Reconciliation(name) => {
                "reconciliation " a href=(address::to(&["reconciliation"], &[("name", name)])) { (text(name)) }
            }
            Target::Store => a href=(address::to(&["store"], &[])) { "the store" },
            Target::Configuration => "the configuration",
            // A digest: the audit keeps no name of who was erased.
            Target::User(digest) => { "user " code { (text(digest.get(..12).unwrap_or(digest))) } "…" },
            Target::Calls { filter, count } => { (count) " calls: " code { (text(filter)) } },
            Target::Sagas { filter, count } => { (count) " sagas: " code { (text(filter)) } },
        }
    }
}
