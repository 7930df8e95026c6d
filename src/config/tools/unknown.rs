//! The settings for a tool's unknown calls: `unknown`, `recheck` and `probe`.

use std::time::Duration;

use reqwest::Url;

use super::request::target;
use crate::config::common::args as compensation_args;
use crate::config::reader::{Section, Switch};
use crate::core::compensation::Template;
use crate::core::key::Pointer;
use crate::core::request::Target;
use crate::core::tool::{Asks, OnUnknown, Recheck, Tool};

/// The shortest interval between two checks of an unknown call.
const MIN_RECHECK: Duration = Duration::from_millis(100);

/// How a tool is asked whether it knows a key.
pub(in crate::config) struct Probe {
    pub(in crate::config) way: Way,
    negative_final_after: Option<Duration>,
}

pub(in crate::config) enum Way {
    /// A URL, an example of it, and the pointer to the effect in the answer.
    Url(Target, Url, Option<Pointer>),
    /// A call of another tool.
    Tool(Asks),
}

impl Probe {
    pub(in crate::config) fn url(&self) -> Option<(&Target, &Url)> {
        match &self.way {
            Way::Url(target, url, _) => Some((target, url)),
            Way::Tool(_) => None,
        }
    }

    fn found(&self) -> Option<Pointer> {
        match &self.way {
            Way::Url(_, _, found) => found.clone(),
            Way::Tool(_) => None,
        }
    }

    pub(in crate::config) fn asks(&self) -> Option<Asks> {
        match &self.way {
            Way::Url(..) => None,
            Way::Tool(asks) => Some(asks.clone()),
        }
    }
}

/// The probe of a tool of an MCP server.
pub(in crate::config) fn probe_by_tool(mut section: Section<'_, '_>) -> Option<Probe> {
    let tool: Option<String> = section.need("tool");
    let args = compensation_args(&mut section);
    section.require("found");
    let found = section.parsed("found", str::parse);
    let after = section.get_or("negative_final_after", Switch(None));
    let by = Template {
        tool: tool?,
        args,
        undoes_unknown: false,
    };
    Some(Probe {
        way: Way::Tool(Asks { by, found: found? }),
        negative_final_after: after.0,
    })
}

pub(in crate::config) fn probe(mut section: Section<'_, '_>) -> Option<Probe> {
    let target = target(&mut section);
    let is_one = |(target, _): &(Target, Url)| target.has_key() || target.used().next().is_some();
    let why = "a probe asks for one call: its URL has {key} or {/pointer} in it";
    section.check(target.as_ref().is_none_or(is_one), "url", why);
    let found = section.parsed("found", str::parse);
    let after = section.get_or("negative_final_after", Switch(None));
    Some(Probe {
        way: target.map(|(target, url)| Way::Url(target, url, found))?,
        negative_final_after: after.0,
    })
}

pub(in crate::config) fn policy(section: &mut Section<'_, '_>) -> OnUnknown {
    let probe = OnUnknown::Probe {
        negative_final_after: None,
    };
    let words = [
        ("hold", OnUnknown::Hold),
        ("probe", probe),
        ("retry", OnUnknown::Retry),
    ];
    section.word("unknown", &words).unwrap_or(OnUnknown::Hold)
}

pub(in crate::config) fn schedule(mut section: Section<'_, '_>) -> Recheck {
    let default = Recheck::default();
    let schedule = Recheck {
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
        give_up_after: section.get_or("give_up_after", default.give_up_after),
    };
    let why = "an unknown call is not worked on more often than every 100 ms";
    section.check(schedule.base >= MIN_RECHECK, "base", why);
    let why = "the first wait is longer than the longest";
    section.check(schedule.base <= schedule.max, "base", why);
    let is_tried = schedule.give_up_after > schedule.base;
    let why = "it would be given up before it was worked on";
    section.check(is_tried, "give_up_after", why);
    schedule
}

/// Puts the settings of the probe into the tool's policy.
pub(in crate::config) fn with_probe(tool: Tool, probe: Option<&Probe>) -> Tool {
    let unknown = match (tool.unknown, probe) {
        (OnUnknown::Probe { .. }, Some(probe)) => OnUnknown::Probe {
            negative_final_after: probe.negative_final_after,
        },
        (policy, _) => policy,
    };
    Tool {
        unknown,
        probe: probe.and_then(Probe::url).map(|(target, _)| target.clone()),
        probe_found: probe.and_then(Probe::found),
        asks: probe.and_then(Probe::asks),
        ..tool
    }
}
