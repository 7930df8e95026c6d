//! Acts on all calls or sagas of a list: first a dry run that counts them, then, confirmed, the results.

use std::time::Duration;

use axum::response::Response;
use maud::{Markup, html};
use tokio::time::{Instant, timeout_at};

use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::calls;
use crate::calls::many::{ASK, FAILED, NO_FILTERS, RETRY, SKIP, SUCCEEDED, Words};
use crate::frame::address;
use crate::frame::page;
use crate::frame::words::{self, fact, text};
use crate::saga;
use oncegate_engine::{CallAct, DryRun, Line, LineOf, Report, Reports, SagaAct, Totals};
use oncegate_http::ledger::many;
use oncegate_http::problem::Problem;
use oncegate_rules::many::Summary;
use oncegate_rules::record::Content;
use oncegate_rules::unknown::Resolution;

/// How long a page waits for the end of an act. The act goes on.
const WAITS: Duration = Duration::from_secs(10);
/// Most targets on which nothing was done that a page names.
const NAMED: usize = 50;

/// A kind of targets: its word in an address, and its name on a page.
type Kind = (&'static str, &'static str);
const CALLS: Kind = ("calls", "calls");
const SAGAS: Kind = ("sagas", "stuck sagas");

/// The acts on all calls of a list.
pub(crate) const ON_CALLS: Acts = Acts {
    path: "/console/many/calls/{act}",
    page: |_| list_page("calls"),
    rows: &[
        (ASK.0, |form| Box::pin(on_calls(form, CallAct::Probe, ASK))),
        (FAILED.0, |form| {
            let act = CallAct::Resolve(Resolution::Failed);
            Box::pin(on_calls(form, act, FAILED))
        }),
        (SUCCEEDED.0, |form| Box::pin(succeeded(form))),
    ],
};

/// The acts on all sagas of a list.
pub(crate) const ON_SAGAS: Acts = Acts {
    path: "/console/many/sagas/{act}",
    page: |_| list_page("sagas"),
    rows: &[
        (RETRY.0, |form| {
            Box::pin(on_sagas(form, SagaAct::Retry, RETRY))
        }),
        (SKIP.0, |form| Box::pin(on_sagas(form, SagaAct::Skip, SKIP))),
    ],
};

fn list_page(list: &'static str) -> Page<'static> {
    Page {
        path: vec![list],
        of: Vec::new(),
    }
}

async fn succeeded(form: &Form) -> Result<Done, Problem> {
    let resolution = Resolution::Succeeded(Content::Stored(form.result()?));
    on_calls(form, CallAct::Resolve(resolution), SUCCEEDED).await
}

async fn on_calls(form: &Form, act: CallAct, words: Words) -> Result<Done, Problem> {
    let context = &form.context;
    let filter = context.asked.query_without(&NO_FILTERS);
    let act = many::on_calls_of(&filter, act, form.reason()?)?;
    let (operator, caller) = (&context.gateway().operator, context.caller());
    if let Some(confirmed) = confirmed(form)? {
        let reports = operator.act_on_calls(caller, act, confirmed).await?;
        return Ok(Done::Page(became(form, words, CALLS.0, reports).await));
    }
    let found = operator.try_on_calls(caller, &act).await?;
    let sample = calls::table("The newest of them", &found.sample, context);
    let filter = &act.filter_json;
    let page = ask(form, words, CALLS, filter, &found, &sample);
    Ok(Done::Page(page))
}

async fn on_sagas(form: &Form, act: SagaAct, words: Words) -> Result<Done, Problem> {
    let context = &form.context;
    let act = many::on_sagas_of(context.asked.owned("tenant"), act, form.reason()?)?;
    let (operator, caller) = (&context.gateway().operator, context.caller());
    if let Some(confirmed) = confirmed(form)? {
        let reports = operator.act_on_sagas(caller, act, confirmed).await?;
        return Ok(Done::Page(became(form, words, SAGAS.0, reports).await));
    }
    let found = operator.try_on_sagas(caller, &act).await?;
    let sample = saga::table(&found.sample, context);
    let filter = &act.filter_json;
    let page = ask(form, words, SAGAS, filter, &found, &sample);
    Ok(Done::Page(page))
}

/// The targets that the dry run found and the operator confirms.
pub(crate) fn confirmed(form: &Form) -> Result<Option<Summary>, Problem> {
    let (Some(count), Some(digest)) = (form.fields.get("count"), form.fields.get("digest")) else {
        return Ok(None);
    };
    let count = count
        .parse()
        .map_err(|_| Problem::invalid_request("count must be a whole number"))?;
    let digest = digest.to_owned();
    Ok(Some(Summary { count, digest }))
}

/// Shows the targets of an act, and the form that confirms it.
fn ask<T>(
    form: &Form,
    (word, name, about): Words,
    (list, what): Kind,
    filter_json: &str,
    found: &DryRun<T>,
    sample: &Markup,
) -> Response {
    let Summary { count, digest } = &found.summary;
    let (refused, unreadable) = (found.refused, found.unreadable);
    let to = form.context.asked.to(&["many", list, word], &NO_FILTERS);
    let counted = count.to_string();
    let (reason, result) = (form.fields.text("reason"), form.fields.text("result"));
    let carried = [
        ("form", form.context.operator.form_token.as_str()),
        ("reason", reason),
        ("result", result),
        ("count", &counted),
        ("digest", digest),
    ];
    let body = html! {
        p { b { (count) " " (what) } ". Nothing has been done yet. " (about) }
        dl {
            (fact("Filter", html! { code { (text(filter_json)) } }))
            (fact("Reason", text(reason)))
            (fact("Result of each", text(result)))
            (fact("Would refuse it now", html! { @if refused > 0 { (refused) } }))
            (fact("Cannot be read, and are left alone", html! { @if unreadable > 0 { (unreadable) } }))
        }
        @if *count > 0 {
            form method="post" action=(to) {
                @for (name, value) in carried {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                }
                button type="submit" { "Do it to " (count) }
            }
        }
        (sample)
        p { a href=(list_of(form, list)) { "Back to the list" } }
    };
    page::plain(name, Some(&form.context.operator), &body)
}

/// The address of the list that the act was begun from.
fn list_of(form: &Form, list: &str) -> String {
    form.context.asked.to(&[list], &NO_FILTERS)
}

/// Shows the results of an act, as far as a page waits for them.
async fn became(form: &Form, (_, name, _): Words, list: &str, mut reports: Reports) -> Response {
    let until = Instant::now() + WAITS;
    let (mut done, mut not_done, mut totals) = (0_usize, Vec::new(), None);
    while let Ok(Some(report)) = timeout_at(until, reports.recv()).await {
        match report {
            Report::Line(line) if line.result.as_str() == "done" => done += 1,
            Report::Line(line) => not_done.push(line),
            Report::End(end) => {
                totals = Some(end);
                break;
            }
        }
    }
    let body = html! {
        @match &totals {
            Some(totals) => (ended(totals)),
            None => p { (done) " are done so far. It goes on by itself; the audit says when it has ended." },
        }
        @if !not_done.is_empty() {
            h2 { "Not done: " (not_done.len()) }
            ul { @for line in not_done.iter().take(NAMED) { li { (of_line(line)) } } }
            @if not_done.len() > NAMED { p.note { "The first " (NAMED) " are shown." } }
        }
        p { a href=(list_of(form, list)) { "Back to the list" } " · " a href=(address::to(&["audit"], &[])) { "The audit" } }
    };
    page::plain(name, Some(&form.context.operator), &body)
}

fn ended(totals: &Totals) -> Markup {
    let counts = [
        ("Done", totals.done),
        ("Changed meanwhile, and not touched", totals.changed),
        ("Refused by the rules", totals.refused),
        ("Not answered by the store: done or not", totals.unclear),
        ("Left, because the gateway was stopped", totals.left()),
    ];
    html! {
        p.done role="status" { (totals.done) " of " (totals.total) " are done. It stands in the audit under the name of your token." }
        dl {
            @for (name, count) in counts { @if count > 0 { (fact(name, count)) } }
            @for (state, count) in &totals.states { (fact("Now", html! { (words::state(state)) " " (count) })) }
        }
    }
}

fn of_line(line: &Line) -> Markup {
    html! {
        @match &line.of {
            LineOf::Call { call_id, tool } => { "call of " (words::tool(tool)) " " (words::call(*call_id)) }
            LineOf::Saga(id) => { "saga " (words::saga(&line.tenant, id)) }
        }
        " " b { (line.result.as_str()) }
        @if let Some(state) = line.state { " " (words::state(state)) }
        @if let Some(why) = &line.why { ": " (text(why)) }
    }
}
