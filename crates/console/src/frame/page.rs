//! The parts of every page: head, menu and footer. And pages of failures.

use axum::Extension;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use crate::access::operator::Operator;
use crate::frame::address;
use crate::frame::assets::ADDRESSES;
use crate::frame::words::text;
use oncegate_http::problem::{self, Problem};

/// What htmx may do: nothing that the policy of the page would forbid.
const HTMX: &str = "{\"allowEval\":false,\"includeIndicatorStyles\":false,\"allowScriptTags\":false,\
                    \"historyEnabled\":false,\"selfRequestsOnly\":true}";

/// The menu: each screen by its word in the address, and by its name.
const TABS: [(&str, &str); 9] = [
    ("", "Needs an operator"),
    ("approvals", "Approvals"),
    ("calls", "Calls"),
    ("sessions", "Sessions"),
    ("sagas", "Sagas"),
    ("reconciliations", "Reconciliations"),
    ("tools", "Tools"),
    ("store", "Store"),
    ("audit", "Audit"),
];

/// The part of a page below its menu.
pub(crate) struct Screen {
    title: String,
    /// The entry of the menu that it belongs to.
    tab: &'static str,
    body: Markup,
    /// Whether it changes while it is read.
    is_live: bool,
}

impl Screen {
    pub(crate) fn new(tab: &'static str, title: impl Into<String>, body: Markup) -> Self {
        Self {
            title: title.into(),
            tab,
            body,
            is_live: true,
        }
    }

    /// A screen that stays as it was loaded.
    pub(crate) fn still(tab: &'static str, title: impl Into<String>, body: Markup) -> Self {
        Self {
            is_live: false,
            ..Self::new(tab, title, body)
        }
    }
}

/// A page with a screen on it. `here`: its own address. `is_done`: an act has just led to it.
pub(crate) fn screen(screen: &Screen, operator: &Operator, here: &str, is_done: bool) -> Response {
    let body = html! {
        @if is_done {
            p.done role="status" { "Done. It stands in the audit under the name of your token." }
        }
        @if screen.is_live {
            div #live hx-get=(here) hx-trigger="changed from:body" hx-select="#live" hx-swap="outerHTML"
                data-live=(address::to(&["live"], &[("at", here), ("seen", &digest(screen))])) {
                h1 { (text(&screen.title)) }
                (screen.body)
            }
        } @else {
            h1 { (text(&screen.title)) }
            (screen.body)
        }
    };
    Html(document(&screen.title, Some((operator, screen.tab)), &body).into_string()).into_response()
}

/// The digest of a screen without the ages on it.
pub(crate) fn digest(screen: &Screen) -> String {
    let mut hasher = Sha256::new();
    hasher.update(&screen.title);
    // Only an age has this markup: in texts it is escaped.
    let mut parts = screen.body.0.split("<small data-");
    hasher.update(parts.next().unwrap_or_default());
    for part in parts {
        let (age, rest) = part.split_once("</small>").unwrap_or((part, ""));
        hasher.update(age.split('>').next().unwrap_or_default());
        hasher.update(rest);
    }
    hex::encode(&hasher.finalize()[..8])
}

/// A page that is not a screen: it is not kept current.
pub(crate) fn plain(title: &str, operator: Option<&Operator>, body: &Markup) -> Response {
    let body = html! { h1 { (text(title)) } (body) };
    let operator = operator.map(|operator| (operator, "none"));
    Html(document(title, operator, &body).into_string()).into_response()
}

/// The page of a failure, with the status that the JSON routes give it.
pub(crate) fn failure(problem: &Problem, operator: Option<&Operator>) -> Response {
    let (slug, row) = (problem.slug, problem.slug.row());
    let body = html! {
        p.failed role="alert" { (text(&problem.detail)) }
        p { (row.text) }
        p { a href=(address::ROOT) { "Needs an operator" } " · " a href=(format!("/problems/{}", slug.as_str())) { "What this problem is" } }
    };
    let page = plain(row.title, operator, &body);
    (row.status, Extension(slug), page).into_response()
}

pub(crate) async fn wrong_method() -> Response {
    failure(&problem::method_not_allowed().await, None)
}

/// A whole page. The menu shows the operator, and marks the entry of this word.
fn document(title: &str, operator: Option<(&Operator, &str)>, body: &Markup) -> Markup {
    let [style, htmx, live, icon] = &*ADDRESSES;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(HTMX);
                title { (text(title)) " - oncegate" }
                link rel="stylesheet" href=(style);
                link rel="icon" href=(icon);
                @if operator.is_some() {
                    script src=(htmx) defer {}
                    script src=(live) defer {}
                }
            }
            body {
                a.skip href="#main" { "To the content" }
                header {
                    a.brand href=(address::ROOT) { "oncegate" }
                    @if let Some((operator, tab)) = operator { (menu(operator, tab)) }
                }
                main #main tabindex="-1" { (body) }
                footer { "Times are UTC." }
            }
        }
    }
}

/// Whether this build has the screen of a tab.
fn is_here((word, _): &(&str, &str)) -> bool {
    cfg!(feature = "reconcile") || *word != "reconciliations"
}

fn menu(operator: &Operator, tab: &str) -> Markup {
    html! {
        nav aria-label="Screens" {
            @for (word, name) in TABS.into_iter().filter(is_here) {
                a href=(address::to(&[word], &[])) aria-current=[(word == tab).then_some("page")] { (name) }
            }
        }
        form.find role="search" action=(address::to(&["calls"], &[])) {
            label { span.hidden { "Call, trace, key, session or saga" }
                input type="search" name="find" placeholder="Call, trace, key, session or saga" autocomplete="off"; }
            button type="submit" { "Find" }
        }
        div.who {
            span #heard role="status" {}
            span { (text(&operator.caller.name)) }
            @if operator.may_sign_out() {
                form method="post" action=(address::to(&["sign-out"], &[])) {
                    input type="hidden" name="form" value=(operator.form_token);
                    button type="submit" { "Sign out" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::frame::words::when;

    #[test]
    fn an_age_changes_no_page_and_everything_else_does() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let digest = |made, now, more: &str| {
            let body = html! { p { (when(at(made), at(now))) } b { (more) } };
            digest(&Screen::new("", "T", body))
        };
        let first = digest(100, 200, "a");
        assert_eq!(first, digest(100, 900_000, "a"));
        assert_ne!(first, digest(101, 200, "a"));
        assert_ne!(first, digest(100, 200, "b"));
        assert_ne!(first, digest(100, 50, "a"), "it was still to come");
    }
}
