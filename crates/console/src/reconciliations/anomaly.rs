//! One anomaly, a disagreement of ledger and source, and the acts that an operator may ask for.

use maud::{Markup, html};

use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::frame::address;
use crate::frame::page::Screen;
use crate::frame::words::{call, fact, moment, state, text, when};
use oncegate_http::problem::Problem;
use oncegate_reconcile::rules::anomaly::{Case, Request};

pub(crate) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let (name, id) = (context.asked.text("name"), context.asked.text("id"));
    let reconciler = &context.console.reconciler;
    let found = reconciler.find_anomaly(context.caller(), name, id).await?;
    let (kind, state) = (found.listed.kind, found.state);
    let title = format!("Anomaly: {kind}, {}", state.as_str());
    let body = html! { (about(&found, context)) (acts(&found, context)) };
    Ok(Screen::new("reconciliations", title, body))
}

/// The facts about an anomaly.
pub(crate) fn about(found: &Case, context: &Context) -> Markup {
    let listed = &found.listed;
    let run = [("name", found.reconciliation.as_str()), ("run", &found.run)];
    let made = listed.made_at.map(|at| moment(at, context.now));
    html! {
        p { (state(found.state.as_str())) " " b { (listed.kind.as_str()) } " " (text(&listed.detail)) }
        @if let Some(why) = &found.error { p.failed { (text(why)) } }
        dl {
            (fact("Found", when(found.created_at, context.now)))
            (fact("Effect made", made.unwrap_or_default()))
            @for (pointer, value) in &listed.shown {
                div { dt { code { (text(pointer)) } } dd { (text(&value.to_string())) } }
            }
            (fact("Effect", html! { code { (text(&listed.effect)) } }))
            (fact("Key at the tool", text(&listed.key)))
            (fact("Call", listed.call().map(call).unwrap_or_default()))
            (fact("Act", text(listed.action.as_str())))
            (fact("Reconciliation", html! {
                a href=(address::to(&["reconciliation"], &run)) { (text(&found.reconciliation)) } ", source " (text(&listed.source))
            }))
            @if let Some(acted) = &listed.acted {
                (fact("An operator asked for", html! {
                    (acted.act.as_str()) " " (moment(acted.at, context.now)) " by " (text(&acted.by)) ": " (text(&acted.reason))
                }))
            }
        }
    }
}

/// The acts that an operator may ask for.
pub(crate) fn acts(found: &Case, context: &Context) -> Markup {
    let of = [
        ("name", found.reconciliation.as_str()),
        ("id", &found.listed.id),
    ];
    context.acts(&html! {
        @for request in found.requests() {
            @let (what, about) = words(request);
            (context.act(&address::to(&["anomaly", request.as_str()], &of), what, about, &[Field::Reason]))
        }
    })
}

fn words(request: Request) -> (&'static str, &'static str) {
    match request {
        Request::Compensate => (
            "Undo it",
            "The call, or the effect that is one too many, is undone with the compensation of its tool. Look into the tool's own system first.",
        ),
        Request::Ignore => (
            "Ignore it",
            "Nothing is done about it, and no later run takes it up again.",
        ),
        Request::Adopt => (
            "Adopt it",
            "The ledger has forgotten this call: it is written back as one that succeeded, so that its repetition is a replay.",
        ),
    }
}

/// The acts on an anomaly.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/anomaly/{act}",
    page: |form| Page {
        path: vec!["anomaly"],
        of: name_and_id(form).to_vec(),
    },
    rows: &[
        ("compensate", |form| {
            Box::pin(act(form, Request::Compensate))
        }),
        ("ignore", |form| Box::pin(act(form, Request::Ignore))),
        ("adopt", |form| Box::pin(act(form, Request::Adopt))),
    ],
};

fn name_and_id(form: &Form) -> [(&'static str, &str); 2] {
    let asked = &form.context.asked;
    [("name", asked.text("name")), ("id", asked.text("id"))]
}

async fn act(form: &Form, request: Request) -> Result<Done, Problem> {
    let (reconciler, caller) = (&form.context.console.reconciler, form.context.caller());
    let [(_, name), (_, id)] = name_and_id(form);
    let reason = form.reason()?;
    let acting = reconciler.act_on_anomaly(caller, name, id, request, &reason);
    acting.await?;
    Ok(Done::Back)
}
