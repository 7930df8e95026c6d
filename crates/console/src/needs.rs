//! The first screen: everything that needs an operator.

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::approvals;
use crate::calls;
use crate::calls::call;
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::things::{counted_part, part, thing};
use crate::frame::words::{self, fact, text, when};
use crate::reconciliations;
use crate::saga;
use crate::session;
use crate::tools;
use oncegate_engine::{ErrorKind, LOST_DATA, Query, Reason, SessionFilter, ToolNow};
use oncegate_http::problem::Problem;
use oncegate_rules::ledger::Listed;
use oncegate_rules::saga::State as SagaState;

/// The newest unknown calls are read in at most `LOOKS` pages of this size.
const LOOKED_AT: u32 = 200;
const LOOKS: u32 = 5;
/// Unknown calls that are shown with their acts.
const SHOWN: usize = 10;
/// Sagas, sessions and anomalies that are shown.
const EACH: u32 = 10;
/// The state of unknown calls, as a word.
const UNKNOWN: &str = "unknown";

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    // A failure to read one part must not hide the others: an operator needs them most then.
    let or_why =
        |part: Result<Markup, Problem>, name| part.unwrap_or_else(|why| unread(name, &why));
    if context.only_approves() {
        let waiting = or_why(approvals::needs(context).await, "Waits for approval");
        let body = html! { @if waiting.0.is_empty() { p.done { "Nothing waits for approval." } } (waiting) };
        return Ok(Screen::new("", "Needs an operator", body));
    }
    let parts = [
        or_why(approvals::needs(context).await, "Waits for approval"),
        store(context).await,
        or_why(unknown(context).await, "Unknown calls"),
        or_why(stuck(context).await, "Sagas"),
        or_why(reconciliations::needs(context).await, "Reconciliations"),
        or_why(stopped_tools(context), "Tools"),
        or_why(frozen(context).await, "Sessions"),
    ];
    let is_quiet = parts.iter().all(|part| part.0.is_empty());
    let body = html! {
        @if is_quiet { p.done { "Nothing needs an operator." } }
        @for part in &parts { (part) }
        (context.may_not_act())
    };
    Ok(Screen::new("", "Needs an operator", body))
}

/// A part that could not be read.
fn unread(name: &str, why: &Problem) -> Markup {
    html! {
        section { h2 { (name) } p.failed { "They cannot be read now: " (text(&why.detail)) } }
    }
}

/// A store that claims nothing, or not as it should.
async fn store(context: &Context) -> Markup {
    let readiness = context.gateway().status.recent_readiness().await;
    let to = address::to(&["store", "accept-loss"], &[]);
    let accept = context.act(
        &to,
        "Accept the loss",
        "Only after you know which data is lost: a key that the store has forgotten is free afterwards, and its repetition is executed.",
        &[Field::Reason],
    );
    let is_under_way = context.gateway().loss.is_under_way();
    let mut things = Vec::new();
    for reason in &readiness.reasons {
        let acts = match reason.code {
            LOST_DATA if !is_under_way => accept.clone(),
            _ => html! {},
        };
        let head = html! { "Nothing is claimed: " (text(reason.code)) };
        things.push(thing(head, sentence(context, reason), acts));
    }
    for warning in &readiness.warnings {
        // Tools and sessions have parts of their own.
        if !matches!(warning.code, "tool_paused" | "session_frozen") {
            let head = html! { "Warning: " (text(warning.code)) };
            things.push(thing(head, sentence(context, warning), html! {}));
        }
    }
    let more = html! { p { a href=(address::to(&["store"], &[])) { "The store" } } };
    part("Store", things, false, &more)
}

/// The sentence of a reason; it may name addresses, so it is for administrators.
fn sentence(context: &Context, reason: &Reason) -> Markup {
    html! { @if context.is_admin() { p { (text(&reason.text)) } } }
}

/// Unknown calls that need an operator, with their acts, and the number of those that are checked.
async fn unknown(context: &Context) -> Result<Markup, Problem> {
    let (mut held, mut checked) = (Vec::new(), 0);
    let mut query = Query::newest(None, calls::only("state", UNKNOWN), LOOKED_AT);
    for _ in 0..LOOKS {
        let page = calls::list(context, query.clone()).await?;
        for listed in page.found {
            match listed.record.check.and_then(|check| check.at) {
                None => held.push(listed),
                Some(_) => checked += 1,
            }
        }
        query.before = page.next;
        if query.before.is_none() || held.len() > SHOWN {
            break;
        }
    }
    let things = held.iter().take(SHOWN);
    let things: Vec<Markup> = things.map(|listed| held_call(listed, context)).collect();
    let looked_at = held.len() + checked;
    let count = |calls: usize| match query.before {
        Some(_) => format!("{calls} of the newest {looked_at} unknown ones"),
        None => calls.to_string(),
    };
    let all = address::to(&["calls"], &[("state", UNKNOWN)]);
    let more = html! {
        @if held.len() > SHOWN { p { "The newest " (SHOWN) " are shown." } }
        p { a href=(all) { "All unknown calls" } }
    };
    Ok(html! {
        (counted_part("Calls that will not settle by themselves", &count(held.len()), &things, &more))
        @if held.is_empty() && query.before.is_some() {
            section {
                h2 { "Calls that will not settle by themselves" }
                p { "There is none among the newest " (looked_at) " unknown calls. Older ones were not looked at. "
                    a href=(all) { "All unknown calls" } }
            }
        }
        @if checked > 0 {
            section {
                h2 { "Unknown calls that are being checked " span.count { (count(checked)) } }
                p { "Their tools are asked again and again. " a href=(all) { "All unknown calls" } }
            }
        }
    })
}

fn held_call(listed: &Listed, context: &Context) -> Markup {
    let (record, intent) = (&listed.record, &listed.record.intent);
    let about = html! {
        p { (text(&call::known(record))) }
        dl {
            (fact("Call", words::call(intent.call_id)))
            (fact("Unknown since", when(record.check.map_or(record.updated_at, |check| check.since), context.now)))
            (fact("Key", html! { code { (text(&intent.key)) } }))
            (fact("Key at the tool", html! { code { (intent.lookup.for_tool()) } }))
            (fact("User", text(&intent.user_id)))
            (fact("Tenant", text(&intent.tenant)))
            (fact("Belongs to", words::belongs_to(intent)))
            @if listed.duplicates.count > 0 { (fact("Asked again", html! { (listed.duplicates.count) " times" })) }
        }
    };
    let head = html! { "Unknown call of " (words::tool(&intent.tool)) };
    thing(head, about, call::acts(record, context))
}

/// Sagas that cannot go on.
async fn stuck(context: &Context) -> Result<Markup, Problem> {
    let query = Query::newest(None, Some(SagaState::Stuck), EACH);
    let sagas = &context.gateway().sagas;
    let (found, next) = sagas.list_sagas(context.caller(), &query).await?;
    let things = found.iter().map(|saga| {
        let about = html! {
            @if let Some(trouble) = &saga.trouble {
                p { (text(&trouble.why)) }
                @if let Some(call_id) = trouble.call_id { p { "Call " (words::call(call_id)) } }
            }
            dl {
                (fact("Stuck since", when(saga.updated_at, context.now)))
                (fact("Tenant", text(&saga.id.tenant)))
                (fact("Why it is undone", text(&saga.reason)))
            }
        };
        let head = html! { "Stuck saga " (words::saga(&saga.id.tenant, &saga.id.id)) };
        thing(head, about, saga::acts(saga, context))
    });
    let all = address::to(&["sagas"], &[("state", "stuck")]);
    let more = html! { p { a href=(all) { "All stuck sagas" } } };
    Ok(part("Sagas", things.collect(), next.is_some(), &more))
}

/// Paused tools, and tools that keep failing.
fn stopped_tools(context: &Context) -> Result<Markup, Problem> {
    let tools = match context.gateway().pauses.list_tools(context.caller()) {
        Err(error) if matches!(error.kind, ErrorKind::Forbidden) => Vec::new(),
        tools => tools?,
    };
    let things = tools.iter().filter_map(|tool| stopped(tool, context));
    Ok(part("Tools", things.collect(), false, &html! {}))
}

fn stopped(tool: &ToolNow, context: &Context) -> Option<Markup> {
    let name = tool.name();
    if let Some(since) = tool.since {
        let head = html! { "Paused tool " (words::tool(name)) };
        let about = html! {
            p { (when(since, context.now))
                @if let Some(entry) = &tool.paused { " by " (text(&entry.by)) ": " (text(&entry.detail)) } }
        };
        return Some(thing(head, about, tools::resume(context, name)));
    }
    let head = html! { "The breaker of " (words::tool(name)) " is open" };
    let about = html! { p { "It keeps failing: this gateway leaves it alone for a while, and then tries one call." } };
    tool.is_failing.then(|| thing(head, about, html! {}))
}

/// Sessions that an operator has frozen, and not thawed.
async fn frozen(context: &Context) -> Result<Markup, Problem> {
    let filter = SessionFilter {
        frozen: true,
        locked: false,
    };
    let query = Query::newest(None, filter, EACH);
    let sessions = &context.gateway().sessions;
    let (found, next) = sessions.list_sessions(context.caller(), &query).await?;
    let found = found.iter().filter(|(_, session)| session.frozen);
    let things = found.map(|(id, session)| {
        let mut entries = session.events.iter().rev();
        let about = html! {
            @if let Some(entry) = entries.find(|entry| entry.event == "frozen") {
                p { (when(entry.at, context.now)) " by " (text(&entry.by)) ": " (text(&entry.detail)) }
            }
            dl { (fact("Tenant", text(&id.tenant))) }
        };
        let head = html! { "Frozen session " (words::session(&id.tenant, &id.id)) };
        thing(head, about, session::thaw(id, context))
    });
    let has_more = next.is_some();
    Ok(part("Sessions", things.collect(), has_more, &html! {}))
}
