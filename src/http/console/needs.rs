//! What needs a person: the first screen.

use maud::{Markup, html};

use super::super::problem::Problem;
use super::context::{Context, Field};
use super::page::Screen;
use super::words::{self, fact, moment, plain, text, when};
use super::{address, anomaly, call, calls, saga};
use crate::core::ledger::Listed;
use crate::core::saga::State as SagaState;
use crate::gateway::reconcile::{Report, Shown};
use crate::gateway::{ErrorKind, LOST_DATA, Reason, SagaQuery, SessionQuery, ToolNow};

/// Unknown calls that are looked at, newest first: so many at once, and so often.
const LOOKED_AT: u32 = 200;
const LOOKS: u32 = 5;
/// Unknown calls that are shown with their acts.
const SHOWN: usize = 10;
/// Sagas, sessions and anomalies that are shown.
const EACH: u32 = 10;
/// The state of unknown calls, as a word.
const UNKNOWN: &str = "unknown";

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    // What cannot be read is said in its place: the rest is needed most while something fails.
    let or_why =
        |part: Result<Markup, Problem>, name| part.unwrap_or_else(|why| unread(name, &why));
    let parts = [
        store(context).await,
        or_why(unknown(context).await, "Unknown calls"),
        or_why(stuck(context).await, "Sagas"),
        or_why(anomalies(context).await, "Reconciliations"),
        or_why(tools(context), "Tools"),
        or_why(frozen(context).await, "Sessions"),
    ];
    let is_quiet = parts.iter().all(|part| part.0.is_empty());
    let body = html! {
        @if is_quiet { p.done { "Nothing needs a person." } }
        @for part in &parts { (part) }
        (context.may_not_act())
    };
    Ok(Screen {
        title: "Needs a person".into(),
        tab: "",
        body,
    })
}

/// One thing that needs a person: what it is, what is known, and the acts.
fn thing(head: &Markup, about: &Markup, acts: &Markup) -> Markup {
    html! { li { article { h3 { (head) } (about) (acts) } } }
}

/// A part that could not be read.
fn unread(name: &str, why: &Problem) -> Markup {
    html! {
        section { h2 { (name) } p.failed { "They cannot be read now: " (text(&why.detail)) } }
    }
}

fn part(name: &str, count: &str, things: &[Markup], more: &Markup) -> Markup {
    html! {
        @if !things.is_empty() {
            section {
                h2 { (name) " " span.count { (count) } }
                ul.things { @for thing in things { (thing) } }
                (more)
            }
        }
    }
}

/// A store that claims nothing, or not as it should.
async fn store(context: &Context<'_>) -> Markup {
    let readiness = context.http.gateway.status.recent_readiness().await;
    let (reasons, warnings) = (&readiness.reasons, &readiness.warnings);
    // Tools and sessions have parts of their own.
    let warnings = warnings
        .iter()
        .filter(|warning| !matches!(warning.code, "tool_paused" | "session_frozen"));
    let to = address::to(&["store", "accept-loss"], &[]);
    let accept = html! {
        (context.act(
            &to,
            "Accept the loss",
            "Only after you know which data is lost: a key that the store has forgotten is free afterwards, and its repetition is executed.",
            &[Field::Reason],
        ))
    };
    let closed = reasons.iter().map(|reason| {
        let acts = if reason.code == LOST_DATA {
            accept.clone()
        } else {
            html! {}
        };
        thing(
            &html! { "Nothing is claimed: " (text(reason.code)) },
            &said(context, reason),
            &acts,
        )
    });
    let weak = warnings.map(|reason| {
        thing(
            &html! { "Warning: " (text(reason.code)) },
            &said(context, reason),
            &html! {},
        )
    });
    let things: Vec<Markup> = closed.chain(weak).collect();
    let more = html! { p { a href=(address::to(&["store"], &[])) { "The store" } } };
    part("Store", &things.len().to_string(), &things, &more)
}

/// The sentence of a reason; it may name addresses, so it is for administrators.
fn said(context: &Context<'_>, reason: &Reason) -> Markup {
    html! { @if context.is_admin() { p { (text(&reason.text)) } } }
}

/// Unknown calls: first those that will not settle by themselves.
async fn unknown(context: &Context<'_>) -> Result<Markup, Problem> {
    let (mut held, mut checked, mut before) = (Vec::new(), 0, None);
    for _ in 0..LOOKS {
        let page = calls::after(context, before, UNKNOWN, LOOKED_AT).await?;
        for listed in page.found {
            match listed.record.check.and_then(|check| check.at) {
                None => held.push(listed),
                Some(_) => checked += 1,
            }
        }
        before = page.next;
        if before.is_none() || held.len() > SHOWN {
            break;
        }
    }
    let things: Vec<Markup> = held
        .iter()
        .take(SHOWN)
        .map(|listed| one(listed, context))
        .collect();
    let looked_at = held.len() + checked;
    let count = |calls: usize| match before {
        Some(_) => format!("{calls} of the newest {looked_at} unknown ones"),
        None => calls.to_string(),
    };
    let all = address::to(&["calls"], &[("state", UNKNOWN)]);
    let more = html! {
        @if held.len() > SHOWN { p { "The newest " (SHOWN) " are shown." } }
        p { a href=(all) { "All unknown calls" } }
    };
    Ok(html! {
        (part("Calls that will not settle by themselves", &count(held.len()), &things, &more))
        @if held.is_empty() && before.is_some() {
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

fn one(listed: &Listed, context: &Context<'_>) -> Markup {
    let (record, intent) = (&listed.record, &listed.record.intent);
    let about = html! {
        p { (text(&call::known(record))) }
        dl {
            (fact("Call", &words::call(intent.call_id)))
            (fact("Unknown since", &when(record.check.map_or(record.updated_at, |check| check.since), context.now)))
            (fact("Key", &html! { code { (text(&intent.key)) } }))
            (fact("Key at the tool", &html! { code { (intent.lookup.for_tool()) } }))
            (fact("User", &plain(&intent.user_id)))
            (fact("Tenant", &plain(&intent.tenant)))
            (fact("Belongs to", &words::belongs_to(intent)))
            @if listed.duplicates.count > 0 { (fact("Asked again", &html! { (listed.duplicates.count) " times" })) }
        }
    };
    let head = html! { "Unknown call of " (words::tool(&intent.tool)) };
    thing(&head, &about, &call::acts(record, context))
}

/// Sagas that cannot go on.
async fn stuck(context: &Context<'_>) -> Result<Markup, Problem> {
    let query = SagaQuery {
        tenant: None,
        state: Some(SagaState::Stuck),
        before: None,
        limit: EACH,
    };
    let sagas = &context.http.gateway.sagas;
    let (found, next) = sagas.list_sagas(&context.person.caller, &query).await?;
    let things: Vec<Markup> = found
        .iter()
        .map(|saga| {
            let trouble = saga.trouble.as_ref();
            let about = html! {
                @if let Some(trouble) = trouble {
                    p { (text(&trouble.why)) }
                    @if let Some(call_id) = trouble.call_id { p { "Call " (words::call(call_id)) } }
                }
                dl {
                    (fact("Stuck since", &when(saga.updated_at, context.now)))
                    (fact("Tenant", &plain(&saga.id.tenant)))
                    (fact("Why it is undone", &plain(&saga.reason)))
                }
            };
            let head = html! { "Stuck saga " (words::saga(&saga.id.tenant, &saga.id.id)) };
            thing(&head, &about, &saga::acts(saga, context))
        })
        .collect();
    let all = address::to(&["sagas"], &[("state", "stuck")]);
    let more = html! { p { a href=(all) { "All stuck sagas" } } };
    Ok(part(
        "Sagas",
        &counted(things.len(), next.is_some()),
        &things,
        &more,
    ))
}

fn counted(count: usize, has_more: bool) -> String {
    let more = if has_more { " and more" } else { "" };
    format!("{count}{more}")
}

/// Reconciliations whose last run failed, and what any run has found and nothing was done about yet.
async fn anomalies(context: &Context<'_>) -> Result<Markup, Problem> {
    let (reconciler, caller) = (&context.http.gateway.reconciler, &context.person.caller);
    let all = match reconciler.list_reconciliations(caller).await {
        // They look at every tenant.
        Err(error) if matches!(error.kind, ErrorKind::Forbidden) => return Ok(html! {}),
        all => all?,
    };
    let failed: Vec<Markup> = all
        .iter()
        .filter_map(|overview| failed(&overview.name, overview.last.as_ref()?, context))
        .collect();
    let (open, has_more) = reconciler.unsettled_anomalies(caller, EACH).await?;
    let open: Vec<Markup> = open
        .iter()
        .map(|found| open_anomaly(found, context))
        .collect();
    let more = html! {
        @if has_more { p { "The newest " (EACH) " are shown." } }
        p { a href=(address::to(&["reconciliations"], &[])) { "All reconciliations" } }
    };
    Ok(html! {
        (part("Reconciliations that failed", &failed.len().to_string(), &failed, &html! {}))
        (part("Anomalies", &counted(open.len(), has_more), &open, &more))
    })
}

/// A reconciliation whose last run failed.
fn failed(name: &str, report: &Report, context: &Context<'_>) -> Option<Markup> {
    let why = report.error.as_ref()?;
    let to = address::to(&["reconciliation"], &[("name", name)]);
    let about = html! {
        p { "Last run " (moment(report.started_at, context.now)) }
        p.failed { (text(why)) }
    };
    let head = html! { a href=(to) { "Reconciliation " (text(name)) } };
    Some(thing(&head, &about, &html! {}))
}

fn open_anomaly(found: &Shown, context: &Context<'_>) -> Markup {
    let to = anomaly::to(&found.reconciliation, &found.listed.id);
    let head = html! { a href=(to) { "Anomaly: " (found.listed.kind.as_str()) " in " (text(&found.reconciliation)) } };
    thing(
        &head,
        &anomaly::about(found, context),
        &anomaly::acts(found, context),
    )
}

/// Paused tools, and tools that keep failing.
fn tools(context: &Context<'_>) -> Result<Markup, Problem> {
    let pauses = &context.http.gateway.pauses;
    let tools = match pauses.list_tools(&context.person.caller) {
        Err(error) if matches!(error.kind, ErrorKind::Forbidden) => Vec::new(),
        tools => tools?,
    };
    let things: Vec<Markup> = tools
        .iter()
        .filter(|tool| tool.since.is_some() || tool.is_failing)
        .map(|tool| stopped(tool, context))
        .collect();
    Ok(part("Tools", &things.len().to_string(), &things, &html! {}))
}

fn stopped(tool: &ToolNow, context: &Context<'_>) -> Markup {
    let name = tool.name();
    match tool.since {
        Some(since) => {
            let about = html! {
                p { (when(since, context.now))
                    @if let Some(entry) = &tool.paused { " by " (text(&entry.by)) ": " (text(&entry.detail)) } }
            };
            let to = address::to(&["tool", "resume"], &[("name", name)]);
            let resume = context.act(
                &to,
                "Resume",
                "Its calls begin again.",
                &[Field::OptionalReason],
            );
            thing(
                &html! { "Paused tool " (words::tool(name)) },
                &about,
                &resume,
            )
        }
        None => {
            let about = html! { p { "It keeps failing: this gateway leaves it alone for a while, and then tries one call." } };
            thing(
                &html! { "The breaker of " (words::tool(name)) " is open" },
                &about,
                &html! {},
            )
        }
    }
}

/// Sessions that a person has frozen, and not thawed.
async fn frozen(context: &Context<'_>) -> Result<Markup, Problem> {
    let query = SessionQuery {
        tenant: None,
        frozen: true,
        locked: false,
        before: None,
        limit: EACH,
    };
    let sessions = &context.http.gateway.sessions;
    let (found, next) = sessions
        .list_sessions(&context.person.caller, &query)
        .await?;
    let things: Vec<Markup> = found
        .iter()
        .filter(|(_, session)| session.frozen)
        .map(|(id, session)| {
            let since = session.events.iter().rev().find(|entry| entry.event == "frozen");
            let about = html! {
                @if let Some(entry) = since {
                    p { (when(entry.at, context.now)) " by " (text(&entry.by)) ": " (text(&entry.detail)) }
                }
                dl { (fact("Tenant", &plain(&id.tenant))) }
            };
            let of = [("id", id.id.as_str()), ("tenant", id.tenant.as_str())];
            let to = address::to(&["session", "thaw"], &of);
            let thaw = context.act(&to, "Thaw", "Its writes begin again.", &[Field::Reason]);
            thing(&html! { "Frozen session " (words::session(&id.tenant, &id.id)) }, &about, &thaw)
        })
        .collect();
    Ok(part(
        "Sessions",
        &counted(things.len(), next.is_some()),
        &things,
        &html! {},
    ))
}
