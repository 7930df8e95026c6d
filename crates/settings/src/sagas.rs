//! The section `[sagas]`.

use std::time::Duration;

use super::reader::Section;
use oncegate_rules::saga::Policy;

/// The longest wait between two tries to undo a call.
const MAX_WAIT: Duration = Duration::from_hours(24);
/// Most tries to undo one call.
const MAX_TRIES: u32 = 1_000;

pub(super) fn sagas(mut section: Section<'_, '_>) -> Policy {
    let default = Policy::default();
    let policy = Policy {
        deadline: section.get_or("deadline", default.deadline),
        on_timeout: section.get_or("on_timeout", default.on_timeout),
        retry: section.retry(default.retry, MAX_TRIES, MAX_WAIT),
        retention: section.get_or("retention", default.retention),
        look_again: default.look_again,
    };
    let why = "must be longer than zero";
    section.check(!policy.deadline.is_zero(), "deadline", why);
    policy
}
