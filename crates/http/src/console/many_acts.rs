//! Acts on all calls or sagas of a list: first a dry run that counts them, then, confirmed, the results.

use std::time::Duration;

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use tokio::time::{Instant, timeout_at};

use super::super::many;
use super::super::problem::{self, Problem};
use super::address;
use super::form::Form;
use super::many::{ASK, FAILED, NO_FILTERS, RETRY, SKIP, SUCCEEDED, Words};
use super::words::{self, fact, text};
use super::{acts, calls, page, saga};
use oncegate_engine::{CallAct, DryRun, Line, LineOf, Report, Reports, SagaAct, Totals};
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

/// `POST /console/many/calls/{act}`
pub(super) async fn on_calls(Path(act): Path<String>, form: Form) -> Response {
    form.page(act_on_calls(&form, &act).await)
}

async fn act_on_calls(form: &Form, act: &str) -> Result<Response, Problem> {
    let (act, words) = match act {
        "probe" => (CallAct::Probe, ASK),
        "failed" => (CallAct::Resolve(Resolution::Failed), FAILED),
        "succeeded" => {
            let result = acts::result(form.fields.text("result"))?;
            let resolution = Resolution::Succeeded(Content::Kept(result));
            (CallAct::Resolve(resolution), SUCCEEDED)
        }
        _ => return Err(problem::unknown_path().await),
    };
    let context = &form.context;
    let filter = context.asked.query_without(&NO_FILTERS);
    let act = many::on_calls_of(&filter, act, form.reason()?)?;
    let (operator, caller) = (&context.gateway().operator, context.caller());
    if let Some(confirmed) = confirmed(form)? {
        let reports = operator.act_on_calls(caller, act, confirmed).await?;
        return Ok(became(form, words, CALLS.0, reports).await);
    }
    let found = operator.try_on_calls(caller, &act).await?;
    let sample = calls::table("The newest of them", &found.sample, context);
    let filter = &act.filter_json;
    Ok(ask(form, words, CALLS, filter, &found, &sample))
}

/// `POST /console/many/sagas/{act}`
pub(super) async fn on_sagas(Path(act): Path<String>, form: Form) -> Response {
    form.page(act_on_sagas(&form, &act).await)
}

async fn act_on_sagas(form: &Form, act: &str) -> Result<Response, Problem> {
    let (act, words) = match act {
        "retry" => (SagaAct::Retry, RETRY),
        "skip" => (SagaAct::Skip, SKIP),
        _ => return Err(problem::unknown_path().await),
    };
    let context = &form.context;
    let act = many::on_sagas_of(context.asked.owned("tenant"), act, form.reason()?)?;
    let (operator, caller) = (&context.gateway().operator, context.caller());
    if let Some(confirmed) = confirmed(form)? {
        let reports = operator.act_on_sagas(caller, act, confirmed).await?;
        return Ok(became(form, words, SAGAS.0, reports).await);
    }
    let found = operator.try_on_sagas(caller, &act).await?;
    let sample = saga::table(&found.sample, context);
    let filter = &act.filter_json;
    Ok(ask(form, words, SAGAS, filter, &found, &sample))
}

/// The targets that the dry run found and the operator confirms.
fn confirmed(form: &Form) -> Result<Option<Summary>, Problem> {
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
    let kept = [
        ("form", form.context.person.form_token.as_str()),
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
                @for (name, value) in kept {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                }
                button type="submit" { "Do it to " (count) }
            }
        }
        (sample)
        p { a href=(list_of(form, list)) { "Back to the list" } }
    };
    page::plain(name, Some(&form.context.person), &body)
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
    page::plain(name, Some(&form.context.person), &body)
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
