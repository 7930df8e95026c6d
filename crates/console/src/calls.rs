//! Many calls: filtered by the address, newest first.

pub(crate) mod call; // one call
pub(crate) mod many; // the forms for acts on a whole list
pub(crate) mod many_acts; // the acts of these forms
pub(crate) mod user; // a user whose data is erased

use maud::{Markup, html};
use uuid::Uuid;

use crate::access::context::Context;
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{self, call, choice, state, text, tool, when};
use oncegate_engine::Query;
use oncegate_http::ledger::listing;
use oncegate_http::problem::Problem;
use oncegate_rules::ledger::{Filter, Listed, Page, STATES};
use oncegate_rules::record::CallId;
use oncegate_rules::trace;

/// The parameters in which the search looks for a pasted text, in this order.
const LOOKED_FOR: [&str; 5] = ["trace_id", "key", "session_id", "saga_id", "user_id"];

/// Parameters that the form does not show, and keeps.
const CARRIED: [&str; 6] = ["key", "trace_id", "saga_id", "user_id", "by", "limit"];

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    if let Some(pasted) = context.asked.get("find") {
        return find(context, pasted.trim()).await;
    }
    let query = listing::read_query(&context.asked.query_without(&["done"]))?;
    let page = list(context, query).await?;
    let body = html! {
        (filters(context))
        @if !page.found.is_empty() || page.next.is_some() { (many::of_calls(context)) }
        (user::erase(context)?)
        (table("Calls", &page.found, context))
        @if page.found.is_empty() && page.next.is_none() { p { "None." } }
        (how_far(context, &page)?)
        (context.older("calls", "cursor", page.next))
        @if page.unreadable > 0 { p.note { (page.unreadable) " calls cannot be read; the log names them." } }
    };
    Ok(Screen::new("calls", "Calls", body))
}

/// Tells how far back a page has looked, if it holds fewer calls than its limit.
fn how_far(context: &Context, page: &Page<Listed>) -> Result<Markup, Problem> {
    let limit = context.limit()? as usize;
    let until = page.next.filter(|_| page.found.len() < limit);
    Ok(html! {
        @if let Some(until) = until {
            p.note {
                @if page.found.is_empty() { "None so far. " }
                "This page has looked at the calls made since " (when(until.created_at, context.now))
                "; older ones have not been looked at yet."
            }
        }
    })
}

/// The newest few calls that pass a filter.
pub(crate) async fn newest(
    context: &Context,
    tenant: Option<&str>,
    filter: Filter,
    limit: u32,
) -> Result<Page<Listed>, Problem> {
    let query = Query::newest(tenant.map(str::to_owned), filter, limit);
    list(context, query).await
}

/// The calls that a query names, newest first, without their texts.
pub(crate) async fn list(
    context: &Context,
    mut query: Query<Filter>,
) -> Result<Page<Listed>, Problem> {
    query.filter.is_brief = true;
    let ledger = &context.gateway().ledger;
    Ok(ledger.list_calls(context.caller(), &query).await?)
}

/// The filter for calls with this value of one parameter.
pub(crate) fn only(parameter: &str, value: &str) -> Filter {
    let mut filter = Filter::default();
    let member = match parameter {
        "trace_id" => &mut filter.trace_id,
        "key" => &mut filter.key,
        "session_id" => &mut filter.session_id,
        "saga_id" => &mut filter.saga_id,
        "state" => &mut filter.state,
        _ => &mut filter.user_id,
    };
    *member = Some(value.to_owned());
    filter
}

fn filters(context: &Context) -> Markup {
    let asked = &context.asked;
    let tools = context.gateway().base.tools();
    let may_see = |name: &&String| context.is_admin() || context.caller().may_call(name);
    html! {
        form.filters action=(address::to(&["calls"], &[])) {
            @for name in CARRIED {
                @if let Some(value) = asked.get(name) {
                    label { (name) input type="text" name=(name) value=(value); }
                }
            }
            (choice("State", "state", STATES, asked.text("state")))
            label { "Tool" input type="text" name="tool" value=(asked.text("tool")) list="tools"; }
            datalist #tools { @for name in tools.keys().filter(may_see).take(200) { option value=(name) {} } }
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
pub(crate) fn table(name: &str, calls: &[Listed], context: &Context) -> Markup {
    if calls.is_empty() {
        return html! {};
    }
    let columns = ["State", "Tool", "Made", "Asked again", "Call"];
    let further = [&["Key", "Session"], context.tenant_column()].concat();
    let rows = html! { @for listed in calls { (row(listed, context)) } };
    words::table(name, &columns, &further, &rows)
}

fn row(listed: &Listed, context: &Context) -> Markup {
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

/// Looks for a pasted text as a call, and as the value of each of these parameters.
async fn find(context: &Context, pasted: &str) -> Result<Screen, Problem> {
    let trace = trace::Context::parse(pasted, "").map(|found| found.trace_id);
    let mut found = Vec::new();
    if let Ok(id) = Uuid::try_parse(pasted) {
        let ledger = &context.gateway().ledger;
        if ledger.find_call(context.caller(), CallId(id)).await.is_ok() {
            found.push(("call", call(CallId(id))));
        }
    }
    for name in LOOKED_FOR {
        let value = match (name, &trace) {
            ("trace_id", Some(trace)) => trace.as_str(),
            _ => pasted,
        };
        let page = newest(context, None, only(name, value), 10).await?;
        if !page.found.is_empty() {
            let to = address::to(&["calls"], &[(name, value)]);
            let shown = html! {
                p { a href=(to) { "All calls with this " (name) } }
                (table(name, &page.found, context))
            };
            found.push((name, shown));
        }
    }
    let body = html! {
        p { "Looked for " code { (text(pasted)) } " as a call, trace, key, session, saga and user." }
        @for (name, shown) in &found { h2 { "As " (name) } (shown) }
        @if found.is_empty() { p { "Nothing of this name is in the ledger, or this token may not see it." } }
    };
    Ok(Screen::new("calls", "Find", body))
}
