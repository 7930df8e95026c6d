//! The section `[audit]`.

use std::time::Duration;

use super::reader::Section;

/// How long an act of an operator is kept, if nothing is said.
pub(super) const RETENTION: Duration = Duration::from_hours(90 * 24);
/// The shortest and the longest retention.
const BOUNDS: (Duration, Duration) = (Duration::from_hours(24), Duration::from_hours(3_650 * 24));

/// The retention of the audit.
pub(super) fn audit(mut section: Section<'_, '_>) -> Duration {
    let retention = section.get_or("retention", RETENTION);
    let is_bounded = (BOUNDS.0..=BOUNDS.1).contains(&retention);
    section.check(is_bounded, "retention", "it must be from 1 to 3650 days");
    retention
}
