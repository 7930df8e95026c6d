//! The forms for acts on all calls or sagas of a list.

use maud::{Markup, html};

use crate::access::context::{Context, Field};

/// Parameters of a list that are not filters.
pub(crate) const NO_FILTERS: [&str; 3] = ["cursor", "limit", "done"];

/// An act: its word in an address, its name, and what it does.
pub(crate) type Words = (&'static str, &'static str, &'static str);

pub(crate) const ASK: Words = (
    "probe",
    "Ask the tools of all of these",
    "Each tool is asked whether it knows the keys. Nothing is sent again.",
);
pub(crate) const SUCCEEDED: Words = (
    "succeeded",
    "Settle all of these: they were executed",
    "Look into the tools' own systems first. From now on every duplicate gets the result that you write here.",
);
pub(crate) const FAILED: Words = (
    "failed",
    "Settle all of these: they were not executed",
    "Only if the tools' own systems show that. The next repetition of each is executed.",
);
pub(crate) const RETRY: Words = (
    "retry",
    "Try to undo all of these again",
    "What is stuck in each is undone with the same key as before.",
);
pub(crate) const SKIP: Words = (
    "skip",
    "Skip what is stuck in all of these",
    "The calls in trouble are not undone: their effects stand. The sagas go on with the others.",
);
const FIRST: &str = " Before anything is done you see how many these are.";

/// The acts on the calls of a list, if its filter names a state that has acts.
pub(crate) fn of_calls(context: &Context) -> Markup {
    let all: &[Words] = match context.asked.text("state") {
        "unknown" if can_ask(context) => &[ASK, SUCCEEDED, FAILED],
        "unknown" | "stuck" => &[SUCCEEDED, FAILED],
        _ => &[],
    };
    forms(context, "calls", all)
}

/// Whether a tool of the list can be asked about a key.
fn can_ask(context: &Context) -> bool {
    let (tools, named) = (context.gateway().base.tools(), context.asked.text("tool"));
    let mut listed = tools
        .iter()
        .filter(|(name, _)| named.is_empty() || *name == named);
    listed.any(|(_, at)| at.may_have_probe())
}

/// The acts on the sagas of a list, if its filter is for stuck ones.
pub(crate) fn of_sagas(context: &Context) -> Markup {
    let all: &[Words] = match context.asked.text("state") {
        "stuck" => &[RETRY, SKIP],
        _ => &[],
    };
    forms(context, "sagas", all)
}

fn forms(context: &Context, kind: &str, all: &[Words]) -> Markup {
    let result = Field::Json {
        label: "Result of each, as JSON; null where the tool answers nothing",
        value: "",
    };
    html! {
        @if !all.is_empty() {
            section.acts aria-label="What you may do to all of these" {
                @for (word, what, about) in all {
                    @let to = context.asked.to(&["many", kind, word], &NO_FILTERS);
                    @let about = format!("{about}{FIRST}");
                    @if *word == SUCCEEDED.0 {
                        (context.act(&to, what, &about, &[result, Field::Reason]))
                    } @else {
                        (context.act(&to, what, &about, &[Field::Reason]))
                    }
                }
            }
        }
    }
}
