//! Lists of what needs an operator.

use maud::{Markup, html};

/// One thing that needs an operator: what it is, what is known, and the acts.
pub(crate) fn thing(head: Markup, about: Markup, acts: Markup) -> Markup {
    html! { li { article { h3 { (head) } (about) (acts) } } }
}

/// A list of things; nothing if it is empty. `has_more`: whether there are more than these.
pub(crate) fn part(name: &str, things: Vec<Markup>, has_more: bool, more: &Markup) -> Markup {
    let and_more = if has_more { " and more" } else { "" };
    let count = format!("{}{and_more}", things.len());
    counted_part(name, &count, &things, more)
}

/// The same, with a count in words.
pub(crate) fn counted_part(name: &str, count: &str, things: &[Markup], more: &Markup) -> Markup {
    html! {
        @if !things.is_empty() {
            section {
                h2 { (name) " " span.count { (count) } }
                ul.things { @for thing in things { (thing) } }
                (more)
            }
        }
    }
}
