//! What stands around every screen, and pages of failures.

use axum::Extension;
use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use super::super::problem::{self, Problem};
use super::address;
use super::assets::ADDRESSES;
use super::words::text;

/// What htmx may do: nothing that the policy of the page would forbid.
const HTMX: &str = "{\"allowEval\":false,\"includeIndicatorStyles\":false,\"allowScriptTags\":false,\
                    \"historyEnabled\":false,\"selfRequestsOnly\":true}";

/// The menu: each screen by its word in the address, and by its name.
const TABS: [(&str, &str); 8] = [
    ("", "Needs a person"),
    ("calls", "Calls"),
    ("sessions", "Sessions"),
    ("sagas", "Sagas"),
    ("reconciliations", "Reconciliations"),
    ("tools", "Tools"),
    ("store", "Store"),
    ("audit", "Audit"),
];

/// The part of a page that is a screen's own.
pub(super) struct Screen {
    pub(super) title: String,
    /// The entry of the menu that it belongs to.
    pub(super) tab: &'static str,
    pub(super) body: Markup,
}

/// The person who is signed in, as the menu shows them.
pub(super) struct Around<'a> {
    pub(super) name: &'a str,
    pub(super) form_token: &'a str,
    /// There is a session to end.
    pub(super) may_sign_out: bool,
}

/// A page with a screen on it. `here`: its own address.
pub(super) fn screen(screen: &Screen, around: &Around<'_>, here: &str, is_done: bool) -> Response {
    let body = html! {
        @if is_done {
            p.done role="status" { "Done. It stands in the audit under the name of your token." }
        }
        div #live hx-get=(here) hx-trigger="changed from:body" hx-select="#live" hx-swap="outerHTML"
            data-live=(address::to(&["live"], &[("at", here), ("seen", &digest(screen))])) {
            h1 { (text(&screen.title)) }
            (screen.body)
        }
    };
    Html(document(&screen.title, Some((around, screen.tab)), &body).into_string()).into_response()
}

/// The digest of a screen, whatever the ages of things on it are.
pub(super) fn digest(screen: &Screen) -> String {
    let mut hasher = Sha256::new();
    hasher.update(&screen.title);
    // No other text has this markup: it is escaped there.
    let mut parts = screen.body.0.split("<small data-");
    hasher.update(parts.next().unwrap_or_default());
    for part in parts {
        let (age, rest) = part.split_once("</small>").unwrap_or((part, ""));
        hasher.update(age.split('>').next().unwrap_or_default());
        hasher.update(rest);
    }
    hex::encode(&hasher.finalize()[..8])
}

/// A page that says something, around it nothing but the menu.
pub(super) fn plain(title: &str, around: Option<&Around<'_>>, body: &Markup) -> Response {
    let body = html! { h1 { (text(title)) } (body) };
    let around = around.map(|around| (around, "none"));
    Html(document(title, around, &body).into_string()).into_response()
}

/// A failure, with the status that the JSON doors give it.
pub(super) fn failure(problem: &Problem, around: Option<&Around<'_>>) -> Response {
    let (slug, row) = (problem.slug, problem.slug.row());
    let body = html! {
        p.failed role="alert" { (text(&problem.detail)) }
        p { (row.text) }
        p { a href=(address::ROOT) { "Needs a person" } " · " a href=(format!("/problems/{}", slug.as_str())) { "What this problem is" } }
    };
    let page = plain(row.title, around, &body);
    (row.status, Extension(slug), page).into_response()
}

pub(super) async fn wrong_method() -> Response {
    failure(&problem::method_not_allowed().await, None)
}

/// A whole page. `around`: the person, and the entry of the menu that is marked.
pub(super) fn document(title: &str, around: Option<(&Around<'_>, &str)>, body: &Markup) -> Markup {
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
                @if around.is_some() {
                    script src=(htmx) defer {}
                    script src=(live) defer {}
                }
            }
            body {
                a.skip href="#main" { "To the content" }
                header {
                    a.brand href=(address::ROOT) { "oncegate" }
                    @if let Some((around, tab)) = around { (menu(around, tab)) }
                }
                main #main tabindex="-1" { (body) }
                footer { "Times are UTC." }
            }
        }
    }
}

fn menu(around: &Around<'_>, tab: &str) -> Markup {
    html! {
        nav aria-label="Screens" {
            @for (word, name) in TABS {
                a href=(address_of(word)) aria-current=[(word == tab).then_some("page")] { (name) }
            }
        }
        form.find role="search" action=(address::to(&["calls"], &[])) {
            label { span.hidden { "Call, trace, key, session or saga" }
                input type="search" name="find" placeholder="Call, trace, key, session or saga" autocomplete="off"; }
            button type="submit" { "Find" }
        }
        div.who {
            span #heard role="status" {}
            span { (text(around.name)) }
            @if around.may_sign_out {
                form method="post" action=(address::to(&["sign-out"], &[])) {
                    input type="hidden" name="form" value=(around.form_token);
                    button type="submit" { "Sign out" }
                }
            }
        }
    }
}

/// The address of an entry of the menu.
fn address_of(word: &str) -> String {
    if word.is_empty() {
        address::ROOT.to_owned()
    } else {
        address::to(&[word], &[])
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::words::when;
    use super::*;

    #[test]
    fn an_age_changes_no_page_and_everything_else_does() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let digest = |made, now, more: &str| {
            digest(&Screen {
                title: "T".into(),
                tab: "",
                body: html! { p { (when(at(made), at(now))) } b { (more) } },
            })
        };
        let first = digest(100, 200, "a");
        assert_eq!(first, digest(100, 900_000, "a"));
        assert_ne!(first, digest(101, 200, "a"));
        assert_ne!(first, digest(100, 200, "b"));
        assert_ne!(first, digest(100, 50, "a"), "it was still to come");
    }
}
