//! The settings for a tool's unknown calls: `unknown`, `recheck` and `probe`.

use std::time::Duration;

use reqwest::Url;

use super::request::target;
use crate::common::template;
use crate::reader::{Section, Switch};
use oncegate_rules::key::Pointer;
use oncegate_rules::request::Target;
use oncegate_rules::tool::{Asks, OnUnknown, Probe, Recheck, Tool};

/// The shortest interval between two checks of an unknown call.
const MIN_RECHECK: Duration = Duration::from_millis(100);

/// Reads the probe of a tool of an MCP server, and when its answer is final.
pub fn probe_by_tool(mut section: Section<'_, '_>, tool: &mut Tool) -> Option<Asks> {
    let by = template(&mut section, false);
    let found = section.need("found");
    let after = section.get_or("negative_final_after", Switch(None));
    let (by, found) = (by?, found?);
    tool.negative_final_after = after.0;
    Some(Asks { by, found })
}

/// Reads a probe by a URL, with an example of the URL, and when its answer is final.
///
/// `names`: arguments that have a place `{name}` in the URL.
pub fn probe(
    mut section: Section<'_, '_>,
    tool: &mut Tool,
    names: &[(&str, Pointer)],
) -> Option<(Probe, Url)> {
    let target = target(&mut section, names);
    let is_one = |(target, _): &(Target, Url)| target.has_key() || target.used().next().is_some();
    let why = "a probe asks for one call: its URL has {key} or {/pointer} in it";
    section.check(target.as_ref().is_none_or(is_one), "url", why);
    let found = section.get("found");
    let after = section.get_or("negative_final_after", Switch(None));
    let (target, url) = target?;
    tool.negative_final_after = after.0;
    let probe = Probe {
        target,
        found,
        answers: false,
    };
    Some((probe, url))
}

pub fn policy(section: &mut Section<'_, '_>) -> OnUnknown {
    let words = [
        ("hold", OnUnknown::Hold),
        ("probe", OnUnknown::Probe),
        ("retry", OnUnknown::Retry),
    ];
    section.word_or("unknown", &words, OnUnknown::Hold)
}

pub fn schedule(mut section: Section<'_, '_>) -> Recheck {
    let default = Recheck::default();
    let schedule = Recheck {
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
        give_up_after: section.get_or("give_up_after", default.give_up_after),
    };
    let why = "must be at least 100 ms";
    section.check(schedule.base >= MIN_RECHECK, "base", why);
    let why = "recheck.base must not exceed recheck.max";
    section.check(schedule.base <= schedule.max, "base", why);
    let is_tried = schedule.give_up_after > schedule.base;
    let why = "recheck.give_up_after must be longer than recheck.base";
    section.check(is_tried, "give_up_after", why);
    schedule
}
