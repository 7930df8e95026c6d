//! Reconciliations, and the report of one run.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::super::problem::Problem;
use super::super::read::cursor;
use super::context::Context;
use super::page::Screen;
use super::words::{call, fact, length, moment, more, plain, state, text, when};
use super::{address, anomaly};
use crate::core::reconcile::anomaly::Listed;
use crate::gateway::reconcile::{Overview, Report, RunState};

pub(super) async fn list(context: &Context<'_>) -> Result<Screen, Problem> {
    let reconciler = &context.http.gateway.reconciler;
    let all = reconciler
        .list_reconciliations(&context.person.caller)
        .await?;
    let body = html! {
        @if all.is_empty() { p { "None is configured." } } @else {
            div.wide role="region" aria-label="Reconciliations" tabindex="0" { table {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Last run" } th scope="col" { "Found" }
                    th scope="col" { "Next run" } th scope="col" { "Looked until" }
                } }
                tbody { @for overview in &all { (row(overview, context)) } }
            } }
        }
    };
    Ok(Screen {
        title: "Reconciliations".into(),
        tab: "reconciliations",
        body,
    })
}

fn row(overview: &Overview, context: &Context<'_>) -> Markup {
    let last = overview.last.as_ref();
    html! {
        tr {
            td { a href=(to(&overview.name)) { (text(&overview.name)) } }
            td { @if let Some(report) = last { (state(run_state(report))) " " (moment(report.started_at, context.now)) } @else { "never" } }
            td { @if let Some(report) = last { (counts(&report.counts)) } }
            td { @if let Some(at) = overview.next_run_at { (when(at, context.now)) } @else { "by request" } }
            td { @if let Some(at) = overview.looked_until { (when(at, context.now)) } }
        }
    }
}

fn to(name: &str) -> String {
    address::to(&["reconciliation"], &[("name", name)])
}

fn run_state(report: &Report) -> &'static str {
    match report.state {
        RunState::Running => "running",
        RunState::Done => "done",
        RunState::Failed => "failed",
    }
}

fn counts(counts: &BTreeMap<String, u64>) -> Markup {
    let said: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    html! { @if said.is_empty() { "nothing" } @else { (text(&said.join(", "))) } }
}

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    let (name, caller) = (context.asked.text("name"), &context.person.caller);
    let reconciler = &context.http.gateway.reconciler;
    let all = reconciler.list_reconciliations(caller).await?;
    let overview = all.iter().find(|overview| overview.name == name);
    let run = html! { (context.button(&address::to(&["reconciliation", "run"], &[("name", name)]), "Run it now")) };
    let body = match overview {
        Some(overview) if overview.last.is_none() => html! { (run) p { "It has not run yet." } },
        _ => {
            let report = reconciler
                .find_report(caller, name, context.asked.get("run"))
                .await?;
            html! { (run) (shown(&report, context).await?) }
        }
    };
    Ok(Screen {
        title: format!("Reconciliation {name}"),
        tab: "reconciliations",
        body,
    })
}

/// A report, and a part of its anomalies as they are now.
async fn shown(report: &Report, context: &Context<'_>) -> Result<Markup, Problem> {
    let from: usize =
        cursor(context.asked.owned("cursor"), |text| text.parse().ok())?.unwrap_or_default();
    let limit = context.limit()? as usize;
    let end = report.anomalies.len().min(from.saturating_add(limit));
    let mut anomalies = report.anomalies.get(from..end).unwrap_or_default().to_vec();
    context
        .http
        .gateway
        .reconciler
        .refresh(&mut anomalies)
        .await?;
    let next = (end < report.anomalies.len()).then(|| {
        address::to(
            &["reconciliation"],
            &[
                ("name", &report.name),
                ("run", &report.run),
                ("cursor", &end.to_string()),
            ],
        )
    });
    Ok(html! {
        p { (state(run_state(report))) " " (moment(report.started_at, context.now)) " by " (text(&report.by)) }
        @if let Some(why) = &report.error { p.failed { (text(why)) } }
        dl {
            (fact("Looked at", &html! { (moment(report.since, context.now)) " to " (moment(report.until, context.now)) }))
            (fact("Run", &plain(&report.run)))
            (fact("Took", &took(report)))
            (fact("Calls", &html! { (report.calls) }))
            (fact("Items of the sources", &html! { (report.items) }))
            (fact("Matched", &html! { (report.matched) }))
            (fact("Not decided", &html! { (report.undecided) }))
            (fact("Found", &counts(&report.counts)))
            (fact("Not found before", &counts(&report.new)))
        }
        section {
            h2 { "Where ledger and sources disagree" }
            @if anomalies.is_empty() { p { "Nowhere." } } @else { (table(&report.name, &anomalies)) }
            (more(next))
        }
    })
}

fn took(report: &Report) -> Markup {
    let took = report
        .finished_at
        .and_then(|end| u64::try_from(end - report.started_at).ok());
    took.map_or_else(
        || html! {},
        |micros| html! { (length(std::time::Duration::from_micros(micros))) },
    )
}

fn table(name: &str, anomalies: &[Listed]) -> Markup {
    html! {
        div.wide role="region" aria-label="Anomalies" tabindex="0" { table {
            thead { tr {
                th scope="col" { "Kind" } th scope="col" { "State" } th scope="col" { "Act" } th scope="col" { "Call" }
                th scope="col" { "Effect" } th scope="col" { "What" } th.less scope="col" { "Key" }
            } }
            tbody {
                @for listed in anomalies {
                    tr {
                        td { a href=(anomaly::to(name, &listed.id)) { (listed.kind.as_str()) } @if listed.new { " " span.mark { "new" } } }
                        td { (state(listed.state.as_str())) }
                        td { (listed.action.as_str()) }
                        td { @if let Some(call_id) = listed.call() { (call(call_id)) } }
                        td.free { (text(&listed.effect)) }
                        td.free { (text(&listed.detail)) @if let Some(why) = &listed.error { p.failed { (text(why)) } } }
                        td.less { (text(&listed.key)) }
                    }
                }
            }
        } }
    }
}
