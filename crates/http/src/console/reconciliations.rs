//! Reconciliations, and the report of one run.

use std::collections::BTreeMap;
use std::time::Duration;

use maud::{Markup, html};

use super::super::problem::Problem;
use super::super::read::cursor;
use super::context::Context;
use super::page::Screen;
use super::words::{self, call, fact, length, moment, more, state, text, when};
use super::{address, anomaly};
use oncegate_engine::reconcile::{Overview, Report};
use oncegate_rules::reconcile::anomaly::Listed;

pub(super) async fn list(context: &Context) -> Result<Screen, Problem> {
    let reconciler = &context.gateway().reconciler;
    let all = reconciler.list_reconciliations(context.caller()).await?;
    let columns = ["Name", "Last run", "Found", "Next run", "Looked until"];
    let rows = html! { @for overview in &all { (row(overview, context)) } };
    let body = html! {
        @if all.is_empty() { p { "None is configured." } } @else {
            (words::table("Reconciliations", &columns, &[], &rows))
        }
    };
    Ok(Screen::new("reconciliations", "Reconciliations", body))
}

fn row(overview: &Overview, context: &Context) -> Markup {
    let last = overview.last.as_ref();
    html! {
        tr {
            td { a href=(to(&overview.name)) { (text(&overview.name)) } }
            td { @if let Some(report) = last { (state(report.state.as_str())) " " (moment(report.started_at, context.now)) } @else { "never" } }
            td { @if let Some(report) = last { (counts(&report.counts)) } }
            td { @if let Some(at) = overview.next_run_at { (when(at, context.now)) } @else { "by request" } }
            td { @if let Some(at) = overview.looked_until { (when(at, context.now)) } }
        }
    }
}

fn to(name: &str) -> String {
    address::to(&["reconciliation"], &[("name", name)])
}

fn counts(counts: &BTreeMap<String, u64>) -> Markup {
    let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    html! { @if counts.is_empty() { "nothing" } @else { (text(&counts)) } }
}

pub(super) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let (name, caller) = (context.asked.text("name"), context.caller());
    let reconciler = &context.gateway().reconciler;
    let all = reconciler.list_reconciliations(caller).await?;
    let overview = all.iter().find(|overview| overview.name == name);
    let to_run = address::to(&["reconciliation", "run"], &[("name", name)]);
    let run = context.button(&to_run, "Run it now");
    let body = match overview {
        Some(overview) if overview.last.is_none() => html! { (run) p { "It has not run yet." } },
        _ => {
            let run_id = context.asked.get("run");
            let report = reconciler.find_report(caller, name, run_id).await?;
            html! { (run) (shown(&report, context).await?) }
        }
    };
    let title = format!("Reconciliation {name}");
    Ok(Screen::new("reconciliations", title, body))
}

/// A report, and a part of its anomalies as they are now.
async fn shown(report: &Report, context: &Context) -> Result<Markup, Problem> {
    let from = cursor(context.asked.owned("cursor"), |text| text.parse().ok())?;
    let from: usize = from.unwrap_or_default();
    let limit = context.limit()? as usize;
    let reconciler = &context.gateway().reconciler;
    let (anomalies, next) = reconciler.anomalies_of(report, from, limit).await?;
    let next = next.map(|cursor| {
        let (name, run) = (report.name.as_str(), report.run.as_str());
        let of = [
            ("name", name),
            ("run", run),
            ("cursor", &cursor.to_string()),
        ];
        address::to(&["reconciliation"], &of)
    });
    let took = report
        .finished_at
        .and_then(|end| u64::try_from(end - report.started_at).ok());
    let took = took.map(|micros| length(Duration::from_micros(micros)));
    Ok(html! {
        p { (state(report.state.as_str())) " " (moment(report.started_at, context.now)) " by " (text(&report.by)) }
        @if let Some(why) = &report.error { p.failed { (text(why)) } }
        @for source in &report.suspect { p.failed { "Suspect source, so nothing is undone: " (text(source)) } }
        dl {
            (fact("Looked at", html! { (moment(report.since, context.now)) " to " (moment(report.until, context.now)) }))
            (fact("Run", text(&report.run)))
            (fact("Took", took.unwrap_or_default()))
            (fact("Calls", report.calls))
            (fact("Items of the sources", report.items))
            (fact("Matched", report.matched))
            (fact("Not decided", report.undecided))
            (fact("Found", counts(&report.counts)))
            (fact("Not found before", counts(&report.new)))
        }
        section {
            h2 { "Where ledger and sources disagree" }
            @if anomalies.is_empty() { p { "Nowhere." } } @else { (table(&report.name, &anomalies)) }
            (more(next))
        }
    })
}

fn table(name: &str, anomalies: &[Listed]) -> Markup {
    let columns = ["Kind", "State", "Act", "Call", "Effect", "What"];
    let rows = html! {
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
    };
    words::table("Anomalies", &columns, &["Key"], &rows)
}
