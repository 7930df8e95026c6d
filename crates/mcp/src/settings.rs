//! The section `[mcp]`.

use std::time::Duration;

use oncegate_rules::mcp::{MAX_CLIENT_IDS, Settings};
use oncegate_settings::reader::Section;

/// The longest wait for a call: clients give up at some time.
const MAX_WAIT: Duration = Duration::from_mins(10);

/// Reads the section. It has a default for each key.
pub fn settings(mut section: Section<'_, '_>) -> Settings {
    let default = Settings::default();
    let settings = Settings {
        origins: section.get("origins").unwrap_or_default(),
        answer_within: section.get_or("answer_within", default.answer_within),
        stream_after: section.get_or("stream_after", default.stream_after),
        tasks: section.get_or("tasks", default.tasks),
        task_after: section.get_or("task_after", default.task_after),
        await_tool: section.get_or("await_tool", default.await_tool),
        session: section
            .all_parsed("session", str::parse)
            .unwrap_or(default.session),
        user: section
            .all_parsed("user", str::parse)
            .unwrap_or(default.user),
        key_meta: section.get("key_meta").unwrap_or_default(),
        client_ids: section.get_or("client_ids", default.client_ids),
        client_call_id: section
            .all_parsed("client_call_id", str::parse)
            .unwrap_or_default(),
        pages: None,
    };
    let is_origin = |origin: &String| {
        let has_scheme = origin.starts_with("http://") || origin.starts_with("https://");
        has_scheme && !origin.ends_with('/') && origin.matches('/').count() == 2
    };
    let why = "an origin looks like \"https://app.example\", without a path";
    section.check(settings.origins.iter().all(is_origin), "origins", why);
    let why = "must be longer than zero and at most ten minutes";
    let is_wait = !settings.answer_within.is_zero() && settings.answer_within <= MAX_WAIT;
    section.check(is_wait, "answer_within", why);
    let why = "must be names of members of _meta";
    let is_name = |name: &String| !name.is_empty();
    section.check(settings.key_meta.iter().all(is_name), "key_meta", why);
    section.check(settings.client_ids.iter().all(is_name), "client_ids", why);
    let why = format!("must be at most {MAX_CLIENT_IDS}");
    let is_short = settings.client_ids.len() <= MAX_CLIENT_IDS;
    section.check(is_short, "client_ids", &why);
    settings
}
