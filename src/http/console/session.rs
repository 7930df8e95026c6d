//! Sessions, and one of them: its token, its lock, its line, its budgets, and whether it is frozen.

use jiff::Timestamp;
use maud::{Markup, html};

use super::super::problem::Problem;
use super::super::read::identity;
use super::address;
use super::calls;
use super::context::{Context, Field};
use super::page::Screen;
use super::words::{self, call, fact, history, length, more, plain, state, text, when};
use crate::core::ledger::Filter;
use crate::core::position::Position;
use crate::core::session::{Session, SessionId};
use crate::core::time::{before, signed};
use crate::core::tool::{Budget, Per};
use crate::gateway::SessionQuery;

/// Newest calls of a session that its page shows.
const NEWEST: u32 = 20;
/// Tools with a budget that its page counts.
const BUDGETS: usize = 20;

pub(super) async fn list(context: &Context<'_>) -> Result<Screen, Problem> {
    let body = html! {
        form.filters action=(address::to(&["session"], &[])) {
            label { "Session" input type="text" name="id" required; }
            @if context.is_admin() { label { "Tenant" input type="text" name="tenant"; } }
            button type="submit" { "Show" }
        }
        (part(context, "frozen").await?)
        (part(context, "locked").await?)
    };
    Ok(Screen {
        title: "Sessions".into(),
        tab: "sessions",
        body,
    })
}

/// The sessions that are frozen, or those that are locked. Each list has a cursor of its own.
async fn part(context: &Context<'_>, which: &str) -> Result<Markup, Problem> {
    let cursor = context.asked.owned(which);
    let query = SessionQuery {
        tenant: context.named_tenant()?,
        frozen: which == "frozen",
        locked: which == "locked",
        before: super::super::read::cursor(cursor, Position::from_cursor)?,
        limit: context.limit()?,
    };
    let sessions = &context.http.gateway.sessions;
    let (found, next) = sessions
        .list_sessions(&context.person.caller, &query)
        .await?;
    let next = next.map(Position::to_cursor);
    let next = next.map(|cursor| context.asked.with(&["sessions"], which, &cursor));
    let title = if which == "frozen" {
        "Frozen"
    } else {
        "Locked"
    };
    Ok(html! {
        section {
            h2 { (title) }
            @if found.is_empty() { p { "None." } } @else {
                div.wide role="region" aria-label=(title) tabindex="0" { table {
                    thead { tr {
                        th scope="col" { "Session" } th scope="col" { "State" } th scope="col" { "Locked by" }
                        th scope="col" { "Waiting" }
                        @if context.is_admin() { th.less scope="col" { "Tenant" } }
                    } }
                    tbody { @for (id, session) in &found { (row(id, session, context)) } }
                } }
            }
            (more(next))
        }
    })
}

fn row(id: &SessionId, session: &Session, context: &Context<'_>) -> Markup {
    html! {
        tr {
            td { (words::session(&id.tenant, &id.id)) }
            td { (state(word(session))) }
            td { @if let Some(lock) = &session.lock { (call(lock.call_id)) } }
            td.number { (session.waiting.len()) }
            @if context.is_admin() { td.less { (text(&id.tenant)) } }
        }
    }
}

fn word(session: &Session) -> &'static str {
    match (session.frozen, &session.lock) {
        (true, _) => "frozen",
        (false, Some(_)) => "locked",
        (false, None) => "free",
    }
}

/// The session that an address names.
pub(super) fn id(context: &Context<'_>) -> Result<SessionId, Problem> {
    Ok(SessionId {
        tenant: context.tenant()?,
        id: identity("the id", context.asked.text("id").to_owned())?,
    })
}

pub(super) async fn screen(context: &Context<'_>) -> Result<Screen, Problem> {
    let id = id(context)?;
    let sessions = &context.http.gateway.sessions;
    let session = sessions.find_session(&context.person.caller, &id).await?;
    let filter = Filter {
        session_id: Some(id.id.clone()),
        ..Filter::default()
    };
    let page = calls::some(context, Some(&id.tenant), filter, NEWEST).await?;
    let all = address::to(
        &["calls"],
        &[("session_id", &id.id), ("tenant", &id.tenant)],
    );
    let body = html! {
        p { (state(word(&session))) }
        dl {
            (fact("Tenant", &plain(&id.tenant)))
            (fact("Newest fencing token", &session.token.map_or_else(|| html! {}, |token| html! { (token) })))
            (budgets(context, &id).await?)
        }
        section.acts aria-label="What you may do" { (acts(&id, &session, context)) (context.may_not_act()) }
        (lock(&session, context))
        section { h2 { "Its calls" }
            @if page.found.is_empty() { p { "None." } }
            (calls::table("Its calls", &page.found, context))
            p { a href=(all) { "All of its calls" } }
        }
        section { h2 { "What persons did" } (history(&session.events, context.now)) }
    };
    Ok(Screen {
        title: format!("Session {}", id.id),
        tab: "sessions",
        body,
    })
}

fn acts(id: &SessionId, session: &Session, context: &Context<'_>) -> Markup {
    let of = [("id", id.id.as_str()), ("tenant", id.tenant.as_str())];
    let to = |act| address::to(&["session", act], &of);
    html! {
        @if session.frozen {
            (context.act(&to("thaw"), "Thaw", "Its writes begin again.", &[Field::Reason]))
        } @else {
            (context.act(
                &to("freeze"), "Freeze",
                "None of its writes begins until it is thawed. Running calls go on, and stored answers are replayed.",
                &[Field::Reason],
            ))
        }
        @if let Some(lock) = &session.lock {
            (context.act(
                &to("unlock"), "Take the lock away",
                "The next call in the line runs, whatever the one with the lock still does.",
                &[Field::Reason, Field::Seen(&lock.call_id.to_string())],
            ))
        }
    }
}

fn lock(session: &Session, context: &Context<'_>) -> Markup {
    html! {
        @if let Some(lock) = &session.lock {
            section {
                h2 { "Lock" }
                dl {
                    (fact("Call", &call(lock.call_id)))
                    (fact("Lease until", &when(lock.lease_until, context.now)))
                    (fact("Free from", &lock.free_from.map_or_else(|| html! {}, |at| when(at, context.now))))
                }
            }
        }
        @if !session.waiting.is_empty() {
            section {
                h2 { "Waiting, first in line first" }
                ol.events {
                    @for (call_id, since) in &session.waiting { li { (call(*call_id)) " since " (when(*since, context.now)) } }
                }
            }
        }
    }
}

/// How many calls of the session began within the window of each budget that counts by session.
async fn budgets(context: &Context<'_>, id: &SessionId) -> Result<Markup, Problem> {
    let tools = context.http.gateway.base.tools();
    let counted = tools.values().filter_map(|at| {
        let budget = at.tool.budget.filter(|budget| budget.per == Per::Session)?;
        Some((at.tool.name.clone(), budget))
    });
    let mut shown = Vec::new();
    for (tool, Budget { max, window, .. }) in counted.take(BUDGETS) {
        let since: Timestamp = before(context.http.gateway.now(), signed(window));
        let filter = Filter {
            session_id: Some(id.id.clone()),
            tool: Some(tool.clone()),
            since: Some(since),
            ..Filter::default()
        };
        let page = calls::some(context, Some(&id.tenant), filter, max.clamp(1, 200)).await?;
        if !page.found.is_empty() {
            let count = html! { (page.found.len()) " of " (max) " calls of " (text(&tool)) " in the last " (length(window)) };
            shown.push(fact("Budget", &count));
        }
    }
    Ok(html! { @for fact in &shown { (fact) } })
}
