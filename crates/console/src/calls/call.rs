//! One call: its state, its events, and the acts on it.

use std::iter;
use std::time::Duration;

use maud::{Markup, html};
use uuid::Uuid;

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::calls;
use crate::frame::address;
use crate::frame::page::{self, Screen};
use crate::frame::words::{
    self, belongs_to, between, fact, json, length, quoted, state, text, tool, trace, when,
};
use oncegate_engine::{CallAct, ErrorKind, Replay};
use oncegate_http::problem::Problem;
use oncegate_rules::key::Source;
use oncegate_rules::ledger::{Duplicates, History};
use oncegate_rules::many::SeenVersion;
use oncegate_rules::record::{CallId, Content, Entry, Failure, Record, State, Unread};
use oncegate_rules::unknown::Resolution;

/// The most calls that a page shows of one session, trace or saga.
const NEIGHBOURS: u32 = 6;

/// The id in an address.
fn id_of(text: &str) -> Result<CallId, Problem> {
    let id = Uuid::try_parse(text).map(CallId);
    id.map_err(|_| ErrorKind::UnknownCall.into())
}

pub(crate) async fn screen(context: &Context, id: &str) -> Result<Screen, Problem> {
    let ledger = &context.gateway().ledger;
    let found = ledger.find_call(context.caller(), id_of(id)?).await?;
    let record = &found.record;
    let body = html! {
        (summary(record, context))
        (acts(record, context))
        section {
            h2 { "What happened" }
            (timeline(&found, context))
        }
        (duplicates(&found.duplicates, record, context))
        (texts(record))
        (neighbours(record, context).await?)
        section {
            h2 { "The same by command" }
            (command(context, record.intent.call_id))
        }
    };
    let title = format!("Call of {}: {}", record.intent.tool, record.state.as_str());
    Ok(Screen::new("calls", title, body))
}

/// The state of a call in one sentence.
pub(crate) fn known(record: &Record) -> String {
    match &record.state {
        State::Running => "It was sent, or will be: no answer is known yet.".into(),
        State::Succeeded(Content::Stored(_)) => {
            "It was executed. Every duplicate gets its result.".into()
        }
        State::Succeeded(Content::Unavailable(Unread { why, .. })) => {
            format!("It was executed, but its result is not there: {why}")
        }
        State::Failed(failure) => format!(
            "It surely had no effect ({}): {}",
            failure.kind.as_str(),
            failure.why
        ),
        State::Unknown(why) => {
            format!("It may have been executed, and is not sent again by itself: {why}")
        }
        State::Proposed => "It waits for approval. It was not sent.".into(),
        State::Approved => "It is approved, and was not sent yet.".into(),
        State::Compensating(_) => "It is being undone.".into(),
        State::Compensated(_) => "It has been undone, or never ran and never will.".into(),
        State::Stuck(_) => "It could not be undone. Its saga waits for an operator.".into(),
    }
}

/// The time of the next check of an unknown call.
fn next_check(record: &Record, context: &Context) -> Markup {
    html! {
        @if matches!(record.state, State::Unknown(_)) {
            @match record.check.and_then(|check| check.at) {
                Some(at) => { "Its tool is asked " (when(at, context.now)) "." }
                None => b { "It will not settle by itself: an operator has to look into the tool's own system." }
            }
        }
    }
}

fn summary(record: &Record, context: &Context) -> Markup {
    let intent = &record.intent;
    let expires = record.expires_at.map(|at| when(at, context.now));
    let compensation = record.compensation().map(|by| words::call(by.call_id));
    html! {
        p.known { (state(record.state.as_str())) " " (text(&known(record))) }
        p { (next_check(record, context)) }
        dl {
            (fact("Call", html! { code { (intent.call_id.to_string()) } }))
            (fact("Tool", tool(&intent.tool)))
            (fact("Made", html! { (when(intent.created_at, context.now)) @if !intent.made_by.is_empty() { " by token " (text(&intent.made_by)) } }))
            (fact("Changed", when(record.updated_at, context.now)))
            (fact("Key", html! { code { (text(&intent.key)) } " " small { (source(intent.key_source)) } }))
            (fact("Key at the tool", html! { code { (intent.lookup.for_tool()) } }))
            (fact("Key remembered until", expires.unwrap_or_default()))
            (fact("Belongs to", belongs_to(intent)))
            (fact("Tenant", text(&intent.tenant)))
            (fact("User", text(&intent.user_id)))
            (fact("Trace", trace(&intent.trace_id)))
            (fact("Attempts", record.attempts))
            (fact("Took", html! { @if let Some(ms) = record.latency_ms { (ms) " ms" } }))
            (fact("Fencing token", html! { @if let Some(token) = record.fencing { (token) } }))
            (fact("Looks like", record.similar_to.map(words::call).unwrap_or_default()))
            (fact("Undone by", compensation.unwrap_or_default()))
            (fact("The client's names", text(&intent.client_ids)))
        }
    }
}

/// How the key of a call was found.
fn source(source: Source) -> &'static str {
    match source {
        Source::Runtime => "given by the caller",
        Source::Business => "made of the tool's key fields",
        Source::Model => "given by the model, among the arguments",
        Source::Derived => "derived from the arguments: the caller gave none",
        Source::Compensation => "made by the gateway, for what undoes another call",
        Source::Elicitation => "made by the gateway, for the answer to a tool's questions",
        Source::Adopted => "not known: the call was adopted from its effect",
    }
}

/// The acts that fit the call's state. No act sends the call again.
pub(crate) fn acts(record: &Record, context: &Context) -> Markup {
    let id = record.intent.call_id.to_string();
    let to = |act| address::to(&["calls", &id, act], &[]);
    let version = SeenVersion::of_call(record).to_hex();
    let seen = Field::Seen(&version);
    context.acts(&html! {
        @match &record.state {
            State::Unknown(_) => {
                @if context.gateway().base.can_ask_about(record) {
                    (context.act(
                        &to("probe"),
                        "Ask its tool now",
                        "The tool is asked whether it knows the key. Nothing is sent again.",
                        &[Field::Reason],
                    ))
                }
                (context.act(
                    &to("succeeded"),
                    "Settle: it was executed",
                    "Look into the tool's own system first. From now on every duplicate gets the result that you write here.",
                    &[Field::Json { label: "Result, as JSON; null where the tool answers nothing", value: "" }, Field::Reason, seen],
                ))
                (context.act(
                    &to("failed"),
                    "Settle: it was not executed",
                    "Only if the tool's own system shows that it was not. The next repetition with its key is executed.",
                    &[Field::Reason, seen],
                ))
            }
            State::Stuck(_) => {
                (context.act(
                    &to("failed"),
                    "Settle: it is undone by hand",
                    "Only if you have undone it in the tool's own system. Its saga goes on.",
                    &[Field::Reason, seen],
                ))
                (context.act(
                    &to("succeeded"),
                    "Settle: its effect stands",
                    "It is not undone. Its saga goes on, and from now on every duplicate gets the result that you write here.",
                    &[Field::Json { label: "Result, as JSON; null leaves the tool's own", value: "null" }, Field::Reason, seen],
                ))
            }
            State::Succeeded(_) => {
                (context.act(
                    &to("compensate"),
                    "Undo this call",
                    "The compensation of its tool is called, with a key of its own.",
                    &[Field::Reason],
                ))
                (context.button(&to("verify"), "Compare with a fresh result"))
            }
            State::Proposed | State::Approved => {
                p { a href=(address::to(&["approvals", &id], &[])) { "Look at it, and decide" } }
            }
            State::Running
            | State::Failed(_)
            | State::Compensating(_)
            | State::Compensated(_) => {}
        }
    })
}

/// Every event, and the time since the one before.
fn timeline(found: &History, context: &Context) -> Markup {
    let times = found.entries.iter().map(|entry| entry.at);
    let before = iter::once(found.record.intent.created_at).chain(times);
    html! {
        ol.events {
            @for (entry, before) in found.entries.iter().zip(before) {
                (event(entry, &found.record, between(before, entry.at), context))
            }
        }
    }
}

fn event(entry: &Entry, record: &Record, gap: Duration, context: &Context) -> Markup {
    html! {
        li {
            p {
                b { (text(&entry.event)) } " "
                @if let Some(outcome) = &entry.outcome { (state(outcome)) " " }
                (when(entry.at, context.now))
                small { " +" (length(gap)) }
            }
            @if !entry.detail.is_empty() { p.detail { (text(&entry.detail)) } }
            p.note {
                (text(&entry.by))
                @if let Some(token) = entry.token_in(&record.intent) {
                    @if !entry.by.contains(token) { ", for token " (text(token)) }
                }
                @if let Some(attempt) = entry.attempt { ", attempt " code { (attempt.to_string()) } }
            }
        }
    }
}

fn duplicates(found: &Duplicates, record: &Record, context: &Context) -> Markup {
    let made = record.intent.created_at;
    html! {
        section {
            h2 { "Asked again: " (found.count) }
            @if found.last.is_empty() { p { "Never." } } @else {
                ol.events {
                    @for one in &found.last {
                        li { b { (text(&one.kind)) } " " (when(one.at, context.now)) " by token " (text(&one.by))
                            small { " " (length(between(made, one.at))) " after the first" } }
                    }
                }
            }
            @if found.count > found.last.len() as u64 { p.note { "These are the newest." } }
        }
    }
}

fn texts(record: &Record) -> Markup {
    html! {
        section {
            h2 { "Arguments" }
            (json(&record.intent.args))
        }
        @match (&record.state, record.state.content()) {
            (_, Some(Content::Stored(result))) => section { h2 { "Result" } (json(result)) },
            (State::Failed(failure), _) => (answered(failure)),
            _ => {}
        }
    }
}

/// The tool's refusal, if it has answered.
fn answered(failure: &Failure) -> Markup {
    html! {
        @if failure.status.is_some() || failure.body.is_some() {
            section {
                h2 { "What the tool answered" }
                @if let Some(status) = failure.status { p { "Status " (status) } }
                @if let Some(body) = &failure.body { (json(body)) }
            }
        }
    }
}

/// The calls around one: of its session, its trace and its saga.
async fn neighbours(record: &Record, context: &Context) -> Result<Markup, Problem> {
    // A token that may read only its own calls gets no lists.
    if !context.caller().may_read(&record.intent.tenant) {
        return Ok(html! {});
    }
    let intent = &record.intent;
    let mut shown = Vec::new();
    for (name, id) in [
        ("session_id", &intent.session_id),
        ("trace_id", &intent.trace_id),
        ("saga_id", &intent.saga_id),
    ] {
        if id.is_empty() {
            continue;
        }
        let filter = calls::only(name, id);
        let page = calls::newest(context, Some(&intent.tenant), filter, NEIGHBOURS).await?;
        if page.found.len() > 1 {
            let all = address::to(&["calls"], &[(name, id), ("tenant", &intent.tenant)]);
            let of = name.trim_end_matches("_id");
            shown.push(html! {
                h3 { "Of its " (of) }
                (calls::table(of, &page.found, context))
                p { a href=(all) { "All of its " (of) } }
            });
        }
    }
    Ok(html! {
        @if !shown.is_empty() { section { h2 { "Neighbours" } @for part in &shown { (part) } } }
    })
}

/// The command that reads the call from the JSON route.
fn command(context: &Context, call_id: CallId) -> Markup {
    let url = quoted(&format!("{}/v1/calls/{call_id}", context.origin));
    html! { pre { code { "curl -s -H \"authorization: Bearer $TOKEN\" " (url) } } }
}

/// The acts on a call.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/calls/{id}/{act}",
    page: |form| Page {
        path: vec!["calls", id_in(form)],
        of: Vec::new(),
    },
    rows: &[
        ("succeeded", |form| Box::pin(succeeded(form))),
        ("failed", |form| Box::pin(failed(form))),
        ("probe", |form| Box::pin(act(form, CallAct::Probe, None))),
        ("compensate", |form| Box::pin(compensate(form))),
        ("verify", |form| Box::pin(verify(form))),
    ],
};

/// The id in the address of an act.
fn id_in(form: &Form) -> &str {
    let words = address::words(form.context.uri.path()).unwrap_or_default();
    words.get(1).copied().unwrap_or_default()
}

async fn succeeded(form: &Form) -> Result<Done, Problem> {
    let content = Content::Stored(form.result()?);
    let resolution = Resolution::Succeeded(content);
    act(form, CallAct::Resolve(resolution), seen(form)).await
}

async fn failed(form: &Form) -> Result<Done, Problem> {
    act(form, CallAct::Resolve(Resolution::Failed), seen(form)).await
}

/// Since the page was loaded, the call may run again or be undone: then a resolution must not settle it.
fn seen(form: &Form) -> Option<SeenVersion> {
    Some(SeenVersion::from_hex(form.fields.text("seen")))
}

async fn act(form: &Form, act: CallAct, seen: Option<SeenVersion>) -> Result<Done, Problem> {
    let (call_id, reason) = (id_of(id_in(form))?, form.reason()?);
    let (gateway, caller) = (form.context.gateway(), form.context.caller());
    let acting = gateway
        .operator
        .act_on_call(caller, act, call_id, &reason, seen);
    acting.await?;
    Ok(Done::Back)
}

async fn compensate(form: &Form) -> Result<Done, Problem> {
    let (call_id, reason) = (id_of(id_in(form))?, form.reason()?);
    let (gateway, caller) = (form.context.gateway(), form.context.caller());
    gateway.sagas.compensate(caller, call_id, &reason).await?;
    Ok(Done::Back)
}

/// The stored result beside a fresh one.
async fn verify(form: &Form) -> Result<Done, Problem> {
    let (call_id, context) = (id_of(id_in(form))?, &form.context);
    let operator = &context.gateway().operator;
    let replay = operator.replay_verified(context.caller(), call_id).await?;
    let body = html! { p { "Call " (words::call(call_id)) } (both(&replay)) };
    let page = page::plain("Compared", Some(&context.operator), &body);
    Ok(Done::Page(page))
}

fn both(replay: &Replay) -> Markup {
    html! {
        @if replay.differences.is_empty() {
            p.done { "They are alike, but for what the tool is allowed to change." }
        } @else {
            p.failed { "They differ. The stored result stays." }
            ul { @for place in &replay.differences { li { code { (text(place)) } } } }
        }
        h2 { "Stored" } (json(&replay.stored))
        @if let Some(fresh) = &replay.fresh { h2 { "Fresh" } (json(fresh)) }
    }
}
