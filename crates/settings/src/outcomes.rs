//! `outcomes`: what the statuses of a tool mean.

use std::collections::BTreeMap;

use super::reader::{Section, meaning};
use oncegate_rules::tool::Declared;
use oncegate_rules::words::Words;

/// The meaning of statuses.
#[derive(Default)]
pub struct Outcomes {
    /// Whether a status that is not listed proves anything only if it is 2xx; `None`: not said.
    pub strict: Option<bool>,
    pub listed: BTreeMap<u16, Declared>,
}

/// The words for statuses that are not listed.
const OTHERS: [(&str, bool); 2] = [("strict", true), ("usual", false)];

/// `outcomes`: a word for all statuses, or single statuses, and a word for the others.
pub fn outcomes(section: &mut Section<'_, '_>) -> Outcomes {
    if section.is_text("outcomes") {
        return Outcomes {
            strict: section.word("outcomes", &OTHERS),
            ..Outcomes::default()
        };
    }
    let read = |status: &str, word: &str| {
        if status == "others" {
            return Ok(Err(meaning(word, &OTHERS)?));
        }
        let known = status.parse().ok();
        let known = known.filter(|status| (200..=599).contains(status));
        let status = known.ok_or_else(|| format!("{status} is not a status from 200 to 599"))?;
        Ok(Ok((status, meaning(word, Declared::WORDS)?)))
    };
    let mut outcomes = Outcomes::default();
    for entry in section.entries("outcomes", read) {
        match entry {
            Ok((status, declared)) => drop(outcomes.listed.insert(status, declared)),
            Err(strict) => outcomes.strict = Some(strict),
        }
    }
    outcomes
}

/// `outcomes` where no single status can be listed: the default for several tools.
pub fn usual_outcomes(section: &mut Section<'_, '_>) -> Option<bool> {
    section.word("outcomes", &OTHERS)
}
