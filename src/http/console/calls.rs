//! Many calls: filtered by the address, newest first.

use maud::{Markup, html};
use uuid::Uuid;

use super::super::listing;
use super::super::problem::Problem;
use super::context::Context;
use super::page::Screen;
use super::words::{self, call, more, state, text, tool, when};
use super::{address, many};
use crate::core::ledger::{Filter, Listed, Page, STATES};
use crate::core::position::Position;
use crate::core::record::CallId;
use crate::core::trace;
use crate::gateway::Query;

/// What one search by a pasted text looks for, in this order, and the parameter of each.
const LOOKED_FOR: [&str; 5] = ["trace_id", "key", "session_id", "saga_id", "user_id"];

/// Parameters that the form does not show, and keeps.
const KEPT: [&str; 6] = ["key", "trace_id", "saga_id", "user_id", "by", "limit"];

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    if let Some(pasted) = context.asked.get("find") {
        return find(context, pasted.trim()).await;
    }
    let page = page(context, &context.asked.query_without(&["done"])).await?;
    let body = html! {
        (filters(context))
        @if !page.found.is_empty() || page.next.is_some() { (many::of_calls(context)) }
        (table("Calls", &page.found, context))
        @if page.found.is_empty() && page.next.is_none() { p { "None." } }
        (how_far(context, &page)?)
        (more(next(context, &page)))
        @if page.unreadable > 0 { p.note { (page.unreadable) " calls cannot be read; the log names them." } }
    };
    Ok(Screen {
        title: "Calls".into(),
        tab: "calls",
        body,
    })
}

/// Up to where a page has looked, if that is not as far as it was asked to.
fn how_far(context: &Context<'_>, page: &Page<Listed>) -> Result<Markup, Problem> {
    let Some(until) = page.next else {
        return Ok(html! {});
    };
    if page.found.len() >= context.limit()? as usize {
        return Ok(html! {});
    }
    Ok(html! {
        p.note {
            @if page.found.is_empty() { "None so far. " }
            "This page has looked at the calls made since " (when(until.created_at, context.now))
            "; older ones have not been looked at yet."
        }
    })
}

fn next(context: &Context<'_>, page: &Page<Listed>) -> Option<String> {
    let next = page.next.map(Position::to_cursor);
    next.map(|cursor| context.asked.with(&["calls"], "cursor", &cursor))
}

/// The calls that a query of `/v1/calls` names, without their texts.
async fn page(context: &Context<'_>, query: &str) -> Result<Page<Listed>, Problem> {
    let mut query = listing::read_query(query)?;
    query.filter.is_brief = true;
    let ledger = &context.http.gateway.ledger;
    Ok(ledger.list_calls(&context.person.caller, &query).await?)
}

/// The newest few calls that pass a filter.
pub(super) async fn some(
    context: &Context<'_>,
    tenant: Option<&str>,
    filter: Filter,
    limit: u32,
) -> Result<Page<Listed>, Problem> {
    brief(context, tenant, filter, None, limit).await
}

/// Calls of a state before a position, newest first.
pub(super) async fn after(
    context: &Context<'_>,
    before: Option<Position>,
    state: &str,
    limit: u32,
) -> Result<Page<Listed>, Problem> {
    let filter = Filter {
        state: Some(state.to_owned()),
        ..Filter::default()
    };
    brief(context, None, filter, before, limit).await
}

async fn brief(
    context: &Context<'_>,
    tenant: Option<&str>,
    filter: Filter,
    before: Option<Position>,
    limit: u32,
) -> Result<Page<Listed>, Problem> {
    let query = Query {
        tenant: tenant.map(str::to_owned),
        filter: Filter {
            is_brief: true,
            ..filter
        },
        before,
        limit,
    };
    let ledger = &context.http.gateway.ledger;
    Ok(ledger.list_calls(&context.person.caller, &query).await?)
}

fn filters(context: &Context<'_>) -> Markup {
    let asked = context.asked;
    let (now, tools) = (asked.text("state"), context.http.gateway.base.tools());
    html! {
        form.filters action=(address::to(&["calls"], &[])) {
            @for name in KEPT {
                @if let Some(value) = asked.get(name) {
                    label { (name) input type="text" name=(name) value=(value); }
                }
            }
            label { "State" select name="state" {
                option value="" { "any" }
                @for word in STATES { option value=(word) selected[word == now] { (word) } }
            } }
            label { "Tool" input type="text" name="tool" value=(asked.text("tool")) list="tools"; }
            datalist #tools { @for name in tools.keys().take(200) { option value=(name) {} } }
            label { "Session" input type="text" name="session_id" value=(asked.text("session_id")); }
            @if context.is_admin() {
                label { "Tenant" input type="text" name="tenant" value=(asked.text("tenant")); }
            }
            label { "Since" input type="text" name="since" value=(asked.text("since")) placeholder="2026-01-31T12:00:00Z"; }
            label { "Until" input type="text" name="until" value=(asked.text("until")) placeholder="2026-01-31T13:00:00Z"; }
            label { "Asked again at least" input type="number" name="duplicates_min" min="0" value=(asked.text("duplicates_min")); }
            label { "Looks like an earlier one" select name="similar" {
                @for (value, name) in [("", "either"), ("true", "yes"), ("false", "no")] {
                    option value=(value) selected[value == asked.text("similar")] { (name) }
                }
            } }
            button type="submit" { "Filter" }
            a href=(address::to(&["calls"], &[])) { "All" }
        }
    }
}

/// A table of calls.
pub(super) fn table(name: &str, calls: &[Listed], context: &Context<'_>) -> Markup {
    if calls.is_empty() {
        return html! {};
    }
    html! {
        div.wide role="region" aria-label=(name) tabindex="0" {
            table {
                thead { tr {
                    th scope="col" { "State" } th scope="col" { "Tool" } th scope="col" { "Made" }
                    th scope="col" { "Asked again" } th scope="col" { "Call" } th.less scope="col" { "Key" }
                    th.less scope="col" { "Session" }
                    @if context.is_admin() { th.less scope="col" { "Tenant" } }
                } }
                tbody { @for listed in calls { (row(listed, context)) } }
            }
        }
    }
}

fn row(listed: &Listed, context: &Context<'_>) -> Markup {
    let (record, intent) = (&listed.record, &listed.record.intent);
    html! {
        tr {
            td { (state(record.state.as_str())) @if record.similar_to.is_some() { " " span.mark { "similar" } } }
            td { (tool(&intent.tool)) }
            td { (when(intent.created_at, context.now)) }
            td.number { @if listed.duplicates.count > 0 { b { (listed.duplicates.count) } } @else { "0" } }
            td { (call(intent.call_id)) }
            td.less { (text(&intent.key)) }
            td.less { @if !intent.session_id.is_empty() { (words::session(&intent.tenant, &intent.session_id)) } }
            @if context.is_admin() { td.less { (text(&intent.tenant)) } }
        }
    }
}

/// Looks for a pasted text as each thing that it may be.
async fn find(context: &Context<'_>, pasted: &str) -> Result<Screen, Problem> {
    let trace = trace::Context::parse(pasted, "").map(|found| found.trace_id);
    let mut found = Vec::new();
    if let Ok(id) = Uuid::try_parse(pasted) {
        let ledger = &context.http.gateway.ledger;
        let is_there = ledger
            .find_call(&context.person.caller, CallId(id))
            .await
            .is_ok();
        found.extend(is_there.then(|| ("call", html! { (call(CallId(id))) })));
    }
    for name in LOOKED_FOR {
        let value = match (name, &trace) {
            ("trace_id", Some(trace)) => trace.as_str(),
            _ => pasted,
        };
        let mut filter = Filter::default();
        let member = match name {
            "trace_id" => &mut filter.trace_id,
            "key" => &mut filter.key,
            "session_id" => &mut filter.session_id,
            "saga_id" => &mut filter.saga_id,
            _ => &mut filter.user_id,
        };
        *member = Some(value.to_owned());
        let page = some(context, None, filter, 10).await?;
        if !page.found.is_empty() {
            let to = address::to(&["calls"], &[(name, value)]);
            let calls = table(name, &page.found, context);
            found.push((
                name,
                html! { p { a href=(to) { "All calls with this " (name) } } (calls) },
            ));
        }
    }
    let body = html! {
        p { "Looked for " code { (text(pasted)) } " as a call, trace, key, session, saga and user." }
        @for (name, shown) in &found { h2 { "As " (name) } (shown) }
        @if found.is_empty() { p { "Nothing of this name is in the ledger, or this token may not see it." } }
    };
    Ok(Screen {
        title: "Find".into(),
        tab: "calls",
        body,
    })
}
