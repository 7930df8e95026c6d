//! The lists of sessions, and one session: its fencing token, lock, waiting calls, budgets and acts.

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::calls;
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{self, call, fact, history, length, state, text, when};
use oncegate_engine::SessionFilter;
use oncegate_http::problem::Problem;
use oncegate_http::read::identity;
use oncegate_rules::ledger::Filter;
use oncegate_rules::many::SeenVersion;
use oncegate_rules::session::{Session, SessionId};
use oncegate_rules::time::{before, signed};
use oncegate_rules::tool::{Budget, Per};

/// Newest calls of a session that its page shows.
const NEWEST: u32 = 20;
/// Tools with a budget that its page counts.
const BUDGETS: usize = 20;

pub(crate) async fn list(context: &Context) -> Result<Screen, Problem> {
    let body = html! {
        form.filters action=(address::to(&["session"], &[])) {
            label { "Session" input type="text" name="id" required; }
            @if context.is_admin() { label { "Tenant" input type="text" name="tenant"; } }
            button type="submit" { "Show" }
        }
        (part(context, "frozen", "Frozen").await?)
        (part(context, "locked", "Locked").await?)
    };
    Ok(Screen::new("sessions", "Sessions", body))
}

/// The sessions that are frozen, or those that are locked. Each list has a cursor of its own.
async fn part(context: &Context, which: &str, title: &str) -> Result<Markup, Problem> {
    let filter = SessionFilter {
        frozen: which == "frozen",
        locked: which == "locked",
    };
    let query = context.page_query(which, filter)?;
    let sessions = &context.gateway().sessions;
    let (found, next) = sessions.list_sessions(context.caller(), &query).await?;
    let columns = ["Session", "State", "Locked by", "Waiting"];
    let rows = html! { @for (id, session) in &found { (row(id, session, context)) } };
    Ok(html! {
        section {
            h2 { (title) }
            @if found.is_empty() { p { "None." } } @else {
                (words::table(title, &columns, context.tenant_column(), &rows))
            }
            (context.older("sessions", which, next))
        }
    })
}

fn row(id: &SessionId, session: &Session, context: &Context) -> Markup {
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

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let id = SessionId {
        tenant: context.tenant()?,
        id: identity("the id", context.asked.text("id").to_owned())?,
    };
    let sessions = &context.gateway().sessions;
    let session = sessions.find_session(context.caller(), &id).await?;
    let filter = calls::only("session_id", &id.id);
    let page = calls::newest(context, Some(&id.tenant), filter, NEWEST).await?;
    let of = [("session_id", id.id.as_str()), ("tenant", &id.tenant)];
    let all = address::to(&["calls"], &of);
    let body = html! {
        p { (state(word(&session))) }
        dl {
            (fact("Tenant", text(&id.tenant)))
            (fact("Newest fencing token", html! { @if let Some(token) = session.token { (token) } }))
            (budgets(context, &id).await?)
        }
        (context.acts(&acts(&id, &session, context)))
        (lock(&session, context))
        section { h2 { "Its calls" }
            @if page.found.is_empty() { p { "None." } }
            (calls::table("Its calls", &page.found, context))
            p { a href=(all) { "All of its calls" } }
        }
        section { h2 { "What operators did" } (history(&session.events, context.now)) }
    };
    Ok(Screen::new("sessions", format!("Session {}", id.id), body))
}

fn act_on(id: &SessionId, act: &str) -> String {
    address::to(&["session", act], &[("id", &id.id), ("tenant", &id.tenant)])
}

/// The form that lets the writes of a frozen session begin again.
pub(crate) fn thaw(id: &SessionId, context: &Context) -> Markup {
    let to = act_on(id, "thaw");
    context.act(&to, "Thaw", "Its writes begin again.", &[Field::Reason])
}

fn acts(id: &SessionId, session: &Session, context: &Context) -> Markup {
    let to = |act| act_on(id, act);
    html! {
        @if session.frozen {
            (thaw(id, context))
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
                &[Field::Reason, Field::Seen(&SeenVersion::of_lock(lock).to_hex())],
            ))
        }
    }
}

fn lock(session: &Session, context: &Context) -> Markup {
    html! {
        @if let Some(lock) = &session.lock {
            section {
                h2 { "Lock" }
                dl {
                    (fact("Call", call(lock.call_id)))
                    (fact("Lease until", when(lock.lease_until, context.now)))
                    (fact("Free from", html! { @if let Some(at) = lock.free_from { (when(at, context.now)) } }))
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

/// The calls of a session within the window of each budget that counts by session.
async fn budgets(context: &Context, id: &SessionId) -> Result<Markup, Problem> {
    let tools = context.gateway().base.tools();
    let counted = tools.values().filter_map(|at| {
        let budget = at.tool.budget.filter(|budget| budget.per == Per::Session)?;
        Some((at.tool.name.clone(), budget))
    });
    let mut shown = Vec::new();
    for (tool, Budget { max, window, .. }) in counted.take(BUDGETS) {
        let filter = Filter {
            tool: Some(tool.clone()),
            since: Some(before(context.gateway().now(), signed(window))),
            ..calls::only("session_id", &id.id)
        };
        let page = calls::newest(context, Some(&id.tenant), filter, max.clamp(1, 200)).await?;
        if !page.found.is_empty() {
            let count = html! { (page.found.len()) " of " (max) " calls of " (text(&tool)) " in the last " (length(window)) };
            shown.push(fact("Budget", count));
        }
    }
    Ok(html! { @for fact in &shown { (fact) } })
}

/// The acts on a session.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/session/{act}",
    page: |form| Page {
        path: vec!["session"],
        of: form.id_and_tenant().to_vec(),
    },
    rows: &[
        ("freeze", |form| Box::pin(set_frozen(form, true))),
        ("thaw", |form| Box::pin(set_frozen(form, false))),
        ("unlock", |form| Box::pin(unlock(form))),
    ],
};

fn id_in(form: &Form) -> Result<SessionId, Problem> {
    let [id, tenant] = form.checked_id_and_tenant()?;
    Ok(SessionId { tenant, id })
}

async fn set_frozen(form: &Form, frozen: bool) -> Result<Done, Problem> {
    let (id, reason) = (id_in(form)?, form.reason()?);
    let (sessions, caller) = (&form.context.gateway().sessions, form.context.caller());
    sessions.set_frozen(caller, &id, frozen, &reason).await?;
    Ok(Done::Back)
}

async fn unlock(form: &Form) -> Result<Done, Problem> {
    let (id, reason) = (id_in(form)?, form.reason()?);
    let (sessions, caller) = (&form.context.gateway().sessions, form.context.caller());
    let seen = SeenVersion::from_hex(form.fields.text("seen"));
    let unlocking = sessions.unlock_session(caller, &id, &reason, Some(seen));
    unlocking.await?;
    Ok(Done::Back)
}
