//! What is done about a tool's unknown calls: `unknown`, `recheck` and `probe`.

use std::time::Duration;

use reqwest::Url;

use crate::config::common::args as compensation_args;
use crate::config::common::{is_http, placeholder};
use crate::config::reader::{Section, Switch};
use crate::core::compensation::Template;
use crate::core::tool::{Asks, OnUnknown, Recheck, Tool};

/// Unknown calls are not worked on more often than this.
const MIN_RECHECK: Duration = Duration::from_millis(100);

/// How a tool is asked whether it knows a key.
pub(super) struct Probe {
    pub(super) way: Way,
    negative_final_after: Option<Duration>,
}

pub(super) enum Way {
    /// A URL with `{key}` in it.
    Url(String),
    /// Another tool.
    Tool(Asks),
}

impl Probe {
    pub(super) fn url(&self) -> Option<String> {
        match &self.way {
            Way::Url(url) => Some(url.clone()),
            Way::Tool(_) => None,
        }
    }

    pub(super) fn asks(&self) -> Option<Asks> {
        match &self.way {
            Way::Url(_) => None,
            Way::Tool(asks) => Some(asks.clone()),
        }
    }
}

/// The probe of a tool of an upstream.
pub(super) fn probe_by_tool(mut section: Section<'_, '_>) -> Option<Probe> {
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

pub(super) fn probe(mut section: Section<'_, '_>) -> Option<Probe> {
    let url = section.need::<String>("url").and_then(|text| {
        let example = text.replace("{key}", "0123456789abcdef").parse::<Url>();
        if !example.is_ok_and(|url| is_http(&url)) || !text.contains("{key}") {
            section.mistake("url", "this is no http:// or https:// URL with {key} in it");
            return None;
        }
        if let Some(place) = placeholder(&text, &["{key}"]) {
            let why = format!("{place} would be sent as it stands: only {{key}} is filled in");
            section.mistake("url", &why);
            return None;
        }
        Some(text)
    });
    let after = section.get_or("negative_final_after", Switch(None));
    Some(Probe {
        way: Way::Url(url?),
        negative_final_after: after.0,
    })
}

pub(super) fn policy(section: &mut Section<'_, '_>) -> OnUnknown {
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

pub(super) fn schedule(mut section: Section<'_, '_>) -> Recheck {
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
pub(super) fn with_probe(tool: Tool, probe: Option<&Probe>) -> Tool {
    let unknown = match (tool.unknown, probe) {
        (OnUnknown::Probe { .. }, Some(probe)) => OnUnknown::Probe {
            negative_final_after: probe.negative_final_after,
        },
        (policy, _) => policy,
    };
    Tool {
        unknown,
        asks: probe.and_then(Probe::asks),
        ..tool
    }
}
