//! Sections that a wing reads by itself. The kernel's settings name no wing.

use std::fmt;

use super::reader::Section;
use oncegate_engine::ToolAt;

/// What is known when the sections of wings are read.
pub struct Known<'a> {
    /// The tools of `[tools]`.
    pub tools: &'a [ToolAt],
    /// Whether there are no tokens.
    pub is_open: bool,
    /// How many tenants the tokens belong to.
    pub tenants: usize,
    /// The default for all tools: a refusal by an HTTP status proves nothing.
    pub strict: bool,
}

/// The settings of the wings of one build.
pub trait Wings: Sized + fmt::Debug {
    /// Sections of wings that this build does not have, each with the sentence that refuses it.
    const LEFT_OUT: &[(&str, &str)];

    /// Schemes of stores that this build does not have, in the same way.
    const NO_STORES: &[(&str, &str)] = &[];

    /// Reads the sections that make tools.
    fn tools(root: &mut Section<'_, '_>, known: &Known<'_>) -> Vec<ToolAt>;

    /// Reads the other sections. `tools`: all of them; `has_webhook`: whether there is a section `[webhook]`.
    fn read(root: &mut Section<'_, '_>, tools: &[ToolAt], has_webhook: bool) -> Self;
}

/// No wings: their sections are unknown keys.
impl Wings for () {
    const LEFT_OUT: &[(&str, &str)] = &[];

    fn tools(_: &mut Section<'_, '_>, _: &Known<'_>) -> Vec<ToolAt> {
        Vec::new()
    }

    fn read(_: &mut Section<'_, '_>, _: &[ToolAt], _: bool) -> Self {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Environment};

    /// A build without MCP and without SQLite.
    #[derive(Debug)]
    struct Small;

    impl Wings for Small {
        const LEFT_OUT: &[(&str, &str)] = &[("mcp", "this build has no MCP")];
        const NO_STORES: &[(&str, &str)] = &[("sqlite", "this build has no SQLite")];

        fn tools(_: &mut Section<'_, '_>, _: &Known<'_>) -> Vec<ToolAt> {
            Vec::new()
        }

        fn read(_: &mut Section<'_, '_>, _: &[ToolAt], _: bool) -> Self {
            Self
        }
    }

    #[test]
    fn what_a_build_does_not_have_is_refused_once_with_its_place() {
        let text = "[mcp]\norigins = [\"https://app.example\"]\n[store]\nurl = \"sqlite:a.db\"\n";
        let mistakes = Config::<Small>::read(text, &Environment::new()).expect_err("mistakes");
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(
            mistakes,
            [
                "1:1: mcp: this build has no MCP",
                "4:7: store.url: this build has no SQLite"
            ]
        );
    }
}
