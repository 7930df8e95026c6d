//! Times, states, texts and tables, as people read them.

use std::time::Duration;

use jiff::Timestamp;
use maud::{Markup, Render, html};

use crate::frame::address;
use oncegate_rules::record::{CallId, Entry, Intent};

/// The longest text of a call in a page, in bytes. The JSON route has the whole text.
const MOST_JSON: usize = 16 << 10;

/// A text of a caller or a tool, safe on a page.
pub(crate) struct Text<'a>(&'a str);

/// Shows a text of a caller or a tool: markup as text, an invisible character as its number.
pub(crate) fn text(text: &str) -> Text<'_> {
    Text(text)
}

impl Render for Text<'_> {
    fn render_to(&self, to: &mut String) {
        plain(self.0).render_to(to);
    }
}

/// A text with the numbers of its invisible characters in their places.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_hidden(letter) {
            true => plain.push_str(&format!("\\u{{{:x}}}", u32::from(letter))),
            false => plain.push(letter),
        }
    }
    plain
}

/// Whether a character is invisible, or changes how others are shown.
fn is_hidden(letter: char) -> bool {
    letter.is_control() && letter != '\n'
        || matches!(
            letter,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}'
        )
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// A span of time in one number.
fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// The time from one moment to a later one.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// A length of time, as it was measured.
pub(crate) fn length(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{} ms", time.as_millis())
    } else {
        span(time)
    }
}

/// A time in UTC with its age, or with how far it is away.
pub(crate) fn when(time: Timestamp, now: Timestamp) -> Markup {
    let second = time.as_second();
    html! {
        time datetime=(format!("{time:.3}")) { (time.strftime("%F %T")) } " "
        @if time > now {
            small data-until=(second) { "in " (span(between(now, time))) }
        } @else {
            small data-since=(second) { (span(between(time, now))) " ago" }
        }
    }
}

/// A moment kept as microseconds since 1970.
#[cfg(feature = "reconcile")]
pub(crate) fn moment(microseconds: i64, now: Timestamp) -> Markup {
    match Timestamp::from_microsecond(microseconds) {
        Ok(time) => when(time, now),
        Err(_) => html! { "?" },
    }
}

/// A state by word and by colour.
pub(crate) fn state(word: &str) -> Markup {
    html! { span.state data-state=(word) { (text(word)) } }
}

/// A link to a call.
pub(crate) fn call(call_id: CallId) -> Markup {
    let id = call_id.to_string();
    html! { a.id href=(address::to(&["calls", &id], &[])) { (id) } }
}

pub(crate) fn session(tenant: &str, id: &str) -> Markup {
    let to = address::to(&["session"], &[("id", id), ("tenant", tenant)]);
    html! { a.id href=(to) { (text(id)) } }
}

pub(crate) fn saga(tenant: &str, id: &str) -> Markup {
    let to = address::to(&["saga"], &[("id", id), ("tenant", tenant)]);
    html! { a.id href=(to) { (text(id)) } }
}

pub(crate) fn tool(name: &str) -> Markup {
    html! { a href=(address::to(&["tool"], &[("name", name)])) { (text(name)) } }
}

/// The calls of one trace.
pub(crate) fn trace(id: &str) -> Markup {
    let to = address::to(&["calls"], &[("trace_id", id)]);
    html! { a.id href=(to) { (text(id)) } }
}

/// The saga and the session of a call, where it has them.
pub(crate) fn belongs_to(intent: &Intent) -> Markup {
    html! {
        @if !intent.session_id.is_empty() {
            "session " (session(&intent.tenant, &intent.session_id)) " "
        }
        @if !intent.saga_id.is_empty() {
            "saga " (saga(&intent.tenant, &intent.saga_id))
        }
    }
}

/// One entry of a list of facts; nothing if its value is empty.
pub(crate) fn fact(name: &str, value: impl Render) -> Markup {
    let value = value.render();
    html! {
        @if !value.0.is_empty() { div { dt { (name) } dd { (value) } } }
    }
}

/// A table. A narrow window shows the columns, but not the further ones.
pub(crate) fn table(name: &str, columns: &[&str], further: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide role="region" aria-label=(name) tabindex="0" {
            table {
                thead { tr {
                    @for column in columns { th scope="col" { (column) } }
                    @for column in further { th.less scope="col" { (column) } }
                } }
                tbody { (rows) }
            }
        }
    }
}

/// A choice of one word, or of any.
pub(crate) fn choice<'a>(
    label: &str,
    name: &str,
    words: impl IntoIterator<Item = &'a str>,
    chosen: &str,
) -> Markup {
    html! {
        label { (label) select name=(name) {
            option value="" { "any" }
            @for word in words { option value=(word) selected[word == chosen] { (word) } }
        } }
    }
}

/// A history, oldest first.
pub(crate) fn history(entries: &[Entry], now: Timestamp) -> Markup {
    html! {
        @if entries.is_empty() { p { "None." } }
        ol.events {
            @for entry in entries {
                li {
                    p {
                        b { (text(&entry.event)) } " "
                        @if let Some(outcome) = &entry.outcome { (state(outcome)) " " }
                        (when(entry.at, now)) " by " (text(&entry.by))
                    }
                    @if !entry.detail.is_empty() { p.detail { (text(&entry.detail)) } }
                }
            }
        }
    }
}

/// A JSON text over several lines. The bytes of its values stay as they are.
pub(crate) fn json(bytes: &[u8]) -> Markup {
    let whole = String::from_utf8_lossy(bytes);
    let shown = whole.get(..whole.floor_char_boundary(MOST_JSON));
    let shown = indented(shown.unwrap_or_default());
    html! {
        pre { code { (text(&shown)) } }
        @if whole.len() > MOST_JSON {
            p.note { "The first " (MOST_JSON) " of " (whole.len()) " bytes; the command below gets all." }
        }
    }
}

/// A JSON text with line ends and spaces between its values.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut letters = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth.min(20)));
    };
    while let Some(letter) = letters.next() {
        if in_string {
            out.push(letter);
            (in_string, is_escaped) = match letter {
                _ if is_escaped => (true, false),
                '\\' => (true, true),
                '"' => (false, false),
                _ => (true, false),
            };
            continue;
        }
        match letter {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' => {
                out.push(letter);
                while letters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                if letters.peek().is_some_and(|next| matches!(next, '}' | ']')) {
                    continue;
                }
                depth += 1;
                line(&mut out, depth);
            }
            '}' | ']' => {
                if !out.ends_with(['{', '[']) {
                    depth = depth.saturating_sub(1);
                    line(&mut out, depth);
                }
                out.push(letter);
            }
            ',' => {
                out.push(letter);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            letter => {
                in_string = letter == '"';
                out.push(letter);
            }
        }
    }
    out
}

/// A link to further entries.
pub(crate) fn more(next: Option<String>) -> Markup {
    html! {
        @if let Some(next) = next {
            p.more { a href=(next) rel="next" { "Older" } }
        }
    }
}

/// A text as one word of a shell command.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(given: &str) -> String {
        html! { (text(given)) }.into_string()
    }

    #[test]
    fn markup_is_text_and_what_cannot_be_seen_is_a_number() {
        assert_eq!(shown("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c'");
        assert_eq!(
            shown("a\u{0}\u{1b}[2J\u{7f}\u{9b}"),
            "a\\u{0}\\u{1b}[2J\\u{7f}\\u{9b}"
        );
        assert_eq!(
            shown("ab\u{202e}dc\u{2066}\u{200b}\u{e0041}"),
            "ab\\u{202e}dc\\u{2066}\\u{200b}\\u{e0041}"
        );
        assert_eq!(shown("Grüße, 世界\n"), "Grüße, 世界\n");
    }

    #[test]
    fn json_is_spread_over_lines_and_no_value_changes() {
        let given = "{\"a\":[1,2.50,{}],\"b\\\"{\":\"x:,[\\\\\",\"c\": [ ]}";
        let spread = indented(given);
        assert_eq!(
            spread,
            "{\n  \"a\": [\n    1,\n    2.50,\n    {}\n  ],\n  \"b\\\"{\": \"x:,[\\\\\",\n  \"c\": []\n}"
        );
        assert_eq!(indented("\"cut of"), "\"cut of");
        assert_eq!(indented("]]}"), "\n]\n]\n}");
    }

    #[test]
    fn ages_are_said_in_one_number() {
        let said = [0, 119, 120, 7_199, 7_200, 172_799, 172_800];
        let said = said.map(|seconds| span(Duration::from_secs(seconds)));
        assert_eq!(
            said,
            ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]
        );
    }

    #[test]
    fn a_quoted_word_is_one_word_of_a_shell() {
        assert_eq!(quoted("a'; rm -rf $HOME"), "'a'\\''; rm -rf $HOME'");
    }
}
