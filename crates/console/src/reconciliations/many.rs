//! Undoing all anomalies of a kind: first a dry run with sums, then, confirmed, what became of them.

use axum::response::Response;
use maud::{Markup, html};

use super::table;
use crate::access::context::{Context, Field};
use crate::access::form::Form;
use crate::acts::{Acts, Done, Page};
use crate::calls::many_acts::confirmed;
use crate::frame::address;
use crate::frame::page;
use crate::frame::words::{fact, text};
use oncegate_http::problem::Problem;
use oncegate_reconcile::rules::Kind;
use oncegate_reconcile::{AskedFor, Found, ManyAnomalies, Report};

const WHAT: &str = "Undo all of these";

/// A form for each kind of which a report has anomalies.
pub(crate) fn forms(report: &Report, context: &Context) -> Markup {
    let kinds = Kind::ALL.into_iter();
    let kinds =
        kinds.filter(|kind| *kind != Kind::Settled && report.counts.contains_key(kind.as_str()));
    let kinds: Vec<Kind> = kinds.collect();
    html! {
        @if !kinds.is_empty() {
            section.acts aria-label="What you may do to all of these" {
                @for kind in kinds {
                    @let what = format!("Undo every {kind} of this reconciliation");
                    @let about = format!("Each {kind} that is only reported or was given up, of any run, is undone with the compensation of its tool. Before anything is done you see how many these are, and their sums.");
                    (context.act(&to(&report.name, kind.as_str()), &what, &about, &[Field::Reason]))
                }
            }
        }
    }
}

fn to(name: &str, kind: &str) -> String {
    address::to(
        &["anomalies", "compensate"],
        &[("name", name), ("kind", kind)],
    )
}

/// The act on all anomalies of a kind.
pub(crate) const ACTS: Acts = Acts {
    path: "/console/anomalies/{act}",
    page: |form| Page {
        path: vec!["reconciliation"],
        of: vec![("name", form.context.asked.text("name"))],
    },
    rows: &[("compensate", |form| Box::pin(compensate(form)))],
};

async fn compensate(form: &Form) -> Result<Done, Problem> {
    let (reconciler, caller) = (&form.context.console.reconciler, form.context.caller());
    let asked = &form.context.asked;
    let (name, word) = (asked.text("name"), asked.text("kind"));
    let mut kinds = Kind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.as_str() == word && *kind != Kind::Settled);
    let kind =
        kind.ok_or_else(|| Problem::invalid_request("kind is not one that can be undone"))?;
    let many = ManyAnomalies {
        kind,
        run: None,
        since: None,
        until: None,
    };
    let reason = form.reason()?;
    if let Some(confirmed) = confirmed(form)? {
        let asking = reconciler.compensate_many(caller, name, many, &reason, confirmed);
        let (_, became) = asking.await?;
        return Ok(Done::Page(ended(form, name, became)));
    }
    let found = reconciler.try_to_compensate(caller, name, &many).await?;
    Ok(Done::Page(ask(form, name, kind, &found)))
}

/// Shows the anomalies and their sums, and the form that confirms the act.
fn ask(form: &Form, name: &str, kind: Kind, found: &Found) -> Response {
    let count = found.summary.count.to_string();
    let reason = form.fields.text("reason");
    let carried = [
        ("form", form.context.operator.form_token.as_str()),
        ("reason", reason),
        ("count", &count),
        ("digest", &found.summary.digest),
    ];
    let body = html! {
        p { b { (count) " of the kind " (kind.as_str()) } ". Nothing has been done yet. Each is undone with the compensation of its tool." }
        dl {
            @for (pointer, sum) in &found.sums {
                div {
                    dt { "Sum of " code { (text(pointer)) } }
                    dd { (sum.text()) @if sum.without > 0 { ", and " (sum.without) " without a number" } }
                }
            }
            (fact("Reason", text(reason)))
            (fact("Would refuse it now", html! { @if found.refused > 0 { (found.refused) } }))
        }
        @if found.summary.count > 0 {
            form method="post" action=(to(name, kind.as_str())) {
                @for (field, value) in carried { input type="hidden" name=(field) value=(value); }
                button type="submit" { "Undo " (count) }
            }
        }
        @if !found.sample.is_empty() { (table(name, &found.sample)) }
        p { a href=(super::to(name)) { "Back to the reconciliation" } }
    };
    page::plain(WHAT, Some(&form.context.operator), &body)
}

fn ended(form: &Form, name: &str, became: AskedFor) -> Response {
    let counts = [
        ("Changed meanwhile, and not touched", became.changed),
        ("Refused by the rules", became.refused),
        (
            "Not answered by the store: asked for or not",
            became.unclear,
        ),
    ];
    let body = html! {
        p.done role="status" { (became.asked) " are being undone. It stands in the audit under the name of your token." }
        dl { @for (what, count) in counts { @if count > 0 { (fact(what, count)) } } }
        p { a href=(super::to(name)) { "Back to the reconciliation" } " · " a href=(address::to(&["audit"], &[])) { "The audit" } }
    };
    page::plain(WHAT, Some(&form.context.operator), &body)
}
