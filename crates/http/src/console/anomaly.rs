//! One anomaly, a disagreement of ledger and source, and the acts that an operator may ask for.

use maud::{Markup, html};

use super::super::problem::Problem;
use super::address;
use super::context::{Context, Field};
use super::page::Screen;
use super::words::{call, fact, moment, state, text, when};
use oncegate_rules::reconcile::anomaly::{Case, Request};

/// The address of an anomaly's page.
pub(super) fn to(reconciliation: &str, id: &str) -> String {
    address::to(&["anomaly"], &[("name", reconciliation), ("id", id)])
}

pub(super) async fn screen(context: &Context) -> Result<Screen, Problem> {
    let (name, id) = (context.asked.text("name"), context.asked.text("id"));
    let reconciler = &context.gateway().reconciler;
    let found = reconciler.find_anomaly(context.caller(), name, id).await?;
    let (kind, state) = (found.listed.kind, found.state);
    let title = format!("Anomaly: {kind}, {}", state.as_str());
    let body = html! { (about(&found, context)) (acts(&found, context)) };
    Ok(Screen::new("reconciliations", title, body))
}

/// The facts about an anomaly.
pub(super) fn about(found: &Case, context: &Context) -> Markup {
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
pub(super) fn acts(found: &Case, context: &Context) -> Markup {
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
