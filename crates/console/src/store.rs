//! The store: whether it takes calls, how durable it is, and its warnings.

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{fact, state, text, when};
use oncegate_engine::{LOST_DATA, Reason};
use oncegate_http::problem::Problem;

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let readiness = context.gateway().status.recent_readiness().await;
    let is_ready = readiness.reasons.is_empty();
    let durability = readiness.durability.map(|class| class.as_str());
    let whole_since = readiness.whole_since.map(|at| when(at, context.now));
    let mut reasons = readiness.reasons.iter();
    let has_lost = reasons.any(|reason| reason.code == LOST_DATA);
    let is_accepting = context.gateway().loss.is_under_way();
    let body = html! {
        p { (state(if is_ready { "ready" } else { "not ready" })) " "
            @if is_ready { "Calls may be claimed." } @else { "Write tools may not be called: nothing is claimed." } }
        dl {
            (fact("Durability", text(durability.unwrap_or("not known"))))
            (fact("Every call is known since", whole_since.unwrap_or_default()))
            (fact("Writes of this gateway that the store has lost", readiness.lost_writes))
        }
        section { h2 { "Why nothing is claimed" } (listed(&readiness.reasons, context)) }
        section { h2 { "Warnings" } (listed(&readiness.warnings, context)) }
        @if is_accepting {
            p { "The loss is being accepted, which takes up to half a minute. What it waits for is among the reasons." }
        } @else if has_lost {
            (context.acts(&context.act(
                &address::to(&["store", "accept-loss"], &[]),
                "Accept the loss",
                "Only after you know which data is lost: a key that the store has forgotten is free afterwards, and its repetition \
                 is executed. Calls that ran or had failed become unknown.",
                &[Field::Reason],
            )))
        }
    };
    Ok(Screen::new("store", "Store", body))
}

/// Reasons by their codes. Administrators also see the sentences, which name addresses and tools.
fn listed(reasons: &[Reason], context: &Context) -> Markup {
    html! {
        @if reasons.is_empty() { p { "None." } }
        ul.things {
            @for reason in reasons {
                li { article { b { (text(reason.code)) } @if context.is_admin() { p { (text(&reason.text)) } } } }
            }
        }
    }
}

/// The act on the store.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/store/accept-loss",
    page: |_| Page {
        path: vec!["store"],
        of: Vec::new(),
    },
    rows: &[("accept-loss", |form| Box::pin(accept_loss(form)))],
};

async fn accept_loss(form: &Form) -> Result<Done, Problem> {
    let (loss, caller) = (&form.context.gateway().loss, form.context.caller());
    let accepting = loss.begin_to_accept_loss(caller.clone(), form.reason()?);
    // The store's page says whether it is done, or what it waits for.
    accepting.await?;
    Ok(Done::Back)
}
