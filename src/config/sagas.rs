//! What an operator says of sagas.

use std::time::Duration;

use super::reader::{Count, Section};
use crate::core::retry;
use crate::core::saga::{OnTimeout, Policy};

/// The longest wait before a call is tried to be undone again.
const MAX_WAIT: Duration = Duration::from_hours(24);
/// Tries of one call, at the most.
const MAX_TRIES: u32 = 1_000;

pub(super) fn sagas(mut section: Section<'_, '_>) -> Policy {
    let default = Policy::default();
    let words = [("abort", OnTimeout::Abort), ("report", OnTimeout::Report)];
    let policy = Policy {
        deadline: section.get_or("deadline", default.deadline),
        on_timeout: section
            .word("on_timeout", &words)
            .unwrap_or(default.on_timeout),
        retry: section
            .section("retry")
            .map_or(default.retry, |section| tries(section, default.retry)),
        retention: section.get_or("retention", default.retention),
        look_again: default.look_again,
    };
    if policy.deadline.is_zero() {
        section.mistake("deadline", "no plan is carried out in no time");
    }
    section.finish();
    policy
}

fn tries(mut section: Section<'_, '_>, default: retry::Policy) -> retry::Policy {
    let policy = retry::Policy {
        attempts: section
            .get("attempts")
            .map_or(default.attempts, |Count(count)| count),
        base: section.get_or("base", default.base),
        max: section.get_or("max", default.max),
    };
    if policy.attempts > MAX_TRIES {
        section.mistake(
            "attempts",
            &format!("more than {MAX_TRIES} tries help nobody"),
        );
    }
    if policy.base > policy.max {
        section.mistake("base", "the first wait is longer than the longest");
    }
    if policy.max > MAX_WAIT {
        section.mistake("max", "nobody waits for more than a day");
    }
    section.finish();
    policy
}
