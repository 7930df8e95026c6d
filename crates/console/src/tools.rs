//! The list of tools, and one tool: whether it is paused, whether it fails, how fast it is.

mod chart; // the last hour of a tool, as lines
pub(crate) mod samples; // the last hour of each tool

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{self, fact, history, length, state, text, when};
use oncegate_engine::{ErrorKind, ToolNow};
use oncegate_http::problem::Problem;
use oncegate_http::read::identity;
use oncegate_rules::tool::{Dedup, OnUnknown, Tool};

/// Tools in one page. An MCP server may bring many.
const MOST: usize = 200;
/// A page of at most this many tools has a small chart for each.
const CHARTED: usize = 40;

pub(crate) async fn list(context: &Context) -> Result<Screen, Problem> {
    let tools = context.gateway().pauses.list_tools(context.caller())?;
    let after = context.asked.text("after");
    let mut later = tools.iter().filter(|tool| tool.name() > after);
    let shown: Vec<&ToolNow> = later.by_ref().take(MOST).collect();
    let next = later.next().and(shown.last());
    let next = next.map(|last| context.asked.with(&["tools"], "after", last.name()));
    let is_charted = shown.len() <= CHARTED;
    let columns = ["Tool", "State", "Effect", "Usual time", "Unknown outcome"];
    let charts: &[&str] = if is_charted {
        &["Requests, the last hour"]
    } else {
        &[]
    };
    let rows = html! { @for tool in &shown { (row(tool, is_charted, context)) } };
    let body = html! {
        @if shown.is_empty() { p { "None." } } @else {
            (words::table("Tools", &columns, charts, &rows))
        }
        @if let Some(next) = next { p.more { a href=(next) rel="next" { "Further tools" } } }
    };
    Ok(Screen::new("tools", "Tools", body))
}

fn row(now: &ToolNow, is_charted: bool, context: &Context) -> Markup {
    let tool = &now.at.tool;
    html! {
        tr {
            td { (words::tool(&tool.name)) }
            td { (state(word(now))) }
            td { (tool.effect.as_str()) }
            td { @if let Some(latency) = now.usual_latency { (length(latency)) } @else { "no attempt yet" } }
            td { (unknown(tool)) }
            @if is_charted { td.less { (chart::requests(&context.console.samples.rates(&tool.name))) } }
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
        OnUnknown::Hold => "held for an operator",
        OnUnknown::Probe => "the tool is asked",
        OnUnknown::Retry => "sent again with the same key",
        OnUnknown::Elsewhere => "another gateway decides",
    }
}

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let (name, caller) = (context.asked.text("name"), context.caller());
    let pauses = &context.gateway().pauses;
    let at = pauses.show_tool(caller, name).await?;
    let tools = pauses.list_tools(caller)?;
    let now = tools.into_iter().find(|tool| tool.name() == name);
    let now = now.ok_or(ErrorKind::UnknownTool)?;
    let tool = &now.at.tool;
    let act = if at.since.is_some() {
        resume(context, name)
    } else {
        let to = address::to(&["tool", "pause"], &[("name", name)]);
        let about = "No call of it begins, on any gateway of this store. Running calls go on, and stored answers are replayed.";
        context.act(&to, "Pause", about, &[Field::Reason])
    };
    let body = html! {
        p { (state(if at.since.is_some() { "paused" } else { word(&now) }))
            @if let Some(since) = at.since { " " (when(since, context.now)) }
            @if let Some(entry) = &at.paused { " by " (text(&entry.by)) ": " (text(&entry.detail)) } }
        (context.acts(&act))
        p {
            a href=(address::to(&["calls"], &[("tool", name)])) { "Its calls" } " · "
            a href=(address::to(&["calls"], &[("tool", name), ("state", "unknown")])) { "unknown ones" }
        }
        dl { (facts(&now, tool)) }
        section { h2 { "The last hour" } (chart::all(&context.console.samples.rates(name))) }
        section { h2 { "What operators did" } (history(&at.events, context.now)) }
    };
    Ok(Screen::new("tools", format!("Tool {name}"), body))
}

/// The form that lets a paused tool go on.
pub(crate) fn resume(context: &Context, name: &str) -> Markup {
    let to = address::to(&["tool", "resume"], &[("name", name)]);
    let fields = [Field::OptionalReason];
    context.act(&to, "Resume", "Its calls begin again.", &fields)
}

fn facts(now: &ToolNow, tool: &Tool) -> Markup {
    let sources = tool.key.sources();
    let sources: Vec<&str> = sources.iter().map(|source| source.as_str()).collect();
    let latency = now.usual_latency.map(length).unwrap_or_default();
    let dedup = match tool.dedup {
        Dedup::None => "no: nothing is sent twice",
        Dedup::Key => "yes, by its key",
    };
    html! {
        (fact("What it does", text(&tool.description)))
        (fact("Effect", text(tool.effect.as_str())))
        (fact("Breaker at this gateway", text(if now.is_failing { "open" } else { "closed" })))
        (fact("Usual time of an attempt", latency))
        (fact("Longest attempt", length(tool.timeout)))
        (fact("Longest call", length(tool.deadline)))
        (fact("Keys come from", text(&sources.join(", "))))
        (fact("The tool deduplicates", text(dedup)))
        (fact("Unknown outcome", text(unknown(tool))))
        (fact("Calls of one session", text(tool.session.mode.as_str())))
    }
}

/// The acts on a tool.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/tool/{act}",
    page: |form| Page {
        path: vec!["tool"],
        of: vec![("name", form.context.asked.text("name"))],
    },
    rows: &[
        ("pause", |form| Box::pin(pause(form))),
        ("resume", |form| Box::pin(resume_by(form))),
    ],
};

async fn pause(form: &Form) -> Result<Done, Problem> {
    set_paused(form, true, &form.reason()?).await
}

async fn resume_by(form: &Form) -> Result<Done, Problem> {
    set_paused(form, false, &form.optional_reason()?).await
}

async fn set_paused(form: &Form, paused: bool, reason: &str) -> Result<Done, Problem> {
    let (pauses, caller) = (&form.context.gateway().pauses, form.context.caller());
    let name = identity("the id", form.context.asked.text("name").to_owned())?;
    pauses.set_paused(caller, &name, paused, reason).await?;
    Ok(Done::Back)
}
