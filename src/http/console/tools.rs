//! Tools, and one of them: whether it is paused, whether it fails, how fast it is.

use maud::{Markup, html};

use super::super::problem::Problem;
use super::context::{Context, Field};
use super::page::Screen;
use super::words::{self, fact, history, length, plain, state, text, when};
use super::{address, chart};
use crate::core::tool::{Dedup, OnUnknown, Tool};
use crate::gateway::{ErrorKind, ToolNow};

/// Tools in one page. An MCP server may bring many.
const MOST: usize = 200;
/// Up to so many in one page, each has a small chart.
const CHARTED: usize = 40;

pub(super) async fn list(context: &Context<'_>) -> Result<Screen, Problem> {
    let tools = context
        .http
        .gateway
        .pauses
        .list_tools(&context.person.caller)?;
    let after = context.asked.text("after");
    let mut later = tools.iter().filter(|tool| tool.name() > after);
    let shown: Vec<&ToolNow> = later.by_ref().take(MOST).collect();
    let next = later.next().and(shown.last());
    let next = next.map(|last| context.asked.with(&["tools"], "after", last.name()));
    let is_charted = shown.len() <= CHARTED;
    let body = html! {
        @if shown.is_empty() { p { "None." } } @else {
            div.wide role="region" aria-label="Tools" tabindex="0" { table {
                thead { tr {
                    th scope="col" { "Tool" } th scope="col" { "State" } th scope="col" { "Effect" }
                    th scope="col" { "Usual time" } th scope="col" { "Unknown outcome" }
                    @if is_charted { th.less scope="col" { "Requests, the last hour" } }
                } }
                tbody { @for tool in shown { (row(tool, is_charted, context)) } }
            } }
        }
        @if let Some(next) = next { p.more { a href=(next) rel="next" { "Further tools" } } }
    };
    Ok(Screen {
        title: "Tools".into(),
        tab: "tools",
        body,
    })
}

fn row(now: &ToolNow, is_charted: bool, context: &Context<'_>) -> Markup {
    let tool = &now.at.tool;
    html! {
        tr {
            td { (words::tool(&tool.name)) }
            td { (state(word(now))) }
            td { (tool.effect.as_str()) }
            td { @if let Some(latency) = now.usual_latency { (length(latency)) } @else { "no attempt yet" } }
            td { (unknown(tool)) }
            @if is_charted { td.less { (chart::requests(&context.http.gateway.samples.rates(&tool.name))) } }
        }
    }
}

fn word(now: &ToolNow) -> &'static str {
    match (now.since, now.is_failing) {
        (Some(_), _) => "paused",
        (None, true) => "failing",
        (None, false) => "ready",
    }
}

/// What the gateway does about an unknown call of a tool.
fn unknown(tool: &Tool) -> &'static str {
    match tool.unknown {
        OnUnknown::Hold => "held for a person",
        OnUnknown::Probe { .. } => "the tool is asked",
        OnUnknown::Retry => "sent again with the same key",
        OnUnknown::Elsewhere => "another gateway decides",
    }
}

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    let (name, caller) = (context.asked.text("name"), &context.person.caller);
    let pauses = &context.http.gateway.pauses;
    let at = pauses.show_tool(caller, name).await?;
    let tools = pauses.list_tools(caller)?;
    let now = tools.into_iter().find(|tool| tool.name() == name);
    let now = now.ok_or(ErrorKind::UnknownTool)?;
    let tool = &now.at.tool;
    let of = [("name", name)];
    let body = html! {
        p { (state(if at.since.is_some() { "paused" } else { word(&now) }))
            @if let Some(since) = at.since { " " (when(since, context.now)) }
            @if let Some(entry) = &at.paused { " by " (text(&entry.by)) ": " (text(&entry.detail)) } }
        section.acts aria-label="What you may do" {
            @if at.since.is_some() {
                (context.act(&address::to(&["tool", "resume"], &of), "Resume", "Its calls begin again.", &[Field::OptionalReason]))
            } @else {
                (context.act(
                    &address::to(&["tool", "pause"], &of), "Pause",
                    "No call of it begins, on any gateway of this store. Running calls go on, and stored answers are replayed.",
                    &[Field::Reason],
                ))
            }
            (context.may_not_act())
        }
        p {
            a href=(address::to(&["calls"], &[("tool", name)])) { "Its calls" } " · "
            a href=(address::to(&["calls"], &[("tool", name), ("state", "unknown")])) { "unknown ones" }
        }
        dl { (facts(&now, tool)) }
        section { h2 { "The last hour" } (chart::all(&context.http.gateway.samples.rates(name))) }
        section { h2 { "What persons did" } (history(&at.events, context.now)) }
    };
    Ok(Screen {
        title: format!("Tool {name}"),
        tab: "tools",
        body,
    })
}

fn facts(now: &ToolNow, tool: &Tool) -> Markup {
    let sources = tool.key.sources();
    let sources: Vec<&str> = sources.iter().map(|source| source.as_str()).collect();
    let latency = now
        .usual_latency
        .map_or_else(|| html! {}, |latency| html! { (length(latency)) });
    let dedup = match tool.dedup {
        Dedup::None => "no: nothing is sent twice",
        Dedup::Key => "yes, by its key",
    };
    html! {
        (fact("What it does", &plain(&tool.description)))
        (fact("Effect", &plain(tool.effect.as_str())))
        (fact("Breaker at this gateway", &plain(if now.is_failing { "open" } else { "closed" })))
        (fact("Usual time of an attempt", &latency))
        (fact("Longest attempt", &html! { (length(tool.timeout)) }))
        (fact("Longest call", &html! { (length(tool.deadline)) }))
        (fact("Keys come from", &plain(&sources.join(", "))))
        (fact("The tool deduplicates", &plain(dedup)))
        (fact("Unknown outcome", &plain(unknown(tool))))
        (fact("Calls of one session", &plain(tool.session.mode.as_str())))
    }
}
