//! The data of a user, whose calls a list shows: erasing it.

use axum::response::Response;
use maud::{Markup, html};

use crate::access::context::Context;
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page;
use crate::frame::words::{fact, state, text, when};
use oncegate_http::ledger::users::{STAYS, next_step};
use oncegate_http::problem::Problem;
use oncegate_rules::erasure::Erasure;

/// The form that erases the user whose calls are listed.
pub(crate) fn erase(context: &Context) -> Result<Markup, Problem> {
    let user = context.asked.text("user_id");
    let tenant = context.tenant()?;
    let to = address::to(&["user", "erase"], &[("id", user), ("tenant", &tenant)]);
    let about = format!(
        "Of all calls of the user {user} of the tenant {tenant} arguments, results and names are erased for good: of those that \
         have ended now, of the others when they have ended. Kept are {STAYS}."
    );
    Ok(html! {
        @if !user.is_empty() && context.is_admin() {
            section.acts aria-label="What you may do about this user" {
                (context.act(&to, "Erase the user's data", &about, &[]))
            }
        }
    })
}

/// The act on a user.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/user/erase",
    page: |_| Page {
        path: vec!["calls"],
        of: Vec::new(),
    },
    rows: &[("erase", |form| Box::pin(erased(form)))],
};

async fn erased(form: &Form) -> Result<Done, Problem> {
    let [id, tenant] = form.checked_id_and_tenant()?;
    let context = &form.context;
    let erasures = &context.gateway().erasures;
    let (wish, now) = erasures.erase_user(context.caller(), &tenant, &id).await?;
    Ok(Done::Page(became(&wish, (&id, &tenant, now), context)))
}

/// The page that says what was erased, what is kept, and what comes next.
fn became(wish: &Erasure, (id, tenant, now): (&str, &str, u64), context: &Context) -> Response {
    let waiting = wish.waiting;
    let counts = [
        ("Erased now", now),
        ("Erased in all", wish.erased),
        ("Still running", waiting.running),
        ("Unknown", waiting.unknown),
        ("In a saga that has not ended", waiting.in_saga),
        ("Not readable", waiting.unreadable),
    ];
    let body = html! {
        p.done role="status" { (text(next_step(wish))) }
        dl {
            (fact("User", text(id)))
            (fact("Tenant", text(tenant)))
            (fact("State", state(wish.progress().as_str())))
            @for (name, count) in counts { (fact(name, count)) }
            @if let Some(until) = wish.stored_until {
                (fact("Kept until", when(until, context.now)))
                (fact("What is kept", STAYS))
            }
        }
        p { a href=(address::to(&["calls"], &[("user_id", id), ("tenant", tenant)])) { "What is left of the user" } " · "
            a href=(address::to(&["audit"], &[])) { "The audit" } }
    };
    page::plain("Erase the user's data", Some(&context.operator), &body)
}
