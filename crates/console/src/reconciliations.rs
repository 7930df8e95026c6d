//! Reconciliations, and the report of one run.

mod anomaly; // one disagreement, and what to do about it
mod many; // all disagreements of a kind at once

use std::collections::BTreeMap;
use std::time::Duration;

use maud::{Markup, html};
use tokio::time::timeout;

use crate::access::context::Context;
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::things::{part, thing};
use crate::frame::words::{self, call, fact, length, moment, more, state, text, when};
use oncegate_engine::ErrorKind;
use oncegate_http::problem::Problem;
use oncegate_http::read::cursor;
use oncegate_reconcile::rules::anomaly::Listed;
use oncegate_reconcile::{Overview, Period, Report};

/// How long a page waits for a run. The run goes on, and its page shows it.
const WAITS: Duration = Duration::from_secs(2);
/// Anomalies that the first screen shows.
const EACH: u32 = 10;

/// The screen at an address; `None`: it is not one of these.
pub(crate) async fn screen(context: &Context, words: &[&str]) -> Option<Result<Screen, Problem>> {
    match words {
        ["reconciliations"] => Some(list(context).await),
        ["reconciliation"] => Some(one(context).await),
        ["anomaly"] => Some(anomaly::screen(context).await),
        _ => None,
    }
}

/// The act on a reconciliation.
const RUN: Acts = Acts {
    path: "/console/reconciliation/run",
    page: |form| Page {
        path: vec!["reconciliation"],
        of: vec![("name", form.context.asked.text("name"))],
    },
    rows: &[("run", |form| Box::pin(run(form)))],
};

/// The acts on reconciliations and on their anomalies.
pub(crate) const ACTS: [&Acts; 3] = [&RUN, &anomaly::ACTS, &many::ACTS];

async fn run(form: &Form) -> Result<Done, Problem> {
    let (name, caller) = (form.context.asked.text("name"), form.context.caller());
    let reconciler = &form.context.console.reconciler;
    let running = reconciler.reconcile_now(caller, name, Period::default());
    match timeout(WAITS, running).await {
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(_)) | Err(_) => Ok(Done::Back),
    }
}

async fn list(context: &Context) -> Result<Screen, Problem> {
    let reconciler = &context.console.reconciler;
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

async fn one(context: &Context) -> Result<Screen, Problem> {
    let (name, caller) = (context.asked.text("name"), context.caller());
    let reconciler = &context.console.reconciler;
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
    let reconciler = &context.console.reconciler;
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
            (many::forms(report, context))
        }
    })
}

fn table(name: &str, anomalies: &[Listed]) -> Markup {
    let columns = ["Kind", "State", "Act", "Call", "Effect", "What"];
    let rows = html! {
        @for listed in anomalies {
            tr {
                td { a href=(address::of_anomaly(name, &listed.id)) { (listed.kind.as_str()) } @if listed.new { " " span.mark { "new" } } }
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

/// Reconciliations whose last run failed, and anomalies of any run that are not settled.
pub(crate) async fn needs(context: &Context) -> Result<Markup, Problem> {
    let (reconciler, caller) = (&context.console.reconciler, context.caller());
    let all = match reconciler.list_reconciliations(caller).await {
        // A reconciliation looks at every tenant, so not every operator may see it.
        Err(error) if matches!(error.kind, ErrorKind::Forbidden) => return Ok(html! {}),
        all => all?,
    };
    let failed = all.iter().filter_map(|overview| {
        let report = overview.last.as_ref()?;
        let why = report.error.as_ref()?;
        let to = address::to(&["reconciliation"], &[("name", &overview.name)]);
        let head = html! { a href=(to) { "Reconciliation " (text(&overview.name)) } };
        let about = html! {
            p { "Last run " (moment(report.started_at, context.now)) }
            p.failed { (text(why)) }
        };
        Some(thing(head, about, html! {}))
    });
    let (open, has_more) = reconciler.unsettled_anomalies(caller, EACH).await?;
    let open = open.iter().map(|found| {
        let to = address::of_anomaly(&found.reconciliation, &found.listed.id);
        let head = html! { a href=(to) { "Anomaly: " (found.listed.kind.as_str()) " in " (text(&found.reconciliation)) } };
        let about = anomaly::about(found, context);
        thing(head, about, anomaly::acts(found, context))
    });
    let more = html! {
        @if has_more { p { "The newest " (EACH) " are shown." } }
        p { a href=(address::to(&["reconciliations"], &[])) { "All reconciliations" } }
    };
    Ok(html! {
        (part("Reconciliations that failed", failed.collect(), false, &html! {}))
        (part("Anomalies", open.collect(), has_more, &more))
    })
}
