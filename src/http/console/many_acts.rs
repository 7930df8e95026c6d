//! Acts on all that a list shows: first how many these are, and, when that is confirmed, what became of them.

use std::time::Duration;

use axum::response::Response;
use maud::{Markup, html};
use tokio::time::{Instant, timeout_at};

use super::super::many;
use super::super::problem::{self, Problem};
use super::address;
use super::context::Context;
use super::form::{Act, Form};
use super::many::{ASK, FAILED, NO_FILTERS, RETRY, SKIP, SUCCEEDED, Words};
use super::words::{self, fact, plain, text};
use super::{acts, calls, page, saga};
use crate::core::many::Summary;
use crate::core::record::Content;
use crate::core::unknown::Resolution;
use crate::gateway::{CallAct, DryRun, Line, LineOf, Report, Reports, SagaAct, Totals};

/// How long a page waits for the end of an act. The act goes on.
const WAITS: Duration = Duration::from_secs(10);
/// Most of those that were not done which a page names.
const NAMED: usize = 50;

/// `POST /console/many/calls/{act}`
pub(super) async fn on_calls(act: Act) -> Response {
    let page = act_on_calls(&act).await;
    act.form.page(page)
}

async fn act_on_calls(of: &Act) -> Result<Response, Problem> {
    let (asked, form) = (&of.asked, &of.form);
    let (act, words) = match &of.word[..] {
        "probe" => (CallAct::Probe, ASK),
        "failed" => (CallAct::Resolve(Resolution::Failed), FAILED),
        "succeeded" => {
            let result = acts::result(form.fields.text("result"))?;
            let resolution = Resolution::Succeeded(Content::Kept(result));
            (CallAct::Resolve(resolution), SUCCEEDED)
        }
        _ => return Err(problem::unknown_path().await),
    };
    let filter = asked.query_without(&NO_FILTERS);
    let act = many::on_calls_of(&filter, act, form.reason()?)?;
    let (acts, caller) = (&of.http.gateway.operator, &form.person.caller);
    let list = asked.to(&["calls"], &NO_FILTERS);
    if let Some(confirmed) = confirmed(form)? {
        let reports = acts.act_on_calls(caller, act, confirmed).await?;
        return Ok(became(form, words, &list, reports).await);
    }
    let found = acts.try_on_calls(caller, &act).await?;
    let ask = Ask {
        words,
        what: "calls",
        filter: &act.filter_json,
        to: asked.to(&["many", "calls", &of.word], &NO_FILTERS),
        list,
        sample: calls::table("The newest of them", &found.sample, &context(of)),
    };
    Ok(ask.page(form, &found))
}

/// `POST /console/many/sagas/{act}`
pub(super) async fn on_sagas(act: Act) -> Response {
    let page = act_on_sagas(&act).await;
    act.form.page(page)
}

async fn act_on_sagas(of: &Act) -> Result<Response, Problem> {
    let (asked, form) = (&of.asked, &of.form);
    let (act, words) = match &of.word[..] {
        "retry" => (SagaAct::Retry, RETRY),
        "skip" => (SagaAct::Skip, SKIP),
        _ => return Err(problem::unknown_path().await),
    };
    let act = many::on_sagas_of(asked.owned("tenant"), act, form.reason()?)?;
    let (acts, caller) = (&of.http.gateway.operator, &form.person.caller);
    let list = asked.to(&["sagas"], &NO_FILTERS);
    if let Some(confirmed) = confirmed(form)? {
        let reports = acts.act_on_sagas(caller, act, confirmed).await?;
        return Ok(became(form, words, &list, reports).await);
    }
    let found = acts.try_on_sagas(caller, &act).await?;
    let ask = Ask {
        words,
        what: "stuck sagas",
        filter: &act.filter_json,
        to: asked.to(&["many", "sagas", &of.word], &NO_FILTERS),
        list,
        sample: saga::table(&found.sample, &context(of)),
    };
    Ok(ask.page(form, &found))
}

fn context(act: &Act) -> Context<'_> {
    Context {
        http: &act.http,
        person: &act.form.person,
        now: act.http.gateway.base.wall_time(),
        asked: &act.asked,
        origin: "",
    }
}

/// What a dry run has answered, as the form brings it back.
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

/// What an act would be done to, and the form that confirms it.
struct Ask<'a> {
    words: Words,
    what: &'static str,
    /// The filter as JSON.
    filter: &'a str,
    to: String,
    list: String,
    sample: Markup,
}

impl Ask<'_> {
    fn page<T>(&self, form: &Form, found: &DryRun<T>) -> Response {
        let ((_, name, about), Summary { count, digest }) = (self.words, &found.summary);
        let (refused, unreadable) = (found.refused, found.unreadable);
        let counted = count.to_string();
        let kept = [
            ("form", form.person.form_token.as_str()),
            ("reason", form.fields.text("reason")),
            ("result", form.fields.text("result")),
            ("count", &counted),
            ("digest", digest),
        ];
        let body = html! {
            p { b { (count) " " (self.what) } ". Nothing has been done yet. " (about) }
            dl {
                (fact("Filter", &html! { code { (text(self.filter)) } }))
                (fact("Reason", &plain(form.fields.text("reason"))))
                (fact("Result of each", &plain(form.fields.text("result"))))
                (fact("Would refuse it now", &html! { @if refused > 0 { (refused) } }))
                (fact("Cannot be read, and are left alone", &html! { @if unreadable > 0 { (unreadable) } }))
            }
            @if *count > 0 {
                form method="post" action=(self.to) {
                    @for (name, value) in kept {
                        @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                    }
                    button type="submit" { "Do it to " (count) }
                }
            }
            (self.sample)
            p { a href=(self.list) { "Back to the list" } }
        };
        page::plain(name, Some(&form.person.around()), &body)
    }
}

/// What an act has come to, as far as a page waits for it.
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
            ul { @for line in not_done.iter().take(NAMED) { li { (said(line)) } } }
            @if not_done.len() > NAMED { p.note { "The first " (NAMED) " are shown." } }
        }
        p { a href=(list) { "Back to the list" } " · " a href=(address::to(&["audit"], &[])) { "The audit" } }
    };
    page::plain(name, Some(&form.person.around()), &body)
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
            @for (name, count) in counts { @if count > 0 { (fact(name, &html! { (count) })) } }
            @for (state, count) in &totals.states { (fact("Now", &html! { (words::state(state)) " " (count) })) }
        }
    }
}

fn said(line: &Line) -> Markup {
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
